"""Vectors of pairs against formulas written here: Shaw's over N x N x D, and projections formed edge by edge."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from unified_attn import (
    GAT,
    Bias,
    Causal,
    Dot,
    EdgeBias,
    EdgeProjection,
    Full,
    GATv2,
    Graph,
    PairVectors,
    RelativeVectors,
    Score,
    UnsupportedError,
    Window,
    attention,
    attention_weights,
    attention_with_lse,
)
from unified_attn import vectors as vectors_module
from unified_attn.problem import Problem

LISTED = pytest.mark.parametrize("backend", ["reference", "scatter", "csr"])
SCORES = pytest.mark.parametrize("name", ["dot", "softcap", "gatv2", "gat", "own"])


@pytest.fixture(autouse=True, params=[vectors_module.FORMED, 0], ids=["formed", "projected"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few edges' projections are formed, many are made inside of the kernel."""
    monkeypatch.setattr(vectors_module, "FORMED", request.param)


class L1(Score):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return -(q - k).abs().sum(-1)


def made(*shapes: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=random, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def same(a: object, b: object, tolerance: float = 1e-11) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def score_of(name: str, att: Tensor, other: Tensor) -> Score:
    return {
        "dot": Dot(), "softcap": Dot(softcap=2.0), "gatv2": GATv2(att), "gat": GAT(att, other), "own": L1(),
    }[name]  # fmt: skip


def relative(reach: int, dim: int, value_dim: int | None = None, **parts: bool) -> RelativeVectors:
    torch.manual_seed(4)
    return RelativeVectors(reach, dim, value_dim=value_dim, **parts).double()


def graph_problem(heads: int = 4, kv_heads: int = 2, features: int = 3, dtype: torch.dtype = torch.float64) -> dict:
    """Six nodes, of which node 0 is nobody's target, and 13 edges, parallel ones among them."""
    random = torch.Generator().manual_seed(1)
    edges = torch.stack([torch.randint(6, (13,), generator=random), torch.randint(1, 6, (13,), generator=random)])
    edges[:, 1] = edges[:, 0]
    q, k, v, edge_attr, key, value, att, other = made(
        (2, heads, 6, 4), (2, kv_heads, 6, 4), (2, kv_heads, 6, 5), (13, features), (kv_heads * 4, features),
        (kv_heads * 5, features), (heads, 4), (heads, 4), dtype=dtype,
    )  # fmt: skip
    tensors = {"q": q, "k": k, "v": v, "edge_attr": edge_attr, "key": key, "value": value, "att": att, "other": other}
    return {"edges": edges, **tensors}


# --- Shaw's vectors


@pytest.mark.parametrize(
    ("mask", "allowed"), [(Full(), lambda d: d < 99), (Causal(), lambda d: d <= 0)], ids=["full", "causal"]
)
@SCORES
def test_relative_vectors_on_a_dense_mask_are_shaws_formula(name: str, mask: object, allowed: object) -> None:
    q, k, v, att, other = made((2, 4, 5, 4), (2, 2, 7, 4), (2, 2, 7, 6), (4, 4), (4, 4))
    bias = relative(2, 4, 6)
    distance = torch.arange(7)[None] - (torch.arange(5) + 2)[:, None]  # the queries are the last five tokens
    code = distance.clamp(-2, 2) + 2
    keys = k.repeat_interleave(2, 1)[:, :, None] + bias.key[code]  # [B, H, Nq, Nk, D]
    values = v.repeat_interleave(2, 1)[:, :, None] + bias.value[code]
    query = q[:, :, :, None]
    if name in ("dot", "softcap"):
        logits = (query * keys).sum(-1) / 2.0
        logits = 2.0 * torch.tanh(logits / 2.0) if name == "softcap" else logits
    elif name == "gatv2":
        logits = (att[:, None, None] * leaky_relu(query + keys, 0.2)).sum(-1)
    elif name == "gat":
        both = (other[:, None, None] * query).sum(-1) + (att[:, None, None] * keys).sum(-1)
        logits = leaky_relu(both, 0.2)
    else:
        logits = -(query - keys).abs().sum(-1)
    weights = logits.masked_fill(~allowed(distance), -torch.inf).softmax(-1)
    want = (weights[..., None] * values).sum(3)
    score = score_of(name, att, other)
    got = attention(q, k, v, mask=mask, bias=bias, score=score)
    same(got, want)
    same(attention_weights(q, k, mask=mask, bias=bias, score=score), weights)
    leaves = [q, k, v, bias.key, bias.value, *{"gatv2": [att], "gat": [att, other]}.get(name, [])]
    grads = torch.autograd.grad(got.square().sum(), leaves)
    for a, b in zip(grads, torch.autograd.grad(want.square().sum(), leaves), strict=True):
        assert b.abs().max() > 0
        same(a, b)


def test_a_dense_problem_forms_no_vector_a_pair() -> None:
    """Under Dot nothing is larger than the table of weights: never N x N x D."""
    from tests.test_memory import created

    n, dim = 97, 31
    q, k, v = made((1, 1, n, dim), (1, 1, n, dim), (1, 1, n, dim))
    bias = relative(8, dim)
    sizes = created(lambda: attention(q, k, v, mask=Causal(), bias=bias).sum().backward())
    assert max(sizes) <= n * n
    with_l1 = created(lambda: attention(q, k, v, mask=Causal(), bias=bias, score=L1()).sum().backward())
    assert n * n * dim in with_l1  # this way of looking finds them


@LISTED
@SCORES
def test_a_window_equals_the_dense_mask(name: str, backend: str) -> None:
    q, k, v, att, other = made((2, 4, 6, 4), (2, 2, 6, 4), (2, 2, 6, 5), (4, 4), (4, 4))
    bias, score = relative(1, 4, 5), score_of(name, att, other)
    if (name, backend) == ("own", "csr"):
        with pytest.raises(UnsupportedError, match="no fused form"):
            attention(q, k, v, mask=Window(2, 3), bias=bias, score=score, backend=backend)
        return
    leaves = [q, k, v, bias.key, bias.value]
    results = []
    for mask, how in ((Window(2, 3), backend), (Window(2, None) & Window(None, 3), "reference")):
        torch.manual_seed(3)
        out = attention(q, k, v, mask=mask, bias=bias, score=score, dropout_p=0.3, backend=how)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for a, b in zip(*results, strict=True):
        same(a, b)


@LISTED
def test_positions_decide_the_distance(backend: str) -> None:
    """The value table holds its own row numbers, so that the output tells the code."""
    bias = relative(2, 1, 1, key=False)
    bias.value.data = torch.arange(5.0, dtype=torch.float64)[:, None]
    x = torch.zeros(2, 1, 1, 1, dtype=torch.float64)
    graph = Graph(torch.tensor([[0], [0]]))
    at = [torch.tensor([[3], [3]]), torch.tensor([[4], [1]])]
    out = attention(x, x, x, mask=graph, bias=bias, q_positions=at[0], k_positions=at[1], backend=backend)
    assert out.flatten().tolist() == [3.0, 0.0]


# --- projections


@LISTED
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 1), (2, 2)])
@SCORES
def test_projected_features_are_pair_vectors(name: str, heads: int, kv_heads: int, backend: str) -> None:
    x = graph_problem(heads, kv_heads)
    score = score_of(name, x["att"], x["other"])
    if (name, backend) == ("own", "csr"):
        bias = EdgeProjection(x["edge_attr"], x["key"], x["value"])
        with pytest.raises(UnsupportedError, match="no fused form"):
            attention(x["q"], x["k"], x["v"], mask=Graph(x["edges"]), bias=bias, score=score, backend=backend)
        return
    key_vectors = torch.nn.functional.linear(x["edge_attr"], x["key"]).view(13, kv_heads, 4)
    value_vectors = torch.nn.functional.linear(x["edge_attr"], x["value"]).view(13, kv_heads, 5)
    both = (
        EdgeProjection(x["edge_attr"], x["key"], x["value"].view(kv_heads, 5, -1)),
        PairVectors(key=key_vectors, value=value_vectors),
    )
    leaves = [x[n] for n in ("q", "k", "v", "edge_attr", "key", "value")]
    results = []
    for bias, how in zip(both, (backend, "reference"), strict=True):
        torch.manual_seed(3)
        mask = Graph(x["edges"])
        out, lse = attention_with_lse(
            x["q"], x["k"], x["v"], mask=mask, bias=bias, score=score, dropout_p=0.2, backend=how
        )
        loss = out.square().sum() + lse[:, :, 1:].sin()[lse[:, :, 1:] > -torch.inf].sum()
        results.append([out, lse, *torch.autograd.grad(loss, leaves)])
    for a, b in zip(*results, strict=True):
        assert b.abs().max() > 0
        same(a, b)


