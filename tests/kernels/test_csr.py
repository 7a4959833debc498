"""The fused CSR operator against a loop over rows in float64, and what it promises beside numbers."""

import logging
import math
import re
import subprocess
import sys

import pytest
import torch

from tests.kernels.csr_loop import check, gradients, loop, loss, operands, pairs_of, random_graph, run, stack
from unified_attn import GAT, EdgeBias, GATv2, Graph, PairVectors, attention, graph_attention
from unified_attn.dropout import keep
from unified_attn.errors import UnsupportedError
from unified_attn.kernels import csr_forward, csr_ops
from unified_attn.kernels.csr import csr_attention
from unified_attn.kernels.csr_launch import Plans


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    ("dtype", "form", "width", "size"),
    [
        (torch.float64, "dot", 8, 8),
        (torch.float64, "sum", 8, 8),
        (torch.float32, "dot", 5, 12),  # partly filled vectors
        (torch.float32, "dot", 64, 32),
        (torch.float32, "sum", 48, 8),
        (torch.float32, "sum", 1, 8),  # GAT
    ],
)
def test_equals_the_loop(dtype, form, width, size, full):
    pairs = random_graph()
    tensors = operands(dtype, width=width, size=size, full=full, form=form)
    check(tensors, pairs_of(*pairs, 6, 7), [pairs], scale=0.6, slope=0.1)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(("form", "width", "kheads"), [("dot", 8, 4), ("sum", 8, 4), ("dot", 5, 2), ("sum", 40, 1)])
def test_keys_that_are_the_values_get_one_gradient(form, width, kheads, full):
    pairs = random_graph()
    tensors = operands(torch.float64, width=width, size=width, kheads=kheads, vheads=kheads, full=full, form=form)
    del tensors["value"]
    check(tensors, pairs_of(*pairs, 6, 7), [pairs], scale=0.6, slope=0.1)


@pytest.mark.parametrize(("kheads", "vheads"), [(1, 1), (4, 2), (2, 4), (1, 4)])
def test_grouped_heads(kheads, vheads):
    pairs = random_graph()
    tensors = operands(torch.float64, kheads=kheads, vheads=vheads, full=True)
    check(tensors, pairs_of(*pairs, 6, 7), [pairs])


@pytest.mark.parametrize("vectors", ["features", "rows+features"])
@pytest.mark.parametrize(
    ("dtype", "form", "width", "size", "features"),
    [
        (torch.float64, "dot", 8, 8, (5, 37)),
        (torch.float64, "sum", 8, 8, (37, 5)),
        (torch.float64, "dot", 8, 8, (16, 8)),
        (torch.float64, "sum", 8, 8, (8, 24)),
        (torch.float32, "dot", 5, 12, (1, 16)),
        (torch.float32, "sum", 48, 8, (3, 2)),
    ],
)
def test_features_equal_the_loop(dtype, form, width, size, vectors, features):
    pairs = random_graph()
    tensors = operands(dtype, width=width, size=size, full=True, form=form, vectors=vectors, features=features)
    check(tensors, pairs_of(*pairs, 6, 7), [pairs], scale=0.6, slope=0.1)


@pytest.mark.parametrize("form", ["dot", "sum"])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("batch", [1, 2])
def test_tables_equal_the_loop(form, heads, batch):
    pairs = random_graph()
    tensors = operands(torch.float64, full=True, form=form, vectors="")
    generator = torch.Generator().manual_seed(6)
    for side, rows, size in (("key", 3, 8), ("value", 4, 8)):
        table = torch.randn(rows, heads if side == "key" else 2 * heads - heads % 2, size, generator=generator)
        tensors[f"{side}_vectors"] = table.double().requires_grad_()
    tensors["value_vectors"] = (
        tensors["value_vectors"].detach()[:, [0] if heads == 1 else [0, 1, 1, 0]].requires_grad_()
    )
    codes = [torch.randint(0, rows, (batch, 24), generator=generator) for rows in (3, 4)]
    check(tensors, pairs_of(*pairs, 6, 7), [pairs], key_code=codes[0], value_code=codes[1])


