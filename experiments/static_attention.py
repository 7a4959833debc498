"""What trained attention looks like: static in GAT, not in GATv2; and on the graph of Cora.

    python -m experiments.static_attention

Writes two figures and their numbers. static.png: one dictionary of DictionaryLookup through the weights of the GATv2
authors. In a head of GAT all queries rank the entries alike, since the query adds the same to every score and LeakyReLU
keeps the order; in GATv2 each finds its own. cora.png: the GAT authors' weights on Cora, around one paper and by number
of neighbours. They are all but uniform, and with exactly uniform ones the test accuracy is the same to a few nodes: it
comes from who is listened to, not from how much.

Brody et al., ICLR 2022, arXiv 2105.14491, theorem 1; Velickovic et al., ICLR 2018, arXiv 1710.10903.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from jsonargparse import auto_cli
from matplotlib import pyplot as plt
from torch import Tensor
from torch.nn.functional import elu

from experiments.attention_figures import draw_entropy, draw_heat_maps, draw_neighbourhood, entropies
from experiments.environment import environment
from experiments.lookup_models import LookupNet, authors_net
from experiments.pretrained_gat import AuthorsGAT, authors_cora, authors_file
from experiments.training.figures import STYLE
from experiments.training.job import PACKAGES, command
from graphs.dictionary_lookup import DictionaryLookup, dictionary_lookup


def static_attention(
    out: Path = Path("outputs/static_attention"), dictionaries: int = 1000, dictionary: int = 0, node: int = 644
) -> dict[str, Any]:
    """Draws attention of trained models, and counts in how many dictionaries all queries have one favourite.

    Args:
        out: Folder for static.png, cora.png and results.json.
        dictionaries: Number of dictionaries to count in.
        dictionary: The one that is drawn.
        node: The paper of Cora that is drawn with those around it.

    Returns:
        What results.json holds.
    """
    data, cora = dictionary_lookup(10), authors_cora()
    for name, value, least, size in (
        ("dictionaries", dictionaries, 1, len(data.x) + 1),
        ("dictionary", dictionary, 0, len(data.x)),
        ("node", node, 0, cora.num_nodes),
    ):
        if not least <= value < size:
            raise ValueError(f"{name} is {value}; it must lie in {least}..{size - 1}")
    nets = {model: authors_net(model) for model in ("gat-8", "gatv2")}
    out.mkdir(parents=True, exist_ok=True)
    drawn = {model: lookup_weights(net, data, dictionary) for model, net in nets.items()}
    maps = {f"GAT, head {n + 1} of 8": drawn["gat-8"][n] for n in range(3)}
    draw_heat_maps({**maps, "GATv2, one head": drawn["gatv2"][0]}, out / "static.png")
    results: dict[str, Any] = {
        "one favourite": {model: one_favourite(net, data, dictionaries) for model, net in nets.items()},
        "bits below uniform": draw_cora(node, out / "cora.png"),
        "accuracy on Cora": {"trained": cora_accuracy(), "uniform": cora_accuracy(uniform=True)},
        "environment": environment(command(), PACKAGES),
    }
    for model, share in results["one favourite"].items():
        print(f"{model:5}: in {100 * share:.1f} % of heads and dictionaries all queries attend one entry most")
    for attention, accuracy in results["accuracy on Cora"].items():
        print(f"Cora, {attention} attention: test accuracy {100 * accuracy:.1f} %")
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print(f"{out / 'static.png'}, {out / 'cora.png'}, {out / 'results.json'}")
    return results


@torch.inference_mode()
def lookup_weights(net: LookupNet, data: DictionaryLookup, number: int) -> Tensor:
    """Attention of queries over the entries of one dictionary, ``[H, k, k]``."""
    nodes = net.nodes(data.x[number : number + 1])
    _, (edges, weights) = net.layers[0](nodes, data.edge_index, return_attention_weights=True)
    table = weights.new_zeros(weights.shape[1], len(nodes), len(nodes))
    table[:, edges[1], edges[0]] = weights.t()
    return table[:, : data.size, data.size :]


def one_favourite(net: LookupNet, data: DictionaryLookup, count: int) -> float:
    """Share of heads and dictionaries in which all queries attend the same entry most."""
    favourites = torch.stack([lookup_weights(net, data, number).argmax(-1) for number in range(count)])
    return float((favourites == favourites[..., :1]).all(-1).double().mean())


@torch.inference_mode()
def draw_cora(node: int, out: Path) -> dict[str, float]:
    """Both panels of cora.png; by layer the mean over nodes of log2(neighbours) - entropy."""
    cora, net = authors_cora(), AuthorsGAT(authors_file()).eval()
    edges, graph = cora.edge_index, cora.graph()
    hidden, (_, first) = net.first(cora.x, graph, net.ones(graph), return_attention_weights=True)
    _, (_, second) = net.second(elu(hidden), graph, net.ones(graph), return_attention_weights=True)
    counts = torch.bincount(edges[1], minlength=cora.num_nodes)
    values = {
        "first layer, mean of 8 heads": entropies(edges[1], first, cora.num_nodes).mean(1),
        "second layer": entropies(edges[1], second, cora.num_nodes)[:, 0],
    }
    with mpl.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
        draw_neighbourhood(left, edges, second[:, 0], cora.y, node)
        left.set_title(f"around paper {node} of Cora, second layer; nodes by class")
        draw_entropy(right, counts, values)
        figure.savefig(out, dpi=150)
        plt.close(figure)
    return {name: float((counts.log2() - entropy).mean()) for name, entropy in values.items()}


@torch.inference_mode()
def cora_accuracy(*, uniform: bool = False) -> float:
    """On the public test nodes, with the authors' weights; uniform: all scores are made 0."""
    cora, net = authors_cora(), AuthorsGAT(authors_file()).eval()
    if uniform:
        for attention in (net.first, net.second):
            for vectors in (attention.att_src, attention.att_dst, attention.att_edge):
                vectors.zero_()
    test = cora.splits[0].test
    return float((net(cora.x, cora.graph()).argmax(1) == cora.y)[test].double().mean())


if __name__ == "__main__":
    auto_cli(static_attention, as_positional=False)
