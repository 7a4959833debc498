"""Long rows, cut into pieces: the same numbers as in one piece, and as the definition gives."""

import math
from unittest.mock import Mock

import pytest
import torch

from tests.kernels.csr_loop import gradients, operands, pairs_of, random_graph, run, stack
from unified_attn import GATv2, Graph, graph_attention
from unified_attn.kernels import csr_launch, csr_ops, csr_pieces
from unified_attn.kernels.csr_args import CHUNK

EDGES = 1000


def problem(form, vectors, batch):
    """Rows and columns of up to some hundred pairs, one list for each item of the batch, and one row that is hidden."""
    tensors = operands(
        torch.float64, batch=batch, edges=EDGES, full=True, form=form, vectors=vectors.replace("table", "rows")
    )
    lists = [random_graph(seed, edges=EDGES) for seed in range(batch)]
    add = tensors["add"].detach()
    add[:, :, lists[0][0] == 1] = -math.inf
    tensors["add"] = add.requires_grad_()
    options = {}
    if vectors == "table":
        for side in ("key", "value"):
            tensors[f"{side}_vectors"] = tensors[f"{side}_vectors"].detach()[:9].requires_grad_()
            options[f"{side}_code"] = torch.arange(EDGES)[None] % 9
    return tensors, [pairs_of(*pairs, 6, 7) for pairs in lists], options


@pytest.mark.parametrize("each", [False, True], ids=["one list", "a list an item"])
@pytest.mark.parametrize("vectors", ["rows", "table", "features"])
@pytest.mark.parametrize("form", ["dot", "sum"])
def test_equal_to_whole_rows(form, vectors, each):
    tensors, lists, options = problem(form, vectors, batch=2)
    rows = stack(lists) if each else lists[0]
    dropout = {"dropout_p": 0.3, "seed": torch.tensor(7)}
    for more in ({}, dropout, {**dropout, "pair_counter": True}):
        want = run(tensors, rows, **options, **more)
        want_grads = gradients(want, tensors)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(csr_launch, "_PIECE_WORK", 1)  # rows of more than one chunk are cut, and no plan is kept
            patch.setattr(csr_ops, "_facts", csr_launch.Plans())
            cut = Mock(wraps=csr_pieces.cut)
            patch.setattr(csr_pieces, "cut", cut)
            got = run(tensors, rows, **options, **more)
            got_grads = gradients(got, tensors)
        assert cut.call_count == 3  # forward, rows, columns
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        for name, expected in want_grads.items():
            torch.testing.assert_close(got_grads[name], expected, rtol=1e-11, atol=1e-11, msg=name)


def test_cut_covers_every_pair_of_long_rows_once():
    indptr = torch.tensor([[0, 5, 5, 405, 533, 534]])
    col = torch.zeros(534, dtype=torch.int32)
    (pieces,) = csr_pieces.cut(indptr, col, col, CHUNK)
    begin, ends = (pieces.rows.operands[name].tolist() for name in ("indptr", "ends"))
    assert list(zip(begin, ends, strict=True)) == [(5, 133), (133, 261), (261, 389), (389, 405)]
    assert pieces.row.tolist() == [2, 2, 2, 2]
    assert pieces.long.tolist() == [2]  # the row of exactly one chunk is left whole
    assert list(csr_pieces.cut(indptr, col, col, 400)) == []


@pytest.mark.parametrize("kind", ["dot", "gatv2"])
def test_node_joined_to_all(kind):
    """The real limit: a row and a column of 9,000 pairs, 4,096 of which make a block."""
    nodes = 9000
    spokes = torch.arange(nodes)
    graph = Graph(torch.stack([torch.cat([spokes, spokes * 0]), torch.cat([spokes * 0, spokes])]), num_keys=nodes)
    generator = torch.Generator().manual_seed(0)
    x, y, z = (torch.randn(nodes, 4, 32, generator=generator, dtype=torch.float64) for _ in range(3))
    att = torch.randn(4, 32, generator=generator, dtype=torch.float64)
    leaves = [t.requires_grad_() for t in (x, y, z)]
    score = None if kind == "dot" else GATv2(att)
    out = graph_attention(x, y, z, graph, score=score, backend="csr")

    logits = (x[0] * y).sum(-1) * 32**-0.5 if kind == "dot" else (leaky(x[0] + y) * att).sum(-1)
    logits = torch.cat([logits, logits[:1]])  # node 0 is joined to itself by both stars
    weights = logits.softmax(0)
    hub = (weights[..., None] * torch.cat([z, z[:1]])).sum(0)
    want = torch.cat([hub[None], z[:1].expand(nodes - 1, -1, -1)])  # the others see node 0 alone
    torch.testing.assert_close(out, want, rtol=1e-11, atol=1e-11)
    cotangent = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    for a, b in zip(
        torch.autograd.grad(out, leaves, cotangent), torch.autograd.grad(want, leaves, cotangent), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def leaky(x):
    return torch.where(x > 0, x, 0.2 * x)
