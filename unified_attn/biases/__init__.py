"""Which pairs are preferred: values added to the logits, or turns of q and k, which compose with ``+``."""

from unified_attn.biases.additive import Additive
from unified_attn.biases.alibi import ALiBi
from unified_attn.biases.base import Bias, NoBias, Sum
from unified_attn.biases.dense import DenseBias
from unified_attn.biases.edge import EdgeBias
from unified_attn.biases.edge_projection import EdgeProjection
from unified_attn.biases.pair_vectors import PairVectors
from unified_attn.biases.relative_vectors import RelativeVectors
from unified_attn.biases.rope import RoPE

__all__ = [
    "ALiBi",
    "Additive",
    "Bias",
    "DenseBias",
    "EdgeBias",
    "EdgeProjection",
    "NoBias",
    "PairVectors",
    "RelativeVectors",
    "RoPE",
    "Sum",
]
