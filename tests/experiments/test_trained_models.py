"""Weights that papers' authors trained, through our layers, and what is drawn of them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import matplotlib as mpl
import pytest
import torch

from experiments import pretrained_gat, static_attention
from experiments.attention_figures import entropies
from experiments.lookup_models import authors_net
from experiments.lookup_training import share_right
from graphs.dictionary_lookup import dictionary_lookup
from tests.graphs.tools import data


@pytest.mark.parametrize("layers", ["unified_attn", "torch_geometric"])
def test_authors_logits_and_accuracy_on_cora(layers: str) -> None:
    data("pretrained/gat_cora_petarv")
    data("planetoid/Cora")
    found = pretrained_gat.pretrained_gat(layers)
    assert found["accuracy"] == pytest.approx(0.844)
    assert found["error"] < 1e-5 < found["largest"]


def test_other_logits_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    data("pretrained/gat_cora_petarv")
    data("planetoid/Cora")
    weights = pretrained_gat.authors_file()
    weights["b_src1"] = weights["b_src1"] + 1.0  # what a layer without a place for it would leave out
    monkeypatch.setattr(pretrained_gat, "authors_file", lambda: weights)
    with pytest.raises(ArithmeticError, match="a logit differs"):
        pretrained_gat.pretrained_gat()


def test_authors_weights_look_up() -> None:
    data("pretrained/gatv2_dictionarylookup")
    lookups = dictionary_lookup(10)
    some = torch.arange(0, len(lookups.x), 32)
    assert share_right(authors_net("gatv2"), lookups, some, "unified_attn") == 1.0
    ours, theirs = (share_right(authors_net("gat-8", s), lookups, some, s) for s in ("unified_attn", "torch_geometric"))
    assert ours == pytest.approx(theirs, abs=1e-3)
    assert 0.72 < ours < 0.78  # published: 0.745


def test_entropies_in_bits() -> None:
    targets = torch.tensor([1, 1, 1, 1, 0, 3, 3])
    weights = torch.tensor([0.25, 0.25, 0.25, 0.25, 1.0, 1.0, 0.0])[:, None]
    assert entropies(targets, weights, 4)[:, 0].tolist() == pytest.approx([0, 2, 0, 0])
    skewed = entropies(torch.tensor([0, 0]), torch.tensor([[0.25], [0.75]]), 1)
    assert float(skewed) == pytest.approx(0.25 * 2 + 0.75 * math.log2(4 / 3))


def test_gat_is_static_and_gatv2_is_not(tmp_path: Path) -> None:
    for place in ("pretrained/gat_cora_petarv", "pretrained/gatv2_dictionarylookup", "planetoid/Cora"):
        data(place)
    with mpl.rc_context({"savefig.dpi": 30}):
        found = static_attention.static_attention(tmp_path, dictionaries=20)
    assert found["one favourite"] == {"gat-8": 1.0, "gatv2": 0.0}
    assert all(0 <= bits < 0.001 for bits in found["bits below uniform"].values())
    assert found["accuracy on Cora"]["trained"] == pytest.approx(0.844)
    assert abs(found["accuracy on Cora"]["uniform"] - 0.844) < 0.01
    assert json.loads((tmp_path / "results.json").read_text())["one favourite"] == found["one favourite"]
    for name in ("static.png", "cora.png"):
        assert (tmp_path / name).stat().st_size > 10_000


def test_attention_of_queries_over_entries() -> None:
    """The table of weights, beside the formula of GATv2 for one query."""
    data("pretrained/gatv2_dictionarylookup")
    lookups, net = dictionary_lookup(10), authors_net("gatv2")
    (table,) = static_attention.lookup_weights(net, lookups, 5)
    with torch.no_grad():
        nodes = net.layers[0].lin_l(net.nodes(lookups.x[5:6]))
        logits = torch.nn.functional.leaky_relu(nodes[3] + nodes[10:], 0.2) @ net.layers[0].att[0, 0]
    torch.testing.assert_close(table[3], logits.softmax(0))
    assert table.sum(1).tolist() == pytest.approx([1.0] * 10)


@pytest.mark.parametrize(
    ("options", "said"), [({"node": 2708}, "node is 2708"), ({"dictionary": -1}, "dictionary is -1")]
)
def test_what_is_not_there_is_named(options: dict[str, int], said: str, tmp_path: Path) -> None:
    data("pretrained/gat_cora_petarv")
    data("planetoid/Cora")
    with pytest.raises(ValueError, match=said):
        static_attention.static_attention(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
