"""AqSol: how well molecules dissolve in water."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from graphs.datasets.files import require
from graphs.packed import GraphSet
from graphs.splits import Split


def aqsol() -> GraphSet:
    """9,982 molecules with one fixed split; nodes are atom codes (0 to 64), edge types bond codes (1 to 4).

    The target is the logarithm of the solubility in mol/l; the measure is the mean absolute error.

    Raises:
        FileNotFoundError: If the file is missing.

    Reference: Dwivedi et al., 2023, arXiv:2003.00982, rebuilt from AqSolDB by their recipe.
    """
    source = "https://github.com/graphdeeplearning/benchmarking-gnns (its AqSol recipe, packed by split)"
    with np.load(require("molecules/AqSol", ["aqsol.npz"], source) / "aqsol.npz") as arrays:
        raw = {key: value.astype(np.float32 if key.endswith("_y") else np.int64) for key, value in arrays.items()}

    def joined(part: str) -> Tensor:
        return torch.cat([torch.from_numpy(raw[f"{split}_{part}"]) for split in ("train", "val", "test")], dim=-1)

    def joined_pointers(part: str) -> Tensor:
        counts = [np.diff(raw[f"{split}_{part}"]) for split in ("train", "val", "test")]
        return torch.from_numpy(np.concatenate([[0], np.concatenate(counts).cumsum()]))

    y = joined("y")
    ends = np.cumsum([len(raw[f"{split}_y"]) for split in ("train", "val")])
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
