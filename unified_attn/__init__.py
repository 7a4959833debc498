"""Attention is one operator; the prior is the difference.

    logits_ij = score(q_i, k_j) + b_ij
    out_i     = sum_{j in N(i)} softmax_j(logits_ij) v_j

A mask says who may interact, a bias which pairs are preferred, a score how alike two items are.
"""

from unified_attn import models, nn
from unified_attn.backends import Backend
from unified_attn.biases import (
    NTK,
    Additive,
    ALiBi,
    Bias,
    DenseBias,
    DynamicNTK,
    EdgeBias,
    EdgeFeatures,
    EdgeProjection,
    EdgeTypes,
    Llama3,
    LogPrior,
    NoBias,
    NodeTypes,
    PairVectors,
    PathFeatures,
    PositionInterpolation,
    RelativeBias,
    RelativeVectors,
    RoPE,
    ShortestPath,
    T5Bias,
    YaRN,
)
from unified_attn.errors import UnsupportedError
from unified_attn.linear import LinearState, linear_attention
from unified_attn.masks import (
    BigBird,
    Causal,
    DenseMask,
    Dilated,
    Documents,
    Full,
    GlobalTokens,
    Graph,
    Longformer,
    Mask,
    Padding,
    Where,
    Window,
)
from unified_attn.operator import (
    Explanation,
    attention,
    attention_weights,
    attention_with_lse,
    explain,
    graph_attention,
    merge,
)
from unified_attn.scores import GAT, Dot, GATv2, Score

__version__ = "0.1.0"

__all__ = [
    "GAT",
    "NTK",
    "ALiBi",
    "Additive",
    "Backend",
    "Bias",
    "BigBird",
    "Causal",
    "DenseBias",
    "DenseMask",
    "Dilated",
    "Documents",
    "Dot",
    "DynamicNTK",
    "EdgeBias",
    "EdgeFeatures",
    "EdgeProjection",
    "EdgeTypes",
    "Explanation",
    "Full",
    "GATv2",
    "GlobalTokens",
    "Graph",
    "LinearState",
    "Llama3",
    "LogPrior",
    "Longformer",
    "Mask",
    "NoBias",
    "NodeTypes",
    "Padding",
    "PairVectors",
    "PathFeatures",
    "PositionInterpolation",
    "RelativeBias",
    "RelativeVectors",
    "RoPE",
    "Score",
    "ShortestPath",
    "T5Bias",
    "UnsupportedError",
    "Where",
    "Window",
    "YaRN",
    "attention",
    "attention_weights",
    "attention_with_lse",
    "explain",
    "graph_attention",
    "linear_attention",
    "merge",
    "models",
    "nn",
]
