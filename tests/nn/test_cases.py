"""What users of graph layers run into, by the number of the case, and the layers against formulas in plain loops."""

from __future__ import annotations

import copy
import math
import pickle
import re
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from tests.cases.tools import fresh
from tests.nn.twins import agree, close, edges_between, features, twins, without_loops
from unified_attn import Causal, Graph
from unified_attn import nn as ours
from unified_attn.nn.self_loops import loop_features

ALL = ("GATConv", "GATv2Conv", "TransformerConv")
LOOPED = ("GATConv", "GATv2Conv")
DOUBLE = torch.float64


def made(name: str, *sizes: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    layer = getattr(ours, name)(*(sizes or (3, 4)), **options).double()
    with torch.no_grad():
        for n, parameter in enumerate(layer.parameters()):
            parameter.copy_(0.5 * features(*parameter.shape, dtype=DOUBLE, seed=n))
    return layer


# --- formulas, in loops over edges


def by_loops(layer: Any, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
    """The three papers' equations, one edge at a time, for concatenated heads."""
    state, heads, size = layer.state_dict(), layer.heads, layer.out_channels

    def project(name: str, rows: Tensor) -> Tensor:
        bias = state.get(f"{name}.bias")
        out = rows @ state[f"{name}.weight"].T + (0 if bias is None else bias)
        return out.reshape(len(rows), heads, size)

    e = None if edge_attr is None else project("lin_edge", edge_attr)
    out = torch.zeros(len(x), heads, size, dtype=DOUBLE)
    for i, h in ((i, h) for i in range(len(x)) for h in range(heads)):
        logits, values = [], []
        for number, (j, target) in enumerate(edge_index.t().tolist()):
            if target != i:
                continue
            r = torch.zeros(size, dtype=DOUBLE) if e is None else e[number, h]
            if isinstance(layer, ours.GATConv):
                wx = project("lin", x)
                edge = 0.0 if e is None else float(state["att_edge"][0, h] @ r)
                own = float(state["att_dst"][0, h] @ wx[i, h])
                logits.append(float(leaky_relu(state["att_src"][0, h] @ wx[j, h] + own + edge, 0.2)))
                values.append(wx[j, h])
            elif isinstance(layer, ours.GATv2Conv):
                left, right = project("lin_l", x), project("lin_r", x)
                logits.append(float(state["att"][0, h] @ leaky_relu(left[j, h] + right[i, h] + r, 0.2)))
                values.append(left[j, h])
            else:
                q, k, v = (project(name, x) for name in ("lin_query", "lin_key", "lin_value"))
                logits.append(float(q[i, h] @ (k[j, h] + r)) / math.sqrt(size))
                values.append(v[j, h] + r)
        total = sum(math.exp(s) for s in logits)
        for s, value in zip(logits, values, strict=True):
            out[i, h] += math.exp(s) / total * value
    flat = out.flatten(1)
    return flat + project("lin_skip", x).flatten(1) if isinstance(layer, ours.TransformerConv) else flat + state["bias"]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("edge_dim", [None, 2])
def test_formula(name: str, edge_dim: int | None) -> None:
    options = {"add_self_loops": False} if name in LOOPED else {}
    layer = made(name, 3, 4, heads=2, edge_dim=edge_dim, **options)
    x, edge_index = features(5, 3, dtype=DOUBLE).detach(), edges_between(5, 4, 9)
    edge_attr = None if edge_dim is None else features(9, edge_dim, dtype=DOUBLE, seed=1).detach()
    close(layer(x, edge_index, edge_attr), by_loops(layer, x, edge_index, edge_attr))


# --- 42, 21: nodes and graphs without edges


@pytest.mark.parametrize("name", ALL)
def test_42_a_node_without_an_edge_gets_0_and_what_the_layer_adds(name: str) -> None:
    options = {"add_self_loops": False} if name in LOOPED else {}
    layer = made(name, **options)
    x = features(3, 3, dtype=DOUBLE)
    out = layer(x, torch.tensor([[0], [1]]))
    rest = layer.bias.expand(3, -1) if name in LOOPED else layer.lin_skip(x)
    assert torch.equal(out[[0, 2]], rest[[0, 2]])
    assert not torch.equal(out[1], rest[1])


# --- 43: the caller's own loops


@pytest.mark.parametrize("name", LOOPED)
def test_43_the_callers_loops_keep_their_features(name: str) -> None:
    layer = made(name, edge_dim=2)
    x, edge_index = features(3, 3, dtype=DOUBLE), torch.tensor([[0, 1, 0], [1, 1, 2]])
    edge_attr = features(3, 2, dtype=DOUBLE, seed=1)
    out = layer(x, edge_index, edge_attr)
    (grad,) = torch.autograd.grad(out[1].cos().sum(), edge_attr)
    assert grad[1].abs().min() > 1e-4  # the loop 1 -> 1
    _, (edges, weights) = layer(x, edge_index, edge_attr, return_attention_weights=True)
    assert edges.tolist() == [[0, 1, 0, 0, 2], [1, 1, 2, 0, 2]]
    assert weights.shape == (5, 1)


@pytest.mark.parametrize("name", LOOPED)
def test_43_a_loop_given_with_the_fill_value_is_as_one_that_is_added(name: str) -> None:
    layer = made(name, edge_dim=2, fill_value=0.5)
    x, edge_index = features(3, 3, dtype=DOUBLE), torch.tensor([[0, 0], [1, 2]])
    edge_attr = features(2, 2, dtype=DOUBLE, seed=1)
    all_edges = torch.cat([edge_index, torch.tensor([[2, 0, 1], [2, 0, 1]])], dim=1)
    all_attr = torch.cat([edge_attr, torch.full((3, 2), 0.5, dtype=DOUBLE)])
    close(layer(x, all_edges, all_attr), layer(x, edge_index, edge_attr))


@pytest.mark.parametrize("name", LOOPED)
def test_43_several_loops_stay_several(name: str) -> None:
    layer = made(name)
    _, (edges, weights) = layer(
        features(2, 3, dtype=DOUBLE), torch.tensor([[1, 1, 0], [1, 1, 1]]), return_attention_weights=True
    )
    assert edges.tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]
    assert torch.equal(weights[0], weights[1])
    close(weights[:3].sum(0), torch.ones(1, dtype=DOUBLE))


# --- 44: no loops between two node sets


@pytest.mark.parametrize("name", LOOPED)
def test_44_loops_between_two_sets_raise(name: str) -> None:
    layer = made(name)
    x, y = features(3, 3, dtype=DOUBLE), features(5, 3, dtype=DOUBLE)
    edge_index = torch.tensor([[0], [1]])
    for pair in [(x, y), (x, x.clone()), *([(x, None)] if name == "GATConv" else [])]:
        with pytest.raises(ValueError, match="add_self_loops=False"):
            layer(pair, edge_index)
    close(layer((x, x), edge_index), layer(x, edge_index))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("loops", [False, "if_one_set"])
def test_44_a_target_hears_its_own_sources_alone(name: str, loops: bool | str) -> None:
    layer = made(name, (3, 2), 4, **({"add_self_loops": loops} if name in LOOPED else {}))
    x, y = features(3, 3, dtype=DOUBLE), features(5, 2, dtype=DOUBLE)
    out = layer((x, y), torch.tensor([[0], [1]]))
    assert out.shape == (5, 4)
    (grad,) = torch.autograd.grad(out[1].sum(), x)
    assert grad.abs().sum(1).bool().tolist() == [True, False, False]


@pytest.mark.parametrize("name", LOOPED)
def test_44_if_one_set_adds_them_over_one_set(name: str) -> None:
    layer = made(name, add_self_loops="if_one_set")
    always = made(name)
    always.load_state_dict(layer.state_dict())
    x, edge_index = features(3, 3, dtype=DOUBLE), torch.tensor([[0], [1]])
    assert torch.equal(layer(x, edge_index), always(x, edge_index))


# --- 46, 47: weights


@pytest.mark.parametrize("name", ALL)
def test_46_weights_are_those_of_the_callers_edges(name: str) -> None:
    layer = made(name, heads=2)
    x, edge_index = features(6, 3, dtype=DOUBLE), without_loops(edges_between(6, 5, 14))
    count = edge_index.shape[1]
    _, (edges, weights) = layer(x, edge_index, return_attention_weights=True)
    assert torch.equal(edges[:, :count], edge_index)
    sums = torch.zeros(6, 2, dtype=DOUBLE).index_add(0, edges[1], weights.detach())
    heard = torch.zeros(6, dtype=torch.bool).index_fill(0, edges[1], True)
    close(sums, heard[:, None].double().expand(6, 2))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    _, (_, shuffled) = layer(x, edge_index[:, order], return_attention_weights=True)
    close(shuffled[:count], weights[:count][order])


@pytest.mark.parametrize("name", ALL)
def test_47_weights_are_before_dropout_and_false_means_false(name: str) -> None:
    layer = made(name, dropout=0.5)
    x, edge_index = features(4, 3, dtype=DOUBLE), torch.tensor([[0, 1, 2], [3, 3, 3]])
    assert layer.training
    _, (edges, weights) = layer(x, edge_index, return_attention_weights=True)
    close(weights[edges[1] == 3].sum(), torch.tensor(1.0, dtype=DOUBLE))
    for no in (False, None):
        assert isinstance(layer(x, edge_index, return_attention_weights=no), Tensor)
    with pytest.raises(TypeError, match="return_attention_weights is 1"):
        layer(x, edge_index, return_attention_weights=1)


# --- 48, 50: parallel edges, order of edges


@pytest.mark.parametrize("name", ALL)
def test_48_parallel_edges_are_keys_of_their_own(name: str) -> None:
    layer = made(name, **({"add_self_loops": False} if name in LOOPED else {}))
    x, edge_index = features(3, 3, dtype=DOUBLE), torch.tensor([[0, 0, 1], [2, 2, 2]])
    _, (_, weights) = layer(x, edge_index, return_attention_weights=True)
    _, (_, single) = layer(x, edge_index[:, 1:], return_attention_weights=True)
    close(weights[0] / weights[2], single[0] / single[1])


@pytest.mark.parametrize("name", ALL)
def test_50_the_order_of_edges_and_nodes_does_not_matter_and_runs_repeat(name: str) -> None:
    layer = made(name, edge_dim=2)
    x, edge_index = features(6, 3, dtype=DOUBLE), edges_between(6, 6, 14)
    edge_attr = features(14, 2, dtype=DOUBLE, seed=1)
    out = layer(x, edge_index, edge_attr)
    assert torch.equal(out, layer(x, edge_index, edge_attr))
    order = torch.randperm(14, generator=torch.Generator().manual_seed(0))
    close(layer(x, edge_index[:, order], edge_attr[order]), out)
    nodes = torch.randperm(6, generator=torch.Generator().manual_seed(1))
    close(layer(x[nodes.argsort()], nodes[edge_index], edge_attr), out[nodes.argsort()])


# --- 51, 53, 54: wrong inputs

X = torch.randn(4, 3, dtype=DOUBLE)
EDGE = torch.tensor([[0], [1]])
ADJACENCY = torch.eye(4)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ((X, torch.tensor([[0], [9]])), ValueError, "row 1 (target = query) holds 9 at edge 0, but there are 4"),
        ((X, torch.tensor([[-1], [0]])), ValueError, "row 0 (source = key) holds -1"),
        ((X, EDGE.float()), TypeError, "edge_index is [2, 1] float32"),
        ((X, torch.zeros(5, 2, dtype=torch.int64)), ValueError, "turned round"),
        ((X, [[0], [1]]), TypeError, "edge_index is a list; give a [2, E] tensor of integers, a Graph, or a sparse"),
        ((X, Causal()), ValueError, "edge_index is the mask Causal(), which holds no single Graph"),
        ((X, Graph(EDGE, num_keys=5)), ValueError, "num_keys = 5"),
        ((X, EDGE, torch.ones(1, 2, dtype=DOUBLE)), ValueError, "edge_attr is given, but the layer was made without"),
        ((X[:, :2], EDGE), ValueError, "have size 2 (shape [4, 2]), but the layer was made for 3 channels"),
        ((X[0], EDGE), ValueError, "x has shape [3]; it must be [N, F]"),
        ((X.long(), EDGE), TypeError, "x is [4, 3] int64; give floats"),
        (([X], EDGE), TypeError, "x is a list of 1; give a tensor [N, F], or a pair"),
        (((None, X), EDGE), TypeError, "x of the sources is NoneType"),
        ((X.float(), EDGE), TypeError, "features are torch.float32, but the layer's weights torch.float64"),
    ],
)
def test_51_53_54_wrong_inputs_raise(name: str, args: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        made(name)(*args)


@pytest.mark.parametrize("name", ALL)
def test_54_features_that_were_declared_must_be_given(name: str) -> None:
    layer = made(name, edge_dim=2)
    with pytest.raises(ValueError, match=r"edge_dim=2, but edge_attr is missing; give \[E, 2\]"):
        layer(X, EDGE)
    for wrong in (torch.ones(1, 3), torch.ones(2, 2), torch.ones(1), torch.ones(1, 2, 1)):
        with pytest.raises(ValueError, match=r"it must be \[E, edge_dim\] = \[1, 2\]"):
            layer(X, EDGE, wrong.double())
    with pytest.raises(TypeError, match="edge_attr is"):
        layer(X, EDGE, torch.ones(1, 2, dtype=torch.int64))


@pytest.mark.parametrize("name", ALL)
def test_51_small_integers_are_taken(name: str) -> None:
    layer = made(name)
    assert torch.equal(layer(X, EDGE.int()), layer(X, EDGE))


def test_sparse_adjacency_of_another_size_raises() -> None:
    adjacency = torch.sparse_coo_tensor(torch.tensor([[1], [0]]), torch.ones(1), (4, 5), check_invariants=True)
    with pytest.raises(ValueError, match=r"sparse tensor \[4, 5\], but there are 4 targets and 4 sources"):
        made("TransformerConv")(X, adjacency)


def test_stored_twice_in_a_sparse_tensor_is_two_edges() -> None:
    pairs = torch.tensor([[2, 2, 2], [0, 0, 1]])
    adjacency = torch.sparse_coo_tensor(pairs, torch.ones(3), (4, 4), check_invariants=True)
    layer = made("TransformerConv")
    assert torch.equal(layer(X, adjacency), layer(X, pairs.flip(0)))


def test_edge_index_of_torch_geometric() -> None:
    from torch_geometric import EdgeIndex

    layer = made("GATConv")
    assert torch.equal(layer(X, EdgeIndex(EDGE, sparse_size=(4, 4))), layer(X, EDGE))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (((X, X[:2]), EDGE, None, (4, 4)), "size is (4, 4), but x has 2 targets"),
        ((X, EDGE, None, (3, 4)), "size is (3, 4), but x has 4 sources"),
    ],
)
def test_size_must_not_contradict(args: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        made("GATConv", add_self_loops=False)(*args)


def test_targets_without_features_where_they_are_needed() -> None:
    for name in ("GATv2Conv", "TransformerConv"):
        with pytest.raises(ValueError, match=rf"\(sources, None\), but {name} asks the targets"):
            made(name)((X, None), EDGE)
    with pytest.raises(ValueError, match="the residual asks the targets"):
        made("GATConv", add_self_loops=False, residual=True)((X, None), EDGE)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"head": 2}, TypeError, "unexpected keyword argument 'head'"),
        ({"node_dim": 0}, TypeError, "unexpected keyword argument 'node_dim'"),
        ({"heads": 0}, ValueError, "heads is 0"),
        ({"heads": 1.5}, TypeError, "heads is 1.5"),
        ({"dropout": 1.5}, ValueError, "dropout is 1.5"),
        ({"dropout": torch.tensor(0.5)}, TypeError, "dropout is [] float32"),
        ({"edge_dim": "2"}, TypeError, "edge_dim is '2'"),
        ({"edge_dim": 0}, ValueError, "edge_dim is 0"),
        ({"aggr": "mean"}, ValueError, "aggr is 'mean'; attention sums"),
        ({"flow": "target_to_source"}, ValueError, "edge_index.flip(0)"),
    ],
)
def test_wrong_options_raise(name: str, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        getattr(ours, name)(3, 4, **options)


@pytest.mark.parametrize("name", LOOPED)
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"fill_value": "median"}, ValueError, "fill_value is 'median'; give a number, a float tensor [edge_dim], or"),
        ({"fill_value": None}, TypeError, "fill_value is None"),
        ({"fill_value": torch.ones(2, dtype=torch.int64)}, TypeError, "fill_value is [2] int64"),
        ({"add_self_loops": "yes"}, ValueError, "add_self_loops is 'yes'"),
        ({"negative_slope": "0.2"}, TypeError, "negative_slope is '0.2'"),
    ],
)
def test_wrong_options_of_loops_raise(name: str, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        getattr(ours, name)(3, 4, **options)


@pytest.mark.parametrize("name", ALL)
def test_wrong_sizes_raise(name: str) -> None:
    for sizes, error in (
        ((0, 4), ValueError),
        ((3, 0), ValueError),
        (("3", 4), TypeError),
        (((3, 3, 3), 4), TypeError),
    ):
        with pytest.raises(error):
            getattr(ours, name)(*sizes)


@pytest.mark.parametrize("name", LOOPED)
def test_a_fill_value_of_another_size_raises(name: str) -> None:
    layer = made(name, edge_dim=2, fill_value=torch.ones(3))
    with pytest.raises(ValueError, match=r"fill_value has shape \[3\]; it must be \[edge_dim\] = \[2\]"):
        layer(X, EDGE, torch.ones(1, 2, dtype=DOUBLE))


def test_loops_cannot_be_added_to_a_mask() -> None:
    mask = Graph(EDGE, num_keys=4).keep(torch.tensor([True]))
    with pytest.raises(ValueError, match="add_self_loops=False"):
        made("GATConv")(X, mask)
    assert made("GATConv", add_self_loops=False)(X, mask).shape == (4, 4)


# --- 55, 56: the two formulas


def test_55_separate_vectors_for_the_two_ends() -> None:
    layer = made("GATConv", add_self_loops=False)
    complete = torch.cartesian_prod(torch.arange(4), torch.arange(4)).t()  # source, target
    with torch.no_grad():
        layer.att_dst.zero_()
    _, (_, weights) = layer(X, complete, return_attention_weights=True)
    table = weights.reshape(4, 4)
    close(table, table[:, :1].expand(4, 4))  # every target ranks alike


def test_56_gat_is_static_and_gatv2_is_not() -> None:
    complete = torch.cartesian_prod(torch.arange(4), torch.arange(4)).t()
    x = torch.eye(4, dtype=DOUBLE)
    gat = made("GATConv", 4, 8, add_self_loops=False)
    _, (_, weights) = gat(x, complete, return_attention_weights=True)
    assert len(set(weights.reshape(4, 4).argmax(0).tolist())) == 1
    v2 = ours.GATv2Conv(4, 16, add_self_loops=False, bias=False).double()
    shift = torch.roll(torch.eye(4, dtype=DOUBLE), 1, 0)
    with torch.no_grad():  # LeakyReLU(s - 1) a, with s = 2 where source = target + 1
        v2.lin_l.weight.copy_(torch.cat([torch.eye(4, dtype=DOUBLE)] * 4))
        v2.lin_r.weight.copy_(torch.cat([shift.T, shift.T, shift.T, shift.T]))
        v2.att.fill_(1.0)
        v2.lin_r.weight.sub_(1.0)
    _, (_, weights) = v2(x, complete, return_attention_weights=True)
    assert sorted(weights.reshape(4, 4).argmax(0).tolist()) == [0, 1, 2, 3]


# --- 58: widths


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("concat", [True, False])
def test_58_widths(name: str, concat: bool) -> None:
    options = [{}] if name == "TransformerConv" else [{}, {"residual": True}]
    for more in options:
        layer = made(name, 3, 8, heads=3, concat=concat, **more)
        assert layer(X, EDGE).shape == (4, 24 if concat else 8)


# --- 74: dropout


@pytest.mark.parametrize("name", ALL)
def test_74_dropout(name: str) -> None:
    layer = made(name, dropout=0.5)
    x, edge_index = features(4, 3, dtype=DOUBLE).detach(), torch.tensor([[0, 1, 2], [3, 3, 3]])
    exact = made(name).eval()(x, edge_index)
    assert torch.equal(layer.eval()(x, edge_index), exact)
    layer.train()
    draws = torch.stack([layer(x, edge_index) for _ in range(600)])
    assert not torch.equal(draws[0], draws[1])
    error = (draws.mean(0) - exact).abs() / (draws.std(0) / 600**0.5 + 1e-6)
    assert error.max() < 5.0
    theirs = getattr(pyg, name)(3, 4, dropout=0.5).double()
    theirs.load_state_dict(layer.state_dict())
    others = torch.stack([theirs(x, edge_index) for _ in range(600)])
    torch.testing.assert_close(draws.std(0), others.std(0), rtol=0.2, atol=1e-6)


# --- 75: half precision


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_75_halves(name: str, dtype: torch.dtype) -> None:
    layer = made(name, heads=2, edge_dim=2)
    x, edge_index = features(6, 3, dtype=DOUBLE), edges_between(6, 6, 14)
    edge_attr = features(14, 2, dtype=DOUBLE, seed=1)
    layer, x, edge_attr = layer.to(dtype), x.to(dtype), edge_attr.to(dtype)
    exact = copy.deepcopy(layer).double()(x.double(), edge_index, edge_attr.double())
    out = layer(x, edge_index, edge_attr)
    assert out.dtype == dtype
    assert (out.double() - exact).abs().max() < 16 * torch.finfo(dtype).eps * exact.abs().max()
    out.sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in layer.parameters())


