"""HGTConv beside torch-geometric's, and the cases on heterogeneous graphs."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.nn.twins import close, edges_between, features, gradients, twins
from unified_attn import Graph
from unified_attn import nn as ours

DOUBLE = torch.float64
SIZES = {"a": 5, "b": 4, "c": 3}
RELATIONS = [("a", "to", "b"), ("b", "back", "a"), ("a", "self", "a"), ("b", "to", "c"), ("c", "to", "b")]
METADATA = (list(SIZES), RELATIONS)
SMALL = (["a", "b"], RELATIONS[:3])


def nodes(dtype: torch.dtype = DOUBLE, width: int = 8, kinds: Any = ("a", "b")) -> dict[str, Tensor]:
    return {kind: features(SIZES[kind], width, dtype=dtype, seed=n) for n, kind in enumerate(kinds)}


def relations(metadata: Any, count: int = 8) -> dict[Any, Tensor]:
    return {(s, r, t): edges_between(SIZES[s], SIZES[t], count, seed=n) for n, (s, r, t) in enumerate(metadata[1])}


def joined(out: dict[str, Tensor]) -> Tensor:
    return torch.cat([out[kind] for kind in sorted(out)])


def agree(theirs: nn.Module, mine: nn.Module, x: dict[str, Tensor], edges: dict[Any, Any]) -> None:
    a, b = theirs(x, edges), mine(x, edges)
    assert a.keys() == b.keys()
    close(joined(b), joined(a))
    wanted, found = (gradients(m, joined(out), list(x.values())) for m, out in ((theirs, a), (mine, b)))
    assert found.keys() == wanted.keys()
    for key, grad in wanted.items():
        close(found[key], grad, key)


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32])
@pytest.mark.parametrize("heads", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("width", [6, 8])
@pytest.mark.parametrize("count", [8, 0])
def test_parity(dtype: torch.dtype, heads: int, width: int, count: int) -> None:
    """Equal widths are mixed with the node's own features, unequal ones are not."""
    theirs, mine = twins("HGTConv", width, 8, SMALL, heads=heads, dtype=dtype)
    agree(theirs, mine, nodes(dtype, width), relations(SMALL, count))


def test_sizes_by_type_and_names_of_dictionary_methods() -> None:
    metadata = (["a", "b"], [("a", "values", "b"), ("b", "keys", "a")])
    theirs, mine = twins("HGTConv", {"a": 8, "b": 3}, 8, metadata, heads=2)
    x = {"a": features(5, 8, dtype=DOUBLE), "b": features(4, 3, dtype=DOUBLE)}
    agree(theirs, mine, x, relations(metadata))


def test_starting_values_are_the_same_for_a_seed() -> None:
    import torch_geometric.nn as pyg

    states = []
    for library in (pyg, ours):
        torch.manual_seed(3)
        states.append(library.HGTConv(6, 8, SMALL, heads=2).state_dict())
    assert list(states[0]) == list(states[1])
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_lazy_sizes() -> None:
    layer = ours.HGTConv(-1, 8, SMALL, heads=2)
    x = nodes(torch.float32)
    x["b"] = torch.randn(4, 3)
    layer(x, relations(SMALL))
    theirs, _ = twins("HGTConv", {"a": 8, "b": 3}, 8, SMALL, heads=2, dtype=torch.float32)
    theirs.load_state_dict(layer.state_dict(), strict=True)
    close(joined(layer(x, relations(SMALL))), joined(theirs(x, relations(SMALL))))
    fresh = ours.HGTConv(-1, 8, SMALL, heads=2)
    fresh.load_state_dict(theirs.state_dict(), strict=True)
    close(joined(fresh(x, relations(SMALL))), joined(layer(x, relations(SMALL))))