@pytest.mark.parametrize("form", ["dot", "sum"])
def test_tables_and_features_of_each_batch_item(form):
    graphs = [random_graph(seed) for seed in (3, 4)]
    rows = stack([pairs_of(*graph, 6, 7) for graph in graphs])
    tensors = operands(torch.float64, full=True, form=form, vectors="rows+features")
    codes = torch.randint(0, 24, (2, 24), generator=torch.Generator().manual_seed(6))
    check(tensors, rows, graphs, key_code=codes, value_code=codes.flip(1))


def test_a_code_out_of_range_is_refused():
    tensors = operands(torch.float64, full=True)
    for code in (torch.full((1, 24), 24), torch.full((1, 24), -1)):
        with pytest.raises(ValueError, match=r"key_code must lie in 0\.\.23"):
            run(tensors, pairs_of(*random_graph(), 6, 7), key_code=code)


def test_soft_cap():
    pairs = random_graph()
    check(operands(torch.float64, full=True), pairs_of(*pairs, 6, 7), [pairs], cap=1.5, scale=0.7)


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (2, 1), (2, 4)])
@pytest.mark.parametrize("pair_major", [False, True])
def test_add_broadcasts(shape, pair_major):
    pairs = random_graph()
    tensors = operands(torch.float64)
    values = torch.randn(*shape, 24, dtype=torch.float64)
    if pair_major:
        values = values.transpose(1, 2).contiguous().transpose(1, 2)
    tensors["add"] = values.requires_grad_()
    _, grads = check(tensors, pairs_of(*pairs, 6, 7), [pairs])
    assert grads["add"].stride() == values.stride()


@pytest.mark.parametrize("form", ["dot", "sum"])
def test_rows_of_each_batch_item(form):
    graphs = [random_graph(seed) for seed in (3, 4)]
    rows = stack([pairs_of(*graph, 6, 7) for graph in graphs])
    check(operands(torch.float64, full=True, form=form), rows, graphs)


def test_gradcheck():
    pairs = random_graph(num_queries=4, num_keys=4, edges=6)
    for form in ("dot", "sum"):
        tensors = operands(torch.float64, batch=1, heads=2, kheads=1, vheads=2, edges=6, full=True, form=form, n=(4, 4))
        rows = pairs_of(*pairs, 4, 4)

        def function(*values, names=tuple(tensors), rows=rows):
            out, lse = run(dict(zip(names, values, strict=True)), rows)
            return out, lse[:, :, :3]  # the last row is empty

        assert torch.autograd.gradcheck(function, list(tensors.values()))


def test_node_major_in_node_major_out():
    pairs = random_graph(num_queries=7)
    rows = pairs_of(*pairs, 7, 7)
    q, k, v = (torch.randn(7, 4, 8, dtype=torch.float64, requires_grad=True) for _ in "qkv")
    views = [x.transpose(0, 1)[None] for x in (q, k, v)]
    out, lse = csr_attention(*views, rows)
    assert out.transpose(1, 2).is_contiguous()
    plain = csr_attention(*(x.contiguous() for x in views), rows)
    assert plain[0].is_contiguous()
    for a, b in zip((out, lse), plain, strict=True):  # not the same bits: sums are taken in another order
        torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-14)
    grads = torch.autograd.grad(loss(out, lse), views)
    assert all(grad.transpose(1, 2).is_contiguous() for grad in grads)
    for grad, other in zip(grads, gradients(plain, {"q": q, "k": k, "v": v}).values(), strict=True):
        torch.testing.assert_close(grad[0].transpose(0, 1), other, rtol=1e-13, atol=1e-14)