@pytest.mark.parametrize("name", ALL)
def test_75_many_neighbours_in_half_precision(name: str) -> None:
    layer = made(name, **({"add_self_loops": False} if name in LOOPED else {}))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(0.5)
    count = 70000
    x, edge_index = torch.ones(2, 3), torch.stack([torch.zeros(count), torch.ones(count)]).long()
    wide = layer.float()(x, edge_index)
    out = layer.half()(x.half(), edge_index)
    torch.testing.assert_close(out.float(), wide, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("fill", ["mean", "add"])
def test_75_features_of_loops_are_summed_in_float32(fill: str) -> None:
    count = 1000
    edge_index = torch.stack([torch.zeros(count), torch.ones(count)]).long()
    edge_attr = torch.full((count, 1), 0.5, dtype=torch.bfloat16)
    out = loop_features(edge_attr, edge_index, torch.tensor([1]), 2, fill)
    assert out.dtype == torch.bfloat16
    assert out.item() == (0.5 if fill == "mean" else 500.0)


# --- autocast, copies, distributed training


@pytest.mark.parametrize("name", ALL)
def test_autocast(name: str) -> None:
    theirs, mine = twins(name, 3, 4, heads=2, edge_dim=2, dtype=torch.float32)
    x, edge_index = features(6, 3, dtype=torch.float32), without_loops(edges_between(6, 6, 14))
    edge_attr = features(edge_index.shape[1], 2, dtype=torch.float32, seed=1)
    exact = mine(x, edge_index, edge_attr)
    with torch.autocast("cpu", torch.bfloat16):
        a, b = theirs(x, edge_index, edge_attr), mine(x, edge_index, edge_attr)
    b.sum().backward()
    error, allowed = ((out.float() - exact).abs().max() for out in (b, a))
    assert error <= 2 * allowed + 1e-2
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in mine.parameters())


