"""Cora as the GAT authors saw it: their trained weights give their logits on our nodes, edges and features."""

import numpy as np
import torch

from graphs.datasets import planetoid
from graphs.features import row_normalized
from tests.graphs.tools import data
from unified_attn import GAT, Graph, graph_attention


def layer(h, graph, weights, number, heads):
    """`h [N, H, D]` is projected already; their bias of each score lies inside LeakyReLU."""
    source, target = (weights[f"a_{end}{number}"].reshape(heads, -1) for end in ("src", "dst"))
    edge = (weights[f"b_src{number}"] + weights[f"b_dst{number}"]).expand(graph.num_edges, heads)
    out = graph_attention(h, h, h, graph, score=GAT(source, target, edge=edge), backend="scatter")
    return out + weights[f"bias{number}"].reshape(heads, -1)


def test_the_authors_weights_give_their_logits_and_accuracy():
    folder = data("pretrained/gat_cora_petarv")
    data("planetoid/Cora")
    with np.load(folder / "gat_cora_weights.npz") as file:
        weights = {name: torch.from_numpy(value) for name, value in file.items()}
    cora = planetoid("Cora")
    loops = torch.arange(cora.num_nodes).expand(2, -1)
    graph = Graph(torch.cat([cora.edge_index, loops], dim=1), num_keys=cora.num_nodes)
    x = row_normalized(cora.x)
    hidden = torch.nn.functional.elu(layer(torch.einsum("nf,hfd->nhd", x, weights["W1"]), graph, weights, 1, 8))
    logits = layer((hidden.flatten(1) @ weights["W2"])[:, None], graph, weights, 2, 1)[:, 0]
    torch.testing.assert_close(logits, weights["logits"], atol=1e-5, rtol=1e-5)
    test = cora.splits[0].test
    assert (logits.argmax(1) == cora.y)[test].float().mean() == torch.tensor(0.844)
