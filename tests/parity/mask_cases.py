"""Masks by name: each makes the library's object, and says from the definition who may interact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.parity.grid import Grid
from unified_attn import Causal, DenseMask, Full, Graph, Mask, Padding, Where, Window


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


def _has_edges(name: str) -> bool:
    random = torch.Generator().manual_seed(0)
    g = Grid(1, 1, 1, 3, 3, 2, 2, torch.float64, random, torch.arange(3)[None], torch.arange(3)[None])
    return MASKS[name](g).edges is not None


WITH_EDGES = frozenset(name for name in MASKS if _has_edges(name))
"""Masks whose pairs are the edges of one graph, so that values can be tied to them."""
