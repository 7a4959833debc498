"""Masks by name: each makes the library's object, and says from the definition who may interact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.parity.grid import Grid
from unified_attn import (
    BigBird,
    Causal,
    DenseMask,
    Dilated,
    Documents,
    Full,
    GlobalTokens,
    Graph,
    Longformer,
    Mask,
    Padding,
    Where,
    Window,
)


@dataclass
class MaskCase:
    """The library's mask beside a table of allowed pairs, and the edges if they list the pairs."""

    mask: Mask | Tensor | None
    allowed: Tensor  # bool, broadcasts to [B, H, Nq, Nk]
    edges: Tensor | None = None  # [2, E]: sources, targets
    keep: Tensor | None = None  # bool [E] or [E, H]
    inverse: MaskCase | None = None  # what this is the inverse of: two inversions cancel
    graphs: int = 0  # how many graphs `&` joins here: two or more are a set of pairs

    def as_set(self) -> Tensor:
        """Allowed pairs where a graph counts as a set of them."""
        if self.edges is None:
            return self.allowed
        assert self.keep is None
        table = torch.zeros(self.allowed.shape[-2:], dtype=torch.bool)
        table[self.edges[1], self.edges[0]] = True
        return self.allowed & table

    def __and__(self, other: MaskCase) -> MaskCase:
        mask, graphs = self.mask & other.mask, self.graphs + other.graphs
        if graphs > 1:
            return MaskCase(mask, self.as_set() & other.as_set(), graphs=graphs)
        listing = self if self.graphs else other
        return MaskCase(mask, self.allowed & other.allowed, listing.edges, listing.keep, graphs=graphs)

    def __or__(self, other: MaskCase) -> MaskCase:
        return MaskCase(self.mask | other.mask, self.as_set() | other.as_set())

    def __invert__(self) -> MaskCase:
        return self.inverse or MaskCase(~self.mask, ~self.as_set(), inverse=self)


def everything(g: Grid) -> Tensor:
    return torch.ones(g.queries, g.keys, dtype=torch.bool)


def full(g: Grid) -> MaskCase:
    return MaskCase(Full(), everything(g))


def causal(g: Grid) -> MaskCase:
    return MaskCase(Causal(), g.at_j <= g.at_i)


def top_left(g: Grid) -> MaskCase:
    return MaskCase(Causal(align="top_left"), everything(g).tril())


def window(g: Grid, left: int | None, right: int | None) -> MaskCase:
    low = -torch.inf if left is None else -left
    high = torch.inf if right is None else right
    distance = (g.at_j - g.at_i).double()
    return MaskCase(Window(left, right), (low <= distance) & (distance <= high))


def causal_window(g: Grid, size: int) -> MaskCase:
    # `size` keys, the query's own counted.
    return MaskCase(Window.causal(size), (g.at_j <= g.at_i) & (g.at_j > g.at_i - size))


def padding(g: Grid, *, queries: bool = False, shared: bool = False) -> MaskCase:
    keep = g.coin(1 if shared else g.batch, g.keys)
    real = g.coin(g.batch, g.queries) if queries else None
    allowed = keep[:, None, None, :]
    if real is not None:
        allowed = allowed & real[:, None, :, None]
    return MaskCase(Padding(keep, queries=real), allowed & everything(g))


def lengths(g: Grid) -> MaskCase:
    sizes = g.integers(g.keys + 1, g.batch)
    return MaskCase(Padding.from_lengths(sizes, g.keys), (g.j < sizes[:, None, None, None]) & everything(g))


def where(g: Grid) -> MaskCase:
    # Depends on all four indices.
    return MaskCase(Where(lambda b, h, i, j: (b + h + i - 2 * j) % 3 != 0), (g.b + g.h + g.at_i - 2 * g.at_j) % 3 != 0)


def table(g: Grid, *shape: int, plain: bool = False) -> MaskCase:
    values = g.coin(*shape)
    return MaskCase(values if plain else DenseMask(values), values & everything(g))


def random_edges(g: Grid) -> Tensor:
    """[2, E] with a loop, parallel edges, a node without edges in and one without edges out, where sizes allow."""
    if g.queries == 0 or g.keys == 0:
        return torch.zeros(2, 0, dtype=torch.int64)
    count = 2 * max(g.queries, g.keys)
    source, target = g.integers(max(g.keys - 1, 1), count), g.integers(max(g.queries - 1, 1), count)
    if g.queries > 1:
        target = target + 1
    loop = min(g.queries, g.keys) // 2
    extra = torch.tensor([loop, source[0], source[0], source[1]]), torch.tensor([loop, target[0], target[0], target[1]])
    return torch.stack([torch.cat([source, extra[0]]), torch.cat([target, extra[1]])])


