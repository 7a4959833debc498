"""Scores by name: each makes the library's object, and names the oracle's formula with its parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from tests.parity.grid import Grid
from tests.parity.mask_cases import MaskCase
from unified_attn import GAT, Dot, GATv2, Score


class L1(Score):
    """A user's own score: it has no fused form."""

    def logits(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return -(q - k).abs().sum(-1)


@dataclass
class ScoreCase:
    score: Score | None
    formula: str
    numbers: dict[str, float] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # the oracle's parameter to the tensor's name


def softcap(g: Grid, m: MaskCase) -> ScoreCase:
    return ScoreCase(Dot(softcap=1.5), "dot", {"cap": 1.5})


def sink(g: Grid, m: MaskCase) -> ScoreCase:
    name, values = g.leaf("sink", g.heads)
    return ScoreCase(Dot(sink=values), "dot", names={"sink": name})


def gat(g: Grid, m: MaskCase, *, edge: bool = False) -> ScoreCase:
    (src, att_src), (dst, att_dst) = g.leaf("att_src", g.heads, g.dim), g.leaf("att_dst", g.heads, g.dim)
    names = {"att_src": src, "att_dst": dst}
    if not edge:
        return ScoreCase(GAT(att_src, att_dst), "gat", {"slope": 0.2}, names)
    name, values = g.leaf("gat edge", 6 if m.edges is None else m.edges.shape[1], g.heads)
    score = GAT(att_src, att_dst, negative_slope=0.1, edge=values)
    return ScoreCase(score, "gat", {"slope": 0.1}, {**names, "edge": name})


def gatv2(g: Grid, m: MaskCase) -> ScoreCase:
    name, att = g.leaf("att", g.heads, g.dim)
    return ScoreCase(GATv2(att), "gatv2", {"slope": 0.2}, {"att": name})


SCORES: dict[str, Callable[[Grid, MaskCase], ScoreCase]] = {
    "default": lambda g, m: ScoreCase(None, "dot"),
    "dot softcap": softcap,
    "dot sink": sink,
    "gat": gat,
    "gat edge": lambda g, m: gat(g, m, edge=True),
    "gatv2": gatv2,
    "own": lambda g, m: ScoreCase(L1(), "l1"),
}
