"""What one would write without the library: the same formulas in plain torch, as their best user would."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

Mix = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]
"""Softmax and weighted sum: see :func:`softmax_scatter`."""


def softmax_scatter(logits: Tensor, values: Tensor, source: Tensor, target: Tensor, num_nodes: int) -> Tensor:
    """Softmax of ``logits [E, H]`` over the edges into each target, and the weighted sum of ``values [N, H, C]``."""
    heads = logits.shape[1]
    index = target[:, None].expand(-1, heads)
    top = logits.new_full((num_nodes, heads), -torch.inf).scatter_reduce(0, index, logits.detach(), "amax")
    exp = (logits - top.index_select(0, target)).exp()
    total = logits.new_zeros(num_nodes, heads).index_add(0, target, exp)
    weights = exp / total.index_select(0, target)
    messages = weights[..., None] * values.index_select(0, source)
    return values.new_zeros(num_nodes, *values.shape[1:]).index_add(0, target, messages)


def torch_scatter_mix(logits: Tensor, values: Tensor, source: Tensor, target: Tensor, num_nodes: int) -> Tensor:
    """The same by torch-scatter's reductions."""
    from torch_scatter import scatter_add, scatter_softmax

    weights = scatter_softmax(logits, target, dim=0, dim_size=num_nodes)
    return scatter_add(weights[..., None] * values.index_select(0, source), target, dim=0, dim_size=num_nodes)


def dot(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, *, edge_index: Tensor, mix: Mix = softmax_scatter
) -> Tensor:
    """Scaled dot-product attention over edges; all node tensors ``[N, H, C]``, bias ``[E, H]``."""
    source, target = edge_index
    logits = (q.index_select(0, target) * k.index_select(0, source)).sum(-1) * q.shape[-1] ** -0.5
    return mix(logits if bias is None else logits + bias, v, source, target, q.shape[0])


def gatv2(x: Tensor, y: Tensor, att: Tensor, *, edge_index: Tensor, mix: Mix = softmax_scatter) -> Tensor:
    """GATv2 with target features x and source features y, ``[N, H, C]``; keys are values."""
    source, target = edge_index
    both = leaky_relu(x.index_select(0, target) + y.index_select(0, source), 0.2)
    return mix((both * att).sum(-1), y, source, target, x.shape[0])


def gat(x: Tensor, att_src: Tensor, att_dst: Tensor, *, edge_index: Tensor, mix: Mix = softmax_scatter) -> Tensor:
    """GAT: scalars a node and head, contracted before they are gathered."""
    source, target = edge_index
    from_source, from_target = (x * att_src).sum(-1), (x * att_dst).sum(-1)
    logits = leaky_relu(from_target.index_select(0, target) + from_source.index_select(0, source), 0.2)
    return mix(logits, x, source, target, x.shape[0])
