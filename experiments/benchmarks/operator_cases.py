"""The fused operator against the same formula in plain torch, on graphs of all kinds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import torch
from torch import Tensor

from experiments.benchmarks import peers
from experiments.benchmarks.case import Case, Side, Size
from experiments.benchmarks.measure import seconds_of
from graphs.generators import power_law
from unified_attn import GAT, EdgeBias, GATv2, Graph, graph_attention

FORMULA, SCATTER = "gather, softmax, scatter in torch", "gather, softmax, scatter of torch-scatter"


def operator_cases(size: Size, seed: int = 0) -> Iterator[Case]:
    """Every score on a graph of many small and few large neighbourhoods; sorted beforehand for both."""
    edge_index = by_target(power_law(size.nodes, size.edges, seed=seed))
    yield from cases_on("", size, edge_index, seed, scatter=find_spec("torch_scatter") is not None)


def cases_on(where: str, size: Size, edge_index: Tensor, seed: int = 0, *, scatter: bool = False) -> Iterator[Case]:
    """The scores, with and without a bias, on one graph.

    Args:
        where: What is special to it.
        size: Of graph and heads.
        edge_index: Sorted by target.
        seed: Of the inputs.
        scatter: Whether torch-scatter is a peer too, of dot and GATv2.
    """
    graph = Graph(edge_index, num_keys=size.nodes)
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    x, y, z = (normal(size.nodes, size.heads, size.channels) for _ in range(3))
    a, b = (normal(size.heads, size.channels) * size.channels**-0.5 for _ in range(2))
    e = normal(edge_index.shape[1], size.heads)
    floor = gathering(edge_index, size)

    def case(
        name: str, inputs: tuple[Tensor, ...], ours: Callable[..., Tensor], formula: Callable[..., Tensor]
    ) -> Iterator[Case]:
        exact = Side(lambda *inputs: formula(*inputs, edge_index=edge_index))
        yield Case(f"{name}{where}, {size}", FORMULA, inputs, Side(ours), exact, exact, floor=floor)
        if scatter and name in ("dot", "GATv2"):
            theirs = Side(lambda *inputs: formula(*inputs, edge_index=edge_index, mix=peers.torch_scatter_mix))
            yield Case(f"{name}{where}, {size}", SCATTER, inputs, Side(ours), theirs, exact, floor=floor)

    yield from case("dot", (x, y, z), lambda q, k, v: graph_attention(q, k, v, graph, backend="csr"), peers.dot)
    yield from case(
        "dot + EdgeBias",
        (x, y, z, e),
        lambda q, k, v, bias: graph_attention(q, k, v, graph, bias=EdgeBias(bias), backend="csr"),
        peers.dot,
    )
    yield from case(
        "GATv2",
        (x, y, a),
        lambda q, k, att: graph_attention(q, k, k, graph, score=GATv2(att), backend="csr"),
        peers.gatv2,
    )
    yield from case(
        "GAT",
        (x, a, b),
        lambda h, src, dst: graph_attention(h, h, h, graph, score=GAT(src, dst), backend="csr"),
        peers.gat,
    )


def uneven_cases(scale: int = 1) -> Iterator[Case]:
    """Graphs and sizes that are hard to share out evenly, or too small for a kernel to pay.

    Args:
        scale: Divides the numbers of nodes and edges of the large ones, for a test.
    """
    nodes, edges = 20_000 // scale, 140_000 // scale
    uniform = torch.randint(0, nodes, (2, edges), generator=torch.Generator().manual_seed(1))
    star = torch.stack([torch.arange(edges) % nodes, torch.zeros(edges, dtype=torch.int64)])
    many = torch.arange(1_000_000 // scale)
    five = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])
    law = power_law(nodes, edges, seed=1)
    for where, edge_index, size in (
        (" on a uniform graph", uniform, Size(nodes, edges, 4, 32)),
        (" on one node joined to all", star, Size(nodes, edges, 4, 32)),
        (" on nodes of degree 1", torch.stack([many, many.flip(0)]), Size(len(many), len(many), 2, 8)),
        (" on five nodes", five, Size(5, 6, 4, 32)),
        (" with one head", law, Size(nodes, edges, 1, 32)),
        (" with one channel", law, Size(nodes, edges, 4, 1)),
        (" with 1,024 channels", law[:, : edges // 4], Size(nodes, edges // 4, 16, 64)),
    ):
        yield from cases_on(where, size, by_target(edge_index))


def by_target(edge_index: Tensor) -> Tensor:
    """The edges sorted by target: what serves the peer best."""
    return edge_index[:, edge_index[1].argsort(stable=True)]


def gathering(edge_index: Tensor, size: Size) -> Callable[[], object]:
    """One pass over all neighbours' rows: MKL's sparse product with the adjacency, in the quicker of two layouts."""
    indptr = torch.zeros(size.nodes + 1, dtype=torch.int32)
    indptr[1:] = torch.bincount(edge_index[1], minlength=size.nodes).cumsum(0)
    values = torch.ones(edge_index.shape[1])
    shape = (size.nodes, size.nodes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls its CSR tensors a beta
        adjacency = torch.sparse_csr_tensor(indptr, edge_index[0].int(), values, shape, check_invariants=False)
    rows = torch.randn(size.nodes, size.heads * size.channels)
    products = [lambda x=x: adjacency @ x for x in (rows, rows.t().contiguous().t())]
    for product in products:
        product()  # the first one looks the matrix over
    return min(products, key=seconds_of)
