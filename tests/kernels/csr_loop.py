"""The fused CSR operator's definition as a loop over rows, in float64, and the operands that tests give both."""

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import leaky_relu

from unified_attn.kernels.csr import csr_attention
from unified_attn.vectors import Operands


@dataclass
class Pairs:
    """Compressed rows, sorted here by torch and by nothing of the library."""

    indptr: torch.Tensor
    col: torch.Tensor
    edge: torch.Tensor
    t_indptr: torch.Tensor
    t_row: torch.Tensor
    t_edge: torch.Tensor


def compress(first, second, size):
    order = torch.argsort(first, stable=True)
    counts = torch.bincount(first, minlength=size)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return indptr[None], second[order].int(), order.int()


def pairs_of(query, key, num_queries, num_keys):
    return Pairs(*compress(query, key, num_queries), *compress(key, query, num_keys))


def stack(parts):
    """Rows with a leading dimension B, from one structure per batch item; ids stay those of each item."""
    fields = {}
    for pointers, names in (("indptr", ("col", "edge")), ("t_indptr", ("t_row", "t_edge"))):
        start, stacked = 0, []
        for part in parts:
            stacked.append(getattr(part, pointers) + start)
            start += part.col.numel()
        fields[pointers] = torch.cat(stacked)
        for name in names:
            fields[name] = torch.cat([getattr(part, name) for part in parts])
    return Pairs(**fields)


def loop(tensors, pair_lists, *, scale=1.0, cap=0.0, slope=0.2, drop=None, key_code=None, value_code=None):
    """The definition, one row at a time. ``drop [B, H, E]`` multiplies the weights."""
    q, k, v, add, att = (tensors.get(name) for name in ("query", "key", "value", "add", "att"))
    v = k if v is None else v
    kvec = at_pairs(tensors, "key", key_code, k.shape[0], k.shape[1], len(pair_lists[0][0]))
    vvec = at_pairs(tensors, "value", value_code, v.shape[0], v.shape[1], len(pair_lists[0][0]))
    outs, lses = [], []
    for b in range(q.shape[0]):
        first, second = pair_lists[b % len(pair_lists)]
        for h in range(q.shape[1]):
            hk, hv = h // (q.shape[1] // k.shape[1]), h // (q.shape[1] // v.shape[1])
            for i in range(q.shape[2]):
                logits, values = [], []
                for e in range(len(first)):
                    bias = 0.0 if add is None else add[b % add.shape[0], h % add.shape[1], e]
                    if first[e] != i or bias == -math.inf:
                        continue
                    j = int(second[e])
                    y = k[b, hk, j] if isinstance(kvec, float) else k[b, hk, j] + kvec[b, e, hk]
                    if att is None:
                        s = scale * (q[b, h, i] * y).sum()
                        s = cap * torch.tanh(s / cap) if cap else s
                    else:
                        s = scale * (att[h] * leaky_relu(q[b, h, i] + y, slope)).sum()
                    logits.append(s + bias)
                    x = v[b, hv, j] if isinstance(vvec, float) else v[b, hv, j] + vvec[b, e, hv]
                    values.append(x if drop is None else x * drop[b, h, e])
                if logits:
                    row = torch.stack(logits)
                    outs.append(torch.softmax(row, 0) @ torch.stack(values))
                    lses.append(torch.logsumexp(row, 0))
                else:
                    outs.append(v.new_zeros(v.shape[3]))
                    lses.append(v.new_tensor(-math.inf))
    shape = q.shape[:3]
    return torch.stack(outs).reshape(*shape, -1), torch.stack(lses).reshape(shape)


def random_graph(seed=0, num_queries=6, num_keys=7, edges=24):
    """Random pairs with a row and a column that are empty, parallel pairs and loops."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(0, num_queries - 1, (edges,), generator=generator)
    second = torch.randint(0, num_keys - 1, (edges,), generator=generator)
    first[:4], second[:4] = torch.tensor([2, 2, 1, 0]), torch.tensor([3, 3, 1, 0])
    return first, second


def at_pairs(tensors, side, code, batch, heads, pairs):
    """Vectors ``[B, E, H, D]`` of one side, from the definition."""
    rows, features, weight = (tensors.get(f"{side}_{name}") for name in ("vectors", "features", "weight"))
    total = 0.0
    if rows is not None:
        code = torch.arange(pairs)[None] if code is None else code
        total = rows[code.long()].expand(batch, -1, heads, -1)
    if features is not None:
        total = total + torch.stack([features @ w.T for w in weight], 1).expand(batch, -1, -1, -1)
    return total


def operands(
    dtype, *, batch=2, heads=4, kheads=2, vheads=4, width=8, size=8, edges=24, full=False, form="dot", n=(6, 7),
    vectors="rows", features=(5, 8),
):  # fmt: skip
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    tensors = {
        "query": draw(batch, heads, n[0], width),
        "key": draw(batch, kheads, n[1], width),
        "value": draw(batch, vheads, n[1], size),
    }
    if form == "sum":
        tensors["att"] = draw(heads, width)
    if full:
        tensors["add"] = draw(1, heads, edges)
    if full and "rows" in vectors:
        tensors["key_vectors"], tensors["value_vectors"] = draw(edges, kheads, width), draw(edges, vheads, size)
    if full and "features" in vectors:
        tensors["key_features"], tensors["value_features"] = draw(edges, features[0]), draw(edges, features[1])
        tensors["key_weight"], tensors["value_weight"] = (
            draw(kheads, width, features[0]),
            draw(vheads, size, features[1]),
        )
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


def run(tensors, rows, *, key_code=None, value_code=None, **options):
    tensors = dict(tensors)
    query, key = (tensors.pop(name) for name in ("query", "key"))
    value = tensors.pop("value", key)
    vectors = {
        f"{side}_vectors": Operands(
            tensors.pop(f"{side}_vectors", None),
            code,
            tensors.pop(f"{side}_features", None),
            tensors.pop(f"{side}_weight", None),
        )
        for side, code in (("key", key_code), ("value", value_code))
    }
    return csr_attention(query, key, value, rows, **vectors, **tensors, **options)


def loss(out, lse):
    """A scalar of both results with fixed cotangents; rows without a pair have no finite lse."""
    generator = torch.Generator().manual_seed(2)
    a = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    b = torch.randn(lse.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    return (out * a).sum() + torch.where(lse > -math.inf, lse * b, torch.zeros_like(lse)).sum()


def gradients(results, tensors):
    return dict(zip(tensors, torch.autograd.grad(loss(*results), list(tensors.values())), strict=True))


def check(tensors, rows, pair_lists, *, drop=None, **options):
    """Results and gradients against the loop, in float64."""
    exact = {name: tensor.detach().double().requires_grad_() for name, tensor in tensors.items()}
    known = ("scale", "cap", "slope", "key_code", "value_code")
    loop_options = {name: options[name] for name in known if name in options}
    want = loop(exact, pair_lists, drop=drop, **loop_options)
    got = run(tensors, rows, **options)
    tolerance = 1e-12 if got[0].dtype == torch.float64 else 5e-6
    for result, expected in zip(got, want, strict=True):
        torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)
    want_grads, got_grads = gradients(want, exact), gradients(got, tensors)
    for name, expected in want_grads.items():
        size = expected.abs().max().item()
        assert size > 0, name
        error = (got_grads[name].double() - expected).abs().max().item()
        assert error <= tolerance * max(size, 1.0), (name, error, size)
    return got, got_grads
