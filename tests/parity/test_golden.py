"""Support is held exactly: it neither shrinks nor grows unnoticed."""

import difflib
import re

import pytest

from tests.parity import golden
from tests.parity.cases import BACKENDS


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
        if start := re.match(rf"({'|'.join(BACKENDS)}) with (.+)$", line):
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
    "graph.keep [E,H]",
)
PROMISED = {
    # under a graph
    **dict.fromkeys(GRAPHS, ("none", "edge [E]", "edge [E,H]", "alibi", "rope half", "rope interleaved", "pair both")),
    # a window has no edges of its own to tie values to
    **dict.fromkeys(("window 2 1", "causal window 3"), ("none", "own edges [E,H]", "alibi", "rope half")),
}


@pytest.mark.parametrize("score", ["default", "gat", "gatv2"])
@pytest.mark.parametrize("mask", PROMISED)
def test_promises_of_csr(text: str, mask: str, score: str) -> None:
    table = cells(text)
    assert {bias: table["csr", mask, bias, score] for bias in PROMISED[mask]} == dict.fromkeys(PROMISED[mask], "+")


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
