"""What each back end runs, in Markdown, from what it says itself: `python -m tests.parity.support` prints it."""

from __future__ import annotations

from itertools import product

import torch

from tests.parity.cases import Choice, build, possible
from unified_attn import explain
from unified_attn.backends import BACKENDS

MASKS = {
    "`Full`, `Causal`": ["full", "causal", "causal top left"],
    "`Window`": ["window 2 1", "causal window 3"],
    "`Documents`, `Longformer`, `BigBird`, `Dilated`, `GlobalTokens`": [
        *("documents [B,N]", "longformer", "bigbird", "dilated", "global"),
    ],
    "`Padding`, `Where`, tables": ["padding queries", "where", "dense [B,H,Nq,Nk]"],
    "`&`, <code>&#124;</code>, `~` of rules": ["causal & padding", "window | causal", "~(window | padding)"],
    "`Graph`": ["graph", "graph.keep [E,H]"],
    "`Graph & rule`": ["graph & causal", "graph & padding"],
    "<code>Graph &#124; rule</code>, `~Graph`": ["graph | causal", "~graph"],
}
BIASES = {
    "`ALiBi`": ["alibi"],
    "`RoPE` and its scalings": ["rope half", "rope interleaved", "rope part linear", "rope dynamic"],
    "`T5Bias`, `RelativeBias`": ["t5", "relative + rope yarn"],
    "`NodeTypes`, `ShortestPath`, `PathFeatures`, `LogPrior`": [
        *("node types + rope ntk", "shortest path", "path features", "log prior"),
    ],
    "`RelativeVectors`": ["relative vectors"],
    "`DenseBias`": ["dense [B,H,Nq,Nk]", "dense hidden"],
    "`Additive`": ["additive"],
    "`EdgeBias`, own edges": ["own edges [E,H]"],
    "`EdgeBias`, `EdgeFeatures`, `EdgeTypes`": ["edge [E,H]", "edge features + edge types"],
    "`PairVectors`, `EdgeProjection`": ["pair both", "projection both"],
}
SCORES = {
    "`Dot`": ["default"],
    "sink": ["dot sink"],
    "softcap": ["dot softcap"],
    "`GAT`, `GATv2`": ["gat", "gatv2"],
    "one's own": ["own"],
}


def runs(backend: str, choice: Choice) -> str:
    """How a back end fares: ``yes``, ``forward`` (where no gradient is asked for) or ``-``."""
    case = build(choice)
    if not explain(**case.inputs, **case.keywords).reasons[backend]:
        return "yes"
    with torch.no_grad():
        return "-" if explain(**case.inputs, **case.keywords).reasons[backend] else "forward"


def cell(backend: str, masks: list[str], biases: list[str], scores: list[str], dropout: float = 0.0) -> str:
    """The worst of the combinations that are defined; under masks that the back end runs."""
    found = {
        runs(backend, Choice(mask, bias, score, dropout=dropout))
        for mask, bias, score in product(masks, biases, scores)
        if possible("mask", mask, "bias", bias)
    }
    return next((state for state in ("-", "forward", "yes") if state in found), "-")


def section(title: str, columns: list[str], rows: dict[str, list[str]]) -> list[str]:
    """A table in Markdown."""
    lines = [f"| {' | '.join([title, *columns])} |", f"| {' | '.join(['---'] * (len(columns) + 1))} |"]
    return lines + [f"| {' | '.join([f'`{backend}`', *cells])} |" for backend, cells in rows.items()]


def table() -> str:
    """Back end x mask; and, under the masks that it runs, x bias, x score and dropout."""
    masks, others = {}, {}
    for backend in BACKENDS:
        masks[backend] = [cell(backend, names, ["none"], ["default"]) for names in MASKS.values()]
        own = [name for names in MASKS.values() for name in names if runs(backend, Choice(name)) != "-"]
        others[backend] = [cell(backend, own, names, ["default"]) for names in BIASES.values()]
        others[backend] += [cell(backend, own, ["none"], names) for names in SCORES.values()]
        others[backend] += [cell(backend, own, ["none"], ["default"], dropout=0.5)]
    return "\n".join(
        [
            *section("mask", list(MASKS), masks),
            "",
            *section("under these masks", [*BIASES, *SCORES, "dropout"], others),
        ]
    )


if __name__ == "__main__":
    print(table())
