"""What graph layers share: ends of a relation, heads, and one call of the operator."""

from __future__ import annotations

import torch
from torch import Tensor

from unified_attn.biases import Bias
from unified_attn.nn.graph_cache import Edges
from unified_attn.operator import attention_weights, graph_attention
from unified_attn.pairs import check_count, check_floats, check_number, describe
from unified_attn.scores import Score

Result = Tensor | tuple[Tensor, tuple[Tensor, Tensor]]
"""What a layer returns: its output, or that with (edge_index, weights)."""

IF_ONE_SET = "if_one_set"
"""The value of ``add_self_loops`` that adds them where sources and targets are one set, and nothing over two."""


def check_options(heads: int, dropout: float, edge_dim: int | None, aggr: str, flow: str) -> None:
    """Checks the constructor arguments that all graph layers have.

    Raises:
        TypeError: If one is of the wrong kind.
        ValueError: If a number is out of range, or an option of message passing is none that attention has.
    """
    check_count("heads", heads, "give a number of heads")
    if heads < 1:
        raise ValueError(f"heads is {heads}; it must be at least 1")
    check_number("dropout", dropout, "give a probability in [0, 1]")
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout is {dropout}; it is a probability in [0, 1]")
    if edge_dim is not None:
        check_count("edge_dim", edge_dim, "give the number of features an edge, or None for none")
        if edge_dim != -1 and edge_dim < 1:
            raise ValueError(f"edge_dim is {edge_dim}; it must be positive, -1 for that of the first input, or None")
    if aggr not in ("add", "sum"):
        raise ValueError(f"aggr is {aggr!r}; attention sums over the edges of a target: only 'add' is there")
    if flow != "source_to_target":
        raise ValueError(f"flow is {flow!r}; only 'source_to_target' is there: turn the edges, edge_index.flip(0)")


def pair_of_sizes(in_channels: int | tuple[int, int]) -> tuple[int, int]:
    """Sizes of (source, target) rows.

    Raises:
        TypeError: If it is neither a number nor a pair.
    """
    if isinstance(in_channels, int):
        return in_channels, in_channels
    if not isinstance(in_channels, (tuple, list)) or len(in_channels) != 2:
        raise TypeError(f"in_channels is {in_channels!r}; give a number, or a pair (sources, targets)")
    return in_channels[0], in_channels[1]


def ends(x: Tensor | tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None, bool]:
    """Features of sources and targets, and whether targets are the first of the sources.

    Raises:
        TypeError: If x is neither floats nor a pair.
        ValueError: If features do not have two dimensions.
    """
    target: Tensor | None
    if isinstance(x, Tensor):
        source, target = x, x
    elif isinstance(x, (tuple, list)) and len(x) == 2:
        source, target = x
    else:
        raise TypeError(f"x is {describe_kind(x)}; give a tensor [N, F], or a pair of them: (sources, targets)")
    named = [("x", source)] if isinstance(x, Tensor) else [("x of the sources", source), ("x of the targets", target)]
    for name, rows in named:
        if rows is None and name == "x of the targets":
            continue
        check_floats(name, rows, "give floats, [N, F]")
        if rows is not None and rows.dim() != 2:
            raise ValueError(f"{name} has shape {list(rows.shape)}; it must be [N, F], one row a node")
    return source, target, target is not None and first_rows(source, target)


def first_rows(source: Tensor, target: Tensor) -> bool:
    """Whether the targets are the first of the sources: the same tensor, or a view of its first rows.

    Those who sample neighbours put the targets first among the sources and pass ``(x, x[:n])``. Compiled code and
    transforms of torch.func cannot see where a tensor lies; there only the same tensor counts.
    """
    if source is target:
        return True
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or source.is_meta:
        return False
    return (
        source.data_ptr() == target.data_ptr()
        and source.stride() == target.stride()
        and source.dtype == target.dtype
        and source.shape[0] >= target.shape[0]
        and source.shape[1:] == target.shape[1:]
    )


def describe_kind(x: object) -> str:
    """What was given in place of features."""
    return f"a {type(x).__name__} of {len(x)}" if isinstance(x, (tuple, list)) else f"a {type(x).__name__}"


def target_of(target: Tensor | None, layer: str) -> Tensor:
    """The target's features, where a layer cannot do without.

    Raises:
        ValueError: If they are missing.
    """
    if target is None:
        raise ValueError(f"x is (sources, None), but {layer} asks the targets: give (sources, targets)")
    return target


def check_self_loops(add_self_loops: object) -> None:
    """Raises ValueError unless this is True, False or ``"if_one_set"``."""
    if not isinstance(add_self_loops, bool) and add_self_loops != IF_ONE_SET:
        raise ValueError(f"add_self_loops is {add_self_loops!r}; give True, False or {IF_ONE_SET!r}")


def asks_for_loops(add_self_loops: bool | str, one_set: bool) -> bool:
    """Whether loops are to be added in this call.

    Raises:
        ValueError: If they are asked for over two sets of nodes.
    """
    if add_self_loops is True and not one_set:
        raise ValueError(
            "x is a pair of two node sets, and a self-loop from source i to target i would join two nodes that have "
            "nothing but a number in common: make the layer with add_self_loops=False (or 'if_one_set'); if the "
            "targets are the first n sources, give (x, x[:n]), the view itself"
        )
    return bool(add_self_loops) and one_set


def split_heads(x: Tensor, heads: int) -> Tensor:
    """``[N, H * C]`` to ``[N, H, C]``."""
    return x.view(x.shape[0], heads, x.shape[1] // heads)


def join_heads(out: Tensor, concat: bool) -> Tensor:
    """``[N, H, C]`` to ``[N, H * C]``, or to their mean ``[N, C]``."""
    return out.flatten(1) if concat else out.mean(dim=1)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    edges: Edges,
    *,
    bias: Bias | None = None,
    score: Score | None = None,
    dropout_p: float = 0.0,
    return_weights: bool = False,
    backend: str | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attention over the edges: ``[Nq, H, C]``, and on request weights ``[E + M, H]`` before dropout."""
    out = graph_attention(q, k, v, edges.mask, bias=bias, score=score, dropout_p=dropout_p, backend=backend)
    if not return_weights:
        return out, None
    q, k = (x.transpose(0, 1)[None] for x in (q, k))
    return out, attention_weights(q, k, mask=edges.mask, bias=bias, score=score)[0].t()


def with_weights(out: Tensor, edges: Edges, weights: Tensor | None) -> Result:
    """The output, or (output, (edge_index, weights)) if there are weights."""
    return out if weights is None else (out, (edges.edge_index, weights))


def check_return(return_attention_weights: object) -> bool:
    """Whether weights are asked for: by True alone.

    Raises:
        TypeError: If it is neither a bool nor None.
    """
    if return_attention_weights is not None and not isinstance(return_attention_weights, bool):
        got = (
            describe(return_attention_weights)
            if isinstance(return_attention_weights, Tensor)
            else repr(return_attention_weights)
        )
        raise TypeError(f"return_attention_weights is {got}; give True, False or None")
    return return_attention_weights is True


def no_queries(like: Tensor, num_queries: int) -> Tensor:
    """Queries of 0, ``[Nq, H, C]``, for targets without features; a view of one row."""
    return like.new_zeros(1, *like.shape[1:]).expand(num_queries, -1, -1)