def test_any_strides():
    """Expanded, sliced, transposed: what is read is the values, wherever they lie."""
    pairs = random_graph()
    rows = pairs_of(*pairs, 6, 7)
    base = operands(torch.float64, full=True, form="sum")
    tensors = {
        "query": base["query"][:1, :1].detach().expand(2, 4, 6, 8),
        "key": torch.randn(7, 2, 2, 8, dtype=torch.float64).permute(1, 2, 0, 3)[:, :, :, :],
        "value": torch.randn(2, 4, 8, 7, dtype=torch.float64).mT,  # last dimension not dense
        "att": torch.randn(8, 4, dtype=torch.float64).T,
        "add": torch.randn(24, 1, dtype=torch.float64).T[None].expand(2, 4, 24),
        "key_vectors": torch.randn(2, 24, 16, dtype=torch.float64).transpose(0, 1)[..., 8:],
        "value_vectors": base["value_vectors"].detach()[:1].expand(24, 4, 8),
    }
    tensors = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
    strided, grads = check(tensors, rows, [pairs])
    dense = {name: tensor.detach().contiguous().requires_grad_() for name, tensor in tensors.items()}
    plain = run(dense, rows)
    torch.testing.assert_close(strided[0], plain[0], rtol=1e-14, atol=1e-14)
    for name, grad in gradients(plain, dense).items():
        torch.testing.assert_close(grads[name], grad, rtol=1e-13, atol=1e-14, msg=name)


@pytest.mark.parametrize("vectors", ["rows", "rows+features"])
@pytest.mark.parametrize("form", ["dot", "sum"])
def test_hidden_pairs_are_not_read(form, vectors):
    """A pair of -inf may have NaN everywhere: results and gradients equal those of the clean run bit for bit."""
    first, second = random_graph()
    rows = pairs_of(first, second, 6, 7)
    clean = operands(torch.float64, full=True, form=form, kheads=4, vectors=vectors)
    hidden = (second == 3) | (first == 4)
    clean["add"] = clean["add"].detach().masked_fill(hidden, -math.inf).requires_grad_()
    poisoned = {name: tensor.detach().clone() for name, tensor in clean.items()}
    poisoned["key"][:, :, 3] = poisoned["value"][:, :, 3] = math.nan
    poisoned["key"][:, :, 6] = poisoned["value"][:, :, 6] = math.inf  # in no pair
    if form == "sum" or vectors == "rows":  # else the caller has to clean it: its product with a weight is not skipped
        poisoned["query"][:, :, 4:] = math.nan  # a row of hidden pairs, and an empty one
    for name in ("key_vectors", "value_vectors", "key_features", "value_features"):
        if name in poisoned:
            poisoned[name][hidden] = math.nan
    poisoned = {name: tensor.requires_grad_() for name, tensor in poisoned.items()}
    got, got_grads = check_equal(clean, poisoned, rows)
    assert (got[0][:, :, 4:] == 0).all()
    assert (got[1][:, :, 4:] == -math.inf).all()
    assert (got_grads["query"][:, :, 4:] == 0).all()
    assert (got_grads["add"][..., hidden] == 0).all()
    assert (got_grads["key"][:, :, [3, 6]] == 0).all()
    exact = {name: tensor.detach().clone().requires_grad_() for name, tensor in clean.items()}
    for a, b in zip(got, loop(exact, [(first, second)]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def check_equal(clean, poisoned, rows, **options):
    want, got = run(clean, rows, **options), run(poisoned, rows, **options)
    got_grads = gradients(got, poisoned)
    for a, b in zip(want, got, strict=True):
        assert torch.equal(a, b)
    for name, grad in gradients(want, clean).items():
        assert torch.equal(grad, got_grads[name]), name
    return got, got_grads


def test_visible_nan_shows():
    rows = pairs_of(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), 2, 2)
    q, k, v = (torch.ones(1, 1, 2, 8) for _ in "qkv")
    k[0, 0, 0] = math.nan
    out, lse = csr_attention(q, k, v, rows)
    assert out[0, 0, 0].isnan().all()
    assert lse[0, 0, 0].isnan()
    assert (out[0, 0, 1] == 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_rows(dtype):
    """Rows beyond a chunk, against a dense formula in float64; scores grow along the row, so that maxima move."""
    degrees = [3000, 0, 70000, 128, 129, 1]
    keys = 501
    first = torch.repeat_interleave(torch.arange(6), torch.tensor(degrees))
    second = torch.randint(0, keys, first.shape, generator=torch.Generator().manual_seed(0))
    edges = len(first)
    rows = pairs_of(first, second, 6, keys)
    tensors = operands(dtype, batch=1, heads=1, kheads=1, vheads=1, n=(6, keys))
    ramp = torch.linspace(-30, 5, edges, dtype=torch.float64)
    ramp[1::3] = -math.inf
    tensors["add"] = ramp.to(dtype)[None, None].requires_grad_()
    exact = {name: tensor.detach().double().requires_grad_() for name, tensor in tensors.items()}
    q, k, v = exact["query"][0, 0], exact["key"][0, 0], exact["value"][0, 0]
    outs, lses = [], []
    for i, logits in enumerate(((q[first] * k[second]).sum(-1) + exact["add"][0, 0]).split(degrees)):
        row = second[first == i]
        lses.append(torch.logsumexp(logits, 0))
        outs.append(torch.softmax(logits, 0) @ v[row] if len(row) else v.new_zeros(8))
    want = torch.stack(outs)[None, None], torch.stack(lses)[None, None]
    got = run(tensors, rows)
    tolerance = 1e-11 if dtype == torch.float64 else 2e-5
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=tolerance)
    got_grads = gradients(got, tensors)
    for name, expected in gradients(want, exact).items():
        torch.testing.assert_close(got_grads[name].double(), expected.nan_to_num(0), rtol=tolerance, atol=tolerance)


def test_seventy_thousand_equal_weights():
    rows = pairs_of(torch.zeros(70000, dtype=torch.int64), torch.zeros(70000, dtype=torch.int64), 1, 1)
    out, lse = csr_attention(torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, 1, 8), torch.ones(1, 1, 1, 8), rows)
    torch.testing.assert_close(out, torch.ones_like(out), rtol=1e-5, atol=0)
    assert lse.item() == pytest.approx(math.log(70000), rel=1e-6)


