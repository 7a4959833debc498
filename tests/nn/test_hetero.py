"""HeteroAttention beside a loop over relations, heads and edges, and beside torch-geometric's HGTConv and HANConv."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from unified_attn import GAT, Dot, Graph
from unified_attn.nn import EdgePrior, HeadBias, HeadScale, HeteroAttention, RelationPrior, hetero_inputs

TYPES = ["author", "paper", "venue"]
WRITES, CITES, HOSTS, LIKES = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("venue", "hosts", "paper"),
    ("paper", "likes", "author"),
)
METADATA = (TYPES, [WRITES, CITES, HOSTS, LIKES])  # nothing points at a venue
SIZES = {"author": 4, "paper": 5, "venue": 3}
CHANNELS = {"author": 3, "paper": 4, "venue": 2}
HEADS, WIDTH = 2, 6


def inputs(seed: int = 0) -> tuple[dict[str, Tensor], dict[tuple[str, str, str], Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    x = {t: torch.randn(SIZES[t], CHANNELS[t], generator=generator, dtype=torch.float64) for t in TYPES}
    edges = {}
    for number, (s, name, t) in enumerate(METADATA[1]):
        ends = [torch.randint(SIZES[kind], (6 + number,), generator=generator) for kind in (s, t)]
        edges[s, name, t] = torch.stack(ends)
    edges[CITES][:, 0] = edges[CITES][:, 1]  # a parallel edge
    return x, edges


def layer(seed: int = 1, **options: object) -> HeteroAttention:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = HeteroAttention(CHANNELS, WIDTH, METADATA, HEADS, **options).double()
        for prior in made.priors.modules():  # away from where priors change nothing
            for weight in prior.parameters(recurse=False):
                nn.init.normal_(weight)
    return made


def looped(
    layer: HeteroAttention,
    x: dict[str, Tensor],
    edges: dict[tuple[str, str, str], Tensor],
    prior: Callable[[tuple[str, str, str], int, int], Tensor] = lambda r, e, h: torch.zeros(()),
    scale: Callable[[tuple[str, str, str], int], Tensor] = lambda r, h: torch.ones(()),
    score: Callable[[tuple[str, str, str], int, Tensor, Tensor], Tensor] | None = None,
) -> dict[str, Tensor]:
    """The formula, edge by edge, before activation and residual; it shares nothing with the layer but the weights."""
    named = dict(layer.named_parameters())
    depth = WIDTH // HEADS

    def project(kind: str, node_type: str, row: int) -> Tensor:
        prefix = f"{kind}.<{node_type}>"
        return (named[f"{prefix}.weight"] @ x[node_type][row] + named[f"{prefix}.bias"]).reshape(HEADS, depth)

    result = {}
    for t in TYPES:
        relations = [r for r in METADATA[1] if r[2] == t]
        rows = []
        for i in range(SIZES[t]):
            heard = torch.zeros(HEADS, depth, dtype=torch.float64)
            groups = [relations] if layer.softmax == "node" else [[r] for r in relations]
            for h in range(HEADS):
                for group in groups:
                    logits, values = [], []
                    for r in group:
                        name = f"<{'/'.join(r)}>"
                        for e in range(edges[r].shape[1] if r in edges else 0):
                            j = int(edges[r][0, e])
                            if int(edges[r][1, e]) != i:
                                continue
                            q = project("query", t, i)[h]
                            k = project("key", r[0], j)[h] @ named[f"key_map.{name}"][h]
                            raw = q @ k * scale(r, h) / math.sqrt(depth) if score is None else score(r, h, q, k)
                            logits.append(raw + prior(r, e, h))
                            values.append(project("value", r[0], j)[h] @ named[f"value_map.{name}"][h])
                    if logits:
                        weights = torch.stack(logits).exp() / torch.stack(logits).exp().sum()
                        onehot = torch.eye(HEADS, dtype=torch.float64)[:, h, None]
                        heard = heard + onehot * (weights[:, None] * torch.stack(values)).sum(0)
            rows.append(heard.flatten())
        if relations:
            out = f"out.<{t}>"
            result[t] = torch.stack(rows) @ named[f"{out}.weight"].t() + named[f"{out}.bias"]
        else:
            result[t] = torch.zeros(SIZES[t], WIDTH, dtype=torch.float64)
    return result


def gradients(out: dict[str, Tensor], wanted: list[Tensor]) -> list[Tensor]:
    weight = torch.Generator().manual_seed(5)
    loss = sum((o * torch.randn(o.shape, generator=weight, dtype=o.dtype)).sum() for o in out.values())
    return list(torch.autograd.grad(loss, wanted))


def close(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 1e-10) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        assert (a - b).abs().max() < tolerance if a.numel() else True


@pytest.mark.parametrize("softmax", ["node", "relation"])
def test_equals_a_loop_over_relations_heads_and_edges(softmax: str) -> None:
    x, edges = inputs()
    attr = torch.randn(edges[CITES].shape[1], 3, dtype=torch.float64, requires_grad=True)
    priors = {WRITES: 0.7, CITES: EdgePrior(3, HEADS) + HeadBias(HEADS), HOSTS: HeadScale(HEADS)}
    ours = layer(softmax=softmax, priors=priors)
    feature, head = priors[CITES].terms[0].features.weight, priors[CITES].terms[1].weight
    mu = priors[HOSTS].weight

    def prior(r: tuple[str, str, str], e: int, h: int) -> Tensor:
        if r == CITES:
            return feature[h] @ attr[e] + head[h]
        return torch.tensor(0.7 if r == WRITES else 0.0, dtype=torch.float64)

    def scale(r: tuple[str, str, str], h: int) -> Tensor:
        return mu[h] if r == HOSTS else torch.ones((), dtype=torch.float64)

    for tensor in x.values():
        tensor.requires_grad_()
    out = ours(x, edges, {CITES: attr})
    expected = looped(ours, x, edges, prior, scale)
    close([out[t] for t in TYPES], [expected[t] for t in TYPES])
    wanted = [attr, *x.values(), *ours.parameters()]
    got = gradients(out, wanted)
    close(got, gradients(expected, wanted))
    if softmax == "node":
        assert all(grad.abs().max() > 1e-6 for grad, t in zip(got, wanted, strict=True))


def test_a_joint_softmax_ignores_a_useless_relation_and_one_a_relation_does_not() -> None:
    # One edge of A with logit 0, one of B with logit -1e4: weights (1, 0) and (1, 1).
    a, b = ("s", "a", "t"), ("s", "b", "t")
    x = {"s": torch.ones(1, 2), "t": torch.ones(1, 2)}
    edges = dict.fromkeys((a, b), torch.tensor([[0], [0]]))
    found = []
    for softmax in ("node", "relation"):
        made = HeteroAttention(2, 2, (["s", "t"], [a, b]), softmax=softmax, priors={b: -1e4})
        made.query["<t>"].weight.data.zero_()
        made.query["<t>"].bias.data.zero_()
        weights = made(x, edges, return_attention_weights=True).weights
        found.append((weights[a].item(), weights[b].item()))
    assert found == [(1.0, 0.0), (1.0, 1.0)]


def test_a_type_that_receives_nothing_is_in_the_result() -> None:
    x, edges = inputs()
    out = layer()(x, edges)
    assert list(out) == TYPES
    assert out["venue"].shape == (3, WIDTH)
    assert (out["venue"] == 0).all()
    same = {t: torch.randn(SIZES[t], WIDTH) for t in TYPES}
    for residual in ("add", "gated"):
        made = HeteroAttention(WIDTH, WIDTH, METADATA, HEADS, residual=residual)
        assert (made(same, edges)["venue"] == same["venue"]).all()


@pytest.mark.parametrize("softmax", ["node", "relation"])
@pytest.mark.parametrize("left", [[WRITES, CITES, HOSTS, LIKES], [CITES, LIKES], []])
def test_an_absent_relation_is_an_empty_one_with_gradients_of_zero(softmax: str, left: list) -> None:
    x, edges = inputs()
    priors = {CITES: EdgePrior(3, HEADS), WRITES: HeadScale(HEADS), HOSTS: HeadBias(HEADS)}
    made = layer(softmax=softmax, priors=priors)
    attrs = {CITES: torch.randn(edges[CITES].shape[1], 3, dtype=torch.float64)} if CITES in left else {}
    empty = torch.zeros(2, 0, dtype=torch.int64)
    absent = made({**x}, {r: edges[r] for r in left}, attrs)
    present = made({**x}, {r: edges[r] if r in left else empty for r in METADATA[1]}, attrs)
    close(list(absent.values()), list(present.values()), 1e-15)
    sum(o.sum() for o in absent.values()).backward()
    for name, weight in made.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all()
    for r in METADATA[1]:
        moved = made.value_map[f"<{'/'.join(r)}>"].grad.abs().max() > 0
        assert bool(moved) == (r in left)


def test_weights_come_by_relation_in_the_order_of_the_edges_before_dropout() -> None:
    x, edges = inputs()
    made = layer(dropout=0.5)
    result = made(x, edges, return_attention_weights=True)
    assert list(result.weights) == METADATA[1]
    total = torch.zeros(SIZES["paper"], HEADS, dtype=torch.float64)
    for r in (WRITES, CITES, HOSTS):
        assert result.weights[r].shape == (edges[r].shape[1], HEADS)
        total.index_add_(0, edges[r][1], result.weights[r])
    assert torch.allclose(total, torch.ones_like(total))  # every paper has an edge; in training mode as well
    shuffled = {
        r: e[:, torch.randperm(e.shape[1], generator=torch.Generator().manual_seed(1))] for r, e in edges.items()
    }
    again = made(x, shuffled, return_attention_weights=True).weights
    for r, e in edges.items():
        order = torch.randperm(e.shape[1], generator=torch.Generator().manual_seed(1))
        assert torch.allclose(again[r], result.weights[r][order], atol=1e-12)
    assert isinstance(made(x, edges, return_attention_weights=False), dict)
    made.eval()
    assert all(torch.equal(a, b) for a, b in zip(made(x, edges).values(), made(x, edges).values(), strict=True))


def test_priors_that_start_change_nothing_and_one_raised_changes_its_edges_alone() -> None:
    x, edges = inputs()
    attr = {CITES: torch.randn(edges[CITES].shape[1], 3, dtype=torch.float64)}
    torch.manual_seed(3)
    base = HeteroAttention(CHANNELS, WIDTH, METADATA, HEADS).double()
    priors = {WRITES: HeadBias(HEADS) + HeadScale(HEADS), CITES: EdgePrior(3, HEADS), HOSTS: 0.0}
    torch.manual_seed(3)
    made = HeteroAttention(CHANNELS, WIDTH, METADATA, HEADS, priors=priors).double()
    close(list(base(x, edges).values()), list(made(x, edges, attr).values()), 1e-14)

    before = base(x, edges, return_attention_weights=True).weights
    torch.manual_seed(3)
    raised = HeteroAttention(CHANNELS, WIDTH, METADATA, HEADS, priors={HOSTS: 5.0}).double()
    after = raised(x, edges, return_attention_weights=True).weights
    # At each paper odds of hosts' edges against all others grow by e^5, and nothing else moves.
    for paper in range(SIZES["paper"]):
        mass = torch.cat([before[r][edges[r][1] == paper] * (math.e**5 if r == HOSTS else 1) for r in METADATA[1][:3]])
        got = torch.cat([after[r][edges[r][1] == paper] for r in METADATA[1][:3]])
        assert torch.allclose(got, mass / mass.sum(0), atol=1e-12)
    assert torch.equal(before[LIKES], after[LIKES])


@pytest.mark.parametrize("width", [8, 6])
def test_hgt_is_a_configuration(width: int) -> None:
    geometric = pytest.importorskip("torch_geometric.nn")
    x, edges = inputs()
    x = {t: rows.repeat(1, 4)[:, :8] for t, rows in x.items()}
    theirs = geometric.HGTConv(8, width, METADATA, HEADS).double()
    for weight in (*theirs.p_rel.values(), *theirs.skip.values()):
        nn.init.normal_(weight)
    ours = HeteroAttention(
        8,
        width,
        METADATA,
        HEADS,
        priors={r: HeadScale(HEADS) for r in METADATA[1]},
        activation=nn.GELU(),
        residual="gated" if width == 8 else None,  # theirs leaves it out where sizes differ
    ).double()
    with torch.no_grad():
        for t in TYPES:
            parts = zip(theirs.kqv_lin.lins[t].weight.chunk(3), theirs.kqv_lin.lins[t].bias.chunk(3), strict=True)
            for linears, (weight, bias) in zip((ours.key, ours.query, ours.value), parts, strict=True):
                if f"<{t}>" in linears:
                    linears[f"<{t}>"].weight.copy_(weight)
                    linears[f"<{t}>"].bias.copy_(bias)
        for t in ("author", "paper"):
            ours.out[f"<{t}>"].load_state_dict(theirs.out_lin.lins[t].state_dict())
            if width == 8:
                ours.gate[f"<{t}>"].copy_(theirs.skip[t])
        by_relation = [w.weight.unflatten(0, (HEADS, -1)).transpose(0, 1) for w in (theirs.k_rel, theirs.v_rel)]
        for number, r in enumerate(METADATA[1]):
            name = f"<{'/'.join(r)}>"
            ours.key_map[name].copy_(by_relation[0][number])
            ours.value_map[name].copy_(by_relation[1][number])
            ours.priors[name].weight.copy_(theirs.p_rel["__".join(r)][0])
    for tensor in x.values():
        tensor.requires_grad_()
    out, expected = ours(x, edges), theirs(x, edges)
    close([out["author"], out["paper"]], [expected["author"], expected["paper"]])
    assert "venue" not in expected  # theirs drops the type that receives nothing
    both = [{t: o[t] for t in ("author", "paper")} for o in (out, expected)]
    wanted = [x[t] for t in ("author", "paper")]
    close(gradients(both[0], [*wanted, x["venue"]]), gradients(both[1], [*wanted, x["venue"]]))


class SemanticAttention(nn.Module):
    """HAN's attention over relations: a weight each from what its nodes heard on average."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.project = nn.Linear(channels, channels)
        self.query = nn.Parameter(torch.randn(channels))

    def forward(self, heard: Tensor) -> Tensor:
        heard = heard.relu()
        weights = (self.project(heard).tanh().mean(1) @ self.query).softmax(0)
        return (weights[:, None, None] * heard).sum(0)


