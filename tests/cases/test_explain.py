"""Which back end runs, and why: a silent fall-back to a hungry path must be impossible."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from tests.cases.tools import complete, edges, inputs
from unified_attn import (
    GAT,
    ALiBi,
    Causal,
    Documents,
    Dot,
    EdgeBias,
    Full,
    GATv2,
    Graph,
    NoBias,
    Padding,
    RoPE,
    UnsupportedError,
    Where,
    Window,
    attention,
    explain,
)

MASKS = [
    Full(),
    Causal(),
    Window(1, 0),
    Window(3, 3),
    Padding(torch.ones(1, 12, dtype=torch.bool)),
    Where(lambda b, h, i, j: i == j),
    Graph(edges((0, 1), (2, 1))),
    complete(12, 12),
    Graph(edges((0, 1), (2, 1))) & Causal(),
    Graph(edges((0, 1))) | Window(1, 1),
    ~Graph(edges((0, 1))),
]
BIASES = [NoBias(), ALiBi(4), RoPE(4) + ALiBi(4)]
SCORES = [
    Dot(),
    Dot(softcap=3.0),
    Dot(sink=torch.zeros(4)),
    GAT(torch.ones(4, 4), torch.ones(4, 4)),
    GATv2(torch.ones(4, 4)),
]


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("kv_heads", [pytest.param(4, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
def test_explain_tells_the_truth(mask: Any, kv_heads: int, dropout_p: float) -> None:
    """A math path was chosen with no word: 4 GiB instead of 0.03: pytorch/pytorch #154363, transformers #45636."""
    q, k, v = (x.detach().float() for x in inputs(12, heads=4, kv_heads=kv_heads))
    for bias, score in itertools.product(BIASES, SCORES):
        options = {"mask": mask, "bias": bias, "score": score, "dropout_p": dropout_p}
        told = explain(q, k, v, **options)
        assert not told.reasons[told.backend]
        assert list(told.reasons) == ["sdpa", "tiled", "csr", "scatter", "flex", "reference"]
        for name, reasons in told.reasons.items():
            if reasons:
                assert all(isinstance(reason, str) and reason for reason in reasons)
                with pytest.raises(UnsupportedError) as error:
                    attention(q, k, v, backend=name, **options)
                assert error.value.reasons == reasons
            torch.manual_seed(0)
            if not reasons:
                assert attention(q, k, v, backend=name, **options).shape == q.shape
        torch.manual_seed(0)
        chosen = attention(q, k, v, **options)
        torch.manual_seed(0)
        assert torch.equal(chosen, attention(q, k, v, backend=told.backend, **options))


def test_the_rule_of_choice() -> None:
    """The same: the rule is documented, and says itself why."""
    q, k, v = inputs(12)
    for mask, backend, words in (
        (None, "sdpa", "the mask lists no pairs"),
        (Causal(), "sdpa", "the mask lists no pairs"),
        (Window(1, 0), "csr", "the mask lists at most 33% of all pairs"),
        (Window(3, 3), "sdpa", "the mask lists more than 33% of all pairs"),
        (complete(12, 12), "csr", "the mask holds a graph"),
        (complete(12, 12) & Causal(), "csr", "the mask holds a graph"),
    ):
        told = explain(q, k, v, mask=mask)
        assert told.backend == backend
        assert words in told.rule
    long = torch.zeros(1, 1, 1, 4).expand(1, 2, 4096, 4)
    for mask, bias, backend, words in (
        (Window.causal(300), None, "tiled", "one run, of 64 or more on average"),
        (Window.causal(50), None, "csr", "the mask lists at most 33% of all pairs,"),
        (Documents(torch.arange(4096) // 100), None, "tiled", "one run, of 64 or more on average"),
        (Documents(torch.arange(4096) % 50), None, "csr", "the mask lists at most 33% of all pairs,"),
        (Causal(), None, "sdpa", "the mask lists no pairs"),  # a flag: no table
        (Window.causal(3000), None, "tiled", "one run, of 64 or more on average"),
        (Causal(), ALiBi(2), "tiled", "one run, of 64 or more on average"),
        (None, ALiBi(2), "tiled", "a table of mask and bias would hold more than 16777216 numbers"),
        (Padding(torch.ones(1, 4096, dtype=torch.bool)), None, "tiled", "one run, of 64 or more on average"),
        (Padding(torch.arange(4096)[None] % 2 == 0), None, "sdpa", "the mask lists no pairs"),
    ):
        told = explain(long, long, long, mask=mask, bias=bias)
        assert told.backend == backend
        assert words in told.rule
    assert explain(long, long, long, mask=Causal(), dropout_p=0.1).backend == "tiled"
    assert explain(long, long, long, mask=Causal(), score=Dot(softcap=2.0)).backend == "reference"


def test_the_table_has_a_line_a_back_end() -> None:
    """The same, as it prints."""
    q, k, v = inputs(12)
    lines = str(explain(q, k, v, mask=Causal())).splitlines()
    assert lines[0] == "sdpa runs: the mask lists no pairs, so the order is sdpa, tiled, reference"
    assert [line.split()[0] for line in lines[1:]] == ["sdpa", "tiled", "csr", "scatter", "flex", "reference"]
    assert lines[1].split()[1] == "chosen"
    assert "no: the mask Causal() names no list of pairs" in lines[3]
    assert "no: gradients are asked for" in lines[5]
    assert lines[6].split()[1:] == ["could", "run", "it"]


def test_explain_computes_nothing() -> None:
    """The same: asking costs nothing, not even on inputs too large to run."""
    q = torch.zeros(1, 1, 1, 4).expand(1, 1, 300_000, 4)
    assert explain(q, q, q, mask=Causal()).backend == "sdpa"
    assert explain(q, q, q, mask=Window(31, 0)).backend == "csr"


def test_edge_values_name_the_graph_they_lack() -> None:
    """Edge features without a graph were ignored: pyg-team/pytorch_geometric #9940."""
    q, k, v = inputs(12)
    with pytest.raises(ValueError, match="tied to the edges of one Graph"):
        explain(q, k, v, mask=Causal(), bias=EdgeBias(torch.ones(3)))