@pytest.mark.parametrize("pair_counter", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_draws_the_hash(p, pair_counter):
    pairs = random_graph()
    seed = torch.tensor([-(2**63) + 12345])
    counter = pairs[0] * 7 + pairs[1] if pair_counter else torch.arange(24)
    kept = keep(seed, torch.arange(2)[:, None, None], torch.arange(4)[:, None], 4, counter, p)
    drop = kept.double() / (1 - p) if p < 1 else torch.zeros(2, 4, 24, dtype=torch.float64)
    rows = pairs_of(*pairs, 6, 7)
    options = {"dropout_p": p, "seed": seed, "pair_counter": pair_counter}
    for form in ("dot", "sum"):
        tensors = operands(torch.float64, full=True, form=form)
        if p < 1:
            check(tensors, rows, [pairs], drop=drop, **options)
        else:
            out, lse = run(tensors, rows, **options)
            assert (out == 0).all()
            torch.testing.assert_close(lse, run(tensors, rows)[1])
            assert (gradients((out, lse), tensors)["value"] == 0).all()


def test_hash_in_unlimited_integers():
    """The int64 arithmetic of torch against Python's own integers."""
    mask = 2**64 - 1

    def draw(seed, row, counter):
        x = (seed + row * 0x9E3779B97F4A7C15 + counter * 0xD1B54A32D192ED03) & mask
        x = ((x ^ (x >> 32)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 32)) * 0x94D049BB133111EB) & mask
        return (x ^ (x >> 32)) >> 40

    p, seed, heads = 0.37, -5, 3
    batch, head, counter = torch.arange(3)[:, None, None], torch.arange(heads)[:, None], torch.arange(400)
    kept = keep(torch.tensor([seed]), batch, head, heads, counter, p)
    want = [
        [[draw(seed, b * heads + h, c) >= math.floor(p * 2**24) for c in range(400)] for h in range(heads)]
        for b in range(3)
    ]
    assert torch.equal(kept, torch.tensor(want))
    assert abs(kept.double().mean().item() - (1 - p)) < 0.03


