"""Node types and relations of a heterogeneous graph, and the edges of each relation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unified_attn.masks import Graph
from unified_attn.pairs import check_integers
from unified_attn.rows import edge_ends

Relation = tuple[str, str, str]
"""(type of the sources, name, type of the targets), as in torch-geometric's ``HeteroData``."""

Metadata = tuple[Sequence[str], Sequence[Relation]]
"""Node types and relations, as ``HeteroData.metadata()`` gives them."""


def hetero_inputs(data: Any) -> tuple[dict[str, Tensor], dict[Relation, Tensor], dict[Relation, Tensor]]:
    """A torch-geometric ``HeteroData`` as the arguments of a layer: ``layer(*hetero_inputs(data))``.

    Returns:
        ``x`` by node type; ``edge_index`` by relation; ``edge_attr`` of the relations that have it.

    Raises:
        ValueError: If a node type has no ``x``, or a relation no ``edge_index``.
    """

    def stored(kind: object, name: str) -> Tensor:
        if name not in data[kind]:
            raise ValueError(f"data[{kind!r}] has no {name}")
        value: Tensor = data[kind][name]
        return value

    return (
        {t: stored(t, "x") for t in data.node_types},
        {r: stored(r, "edge_index") for r in data.edge_types},
        {r: data[r]["edge_attr"] for r in data.edge_types if "edge_attr" in data[r]},
    )


def table_key(*names: str) -> str:
    """A name for a table of modules, whatever characters type names hold: ``<author>``, ``<author/writes/paper>``."""
    return f"<{'/'.join(n.replace('%', '%25').replace('.', '%2E').replace('/', '%2F') for n in names)}>"


def read_metadata(metadata: Metadata) -> tuple[list[str], list[Relation]]:
    """Node types and relations as lists, checked.

    Raises:
        TypeError: If the metadata are no pair of lists.
        ValueError: If there are no types, a relation is no triple or joins an unknown type, or a name comes twice.
    """
    remedy = "give (node types, relations) as HeteroData.metadata() does"
    if not isinstance(metadata, (tuple, list)) or len(metadata) != 2 or isinstance(metadata[0], str):
        raise TypeError(f"metadata is {metadata!r}; {remedy}")
    types, relations = list(metadata[0]), [tuple(r) for r in metadata[1]]
    if not types or not all(isinstance(t, str) for t in types):
        raise ValueError(f"metadata names the node types {types}; give at least one, all strings")
    for r in relations:
        if len(r) != 3 or not all(isinstance(name, str) for name in r):
            raise ValueError(f"metadata holds the relation {r}; it must be (type of sources, name, type of targets)")
        if r[0] not in types or r[2] not in types:
            raise ValueError(f"the relation {r} joins a node type that is not among {types}")
    for what, names in (("node types", types), ("relations", relations)):
        if len(set(names)) < len(names):
            raise ValueError(f"metadata names some {what} twice: {names}")
    return types, relations  # type: ignore[return-value]  # just checked


def check_mapping(name: str, given: object) -> None:
    """Raises TypeError unless this is a mapping."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} is a {type(given).__name__}; give a dict (of a HeteroData: hetero_inputs(data))")


def by_relation(name: str, given: Mapping[Relation, Any], relations: list[Relation]) -> dict[Relation, Any]:
    """What was given for some relations, as a dict, once no other is among them."""
    check_mapping(name, given)
    for r in given:
        if r not in relations:
            raise ValueError(f"{name} has {r!r}, which is no relation of the metadata; there are {relations}")
    return dict(given)


def ends_of(edges: Tensor | Graph | None, r: Relation, sources: Tensor, targets: Tensor) -> Tensor:
    """The edges of a relation, ``[2, E]``; values are checked where they are placed."""
    if edges is None:
        return torch.zeros(2, 0, dtype=torch.int64, device=targets.device)
    if isinstance(edges, Graph):
        sizes = (edges.num_keys, edges.num_queries)
        if edges.num_keys is not None and sizes != (sources.shape[0], targets.shape[0]):
            raise ValueError(
                f"edge_index_dict[{r}] is {edges!r}, but there are {sources.shape[0]} {r[0]!r} and "
                f"{targets.shape[0]} {r[2]!r}"
            )
        edges = edges.edge_index
    check_integers(f"edge_index_dict[{r}]", edges, "give [2, E] integers, sources then targets, or a Graph")
    if edges.dim() != 2 or edges.shape[0] != 2:
        raise ValueError(f"edge_index_dict[{r}] has shape {list(edges.shape)}; it must be [2, E], sources then targets")
    if edges.device != targets.device:
        raise ValueError(f"edge_index_dict[{r}] is on {edges.device}, but x_dict is on {targets.device}; move one")
    return edges.long()


@torch.library.custom_op("unified_attn::placed_edges", mutates_args=())
def placed(edge_index: Tensor, num_queries: int, num_keys: int, first: int, relation: str) -> Tensor:
    """The edges of a relation once its keys begin at ``first``, after a range check against its own two types."""
    try:
        query, key = edge_ends(edge_index, num_queries, num_keys)
    except ValueError as error:
        raise ValueError(f"relation {relation}: {error}") from None
    return torch.stack([key + first, query])


@placed.register_fake
def _(edge_index: Tensor, num_queries: int, num_keys: int, first: int, relation: str) -> Tensor:
    return torch.empty_like(edge_index)