def graph(g: Grid, edges: Tensor | None = None) -> MaskCase:
    edges = random_edges(g) if edges is None else edges
    return MaskCase(Graph(edges), everything(g), edges, graphs=1)


def kept(g: Grid, *heads: int) -> MaskCase:
    case = graph(g)
    case.keep = g.coin(case.edges.shape[1], *heads)
    case.mask = case.mask.keep(case.keep)
    return case


def sized(g: Grid) -> MaskCase:
    edges = random_edges(g)
    return MaskCase(Graph(edges, num_keys=g.keys, num_queries=g.queries), everything(g), edges, graphs=1)


def complete(g: Grid) -> MaskCase:
    return graph(
        g, torch.stack([torch.arange(g.keys).repeat(g.queries), torch.arange(g.queries).repeat_interleave(g.keys)])
    )


def documents(g: Grid, *batch: int, order: bool = False) -> MaskCase:
    ids = g.integers(3, *batch, g.keys) * 5 - 2  # any numbers may name documents
    if order:
        ids = ids.sort(-1).values
    table = torch.zeros(*(batch or (1,)), 1, g.queries, g.keys, dtype=torch.bool)
    for b, i, j in places(table):
        own = ids[b] if batch else ids
        table[b, 0, i, j] = own[g.keys - g.queries + i] == own[j]  # the queries are the last tokens
    return MaskCase(Documents(ids), table & everything(g))


def places(table: Tensor) -> list[tuple[int, int, int]]:
    return [(b, i, j) for b in range(table.shape[0]) for i in range(table.shape[2]) for j in range(table.shape[3])]


def global_table(g: Grid, tokens: Tensor) -> Tensor:
    """Of tokens [1 or B, Nk] bool."""
    table = torch.zeros(len(tokens), 1, g.queries, g.keys, dtype=torch.bool)
    for b, i, j in places(table):
        table[b, 0, i, j] = tokens[b, g.keys - g.queries + i] or tokens[b, j]
    return table & everything(g)


def numbered(g: Grid) -> tuple[list[int], Tensor]:
    """Two tokens, one of them among the last, where sizes allow: their numbers, and the same as [1, Nk]."""
    numbers = sorted({n for n in (1, g.keys - 2) if 0 <= n < g.keys})
    return numbers, torch.tensor([[n in numbers for n in range(g.keys)]], dtype=torch.bool).reshape(1, -1)


def global_tokens(g: Grid) -> MaskCase:
    numbers, tokens = numbered(g)
    return MaskCase(GlobalTokens(numbers), global_table(g, tokens))


def global_flags(g: Grid) -> MaskCase:
    tokens = g.coin(g.batch, g.keys, chance=0.3)
    return MaskCase(GlobalTokens(tokens), global_table(g, tokens))


def longformer(g: Grid, size: int, *, vary: bool = False) -> MaskCase:
    numbers, tokens = numbered(g)
    if vary:
        tokens = g.coin(g.batch, g.keys, chance=0.2)
    near = (g.at_j - g.at_i).abs() <= size
    return MaskCase(Longformer(size, tokens if vary else numbers), near | global_table(g, tokens))


def bigbird(g: Grid, size: int, first: int, near: int, drawn: int, seed: int) -> MaskCase:
    def allowed(i: int, j: int) -> bool:
        row, column = i // size, j // size
        if abs(row - column) <= (near - 1) // 2 or 0 <= row < first or 0 <= column < first:
            return True
        return any(column == drawn_block(seed, row, n) for n in range(drawn))

    rows, columns = torch.broadcast_tensors(g.at_i, g.at_j)
    flat = [allowed(i, j) for i, j in zip(rows.flatten().tolist(), columns.flatten().tolist(), strict=True)]
    mask = BigBird(size, first, near, drawn, seed)
    return MaskCase(mask, torch.tensor(flat, dtype=torch.bool).reshape(rows.shape) & everything(g))


def drawn_block(seed: int, row: int, n: int) -> int:
    """The n-th random block of a row block: a 64-bit hash, cut to the bits of the row block."""
    row, word = max(row, 0), 2**64
    x = (seed + row * 0x9E3779B97F4A7C15 + n * 0xD1B54A32D192ED03) % word
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        x = (x ^ (x >> 32)) * factor % word
    return (x ^ (x >> 32)) % 2 ** row.bit_length()


def dilated(g: Grid, size: int, dilation: int) -> MaskCase:
    steps = torch.tensor([dilation * n for n in range(-size, size + 1)])
    return MaskCase(Dilated(size, dilation), torch.isin(g.at_j - g.at_i, steps))


