"""Layers over the operator."""

from unified_attn.nn.gat_conv import GATConv
from unified_attn.nn.gatv2_conv import GATv2Conv
from unified_attn.nn.transformer_conv import TransformerConv

__all__ = ["GATConv", "GATv2Conv", "TransformerConv"]
