"""Node types and relations of a heterogeneous graph, and the edges of each relation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unified_attn.masks import Graph, Mask
from unified_attn.nn.edges import edge_list
from unified_attn.nn.typed import Relation

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
        raise TypeError(
            f"{name} is a {type(given).__name__}; give a dict (hetero_inputs(data) makes those of a HeteroData)"
        )


def by_relation(name: str, given: Mapping[Relation, Any], relations: list[Relation]) -> dict[Relation, Any]:
    """What was given for some relations, as a dict, once no other is among them."""
    check_mapping(name, given)
    for r in given:
        if r not in relations:
            raise ValueError(f"{name} has {r!r}, which is no relation of the metadata; there are {relations}")
    return dict(given)


def ends_of(edges: Tensor | Mask | None, r: Relation, num_sources: int, num_targets: int, like: Tensor) -> Tensor:
    """The edges of a relation, ``[2, E]`` int64, checked against its two types; none if they are missing."""
    if edges is None:
        return torch.zeros(2, 0, dtype=torch.int64, device=like.device)
    sizes = num_sources, num_targets
    if isinstance(edges, Graph) and edges.num_keys is not None and (edges.num_keys, edges.num_queries) != sizes:
        raise ValueError(
            f"relation {r}: its edges are {edges!r}, but there are {num_sources} sources and {num_targets} targets"
        )
    try:
        found = edge_list(edges, num_sources, num_targets)
    except (TypeError, ValueError) as error:
        raise type(error)(f"relation {r}: {error}") from error
    if found.device != like.device:
        raise ValueError(f"relation {r}: its edges are on {found.device}, but x_dict is on {like.device}; move one")
    return found
