"""The forms in which a caller may give a graph, and its edge features."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unified_attn.masks import Graph, Mask
from unified_attn.nn.graph_cache import Edges, edges_of
from unified_attn.nn.self_loops import loop_features
from unified_attn.pairs import check_floats
from unified_attn.rows import edge_ends

FORMS = "give a [2, E] tensor of integers, a Graph, or a sparse [targets, sources] tensor"


def read_edges(
    edge_index: Tensor | Mask,
    edge_attr: Tensor | None,
    num_keys: int,
    num_queries: int,
    *,
    edge_dim: int | None,
    loops: bool = False,
    fill_value: float | Tensor | str = "mean",
) -> tuple[Edges, Tensor | None]:
    """The graph that the caller means, with the loops that are to be added, and the features of all edges.

    Args:
        edge_index: ``[2, E]`` integers, sources then targets; a sparse tensor (COO, CSR, CSC) with a row a target, as
            torch-geometric's ``adj_t``, whose values are features if there is more than one number an edge; a
            :class:`~unified_attn.Graph`; or a mask that holds one, such as ``graph.keep(...)``.
        edge_attr: ``[E, edge_dim]`` (``[E]`` for one number an edge), or None.
        num_keys: Number of sources.
        num_queries: Number of targets.
        edge_dim: Number of features that the layer was made for, -1 if that is open; None if for none.
        loops: Whether to add the self-loops that are missing.
        fill_value: Their features.

    Returns:
        Edges in the caller's order (of a sparse tensor, the order in which it stores them), then the loops; and
        features ``[E + M, edge_dim]``, or None.

    Raises:
        TypeError: If something is of the wrong kind.
        ValueError: If sizes do not fit, an index is out of range, loops cannot be added to a mask, or features were
            given but not declared, or declared but not given.
    """
    edges, values = _read(edge_index, num_keys, num_queries, loops)
    added = 0 if edges.loops is None else edges.loops.shape[0]
    own = edges.edge_index[:, : edges.edge_index.shape[1] - added]
    edge_attr = _checked(values if edge_attr is None else edge_attr, edge_dim, own.shape[1])
    if edge_attr is not None and edges.loops is not None:
        edge_attr = torch.cat([edge_attr, loop_features(edge_attr, own, edges.loops, num_queries, fill_value)])
    return edges, edge_attr


def _read(edge_index: Tensor | Mask, num_keys: int, num_queries: int, loops: bool) -> tuple[Edges, Tensor | None]:
    """The edges, and the features that a sparse tensor brings."""
    if isinstance(edge_index, Mask):
        return _of_mask(edge_index, num_keys, num_queries, loops), None
    ends, values = _of_tensor(edge_index, num_keys, num_queries)
    return edges_of(ends, num_keys, num_queries, loops=loops), values


def edge_list(edge_index: Tensor | Mask, num_keys: int, num_queries: int) -> Tensor:
    """The edges alone, ``[2, E]`` int64, sources then targets, checked to lie in range.

    Args:
        edge_index: As for :func:`read_edges`, but of masks a :class:`~unified_attn.Graph` alone.
        num_keys: Number of sources.
        num_queries: Number of targets.

    Raises:
        TypeError: If it is none of these.
        ValueError: If sizes do not fit, or an index is out of range.
    """
    if isinstance(edge_index, Mask):
        if edge_index.graph is not edge_index:
            raise ValueError(f"edge_index is the mask {edge_index!r}; {FORMS}")
        edges = _of_mask(edge_index, num_keys, num_queries, False).edge_index
    else:
        edges = _of_tensor(edge_index, num_keys, num_queries)[0]
        Graph(edges)  # whatever is wrong with its form
    query, key = edge_ends(edges, num_queries, num_keys)
    return torch.stack([key, query])


def _of_tensor(edge_index: Tensor, num_keys: int, num_queries: int) -> tuple[Tensor, Tensor | None]:
    """Edges ``[2, E]``, and the features that a sparse tensor brings."""
    if not isinstance(edge_index, Tensor):
        raise TypeError(f"edge_index is a {type(edge_index).__name__}; {FORMS}")
    if edge_index.layout == torch.strided:
        return _plain(edge_index), None
    if tuple(edge_index.shape[:2]) != (num_queries, num_keys):
        raise ValueError(
            f"edge_index is a sparse tensor {list(edge_index.shape)}, but there are {num_queries} targets and "
            f"{num_keys} sources; it must be [targets, sources] (is it turned round? then pass its transpose)"
        )
    ends, values = _of_sparse(edge_index)
    return ends, values if values.dim() == 2 else None


def _plain(edge_index: Tensor) -> Tensor:
    """The tensor inside torch-geometric's ``EdgeIndex``; others as they are."""
    as_tensor: Callable[[], Tensor] | None = getattr(edge_index, "as_tensor", None)
    return edge_index if as_tensor is None else as_tensor()


