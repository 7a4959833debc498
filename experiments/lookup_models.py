"""The model of DictionaryLookup, and its authors' trained weights.

Brody et al., How Attentive are Graph Attention Networks?, ICLR 2022, arXiv 2105.14491, section 4.1.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from experiments.layers import Source, layer
from graphs.datasets.files import require
from unified_attn import Graph

Model = Literal["gat", "gat-8", "gatv2", "dot"]
WIDTH = 128
AUTHORS = {"gat-8": "gat_128_s10.npz", "gatv2": "gatv2_128_s10.npz"}
"""Files of the authors' weights for 10 keys, by model."""


class LookupNet(nn.Module):
    """Codes ``[G, 2k, 2]`` to logits of the queries' values, ``[G, k, k]``: embeddings, one layer, one linear map.

    Args:
        size: k.
        model: `gat`, `gatv2` and `dot` have one head, `gat-8` eight.
        source: Whose layer.
        dropout: Of what the layer gives. Without it, the map behind learns which values stood beside each other. The
            authors' program drops outside of training too; this one does not.
    """

    def __init__(self, size: int, model: Model, source: Source, dropout: float = 0.5) -> None:
        super().__init__()
        self.size = size
        self.layer0_keys, self.layer0_values = (nn.Embedding(size + 1, WIDTH) for _ in range(2))
        heads = 8 if model == "gat-8" else 1
        # As the authors' program has them: GAT with loops and a bias, GATv2 without, its two matrices one.
        if model == "gatv2":
            made = layer(source, "gatv2", WIDTH, WIDTH, 1, add_self_loops=False, share_weights=True, bias=False)
        elif model == "dot":
            made = layer(source, "transformer", WIDTH, WIDTH, 1, root_weight=False, bias=False)
        else:
            made = layer(source, "gat", WIDTH, WIDTH // heads, heads)
        self.layers = nn.ModuleList([made])
        self.dropout = nn.Dropout(dropout)
        self.out_layer = nn.Linear(WIDTH, size, bias=False)

    def forward(self, x: Tensor, edges: Graph | Tensor) -> Tensor:
        heard = self.dropout(self.layers[0](self.nodes(x), edges))
        return self.out_layer(heard).unflatten(0, x.shape[:2])[:, : self.size]

    def nodes(self, x: Tensor) -> Tensor:
        """Rows of the nodes of all graphs, ``[G * 2k, WIDTH]``."""
        return (self.layer0_keys(x[..., 0]) + self.layer0_values(x[..., 1])).relu().flatten(0, 1)


def authors_net(model: Literal["gat-8", "gatv2"], source: Source = "unified_attn") -> LookupNet:
    """The authors' trained model for 10 keys.

    Raises:
        FileNotFoundError: If the data folder has no such weights.
    """
    place, file = "pretrained/gatv2_dictionarylookup", AUTHORS[model]
    folder = require(place, [file], "https://github.com/tech-srl/how_attentive_are_gats (its weights, as npz)")
    net = LookupNet(10, model, source).eval()
    with np.load(folder / file) as arrays:
        weights = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    net.load_state_dict(renamed(weights, net))
    return net


def renamed(weights: dict[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """Their GAT keeps one matrix under two names, where a layer over one node set has one name."""
    known = net.state_dict()
    twin = "layers.0.lin_dst.weight"
    if twin not in weights or twin in known:
        return weights
    if not torch.equal(weights[twin], weights["layers.0.lin_src.weight"]):
        raise ValueError("the file's lin_src and lin_dst differ, but the layer has one matrix")
    own = "layers.0.lin.weight" if "layers.0.lin.weight" in known else "layers.0.lin_src.weight"
    rest = {name: w for name, w in weights.items() if name not in (twin, "layers.0.lin_src.weight")}
    return rest | {own: weights[twin]}