@pytest.mark.parametrize("name", ["dot", "gatv2", "gat"])
@LISTED
def test_gradcheck(backend: str, name: str) -> None:
    q, k, v, edge_attr, key, value, att, other = made(
        (1, 2, 3, 2), (1, 1, 3, 2), (1, 1, 3, 3), (5, 2), (2, 2), (3, 2), (2, 2), (2, 2), seed=21
    )
    bias = relative(1, 2, 3)
    graph = Graph(torch.tensor([[0, 1, 2, 2, 0], [1, 1, 2, 2, 2]]))

    def call(q, k, v, edge_attr, key, value, key_table, value_table, att, other):
        lookup = relative(1, 2, 3)
        del lookup.key, lookup.value
        lookup.key, lookup.value = key_table, value_table
        vectors = EdgeProjection(edge_attr, key, value) + lookup
        score = score_of(name, att, other)
        out, lse = attention_with_lse(q, k, v, mask=graph, bias=vectors, score=score, backend=backend)
        return out, lse[:, :, 1:]

    leaves = [q, k, v, edge_attr, key, value, bias.key, bias.value, att, other]
    assert torch.autograd.gradcheck(call, leaves)
    if backend != "csr":
        assert torch.autograd.gradgradcheck(call, leaves)


@pytest.mark.parametrize("name", ["dot", "gatv2", "gat"])
def test_csr_forms_no_vector_an_edge(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.test_memory import created

    monkeypatch.setattr(vectors_module, "FORMED", 0)
    n, e, heads, dim, features = 101, 1009, 3, 8, 5
    q, k, v, edge_attr, weight, att, other = made(
        (1, heads, n, dim), (1, heads, n, dim), (1, heads, n, dim), (e, features), (heads * dim, features),
        (heads, dim), (heads, dim),
    )  # fmt: skip
    graph = Graph(torch.randint(n, (2, e), generator=torch.Generator().manual_seed(0)), num_keys=n)
    score = score_of(name, att, other)
    for bias in (EdgeProjection(edge_attr, weight, weight), relative(9, dim)):
        sizes = created(
            lambda bias=bias: attention(q, k, v, mask=graph, bias=bias, score=score, backend="csr").sum().backward()
        )
        assert max(sizes) < e * dim, {size: sizes[size] for size in sizes if size >= e * dim}


@pytest.mark.parametrize("name", ["dot", "gatv2", "gat"])
@LISTED
def test_what_belongs_to_hidden_edges_may_hold_anything(backend: str, name: str) -> None:
    """NaN in hidden edges' features and rows, in a source that only they have, and in a query that sees nothing."""
    x = graph_problem()
    keep = (x["edges"][0] != 2) & (x["edges"][1] != 4)
    results = []
    for poison in (0.0, torch.nan):
        own = {n: t.detach().clone() if isinstance(t, Tensor) else t for n, t in x.items()}
        own["edge_attr"][~keep] = own["k"][:, :, 2] = own["v"][:, :, 2] = own["q"][:, :, [0, 4]] = poison
        rows = torch.ones(13, 2, 4, dtype=torch.float64)
        rows[~keep] = poison
        leaves = [own[n].requires_grad_() for n in ("q", "k", "v", "edge_attr", "key", "value", "att", "other")]
        leaves.append(rows.requires_grad_())
        bias = EdgeProjection(own["edge_attr"], own["key"], own["value"]) + PairVectors(key=rows)
        score = score_of(name, own["att"], own["other"])
        mask = Graph(x["edges"]).keep(keep)
        out = attention(own["q"], own["k"], own["v"], mask=mask, bias=bias, score=score, backend=backend)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)])
    for a, b in zip(*results, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert torch.equal(a, b)


# --- dtypes, sizes, compilation


@LISTED
@pytest.mark.parametrize("name", ["dot", "gatv2"])
def test_half_precision_computes_in_float32(name: str, backend: str) -> None:
    x = graph_problem(dtype=torch.bfloat16)
    bias = EdgeProjection(x["edge_attr"], x["key"], x["value"]) + relative(2, 4, 5).to(torch.bfloat16)
    wide = {n: t.detach().float() if t.is_floating_point() else t for n, t in x.items()}
    wide_bias = EdgeProjection(wide["edge_attr"], wide["key"], wide["value"]) + bias.terms[1].float()
    bias.terms[1].to(torch.bfloat16)
    outs = [
        attention(
            y["q"], y["k"], y["v"], mask=Graph(x["edges"]), bias=b, score=score_of(name, y["att"], y["other"]),
            backend=backend,
        )
        for y, b in ((x, bias), (wide, wide_bias))
    ]  # fmt: skip
    assert outs[0].dtype == torch.bfloat16
    torch.testing.assert_close(outs[0], outs[1].bfloat16(), rtol=0.02, atol=0.02)


@LISTED
@pytest.mark.parametrize("name", ["dot", "gatv2", "gat"])
@pytest.mark.parametrize(
    ("batch", "nodes", "edges", "features"), [(1, 1, 0, 2), (0, 3, 4, 2), (2, 3, 4, 0), (1, 1, 1, 1)]
)
def test_sizes_of_0_and_1(batch: int, nodes: int, edges: int, features: int, name: str, backend: str) -> None:
    q, k, v, edge_attr, weight, att, other = made(
        (batch, 2, nodes, 4),
        (batch, 1, nodes, 4),
        (batch, 1, nodes, 4),
        (edges, features),
        (4, features),
        (2, 4),
        (2, 4),
    )
    graph = Graph(torch.zeros(2, edges, dtype=torch.int64))
    bias = EdgeProjection(edge_attr, weight, weight) + relative(0, 4)
    score = score_of(name, att, other)
    out = attention(q, k, v, mask=graph, bias=bias, score=score, backend=backend)
    assert out.shape == (batch, 2, nodes, 4)
    leaves = [q, k, v, edge_attr, weight, *bias.terms[1].parameters()]
    for x, grad in zip(leaves, torch.autograd.grad(out.sum(), leaves), strict=True):
        assert grad.shape == x.shape


@pytest.mark.parametrize("name", ["dot", "gatv2"])
@LISTED
def test_compiles_whole(backend: str, name: str) -> None:
    torch._dynamo.reset()
    bias = relative(2, 4, 5)

    def layer(q, k, v, edge_index, edge_attr, key, value, att):
        score = GATv2(att) if name == "gatv2" else Dot()
        vectors = EdgeProjection(edge_attr, key, value) + bias
        return attention(q, k, v, mask=Graph(edge_index), bias=vectors, score=score, backend=backend)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = graph_problem()
    args = [x[n] for n in ("q", "k", "v", "edges", "edge_attr", "key", "value", "att")]
    leaves = [x[n] for n in ("q", "k", "v", "edge_attr", "key", "value")] + list(bias.parameters())
    outs = [f(*args) for f in (compiled, layer)]
    same(*outs)
    for a, b in zip(*(torch.autograd.grad(out.square().sum(), leaves) for out in outs), strict=True):
        same(a, b)
    torch._dynamo.reset()


def test_relative_vectors_compile_on_a_dense_mask() -> None:
    torch._dynamo.reset()
    bias = relative(2, 4)
    q, k, v = made((1, 2, 5, 4), (1, 2, 5, 4), (1, 2, 5, 4))
    compiled = torch.compile(
        lambda q, k, v: attention(q, k, v, mask=Causal(), bias=bias), fullgraph=True, backend="eager"
    )
    same(compiled(q, k, v), attention(q, k, v, mask=Causal(), bias=bias))
    torch._dynamo.reset()


# --- one's own, and what is refused


@LISTED
def test_a_bias_of_ones_own_may_return_plain_tensors(backend: str) -> None:
    x = graph_problem()
    rows = made((13, 2, 4))[0]

    class Mine(Bias):
        def vectors(self) -> tuple[Tensor | None, Tensor | None]:
            return rows, None

    options = {"mask": Graph(x["edges"]), "backend": backend}
    got = attention(x["q"], x["k"], x["v"], bias=Mine(), **options)
    same(got, attention(x["q"], x["k"], x["v"], bias=PairVectors(key=rows), **options))


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ("rows", TypeError, "must return two things, for keys and for values, not 'rows'"),
        (([1.0], None), TypeError, r"Mine.vectors must return a float tensor \[E, Hkv, D\] = \[13, 2, 4\].*not list"),
        ((None, torch.ones(13, 2, 4)), ValueError, r"value vectors \[E, Hkv, Dv\] = \[13, 2, 5\], not \[13, 2, 4\]"),
    ],
)
def test_what_ones_own_returned_is_checked(answer: object, error: type[Exception], message: str) -> None:
    x = graph_problem()

    class Mine(Bias):
        def vectors(self) -> object:
            return answer

    with pytest.raises(error, match=message):
        attention(x["q"], x["k"], x["v"], mask=Graph(x["edges"]), bias=Mine())


