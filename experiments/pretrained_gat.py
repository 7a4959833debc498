"""Cora by the weights that the authors of GAT trained, through our layers.

    python -m experiments.pretrained_gat

The test accuracy is theirs, 84.4 %, and so are the logits. Their layer has biases that ours has not: a number a head
and end, added to the score before LeakyReLU. Ours has a place for a number an edge and head there, <a_edge, W_e e>: a
feature that is 1 on every edge makes it the constant b_src + b_dst.

Velickovic et al., Graph Attention Networks, ICLR 2018, arXiv 1710.10903; weights of github.com/PetarV-/GAT.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from jsonargparse import auto_cli
from torch import Tensor, nn
from torch.nn.functional import elu

from experiments.layers import Source, layer
from graphs.datasets import planetoid
from graphs.datasets.files import require
from graphs.features import row_normalized
from graphs.nodes import NodeData
from unified_attn import Graph


class AuthorsGAT(nn.Module):
    """Two layers, eight heads of eight, then one of seven classes.

    Args:
        weights: Of both layers, by the names of the file.
        source: Whose layers.
    """

    def __init__(self, weights: dict[str, Tensor], source: Source = "unified_attn") -> None:
        super().__init__()
        # A file keeps a matrix a head, [8, 1433, 8]; the single head of the second layer has none of that.
        self.first = loaded(weights["W1"].transpose(1, 2), weights, 1, source)
        self.second = loaded(weights["W2"].t()[None], weights, 2, source)

    def forward(self, x: Tensor, edges: Tensor | Graph) -> Tensor:
        return self.second(elu(self.first(x, edges, self.ones(edges))), edges, self.ones(edges))

    @staticmethod
    def ones(edges: Tensor | Graph) -> Tensor:
        """The feature of every edge, ``[E, 1]``."""
        return torch.ones(edges.num_edges if isinstance(edges, Graph) else edges.shape[1], 1)


def loaded(matrix: Tensor, weights: dict[str, Tensor], number: int, source: Source) -> nn.Module:
    """A layer with a matrix ``[H, C, F]`` and what else the file has of that number."""
    heads, channels, features = matrix.shape
    made = layer(source, "gat", features, channels, heads, add_self_loops=False, edge_dim=1)
    constant = weights[f"b_src{number}"] + weights[f"b_dst{number}"]
    first = torch.arange(channels) == 0  # W_e e is the first unit vector of each head
    made.load_state_dict(
        {
            "lin.weight": matrix.flatten(0, 1),
            "att_src": weights[f"a_src{number}"].reshape(1, heads, channels),
            "att_dst": weights[f"a_dst{number}"].reshape(1, heads, channels),
            "lin_edge.weight": first.float().repeat(heads)[:, None],
            "att_edge": constant.reshape(1, heads, 1) * first.float(),
            "bias": weights[f"bias{number}"].flatten(),
        }
    )
    return made


def authors_file() -> dict[str, Tensor]:
    """Weights, and the logits ``[2708, 7]`` that the authors' program gives.

    Raises:
        FileNotFoundError: If the data folder has them not.
    """
    folder = require("pretrained/gat_cora_petarv", ["gat_cora_weights.npz"], "https://github.com/PetarV-/GAT (as npz)")
    with np.load(folder / "gat_cora_weights.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def authors_cora() -> NodeData:
    """Cora as the authors' program sees it: bags of words of sum 1, and a loop at every node."""
    cora = planetoid("Cora")
    loops = torch.arange(cora.num_nodes).expand(2, -1)
    return dataclasses.replace(cora, x=row_normalized(cora.x), edge_index=torch.cat([cora.edge_index, loops], dim=1))


def pretrained_gat(layers: Source = "unified_attn", tolerance: float = 1e-4) -> dict[str, float]:
    """Compares our logits with the authors'.

    Args:
        layers: Whose layers run the weights: ours, or torch-geometric's.
        tolerance: Largest difference of a logit that passes.

    Returns:
        `accuracy` on the public test nodes, `error`: the largest difference of a logit, `largest`: the largest logit.

    Raises:
        ArithmeticError: If a logit is further off.
    """
    weights, cora = authors_file(), authors_cora()
    net = AuthorsGAT(weights, layers).eval()
    with torch.inference_mode():
        logits = net(cora.x, cora.graph() if layers == "unified_attn" else cora.edge_index)
    test = cora.splits[0].test
    accuracy = float((logits.argmax(1) == cora.y)[test].double().mean())
    error, largest = float((logits - weights["logits"]).abs().max()), float(weights["logits"].abs().max())
    print(f"test accuracy {100 * accuracy:.2f} %, published 84.4 % by these weights")
    print(f"logits: largest difference {error:.1e}, largest value {largest:.2f}")
    if error > tolerance:
        raise ArithmeticError(f"a logit differs by {error:.3g}, more than {tolerance:g}")
    return {"accuracy": accuracy, "error": error, "largest": largest}


if __name__ == "__main__":
    auto_cli(pretrained_gat, as_positional=False)