def test_what_was_saved_may_come_back_in_another_order():
    """Hooks of saved tensors (offloading, compression) need not keep strides."""
    graph = Graph(torch.randint(0, 9, (2, 40), generator=torch.Generator().manual_seed(0)))
    q, k, v = torch.randn(3, 9, 2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).unbind()
    leaves = [x.transpose(0, 1)[None].requires_grad_() for x in (q, k, v)]  # nodes first in memory

    def results():
        out = attention(*leaves, mask=graph, backend="csr")
        return torch.autograd.grad(out.sin().sum(), leaves)

    want = results()
    inputs = {x.data_ptr() for x in leaves}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: x, lambda x: x.contiguous() if x.data_ptr() in inputs else x
    ):
        found = results()
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b)


def test_views_with_a_negative_bit():
    q = torch.randn(1, 1, 50, 1, dtype=torch.complex64, generator=torch.Generator().manual_seed(0)).conj().imag
    assert q.is_neg()
    graph = Graph(torch.randint(0, 50, (2, 300), generator=torch.Generator().manual_seed(0)))
    found = attention(q, q, q, mask=graph, backend="csr")
    torch.testing.assert_close(found, attention(q, q, q, mask=graph, backend="scatter"))
    score = GAT(torch.ones(1, 1), torch.ones(1, 1))
    found = attention(q, q, q, mask=graph, score=score, backend="csr")
    torch.testing.assert_close(found, attention(q, q, q, mask=graph, score=score, backend="scatter"))


NEGATIVE = {
    "a number an edge": lambda x, e, r: {"bias": EdgeBias(e)},
    "vectors of edges": lambda x, e, r: {"bias": PairVectors(r, r)},
    "GATv2's vector": lambda x, e, r: {"score": GATv2(x)},
    "GAT's vectors": lambda x, e, r: {"score": GAT(x, x)},
}


@pytest.mark.parametrize("name", NEGATIVE)
def test_operands_and_gradients_with_a_negative_bit(name):
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 20, (2, 100), generator=generator)
    graph = Graph(edges, num_keys=20)
    q, k, v, g = torch.randn(4, 20, 4, 8, generator=generator).unbind()
    given = [torch.randn(*shape, generator=generator) for shape in ((4, 8), (100, 4), (100, 4, 8))]
    q.requires_grad_()
    want = graph_attention(q, k, v, graph, backend="scatter", **NEGATIVE[name](*(-x for x in given)))
    found = graph_attention(q, k, v, graph, backend="csr", **NEGATIVE[name](*map(torch._neg_view, given)))
    torch.testing.assert_close(found, want)
    found, want = (
        torch.autograd.grad(out, q, cotangent)[0] for out, cotangent in ((found, torch._neg_view(g)), (want, -g))
    )
    torch.testing.assert_close(found, want)


def test_a_batch_of_gradients_says_what_to_do():
    q = torch.randn(1, 2, 5, 4, requires_grad=True)
    out = attention(q, q, q, mask=Graph(torch.tensor([[0, 1], [1, 2]])), backend="csr")
    with pytest.raises(UnsupportedError, match="no batch of gradients at once; use backend='scatter'"):
        torch.autograd.grad(out, q, torch.ones(3, *out.shape), is_grads_batched=True)