def gat_scores(depth: int) -> dict[tuple[str, str, str], GAT]:
    return {
        r: GAT(*(nn.Parameter(torch.randn(HEADS, depth, dtype=torch.float64)) for _ in range(2))) for r in METADATA[1]
    }


def test_han_is_a_configuration() -> None:
    geometric = pytest.importorskip("torch_geometric.nn")
    x, edges = inputs()
    theirs = geometric.HANConv(CHANNELS, WIDTH, METADATA, HEADS).double()
    scores = gat_scores(WIDTH // HEADS)
    ours = HeteroAttention(
        CHANNELS, WIDTH, METADATA, HEADS, softmax="relation", score=scores, combine=SemanticAttention(WIDTH)
    ).double()
    with torch.no_grad():
        for linears in (ours.query, ours.key, ours.value):
            for t in TYPES:
                if f"<{t}>" in linears:
                    linears[f"<{t}>"].load_state_dict(theirs.proj[t].state_dict())
        for t in ("author", "paper"):
            ours.out[f"<{t}>"].weight.copy_(torch.eye(WIDTH))
            ours.out[f"<{t}>"].bias.zero_()
        for r in METADATA[1]:
            ours.key_map[f"<{'/'.join(r)}>"].copy_(torch.eye(WIDTH // HEADS).expand(HEADS, -1, -1))
            ours.value_map[f"<{'/'.join(r)}>"].copy_(torch.eye(WIDTH // HEADS).expand(HEADS, -1, -1))
            scores[r].att_src.copy_(theirs.lin_src["__".join(r)][0])
            scores[r].att_dst.copy_(theirs.lin_dst["__".join(r)][0])
        ours.combine.project.load_state_dict(theirs.k_lin.state_dict())
        ours.combine.query.copy_(theirs.q[0])
    out, expected = ours(x, edges), theirs(x, edges)
    close([out["author"], out["paper"]], [expected["author"], expected["paper"]])


def test_relational_gat_is_a_configuration() -> None:
    x, edges = inputs()
    scores = gat_scores(WIDTH // HEADS)
    made = layer(softmax="relation", score=scores)

    def score(r: tuple[str, str, str], h: int, q: Tensor, k: Tensor) -> Tensor:
        return leaky_relu(scores[r].att_dst[h] @ q + scores[r].att_src[h] @ k, 0.2)

    out, expected = made(x, edges), looped(made, x, edges, score=score)
    close([out[t] for t in TYPES], [expected[t] for t in TYPES])
    wanted = list(made.parameters())
    got = gradients(out, wanted)
    close(got, gradients(expected, wanted))
    assert scores[CITES].att_src in set(wanted)


def test_starts_again() -> None:
    priors = {CITES: EdgePrior(3, HEADS) + HeadScale(HEADS), HOSTS: HeadBias(HEADS)}
    made = HeteroAttention(WIDTH, WIDTH, METADATA, HEADS, priors=priors, residual="gated")
    for weight in made.parameters():
        nn.init.constant_(weight, 7.0)
    made.reset_parameters()
    for name, weight in made.named_parameters():
        assert (weight != 7.0).all(), name
    assert (priors[CITES].terms[1].weight == 1.0).all()
    assert (priors[HOSTS].weight == 0.0).all()


def test_a_prior_of_ones_own() -> None:
    class Even(RelationPrior):
        """Every second edge counts double."""

        def add(self, num_edges: int, edge_attr: Tensor | None, like: Tensor) -> Tensor:
            return (torch.arange(num_edges)[:, None] % 2 == 0).to(like) * math.log(2)

    x, edges = inputs()
    made = layer(priors={CITES: Even()})
    double = torch.tensor([0.0, math.log(2)], dtype=torch.float64)
    expected = looped(made, x, edges, lambda r, e, h: double[int(r == CITES and e % 2 == 0)])
    close([made(x, edges)[t] for t in TYPES], [expected[t] for t in TYPES])


def test_graphs_and_lists_of_edges_are_alike() -> None:
    x, edges = inputs()
    made = layer()
    graphs = {r: Graph(e, num_keys=SIZES[r[0]], num_queries=SIZES[r[2]]) for r, e in edges.items()}
    close(list(made(x, graphs).values()), list(made(x, edges).values()), 1e-15)
    narrow = {r: e.int() for r, e in edges.items()}
    close(list(made(x, narrow).values()), list(made(x, edges).values()), 1e-15)
    sparse = {}
    for r, (source, target) in edges.items():  # in an order of its own, which says nothing
        shape = SIZES[r[2]], SIZES[r[0]]
        ends = torch.stack([target, source])
        sparse[r] = torch.sparse_coo_tensor(ends, torch.ones(len(source)), shape, check_invariants=True)
    close(list(made(x, sparse).values()), list(made(x, edges).values()), 1e-15)


def test_order_of_types_and_relations_does_not_matter() -> None:
    x, edges = inputs()
    made = layer()
    turned = HeteroAttention(CHANNELS, WIDTH, (TYPES[::-1], METADATA[1][::-1]), HEADS).double()
    turned.load_state_dict(made.state_dict())
    out = turned(dict(reversed(x.items())), dict(reversed(edges.items())))
    close([out[t] for t in TYPES], list(made(x, edges).values()), 1e-12)


def test_half_precision_follows_float32() -> None:
    x, edges = inputs()
    attr = torch.randn(edges[CITES].shape[1], 3)
    made = layer(priors={CITES: EdgePrior(3, HEADS) + HeadScale(HEADS) + 0.1, HOSTS: 0.5}).float()
    exact = made({t: rows.float() for t, rows in x.items()}, edges, {CITES: attr})
    with torch.autocast("cpu", torch.bfloat16):
        cast = made({t: rows.float() for t, rows in x.items()}, edges, {CITES: attr})
    half = made.bfloat16()({t: rows.bfloat16() for t, rows in x.items()}, edges, {CITES: attr.bfloat16()})
    for t in TYPES:
        assert half[t].dtype == torch.bfloat16
        assert (half[t].float() - exact[t]).abs().max() < 0.05
        assert (cast[t].float() - exact[t]).abs().max() < 0.05


def test_takes_a_hetero_data() -> None:
    data_module = pytest.importorskip("torch_geometric.data")
    x, edges = inputs()
    data = data_module.HeteroData()
    for t, rows in x.items():
        data[t].x = rows
    for r, ends in edges.items():
        data[r].edge_index = ends
    data[CITES].edge_attr = torch.randn(edges[CITES].shape[1], 3, dtype=torch.float64)
    types, relations = data.metadata()
    made = HeteroAttention(CHANNELS, WIDTH, (types, relations), HEADS, priors={CITES: EdgePrior(3, HEADS)}).double()
    result = made(*hetero_inputs(data))
    assert {t: tuple(o.shape) for t, o in result.items()} == {t: (SIZES[t], WIDTH) for t in TYPES}
    close(list(made(data.x_dict, data.edge_index_dict, data.edge_attr_dict).values()), list(result.values()), 1e-15)
    del data["venue"].x
    with pytest.raises(ValueError, match="no x"):
        hetero_inputs(data)


def test_sizes_of_zero_and_one() -> None:
    made = layer()
    for count in (0, 1):
        x = {t: torch.randn(count, CHANNELS[t], dtype=torch.float64, requires_grad=True) for t in TYPES}
        ends = torch.zeros(2, count, dtype=torch.int64)
        out = made(x, dict.fromkeys(METADATA[1], ends))
        assert all(o.shape == (count, WIDTH) for o in out.values())
        sum(o.sum() for o in out.values()).backward()
        assert all(weight.grad is not None for weight in made.parameters())


def test_open_sizes_and_odd_names() -> None:
    x, edges = inputs()
    torch.manual_seed(0)
    made = HeteroAttention(-1, WIDTH, METADATA, HEADS)
    out = made({t: rows.float() for t, rows in x.items()}, edges)
    assert out["paper"].shape == (5, WIDTH)
    assert made.key["<venue>"].weight.shape == (WIDTH, 2)

    odd = ["items", "a.b", "a/b", "type"]  # as a table of modules would not take them
    relations = [("items", "a__b.c", "a.b"), ("items__a", "b", "a/b"), ("items", "keys", "type")]
    relations[1] = ("a/b", "b", "a.b")
    made = HeteroAttention(2, 4, (odd, relations))
    out = made({t: torch.randn(2, 2) for t in odd}, dict.fromkeys(relations, torch.tensor([[0, 1], [1, 0]])))
    assert list(out) == odd


@pytest.mark.parametrize("softmax", ["node", pytest.param("relation", marks=pytest.mark.slow)])
def test_compiles_whole(softmax: str) -> None:
    x, edges = inputs()
    attr = {CITES: torch.randn(edges[CITES].shape[1], 3, dtype=torch.float64)}
    made = layer(softmax=softmax, priors={CITES: EdgePrior(3, HEADS), HOSTS: 1.0}, activation=nn.GELU())
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    close(list(compiled(x, edges, attr).values()), list(made(x, edges, attr).values()), 1e-14)
    if softmax == "relation":  # a relation less is another program: once is enough
        fewer = {r: e for r, e in edges.items() if r != CITES}
        close(list(compiled(x, fewer).values()), list(made(x, fewer).values()), 1e-14)


X, EDGES = inputs()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"out_channels": 7}, "out_channels = 7 is no multiple of heads = 2"),
        ({"heads": 0}, "heads is 0"),
        ({"softmax": "all"}, "softmax is 'all'"),
        ({"residual": "mul"}, "residual is 'mul'"),
        ({"dropout": 1.5}, "dropout is 1.5"),
        ({"metadata": (["a"], [("a", "b", "c")])}, "joins a node type that is not among"),
        ({"metadata": (["a", "a"], [])}, "twice"),
        ({"metadata": (["a"], [("a", "a")])}, "it must be \\(type of sources"),
        ({"metadata": ["a"]}, "HeteroData.metadata"),
        ({"in_channels": {"author": 3}}, "in_channels has the node types"),
        ({"priors": {("author", "cites", "paper"): 1.0}}, "priors has .* no relation of the metadata"),
        ({"priors": {CITES: "high"}}, "the prior is 'high'"),
        ({"priors": {CITES: math.inf}}, "finite"),
        (
            {"priors": {CITES: HeadBias(3) + 1.0}},
            r"the prior HeadBias\(3\) of \(.*cites.* has 3 heads, but the layer has 2",
        ),
        ({"priors": {CITES: EdgePrior(2, 1)}}, "has 1 heads, but the layer has 2"),
        ({"combine": nn.Identity()}, "softmax='relation'"),
        ({"score": {CITES: Dot()}}, "softmax='relation'"),
        ({"softmax": "relation", "score": {CITES: Dot()}}, "give a Score for each relation"),
        ({"score": "dot"}, "score is 'dot'"),
        ({"priors": 1.0}, "priors is a float; give a dict"),
    ],
)
def test_what_is_wrong_is_said_when_the_layer_is_made(options: dict, message: str) -> None:
    given = {"in_channels": CHANNELS, "out_channels": WIDTH, "metadata": METADATA, "heads": HEADS, **options}
    with pytest.raises((ValueError, TypeError), match=message):
        HeteroAttention(**given)


@pytest.mark.parametrize(
    ("x", "edges", "attrs", "message"),
    [
        ({**X, "editor": X["paper"]}, EDGES, None, "x_dict has .'editor'."),
        ({"paper": X["paper"]}, EDGES, None, "x_dict lacks"),
        ({**X, "paper": X["author"]}, EDGES, None, r"x_dict\['paper'\] has shape \[4, 3\]"),
        ({**X, "paper": X["paper"].float()}, EDGES, None, "all must be alike"),
        ({**X, "venue": X["venue"].long()}, EDGES, None, "give floats"),
        (X, {**EDGES, ("a", "b", "c"): EDGES[CITES]}, None, "edge_index_dict has .* no relation"),
        (X, {**EDGES, CITES: EDGES[CITES].t()}, None, "sources then targets"),
        (X, {**EDGES, CITES: EDGES[CITES].double()}, None, "integers"),
        (X, {**EDGES, WRITES: torch.tensor([[4], [0]])}, None, "relation .*writes.* holds 4 at edge 0, .* 4 keys"),
        (X, {**EDGES, WRITES: torch.tensor([[0], [-1]])}, None, "relation .*writes.* holds -1"),
        (X, {**EDGES, WRITES: Graph(EDGES[WRITES], num_keys=9)}, None, "9 nodes"),
        (X, EDGES, {CITES: torch.ones(7, 3)}, "no prior reads them"),
        (X, EDGES, {("a", "b", "c"): torch.ones(7, 3)}, "no relation"),
        (X, EDGES, None, "edge_attr_dict lacks them"),
        (X, EDGES, {HOSTS: torch.ones(7, 3)}, r"must be \[E, F\] = \[8, 3\]"),
        (X, EDGES, {HOSTS: torch.ones(8, 3).long()}, "give floats"),
        (X, list(EDGES), None, "give a dict"),
    ],
)
def test_what_is_wrong_with_a_call_is_said_by_name(x: dict, edges: dict, attrs: dict | None, message: str) -> None:
    features = (attrs is not None and HOSTS in attrs) or "lacks them" in message
    made = layer(priors={HOSTS: EdgePrior(3, HEADS)} if features else None)
    with pytest.raises((ValueError, TypeError), match=message):
        made(x, edges, attrs)


def test_errors_of_priors_and_flags() -> None:
    with pytest.raises(ValueError, match="same number"):
        EdgePrior(2, HEADS) + EdgePrior(3, HEADS)
    with pytest.raises(ValueError, match="heads is 0"):
        HeadBias(0)
    with pytest.raises(TypeError, match="return_attention_weights"):
        layer()(X, EDGES, return_attention_weights=1)
    assert repr(EdgePrior(2, 1) + 2.0) == "EdgePrior(2, 1) + Constant(2)"
    with pytest.raises(TypeError, match="the prior is 'high'"):
        EdgePrior(2, 1) + "high"
    flat = HeteroAttention(CHANNELS, WIDTH, METADATA, HEADS, softmax="relation", combine=nn.Identity()).double()
    with pytest.raises(ValueError, match="combine made"):
        flat(X, EDGES)
    residual = HeteroAttention(CHANNELS, WIDTH, METADATA, HEADS, residual="add").double()
    with pytest.raises(ValueError, match="residual='add'"):
        residual(X, EDGES)