def test_formula() -> None:
    """Hu et al., Eq. 3 to 5, an edge at a time."""
    _, layer = twins("HGTConv", 8, 8, SMALL, heads=2)
    x, edges = nodes(), relations(SMALL)
    w = layer.state_dict()
    kqv = {t: rows @ w[f"kqv_lin.lins.{t}.weight"].T + w[f"kqv_lin.lins.{t}.bias"] for t, rows in x.items()}
    parts = {t: [side.reshape(-1, 2, 4) for side in rows.split(8, 1)] for t, rows in kqv.items()}
    for kind, rows in layer(x, edges).items():
        for i in range(len(rows)):
            message = []
            for h in range(2):
                logits, values = [], []
                for r, (s, name, t) in enumerate(RELATIONS[:3]):
                    if t != kind:
                        continue
                    for j in edges[(s, name, t)][0, edges[(s, name, t)][1] == i].tolist():
                        key = parts[s][0][j, h] @ w["k_rel.weight"][h * 3 + r]
                        prior = w[f"p_rel.{s}__{name}__{t}"][0, h]
                        logits.append(parts[kind][1][i, h] @ key * prior / 4**0.5)
                        values.append(parts[s][2][j, h] @ w["v_rel.weight"][h * 3 + r])
                if logits:
                    message.append(torch.stack(logits).softmax(0) @ torch.stack(values))
                else:
                    message.append(torch.zeros(4, dtype=DOUBLE))
            heard = torch.nn.functional.gelu(torch.cat(message))
            out = w[f"out_lin.lins.{kind}.weight"] @ heard + w[f"out_lin.lins.{kind}.bias"]
            share = w[f"skip.{kind}"].sigmoid()
            close(rows[i], share * out + (1 - share) * x[kind][i])


def test_64_a_type_that_receives_nothing_is_in_the_result() -> None:
    metadata = (["a", "b"], [("a", "to", "b")])
    theirs, layer = twins("HGTConv", 8, 8, metadata, heads=2)
    x, edges = nodes(), relations(metadata)
    out = layer(x, edges)
    assert list(theirs(x, edges)) == ["b"]
    assert list(out) == ["a", "b"]
    close(out["b"], theirs(x, edges)["b"])
    share = layer.skip["a"].sigmoid()
    close(out["a"], share * layer.out_lin.lins["a"].bias + (1 - share) * x["a"])


def test_65_a_missing_relation_is_an_empty_one_and_its_gradients_are_0() -> None:
    _, layer = twins("HGTConv", 8, 8, SMALL, heads=2)
    x, edges = nodes(), relations(SMALL)
    gone = RELATIONS[1]
    empty = {**edges, gone: edges[gone][:, :0]}
    del edges[gone]
    out = layer(x, edges)
    close(joined(out), joined(layer(x, empty)))
    joined(out).square().sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
    assert not layer.p_rel["b__back__a"].grad.any()
    assert layer.p_rel["a__to__b"].grad.any()
    layer.zero_grad()
    joined(layer(x, {})).sum().backward()
    assert not layer.k_rel.weight.grad.any()


def test_a_type_that_is_not_there_is_not_in_the_result() -> None:
    _, layer = twins("HGTConv", 8, 8, SMALL, heads=2)
    x, edges = nodes(kinds=("a",)), relations(SMALL)
    out = layer(x, {RELATIONS[2]: edges[RELATIONS[2]]})
    assert list(out) == ["a"]
    assert layer({}, {}) == {}


def test_67_all_relations_share_one_softmax() -> None:
    """One edge of each of two relations: their weights sum to 1, so equal values are not doubled."""
    metadata = (["a", "b"], [("a", "x", "b"), ("a", "y", "b")])
    _, layer = twins("HGTConv", 8, 8, metadata, heads=2)
    with torch.no_grad():
        layer.v_rel.weight[1::2].copy_(layer.v_rel.weight[0::2])
    x, edge = nodes(), torch.tensor([[2], [1]])
    both = layer(x, {metadata[1][0]: edge, metadata[1][1]: edge})
    close(both["b"][1], layer(x, {metadata[1][0]: edge})["b"][1])