@pytest.mark.parametrize("name", ALL)
def test_copies(name: str) -> None:
    options = {} if name == "TransformerConv" else {"fill_value": torch.tensor([1.0, 2.0])}
    layer = made(name, edge_dim=2, **options)
    args = (X, EDGE, torch.ones(1, 2, dtype=DOUBLE))
    out = layer(*args)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(*args), out)
        assert list(other.state_dict()) == list(layer.state_dict())
        assert not any(a is b for a, b in zip(other.parameters(), layer.parameters(), strict=True))
    assert layer.float()(X.float(), EDGE, torch.ones(1, 2)).dtype == torch.float32
    assert repr(layer) == f"{name}(3, 4, heads=1)"


DISTRIBUTED = """
import os
import torch
from tests.nn.test_cases import ALL, DOUBLE, edges_between, features, made

torch.distributed.init_process_group("gloo", init_method="file://{at}", rank=0, world_size=1)
for name in ALL:
    layer = made(name, heads=2)
    wrapped = torch.nn.parallel.DistributedDataParallel(layer)
    x, edge_index = features(6, 3, dtype=DOUBLE), edges_between(6, 6, 14)
    for _ in range(2):  # the second step raises if a parameter got no gradient in the first
        wrapped(x, edge_index).square().sum().backward()
    print(name, all(p.grad is not None for p in layer.parameters()), flush=True)
os._exit(0)  # gloo's threads may wait for the interpreter while it waits for them
"""


