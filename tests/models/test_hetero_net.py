"""HeteroNet beside torch-geometric's layers, on a task that only the right relation solves, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu

from unified_attn.models import HeteroNet, HeteroNetConfig
from unified_attn.nn import EdgePrior, HeadScale

TYPES = ["user", "item"]
BUYS, SEES, SOLD = ("user", "buys", "item"), ("user", "sees", "item"), ("item", "is bought by", "user")
SMALL = HeteroNetConfig(
    in_channels={"user": 3, "item": 2},
    out_channels=2,
    metadata=(TYPES, [BUYS, SEES, SOLD]),
    target="item",
    channels=8,
    num_heads=2,
)


def inputs() -> tuple[dict[str, Tensor], dict[tuple[str, str, str], Tensor]]:
    generator = torch.Generator().manual_seed(0)
    x = {"user": torch.randn(6, 3, generator=generator), "item": torch.randn(5, 2, generator=generator)}
    users, items = torch.randint(6, (3, 12), generator=generator), torch.randint(5, (3, 12), generator=generator)
    edges = {BUYS: torch.stack([users[0], items[0]]), SEES: torch.stack([users[1], items[1]])}
    return x, {**edges, SOLD: torch.stack([items[2], users[2]])}


def test_hgt_as_torch_geometric_composes_it() -> None:
    geometric = pytest.importorskip("torch_geometric.nn")
    model = HeteroNet(replace(SMALL, prior=lambda relation: HeadScale(2)))
    assert [layer.relations for layer in model.layers] == [[BUYS, SEES, SOLD], [BUYS, SEES]]
    x, edges = inputs()
    h = {t: gelu(model.encoders[f"<{t}>"](rows)) for t, rows in x.items()}
    for layer in model.layers:
        peer = geometric.HGTConv(8, 8, (TYPES, layer.relations), 2)
        with torch.no_grad():
            for t in TYPES:
                ends = zip(*(getattr(peer.kqv_lin.lins[t], name).chunk(3) for name in ("weight", "bias")), strict=True)
                for ours, (weight, bias) in zip((layer.key, layer.query, layer.value), ends, strict=True):
                    if f"<{t}>" in ours:
                        weight.copy_(ours[f"<{t}>"].weight)
                        bias.copy_(ours[f"<{t}>"].bias)
                if f"<{t}>" in layer.out:
                    peer.out_lin.lins[t].load_state_dict(layer.out[f"<{t}>"].state_dict())
                    peer.skip[t].copy_(layer.gate[f"<{t}>"])
            for theirs, ours in ((peer.k_rel, layer.key_map), (peer.v_rel, layer.value_map)):
                maps = torch.stack([ours[f"<{'/'.join(r)}>"] for r in layer.relations], dim=1)
                theirs.weight.copy_(maps.flatten(0, 1))
        h = {**h, **peer(h, {r: edges[r] for r in layer.relations})}
    assert torch.allclose(model(x, edges), model.head(h["item"]), atol=1e-5)


def test_learns_what_one_relation_alone_tells() -> None:
    # The class of an item is that of those who buy it; who sees it says nothing.
    generator = torch.Generator().manual_seed(1)
    group = torch.arange(40) % 2
    x = {"user": nn.functional.one_hot(group, 3).float(), "item": torch.ones(30, 2)}
    label = torch.arange(30) % 2
    buyer = torch.cat([torch.randint(20, (30,), generator=generator) * 2 + label for _ in range(3)])
    edges = {
        BUYS: torch.stack([buyer, torch.arange(30).repeat(3)]),
        SEES: torch.stack([torch.randint(40, (90,), generator=generator), torch.arange(30).repeat(3)]),
    }
    torch.manual_seed(0)
    model = HeteroNet(replace(SMALL, num_layers=1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        loss = cross_entropy(model(x, edges), label)
        loss.backward()
        optimizer.step()
    assert loss < 0.1
    assert all(weight.grad is not None for weight in model.parameters())


def test_reads_edge_features_and_open_sizes() -> None:
    x, edges = inputs()
    config = replace(SMALL, in_channels=-1, prior=lambda r: EdgePrior(3, 2) if r == BUYS else 0.0)
    model = HeteroNet(config)
    features = {BUYS: torch.randn(12, 3)}
    base = model(x, edges, features)
    assert base.shape == (5, 2)
    nn.init.normal_(model.layers[1].priors["<user/buys/item>"].features.weight)
    assert not torch.equal(base, model(x, edges, features))
    with pytest.raises(ValueError, match="edge_attr_dict lacks"):
        model(x, edges)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"target": "shop"}, "target is 'shop'"),
        ({"in_channels": {"user": 3}}, "in_channels has the node types"),
        ({"channels": 9}, "no multiple of num_heads"),
        ({"num_layers": 0}, "num_layers is 0"),
        ({"softmax": "all"}, "softmax is 'all'"),
        ({"prior": 1.0}, "prior is 1.0"),
        ({"dropout": 2.0}, "dropout is 2.0"),
        ({"metadata": (TYPES, [("user", "buys", "shop")])}, "joins a node type"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(values: dict, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        replace(SMALL, **values)


def test_a_call_that_does_not_fit_is_refused() -> None:
    x, edges = inputs()
    model = HeteroNet(SMALL)
    with pytest.raises(ValueError, match=r"lacks \['item'\] and has unknown \['shop'\]"):
        model({"user": x["user"], "shop": x["item"]}, edges)
    with pytest.raises(ValueError, match="no relation"):
        model(x, {("user", "likes", "item"): edges[BUYS]})
    with pytest.raises(TypeError, match="HeteroNetConfig"):
        HeteroNet({"target": "item"})
