"""Attention is one operator; the prior is the difference.

    logits_ij = score(q_i, k_j) + b_ij
    out_i     = sum_{j in N(i)} softmax_j(logits_ij) v_j

A mask says who may interact, a bias which pairs are preferred, a score how alike two items are.
"""

from unified_attn.backends import Backend
from unified_attn.biases import (
    Additive,
    ALiBi,
    Bias,
    DenseBias,
    EdgeBias,
    EdgeProjection,
    NoBias,
    PairVectors,
    RelativeVectors,
    RoPE,
)
from unified_attn.errors import UnsupportedError
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
    "EdgeBias",
    "EdgeProjection",
    "Explanation",
    "Full",
    "GATv2",
    "GlobalTokens",
    "Graph",
    "Longformer",
    "Mask",
    "NoBias",
    "Padding",
    "PairVectors",
    "RelativeVectors",
    "RoPE",
    "Score",
    "UnsupportedError",
    "Where",
    "Window",
    "attention",
    "attention_weights",
    "attention_with_lse",
    "explain",
    "graph_attention",
    "merge",
]