MASKS: dict[str, Callable[[Grid], MaskCase]] = {
    "full": full,
    "none": lambda g: MaskCase(None, everything(g)),
    "causal": causal,
    "causal top left": top_left,
    "window 2 1": lambda g: window(g, 2, 1),
    "window 0 0": lambda g: window(g, 0, 0),
    "window 0 3": lambda g: window(g, 0, 3),
    "window 99 99": lambda g: window(g, 99, 99),
    "window 2 -": lambda g: window(g, 2, None),
    "window - 1": lambda g: window(g, None, 1),
    "causal window 3": lambda g: causal_window(g, 3),
    "padding": padding,
    "padding shared": lambda g: padding(g, shared=True),
    "padding queries": lambda g: padding(g, queries=True),
    "padding lengths": lengths,
    "where": where,
    "bool [Nq,Nk]": lambda g: table(g, g.queries, g.keys, plain=True),
    "dense [H,1,Nk]": lambda g: table(g, g.heads, 1, g.keys),
    "dense [B,1,Nq,1]": lambda g: table(g, g.batch, 1, g.queries, 1),
    "dense [B,H,Nq,Nk]": lambda g: table(g, *g.full),
    "causal & padding": lambda g: causal(g) & padding(g),
    "causal & window": lambda g: causal(g) & window(g, 1, 5),
    "window & padding & where": lambda g: window(g, 2, 2) & padding(g, queries=True) & where(g),
    "window | window": lambda g: window(g, 1, 0) | window(g, 0, 2) & ~window(g, 0, 1),
    "window | causal": lambda g: window(g, 1, 1) | causal(g),
    "~causal": lambda g: ~causal(g),
    "~(window | padding)": lambda g: ~(window(g, 1, 1) | padding(g)),
    "documents": lambda g: documents(g, order=True),
    "documents [B,N]": lambda g: documents(g, g.batch),
    "documents unsorted & causal": lambda g: documents(g) & causal(g),
    "global": global_tokens,
    "global [B,N]": global_flags,
    "longformer": lambda g: longformer(g, 1),
    "longformer [B,N] & padding": lambda g: longformer(g, 1, vary=True) & padding(g, queries=True),
    "bigbird": lambda g: bigbird(g, 2, 1, 1, 1, seed=3),
    "bigbird & causal": lambda g: bigbird(g, 1, 1, 3, 2, seed=2**63 - 1) & causal(g),
    "dilated": lambda g: dilated(g, 2, 2),
    "dilated | window": lambda g: dilated(g, 1, 3) | window(g, 1, 0),
    "graph & longformer": lambda g: graph(g) & longformer(g, 0),
    "graph": graph,
    "graph sized": sized,
    "graph complete": complete,
    "graph no edges": lambda g: graph(g, torch.zeros(2, 0, dtype=torch.int64)),
    "graph & causal": lambda g: graph(g) & causal(g),
    "graph & top left": lambda g: top_left(g) & graph(g),
    "graph & window": lambda g: graph(g) & window(g, 2, 1),
    "graph & padding": lambda g: graph(g) & padding(g, queries=True),
    "graph & where": lambda g: graph(g) & where(g),
    "graph & dense": lambda g: table(g, *g.full) & graph(g),
    "graph & ~window": lambda g: graph(g) & ~window(g, 1, 0),
    "graph & (window | padding)": lambda g: graph(g) & (window(g, 1, 0) | padding(g)),
    "graph.keep [E]": kept,
    "graph.keep [E,H]": lambda g: kept(g, g.heads),
    "graph.keep [E,H] & window": lambda g: kept(g, g.heads) & window(g, 3, 2),
    "graph | window": lambda g: graph(g) | window(g, 0, 1),
    "graph | causal": lambda g: graph(g) | causal(g),
    "graph | graph": lambda g: graph(g) | graph(g),
    "~graph": lambda g: ~graph(g),
    "~graph & window": lambda g: ~graph(g) & window(g, 2, 1),
    "graph & graph": lambda g: graph(g) & graph(g),
}


def counts_nodes(name: str) -> bool:
    """Whether both sides are nodes 0..N-1 by default: wherever a graph is involved."""
    return "graph" in name


def takes_positions(name: str) -> bool:
    return "top left" not in name


def names_tokens(name: str) -> bool:
    """Whether queries are the last of the tokens that k holds, so that there cannot be more of them."""
    return any(word in name for word in ("documents", "global", "longformer"))


def _has_edges(name: str) -> bool:
    random = torch.Generator().manual_seed(0)
    g = Grid(1, 1, 1, 3, 3, 2, 2, torch.float64, random, torch.arange(3)[None], torch.arange(3)[None])
    return MASKS[name](g).edges is not None


WITH_EDGES = frozenset(name for name in MASKS if _has_edges(name))
"""Masks whose pairs are the edges of one graph, so that values can be tied to them."""