def arguments(full, grad, node_major=False, form="sum"):
    """Inputs of the operator, in its order; ``full`` with everything that may be absent."""
    pairs = random_graph()
    rows = pairs_of(*pairs, 6, 7)
    kinds = "rows+features" if full else ""
    tensors = {n: t.detach() for n, t in operands(torch.float64, full=full, form=form, vectors=kinds).items()}
    if node_major:
        tensors["query"] = tensors["query"].transpose(1, 2).contiguous().transpose(1, 2)
    if not full:
        tensors.pop("att", None)
    if full and form == "dot":
        tensors["key_query"] = torch.randn(2, 4, 6, 5, dtype=torch.float64)
        tensors.pop("key_weight")
    elif full:
        tensors["key_weight"] = tensors["key_weight"].transpose(1, 2)
    tensors = {name: tensor.detach().requires_grad_(grad) for name, tensor in tensors.items()}
    floats = [tensors.get(name) for name in GRADIENTS]
    code = torch.arange(24, dtype=torch.int32)[None] if full else None
    structure = [rows.indptr, rows.col, rows.edge, rows.t_indptr, rows.t_row, rows.t_edge]
    seed = torch.tensor([3]) if full else None
    return [*floats, code, code, *structure, seed, 1.0, 0.0, 0.2, 0.3 if full else 0.0, False, True, False, False]


GRADIENTS = (
    "query", "key", "value", "add", "key_vectors", "value_vectors", "key_features", "key_query", "key_weight",
    "value_features", "att",
)  # fmt: skip


@pytest.mark.parametrize(("full", "node_major", "form"), [(False, True, "dot"), (True, False, "sum"), (True, 0, "dot")])
def test_opcheck(full, node_major, form):
    for grad in (True, False):
        inputs = arguments(full, grad, node_major, form)
        torch.library.opcheck(torch.ops.unified_attn.csr_forward, inputs)
    out, lse, mixed = torch.ops.unified_attn.csr_forward(*inputs)
    for needs in ([x is not None for x in inputs[:11]], [False, True] + [False] * 9):
        for g_lse in (None, torch.ones_like(lse)):
            g_mixed = torch.ones_like(mixed) if full else None
            everything = [torch.ones_like(out), g_lse, g_mixed, out, lse, mixed, *inputs, needs]
            torch.library.opcheck(torch.ops.unified_attn.csr_backward, everything)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_whole(backend, dynamic):
    torch._dynamo.reset()

    def function(q, k, v, rows, add, seed):
        return csr_attention(q.transpose(1, 2), k, v, rows, add=add, dropout_p=0.2, seed=seed)

    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)
    for nodes, edges in ((5, 9), (6, 11), (8, 3), (1, 1), (4, 0)):
        first, second = torch.randint(0, nodes, (2, edges))
        rows = pairs_of(first, second, nodes, nodes)
        q = torch.randn(1, nodes, 4, 8, dtype=torch.float64, requires_grad=True)
        k, v = (torch.randn(1, 4, nodes, 8, dtype=torch.float64, requires_grad=True) for _ in "kv")
        add = torch.randn(1, 4, edges, dtype=torch.float64, requires_grad=True)
        leaves = {"q": q, "k": k, "v": v, "add": add}
        got, want = (f(q, k, v, rows, add, torch.tensor(5)) for f in (compiled, function))
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a, b)
            assert a.stride() == b.stride()
        want_grads = gradients(want, leaves)
        for name, grad in gradients(got, leaves).items():
            assert torch.equal(grad, want_grads[name])
    torch._dynamo.reset()


def test_second_derivative_says_what_to_use():
    pairs = random_graph()
    tensors = operands(torch.float64)
    out, _ = run(tensors, pairs_of(*pairs, 6, 7))
    (grad,) = torch.autograd.grad(out.square().sum(), tensors["query"], create_graph=True)
    with pytest.raises(UnsupportedError, match="use backend='scatter' or backend='reference'") as error:
        grad.sum().backward()
    assert error.value.backend == "csr"


