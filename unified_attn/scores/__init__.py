"""How alike a query and a key are."""

from unified_attn.scores.base import Form, Score
from unified_attn.scores.dot import Dot
from unified_attn.scores.gat import GAT
from unified_attn.scores.gatv2 import GATv2

__all__ = ["GAT", "Dot", "Form", "GATv2", "Score"]
