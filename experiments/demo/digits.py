"""scikit-learn's 1,797 scanned digits as a graph, five labels a class, and the baselines that see the same labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from scipy.sparse.linalg import eigsh, splu
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier, kneighbors_graph
from torch import Tensor

from unified_attn import Graph

CLASSES = 10


@dataclass(frozen=True)
class Digits:
    """Args:
    pixels: ``[N, 64]``, 0 to 1.
    labels: ``[N]``.
    adjacency: Symmetric, without loops.
    features: ``[N, F]``: pixels and positions in the graph, both made without labels.
    graph: The same edges with self-loops: each digit also attends itself.
    """

    pixels: np.ndarray
    labels: np.ndarray
    adjacency: scipy.sparse.csr_array
    features: Tensor
    graph: Graph


def load(neighbours: int, eigenvectors: int) -> Digits:
    """Joins each digit to its nearest ones, by pixels.

    Positions in the graph are the first eigenvectors of its normalised Laplacian (Dwivedi and Bresson 2020).
    """
    pixels, labels = load_digits(return_X_y=True)
    pixels = pixels / 16
    near = kneighbors_graph(pixels, neighbours)
    adjacency = scipy.sparse.csr_array(near.maximum(near.T))
    looped = (adjacency + scipy.sparse.eye_array(len(labels), format="csr")).tocoo()

    degree = adjacency.sum(1)
    normalised = scipy.sparse.diags_array(degree**-0.5) @ adjacency @ scipy.sparse.diags_array(degree**-0.5)
    # v0: the solver's start is random otherwise. The last vector found is constant but for the degrees.
    vectors = eigsh(normalised, k=eigenvectors + 1, which="LA", v0=np.ones(len(labels)))[1][:, :-1]
    centred = (pixels - pixels.mean(0)) / pixels.std(0).mean()
    features = np.concatenate([centred, vectors * len(labels) ** 0.5], axis=1)
    edge_index = torch.from_numpy(np.stack([looped.col, looped.row]).astype(np.int64))
    return Digits(
        pixels=pixels,
        labels=labels,
        adjacency=adjacency,
        features=torch.from_numpy(features).float(),
        graph=Graph(edge_index, num_keys=len(labels)),
    )


def draw_labels(labels: np.ndarray, seed: int, each: int = 5) -> np.ndarray:
    """Indices of the labelled nodes: `each` of every class, at random."""
    random = np.random.default_rng(seed)
    return np.concatenate([random.choice(np.flatnonzero(labels == c), each, replace=False) for c in range(CLASSES)])


def influence(digits: Digits, labelled: np.ndarray, restart: float = 0.01) -> Tensor:
    """How much each labelled node reaches each node, ``[N, L]`` (label spreading, Zhou et al. 2004)."""
    degree = digits.adjacency.sum(1)
    normalised = scipy.sparse.diags_array(degree**-0.5) @ digits.adjacency @ scipy.sparse.diags_array(degree**-0.5)
    system = scipy.sparse.csc_array(scipy.sparse.eye_array(len(degree)) - (1 - restart) * normalised)
    start = np.zeros((len(degree), len(labelled)))
    start[labelled, np.arange(len(labelled))] = restart
    return torch.from_numpy(splu(system).solve(start)).float()


def label_propagation(digits: Digits, labelled: np.ndarray, steps: int = 1000) -> np.ndarray:
    """Zhu and Ghahramani 2002: each node takes the mean of its neighbours, labelled ones are held."""
    mean = scipy.sparse.diags_array(1 / digits.adjacency.sum(1)) @ digits.adjacency
    held = np.eye(CLASSES)[digits.labels[labelled]]
    belief = np.zeros((len(digits.labels), CLASSES))
    for _ in range(steps):
        belief[labelled] = held
        belief = mean @ belief
    return belief.argmax(1)


def baselines(digits: Digits, labelled: np.ndarray) -> dict[str, np.ndarray]:
    """Predictions for every node."""
    x, y = digits.pixels[labelled], digits.labels[labelled]
    return {
        "1-nearest neighbour": KNeighborsClassifier(1).fit(x, y).predict(digits.pixels),
        "logistic regression": LogisticRegression(C=10.0, max_iter=2000).fit(x, y).predict(digits.pixels),
        "label propagation": label_propagation(digits, labelled),
    }
