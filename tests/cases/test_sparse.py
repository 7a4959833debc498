"""Graphs: what broke in other libraries, and must not here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cases.tools import (
    INF,
    ON_EDGES,
    WAYS,
    assert_same,
    close,
    complete,
    edges,
    gradients,
    graph_weights,
    identity,
    inputs,
    run,
)
from unified_attn import (
    GAT,
    ALiBi,
    Causal,
    Dot,
    EdgeBias,
    Full,
    GATv2,
    Graph,
    Mask,
    PairVectors,
    RoPE,
    Score,
    Window,
    attention,
    attention_weights,
    graph_attention,
)

on_edges = pytest.mark.parametrize("backend", ON_EDGES)
every_way = pytest.mark.parametrize("way", WAYS)

GRAPH = edges((0, 1), (3, 1), (2, 2), (1, 3), (0, 3), (3, 3), (0, 1))  # node 0 hears nobody; 0 -> 1 is there twice


def vectors(*size: int, seed: int = 5) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*size, generator=g, dtype=torch.float64).requires_grad_()


# --- nodes that hear nobody


@on_edges
@pytest.mark.parametrize("low", [-INF, torch.finfo(torch.float32).min])
def test_a_node_whose_edges_are_all_minus_infinity(backend: str, low: float) -> None:
    """NaN for that node, one layer later for its neighbours: dmlc/dgl #5476. Two layers must stay finite."""
    edge_index = edges((0, 1), (2, 1), (1, 0), (2, 0), (0, 2))
    values = torch.tensor([low, low, 0.0, 1.0, 0.0], requires_grad=True)
    x = torch.randn(1, 2, 3, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    graph, bias = Graph(edge_index), EdgeBias(values)
    once = attention(x, x, x, mask=graph, bias=bias, backend=backend)
    twice = attention(once, once, once, mask=graph, bias=bias, backend=backend)
    assert not once[:, :, 1].any()
    assert bool(twice.isfinite().all())
    for gradient in gradients(twice, x, values):
        assert bool(gradient.isfinite().all())
    rows = attention_weights(x, x, mask=graph, bias=bias)[0, :, :2]
    assert not rows.any()


@on_edges
def test_isolated_and_source_only_nodes_give_zeros(backend: str) -> None:
    """A hard error, or a flag in every layer, for nodes without incoming edges: dmlc/dgl #3061."""
    q, k, v = inputs(3)
    out = attention(q, k, v, mask=Graph(edges((0, 1))), backend=backend)
    assert not out[:, :, [0, 2]].any()
    torch.testing.assert_close(out[:, :, 1], v[:, :, 0])


# --- weights and edges


def test_weights_belong_to_the_callers_edges() -> None:
    """Edges came back reordered and extended: pyg-team/pytorch_geometric #3550, #1227."""
    q, k, _ = inputs(4)
    bias = vectors(7, 2)
    given = attention_weights(q, k, mask=Graph(GRAPH), bias=EdgeBias(bias))
    assert given.shape == (2, 2, 7)
    sums = torch.zeros(2, 2, 4, dtype=torch.float64).index_add(2, GRAPH[1], given)
    torch.testing.assert_close(sums, torch.tensor([0.0, 1.0, 1.0, 1.0], dtype=torch.float64).expand(2, 2, 4))
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    shuffled = attention_weights(q, k, mask=Graph(GRAPH[:, order]), bias=EdgeBias(bias[order]))
    torch.testing.assert_close(shuffled, given[:, :, order], rtol=1e-12, atol=1e-12)


@on_edges
def test_weights_are_what_the_values_are_summed_with(backend: str) -> None:
    """The same: the output is rebuilt from the weights."""
    q, k, v = inputs(4)
    w = attention_weights(q, k, mask=Graph(GRAPH))
    rebuilt = torch.zeros_like(v).index_add(2, GRAPH[1], w[..., None] * v[:, :, GRAPH[0]])
    torch.testing.assert_close(rebuilt, attention(q, k, v, mask=Graph(GRAPH), backend=backend))


@on_edges
@pytest.mark.parametrize("copies", [1, 2, 5])
def test_parallel_edges_weigh_like_log_m(backend: str, copies: int) -> None:
    """'The results should be the same' with duplicates, but they are not: pyg-team/pytorch_geometric #1267, #2361."""
    first = copies / (copies + 1)
    close(graph_weights(backend, edges(*[(0, 2)] * copies, (1, 2)), 3)[2], [first, 1 - first, 0.0])
    q, k, v = inputs(4)
    doubled = attention(q, k, v, mask=Graph(GRAPH), backend=backend)  # 0 -> 1 twice
    log_2 = torch.zeros(6, dtype=torch.float64)
    log_2[0] = torch.tensor(2.0, dtype=torch.float64).log()
    assert_same(attention(q, k, v, mask=Graph(GRAPH[:, :6]), bias=EdgeBias(log_2), backend=backend), doubled, q, k, v)


def test_duplicates_can_be_refused() -> None:
    """The same: users could not find their duplicates."""
    with pytest.raises(ValueError, match="edge 0 -> 1 is there more than once: as edges 0 and 6"):
        Graph(GRAPH).check_unique()
    Graph(GRAPH[:, :6]).check_unique()


@on_edges
def test_runs_agree_to_the_bit_and_edge_orders_nearly(backend: str) -> None:
    """Atomics made runs differ, and the deterministic switch raised: rusty1s/pytorch_scatter #226."""
    g = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, 12, (2, 80), generator=g)
    q, k, v = inputs(12, dtype=torch.float32)
    bias = torch.randn(80, 2, generator=g).requires_grad_()

    def once(order: Tensor) -> list[Tensor]:
        graph = Graph(edge_index[:, order])
        out = attention(q, k, v, mask=graph, bias=EdgeBias(bias[order]), backend=backend)
        return [out.detach(), *gradients(out, q, k, v, bias)]

    torch.use_deterministic_algorithms(True)
    try:
        first, *others = [once(torch.arange(80)) for _ in range(10)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))
    for a, b in zip(first, once(torch.randperm(80, generator=g)), strict=True):
        torch.testing.assert_close(a, b, rtol=0.0, atol=2e-6)


