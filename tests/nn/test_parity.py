"""Every layer beside torch-geometric's: outputs and all gradients, over the grid of options."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.nn.twins import (
    GRAPHS,
    agree,
    close,
    edges_between,
    features,
    gradients,
    one_loop_a_node,
    twins,
    without_loops,
)

GAT = {
    "heads": (3, 1),
    "concat": (True, False),
    "edge_dim": (None, 2),
    "add_self_loops": (True, False),
    "residual": (False, True),
    "bias": (True, False),
}
GRID: dict[str, dict[str, tuple[Any, ...]]] = {
    "GATConv": {**GAT, "negative_slope": (0.2, 0.5)},
    "GATv2Conv": {**GAT, "share_weights": (False, True)},
    "TransformerConv": {
        "heads": (3, 1),
        "concat": (True, False),
        "edge_dim": (None, 2),
        "beta": (False, True),
        "root_weight": (True, False),
        "bias": (True, False),
    },
}
KINDS = ("one set", "(x, x)", "two sets", "pair of sizes")
DTYPES = (torch.float64, torch.float32)


def combinations(name: str) -> Iterator[dict[str, Any]]:
    names = list(GRID[name])
    for values in product(*GRID[name].values()):
        yield dict(zip(names, values, strict=True))


def cases() -> Iterator[Any]:
    """All of them, most of them slow: quick ones walk through the values of each option, and through the graphs."""
    for name in GRID:
        for n, options in enumerate(combinations(name)):
            loops = options.get("add_self_loops", False)
            for m, (kind, graph, dtype) in enumerate(product(KINDS, GRAPHS, DTYPES)):
                if kind == "two sets" and loops:
                    continue  # raises: see test_cases
                quick = (n * 7 + m) % 199 == 0
                marks = [] if quick else [pytest.mark.slow]
                if not quick and (n + m) % 5:
                    continue  # every option still meets every kind, graph and dtype
                yield pytest.param(name, options, kind, graph, dtype, marks=marks)


@pytest.mark.parametrize(("name", "options", "kind", "graph", "dtype"), list(cases()))
def test_layer(name: str, options: dict[str, Any], kind: str, graph: str, dtype: torch.dtype) -> None:
    nodes, count = GRAPHS[graph]
    targets = nodes if kind != "two sets" else max(nodes - 1, 0)
    edge_index = edges_between(nodes, targets, count if targets else 0)
    loops = options.get("add_self_loops", False)
    if loops:  # own loops: theirs loses their features, and makes several of them one
        edge_index = without_loops(edge_index) if options["edge_dim"] else one_loop_a_node(edge_index)
    sizes: Any = 5
    if kind in ("two sets", "pair of sizes"):
        sizes = (5, 5 if options.get("share_weights") or kind == "pair of sizes" else 6)
    theirs, mine = twins(name, sizes, 4, dtype=dtype, **options)
    x = features(nodes, 5, dtype=dtype)
    inputs, given = [x], x
    if kind == "(x, x)":
        given = (x, x)
    elif kind == "two sets":
        inputs.append(features(targets, sizes[1], dtype=dtype, seed=1))
        given = (x, inputs[1])
    args: list[Any] = [given, edge_index]
    if options["edge_dim"]:
        edge_attr = features(edge_index.shape[1], options["edge_dim"], dtype=dtype, seed=2)
        inputs.append(edge_attr)
        args.append(edge_attr)
    agree(theirs, mine, inputs, *args)


@pytest.mark.parametrize("name", GRID)
@pytest.mark.parametrize("edge_dim", [None, 2])
def test_what_is_compared_depends_on_every_weight(name: str, edge_dim: int | None) -> None:
    more = {"beta": True} if name == "TransformerConv" else {"residual": True}
    theirs, _ = twins(name, 5, 4, heads=3, edge_dim=edge_dim, **more)
    edge_index = without_loops(edges_between(9, 9, 12))
    x, edge_attr = features(9, 5, dtype=torch.float64), features(edge_index.shape[1], 2, dtype=torch.float64, seed=2)
    found = gradients(theirs, theirs(x, edge_index, edge_attr if edge_dim else None), [x])
    # The keys' bias of a dot product shifts all logits of a query alike.
    assert [key for key, grad in found.items() if grad.abs().max() < 1e-3] == (
        ["lin_key.bias"] if name == "TransformerConv" else []
    )


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv"])
@pytest.mark.parametrize("shape", [(2,), (1, 2), ()])
def test_fill_value_as_a_tensor(name: str, shape: tuple[int, ...]) -> None:
    fill = torch.tensor([[0.5, -2.0]], dtype=torch.float64).flatten()[: 2 if shape else 1].reshape(shape)
    theirs, mine = twins(name, 5, 4, edge_dim=2, fill_value=fill)
    fill_parity(theirs, mine)


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv"])
@pytest.mark.parametrize("fill", ["mean", "add", "sum", "min", "max", "mul", 0.0, 1.5, -2])
def test_fill_value(name: str, fill: str | float) -> None:
    fill_parity(*twins(name, 5, 4, edge_dim=2, fill_value=fill))


def fill_parity(theirs: torch.nn.Module, mine: torch.nn.Module) -> None:
    edge_index = without_loops(edges_between(6, 5, 14))  # nothing points at node 5
    x, edge_attr = features(6, 5, dtype=torch.float64), features(edge_index.shape[1], 2, dtype=torch.float64, seed=1)
    agree(theirs, mine, [x, edge_attr], x, edge_index, edge_attr)


@pytest.mark.parametrize("name", GRID)
def test_one_feature_an_edge_may_be_a_vector(name: str) -> None:
    theirs, mine = twins(name, 5, 4, edge_dim=1)
    edge_index = without_loops(edges_between(6, 6, 14))
    x, edge_attr = features(6, 5, dtype=torch.float64), features(edge_index.shape[1], dtype=torch.float64, seed=1)
    theirs_args = (x, edge_index, edge_attr if name != "TransformerConv" else edge_attr[:, None])
    agree(theirs, mine, [x, edge_attr], *theirs_args, mine_args=(x, edge_index, edge_attr))


@pytest.mark.parametrize("size", [None, (6, 4), (6, 6)])
def test_targets_without_features(size: tuple[int, int] | None) -> None:
    theirs, mine = twins("GATConv", 5, 4, heads=2, add_self_loops=False)
    x, edge_index = features(6, 5, dtype=torch.float64), edges_between(6, 4, 14)
    agree(theirs, mine, [x], (x, None), edge_index, None, size)


@pytest.fixture
def quiet_sparse() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse")  # torch's, on beta state and on invariants
        yield


@pytest.mark.usefixtures("quiet_sparse")
@pytest.mark.parametrize("name", GRID)
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
@pytest.mark.parametrize("edge_dim", [None, 2])
def test_sparse_adjacency(name: str, layout: torch.layout, edge_dim: int | None) -> None:
    """A row a target; features come beside it, in the order in which it stores its entries."""
    options = {} if name == "TransformerConv" else {"add_self_loops": False}
    theirs, mine = twins(name, (5, 6), 4, heads=2, edge_dim=edge_dim, **options)
    target, source = torch.unique(edges_between(6, 4, 14).flip(0), dim=1)
    ones = torch.ones(len(target), dtype=torch.float64)
    adjacency: Tensor = torch.sparse_coo_tensor(torch.stack([target, source]), ones, (4, 6)).coalesce()
    order = torch.argsort(source * 4 + target) if layout == torch.sparse_csc else torch.arange(len(target))
    edge_index = torch.stack([source, target])[:, order]
    if layout != torch.sparse_coo:
        adjacency = adjacency.to_sparse(layout=layout)
    inputs = [features(6, 5, dtype=torch.float64), features(4, 6, dtype=torch.float64, seed=1)]
    more = [] if edge_dim is None else [features(len(target), edge_dim, dtype=torch.float64, seed=2)]
    x = tuple(inputs)
    agree(theirs, mine, inputs + more, x, edge_index, *more, mine_args=(x, adjacency, *more))
    if layout != torch.sparse_csc:  # which theirs does not take
        agree(theirs, mine, inputs + more, x, adjacency, *more)


@pytest.mark.usefixtures("quiet_sparse")
@pytest.mark.parametrize("name", GRID)
def test_features_of_a_sparse_adjacency(name: str) -> None:
    options = {} if name == "TransformerConv" else {"add_self_loops": False}
    theirs, mine = twins(name, 5, 4, edge_dim=2, **options)
    pairs = torch.unique(edges_between(6, 6, 14), dim=1)
    values = features(pairs.shape[1], 2, dtype=torch.float64, seed=2).detach()
    adjacency = torch.sparse_coo_tensor(pairs, values, (6, 6, 2)).coalesce()
    x = features(6, 5, dtype=torch.float64)
    agree(theirs, mine, [x], x, adjacency)


@pytest.mark.usefixtures("quiet_sparse")
@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv"])
def test_sparse_adjacency_with_self_loops(name: str) -> None:
    theirs, mine = twins(name, 5, 4, heads=2)
    pairs = torch.unique(edges_between(6, 6, 14), dim=1)
    ones = torch.ones(pairs.shape[1], dtype=torch.float64)
    adjacency = torch.sparse_coo_tensor(pairs, ones, (6, 6)).coalesce()
    x = features(6, 5, dtype=torch.float64)
    agree(theirs, mine, [x], x, adjacency)


@pytest.mark.parametrize("name", GRID)
def test_weights(name: str) -> None:
    """Theirs: the caller's edges without loops, then all loops. Ours: the caller's edges, then the missing loops."""
    theirs, mine = twins(name, 5, 4, heads=2)
    edge_index = one_loop_a_node(edges_between(6, 6, 14, seed=3))
    x = features(6, 5, dtype=torch.float64)
    close(mine(x, edge_index), theirs(x, edge_index))
    _, (a_edges, a) = theirs(x, edge_index, return_attention_weights=True)
    out, (b_edges, b) = mine(x, edge_index, return_attention_weights=True)
    close(out, theirs(x, edge_index))
    assert torch.equal(b_edges[:, : edge_index.shape[1]], edge_index)
    assert b.shape == (b_edges.shape[1], 2)

    def ordered(edges: Tensor, weights: Tensor) -> Tensor:
        return weights[torch.argsort(edges[1] * 6 + edges[0], stable=True)]

    close(ordered(b_edges, b), ordered(a_edges, a))
    assert torch.autograd.grad(b[:, 0].cos().sum(), x)[0].any()


@pytest.mark.parametrize("name", GRID)
def test_starting_values_are_the_same_for_a_seed(name: str) -> None:
    for options in ({"heads": 2, "edge_dim": 3}, {"heads": 2, "concat": False}):
        torch.manual_seed(5)
        theirs, _ = pair_of(name, 5, **options)
        torch.manual_seed(5)
        _, mine = pair_of(name, 5, **options, ours_first=True)
        assert theirs.keys() == mine.keys()
        assert all(torch.equal(theirs[key], mine[key]) for key in theirs)


def pair_of(name: str, size: int, *, ours_first: bool = False, **options: Any) -> tuple[Any, Any]:
    import torch_geometric.nn as pyg

    from unified_attn import nn as ours

    order = (ours, pyg) if ours_first else (pyg, ours)
    made = [getattr(library, name)(size, 4, **options).state_dict() for library in order]
    return (made[1], made[0]) if ours_first else (made[0], made[1])
