"""Attention over nodes and edges of several types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from unified_attn.biases import EdgeBias
from unified_attn.masks import Mask
from unified_attn.nn.graph_cache import edges_of
from unified_attn.nn.heads import attend, check_return, split_heads
from unified_attn.nn.linear import Linear, glorot
from unified_attn.nn.relation_priors import RelationPrior, as_prior
from unified_attn.nn.relations import (
    Metadata,
    by_relation,
    check_mapping,
    ends_of,
    read_metadata,
    table_key,
)
from unified_attn.nn.typed import Relation
from unified_attn.pairs import check_count, check_floats, check_number, describe
from unified_attn.scores import Score


@dataclass(frozen=True, eq=False)
class HeteroResult:
    """What :class:`HeteroAttention` returns where weights are asked for.

    Args:
        x_dict: Of each node type ``[N, out_channels]``.
        weights: Of each relation ``[E, H]`` before dropout, in the caller's edge order.
    """

    x_dict: dict[str, Tensor]
    weights: dict[Relation, Tensor]


class HeteroAttention(nn.Module):
    """Attention over typed nodes and relations; a relation r = (s, name, t) leads from type s to type t.

        q_i    = W_t^Q x_i,    k_j^r = (W_s^K x_j) A_r,    v_j^r = (W_s^V x_j) M_r       (A_r, M_r: a matrix a head)
        logits = score(q_i, k_j^r) + prior_r        for each edge j -> i of each relation r into t
        m_i    = sum over r, j of softmax(logits) v_j^r
        out_i  = W_t^O activation(m_i)  [residual]

    ``softmax="node"``: one softmax over all incoming edges of a node, so that a useless relation can be ignored.
    ``softmax="relation"``: one for each relation, whose results are summed, or joined by ``combine``.

    Every node type of the metadata is in the result; one that no relation leads to gets its residual, or 0. A relation
    that is left out of a call is one without edges: the result is the same, and the gradients of its weights are 0.

    Args:
        in_channels: Size of a node's features, or one for each node type; -1: that of the first input.
        out_channels: H * D.
        metadata: Node types and relations.
        heads: H, a divisor of ``out_channels``.
        softmax: ``"node"`` or ``"relation"``.
        priors: For some relations a number, which is added to the logits of its edges, or a
            :class:`~unified_attn.nn.RelationPrior`, such as ``HeadBias(H)``, ``HeadScale(H)`` or ``EdgePrior(F, H)``.
        score: How alike q and k are, ``[H, D]`` each; default ``Dot``. Under ``softmax="relation"`` also a mapping
            with a score for each relation.
        combine: Under ``softmax="relation"``: a module that makes ``[N, out_channels]`` of the results of a target
            type's relations, ``[R, N, out_channels]`` in the order of the metadata. Default their sum.
        activation: Applied before W^O; default none.
        residual: ``"add"``: out_i + x_i. ``"gated"``: a out_i + (1 - a) x_i, a = sigmoid of a learned number a type.
        dropout: Probability to drop a weight in training.
        bias: Whether the projections of the types have biases.
        backend: What runs it, as in :func:`~unified_attn.attention`; ``"scatter"`` has second derivatives. May be set
            later, on the object.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a size is out of range, a type or relation is unknown, named twice or left out, or, in a call,
            something does not fit; the message names it.

    Cost: O(E H D) time; keys and values of a target's relations are laid side by side, O(sum of N_s H D) memory.

    Reference: Hu et al., Heterogeneous Graph Transformer, WWW 2020, arXiv 2003.01332, Eq. 3 to 5: ``softmax="node"``,
    ``HeadScale`` priors, GELU as activation, a gated residual. Wang et al., HAN, WWW 2019, arXiv 1903.07293:
    ``softmax="relation"``, a ``GAT`` score for each relation, attention over relations as ``combine``. Busbridge et
    al., Relational Graph Attention Networks, 2019, arXiv 1904.05811: the same with the sum (within-relation attention).

    Example:
        >>> metadata = ["author", "paper"], [("author", "writes", "paper"), ("paper", "cites", "paper")]
        >>> layer = HeteroAttention({"author": 4, "paper": 6}, 8, metadata, heads=2)
        >>> x = {"author": torch.randn(3, 4), "paper": torch.randn(5, 6)}
        >>> edges = {("author", "writes", "paper"): torch.tensor([[0, 1, 2], [4, 4, 0]])}  # nobody cites in this batch
        >>> out = layer(x, edges)
        >>> out["paper"].shape, bool((out["author"] == 0).all())
        (torch.Size([5, 8]), True)
        >>> layer(x, edges, return_attention_weights=True).weights["author", "writes", "paper"][:2].sum(0)
        tensor([1., 1.], grad_fn=<SumBackward1>)

        HGT is a configuration:

        >>> from unified_attn.nn import HeadScale
        >>> mu = {relation: HeadScale(2) for relation in metadata[1]}
        >>> HeteroAttention(8, 8, metadata, heads=2, priors=mu, activation=nn.GELU(), residual="gated")
        HeteroAttention(2 node types, 2 relations, 8, heads=2, softmax='node')
    """

    def __init__(
        self,
        in_channels: int | Mapping[str, int],
        out_channels: int,
        metadata: Metadata,
        heads: int = 1,
        softmax: Literal["node", "relation"] = "node",
        *,
        priors: Mapping[Relation, float | RelationPrior] | None = None,
        score: Score | Mapping[Relation, Score] | None = None,
        combine: nn.Module | None = None,
        activation: nn.Module | None = None,
        residual: Literal["add", "gated"] | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        self.backend = backend
        self.node_types, self.relations = read_metadata(metadata)
        sizes = _sizes(in_channels, self.node_types)
        _check_options(out_channels, heads, softmax, residual, dropout)
        if softmax == "node" and (combine is not None or isinstance(score, Mapping)):
            name = "combine" if combine is not None else "a score for each relation"
            raise ValueError(f"{name} needs softmax='relation': under 'node' all relations share one softmax")
        self.out_channels = out_channels
        self.heads = heads
        self.softmax = softmax
        self.residual = residual
        self.dropout = dropout
        self.combine = combine
        self.activation = nn.Identity() if activation is None else activation

        self.incoming = {t: [r for r in self.relations if r[2] == t] for t in self.node_types}
        sources = [t for t in self.node_types if any(r[0] == t for r in self.relations)]
        targets = [t for t in self.node_types if self.incoming[t]]

        def linears(types: Sequence[str]) -> nn.ModuleDict:
            return nn.ModuleDict({table_key(t): Linear(sizes[t], out_channels, bias, init="glorot") for t in types})

        self.query, self.key, self.value = linears(targets), linears(sources), linears(sources)
        self.out = nn.ModuleDict(
            {table_key(t): Linear(out_channels, out_channels, bias, init="glorot") for t in targets}
        )
        shape = heads, out_channels // heads, out_channels // heads
        self.key_map = nn.ParameterDict({table_key(*r): nn.Parameter(torch.empty(shape)) for r in self.relations})
        self.value_map = nn.ParameterDict({table_key(*r): nn.Parameter(torch.empty(shape)) for r in self.relations})
        gated = targets if residual == "gated" else []
        self.gate = nn.ParameterDict({table_key(t): nn.Parameter(torch.empty(1)) for t in gated})
        given = by_relation("priors", priors or {}, self.relations)
        self.priors = nn.ModuleDict(
            {table_key(*r): as_prior(given[r]) if r in given else RelationPrior() for r in self.relations}
        )
        for r in self.relations:
            for term in cast(RelationPrior, self.priors[table_key(*r)]).terms:
                if term.heads not in (None, heads):
                    raise ValueError(f"the prior {term!r} of {r} has {term.heads} heads, but the layer has {heads}")
        self.score = score if isinstance(score, Score) else None
        self.scores = nn.ModuleDict(_scores(score, self.relations))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all weights of the layer's own anew; gates start at 1, priors where they say."""
        for table in (self.query, self.key, self.value, self.out):
            for linear in table.values():
                cast(Linear, linear).reset_parameters()
        for weight in (*self.key_map.values(), *self.value_map.values()):
            glorot(weight)
        for gate in self.gate.values():
            nn.init.ones_(gate)
        for prior in self.priors.values():
            cast(RelationPrior, prior).reset_parameters()

    def forward(
        self,
        x_dict: Mapping[str, Tensor],
        edge_index_dict: Mapping[Relation, Tensor | Mask],
        edge_attr_dict: Mapping[Relation, Tensor] | None = None,
        *,
        return_attention_weights: bool = False,
    ) -> dict[str, Tensor] | HeteroResult:
        """Node features to node features, by type.

        Args:
            x_dict: Of each node type ``[N, C]``; a type without nodes has ``[0, C]``.
            edge_index_dict: Of each relation ``[2, E]`` integers, sources then targets, each counted in its own type; a
                :class:`~unified_attn.Graph`; or a sparse tensor ``[targets, sources]``. A relation that is missing has
                no edges.
            edge_attr_dict: ``[E, F]`` in the order of the edges, for relations whose prior reads features.
            return_attention_weights: True: also the weights.

        Returns:
            Of each node type of the metadata ``[N, out_channels]``; with weights a :class:`HeteroResult`.
        """
        wanted = check_return(return_attention_weights)
        self._check_nodes(x_dict)
        edges = by_relation("edge_index_dict", edge_index_dict, self.relations)
        attrs = by_relation("edge_attr_dict", edge_attr_dict or {}, self.relations)
        like = x_dict[self.node_types[0]]
        rows = {t: x_dict[t].shape[0] for t in self.node_types}
        ends = {r: ends_of(edges.get(r), r, rows[r[0]], rows[r[2]], like) for r in self.relations}
        given = {r: self._features(r, attrs.get(r), ends[r].shape[1]) for r in self.relations}

        k = {t: self._heads(self.key, t, x_dict) for t in self.node_types if table_key(t) in self.key}
        v = {t: self._heads(self.value, t, x_dict) for t in k}
        out_dict: dict[str, Tensor] = {}
        weights: dict[Relation, Tensor] = {}
        for target, relations in self.incoming.items():
            x = x_dict[target]
            if not relations:
                out_dict[target] = like.new_zeros(x.shape[0], self.out_channels) if self.residual is None else x
                continue
            q = self._heads(self.query, target, x_dict)
            groups = [relations] if self.softmax == "node" else [[r] for r in relations]
            heard = []
            for group in groups:
                out, found = self._attend(q, group, k, v, ends, given, wanted)
                heard.append(out.flatten(1))
                weights.update(found)
            joined = self.activation(self._joined(heard))
            out_dict[target] = self._update(target, self.out[table_key(target)](joined), x)
        return HeteroResult(out_dict, {r: weights[r] for r in self.relations}) if wanted else out_dict

    def _attend(
        self,
        q: Tensor,
        group: list[Relation],
        k: dict[str, Tensor],
        v: dict[str, Tensor],
        ends: dict[Relation, Tensor],
        given: dict[Relation, Tensor | None],
        wanted: bool,
    ) -> tuple[Tensor, dict[Relation, Tensor]]:
        """One softmax over the edges of some relations into one type, whose keys lie side by side."""
        keys, values, parts, priors = [], [], [], []
        first = 0
        for r in group:
            name, count = table_key(*r), ends[r].shape[1]
            # Without edges no source is read, yet the weights have their gradient: 0.
            k_r, v_r = (x[r[0]] if count else x[r[0]][:0] for x in (k, v))
            prior = cast(RelationPrior, self.priors[name])
            keys.append(prior.keys(torch.einsum("nhd,hde->nhe", k_r, self.key_map[name])))
            values.append(torch.einsum("nhd,hde->nhe", v_r, self.value_map[name]))
            parts.append(torch.stack([ends[r][0] + first, ends[r][1]]))
            priors.append(prior.add(count, given[r], keys[-1]))
            first = first + k_r.shape[0]
        edges = edges_of(torch.cat(parts, dim=1), first, q.shape[0], loops=False)
        out, weights = attend(
            q,
            torch.cat(keys),
            torch.cat(values),
            edges,
            bias=self._bias(priors, parts, q),
            score=cast(Score, self.scores[table_key(*group[0])]) if len(self.scores) else self.score,
            dropout_p=self.dropout if self.training else 0.0,
            return_weights=wanted,
            backend=self.backend,
        )
        found = () if weights is None else weights.split([part.shape[1] for part in parts])
        return out, dict(zip(group, found, strict=False))

    def _joined(self, heard: list[Tensor]) -> Tensor:
        """What a type's nodes heard by each softmax, ``[N, out_channels]`` each, as one."""
        if self.combine is None:
            return sum(heard[1:], start=heard[0])
        joined = self.combine(torch.stack(heard))
        if not isinstance(joined, Tensor) or joined.shape != heard[0].shape:
            got = describe(joined) if isinstance(joined, Tensor) else f"a {type(joined).__name__}"
            raise ValueError(
                f"combine made {got} of {len(heard)} results; it must make [N, out_channels] = {list(heard[0].shape)}"
            )
        return joined

    def _bias(self, priors: list[Tensor | None], parts: list[Tensor], q: Tensor) -> EdgeBias | None:
        """What the priors of some relations add, 0 for those that add nothing; None if none does."""
        if all(values is None for values in priors):
            return None
        rows = [
            q.new_zeros(part.shape[1], self.heads) if values is None else values.expand(-1, self.heads)
            for values, part in zip(priors, parts, strict=True)
        ]
        return EdgeBias(torch.cat(rows))

    def _heads(self, linears: nn.ModuleDict, node_type: str, x_dict: Mapping[str, Tensor]) -> Tensor:
        return split_heads(linears[table_key(node_type)](x_dict[node_type]), self.heads)

    def _update(self, target: str, out: Tensor, x: Tensor) -> Tensor:
        if self.residual is None:
            return out
        if self.residual == "add":
            return out + x
        gate: Tensor = self.gate[table_key(target)].sigmoid()
        return gate * out + (1 - gate) * x

    def _features(self, r: Relation, edge_attr: Tensor | None, count: int) -> Tensor | None:
        """The features that the relation's prior reads, checked; None if it reads none, or there are no edges."""
        wanted = cast(RelationPrior, self.priors[table_key(*r)]).edge_dim
        if edge_attr is None:
            if wanted is not None and count:
                raise ValueError(f"the prior of {r} reads {wanted} features an edge; edge_attr_dict lacks them")
            return None
        if wanted is None:
            raise ValueError(
                f"edge_attr_dict has features of {r}, but no prior reads them: give it EdgePrior(F, heads)"
            )
        check_floats(f"edge_attr_dict[{r}]", edge_attr, "give floats, [E, F]")
        if edge_attr.shape != (count, wanted):
            raise ValueError(
                f"edge_attr_dict[{r}] has shape {list(edge_attr.shape)}; it must be [E, F] = [{count}, {wanted}]"
            )
        return edge_attr

    def _check_nodes(self, x_dict: Mapping[str, Tensor]) -> None:
        check_mapping("x_dict", x_dict)
        unknown = [t for t in x_dict if t not in self.node_types]
        missing = [t for t in self.node_types if t not in x_dict]
        if unknown or missing:
            what = f"has {unknown}, which the layer does not know" if unknown else f"lacks {missing}"
            raise ValueError(f"x_dict {what}; node types are {self.node_types} (without nodes: [0, C])")
        like = x_dict[self.node_types[0]]
        for t in self.node_types:
            x = x_dict[t]
            check_floats(f"x_dict[{t!r}]", x, "give floats, [N, C]")
            linear = next((m[table_key(t)] for m in (self.query, self.key) if table_key(t) in m), None)
            size = -1 if linear is None else linear.in_channels
            if x.dim() != 2 or size not in (-1, x.shape[1]):
                wide = "C" if size == -1 else size
                raise ValueError(f"x_dict[{t!r}] has shape {list(x.shape)}; it must be [N, C], C = {wide}")
            if self.residual is not None and x.shape[1] != self.out_channels:
                raise ValueError(
                    f"x_dict[{t!r}] has {x.shape[1]} channels, but residual={self.residual!r} adds it to "
                    f"out_channels = {self.out_channels}"
                )
            if x.dtype != like.dtype or x.device != like.device:
                raise ValueError(
                    f"x_dict[{t!r}] is {describe(x)} on {x.device}, but x_dict[{self.node_types[0]!r}] is "
                    f"{describe(like)} on {like.device}; all must be alike"
                )

    def __repr__(self) -> str:
        sizes = f"{len(self.node_types)} node types, {len(self.relations)} relations"
        return f"HeteroAttention({sizes}, {self.out_channels}, heads={self.heads}, softmax={self.softmax!r})"


