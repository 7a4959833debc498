"""GraphNet: packed graphs beside single ones, its parts beside formulas and torch-geometric, and what it refuses."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import elu, gelu, layer_norm

from unified_attn import Documents, Graph, ShortestPath, attention
from unified_attn.models import GraphNet, GraphNetConfig, gat, gatv2, gps, graphormer, pack_graphs
from unified_attn.models.graph_priors import FirstRows, VirtualBias

SMALL = GraphNetConfig(in_channels=3, out_channels=2, channels=8, num_layers=2, num_heads=2, local="gat")
GLOBAL = replace(SMALL, local=None, global_attention=True, ff_channels=10)
PRIORS = replace(GLOBAL, max_degree=3, max_distance=3, max_path_length=4, edge_dim=2, virtual_node=True)
CONFIGS = {
    "gat": SMALL,
    "gatv2, edge features": replace(SMALL, local="gatv2", edge_dim=2),
    "transformer, edge types": replace(SMALL, local="transformer", num_edge_types=3, ff_channels=6),
    "global": GLOBAL,
    "graphormer": replace(PRIORS, output="graph", pooling="virtual"),
    "graphormer of codes and types": replace(
        PRIORS, in_channels=0, num_node_types=4, edge_dim=0, num_edge_types=3, output="graph", pooling="mean"
    ),
    "gps": replace(
        PRIORS, local="gatv2", laplacian_size=2, walk_length=3, output="graph", pooling="sum", virtual_node=False
    ),
    "gps, virtual node, rows of nodes": replace(PRIORS, local="transformer", laplacian_size=2),
}


def path_tables(edge_index: Tensor, size: int, longest: int) -> tuple[Tensor, Tensor]:
    """Lengths of shortest paths from key j to query i along the edges, and their first edges seen from i."""
    distance, paths = torch.full((size, size), -1), torch.full((size, size, longest), -1)
    for key in range(size):
        distance[key, key] = 0
        queue, entered = deque([key]), {}
        while queue:
            node = queue.popleft()
            for edge, (source, target) in enumerate(edge_index.t().tolist()):
                if source == node and distance[target, key] < 0:
                    distance[target, key] = distance[node, key] + 1
                    entered[target] = (edge, node)
                    queue.append(target)
        for query in entered:
            node, place = query, 0
            while node != key and place < longest:
                paths[query, key, place], node = entered[node]
                place += 1
    return distance, paths


def example(config: GraphNetConfig, size: int, seed: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """A graph with what the network reads."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(max(size, 1), (2, 2 * size if size > 1 else 0), generator=generator)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    c = config
    graph = {"x": normal(size, 3) if c.in_channels else torch.randint(4, (size,), generator=generator)}
    graph["edge_index"] = edges
    if c.edge_dim:
        graph["edge_attr"] = normal(edges.shape[1], c.edge_dim)
    if c.num_edge_types:
        graph["edge_types"] = torch.randint(c.num_edge_types, edges.shape[1:], generator=generator)
    if c.laplacian_size:
        graph["laplacian"] = normal(size, c.laplacian_size)
    if c.walk_length:
        graph["walks"] = normal(size, c.walk_length)
    distance, paths = path_tables(edges, size, min(4, size))  # of several sizes: packing fills up
    if c.max_distance:
        graph["distance"] = distance
    if c.max_path_length:
        graph["paths"] = paths
    return graph


