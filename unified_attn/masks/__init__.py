"""Who may interact: rules over pairs of a query and a key, which compose with ``&``, ``|`` and ``~``.

``python -m unified_attn.masks.longformer`` draws a mask; so do its siblings.
"""

from unified_attn.masks._show import let_modules_run
from unified_attn.masks.base import And, Candidates, Mask, Not, Or
from unified_attn.masks.bigbird import BigBird
from unified_attn.masks.causal import Causal
from unified_attn.masks.dense import DenseMask
from unified_attn.masks.dilated import Dilated
from unified_attn.masks.documents import Documents
from unified_attn.masks.full import Full
from unified_attn.masks.global_tokens import GlobalTokens
from unified_attn.masks.graph import Graph
from unified_attn.masks.longformer import Longformer
from unified_attn.masks.padding import Padding
from unified_attn.masks.where import Where
from unified_attn.masks.window import Window

let_modules_run()

__all__ = [
    "And",
    "BigBird",
    "Candidates",
    "Causal",
    "DenseMask",
    "Dilated",
    "Documents",
    "Full",
    "GlobalTokens",
    "Graph",
    "Longformer",
    "Mask",
    "Not",
    "Or",
    "Padding",
    "Where",
    "Window",
]