# --- indices


@pytest.mark.parametrize("early", [True, False], ids=["sizes given", "at the call"])
@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ((0, 9), "row 1 (target = query) holds 9 at edge 1, but there are 5 queries: indices run from 0 to 4"),
        ((0, -1), "row 1 (target = query) holds -1 at edge 1, but there are 5 queries: indices run from 0 to 4"),
        ((5, 0), "row 0 (source = key) holds 5 at edge 1, but there are 5 keys: indices run from 0 to 4"),
        ((-(2**40), 0), f"row 0 (source = key) holds {-(2**40)} at edge 1, but there are 5 keys"),
        ((2**40, 0), f"row 0 (source = key) holds {2**40} at edge 1, but there are 5 keys"),
    ],
)
def test_an_index_outside_the_graph(early: bool, bad: tuple[int, int], text: str) -> None:
    """A segmentation fault, or silently wrong sizes: pyg-team/pytorch_geometric #723, #8902, #4588."""
    q = torch.zeros(1, 1, 5, 4)
    for backend in ON_EDGES:
        with pytest.raises(ValueError, match="holds") as error:
            attention(q, q, q, mask=Graph(edges((1, 2), bad), num_keys=5 if early else None), backend=backend)
        assert text in str(error.value)


@on_edges
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8, torch.uint32], ids=str)
def test_any_integers_are_indices(backend: str, dtype: torch.dtype) -> None:
    """int32 was refused."""
    q, k, v = inputs(4)
    narrow = attention(q, k, v, mask=Graph(GRAPH.to(dtype)), backend=backend)
    assert torch.equal(narrow, attention(q, k, v, mask=Graph(GRAPH), backend=backend))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64], ids=str)
