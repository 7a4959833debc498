"""The pictures: learning curves, heads, accuracies, and digits with the attention they pay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import networkx
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.offsetbox import AnnotationBbox, OffsetImage

DPI = 110
BLUE, ORANGE, GREEN, GREY = "#2f6db3", "#d9822b", "#3f9b5f", "#8a8f98"


def save(figure: plt.Figure, path: Path) -> Path:
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
    return path


def text_curves(
    path: Path,
    train: Sequence[float],
    validation: Sequence[tuple[int, float]],
    lines: Mapping[str, float],
    test: Mapping[str, float],
    characters_a_step: int,
) -> Path:
    """Left: bits per character while training, on the validation text. Right: on the test text."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6), width_ratios=[1.7, 1], layout="constrained")
    seen = (1 + np.arange(len(train))) * characters_a_step / 1e3
    smooth = max(1, len(train) // 50)
    mean = np.convolve(train, np.ones(smooth) / smooth, mode="valid")
    left.plot(seen, train, color=BLUE, alpha=0.25, linewidth=0.8)
    left.plot(seen[smooth - 1 :], mean, color=BLUE, label=f"decoder, training (mean of {smooth} steps)")
    steps, bits = zip(*validation, strict=True)
    at = np.array(steps) * characters_a_step / 1e3
    left.plot(at, bits, color=ORANGE, marker="o", label="decoder, validation")
    for (name, value), color in zip(lines.items(), (GREEN, GREY), strict=True):
        left.axhline(value, color=color, linestyle="--", linewidth=1.4)
        left.annotate(
            f"{name}: {value:.2f}", (seen[-1], value), (0, 3), textcoords="offset points", ha="right", color=color
        )
    left.set(xlabel="characters trained on (thousands)", ylabel="bits per character", xlim=(0, None))
    left.set_ylim(min(min(bits), *lines.values()) - 0.35, 5)
    left.set_title("A decoder learns the standard library's source\n(dashed: the same validation text)")
    left.legend(frameon=False)
    left.grid(alpha=0.25)

    names = sorted(test, key=test.get)
    colors = [ORANGE if "decoder" in name else GREEN if "gram" in name else GREY for name in names]
    bars = right.barh(names, [test[name] for name in names], color=colors)
    right.bar_label(bars, fmt="%.3f", padding=4)
    right.invert_yaxis()
    right.set(xlabel="bits per character (lower is better)", xlim=(0, 1.2 * max(test.values())))
    right.set_title("Test text: other packages")
    right.spines[["top", "right"]].set_visible(False)
    return save(figure, path)


def heads(path: Path, weights: np.ndarray, text: str, bias: str, chosen: Sequence[tuple[int, int, str]]) -> Path:
    """Heat maps of some heads, weights ``[layers, H, N, N]``; each chosen one is (layer, head, what for)."""
    shown = [{"\n": "⏎", " ": "·"}.get(c, c) for c in text]
    figure, axes = plt.subplots(2, 3, figsize=(16.5, 11.6), layout="constrained")
    for axis, (layer, head, why) in zip(axes.flat, chosen, strict=True):
        # A square root: most weights are small, and a linear scale would show the diagonal alone.
        picture = axis.imshow(np.sqrt(weights[layer, head]), cmap="magma", vmin=0, vmax=1)
        axis.set_xticks(range(len(text)), shown, fontsize=7, family="monospace")
        axis.set_yticks(range(len(text)), shown, fontsize=7, family="monospace")
        axis.tick_params(length=0)
        axis.set_title(f"layer {layer + 1}, head {head + 1}: {why}", fontsize=11)
        axis.set_xlabel("key: the character attended")
        axis.set_ylabel("query: the character read")
    bar = figure.colorbar(picture, ax=axes, shrink=0.6, ticks=[0, 0.1**0.5, 0.5**0.5, 1])
    bar.ax.set_yticklabels(["0", "0.1", "0.5", "1"])
    bar.set_label("attention weight")
    figure.suptitle(f"Heads of the trained decoder (Causal mask, {bias}) on a line of the test text", fontsize=14)
    return save(figure, path)


def accuracies(path: Path, scores: Mapping[str, Sequence[float]]) -> Path:
    """One line a seed, so that paired differences can be seen."""
    figure, axis = plt.subplots(figsize=(10, 4.8), layout="constrained")
    names = list(scores)
    values = 100 * np.array([scores[name] for name in names])
    for seed, line in enumerate(values.T):
        axis.plot(names, line, color=GREY, alpha=0.35, linewidth=1, zorder=1)
        axis.scatter(
            names, line, s=34, zorder=2, color=plt.cm.viridis(seed / max(values.shape[1] - 1, 1)), label=f"seed {seed}"
        )
    for place, line in enumerate(values):
        axis.plot([place - 0.2, place + 0.2], [line.mean()] * 2, color="black", linewidth=2, zorder=3)
        spread = f" ± {line.std(ddof=1):.1f}" if len(line) > 1 else ""
        axis.annotate(f"{line.mean():.1f}{spread}", (place, values.max() + 0.9), ha="center", fontweight="bold")
    axis.set_ylim(values.min() - 1.5, values.max() + 2.5)
    axis.set_ylabel("accuracy on unlabelled digits (%)")
    axis.set_title("1,797 digits, 50 labels: the same labels for all, one line a seed (bar: mean)")
    axis.grid(axis="y", alpha=0.25)
    axis.legend(frameon=False, loc="lower right")
    return save(figure, path)


def digit_graph(
    path: Path,
    pixels: np.ndarray,
    labels: np.ndarray,
    predicted: np.ndarray,
    edge_index: np.ndarray,
    weights: np.ndarray,
    centres: Sequence[int],
) -> Path:
    """Around each centre, the digits it attends and those that they attend; edges as dark as they weigh."""
    source, target = edge_index
    figure, axes = plt.subplots(1, len(centres), figsize=(8 * len(centres), 8.2), layout="constrained")
    for axis, centre in zip(np.atleast_1d(axes), centres, strict=True):
        graph = networkx.DiGraph()
        inner = source[(target == centre) & (source != centre)]
        graph.add_nodes_from([centre, *inner])
        for node in [centre, *inner]:
            into = np.flatnonzero((target == node) & (source != node))
            # Of the second ring only what weighs most: the first must stay legible.
            kept = into if node == centre else into[np.argsort(-weights[into])[:3]]
            graph.add_weighted_edges_from((int(source[e]), int(node), float(weights[e])) for e in kept)
        outer = [n for n in graph if n != centre and n not in set(inner.tolist())]
        place = networkx.shell_layout(graph, [[centre], list(inner), outer] if outer else [[centre], list(inner)])
        place = networkx.kamada_kawai_layout(networkx.Graph(graph.edges), pos=place, weight=None)
        heaviest = max(w for _, _, w in graph.edges(data="weight"))
        for u, v, w in sorted(graph.edges(data="weight"), key=lambda edge: edge[2]):
            strength = w / heaviest
            axis.annotate(
                "",
                place[v],
                place[u],
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": plt.cm.Blues(0.15 + 0.85 * strength),
                    "linewidth": 0.6 + 3.4 * strength,
                    "shrinkA": 17,
                    "shrinkB": 19,
                    "connectionstyle": "arc3,rad=0.08",
                },
            )
            if v == centre:
                axis.annotate(
                    f"{100 * w:.0f}%", 0.56 * np.array(place[u]) + 0.44 * np.array(place[v]), fontsize=9, ha="center"
                )
        for node, xy in place.items():
            image = OffsetImage(pixels[node].reshape(8, 8), cmap="gray_r", zoom=4.2 if node != centre else 6.5)
            right = labels[node] == predicted[node]
            frame = {"edgecolor": GREEN if right else "#c0392b", "linewidth": 2.2, "boxstyle": "square,pad=0.12"}
            axis.add_artist(AnnotationBbox(image, xy, pad=0.1, bboxprops=frame))
        self_weight = weights[(source == centre) & (target == centre)].sum()
        axis.set_title(
            f"a {labels[centre]}, read as {predicted[centre]}: {100 * self_weight:.0f} % of its attention is on itself",
            fontsize=12,
        )
        axis.margins(0.12)
        axis.autoscale_view()
        axis.axis("off")
        spread = np.array(list(place.values()))
        axis.set_xlim(spread[:, 0].min() - 0.2, spread[:, 0].max() + 0.2)
        axis.set_ylim(spread[:, 1].min() - 0.2, spread[:, 1].max() + 0.2)
    figure.suptitle(
        "Whom a digit listens to: first GATv2 layer, mean over heads. Arrows run from source to target, as dark as\n"
        "they weigh (numbers: into the large digit). Frame: green = classified rightly, red = wrongly",
        fontsize=12,
    )
    return save(figure, path)