def _sizes(in_channels: int | Mapping[str, int], types: list[str]) -> dict[str, int]:
    if not isinstance(in_channels, Mapping):
        return dict.fromkeys(types, in_channels)
    if set(in_channels) != set(types):
        raise ValueError(f"in_channels has the node types {list(in_channels)}; metadata has {types}")
    return dict(in_channels)


def _check_options(out_channels: int, heads: int, softmax: str, residual: str | None, dropout: float) -> None:
    for name, size in (("out_channels", out_channels), ("heads", heads)):
        check_count(name, size, "give an integer")
        if size < 1:
            raise ValueError(f"{name} is {size}; it must be at least 1")
    if out_channels % heads:
        raise ValueError(
            f"out_channels = {out_channels} is no multiple of heads = {heads}; each head has an equal share"
        )
    if softmax not in ("node", "relation"):
        raise ValueError(f"softmax is {softmax!r}; give 'node' (all incoming edges) or 'relation' (one for each)")
    if residual not in (None, "add", "gated"):
        raise ValueError(f"residual is {residual!r}; give 'add', 'gated' or None")
    check_number("dropout", dropout, "give a probability in [0, 1]")
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout is {dropout}; it is a probability in [0, 1]")


def _scores(score: Score | Mapping[Relation, Score] | None, relations: list[Relation]) -> dict[str, nn.Module]:
    """A score for each relation, by name; empty if one serves all."""
    if score is None or isinstance(score, Score):
        return {}
    if not isinstance(score, Mapping):
        raise TypeError(f"score is {score!r}; give a Score, or a dict with one for each relation")
    given = by_relation("score", score, relations)
    for r in relations:
        if not isinstance(given.get(r), Score):
            raise TypeError(f"score[{r}] is {given.get(r)!r}; give a Score for each relation, or one for all")
    return {table_key(*r): given[r] for r in relations}