def test_ones_own_vectors_want_a_graph() -> None:
    x = graph_problem()

    class Mine(Bias):
        def vectors(self) -> tuple[Tensor | None, Tensor | None]:
            return torch.ones(36, 2, 4), None

    with pytest.raises(ValueError, match="tied to the edges of one Graph"):
        attention(x["q"], x["k"], x["v"], bias=Mine())


def test_a_problem_says_whether_it_has_vectors() -> None:
    seen = []

    class Look(type(__import__("unified_attn").backends.BACKENDS["reference"])):
        def run(self, problem: Problem) -> tuple[Tensor, Tensor]:
            seen.append(problem.has_vectors)
            return super().run(problem)

    x = graph_problem()
    edge = EdgeBias(torch.ones(13))
    for bias in (
        None,
        edge,
        relative(1, 4, 5),
        edge + EdgeProjection(x["edge_attr"], x["key"]),
        PairVectors(torch.ones(13, 2, 4)),
    ):
        attention(x["q"], x["k"], x["v"], mask=Graph(x["edges"]), bias=bias, backend=Look())
    assert seen == [False, False, True, True, True]


def test_a_dense_key_of_its_own_pair_is_not_handed_out() -> None:
    class Wrong(type(__import__("unified_attn").backends.BACKENDS["reference"])):
        def run(self, problem: Problem) -> tuple[Tensor, Tensor]:
            return problem.dense().values(), problem.dense().logits()

    q, k, v = made((1, 1, 3, 4), (1, 1, 3, 4), (1, 1, 3, 4))
    with pytest.raises(
        ValueError, match=r"each pair has a value of its own here; ask for logits\(\) and mix\(weights\)"
    ):
        attention(q, k, v, bias=relative(1, 4), backend=Wrong())


