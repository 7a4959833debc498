"""Whole models: configurations, as rows of values, over the layers."""

from unified_attn.models.graph_net import GraphNet
from unified_attn.models.graph_net_config import GraphNetConfig, gat, gatv2, gps, graphormer
from unified_attn.models.hetero_net import HeteroNet, HeteroNetConfig
from unified_attn.models.packing import pack_graphs

__all__ = [
    "GraphNet",
    "GraphNetConfig",
    "HeteroNet",
    "HeteroNetConfig",
    "gat",
    "gatv2",
    "gps",
    "graphormer",
    "pack_graphs",
]