def test_floats_and_bools_are_no_indices(dtype: torch.dtype) -> None:
    """The same: a bool tensor is an adjacency or a mistake."""
    with pytest.raises(TypeError, match=r"edge_index is \[2, 7\] .*; give a \[2, E\] tensor of integers"):
        Graph(GRAPH.to(dtype))


@on_edges
def test_between_two_node_sets_the_sizes_are_those_of_q_and_k(backend: str) -> None:
    """Indices were compared with one size for both ends, and loops invented: pyg-team/pytorch_geometric #7668."""
    q, k, v = inputs(5, 3)
    out = attention(q, k, v, mask=Graph(edges((0, 1), (2, 4))), backend=backend)
    (dv,) = torch.autograd.grad(out[:, :, 1].sum(), v, retain_graph=True)
    assert dv[:, :, 0].any()
    assert not dv[:, :, 1:].any()
    assert_same(out[:, :, [1, 4]], v[:, :, [0, 2]], v)


def test_an_edge_tensor_turned_round() -> None:
    """[E, 2] was accepted with two edges, and rejected late otherwise: pyg-team/pytorch_geometric #221, #227."""
    turned = edges((0, 2), (1, 2), (2, 0)).t()
    with pytest.raises(ValueError, match=r"edge_index has shape \[3, 2\]; it must be \[2, E\].*pass edge_index.t\(\)"):
        Graph(turned)


@on_edges
def test_the_softmax_is_over_incoming_edges_whatever_names_the_ends(backend: str) -> None:
    """The same: which end the softmax groups by was a guess; ends can be named."""
    q = torch.zeros(1, 1, 3, 4)
    graph = Graph.from_edges(src=torch.tensor([0, 1]), dst=torch.tensor([2, 2]))
    rows = attention(q, q, identity(3), mask=graph, backend=backend)[0, 0, :, :3]
    close(rows, [[0.0] * 3, [0.0] * 3, [0.5, 0.5, 0.0]])


# --- GAT and GATv2


def gat_loop(x: Tensor, y: Tensor, v: Tensor, index: Tensor, logit: Callable[[int, int, int, int], Tensor]) -> Tensor:
    """One plain loop over targets; `logit(b, h, e, i)` of edge e into i."""
    out = torch.zeros(*x.shape[:3], v.shape[-1], dtype=v.dtype)
    rows = []
    for b in range(x.shape[0]):
        for h in range(x.shape[1]):
            for i in range(x.shape[2]):
                into = [e for e in range(index.shape[1]) if int(index[1, e]) == i]
                if not into:
                    rows.append(out[b, h, i])
                    continue
                p = torch.stack([logit(b, h, e, i) for e in into]).softmax(0)
                rows.append(sum(p[n] * v[b, h, index[0, e]] for n, e in enumerate(into)))
    return torch.stack(rows).reshape(out.shape)


@on_edges
@pytest.mark.parametrize("slope", [0.2, 0.0, 1.0])
@pytest.mark.parametrize("with_edges", [False, True], ids=["", "edge"])
def test_gat_against_a_loop(backend: str, slope: float, with_edges: bool) -> None:
    """One vector served both ends, and fixing that broke loaded models: pyg-team/pytorch_geometric #1642."""
    q, k, v = inputs(4)
    src, dst, edge = vectors(2, 4), vectors(2, 4, seed=6), vectors(7, 2, seed=7)

    def logit(b: int, h: int, e: int, i: int) -> Tensor:
        raw = q[b, h, i] @ dst[h] + k[b, h, GRAPH[0, e]] @ src[h] + (edge[e, h] if with_edges else 0.0)
        return torch.where(raw > 0, raw, slope * raw)

    score = GAT(src, dst, slope, edge if with_edges else None)
    out = attention(q, k, v, mask=Graph(GRAPH), score=score, backend=backend)
    assert_same(out, gat_loop(q, k, v, GRAPH, logit), q, k, v, src, dst, *([edge] if with_edges else []))