WEIGHT = torch.ones(8, 3)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: RelativeVectors(-1, 4), ValueError, "max_distance is -1; it must not be negative"),
        (lambda: RelativeVectors(2.0, 4), TypeError, "max_distance is 2.0; give an int"),
        (lambda: RelativeVectors(2, 4, key=False, value=False), ValueError, "needs key, value or both"),
        (lambda: RelativeVectors(2, 4, key=1), TypeError, "key is 1; give True or False"),
        (lambda: RelativeVectors(2, 4, value_dim=3, value=False), ValueError, "value_dim is 3, but value is False"),
        (lambda: EdgeProjection(torch.ones(5, 3)), ValueError, "needs a weight for key, value or both"),
        (lambda: EdgeProjection(torch.ones(5), WEIGHT), ValueError, r"one number an edge is edge_attr\[:, None\]"),
        (
            lambda: EdgeProjection(torch.ones(5, 3).long(), WEIGHT),
            TypeError,
            r"edge_attr is \[5, 3\] int64; give floats",
        ),
        (lambda: EdgeProjection(torch.ones(5, 2), WEIGHT), ValueError, r"key has shape \[8, 3\].*with F = 2"),
        (lambda: EdgeProjection(torch.ones(5, 3), value=torch.nn.Linear(3, 8)), TypeError, "value is Linear; give the"),
    ],
)
def test_constructors_refuse(make: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (lambda x: RelativeVectors(2, 3, value=False).double(), "key table was made for head_dim = 3, but q has D = 4"),
        (lambda x: RelativeVectors(2, 4).double(), "value table was made for head_dim = 4, but v has Dv = 5"),
        (lambda x: RelativeVectors(2, 4, value_dim=6).double(), "made for value_dim = 6, but v has Dv = 5"),
        (lambda x: EdgeProjection(torch.ones(12, 3), x["key"]), "hold 12 edges, but the mask's graph has 13"),
        (
            lambda x: EdgeProjection(x["edge_attr"], x["value"]),
            r"\[Hkv \* D, F\] = \[8, 3\] or \[Hkv, D, F\] = \[2, 4, 3\]",
        ),
    ],
)
def test_calls_refuse(bias: object, message: str) -> None:
    x = graph_problem()
    with pytest.raises(ValueError, match=message):
        attention(x["q"], x["k"], x["v"], mask=Graph(x["edges"]), bias=bias(x))


def test_projections_want_a_graph() -> None:
    x = graph_problem()
    with pytest.raises(ValueError, match="EdgeProjection's features are tied to the edges of one Graph"):
        attention(x["q"], x["k"], x["v"], bias=EdgeProjection(x["edge_attr"], x["key"]))


def test_tables_are_parameters_that_are_saved_and_a_layers_weight_stays_its_own() -> None:
    bias = RelativeVectors(3, 4)
    assert {n: list(p.shape) for n, p in bias.named_parameters()} == {"key": [7, 4], "value": [7, 4]}
    assert list(bias.state_dict()) == ["key", "value"]
    assert list(RelativeVectors(3, 4, value=False).state_dict()) == ["key"]
    lin = nn.Linear(3, 8, bias=False)
    assert dict(EdgeProjection(torch.ones(5, 3), lin.weight).named_parameters())["key"] is lin.weight
    assert repr(RelativeVectors(3, 4, value_dim=2)) == "RelativeVectors(3, 4, value_dim=2)"
    assert repr(RelativeVectors(3, 4, value=False)) == "RelativeVectors(3, 4, value=False)"