def network(config: GraphNetConfig, seed: int = 0) -> GraphNet:
    """In float64, all weights away from 0, where priors and degrees start."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = GraphNet(config).double()
        for weight in made.parameters():
            nn.init.normal_(weight, std=0.5)
    return made


def gradients(out: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=out.dtype)
    return list(torch.autograd.grad((out * weight).sum(), wanted))


def assert_close(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 1e-9) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        assert not a.numel() or (a - b).abs().max() <= tolerance * max(1.0, float(b.detach().abs().max()))


# Few graphs are dense tables to the operator, many are lists of pairs.
@pytest.mark.parametrize("nodes", [(4, 1), (4, 1, 6, 3, 4, 2)], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_packed_graphs_equal_single_ones(name: str, nodes: tuple[int, ...]) -> None:
    config = CONFIGS[name]
    model = network(config).eval()
    singles = [example(config, size, seed) for seed, size in enumerate(nodes)]
    packed = pack_graphs(singles)
    names = [key for key in ("x", "edge_attr", "laplacian", "walks") if key in packed]
    floats = [key for key in names if packed[key].is_floating_point()]
    for graph in [packed, *singles]:
        for key in floats:
            graph[key].requires_grad_()
    together = model(**packed)
    alone = torch.cat([model(**graph) for graph in singles])
    assert_close([together], [alone])
    weights = list(model.parameters())
    got = gradients(together, [*weights, *(packed[key] for key in floats)])
    expected = gradients(alone, [*weights, *(graph[key] for key in floats for graph in singles)])
    assert_close(got[: len(weights)], expected[: len(weights)])
    for n in range(len(floats)):
        own = expected[len(weights) + n * len(singles) :][: len(singles)]
        assert_close([got[len(weights) + n]], [torch.cat(own)])
    for (label, _), grad in zip(model.named_parameters(), got, strict=False):
        # A constant added to all keys, and so to all logits of a query, is what a softmax does not see.
        assert "k_proj.bias" in label or "lin_key.bias" in label or grad.abs().max() > 0, label


def by_hand(model: GraphNet, graph: dict[str, Tensor], config: GraphNetConfig) -> Tensor:
    """One graph through a network without local part, from its weights alone: dense tables and loops."""
    w = dict(model.named_parameters())
    size, heads, depth = graph["x"].shape[0], config.num_heads, config.channels // config.num_heads
    source, target = graph["edge_index"]
    h = graph["x"] @ w["nodes.features.weight"].t() + w["nodes.features.bias"]
    for side, ends in (("in", target), ("out", source)):
        degree = torch.tensor([min(int((ends == node).sum()), config.max_degree) for node in range(size)])
        h = h + w[f"nodes.{side}_degree.weight"][degree]
    h = torch.cat([h, w["virtual"][None]])
    rows = []
    for i in range(size + 1):
        for j in range(size + 1):
            if size in (i, j):
                rows.append(w["priors.virtual"])
                continue
            length = int(graph["distance"][i, j])
            total = w["priors.distance.weight"][4 if length < 0 else min(length, 3)]
            path = [int(edge) for edge in graph["paths"][i, j] if edge >= 0]
            for place, edge in enumerate(path):
                total = total + w["priors.paths.weight"][place] @ graph["edge_attr"][edge] / len(path)
            for edge in ((source == j) & (target == i)).nonzero()[:, 0]:
                total = total + w["priors.edges.weight"] @ graph["edge_attr"][edge]
            rows.append(total)
    bias = torch.stack(rows).reshape(size + 1, size + 1, heads)
    for n in range(config.num_layers):
        block = f"blocks.{n}"

        def linear(x: Tensor, name: str) -> Tensor:
            return x @ w[f"{name}.weight"].t() + w[f"{name}.bias"]

        def norm(x: Tensor, name: str) -> Tensor:
            return layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])

        y = norm(h, f"{block}.norm")
        q, k, v = (linear(y, f"{block}.attention.{p}_proj").reshape(-1, heads, depth) for p in "qkv")
        logits = torch.einsum("ihd,jhd->ijh", q, k) / math.sqrt(depth) + bias
        heard = torch.einsum("ijh,jhd->ihd", logits.softmax(1), v).reshape(size + 1, -1)
        h = h + linear(heard, f"{block}.attention.o_proj")
        inner = gelu(linear(norm(h, f"{block}.feed_forward.0"), f"{block}.feed_forward.1"))
        h = h + linear(inner, f"{block}.feed_forward.4")
    return linear(norm(h[size:], "norm"), "head")


def test_a_graphormer_equals_its_formula() -> None:
    config = CONFIGS["graphormer"]
    model = network(config)
    graph = example(config, 6, 7)
    assert (graph["distance"] == -1).any()  # every kind of pair is there
    assert (graph["distance"] > 2).any()
    ours, theirs = model(**graph), by_hand(model, graph, config)
    assert_close([ours], [theirs])
    weights = list(model.parameters())
    assert_close(gradients(ours, weights), gradients(theirs, weights))


@pytest.mark.parametrize(
    ("local", "peer"), [("gat", "GATConv"), ("gatv2", "GATv2Conv"), ("transformer", "TransformerConv")]
)
def test_a_block_sums_torch_geometrics_layer_along_edges_and_attention(local: str, peer: str) -> None:
    geometric = pytest.importorskip("torch_geometric.nn")
    config = replace(GLOBAL, local=local, num_layers=1)
    model = network(config)
    graph = example(config, 6, 1)
    graph["edge_index"] = graph["edge_index"][:, graph["edge_index"][0] != graph["edge_index"][1]]
    block = model.blocks[0]
    layer = getattr(geometric, peer)(8, 4, heads=2).double()
    layer.load_state_dict(block.local.state_dict())
    x = model.nodes.features(graph["x"])
    y = block.norm(x)
    a = block.attention
    q, k, v = (p(y).reshape(6, 2, 4).transpose(0, 1) for p in (a.q_proj, a.k_proj, a.v_proj))
    heard = nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(6, 8)
    h = x + elu(layer(y, graph["edge_index"])) + a.o_proj(heard)
    expected = model.head(model.norm(h + block.feed_forward(h)))
    assert_close([model(**graph)], [expected])
    weights = list(model.nodes.parameters())
    assert_close(gradients(model(**graph), weights), gradients(expected, weights))


def test_priors_start_where_they_change_nothing_and_each_matters() -> None:
    graph = example(PRIORS, 6, 3)
    torch.manual_seed(0)
    model = GraphNet(PRIORS).double()
    base = model(**graph)
    with torch.no_grad():
        torch.manual_seed(0)
        plain = GraphNet(replace(PRIORS, max_distance=0, max_path_length=0, edge_dim=0)).double()
        plain.load_state_dict(model.state_dict(), strict=False)
        kept = {key: graph[key] for key in ("x", "edge_index")}
        assert_close([base], [plain(**kept)], 1e-12)
        for name, weight in model.priors.named_parameters():
            before = weight.clone()
            weight.normal_()
            assert (model(**graph) - base).abs().max() > 1e-4, name
            weight.copy_(before)
        for table in (model.nodes.in_degree, model.nodes.out_degree):
            table.weight.normal_()
            assert (model(**graph) - base).abs().max() > 1e-4
            table.weight.zero_()


@pytest.mark.parametrize("backend", ["reference", "sdpa", "tiled", "flex", "csr", "scatter"])
def test_priors_of_nodes_are_alike_on_every_back_end(backend: str) -> None:
    # Graphs of 3 and 2 nodes, then their virtual nodes; with v = I each row of the output is a row of weights.
    lengths, sizes = torch.tensor([0, 1, 2, 1, 0, 1, -1, 9, 0, 0, 1, -1, 0]), torch.tensor([3, 2])
    path = ShortestPath(2, num_heads=1).double()
    path.weight.data = torch.tensor([[0.1], [1.0], [2.0], [-3.0]], dtype=torch.float64)
    bias = FirstRows(path(lengths, sizes), 5) + VirtualBias(torch.tensor([0.5], dtype=torch.float64), 5)
    table = torch.tensor(
        [
            [0.1, 1.0, 2.0, -math.inf, -math.inf, 0.5, -math.inf],
            [1.0, 0.1, 1.0, -math.inf, -math.inf, 0.5, -math.inf],
            [-3.0, 2.0, 0.1, -math.inf, -math.inf, 0.5, -math.inf],
            [-math.inf, -math.inf, -math.inf, 0.1, 1.0, -math.inf, 0.5],
            [-math.inf, -math.inf, -math.inf, -3.0, 0.1, -math.inf, 0.5],
            [0.5, 0.5, 0.5, -math.inf, -math.inf, 0.5, -math.inf],
            [-math.inf, -math.inf, -math.inf, 0.5, 0.5, -math.inf, 0.5],
        ],
        dtype=torch.float64,
    )
    mask = Documents(torch.tensor([0, 0, 0, 1, 1, 0, 1]))
    q, v = torch.zeros(1, 1, 7, 8, dtype=torch.float64), torch.eye(7, dtype=torch.float64)[None, None]
    if backend == "flex":  # float32, and forward alone
        q, v, bias = q.float(), v.float(), bias.float()
    with torch.set_grad_enabled(backend != "flex"):
        out = attention(q, q, v, mask=mask, bias=bias, backend=backend)
    assert_close([out[0, 0].double()], [table.softmax(1)], 1e-6 if backend == "flex" else 1e-12)


def test_blocks_of_lengths_and_paths_equal_tables() -> None:
    model = network(PRIORS)
    singles = [example(PRIORS, size, seed) for seed, size in enumerate((3, 5))]
    packed = pack_graphs(singles)
    distance, paths = torch.full((8, 8), -1), torch.full((8, 8, 4), -1)
    distance[:3, :3], distance[3:, 3:] = singles[0]["distance"], singles[1]["distance"]
    paths[:3, :3, :3] = singles[0]["paths"]
    moved = singles[1]["paths"]
    paths[3:, 3:] = torch.where(moved < 0, moved, moved + 6)
    tables = {**packed, "distance": distance, "paths": paths}
    ours, theirs = model(**packed), model(**tables)
    assert_close([ours], [theirs])
    weights = list(model.parameters())
    assert_close(gradients(ours, weights), gradients(theirs, weights))


def test_lengths_tell_apart_what_edges_alone_do_not() -> None:
    # A ring of six and two rings of three: every node has two neighbours, so attention along edges sees no difference.
    def rings(length: int) -> dict[str, Tensor]:
        nodes = torch.arange(6)
        following = nodes // length * length + (nodes + 1) % length
        edges = torch.stack([torch.cat([nodes, following]), torch.cat([following, nodes])])
        return {
            "x": torch.ones(6, 3, dtype=torch.float64),
            "edge_index": edges,
            "distance": path_tables(edges, 6, 1)[0],
        }

    config = replace(SMALL, output="graph", max_degree=3)
    model = network(config)
    outs = [model(graph["x"], graph["edge_index"]) for graph in (rings(6), rings(3))]
    assert_close([outs[0]], [outs[1]], 1e-12)
    model = network(
        replace(config, local=None, global_attention=True, max_distance=3, virtual_node=True, pooling="virtual")
    )
    with torch.no_grad():  # equal nodes say the same thing, so what differs is how much the virtual node's is heard
        outs = [model(**graph) for graph in (rings(6), rings(3))]
    assert (outs[0] - outs[1]).abs().max() > 1e-3


def test_order_of_nodes_and_edges_does_not_matter() -> None:
    config = CONFIGS["gps, virtual node, rows of nodes"]
    model = network(config).eval()
    graph = example(config, 6, 2)
    order, edge_order = torch.randperm(6), torch.randperm(12)
    place = order.argsort()
    renamed = {
        **{key: graph[key][order] for key in ("x", "laplacian")},
        "edge_index": place[graph["edge_index"]][:, edge_order],
        "edge_attr": graph["edge_attr"][edge_order],
        "distance": graph["distance"][order][:, order],
    }
    paths = graph["paths"][order][:, order]
    renamed["paths"] = torch.where(paths < 0, paths, edge_order.argsort()[paths])
    assert_close([model(**renamed)], [model(**graph)[order]])


def test_signs_of_eigenvectors_are_random_in_training_alone_and_repeat_with_the_seed() -> None:
    config = replace(SMALL, laplacian_size=2)
    model = network(config)
    singles = [example(config, size, seed) for seed, size in enumerate((4, 5))]
    packed = pack_graphs(singles)
    draws = []
    for seed in range(12):
        torch.manual_seed(seed)
        draws.append(model(**packed))
        torch.manual_seed(seed)
        assert torch.equal(draws[-1], model(**packed))
    model.eval()
    assert torch.equal(model(**packed), model(**packed))
    signed = []
    for graph in singles:  # each graph has signs of its own: all four, in some draw
        options = [torch.tensor([a, b]) for a in (-1.0, 1.0) for b in (-1.0, 1.0)]
        signed.append([model(**{**graph, "laplacian": graph["laplacian"] * option}) for option in options])
    seen = set()
    for draw in draws:
        found = []
        for outs, rows in zip(signed, draw.split([4, 5]), strict=True):
            matches = [n for n, out in enumerate(outs) if torch.allclose(out, rows, atol=1e-10)]
            assert len(matches) == 1
            found.append(matches[0])
        seen.add(tuple(found))
    assert len({first for first, _ in seen}) > 2
    assert any(first != second for first, second in seen)


def test_sizes_of_zero_and_one() -> None:
    for name in ("graphormer", "gps", "gatv2, edge features"):
        config = CONFIGS[name]
        model = network(config)
        for size in (0, 1):
            out = model(**example(config, size, 0))
            assert out.shape == (1 if config.output == "graph" else size, 2)
            assert out.isfinite().all()
            out.sum().backward()
        packed = pack_graphs([example(config, size, size) for size in (0, 3, 0)])
        out = model(**packed)
        assert out.shape == (3, 2)
        assert out.isfinite().all()
        out.sum().backward()
        assert all(weight.grad is not None for weight in model.parameters())


def test_a_graph_is_as_good_as_its_edges_and_dropout_stops_in_evaluation() -> None:
    config = replace(CONFIGS["gps"], dropout=0.5, attention_dropout=0.5, laplacian_size=0)
    model = network(config)
    graph = example(config, 5, 1)
    assert not torch.equal(model(**graph), model(**graph))
    model.eval()
    shared = {**graph, "edge_index": Graph(graph["edge_index"], num_keys=5)}
    assert torch.equal(model(**graph), model(**shared))


@pytest.mark.parametrize(
    "name",
    ["gatv2, edge features", pytest.param("gps, virtual node, rows of nodes", marks=pytest.mark.slow)],
)
def test_compiles_whole(name: str) -> None:
    config = replace(CONFIGS[name], num_layers=1)
    model = network(config).eval()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for sizes in ((4, 3),) if config.local == "gatv2" else ((4, 3), (2, 5, 6)):
        packed = pack_graphs([example(config, size, size) for size in sizes])
        assert_close([compiled(**packed)], [model(**packed)], 1e-12)


@pytest.mark.parametrize("name", ["graphormer", "gps, virtual node, rows of nodes"])
def test_half_precision_follows_float32(name: str) -> None:
    model = network(CONFIGS[name]).float().eval()
    packed = pack_graphs([example(CONFIGS[name], size, size, torch.float32) for size in (4, 3, 5, 2, 6)])
    exact = model(**packed)
    with torch.autocast("cpu", torch.bfloat16):
        cast = model(**packed)
    assert (cast - exact).abs().max() < 0.05
    halves = {k: v.bfloat16() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in packed.items()}
    half = model.bfloat16()(**halves)
    assert half.dtype == torch.bfloat16
    assert (half - exact).abs().max() < 0.05
    half.sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


def test_presets_are_rows_of_values() -> None:
    assert gat(5, 2).local == "gat"
    assert gatv2(5, 2).local == "gatv2"
    assert graphormer(4, 3, 2).virtual_node
    assert gps(4, 3, 2).global_attention
    with pytest.raises(AttributeError):
        gat(5, 2).local = "gatv2"
    for config in (graphormer(4, 3, 2), gps(4, 3, 2)):
        few = replace(config, num_layers=1)
        assert GraphNet(few)(**example(few, 4, 0, torch.float32)).shape == (1, 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"channels": 0}, "channels is 0"),
        ({"num_layers": 1.5}, "num_layers is 1.5"),
        ({"dropout": -0.1}, "dropout is -0.1"),
        ({"attention_dropout": "no"}, "attention_dropout is 'no'"),
        ({"local": "gin"}, "local is 'gin'"),
        ({"output": "edge"}, "output is 'edge'"),
        ({"pooling": "max"}, "pooling is 'max'"),
        ({"global_attention": 1}, "global_attention is 1"),
        ({"num_node_types": 4}, "in_channels is 3 and num_node_types 4"),
        ({"in_channels": 0}, "in_channels is 0 and num_node_types 0"),
        ({"edge_dim": 2, "num_edge_types": 2}, "features or a type"),
        ({"local": None}, "nobody would listen"),
        ({"num_heads": 3}, "channels = 8 is no multiple of num_heads = 3"),
        ({"max_distance": 3}, "max_distance = 3 is a prior of global attention"),
        ({"virtual_node": True}, "virtual_node = True is a prior of global attention"),
        ({"global_attention": True, "max_path_length": 3}, "needs edge_dim or num_edge_types"),
        ({"global_attention": True, "pooling": "virtual", "output": "graph"}, "needs virtual_node=True"),
    ],
)
def test_a_configuration_that_contradicts_itself_is_refused(values: dict, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        replace(SMALL, **values)


GRAPH = example(PRIORS, 4, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": GRAPH["x"][:, :2]}, r"x is \[4, 2\] float64; it must be \[N, F\], F = 3"),
        ({"x": torch.zeros(4, 3).long()}, "give floats"),
        ({"x": [1.0, 2.0]}, "x is a list"),
        ({"edge_attr": None}, "edge_attr is missing; the network was made with edge_dim = 2"),
        ({"distance": None}, "distance is missing"),
        ({"edge_types": torch.zeros(8).long()}, "edge_types is given, but .* num_edge_types = 0"),
        ({"walks": torch.zeros(4, 2)}, "walks is given"),
        ({"edge_index": GRAPH["edge_index"] + 1}, "but there are 4"),
        ({"edge_index": GRAPH["edge_index"].t()}, "sources then targets"),
        ({"edge_attr": GRAPH["edge_attr"][:7]}, r"edge_attr is \[7, 2\]"),
        ({"distance": GRAPH["distance"][:3]}, r"distance must be \[N, N\], or flattened blocks"),
        ({"distance": GRAPH["distance"][:3, :3]}, "blocks have 3 nodes in all"),
        ({"paths": GRAPH["paths"][:3]}, r"paths must be \[N, N, L\]"),
        ({"distance": GRAPH["distance"].flatten()[:9]}, "blocks ask for 16 pairs"),
        ({"paths": GRAPH["paths"] + 8}, "paths holds"),
        ({"batch": torch.tensor([0, 1, 0, 1])}, "batch falls from 1 to 0"),
        ({"batch": torch.tensor([0, 0, 1])}, "but x has 4 rows"),
        ({"batch": torch.zeros(4)}, "batch"),
        ({"batch": torch.tensor([0, 0, 1, 2]), "num_graphs": 2}, "batch holds 2, but there are 2 graphs"),
        ({"batch": torch.tensor([-1, 0, 1, 2])}, "batch holds -1"),
        ({"num_graphs": 2}, "batch is missing"),
        ({"num_graphs": 1.0}, "num_graphs is 1.0"),
    ],
)
def test_a_call_that_does_not_fit_is_refused(change: dict, message: str) -> None:
    model = network(PRIORS)
    with pytest.raises((ValueError, TypeError), match=message):
        model(**{**GRAPH, **change})


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        pack_graphs([])
    with pytest.raises(ValueError, match=r"hold \['colour'\]"):
        pack_graphs([{**GRAPH, "colour": GRAPH["x"]}])
    with pytest.raises(ValueError, match=r"lack \['edge_index'\]"):
        pack_graphs([{"x": GRAPH["x"]}])
    with pytest.raises(ValueError, match="all must hold the same"):
        pack_graphs([GRAPH, {"x": GRAPH["x"], "edge_index": GRAPH["edge_index"]}])
    with pytest.raises(ValueError, match="has 4 nodes, but distance"):
        pack_graphs([{**GRAPH, "distance": GRAPH["distance"][:3]}])
    with pytest.raises(TypeError, match="graphs is a generator; give a list"):
        pack_graphs(graph for graph in [GRAPH])
    with pytest.raises(TypeError, match="edge_types of graph 0 is a NoneType; give a tensor"):
        pack_graphs([{**GRAPH, "edge_types": None}])
    with pytest.raises(TypeError, match="GraphNetConfig"):
        GraphNet({"in_channels": 3})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edge_index": torch.tensor([[0, 4], [1, 1]])}, "graph 1: .*holds 4 at edge 1, but there are 4"),
        ({"edge_index": torch.tensor([[0, 1], [-1, 1]])}, "graph 1: .*holds -1 at edge 0"),
        ({"edge_index": torch.tensor([[0, 1], [1, 1], [2, 2]])}, "graph 1: .*turned round"),
        ({"edge_attr": torch.zeros(1, 2)}, r"graph 1 has 2 edges, but edge_attr is \[1, 2\] float32: a row each"),
        ({"laplacian": torch.zeros(5, 2)}, r"graph 1 has 4 nodes, but laplacian is \[5, 2\] float32: a row each"),
    ],
)
def test_what_is_packed_must_fit_its_own_graph(change: dict, message: str) -> None:
    """Side by side, one graph's row or edge too many would be its neighbour's."""
    good = {
        "x": torch.zeros(4, 3),
        "edge_index": torch.tensor([[0, 1], [1, 2]]),
        "edge_attr": torch.zeros(2, 2),
        "laplacian": torch.zeros(4, 2),
    }
    with pytest.raises(ValueError, match=message):
        pack_graphs([good, {**good, **change}, good])


def test_graphs_are_packed_as_their_edges_are() -> None:
    edges = torch.tensor([[0, 1], [1, 2]])
    one, other = ({"x": torch.zeros(4, 3), "edge_index": e} for e in (edges, Graph(edges, num_keys=4)))
    assert torch.equal(pack_graphs([one, one])["edge_index"], pack_graphs([other, one])["edge_index"])


def test_an_edge_between_two_graphs_of_a_batch_is_refused() -> None:
    model = GraphNet(gat(3, 2))
    with pytest.raises(ValueError, match="edge 1 joins node 1 of graph 0 to node 2 of graph 1"):
        model(torch.zeros(4, 3), torch.tensor([[0, 1], [1, 2]]), batch=torch.tensor([0, 0, 1, 1]))
