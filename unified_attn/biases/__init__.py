"""Which pairs are preferred: values added to the logits, or turns of q and k, which compose with ``+``."""

from unified_attn.biases.additive import Additive
from unified_attn.biases.alibi import ALiBi
from unified_attn.biases.base import Bias, NoBias, Sum
from unified_attn.biases.dense import DenseBias
from unified_attn.biases.edge import EdgeBias
from unified_attn.biases.edge_features import EdgeFeatures
from unified_attn.biases.edge_projection import EdgeProjection
from unified_attn.biases.edge_types import EdgeTypes
from unified_attn.biases.log_prior import LogPrior
from unified_attn.biases.node_types import NodeTypes
from unified_attn.biases.pair_vectors import PairVectors
from unified_attn.biases.path_features import PathFeatures
from unified_attn.biases.relative import RelativeBias
from unified_attn.biases.relative_vectors import RelativeVectors
from unified_attn.biases.rope import RoPE
from unified_attn.biases.rope_scaling import NTK, DynamicNTK, Llama3, PositionInterpolation, RoPEScaling, YaRN
from unified_attn.biases.shortest_path import ShortestPath
from unified_attn.biases.t5 import T5Bias

__all__ = [
    "NTK",
    "ALiBi",
    "Additive",
    "Bias",
    "DenseBias",
    "DynamicNTK",
    "EdgeBias",
    "EdgeFeatures",
    "EdgeProjection",
    "EdgeTypes",
    "Llama3",
    "LogPrior",
    "NoBias",
    "NodeTypes",
    "PairVectors",
    "PathFeatures",
    "PositionInterpolation",
    "RelativeBias",
    "RelativeVectors",
    "RoPE",
    "RoPEScaling",
    "ShortestPath",
    "Sum",
    "T5Bias",
    "YaRN",
]
