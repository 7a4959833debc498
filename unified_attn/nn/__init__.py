"""Layers over the operator."""

from unified_attn.nn.gat_conv import GATConv
from unified_attn.nn.gatv2_conv import GATv2Conv
from unified_attn.nn.hetero import HeteroAttention, HeteroResult
from unified_attn.nn.hgt_conv import HGTConv
from unified_attn.nn.relation_priors import EdgePrior, HeadBias, HeadScale, RelationPrior
from unified_attn.nn.relations import hetero_inputs
from unified_attn.nn.transformer_conv import TransformerConv

__all__ = [
    "EdgePrior",
    "GATConv",
    "GATv2Conv",
    "HGTConv",
    "HeadBias",
    "HeadScale",
    "HeteroAttention",
    "HeteroResult",
    "RelationPrior",
    "TransformerConv",
    "hetero_inputs",
]
