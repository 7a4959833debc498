"""Who may interact: rules over pairs of a query and a key, which compose with ``&``, ``|`` and ``~``."""

from unified_attn.masks.base import And, Candidates, Mask, Not, Or
from unified_attn.masks.causal import Causal
from unified_attn.masks.dense import DenseMask
from unified_attn.masks.full import Full
from unified_attn.masks.graph import Graph
from unified_attn.masks.padding import Padding
from unified_attn.masks.where import Where
from unified_attn.masks.window import Window

__all__ = [
    "And",
    "Candidates",
    "Causal",
    "DenseMask",
    "Full",
    "Graph",
    "Mask",
    "Not",
    "Or",
    "Padding",
    "Where",
    "Window",
]
