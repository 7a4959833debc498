"""Small problems for a back end, each beside what it means: tables written out here, not asked of the library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unified_attn import (
    Additive,
    ALiBi,
    Causal,
    DenseBias,
    DenseMask,
    Dot,
    EdgeBias,
    GATv2,
    Graph,
    Padding,
    PairVectors,
    RoPE,
    Window,
)
from unified_attn.testing.formula import all_pairs, per_query_head, softmax

BATCH, HEADS, KV_HEADS, DIM = 2, 4, 2, 4
SIZES = ((5, 5), (3, 8), (7, 4), (1, 1))
SLOPES = (1 / 4, 1 / 16, 1 / 64, 1 / 256)  # of ALiBi for four heads


@dataclass(eq=False)
class Case:
    """A call of the operator and its meaning over entries.

    Args:
        name: For messages.
        options: Mask, bias, score and scale of the call.
        inputs: q, k and v.
        learned: Tensors beside q, k and v that get gradients, by name.
        query: ``[E]``.
        key: ``[E]``.
        counters: What dropout counts: the number of the edge, or i * Nk + j.
        visible: ``[B, H, E]``, hidden by masks and biases alike.
        logits: Of queries ``[B, H, E, D]`` and keys.
        values: ``[B, H, E, D]`` from values.
    """

    name: str
    options: dict[str, Any]
    inputs: list[Tensor]
    learned: dict[str, Tensor]
    query: Tensor
    key: Tensor
    counters: list[int]
    visible: Tensor
    logits: Callable[[Tensor, Tensor], Tensor]
    values: Callable[[Tensor], Tensor]

    def exact(self, factors: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Output and lse by the formula, in float64; with factors of dropout on the weights."""
        q, k, v = (x.double() for x in self.inputs)
        entries = per_query_head(k, HEADS)[:, :, self.key], per_query_head(v, HEADS)[:, :, self.key]
        values = self.values(entries[1])
        if factors is not None:
            values = values * factors[..., None]
        return softmax(self.logits(q[:, :, self.query], entries[0]), self.visible, self.query, values, q.shape[2])


def problems(dtype: torch.dtype) -> Iterator[Case]:
    """Masks x biases x sizes with a dot product, and the other scores under some of the masks."""
    for sizes in SIZES:
        for mask in MASKS:
            for bias in BIASES:
                yield from _made(mask, bias, "dot", sizes, dtype)
        for mask in ("none", "window & padding", "graph"):
            for score in ("softcap", "gatv2"):
                yield from _made(mask, "dense", score, sizes, dtype)


MASKS = (
    "none", "causal", "window", "window & padding", "padding", "table", "causal & padding", "graph", "graph & causal",
)  # fmt: skip
BIASES = ("none", "alibi", "dense", "hiding", "captured", "rope", "edges", "vectors")


