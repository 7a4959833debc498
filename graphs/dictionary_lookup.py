"""DictionaryLookup: a task that needs attention which depends on the query."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graphs.regular import complete_bipartite
from graphs.splits import Split
from unified_attn import Graph
from unified_attn.pairs import check_count


@dataclass(frozen=True, eq=False)
class DictionaryLookup:
    """Many dictionaries over the same k keys and k values; all of them have the same graph.

    Nodes 0..k-1 are queries: (key, k), k standing for "no value". Nodes k..2k-1 are entries: (key, value). Every entry
    has an edge to every query, and a query is to answer with the value of the entry that has its key.

    Args:
        x: Two codes a node, ``[G, 2k, 2]`` int64; each of the two has k + 1 of them.
        y: Value that each query asks for, ``[G, k]`` int64.
        edge_index: ``[2, k * k]``, the same for all: one graph shared by a batch.
        split: Numbers of dictionaries; no validation set.
    """

    x: Tensor
    y: Tensor
    edge_index: Tensor
    split: Split

    @property
    def size(self) -> int:
        """k."""
        return self.y.shape[1]

    def graph(self) -> Graph:
        return Graph(self.edge_index, num_keys=2 * self.size)


def dictionary_lookup(
    size: int = 10, *, train_fraction: float = 0.8, max_graphs: int = 32_000, seed: int = 11
) -> DictionaryLookup:
    """The data set of the GATv2 paper, as its authors' program makes it.

    Dictionaries are all k! assignments of values to keys, in order; where these are more than ``max_graphs``, that many
    random ones. Of the k * k pairs (key, value) a share of ``train_fraction ** (1 / k)`` is drawn, and a dictionary is
    trained on if all its pairs are among them, so that each test dictionary holds a pair never seen in training. With
    the default seed these are the authors' dictionaries and pairs; their order within each part is not kept.

    Args:
        size: k, at least 1.
        train_fraction: 0 to 1.
        max_graphs: At least 1.
        seed: Of NumPy's and Python's generators.

    Raises:
        ValueError: If an argument is out of range.

    Reference: Brody et al., 2022, section 4.1, arXiv:2105.14491.

    Example:
        >>> data = dictionary_lookup(3)
        >>> data.x[1].tolist()
        [[0, 3], [1, 3], [2, 3], [0, 0], [1, 2], [2, 1]]
        >>> data.y[1].tolist()
        [0, 2, 1]
    """
    for name, count in (("size", size), ("max_graphs", max_graphs)):
        check_count(name, count, "give an integer, at least 1")
    if size < 1 or max_graphs < 1 or not 0 <= train_fraction <= 1:
        raise ValueError(
            f"size is {size}, max_graphs {max_graphs} and train_fraction {train_fraction}; "
            "give at least 1, at least 1, and a fraction from 0 to 1"
        )
    if math.factorial(size) > max_graphs:
        draw = np.random.RandomState(seed)
        assignments = np.stack([draw.permutation(size) for _ in range(max_graphs)])
    else:
        assignments = np.array(list(itertools.permutations(range(size))))
    y = torch.from_numpy(assignments.astype(np.int64))

    pairs = list(itertools.product(range(size), range(size)))
    seen = random.Random(seed).sample(pairs, int(train_fraction ** (1 / size) * size**2))
    allowed = torch.zeros(size, size, dtype=torch.bool)
    for key, value in seen:
        allowed[key, value] = True
    keys = torch.arange(size)
    trained = allowed[keys, y].all(1)

    query = torch.stack([keys, torch.full_like(keys, size)], dim=1).expand(len(y), -1, -1)
    entry = torch.stack([keys.expand_as(y), y], dim=2)
    source, target = complete_bipartite(size, size)
    return DictionaryLookup(
        x=torch.cat([query, entry], dim=1),
        y=y,
        edge_index=torch.stack([source + size, target]),
        split=Split.from_masks(trained, torch.zeros_like(trained), ~trained),
    )
