"""Public data sets, read from the folder that ``UNIFIED_ATTN_DATA`` names (default ``data``); nothing is written there.

Files that are missing are downloaded where torch-geometric knows how, and named in the error where it does not.
"""

from graphs.datasets.aqsol import aqsol
from graphs.datasets.heterogeneous import heterogeneous
from graphs.datasets.heterophilous import heterophilous
from graphs.datasets.planetoid import planetoid
from graphs.datasets.tudataset import tudataset

__all__ = ["aqsol", "heterogeneous", "heterophilous", "planetoid", "tudataset"]