@on_edges
@pytest.mark.parametrize("slope", [0.2, 0.0])
@pytest.mark.parametrize("with_edges", [False, True], ids=["", "PairVectors"])
def test_gatv2_against_a_loop(backend: str, slope: float, with_edges: bool) -> None:
    """Documentation and code disagreed on what goes inside the activation: tech-srl/how_attentive_are_gats #5."""
    q, k, v = inputs(4)
    att, r = vectors(2, 4), vectors(7, 2, 4, seed=6)

    def logit(b: int, h: int, e: int, i: int) -> Tensor:
        both = q[b, h, i] + k[b, h, GRAPH[0, e]] + (r[e, h] if with_edges else 0.0)
        return (att[h] * torch.where(both > 0, both, slope * both)).sum()

    bias = PairVectors(key=r) if with_edges else None
    out = attention(q, k, v, mask=Graph(GRAPH), score=GATv2(att, slope), bias=bias, backend=backend)
    assert_same(out, gat_loop(q, k, v, GRAPH, logit), q, k, v, att, *([r] if with_edges else []))


@pytest.mark.parametrize("backend", ["reference", "csr"])
def test_gat_ranks_keys_alike_for_every_query_and_gatv2_need_not(backend: str) -> None:
    """One neighbour wins for every node: tech-srl/how_attentive_are_gats #5, pyg-team/pytorch_geometric #8200."""
    q, k, _ = (x.detach() for x in inputs(4, batch=1, heads=1))
    src = vectors(1, 4).detach()
    if backend == "reference":
        table = attention_weights(q, k, score=GAT(src, vectors(1, 4, seed=6).detach()))[0, 0]
        still = attention_weights(q, k, score=GAT(src, src * 0))[0, 0]
    else:
        table, still = (
            attention(
                q, k, identity(4).double(), mask=complete(4, 4), score=GAT(src, dst), backend=backend
            )[0, 0]
            for dst in (vectors(1, 4, seed=6).detach(), src * 0)
        )  # fmt: skip
    assert (table.argsort(1) == table.argsort(1)[0]).all()
    torch.testing.assert_close(still, still[:1].expand(4, 4))  # att_dst = 0: the queries do not matter at all

    # The 4 x 4 lookup: query n asks for key n. Coordinate n of q + k is 2 where they agree, else two coordinates are 1.
    # A ReLU after a shift of -1 leaves of these the 2 alone, so att = 50 picks the agreeing key.
    one_hot = torch.eye(4, dtype=torch.float64)[None, None]
    out = attention(
        one_hot - 1.0, one_hot, identity(4).double(), mask=complete(4, 4),
        score=GATv2(torch.full((1, 4), 50.0, dtype=torch.float64), 0.0), backend=backend,
    )  # fmt: skip
    torch.testing.assert_close(out[0, 0], torch.eye(4, dtype=torch.float64), rtol=0.0, atol=1e-9)


def test_swapping_the_vectors_of_gat_transposes_the_logits() -> None:
    """The two ends of GAT are not to be mixed up: pyg-team/pytorch_geometric #1642."""
    x = inputs(4, batch=1, heads=1)[0]
    a, b = vectors(1, 4), vectors(1, 4, seed=6)
    logits = [score.logits(x[:, :, :, None], x[:, :, None]) for score in (GAT(a, b), GAT(b, a))]
    torch.testing.assert_close(logits[0], logits[1].mT)


# --- full adjacency = a Transformer layer


def listed(mask: Mask, nodes: int) -> Graph:
    """A mask's pairs as an edge list, in a shuffled order."""
    drawn = [[cell == "#" for cell in line] for line in mask.draw(nodes, nodes).splitlines()]
    index = torch.tensor(drawn).reshape(nodes, nodes).nonzero().t().flip(0)
    return Graph(index[:, torch.randperm(index.shape[1], generator=torch.Generator().manual_seed(0))])


