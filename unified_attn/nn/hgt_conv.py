"""The heterogeneous graph Transformer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from unified_attn.masks import Mask
from unified_attn.nn.edges import edge_list
from unified_attn.nn.graph_cache import edges_of
from unified_attn.nn.heads import attend, check_options, ends, split_heads
from unified_attn.nn.typed import NodeType, Relation, RelationLinear, TypedLinear, inner_name, parameters_by_name
from unified_attn.operator import kind_of
from unified_attn.pairs import check_count


class HGTConv(nn.Module):
    """A layer of the heterogeneous graph Transformer, with the arguments and weights of torch-geometric's ``HGTConv``.

        logit_e = p_r <q_i, W_r k_j> / sqrt(D)            for an edge e = j -> i of relation r
        m_i     = sum_e softmax_e(logit_e) W'_r v_j       over the edges of all relations into i
        out_i   = s A gelu(m_i) + (1 - s) x_i             s = sigmoid(skip); where widths differ A gelu(m_i)

    q, k, v and A are linear maps of the node's type; W_r, W'_r and p_r belong to a relation and a head. Either layer
    loads the other's ``state_dict``. It differs where that layer surprises its users:

    - Every node type of the input is in the result, also one that nothing points at (m = 0); there it is dropped.
    - A relation that is missing counts as one without edges: its parameters get gradients of 0 instead of none.
    - Unknown types and relations, and indices beyond their own type, raise.

    Args:
        in_channels: Size of a node's features, of each type: a number for all or a dictionary; -1: that of the first
            input.
        out_channels: H * D, a multiple of ``heads``.
        metadata: (node types, relations), the latter as (source type, name, target type).
        heads: H.
        flow: ``"source_to_target"``: for the other direction turn the edges.
        backend: What runs it, as in :func:`~unified_attn.attention`; ``"scatter"`` has second derivatives. May be set
            later, on the object.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If numbers do not fit, or a relation or ``in_channels`` names other types than the metadata.

    Cost: O(E H D) time; O(N) rows a relation, O(E H) memory.
    Reference: Hu et al., Heterogeneous Graph Transformer, WWW 2020, arXiv 2003.01332, Eq. 3 to 5 (without relative time
    encoding).

    Example:
        >>> writes = ("author", "writes", "paper")
        >>> layer = HGTConv(-1, 4, metadata=(["author", "paper"], [writes]), heads=2)
        >>> x = {"author": torch.randn(3, 5), "paper": torch.randn(2, 6)}
        >>> {kind: list(out.shape) for kind, out in layer(x, {writes: torch.tensor([[0, 2], [1, 1]])}).items()}
        {'author': [3, 4], 'paper': [2, 4]}
    """

    def __init__(
        self,
        in_channels: int | Mapping[NodeType, int],
        out_channels: int,
        metadata: tuple[Sequence[NodeType], Sequence[Relation]],
        heads: int = 1,
        *,
        flow: str = "source_to_target",
        backend: str | None = None,
    ) -> None:
        super().__init__()
        check_options(heads, 0.0, None, "add", flow)
        check_count("out_channels", out_channels, "give the size of all heads together")
        if out_channels % heads:
            raise ValueError(f"out_channels = {out_channels} is no multiple of heads = {heads}")
        if not isinstance(metadata, (tuple, list)) or len(metadata) != 2:
            raise TypeError(f"metadata is {metadata!r}; give (node types, relations), as HeteroData.metadata() does")
        kinds, relations = list(metadata[0]), list(metadata[1])
        sizes = dict(in_channels) if isinstance(in_channels, Mapping) else dict.fromkeys(kinds, in_channels)
        if set(sizes) != set(kinds):
            raise ValueError(f"in_channels names the types {sorted(sizes)}, but metadata {sorted(kinds)}")
        for relation in relations:
            if len(relation) != 3 or not {relation[0], relation[-1]} <= set(kinds):
                raise ValueError(f"relation {relation} must be (source type, name, target type), of {kinds}")
        self.in_channels = sizes
        self.out_channels = out_channels
        self.backend = backend
        self.heads = heads
        self.node_types: list[NodeType] = kinds
        self.edge_types: list[Relation] = relations

        size, count = out_channels // heads, len(relations)
        self.kqv_lin = TypedLinear(sizes, 3 * out_channels)
        self.out_lin = TypedLinear(dict.fromkeys(kinds, out_channels), out_channels)
        self.k_rel = RelationLinear(size, heads, count)
        self.v_rel = RelationLinear(size, heads, count)
        self.skip = parameters_by_name(sorted(kinds), 1)  # the order in which torch-geometric's come out
        self.p_rel = parameters_by_name(["__".join(relation) for relation in relations], 1, heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all weights anew; ``skip`` and ``p_rel`` start at 1."""
        for part in (self.kqv_lin, self.out_lin, self.k_rel, self.v_rel):
            part.reset_parameters()
        for parameter in (*self.skip.values(), *self.p_rel.values()):
            nn.init.ones_(parameter)

    def forward(
        self, x_dict: Mapping[NodeType, Tensor], edge_index_dict: Mapping[Relation, Tensor | Mask]
    ) -> dict[NodeType, Tensor]:
        """Node features to node features.

        Args:
            x_dict: ``[N, F]`` for each type that is there.
            edge_index_dict: For each relation ``[2, E]`` integers, sources then targets, each counted in its own type;
                a :class:`~unified_attn.Graph`; or a sparse tensor ``[targets, sources]``.

        Returns:
            ``[N, out_channels]`` for each type of ``x_dict``.

        Raises:
            TypeError: If features or edges are of the wrong kind.
            ValueError: If a type or relation is unknown, its nodes are missing, or an index is out of range.
        """
        self._check(x_dict, edge_index_dict)
        if not x_dict:
            return {}
        keys, queries, values = {}, {}, {}
        first: dict[NodeType, int] = {}
        rows = 0
        for kind, x in x_dict.items():
            try:
                ends(x)
                parts = self.kqv_lin(kind, x).chunk(3, dim=1)
            except (TypeError, ValueError) as error:
                raise type(error)(f"x_dict[{kind!r}]: {error}") from error
            keys[kind], queries[kind], values[kind] = (split_heads(part, self.heads) for part in parts)
            first[kind], rows = rows, rows + x.shape[0]
        q = torch.cat(list(queries.values()))
        k, v, edge_index = self._relations(keys, values, first, edge_index_dict)
        edges = edges_of(edge_index, k.shape[0], q.shape[0], loops=False)
        messages = attend(q, k, v, edges, backend=self.backend)[0].flatten(1)
        heard = dict(zip(x_dict, messages.split([x.shape[0] for x in x_dict.values()]), strict=True))
        return {kind: self._joined(kind, heard[kind], x) for kind, x in x_dict.items()}

    def _relations(
        self,
        keys: Mapping[NodeType, Tensor],
        values: Mapping[NodeType, Tensor],
        first: Mapping[NodeType, int],
        edge_index_dict: Mapping[Relation, Tensor | Mask],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values, a row a relation and source, and the edges of all relations among such rows and targets."""
        ks, vs, lists = [], [], []
        rows = 0
        for number, relation in enumerate(self.edge_types):
            source, _, target = relation
            k, v = (side.get(source, next(iter(side.values()))[:0]) for side in (keys, values))
            if relation in edge_index_dict:
                num_targets = keys[target].shape[0]
                try:
                    edge_index = edge_list(edge_index_dict[relation], k.shape[0], num_targets)
                except (TypeError, ValueError) as error:
                    raise type(error)(f"relation {relation}: {error}") from error
                lists.append(torch.stack([edge_index[0] + rows, edge_index[1] + first[target]]))
            else:  # no rows, but gradients of 0
                k, v = k[:0], v[:0]
            prior = self.p_rel[inner_name("__".join(relation))]  # [1, H]
            ks.append(self.k_rel(number, k) * prior[..., None])
            vs.append(self.v_rel(number, v))
            rows = rows + k.shape[0]
        if not ks:  # no relation was declared
            ks, vs = ([next(iter(side.values()))[:0]] for side in (keys, values))
        if not lists:
            lists = [torch.zeros(2, 0, dtype=torch.int64, device=ks[0].device)]
        return torch.cat(ks), torch.cat(vs), torch.cat(lists, dim=1)

    def _joined(self, kind: NodeType, message: Tensor, x: Tensor) -> Tensor:
        """What was heard, mixed with the node's own features where these have the same width."""
        out: Tensor = self.out_lin(kind, gelu(message))
        if out.shape[1] != x.shape[1]:
            return out
        share: Tensor = self.skip[inner_name(kind)].sigmoid()
        return share * out + (1 - share) * x

    def _check(self, x_dict: Mapping[NodeType, Tensor], edge_index_dict: Mapping[Relation, Tensor | Mask]) -> None:
        for name, given in (("x_dict", x_dict), ("edge_index_dict", edge_index_dict)):
            if not isinstance(given, Mapping):
                raise TypeError(f"{name} is {kind_of(given)}; give a dict, by node type and by relation")
        for kind in x_dict:
            if kind not in self.node_types:
                raise ValueError(f"x_dict holds the type {kind!r}; the layer was made for {self.node_types}")
        for relation in edge_index_dict:
            if relation not in self.edge_types:
                raise ValueError(f"edge_index_dict holds the relation {relation}; the layer knows {self.edge_types}")
            for kind in (relation[0], relation[-1]):
                if kind not in x_dict:
                    raise ValueError(f"relation {relation} needs nodes of type {kind!r}, which x_dict lacks")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(-1, {self.out_channels}, heads={self.heads})"