@pytest.mark.parametrize("form", ["dot", "sum"])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 6, 7), (2, 0, 7), (2, 6, 0), (2, 0, 0), (2, 6, 7)], ids=str)
def test_empty(batch, queries, keys, form):
    none = torch.zeros(0, dtype=torch.int64)
    tensors = operands(torch.float64, batch=batch, edges=0, full=True, form=form, n=(queries, keys))
    out, lse = run(tensors, pairs_of(none, none, queries, keys))
    assert out.shape == (batch, 4, queries, 8)
    assert (out == 0).all()
    assert (lse == -math.inf).all()
    for name, grad in gradients((out, lse), tensors).items():
        assert grad.shape == tensors[name].shape
        assert (grad == 0).all()


def test_only_lse_and_only_some_gradients():
    pairs = random_graph()
    rows = pairs_of(*pairs, 6, 7)
    tensors = operands(torch.float64, full=True)
    want = gradients(run(tensors, rows), tensors)
    for name in tensors:
        some = {other: tensor.detach().requires_grad_(other == name) for other, tensor in tensors.items()}
        got = run(some, rows)
        assert torch.equal(torch.autograd.grad(loss(*got), some[name])[0], want[name]), name
    _, lse = run(tensors, rows)
    (grad,) = torch.autograd.grad(lse[lse > -math.inf].sum(), tensors["add"])
    torch.testing.assert_close(grad.sum(), torch.tensor(2.0 * 4 * len(pairs[0].unique()), dtype=torch.float64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": torch.zeros(2, 3, 7, 8)}, "multiple of key heads, got 4 and 3"),
        ({"key": torch.zeros(2, 2, 7, 9)}, "got 8 and 9"),
        ({"value": torch.zeros(2, 4, 8, 8)}, "got 7 and 8"),
        ({"add": torch.zeros(3, 4, 24)}, r"\(3, 4, 24\)"),
        ({"att": torch.zeros(2, 8)}, r"att must be \[4, 8\]"),
    ],
)
def test_shapes_that_do_not_fit(change, message):
    tensors = {**operands(torch.float32), **change}
    with pytest.raises(ValueError, match=message):
        run(tensors, pairs_of(*random_graph(), 6, 7))


def test_wrong_dtypes():
    rows = pairs_of(*random_graph(), 6, 7)
    with pytest.raises(TypeError, match="float16"):
        run({name: tensor.half() for name, tensor in operands(torch.float32).items()}, rows)
    with pytest.raises(ValueError, match="seed"):
        run(operands(torch.float32), rows, dropout_p=0.5)


def test_importing_it_does_not_import_numba():
    code = "import sys, unified_attn.kernels.csr; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_tensor_of_all_pairs_and_features():
    """Peak memory of forward and backward stays below one [E, H, D] tensor."""
    code = """
import resource, torch
from unified_attn.kernels.csr import csr_attention
from tests.kernels.csr_loop import pairs_of
n, e, h, d = 2000, 400_000, 4, 32
def call(n, e):
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randint(0, n, (2, e), generator=generator)
    rows = pairs_of(first, second, n, n)
    q, k, v = (torch.randn(1, h, n, size, requires_grad=True) for size in (2 * d, 2 * d, d))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    csr_attention(q, k, v, rows)[0].sum().backward()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
call(10, 20)
grown = call(n, e)
assert grown < e * h * d * 4 / 4, grown
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_time_to_compile_is_logged_once(caplog, monkeypatch):
    """A cache of kernels and one of launches stand before the compiler: both are empty here, as in a new process."""
    csr_forward.make.cache_clear()
    monkeypatch.setattr(csr_ops, "_facts", Plans())
    x = torch.randn(1, 1, 3, 8)
    graph = Graph(torch.tensor([[0, 1], [1, 2]]), num_keys=3)
    with caplog.at_level(logging.INFO, logger="unified_attn"):
        for _ in range(2):
            attention(x, x, x, mask=graph, backend="csr")
    (line,) = (record.getMessage() for record in caplog.records)
    assert re.fullmatch(r"forward kernel for heads of 8 and 8 floats: compiled, or loaded, in [0-9.]+ s", line)