@on_edges
@pytest.mark.parametrize("nodes", [1, 6, 16])
@pytest.mark.parametrize("mask", [Full(), Causal(), Window(2, 1), Window(0, 0), ~Causal()], ids=str)
@pytest.mark.parametrize("bias", [None, ALiBi(2), RoPE(4)], ids=str)
def test_a_mask_and_the_graph_of_its_pairs_are_one_attention(backend: str, nodes: int, mask: Mask, bias: Any) -> None:
    """Sparse layers and Transformers had conventions of their own: graphtransformer #17, PetarV-/GAT #39."""
    for dtype in (torch.float32, torch.float64):
        q, k, v = inputs(nodes, dtype=dtype)
        sparse = attention(q, k, v, mask=listed(mask, nodes), bias=bias, backend=backend)
        assert_same(sparse, attention(q, k, v, mask=mask, bias=bias, backend="reference"), q, k, v)


@on_edges
@pytest.mark.parametrize(
    "score", [GAT(vectors(2, 4), vectors(2, 4, seed=6)), GATv2(vectors(2, 4))], ids=["GAT", "GATv2"]
)
def test_graph_scores_run_densely_too(backend: str, score: Score) -> None:
    """The same for the graph networks' scores."""
    q, k, v = inputs(5)
    sparse = attention(q, k, v, mask=listed(Causal(), 5), score=score, backend=backend)
    leaves = [q, k, v, *score.buffers()]
    assert_same(sparse, attention(q, k, v, mask=Causal(), score=score, backend="reference"), *leaves)


@on_edges
def test_node_major_inputs_are_the_same_attention(backend: str) -> None:
    """The same in torch-geometric's layout."""
    q, k, v = (x[0].transpose(0, 1).detach().requires_grad_() for x in inputs(4))
    out = graph_attention(q, k, v, Graph(GRAPH), backend=backend)
    assert out.shape == (4, 2, 4)
    by_head = attention(*(x.transpose(0, 1)[None] for x in (q, k, v)), mask=Graph(GRAPH), backend="reference")
    assert_same(out, by_head[0].transpose(0, 1), q, k, v)


# --- networkx


def test_networkx_nodes_are_numbered_in_their_order() -> None:
    """Node rows and edge indices ran out of step: pyg-team/pytorch_geometric #830, #7112."""
    networkx = pytest.importorskip("networkx", reason="networkx is not installed")
    graph = networkx.Graph()
    graph.add_node("b", x=1)
    graph.add_node("a", x=2)
    graph.add_edge("a", "b")
    ours = Graph.from_networkx(graph)
    assert sorted(ours.edge_index.t().tolist()) == [[0, 1], [1, 0]]
    assert ours.num_keys == ours.num_queries == 2
    assert [x for _, x in graph.nodes(data="x")] == [1, 2]


def test_networkx_gaps_loops_and_multigraphs() -> None:
    """The same: gapped labels, a loop once, parallel edges kept, one direction where directed."""
    networkx = pytest.importorskip("networkx", reason="networkx is not installed")
    gapped = networkx.Graph()
    gapped.add_nodes_from([10, 70, 30])
    gapped.add_edges_from([(70, 70), (10, 30)])
    assert sorted(Graph.from_networkx(gapped).edge_index.t().tolist()) == [[0, 2], [1, 1], [2, 0]]
    multi = networkx.MultiDiGraph([("a", "b"), ("a", "b"), ("b", "c")])
    assert sorted(Graph.from_networkx(multi).edge_index.t().tolist()) == [[0, 1], [0, 1], [1, 2]]
    lonely = networkx.empty_graph(3)
    assert Graph.from_networkx(lonely).num_edges == 0
    assert Graph.from_networkx(lonely).num_keys == 3
    assert Graph.from_networkx(networkx.Graph()).num_keys == 0


def test_scipy_rows_are_targets() -> None:
    """The same for scipy: entry (i, j) lets i attend j, and an explicit zero is an edge."""
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    matrix = sparse.coo_array(([1.0, 0.0], ([0, 1], [2, 0])), shape=(2, 3))
    graph = Graph.from_scipy(matrix)
    assert graph.edge_index.tolist() == [[2, 0], [0, 1]]
    assert (graph.num_queries, graph.num_keys) == (2, 3)


