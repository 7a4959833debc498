"""Attention drawn: heat maps side by side, edges of a graph by weight, entropy by degree."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import networkx
import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from torch import Tensor

from experiments.training.figures import STYLE


def draw_heat_maps(maps: dict[str, Tensor], out: Path) -> None:
    """Weights of queries (rows) over entries (columns), ``[k, k]`` by title; a dot marks each query's favourite."""
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, len(maps), figsize=(2.5 * len(maps) + 0.6, 2.9), layout="constrained", squeeze=False
        )
        for panel, (title, weights) in zip(axes[0], maps.items(), strict=True):
            image = panel.imshow(weights.numpy(), vmin=0, vmax=1, cmap="Blues")
            favourites = weights.argmax(1).tolist()
            panel.plot(favourites, range(len(weights)), "o", color="tab:orange", markersize=4)
            panel.set(title=title, xlabel="key of the entry", xticks=[], yticks=[])
            panel.spines[["top", "right"]].set_visible(True)
        axes[0][0].set_ylabel("key asked for")
        figure.colorbar(image, ax=axes[0].tolist(), label="attention", fraction=0.05, shrink=0.75)
        figure.savefig(out, dpi=150)
        plt.close(figure)


def draw_neighbourhood(panel: Axes, edges: Tensor, weights: Tensor, classes: Tensor, centre: int) -> None:
    """The nodes up to two edges from one, and their edges: width is the weight, colour how it compares with uniform.

    Args:
        panel: Where.
        edges: ``[2, E]``.
        weights: ``[E]``, of the targets.
        classes: Of all nodes, shown as colours.
        centre: Drawn larger.
    """
    ratios = weights * edges[1].bincount()[edges[1]]
    graph = networkx.DiGraph()
    for source, target, weight, ratio in zip(*edges.tolist(), weights.tolist(), ratios.tolist(), strict=True):
        if source != target:
            graph.add_edge(source, target, weight=weight, ratio=ratio)
    near = networkx.ego_graph(graph, centre, radius=2, undirected=True)
    places = networkx.kamada_kawai_layout(near.to_undirected(), weight=None)
    drawn = sorted(near.edges(data=True), key=lambda edge: edge[2]["weight"])
    farthest = max(abs(values["ratio"] - 1) for *_, values in drawn)
    bounds = {"edge_vmin": 1 - farthest, "edge_vmax": 1 + farthest}
    networkx.draw_networkx_edges(
        near,
        places,
        edgelist=[(source, target) for source, target, _ in drawn],
        width=[0.5 + 5 * values["weight"] for *_, values in drawn],
        edge_color=[values["ratio"] for *_, values in drawn],
        edge_cmap=mpl.colormaps["coolwarm"],
        **bounds,
        arrowsize=8,
        node_size=90,
        connectionstyle="arc3,rad=0.15",
        ax=panel,
    )
    colors = [mpl.color_sequences["Dark2"][classes[node]] for node in near]
    sizes = [220 if node == centre else 90 for node in near]
    networkx.draw_networkx_nodes(near, places, node_color=colors, edgecolors="white", node_size=sizes, ax=panel)
    scale = mpl.cm.ScalarMappable(mpl.colors.Normalize(*bounds.values()), "coolwarm")
    panel.figure.colorbar(scale, ax=panel, label="weight / uniform weight", shrink=0.6)
    panel.set_axis_off()


def entropies(targets: Tensor, weights: Tensor, num_nodes: int) -> Tensor:
    """Entropy in bits of each node's weights, a head each: ``[N, H]`` of ``[E, H]``."""
    terms = -torch.special.xlogy(weights, weights) / np.log(2)
    return terms.new_zeros(num_nodes, weights.shape[1]).index_add(0, targets, terms)


def draw_entropy(panel: Axes, counts: Tensor, values: dict[str, Tensor]) -> None:
    """Median entropy by number of neighbours, with the middle half of the nodes; dashed: all weights alike.

    Args:
        panel: Where.
        counts: Neighbours of each node, ``[N]``.
        values: Entropy of each node, ``[N]`` by title.
    """
    sizes = [size for size in counts.unique().tolist() if size > 1 and int((counts == size).sum()) >= 10]
    styles = zip(mpl.color_sequences["tab10"], (7, 3.5), strict=False)  # one line may lie on another
    for (color, width), (title, entropy) in zip(styles, values.items(), strict=False):
        quartiles = torch.tensor([0.25, 0.5, 0.75], dtype=entropy.dtype)
        spread = np.array([entropy[counts == size].quantile(quartiles).tolist() for size in sizes])
        panel.fill_between(sizes, spread[:, 0], spread[:, 2], color=color, alpha=0.25, linewidth=0)
        panel.plot(sizes, spread[:, 1], color=color, linewidth=width, label=title)
    panel.plot(sizes, np.log2(sizes), "--", color="black", linewidth=1, label="uniform: log2(neighbours)")
    panel.set(xlabel="neighbours, itself included", ylabel="entropy of attention, bits", xlim=(1.5, None))
    panel.legend(frameon=False)
