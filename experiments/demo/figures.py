"""The pictures: learning curves, heads, accuracies, and digits with the attention they pay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.offsetbox import AnnotationBbox, OffsetImage

DPI = 110
BLUE, ORANGE, GREEN, GREY, RED = "#2f6db3", "#d9822b", "#3f9b5f", "#8a8f98", "#c0392b"


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
        side = (3, "bottom") if value == max(lines.values()) else (-3, "top")
        place = {"xytext": (6, side[0]), "textcoords": "offset points", "va": side[1]}
        left.annotate(f"{name}: {value:.2f}", (0, value), color=color, **place)
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
        axis.set_xticks(range(len(text)), shown, fontsize=9, family="monospace")
        axis.set_yticks(range(len(text)), shown, fontsize=9, family="monospace")
        axis.tick_params(length=0)
        axis.set_title(f"layer {layer + 1}, head {head + 1}: {why}", fontsize=11)
        axis.set_xlabel("key: the character attended")
        axis.set_ylabel("query: the character read")
    bar = figure.colorbar(picture, ax=axes, shrink=0.6, ticks=[0, 0.1**0.5, 0.5**0.5, 1])
    bar.ax.set_yticklabels(["0", "0.1", "0.5", "1"])
    bar.set_label("attention weight")
    figure.suptitle(f"Heads of the trained decoder (Causal mask, {bias}) on two lines of Python", fontsize=14)
    return save(figure, path)


def accuracies(path: Path, scores: Mapping[str, Sequence[float]]) -> Path:
    """One line a label draw, so that paired differences can be seen."""
    figure, axis = plt.subplots(figsize=(10, 4.8), layout="constrained")
    names = list(scores)
    values = 100 * np.array([scores[name] for name in names])
    for seed, line in enumerate(values.T):
        axis.plot(names, line, color=GREY, alpha=0.35, linewidth=1, zorder=1)
        axis.scatter(
            names,
            line,
            s=34,
            zorder=2,
            color=plt.cm.viridis(seed / max(values.shape[1] - 1, 1)),
            label=f"draw {seed + 1}",
        )
    for place, line in enumerate(values):
        axis.plot([place - 0.2, place + 0.2], [line.mean()] * 2, color="black", linewidth=2, zorder=3)
        spread = f" ± {line.std(ddof=1):.1f}" if len(line) > 1 else ""
        axis.annotate(f"{line.mean():.1f}{spread}", (place, values.max() + 0.9), ha="center", fontweight="bold")
    axis.set_ylim(values.min() - 1.5, values.max() + 2.5)
    axis.set_ylabel("accuracy on unlabelled digits (%)")
    axis.set_title("1,797 digits, 50 labels: the same labels for all, one line a draw (bar: mean)")
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
    """Around each centre the digits that it attends, and around those what they attend most."""
    source, target = edge_index

    def incoming(node: int) -> list[tuple[int, float]]:
        """Who speaks to a node but itself, and how much it weighs, the heaviest first."""
        edges = np.flatnonzero((target == node) & (source != node))
        return [(int(source[e]), float(weights[e])) for e in edges[np.argsort(-weights[edges])]]

    figure, axes = plt.subplots(1, len(centres), figsize=(8 * len(centres), 8.2), layout="constrained")
    for axis, centre in zip(np.atleast_1d(axes), centres, strict=True):
        inner = ring_order(source[(target == centre) & (source != centre)], labels)
        ring = {centre, *inner}
        edges = [(u, centre, weight) for u, weight in incoming(centre) if u in ring]
        for node in inner:  # of the second ring only what weighs most: the first must stay legible
            edges += [(u, node, weight) for u, weight in incoming(node) if u not in ring][:2]
        place = {centre: np.zeros(2), **circle(inner, radius=1.0)}
        outer = sorted(
            {u for u, v, _ in edges if u not in ring},
            key=lambda n: angle(sum(place[v] for u, v, _ in edges if u == n)),
        )
        first = angle(sum(place[v] for u, v, _ in edges if u == outer[0])) if outer else 0.0
        place |= circle(outer, radius=1.85, start=first)
        heaviest = max(weight for _, _, weight in edges)
        for u, v, weight in edges:
            strength = weight / heaviest
            arrow = {
                "arrowstyle": "-|>",
                "color": plt.cm.Blues(0.2 + 0.8 * strength),
                "linewidth": 0.6 + 4.4 * strength,
                "shrinkA": 20,
                "shrinkB": 34 if v == centre else 24,
            }
            axis.annotate("", place[v], place[u], arrowprops=arrow)
            if v == centre:
                white = {"boxstyle": "round,pad=0.15", "color": "white", "alpha": 0.85}
                axis.annotate(
                    f"{100 * weight:.0f} %", 0.55 * place[u], ha="center", va="center", fontsize=9, bbox=white
                )
        for node, xy in place.items():
            image = OffsetImage(pixels[node].reshape(8, 8), cmap="gray_r", zoom=7 if node == centre else 4.2)
            color = GREEN if labels[node] == predicted[node] else RED
            frame = {"edgecolor": color, "linewidth": 2.2, "boxstyle": "square,pad=0.12"}
            axis.add_artist(AnnotationBbox(image, xy, pad=0.1, bboxprops=frame))
        self_weight = weights[(source == centre) & (target == centre)].sum()
        axis.set_title(
            f"a {labels[centre]}, read as {predicted[centre]}: {100 * self_weight:.0f} % of its attention is on itself",
            fontsize=12,
        )
        axis.set(xlim=(-2.15, 2.15), ylim=(-2.15, 2.15), aspect="equal")
        axis.axis("off")
    figure.suptitle(
        "Whom a digit listens to: first GATv2 layer, mean over heads. Arrows run from source to target, as dark as\n"
        "they weigh (numbers: into the large digit). Frame: green = classified rightly, red = wrongly",
        fontsize=12,
    )
    return save(figure, path)


def ring_order(nodes: np.ndarray, labels: np.ndarray) -> list[int]:
    """Equal digits side by side."""
    return [int(n) for n in nodes[np.argsort(labels[nodes], kind="stable")]]


def circle(nodes: Sequence[int], radius: float, start: float = 0.0) -> dict[int, np.ndarray]:
    turns = start + 2 * np.pi * np.arange(len(nodes)) / max(len(nodes), 1)
    return {node: radius * np.array([np.cos(t), np.sin(t)]) for node, t in zip(nodes, turns, strict=True)}


def angle(xy: np.ndarray) -> float:
    return float(np.arctan2(xy[1], xy[0]) % (2 * np.pi))
