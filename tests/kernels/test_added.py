"""A bias that hides nothing, added for eight heads at once: the same numbers, wherever it is taken."""

import pytest
import torch

from tests.kernels.csr_loop import gradients, operands, pairs_of, random_graph, run, stack
from unified_attn.kernels import csr_launch, csr_ops

EDGES = 1000  # rows of up to some hundred pairs: more than one chunk


@pytest.fixture
def seen(monkeypatch):
    """What was answered each time that a kernel was made: whether the bias is added at once."""
    answers, added = [], csr_launch.added
    monkeypatch.setattr(csr_launch, "added", lambda call: answers.append(added(call)) or answers[-1])
    monkeypatch.setattr(csr_ops, "_facts", csr_launch.Plans())
    return answers


def laid_out(tensors):
    """A node's heads next to each other, and a pair's."""
    for name in ("query", "key", "value"):
        tensors[name] = tensors[name].detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    tensors["add"] = tensors["add"].detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    return tensors


@pytest.mark.parametrize("each", [False, True], ids=["one list", "a list an item"])
@pytest.mark.parametrize("pieces", [False, True], ids=["whole rows", "pieces"])
@pytest.mark.parametrize("width", [8, 5, 1])
@pytest.mark.parametrize("heads", [4, 8, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", ["dot", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
def test_equal_to_one_head_after_the_other(dtype, form, heads, width, pieces, each, seen, monkeypatch):
    lists = [pairs_of(*random_graph(seed, edges=EDGES), 6, 7) for seed in range(2)]
    rows = stack(lists) if each else lists[0]
    if pieces:
        monkeypatch.setattr(csr_launch, "_PIECE_WORK", 1)
    options = {"dropout_p": 0.3, "seed": torch.tensor(7)}
    for add_heads in (heads, 1):
        tensors = operands(dtype, heads=heads, kheads=heads, vheads=heads, width=width, edges=EDGES, form=form)
        generator = torch.Generator().manual_seed(3)
        tensors["add"] = torch.randn(1, add_heads, EDGES, generator=generator, dtype=torch.float64).to(dtype)
        tensors = laid_out(tensors)
        want = run(tensors, rows, **options)
        assert not any(seen)
        got = run(tensors, rows, add_hides=False, **options)
        tolerance = 1e-11 if dtype == torch.float64 else 1e-4
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
        found, right = gradients(got, tensors), gradients(want, tensors)
        for name, expected in right.items():
            torch.testing.assert_close(found[name], expected, rtol=tolerance, atol=10 * tolerance, msg=name)
        assert any(seen)
        seen.clear()


def test_where_it_is_not_taken(seen):
    pairs = random_graph(edges=EDGES)
    rows = pairs_of(*pairs, 6, 7)
    tensors = operands(torch.float32, edges=EDGES, full=True, vectors="none")
    gradients(run(tensors, rows, add_hides=False), tensors)  # a head's pairs next to each other
    tensors = laid_out(tensors)
    tensors["add"].data[0, 1, 7] = -torch.inf
    gradients(run(tensors, rows, add_hides=True), tensors)
    assert seen
    assert not any(seen)