@pytest.mark.parametrize("form", ["Graph", "sparse", "int32"])
def test_forms_of_edges(form: str) -> None:
    _, layer = twins("HGTConv", 8, 8, SMALL, heads=2)
    x, edges = nodes(), {key: torch.unique(e, dim=1) for key, e in relations(SMALL).items()}

    def sparse(key: Any, e: Tensor) -> Tensor:
        sizes = (SIZES[key[2]], SIZES[key[0]])
        return torch.sparse_coo_tensor(e.flip(0), torch.ones(e.shape[1]), sizes, check_invariants=True)

    make = {"Graph": lambda key, e: Graph(e), "sparse": sparse, "int32": lambda key, e: e.int()}[form]
    close(joined(layer(x, {key: make(key, e) for key, e in edges.items()})), joined(layer(x, edges)))


EDGE = torch.tensor([[0], [1]])


@pytest.mark.parametrize(
    ("x", "edges", "error", "message"),
    [
        ({"c": torch.ones(1, 6)}, {}, ValueError, "x_dict holds the type 'c'"),
        ({}, {("a", "no", "b"): EDGE}, ValueError, "edge_index_dict holds the relation ('a', 'no', 'b')"),
        ({"a": torch.ones(5, 6)}, {RELATIONS[0]: EDGE}, ValueError, "needs nodes of type 'b', which x_dict lacks"),
        ({"a": torch.ones(5, 6), "b": torch.ones(2, 6)}, {RELATIONS[0]: torch.tensor([[0], [2]])}, ValueError,
         "relation ('a', 'to', 'b'): edge_index row 1 (target = query) holds 2 at edge 0, but there are 2 queries"),
        ({"a": torch.ones(5, 6)}, {RELATIONS[2]: EDGE.float()}, TypeError, "edge_index is [2, 1] float32"),
        ({"a": torch.ones(5, 6)}, {RELATIONS[2]: EDGE[0]}, ValueError, "must be [2, E]"),
        ({"a": torch.ones(5, 6).long()}, {}, TypeError, "x is [5, 6] int64"),
        ({"a": torch.ones(5, 7)}, {}, ValueError, "made for 6 channels"),
    ],
)  # fmt: skip
def test_wrong_inputs_raise(x: Any, edges: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        ours.HGTConv(6, 6, SMALL)(x, edges)


@pytest.mark.parametrize(
    ("args", "options", "error", "message"),
    [
        ((6, 10, SMALL), {"heads": 3}, ValueError, "out_channels = 10 is no multiple of heads = 3"),
        ((6, 6, (["a"], [("a", "to", "b")])), {}, ValueError, "relation ('a', 'to', 'b') must be"),
        (({"a": 6}, 6, SMALL), {}, ValueError, "in_channels names the types ['a'], but metadata ['a', 'b']"),
        ((6, 6, SMALL), {"aggr": "add"}, TypeError, "unexpected keyword argument 'aggr'"),
        ((6, 6, SMALL), {"flow": "target_to_source"}, ValueError, "flow is 'target_to_source'"),
    ],
)
def test_58_wrong_options_raise(args: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        ours.HGTConv(*args, **options)


def test_copies() -> None:
    _, layer = twins("HGTConv", 8, 8, METADATA, heads=2)
    x, edges = nodes(kinds=SIZES), relations(METADATA)
    out = joined(layer(x, edges))
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(joined(other(x, edges)), out)
    assert repr(layer) == "HGTConv(-1, 8, heads=2)"


@pytest.mark.slow
def test_compiles_whole() -> None:
    torch._dynamo.reset()
    _, layer = twins("HGTConv", 8, 8, SMALL, heads=2)
    x, edges = nodes(), relations(SMALL)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    close(joined(compiled(x, edges)), joined(layer(x, edges)))
    torch._dynamo.reset()