def test_csr_rows_are_targets() -> None:
    """The same for compressed rows."""
    graph = Graph.from_csr(torch.tensor([0, 2, 2, 3]), torch.tensor([1, 2, 0]))
    assert graph.edge_index.tolist() == [[1, 2, 0], [0, 0, 2]]
    with pytest.raises(ValueError, match="indptr must rise from 0 to E = 3"):
        Graph.from_csr(torch.tensor([0, 2, 1, 3]), torch.tensor([1, 2, 0]))


# --- heads


@every_way
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_grouped_queries_equal_repeated_keys(way: str, kv_heads: int) -> None:
    """Tiled (0, 1, 0, 1) instead of repeated (0, 0, 1, 1): onnx/onnx #7274, apple/axlearn #842."""
    q, k, v = inputs(3, heads=4, kv_heads=kv_heads)
    more = [x.repeat_interleave(4 // kv_heads, 1) for x in (k, v)]
    per_head = torch.rand(4, 3, 3, generator=torch.Generator().manual_seed(0)) < 0.7
    for mask, bias in ((None, None), (Causal(), ALiBi(4)), (per_head, None)):
        grouped = run(way, q, k, v, mask, bias=bias)
        assert_same(grouped, run(way, q, *more, mask, bias=bias), q, k, v)  # gradients are summed over the group


@on_edges
@pytest.mark.parametrize("kv_heads", [2, 1])
@pytest.mark.parametrize("score", ["dot", "gat", "gatv2"])
def test_grouped_queries_on_a_graph(backend: str, kv_heads: int, score: str) -> None:
    """The same with vectors an edge and a bias an edge and *query* head."""
    q, k, v = inputs(4, heads=4, kv_heads=kv_heads)
    values, r, s = vectors(7, 4), vectors(7, kv_heads, 4, seed=6), vectors(7, kv_heads, 4, seed=7)
    att = vectors(4, 4, seed=8)
    how = {"dot": Dot(), "gat": GAT(att, att.flip(0)), "gatv2": GATv2(att)}[score]

    def call(k: Tensor, v: Tensor, r: Tensor, s: Tensor) -> Tensor:
        bias = EdgeBias(values) + PairVectors(key=r, value=s)
        return attention(q, k, v, mask=Graph(GRAPH), bias=bias, score=how, backend=backend)

    repeated = call(*(x.repeat_interleave(4 // kv_heads, 1) for x in (k, v, r, s)))
    leaves = [q, k, v, values, r, s, *([] if score == "dot" else [att])]
    assert_same(call(k, v, r, s), repeated, *leaves)


# --- dropout


@every_way
def test_dropout_happens_only_when_asked(way: str) -> None:
    """The functional call dropped in evaluation too: pytorch/pytorch #124464; here it does what it is told."""
    q, k, v = inputs(4, dtype=torch.float32)
    assert torch.equal(run(way, q, k, v), run(way, q, k, v, dropout_p=0.0))
    torch.manual_seed(0)
    first = run(way, q, k, v, dropout_p=0.5)
    assert not torch.equal(first, run(way, q, k, v, dropout_p=0.5))
    torch.manual_seed(0)
    assert torch.equal(first, run(way, q, k, v, dropout_p=0.5))
    assert not run(way, q, k, v, dropout_p=1.0).any()


@pytest.mark.parametrize("way", ["reference", "reference on edges", "scatter", "csr"])
def test_the_mean_over_dropouts_is_no_dropout(way: str) -> None:
    """Dropout was ignored by fast paths: pytorch/pytorch #141784. 2000 draws, as a batch."""
    q, k, v = (x.detach().float().expand(2000, -1, -1, -1) for x in inputs(3, batch=1))
    torch.manual_seed(0)
    mean = run(way, q, k, v, dropout_p=0.5).mean(0)
    torch.testing.assert_close(mean, run(way, q[:1], k[:1], v[:1])[0], rtol=0.0, atol=0.12)


@on_edges
def test_one_seed_drops_alike_on_every_back_end(backend: str) -> None:
    """The same: forward and gradients see one and the same draw."""
    q, k, v = inputs(4)
    outs = []
    for name in ("reference", backend):
        torch.manual_seed(7)
        outs.append(attention(q, k, v, mask=Graph(GRAPH), dropout_p=0.4, backend=name))
    assert_same(outs[1], outs[0], q, k, v)


def test_weights_are_those_before_dropout() -> None:
    """Sums of .46 or 1.65 in training: dmlc/dgl #1016, pyg-team/pytorch_geometric #3400."""
    q, k, _ = inputs(4, dtype=torch.float32)
    with pytest.raises(TypeError, match="dropout_p"):
        attention_weights(q, k, dropout_p=0.5)
    close(attention_weights(q, k, mask=complete(4, 4)).unflatten(2, (4, 4)).sum(-1), 1.0, atol=1e-6)


# --- half precision


@on_edges
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_70000_neighbours_in_half_precision(backend: str, dtype: torch.dtype) -> None:
    """The sum of 10000 ones is 2048 in half: rusty1s/pytorch_scatter #269, #238, dmlc/dgl #3448."""
    n = 70000
    graph = Graph(torch.stack([torch.arange(n), torch.zeros(n, dtype=torch.int64)]))
    q, k = torch.zeros(1, 1, 1, 4, dtype=dtype), torch.zeros(1, 1, n, 4, dtype=dtype)
    out = attention(q, k, torch.ones_like(k), mask=graph, backend=backend)
    assert out.dtype == dtype
    close(out, 1.0, atol=0.01)
    w = attention_weights(q, k, mask=graph)
    close(w.sum(), 1.0, atol=0.01)
    close(w, 1 / n, atol=1e-9)


@on_edges
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_large_half_precision_logits_do_not_overflow(backend: str, dtype: torch.dtype) -> None:
    """The same: exponentials overflowed."""
    q = torch.full((1, 1, 2, 4), 200.0, dtype=dtype)
    k = torch.stack([torch.full((4,), 200.0), torch.full((4,), -200.0)])[None, None].to(dtype)
    out = attention(q, k, identity(2).to(dtype), mask=complete(2, 2), backend=backend)
    assert out[0, 0, :, :2].tolist() == [[1.0, 0.0]] * 2


def test_weights_do_not_ask_for_the_size_of_values() -> None:
    """Value vectors of another width than keys are no obstacle where only weights are wanted."""
    graph = Graph(torch.tensor([[0, 1, 2], [1, 1, 0]]))
    q, k = torch.randn(2, 1, 2, 3, 4).unbind()
    r, s = torch.randn(3, 2, 4), torch.randn(3, 2, 7)
    weights = attention_weights(q, k, mask=graph, bias=PairVectors(r, s))
    torch.testing.assert_close(weights, attention_weights(q, k, mask=graph, bias=PairVectors(r)))
    with pytest.raises(ValueError, match=r"\[E, Hkv, Dv\] = \[3, 2, 4\]"):
        attention(q, k, k, mask=graph, bias=PairVectors(r, s))


@pytest.mark.parametrize("backend", ["csr", "scatter", "reference"])
def test_a_graph_first_used_in_inference_can_train_later(backend: str) -> None:
    """Lists are kept: one made under inference_mode must not be refused by autograd afterwards."""
    with torch.inference_mode():
        graph = Graph(torch.tensor([[0, 1, 2], [1, 1, 0]]))
        window = Window(1, 1)
        q = torch.randn(1, 2, 7, 4)
        for mask in (graph, window):
            attention(q, q, q, mask=mask, backend=backend)
    x = torch.randn(1, 2, 7, 4, requires_grad=True)
    for mask in (graph, window):
        assert torch.autograd.grad(attention(x, x, x, mask=mask, backend=backend).sum(), x)[0].any()