@pytest.mark.slow
def test_distributed_training(tmp_path: Any) -> None:
    lines = fresh("import warnings; warnings.simplefilter('default')\n" + DISTRIBUTED.format(at=tmp_path / "at"))
    assert lines.split("\n")[:-1] == [f"{name} True" for name in ALL]


# --- lazy sizes and weights of the other library


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("sizes", [-1, (-1, -1)])
def test_lazy_sizes(name: str, sizes: Any) -> None:
    options: dict[str, Any] = {"edge_dim": -1} | ({} if name == "TransformerConv" else {"residual": True})
    layer = getattr(ours, name)(sizes, 4, heads=2, **options)
    state = layer.state_dict()
    theirs = getattr(pyg, name)(sizes, 4, heads=2, **options)
    assert list(state) == list(theirs.state_dict())
    theirs.load_state_dict(state, strict=True)
    edge_index = without_loops(edges_between(6, 6, 14))
    x, edge_attr = torch.randn(6, 5), torch.randn(edge_index.shape[1], 3)
    copied = copy.deepcopy(layer)
    layer(x, edge_index, edge_attr)
    assert layer.lin_edge.weight.shape == (8, 3)
    assert all(not nn.parameter.is_lazy(parameter) for parameter in layer.parameters())
    copied.load_state_dict(layer.state_dict(), strict=True)  # known sizes into open ones
    assert torch.equal(copied(x, edge_index, edge_attr), layer(x, edge_index, edge_attr))
    theirs.load_state_dict(layer.state_dict(), strict=True)
    close(layer(x, edge_index, edge_attr), theirs(x, edge_index, edge_attr))
    with pytest.raises(ValueError, match="made for 5 channels"):
        layer(x[:, :4], edge_index, edge_attr)
    fresh = getattr(ours, name)(sizes, 4, heads=2, **options)
    layer.load_state_dict(fresh.state_dict(), strict=True)  # open ones into known sizes: open again
    layer(x[:, :4], edge_index, edge_attr)
    assert pickle.loads(pickle.dumps(getattr(ours, name)(sizes, 4))) is not None


@pytest.mark.parametrize("name", ALL)
def test_each_loads_the_others_weights(name: str) -> None:
    for options in ({"heads": 2, "edge_dim": 3}, {"bias": False, "concat": False}):
        theirs, mine = getattr(pyg, name)(5, 4, **options), getattr(ours, name)(5, 4, **options)
        theirs.load_state_dict(mine.state_dict(), strict=True)
        mine.load_state_dict(theirs.state_dict(), strict=True)
        assert [n for n, _ in mine.named_parameters()] == [n for n, _ in theirs.named_parameters()]


def test_shared_weights_have_both_names() -> None:
    theirs, mine = twins("GATv2Conv", 3, 4, share_weights=True)
    assert mine.lin_l is mine.lin_r
    agree(theirs, mine, [X.requires_grad_()], X, EDGE)
    X.requires_grad_(False)


# --- 79: second derivatives, through the operator by name


def test_79_a_second_derivative_says_where_there_is_one() -> None:
    x = features(4, 3, dtype=DOUBLE)
    (grad,) = torch.autograd.grad(made("GATConv")(x, EDGE).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="scatter"):
        grad.sum().backward()
