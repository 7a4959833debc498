"""Support is held exactly: it neither shrinks nor grows unnoticed."""

import difflib
import re

import pytest
import torch

from tests.parity import golden
from tests.parity.cases import Choice, build
from unified_attn import explain


@pytest.fixture(scope="module")
def text() -> str:
    return golden.table()


def test_support_is_what_it_was(text: str) -> None:
    was = golden.FILE.read_text()
    diff = "\n".join(difflib.unified_diff(was.splitlines(), text.splitlines(), "golden.txt", "now", lineterm="", n=1))
    assert not diff, f"support changed; if that is meant, run `python -m tests.parity.golden --write`\n{diff}"


def cells(text: str) -> dict[tuple[str, str, str, str], str]:
    """(back end, mask, bias, score) to its character, read back from the table."""
    biases = re.findall(r"^  [a-zA-Z]  (.+)$", text, re.MULTILINE)
    found, backend, scores = {}, "", []
    for line in text.splitlines():
        if start := re.match(rf"({'|'.join(golden.NAMES)}) with (.+)$", line):
            backend, scores = start[1], start[2].split(", ")
        elif row := re.match(r"  (\S.*?) +([+.x~]+)$", line):
            for bias, character in zip(biases, row[2], strict=True):
                found |= {(backend, row[1], bias, score): character for score in scores}
    return found


GRAPHS = (
    "graph",
    "graph sized",
    "graph & causal",
    "graph & window",
    "graph & padding",
    "graph & where",
    "graph & longformer",
    "graph.keep [E,H]",
)
LISTING = (
    "window 2 1",
    "causal window 3",
    "documents",
    "documents [B,N]",
    "longformer",
    "bigbird",
    "dilated",
    "global",
)
ANYWHERE = ("none", "alibi", "t5", "rope half", "rope interleaved", "relative vectors", "own edges [E,H]")
ON_EDGES = ("edge [E]", "edge [E,H]", "edge features + edge types", "pair both", "projection both", "projection key")
RULES = (
    *("full", "causal", "causal top left", "window 2 1", "window - 1", "causal window 3", "padding", "padding queries"),
    *("where", "bool [Nq,Nk]", "dense [B,H,Nq,Nk]", "causal & padding", "window | causal", "~causal", "documents"),
    *("documents unsorted & causal", "longformer", "bigbird", "dilated", "global [B,N]"),
)
ADDITIVE = (
    *("none", "alibi", "t5", "rope half", "relative + rope yarn", "dense [B,H,Nq,Nk]", "dense hidden", "additive"),
    *("own edges [E,H]", "node types + rope ntk", "shortest path", "path features", "log prior"),
)
PROMISED = [
    *(("csr", GRAPHS, (*ANYWHERE, *ON_EDGES), score) for score in ("default", "gat", "gatv2")),
    # a list without edges of its own ties no values to them
    *(("csr", LISTING, ANYWHERE, score) for score in ("default", "gat", "gatv2")),
    *((backend, RULES, ADDITIVE, "default") for backend in ("sdpa", "tiled", "flex")),
    ("flex", RULES, ADDITIVE, "dot softcap"),
]


@pytest.mark.parametrize(("backend", "masks", "biases", "score"), PROMISED)
def test_promises(text: str, backend: str, masks: tuple[str, ...], biases: tuple[str, ...], score: str) -> None:
    table = cells(text)
    assert [(m, b) for m in masks for b in biases if table[backend, m, b, score] != "+"] == []


@pytest.mark.parametrize("mask", ["causal", "window 2 1", "documents", "graph & window"])
def test_dropout_is_declined_by_what_has_none_and_by_nothing_else(mask: str) -> None:
    def reasons(dropout: float) -> dict[str, tuple[str, ...]]:
        case = build(Choice(mask, dropout=dropout))
        with torch.no_grad():
            return explain(**case.inputs, **case.keywords).reasons

    without, with_dropout = reasons(0.0), reasons(0.3)
    for backend, found in with_dropout.items():
        added = [reason for reason in found if reason not in without[backend]]
        assert ["dropout" in reason for reason in added] == [True] * (backend in ("sdpa", "flex")), backend


def test_reference_runs_everything_that_is_defined(text: str) -> None:
    assert {state for (backend, *_), state in cells(text).items() if backend == "reference"} == {"+", "x"}


def test_scatter_runs_every_graph_case(text: str) -> None:
    table = cells(text)
    of_graphs = {state for (backend, mask, *_), state in table.items() if backend == "scatter" and mask in GRAPHS}
    assert of_graphs == {"+"}


def test_undefined_is_the_same_for_all_and_support_depends_on_nothing_else(text: str) -> None:
    table = cells(text)
    assert "~" not in table.values()
    for (backend, *rest), state in table.items():
        assert (state == "x") == (table["reference", *rest] == "x"), (backend, rest)