def _made(mask: str, bias: str, score: str, sizes: tuple[int, int], dtype: torch.dtype) -> Iterator[Case]:
    queries, keys = sizes
    random = torch.Generator().manual_seed(queries * 31 + keys)

    def leaf(*size: int) -> Tensor:
        return torch.randn(size, generator=random, dtype=torch.float64).to(dtype).requires_grad_()

    graph = "graph" in mask
    if graph:
        ends = [torch.randint(n, (2 * keys,), generator=random) for n in (keys, max(queries - 1, 1))]
        edges = torch.stack([torch.cat([end, end[:1]]) for end in ends])  # one twice, none to the last query
        key, query = edges
        counters = list(range(len(key)))
    else:
        query, key = all_pairs(queries, keys)
        counters = list(range(queries * keys))
    i = query + (0 if graph else keys - queries)  # positions
    j = key
    keep = torch.rand(BATCH, keys, generator=random) < 0.6
    keep[0] = False  # a sequence without a real token
    table = torch.rand(BATCH, HEADS, queries, keys, generator=random) < 0.5
    everything = torch.ones(BATCH, HEADS, len(query), dtype=torch.bool)
    near = (j - i >= -2) & (j - i <= 1)
    kept = keep[:, None, key]
    rule, visible = {
        "none": (None, everything),
        "causal": (Causal(), j <= i),
        "window": (Window(2, 1), near),
        "window & padding": (Window(2, 1) & Padding(keep), near & kept),
        "padding": (Padding(keep), kept),
        "table": (DenseMask(table), table[:, :, query, key]),
        "causal & padding": (Causal() & Padding(keep), (j <= i) & kept),
        "graph": (Graph(edges) if graph else None, everything),
        "graph & causal": (Graph(edges) & Causal() if graph else None, j <= i),
    }[mask]
    visible = visible & everything

    learned: dict[str, Tensor] = {}
    prior: Any = None
    add: Callable[[], Tensor] = lambda: torch.zeros((), dtype=torch.float64)  # noqa: E731
    turned: Callable[[Tensor, Tensor], Tensor] = lambda x, at: x  # noqa: E731
    extra: tuple[Tensor | None, Tensor | None] = (None, None)
    if bias == "alibi":
        prior = ALiBi(HEADS)
        add = lambda: -torch.tensor(SLOPES, dtype=torch.float64)[:, None] * (i - j).abs()  # noqa: E731
    elif bias in ("dense", "hiding"):
        values = leaf(HEADS, queries, keys)
        if bias == "hiding":
            gone = torch.rand(values.shape, generator=random) < 0.3
            gone[:, -1] = True  # all keys of a query
            values = values.detach().masked_fill(gone, -torch.inf).requires_grad_()
            visible = visible & ~gone[:, query, key]
        prior, learned["the table"] = DenseBias(values), values
        add = lambda: values.masked_fill(values == -torch.inf, 0.0)[:, query, key].double()  # noqa: E731
    elif bias == "captured":
        slope = leaf(HEADS)
        prior = Additive(lambda b, h, i, j: slope[h] * (0.3 * (i - 2 * j + b)).cos())
        learned["what the function captures"] = slope
        b = torch.arange(BATCH)[:, None, None]
        add = lambda: slope.double()[:, None] * (0.3 * (i - 2 * j + b)).cos()  # noqa: E731
    elif bias == "rope":
        prior = RoPE(DIM, layout="half")
        turned = _turned
    elif bias == "edges":
        if not graph:
            return
        weights = leaf(len(key), HEADS)
        prior, learned["values of edges"] = EdgeBias(weights), weights
        add = lambda: weights.t().double()  # noqa: E731
    elif bias == "vectors":
        if not graph:
            return
        extra = leaf(len(key), KV_HEADS, DIM), leaf(len(key), KV_HEADS, DIM)
        prior = PairVectors(*extra)
        learned.update(zip(("key vectors", "value vectors"), extra, strict=True))

    scale = 0.7 if score == "dot" else None
    similar: Any = None
    if score == "softcap":
        similar = Dot(softcap=1.5)
    elif score == "gatv2":
        att = leaf(HEADS, DIM)
        similar, learned["att"] = GATv2(att), att

    def plus(x: Tensor, vectors: Tensor | None) -> Tensor:
        return x if vectors is None else x + per_query_head(vectors.double().transpose(0, 1)[None], HEADS)

    def logits(q: Tensor, k: Tensor) -> Tensor:
        q, k = turned(q, i), plus(turned(k, j), extra[0])
        if score == "gatv2":
            both = q + k
            raw = (torch.where(both > 0, both, 0.2 * both) * att.double()[:, None]).sum(-1)
        else:
            raw = (q * k).sum(-1) * (0.7 if score == "dot" else DIM**-0.5)
        return (1.5 * torch.tanh(raw / 1.5) if score == "softcap" else raw) + add()

    inputs = [leaf(BATCH, HEADS, queries, DIM), leaf(BATCH, KV_HEADS, keys, DIM), leaf(BATCH, KV_HEADS, keys, DIM)]
    kind = str(dtype).removeprefix("torch.")
    yield Case(
        f"mask {mask}, bias {bias}, score {score}, {queries} queries x {keys} keys, {kind}",
        {"mask": rule, "bias": prior, "score": similar, "scale": scale},
        inputs, learned, query, key, counters, visible, logits, lambda v: plus(v, extra[1]),
    )  # fmt: skip


def _turned(x: Tensor, at: Tensor) -> Tensor:
    """RoPE of entries ``[B, H, E, 4]``: coordinates 0 and 2 turn by the position, 1 and 3 by a hundredth of it."""
    angle = at[:, None] * torch.tensor([1.0, 0.01], dtype=torch.float64)
    a, b = x[..., :2], x[..., 2:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)
