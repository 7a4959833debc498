"""Each bias under `torch.compile`, whole and with growing sizes; and ALiBi asked one pair at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

from unified_attn import (
    ALiBi,
    Causal,
    EdgeFeatures,
    EdgeTypes,
    Graph,
    LogPrior,
    NodeTypes,
    PathFeatures,
    RelativeBias,
    ShortestPath,
    T5Bias,
    attention,
)
from unified_attn.biases.learned import _codes_within
from unified_attn.biases.log_prior import _impossible
from unified_attn.biases.path_blocks import _block_rows
from unified_attn.biases.path_features import _lengths, _within_blocks


@pytest.fixture(autouse=True)
def _no_leftovers() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def integers(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(sum(shape)))


def paths(n: int) -> Tensor:
    """Of 0 to 2 edges out of 6, ``[n, n, 2]``."""
    return torch.where(torch.arange(2) < integers(0, 3, n, n, 1), integers(0, 6, n, n, 2), -1)


def path_blocks(n: int) -> tuple[Tensor, Tensor]:
    """Of a graph of 2 nodes, with edge 6 alone, and one of the others: paths in a row, and sizes."""
    first, second = paths(2).clamp(max=0), paths(n - 2)
    return torch.cat([torch.where(first == 0, 6, -1).flatten(0, 1), second.flatten(0, 1)]), torch.tensor([2, n - 2])


# A module, what it is called on for n nodes in a batch of two, and the mask: a graph of 2 n edges, or all that came.
CALLS: dict[str, tuple[nn.Module | None, Callable[[int], tuple[Tensor, ...]], bool]] = {
    "ALiBi": (ALiBi(2), lambda n: (), False),
    "RelativeBias": (RelativeBias(2, 3), lambda n: (), False),
    "T5Bias": (T5Bias(2), lambda n: (), False),
    "NodeTypes": (NodeTypes(3, 2), lambda n: (integers(0, 3, n), integers(0, 3, 2, n)), False),
    "ShortestPath": (ShortestPath(3, 2), lambda n: (integers(-1, 6, 2, n, n),), False),
    "ShortestPath, blocks": (
        ShortestPath(3, 2), lambda n: (integers(-1, 6, 4 + (n - 2) ** 2), torch.tensor([2, n - 2])), False,
    ),
    "PathFeatures": (PathFeatures(3, 2, 2), lambda n: (drawn(2 * n, 3), paths(n)), False),
    "PathFeatures, blocks": (PathFeatures(3, 2, 2), lambda n: (drawn(2 * n, 3), *path_blocks(n)), False),
    "EdgeFeatures": (EdgeFeatures(3, 2), lambda n: (drawn(2 * n, 3),), True),
    "EdgeTypes": (EdgeTypes(3, 2), lambda n: (integers(0, 3, 2 * n),), True),
    "LogPrior": (None, lambda n: (drawn(1, 1, n, n).relu(),), False),
    "LogPrior of edges": (None, lambda n: (drawn(2 * n, 2).relu(),), True),
    "ALiBi on a graph": (ALiBi(2), lambda n: (), True),
    "T5Bias on a graph": (T5Bias(2), lambda n: (), True),
    "NodeTypes on a graph": (NodeTypes(3, 2), lambda n: (integers(0, 3, n), integers(0, 3, 2, n)), True),
    "ShortestPath on a graph": (ShortestPath(3, 2), lambda n: (integers(-1, 6, n, n),), True),
}  # fmt: skip
QUICK = {"T5Bias", "ShortestPath, blocks", "EdgeTypes"}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in CALLS])
def test_growing_sizes_compile_at_most_twice(name: str, dynamic: bool | None) -> None:
    module, data, on_graph = CALLS[name]
    for weight in () if module is None else module.parameters():
        weight.data.copy_(drawn(*weight.shape))

    def layer(x: Tensor, edge_index: Tensor, *given: Tensor) -> Tensor:
        bias: Any = LogPrior(*given) if module is None else module(*given) if given else module
        return attention(x, x, x, mask=Graph(edge_index) if on_graph else Causal(), bias=bias)

    how = "aot_eager" if name == "NodeTypes on a graph" else "eager"
    compiled = torch.compile(layer, backend=how, fullgraph=True, dynamic=dynamic)
    for n in (5, 7, 12):
        x = drawn(2, 2, n, 4).requires_grad_()
        call = x, integers(0, n, 2, 2 * n), *data(n)
        leaves = [x, *([] if module is None else module.parameters())]
        for got, want in zip(*(both(f(*call), leaves) for f in (compiled, layer)), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert len(_debug_get_cache_entry_list(layer.__code__)) <= (1 if dynamic else 2)


def both(out: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """The output and its gradients."""
    return [out, *torch.autograd.grad(out.pow(2).sum(), leaves)]


def test_values_out_of_range_raise_in_compiled_code() -> None:
    module = EdgeTypes(3, 2)

    def layer(x: Tensor, edge_index: Tensor, types: Tensor) -> Tensor:
        return attention(x, x, x, mask=Graph(edge_index), bias=module(types))

    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    x, edge_index = drawn(1, 2, 4, 4), integers(0, 4, 2, 6)
    compiled(x, edge_index, integers(0, 3, 6))
    with pytest.raises(ValueError, match=r"types holds 7 at \[0\]; it must lie in 0..2"):
        compiled(x, edge_index, integers(0, 3, 6) * 0 + 7)
    prior = torch.compile(lambda x, p: attention(x, x, x, bias=LogPrior(p)), backend="eager", fullgraph=True)
    with pytest.raises(ValueError, match=r"prior holds -1.0 at \[0\]"):
        prior(x, -torch.ones(4))
    module = PathFeatures(1, 2, 2)
    path = torch.compile(
        lambda x, p: attention(x, x, x, bias=module(x[0, 0, :, :1], p)), backend="eager", fullgraph=True
    )
    path(x, torch.zeros(4, 4, 2).long())
    with pytest.raises(ValueError, match=r"paths holds an edge after -1 at \[0, 0, 1\]"):
        path(x, torch.tensor([-1, 0]).expand(4, 4, 2))


def test_opcheck_of_the_operators_that_check_values() -> None:
    for codes in (torch.tensor([[0, 1], [2, 2]]), torch.tensor([1], dtype=torch.uint8), torch.zeros(0, 3).long()):
        torch.library.opcheck(_codes_within, (codes, 0, 2, "codes"))
    for sizes, codes, nodes in (([2, 0, 3], 13, 5), ([], 0, 0), ([0], 0, 0)):
        for dtype in (torch.int64, torch.int16):
            torch.library.opcheck(_block_rows, (torch.tensor(sizes, dtype=dtype), codes, nodes, "ShortestPath"))
    for edges in (torch.tensor([[0, 1], [2, -1]]), torch.zeros(2, 3, 0).long(), torch.zeros(3, 1, dtype=torch.uint8)):
        torch.library.opcheck(_lengths, (edges,))
    for edges, sizes in ((torch.tensor([[0], [1], [1], [0], [2]]), [2, 1]), (torch.zeros(0, 2).long(), [])):
        lengths = torch.ones(len(edges), dtype=torch.int64)
        torch.library.opcheck(_within_blocks, (lengths, edges, torch.tensor(sizes, dtype=torch.int64)))
    for prior in (torch.tensor([0.0, 0.5]), torch.tensor(1.0), torch.zeros(0, 2)):
        torch.library.opcheck(_impossible, (prior,))


# --- ALiBi


def test_alibi_is_a_rule_of_plain_indices() -> None:
    """A rule that is asked pair by pair may make no tensor of Python numbers: it cannot be vectorised then."""
    bias = ALiBi(6)
    index = [torch.arange(n) for n in (1, 6, 5, 7)]
    rule: Callable[..., Tensor] = lambda b, h, i, j: bias.add(b, h, i, j, None)  # noqa: E731
    for place in (3, 2, 1, 0):
        rule = torch.vmap(rule, in_dims=tuple(0 if n == place else None for n in range(4)))
    table = rule(*index)[0]
    wanted = -torch.tensor(bias.slopes, dtype=torch.float64)[:, None, None] * (index[2][:, None] - index[3]).abs()
    assert torch.equal(table, wanted)


@pytest.mark.parametrize("heads", [6, 8, 12, 40])
def test_slopes_are_exact_powers_whatever_the_dtype_of_the_module(heads: int) -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        zero = torch.tensor(0)
        found = -ALiBi(heads).to(dtype).add(zero, torch.arange(heads), zero, zero + 1, None)
        assert found.dtype == torch.float64
        assert found.tolist() == pytest.approx(list(ALiBi(heads).slopes), rel=1e-15)
    lower = 2 ** (heads.bit_length() - 1)
    powers = [2.0 ** (-8 * (n + 1) / lower) for n in range(lower)]
    assert ALiBi(heads).slopes == pytest.approx(
        powers + [2.0 ** (-4 * (2 * n + 1) / lower) for n in range(heads - lower)], rel=1e-15
    )