def _of_sparse(adjacency: Tensor) -> tuple[Tensor, Tensor]:
    """Edges ``[2, E]`` (sources, then targets) and values of a sparse tensor, in its own order."""
    if adjacency.layout == torch.sparse_coo:  # entries that are there twice are parallel edges
        return adjacency._indices().flip(0), adjacency._values()
    if adjacency.layout == torch.sparse_csr:
        minor, pointer = adjacency.col_indices(), adjacency.crow_indices()
        values = adjacency.values()
        return torch.stack([minor.long(), _expanded(pointer, minor.shape[0])]), values
    if adjacency.layout == torch.sparse_csc:
        minor, pointer = adjacency.row_indices(), adjacency.ccol_indices()
        values = adjacency.values()
        return torch.stack([_expanded(pointer, minor.shape[0]), minor.long()]), values
    raise TypeError(f"edge_index is a tensor of layout {adjacency.layout}; {FORMS} (COO, CSR or CSC)")


def _expanded(pointer: Tensor, size: int) -> Tensor:
    """The major index of each stored entry."""
    major = torch.arange(pointer.shape[0] - 1, device=pointer.device)
    return major.repeat_interleave(pointer.diff(), output_size=size)


def _of_mask(mask: Mask, num_keys: int, num_queries: int, loops: bool) -> Edges:
    graph = mask.graph
    if graph is None:
        raise ValueError(f"edge_index is the mask {mask!r}, which holds no single Graph; {FORMS}")
    if loops and mask is not graph:
        raise ValueError(
            f"self-loops cannot be added to the mask {mask!r}: make the layer with add_self_loops=False and give a "
            f"Graph that holds the loops"
        )
    for name, size, nodes in (("num_keys", graph.num_keys, num_keys), ("num_queries", graph.num_queries, num_queries)):
        if size is not None and size != nodes:
            raise ValueError(f"the graph was made with {name} = {size}, but x has {nodes} rows")
    return (
        edges_of(graph.edge_index, num_keys, num_queries, loops=True) if loops else Edges(mask, graph.edge_index, None)
    )


def _checked(edge_attr: Tensor | None, edge_dim: int | None, num_edges: int) -> Tensor | None:
    """Edge features as ``[E, edge_dim]``, if they are what the layer was made for."""
    if edge_attr is None:
        if edge_dim is not None:
            raise ValueError(
                f"the layer was made with edge_dim={edge_dim}, but edge_attr is missing; give [E, {edge_dim}] features "
                f"(a sparse tensor's values are features if it is [targets, sources, edge_dim], not one number an edge)"
            )
        return None
    if edge_dim is None:
        raise ValueError("edge_attr is given, but the layer was made without edge_dim and has no weights for it")
    check_floats("edge_attr", edge_attr, "give floats, [E, edge_dim]")
    if edge_attr.dim() == 1 and edge_dim in (1, -1):
        edge_attr = edge_attr[:, None]
    if edge_attr.dim() != 2 or edge_attr.shape[0] != num_edges or edge_dim not in (-1, edge_attr.shape[1]):
        raise ValueError(
            f"edge_attr has shape {list(edge_attr.shape)}; it must be [E, edge_dim] = "
            f"[{num_edges}, {'edge_dim' if edge_dim == -1 else edge_dim}]"
        )
    return edge_attr
