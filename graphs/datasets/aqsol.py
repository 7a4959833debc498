"""AqSol: how well molecules dissolve in water."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from graphs.datasets.files import arrays, reading, require
from graphs.packed import GraphSet
from graphs.splits import Split

SPLITS = ("train", "val", "test")
PARTS = ("atom", "bond", "edge_index", "node_ptr", "edge_ptr", "y")
SOURCE = "https://github.com/graphdeeplearning/benchmarking-gnns (its AqSol recipe, packed by split)"


def aqsol() -> GraphSet:
    """9,982 molecules with one fixed split; nodes are atom codes (0 to 64), edge types bond codes (1 to 4).

    The target is the logarithm of the solubility in mol/l; the measure is the mean absolute error.

    Raises:
        FileNotFoundError: If the file is missing.
        ValueError: If it is damaged.

    Reference: Dwivedi et al., 2023, arXiv:2003.00982, rebuilt from AqSolDB by their recipe.
    """
    file = require("molecules/AqSol", ["aqsol.npz"], SOURCE) / "aqsol.npz"
    found = arrays(file, SOURCE, [f"{split}_{part}" for split in SPLITS for part in PARTS])
    raw = {key: value.astype(np.float32 if key.endswith("_y") else np.int64) for key, value in found.items()}

    def joined(part: str) -> Tensor:
        return torch.cat([torch.from_numpy(raw[f"{split}_{part}"]) for split in SPLITS], dim=-1)

    def joined_pointers(part: str) -> Tensor:
        counts = [np.diff(raw[f"{split}_{part}"]) for split in SPLITS]
        return torch.from_numpy(np.concatenate([[0], np.concatenate(counts).cumsum()]))

    with reading(file, SOURCE):
        y = joined("y")
        ends = np.cumsum([len(raw[f"{split}_y"]) for split in SPLITS[:2]])
        return GraphSet(
            name="AqSol",
            x=joined("atom"),
            edge_index=joined("edge_index"),
            node_ptr=joined_pointers("node_ptr"),
            edge_ptr=joined_pointers("edge_ptr"),
            y=y,
            edge_type=joined("bond"),
            splits=[Split(*torch.arange(len(y)).tensor_split(ends.tolist()))],
        )
