"""Learned biases: buckets and distances, edges, nodes and paths; what they load, train and refuse."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.cases.tools import ON_EDGES, WAYS, assert_same, close, complete, edges, formula, inputs, run, weights
from unified_attn import (
    ALiBi,
    Causal,
    DenseMask,
    EdgeBias,
    EdgeFeatures,
    EdgeTypes,
    Graph,
    NodeTypes,
    Padding,
    PathFeatures,
    RelativeBias,
    RoPE,
    ShortestPath,
    T5Bias,
    attention,
    attention_weights,
    models,
)

every_way = pytest.mark.parametrize("way", WAYS)
on_edges = pytest.mark.parametrize("backend", ON_EDGES)

EDGES = edges((0, 1), (2, 1), (1, 0), (3, 3), (0, 1))  # with a parallel one and a loop
MODULES: dict[str, Callable[[], nn.Module]] = {
    "RelativeBias": lambda: RelativeBias(2, max_distance=2),
    "T5Bias": lambda: T5Bias(2, num_buckets=8, max_distance=6),
    "T5Bias, causal": lambda: T5Bias(2, num_buckets=4, max_distance=4, bidirectional=False),
    "EdgeFeatures": lambda: EdgeFeatures(3, 2),
    "EdgeTypes": lambda: EdgeTypes(3, 2),
    "NodeTypes": lambda: NodeTypes(3, 2),
    "ShortestPath": lambda: ShortestPath(2, 2),
    "ShortestPath, blocks": lambda: ShortestPath(2, 2),
    "PathFeatures": lambda: PathFeatures(3, max_length=2, num_heads=2),
    "PathFeatures, blocks": lambda: PathFeatures(3, max_length=2, num_heads=2),
}
every_module = pytest.mark.parametrize("name", MODULES)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


DISTANCE = torch.tensor([[0, 1, 2, -1], [1, 0, 1, -1], [9, 1, 0, -1], [-1, -1, -1, 0]])
PATHS = torch.tensor(
    [
        [[-1, -1], [0, -1], [0, 1], [-1, -1]],
        [[2, -1], [-1, -1], [1, -1], [-1, -1]],
        [[1, 2], [1, -1], [-1, -1], [3, 4]],
        [[-1, -1], [-1, -1], [3, -1], [-1, -1]],
    ]
)


def data(name: str) -> tuple[Any, ...]:
    """What a module of that name is called on, for 4 nodes and the 5 edges above; None of the positional ones."""
    return {
        "EdgeFeatures": (random(5, 3),),
        "EdgeTypes": (torch.tensor([0, 2, 1, 2, 0]),),
        "NodeTypes": (torch.tensor([0, 1, 2, 1]), torch.tensor([[2, 0, 1, 1], [0, 0, 1, 2]])),
        "ShortestPath": (DISTANCE,),
        "ShortestPath, blocks": ([DISTANCE[:3, :3], DISTANCE[3:, 3:]],),
        "PathFeatures": (random(5, 3), PATHS),
        "PathFeatures, blocks": (random(5, 3), [PATHS[:3, :3].clamp(max=2), torch.tensor([[[3]]])]),
    }.get(name, ())


def made(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A module with a random weight."""
    module = MODULES[name]().to(dtype)
    module.weight.data.copy_(random(*module.weight.shape, seed=1))
    return module


def bias_of(name: str, module: nn.Module) -> Any:
    """The bias to pass on, its data in the dtype of the module."""
    given = data(name)
    cast = [x.to(module.weight.dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in given]
    return module(*cast) if given else module


def call(name: str, q: Tensor, k: Tensor, v: Tensor, bias: Any, backend: str = "reference") -> Tensor:
    mask = Graph(EDGES) if name.startswith("Edge") else complete(4, 4) if backend != "reference" else None
    return attention(q, k, v, mask=mask, bias=bias, backend=backend)


# --- T5

TABLE = {
    True: {-20: 10, -8: 8, -1: 1, 0: 0, 1: 17, 8: 24, 20: 26},
    False: {3: 0, -1: 1, -16: 16, -200: 31, 0: 0, 1: 0},
}


@pytest.mark.parametrize("both", TABLE)
def test_buckets_of_the_published_sizes(both: bool) -> None:
    """Bidirectional buckets in a decoder, or the direction turned: huggingface/transformers #7323, candle #899."""
    found = T5Bias(1, bidirectional=both).bucket(torch.tensor(list(TABLE[both])))
    assert found.tolist() == list(TABLE[both].values())


@pytest.mark.parametrize(
    ("buckets", "most", "both"),
    [
        (32, 128, True), (32, 128, False), (64, 128, True), (16, 64, True), (32, 20, True), (12, 100, True),
        (4, 8, True), (2, 8, False), (33, 128, False), (320, 800, True), (6, 20, True), (8, 128, False),
    ],
)  # fmt: skip
def test_buckets_are_those_of_transformers_at_every_distance(buckets: int, most: int, both: bool) -> None:
    """Logarithms rounded at the edge of a bucket move a distance to its neighbour: here the edges are integers."""
    pytest.importorskip("transformers", reason="transformers is not installed, whose buckets this compares with")
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-100_000, 100_001)
    wanted = T5Attention._relative_position_bucket(distance, both, buckets, most)
    assert torch.equal(T5Bias(1, buckets, most, both).bucket(distance), wanted)


@every_way
@pytest.mark.parametrize("decoder", [False, True], ids=["encoder", "decoder"])
def test_it_loads_the_weight_of_a_t5_layer_and_gives_its_bias(way: str, decoder: bool) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed, whose layer this compares with")
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=8, d_kv=4, num_heads=2, is_decoder=decoder)
    torch.manual_seed(0)
    layer = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    layer.relative_attention_bias.weight.data.normal_()
    bias = T5Bias(2, bidirectional=not decoder)
    bias.load_state_dict(layer.relative_attention_bias.state_dict())
    q, k, v = inputs(40, dtype=torch.float32)
    mask = Causal() if decoder else None
    got = run(way, q, k, v, mask, bias=bias, scale=1.0)
    allowed = torch.ones(40, 40, dtype=torch.bool).tril() if decoder else None
    want = formula(q, k, v, allowed, layer.compute_bias(40, 40), scale=1.0)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


# --- positions and caches


@every_way
@pytest.mark.parametrize("name", ["RelativeBias", "T5Bias", "T5Bias, causal"])
@pytest.mark.parametrize("steps", [[1] * 6, [2, 4], [4, 1, 1]], ids=str)
def test_step_equals_whole(way: str, name: str, steps: list[int]) -> None:
    """The offset was ignored with a cache, or the bias dropped after the first token: transformers #8518."""
    bias = made(name) + RoPE(4) + ALiBi(2)
    q, k, v = inputs(6)
    whole, done, pieces = run("reference", q, k, v, Causal(), bias=bias), 0, []
    for step in steps:
        done += step
        pieces.append(run(way, q[:, :, done - step : done], k[:, :, :done], v[:, :, :done], Causal(), bias=bias))
    assert_same(torch.cat(pieces, 2), whole, q, k, v, bias.terms[0].weight)


@every_way
def test_padding_of_an_encoder_changes_nothing_for_the_decoder(way: str) -> None:
    """Decoder and encoder positions were compared as one sequence: attention_with_linear_biases #5.

    With positions given for both sides, keys that are hidden behind the end leave every result as it was.
    """
    q, k, v = inputs(3, 9)
    keep = (torch.arange(9) < 5)[None]
    for name in ("RelativeBias", "T5Bias"):
        bias = made(name)
        at = {"q_positions": torch.arange(3)}
        padded = run(way, q, k, v, Padding(keep), bias=bias, k_positions=torch.arange(9), **at)
        short = run(way, q, k[:, :, :5], v[:, :, :5], bias=bias, k_positions=torch.arange(5), **at)
        assert_same(padded, short, q, k, v, bias.weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_positions_far_from_the_start_keep_their_bucket_in_half(dtype: torch.dtype) -> None:
    """Positions above 256 collide in bfloat16; here only the values are halves."""
    zero = torch.zeros(1, 2, 2, 4, dtype=dtype)
    bias = made("RelativeBias").to(dtype)
    for at in (0, 8190):
        i, j = torch.tensor([at + 1]), torch.tensor([at, at + 1])
        got = attention_weights(zero[:, :, :1], zero, bias=bias, q_positions=i, k_positions=j)
        close(got[0, :, 0], bias.weight.float()[:, 1:3].softmax(-1), atol=1e-6)


@every_module
def test_moving_to_half_and_back_leaves_codes_alone(name: str) -> None:
    module = made(name)
    codes = {key: x.clone() for key, x in module.named_buffers()}
    bias = bias_of(name, module.to(torch.bfloat16).double())
    assert all(torch.equal(x, dict(module.named_buffers())[key]) for key, x in codes.items())
    assert all(x.dtype == torch.int64 for x in bias.buffers() if not x.is_floating_point())


# --- training


@every_module
def test_an_untrained_bias_changes_nothing_and_trains(name: str) -> None:
    """Zero-initialised, and a gradient from the first step on: GiGL #674."""
    module = MODULES[name]().double()
    q, k, v = inputs(4)
    out = call(name, q, k, v, bias_of(name, module))
    torch.testing.assert_close(out, call(name, q, k, v, None), rtol=0.0, atol=0.0)
    out.pow(2).sum().backward()
    assert module.weight.grad is not None
    assert bool(module.weight.grad.any())
    with torch.no_grad():
        module.weight -= 0.1 * module.weight.grad
    assert call(name, q, k, v, bias_of(name, module)).pow(2).sum() < out.pow(2).sum()


@every_module
@pytest.mark.parametrize("backend", ON_EDGES)
@pytest.mark.parametrize(
    "alone", [pytest.param(True, id="alone"), pytest.param(False, id="with q, k, v", marks=pytest.mark.slow)]
)
def test_gradients_against_differences(name: str, backend: str, alone: bool) -> None:
    """Refused, or a crash, where the bias alone needs a gradient: pytorch/pytorch #145869."""
    module = made(name)
    tensors = [x.detach()[:, :, :4, :2] for x in inputs(4)]

    def of(weight: Tensor, *qkv: Tensor) -> Tensor:
        other = copy.deepcopy(module)
        del other.weight
        other.weight = weight  # a tensor in the parameter's place
        return call(name, *(qkv or tensors), bias_of(name, other), backend)

    leaves = [module.weight, *([] if alone else [x.requires_grad_() for x in tensors])]
    assert torch.autograd.gradcheck(of, [x.detach().requires_grad_() for x in leaves])


def test_edge_features_get_a_gradient_themselves() -> None:
    attr, weight = random(5, 3).requires_grad_(), made("EdgeFeatures")
    q, k, v = (x.detach() for x in inputs(4))
    assert torch.autograd.gradcheck(lambda x: attention(q, k, v, mask=Graph(EDGES), bias=weight(x)), attr)
    paths = made("PathFeatures")
    assert torch.autograd.gradcheck(lambda x: attention(q, k, v, bias=paths(x, PATHS)), attr)


@every_module
def test_a_layer_saves_the_weight_alone(name: str) -> None:
    module = made(name)
    assert list(module.state_dict()) == ["weight"]
    other = MODULES[name]().double()
    other.load_state_dict(module.state_dict())
    q, k, v = inputs(4)
    assert torch.equal(call(name, q, k, v, bias_of(name, other)), call(name, q, k, v, bias_of(name, module)))
    assert [id(p) for p in nn.ModuleList([module]).parameters()] == [id(module.weight)]


@every_module
def test_one_bias_serves_many_layers_and_steps(name: str) -> None:
    module = made(name)
    q, k, v = inputs(4)
    bias = bias_of(name, module)
    once = torch.autograd.grad(call(name, q, k, v, bias).sum(), module.weight, retain_graph=True)[0]
    both = call(name, q, k, v, bias).sum() + call(name, q, k, v, bias).sum()
    torch.testing.assert_close(torch.autograd.grad(both, module.weight)[0], 2 * once)


# --- edges


@on_edges
def test_edge_types_and_features_together(backend: str) -> None:
    """Scores were overwritten a type at a time; zero-initialised they leave the layer as it is: GiGL #674, #675."""
    q, k, v = inputs(4)
    graph = Graph(EDGES)
    types, features = EdgeTypes(2, 2).double(), EdgeFeatures(3, 2).double()
    kinds, attr = torch.tensor([0, 1, 0, 0, 0]), random(5, 3)
    plain = attention(q, k, v, mask=graph, backend=backend)
    bias = types(kinds) + features(attr)
    torch.testing.assert_close(attention(q, k, v, mask=graph, bias=bias, backend=backend), plain, rtol=0.0, atol=0.0)

    before = attention_weights(q, k, mask=graph)
    types.weight.data[1] += 5.0
    after = attention_weights(q, k, mask=graph, bias=types(kinds) + features(attr))
    # Edge 1 is the only one of type 1: its odds against the other edges into node 1 rise by e^5, theirs stay.
    odds = lambda w: w[:, :, [1, 4]] / w[:, :, [0]]  # noqa: E731
    close(odds(after)[..., 0] / odds(before)[..., 0], torch.tensor(5.0).exp().expand(2, 2), atol=1e-3)
    torch.testing.assert_close(odds(after)[..., 1], odds(before)[..., 1])
    torch.testing.assert_close(after[:, :, [2, 3]], before[:, :, [2, 3]])  # other targets


@on_edges
def test_query_is_target_and_key_is_source(backend: str) -> None:
    """Confused direction between (source, target) and (query, key)."""
    module = made("NodeTypes")
    q, k, v = inputs(4)
    queries, keys = data("NodeTypes")
    graph = Graph(EDGES)
    got = attention(q, k, v, mask=graph, bias=module(queries, keys), backend=backend)
    source, target = EDGES
    wanted = []
    for b in range(2):
        values = module.weight[:, queries[target], keys[b][source]].t()
        one = [x[b : b + 1] for x in (q, k, v)]
        wanted.append(attention(*one, mask=graph, bias=EdgeBias(values)))
    assert_same(got, torch.cat(wanted), q, k, v, module.weight)


# --- paths


@every_way
def test_lengths_beyond_the_greatest_and_no_path(way: str) -> None:
    module = ShortestPath(2, 1)
    module.weight.data.copy_(torch.tensor([[0.0], [1.0], [2.0], [9.0]]))
    rows = weights(way, 4, 4, bias=module(DISTANCE))[0, 0]
    close(rows[2], torch.tensor([2.0, 1.0, 0.0, 9.0]).softmax(0))


@every_way
def test_blocks_equal_the_graphs_by_themselves(way: str) -> None:
    """A packed batch: nothing crosses from one graph to another."""
    module = made("ShortestPath")
    sizes = [3, 0, 1, 2]
    blocks = [torch.randint(-1, 5, (n, n), generator=torch.Generator().manual_seed(n)) for n in sizes]
    q, k, v = inputs(6)
    graph = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))
    same = DenseMask(graph[:, None] == graph)
    packed = run(way, q, k, v, same, bias=module(blocks))
    start, alone = 0, []
    for n, block in zip(sizes, blocks, strict=True):
        rows = slice(start, start + n)
        alone.append(attention(q[:, :, rows], k[:, :, rows], v[:, :, rows], bias=module(block)))
        start += n
    assert_same(packed, torch.cat(alone, 2), q, k, v, module.weight)
    flat = module(torch.cat([x.flatten() for x in blocks]), torch.tensor(sizes))
    assert torch.equal(run(way, q, k, v, same, bias=flat), packed)


def test_pairs_across_blocks_have_the_value_0() -> None:
    module = made("ShortestPath, blocks")
    module.weight.data.fill_(3.0)
    zero = torch.zeros(1, 2, 4, 4, dtype=torch.float64)
    rows = attention_weights(zero, zero, bias=bias_of("ShortestPath, blocks", module))[0, 0]
    close(rows[0], torch.tensor([3.0, 3.0, 3.0, 0.0]).softmax(0))
    close(rows[3], torch.tensor([0.0, 0.0, 0.0, 3.0]).softmax(0))


class Largest(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that any operation gives."""

    size = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            self.size = max(self.size, x.numel() if isinstance(x, Tensor) else 0)
        return out


def test_blocks_form_nothing_of_all_pairs() -> None:
    """400 graphs of 5 nodes: 4 million pairs in all, of which 10,000 lie within a graph."""
    n = 400
    module = ShortestPath(3, 1)
    target = torch.arange(5 * n).repeat_interleave(5)
    source = torch.arange(n).repeat_interleave(25) * 5 + torch.arange(5).repeat(5 * n)
    graph = Graph(torch.stack([source, target]))
    q = torch.zeros(1, 1, 5 * n, 4)
    with Largest() as seen:
        bias = module([torch.ones(5, 5, dtype=torch.int64)] * n)
        attention(q, q, q, mask=graph, bias=bias, backend="scatter").sum().backward()
    assert module.weight.grad is not None
    assert seen.size <= 4 * len(target)  # [E, D], not [N, N]


@every_way
def test_path_features_against_loops(way: str) -> None:
    module = made("PathFeatures")
    attr = random(5, 3).requires_grad_()
    q, k, v = inputs(4)
    rows = []
    for i in range(4):
        for j in range(4):
            path = [e for e in PATHS[i, j].tolist() if e >= 0]
            terms = [module.weight[n] @ attr[e] for n, e in enumerate(path)]
            rows.append(sum(terms) / len(terms) if terms else torch.zeros(2, dtype=torch.float64))
    table = torch.stack(rows, 1).reshape(2, 4, 4)
    assert_same(run(way, q, k, v, bias=module(attr, PATHS)), formula(q, k, v, bias=table), q, k, v, module.weight, attr)


@every_way
def test_path_features_of_blocks_equal_the_graphs_by_themselves(way: str) -> None:
    """A packed batch, as it is packed by hand and by ``pack_graphs``: nothing crosses from one graph to another."""
    module, sizes = made("PathFeatures"), [3, 0, 1, 2]
    ends = [edges((0, 1), (1, 2), (2, 1)), edges(), edges((0, 0)), edges((0, 1))]  # loops are on no shortest path
    own = [
        torch.tensor([[[-1, -1]] * 3, [[0, -1], [-1, -1], [2, -1]], [[1, 0], [1, -1], [-1, -1]]]),
        torch.zeros(0, 0, 0, dtype=torch.int64),
        torch.full((1, 1, 0), -1),
        torch.tensor([[[-1], [-1]], [[0], [-1]]]),
    ]
    attrs = [random(x.shape[1], 3, seed=n).requires_grad_() for n, x in enumerate(ends)]
    q, k, v = inputs(6)
    graph = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))
    same = DenseMask(graph[:, None] == graph)
    first = [0, 3, 3, 4]
    blocks = [torch.where(x >= 0, x + n, x) for x, n in zip(own, first, strict=True)]
    packed = run(way, q, k, v, same, bias=module(torch.cat(attrs), blocks))
    alone, start = [], 0
    for n, attr, block in zip(sizes, attrs, own, strict=True):
        rows = slice(start, start + n)
        alone.append(attention(q[:, :, rows], k[:, :, rows], v[:, :, rows], bias=module(attr, block)))
        start += n
    assert_same(packed, torch.cat(alone, 2), q, k, v, module.weight, *(x for x in attrs if len(x)))
    graphs = [
        {"x": torch.zeros(n, 1), "edge_index": x, "edge_attr": attr, "paths": block}
        for n, x, attr, block in zip(sizes, ends, attrs, own, strict=True)
    ]
    given = models.pack_graphs(graphs)
    flat = module(given["edge_attr"], given["paths"], torch.tensor(sizes))
    assert torch.equal(run(way, q, k, v, same, bias=flat), packed)


def test_pairs_across_blocks_have_no_path() -> None:
    bias = bias_of("PathFeatures, blocks", made("PathFeatures, blocks"))
    zero = torch.zeros(1, 2, 4, 4, dtype=torch.float64)
    logits = attention_weights(zero, zero, bias=bias).log()
    close((logits[..., :3, 3] - logits[..., :3, :3].diagonal(dim1=-2, dim2=-1)).detach(), zero[..., 0, :3])


def test_blocks_of_paths_form_nothing_of_all_pairs() -> None:
    """400 graphs of 5 nodes: 4 million pairs in all, of which 10,000 lie within a graph."""
    n = 400
    module = PathFeatures(2, 3, 1)
    target = torch.arange(5 * n).repeat_interleave(5)
    source = torch.arange(n).repeat_interleave(25) * 5 + torch.arange(5).repeat(5 * n)
    q = torch.zeros(1, 1, 5 * n, 4)
    blocks = list(torch.arange(n)[:, None, None, None].expand(n, 5, 5, 3))  # each graph has one edge
    with Largest() as seen:
        bias = module(torch.ones(n, 2), blocks)
        attention(q, q, q, mask=Graph(torch.stack([source, target])), bias=bias, backend="scatter").sum().backward()
    assert module.weight.grad is not None
    assert seen.size <= 4 * len(target)  # [E, D], not [N, N]


# --- sizes of 0

EMPTY = [(0, 3, 4), (2, 0, 0), (2, 0, 3), (2, 3, 0), (2, 1, 1)]


@pytest.mark.parametrize(("batch", "queries", "keys"), EMPTY, ids=str)
def test_empty_calls(batch: int, queries: int, keys: int) -> None:
    """Shapes follow, gradients are 0."""
    q, k = torch.zeros(batch, 2, queries, 4), torch.zeros(batch, 2, keys, 4)
    none = torch.zeros(queries, keys, dtype=torch.int64)
    paths, nodes, lengths = PathFeatures(3, 2, 2), NodeTypes(3, 2), ShortestPath(2, 2)
    given = [
        (nodes, nodes(none.new_zeros(batch, queries), none.new_zeros(keys))),
        (nodes, nodes(none.new_zeros(1, queries), none.new_zeros(batch, keys))),
        (lengths, lengths(none)),
        (lengths, lengths(none.expand(batch, -1, -1))),
        (paths, paths(torch.zeros(0, 3), none[..., None].expand(-1, -1, 2) - 1)),
        (paths, paths(torch.zeros(4, 3), none[..., None][..., :0])),
        *((x, x) for x in (RelativeBias(2, 0), RelativeBias(2, 3), T5Bias(2))),
    ]
    if queries == keys:
        given.append((lengths, lengths([none])))
        given.append((lengths, lengths([none, none[:0, :0]])))
    for module, bias in given:
        for way in (None, complete(queries, keys)):
            out = attention(q, k, k, mask=way, bias=bias)
            assert out.shape == q.shape
            (gradient,) = torch.autograd.grad(out.sum(), module.weight, retain_graph=True)
            assert not bool(gradient.any())


@on_edges
def test_no_edges(backend: str) -> None:
    q = torch.zeros(1, 2, 3, 4)
    graph = Graph(torch.zeros(2, 0, dtype=torch.int64))
    for bias in (EdgeTypes(3, 2)(torch.zeros(0, dtype=torch.int64)), EdgeFeatures(3, 2)(torch.zeros(0, 3))):
        out = attention(q, q, q, mask=graph, bias=bias, backend=backend)
        out.sum().backward()
        assert not bool(out.any())


def test_no_graphs_at_all() -> None:
    q = torch.zeros(1, 2, 0, 4)
    assert attention(q, q, q, bias=ShortestPath(2, 2)([])).shape == q.shape


# --- half precision


@every_module
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_values_in_half_are_summed_in_single(name: str, dtype: torch.dtype) -> None:
    """The bias of a half module is what its rounded weight gives in float32, to float32's precision."""
    half = made(name).to(dtype)
    single = copy.deepcopy(half).float()
    q, k, v = inputs(4, dtype=torch.float32)
    given = [x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in data(name)]
    wide = [x.float() if isinstance(x, Tensor) and x.is_floating_point() else x for x in given]
    ours, want = (half(*given), single(*wide)) if given else (half, single)
    torch.testing.assert_close(call(name, q, k, v, ours), call(name, q, k, v, want), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_path_features_made_in_single_and_moved_to_half_are_summed_in_single(dtype: torch.dtype) -> None:
    q, k, v = inputs(4, dtype=torch.float32)
    with torch.no_grad():  # only leaves can be copied
        half = bias_of("PathFeatures", made("PathFeatures", torch.float32)).to(dtype)
    wide = copy.deepcopy(half).double()
    got = attention(q, k, v, bias=half)
    torch.testing.assert_close(
        got.double(), attention(q.double(), k.double(), v.double(), bias=wide), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_are_multiplied_in_the_dtype_given_under_autocast(dtype: torch.dtype) -> None:
    """257 is no bfloat16."""
    attr = torch.tensor([[256.0, 1.0], [256.0, 0.0]], dtype=dtype)
    edge, path = EdgeFeatures(2, 2).to(dtype), PathFeatures(2, 1, 2).to(dtype)
    for module in (edge, path):
        module.weight.data.fill_(1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = edge(attr).values
        zero = torch.tensor(0)
        along = path(attr, torch.tensor([[[0], [1]]])).add(zero, zero, zero, torch.arange(2), None)
    assert values.dtype == along.dtype == dtype
    assert values[:, 0].tolist() == along.tolist() == [257.0, 256.0]


# --- what is hidden


@on_edges
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_features_of_a_hidden_edge_reach_nothing(backend: str, bad: float) -> None:
    graph, keep = Graph(EDGES), torch.tensor([True, False, True, True, True])
    q, k, v = inputs(4)
    module = made("EdgeFeatures")

    def results(hidden: float) -> list[Tensor]:
        attr = random(5, 3).index_fill(0, torch.tensor([1]), hidden).requires_grad_()
        out = attention(q, k, v, mask=graph.keep(keep), bias=module(attr), backend=backend)
        return [out, *torch.autograd.grad(out.pow(2).sum(), [q, k, v, attr, module.weight])]

    for got, want in zip(results(bad), results(0.0), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@every_way
def test_features_on_hidden_paths_reach_nothing(way: str) -> None:
    q, k, v = inputs(4)
    module = made("PathFeatures")
    mask = DenseMask(~(PATHS == 4).any(-1))

    def results(hidden: float) -> list[Tensor]:
        attr = random(5, 3).index_fill(0, torch.tensor([4]), hidden).requires_grad_()
        out = run(way, q, k, v, mask=mask, bias=module(attr, PATHS))
        return [out, *torch.autograd.grad(out.pow(2).sum(), [q, k, v, attr, module.weight])]

    for got, want in zip(results(torch.nan), results(0.0), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


# --- errors

INTS, Q = torch.zeros(3, dtype=torch.int64), torch.zeros(2, 2, 4, 8)


def on(bias: Any, mask: Any = None, q: Tensor = Q) -> Callable[[], Any]:
    return lambda: attention(q, q, q, mask=mask, bias=bias)


WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "relative, no heads": (lambda: RelativeBias(0, 2), ValueError, "num_heads is 0; it must be at least 1"),
    "relative, a float": (lambda: RelativeBias(2, 2.0), TypeError, "max_distance is 2.0; give an integer"),
    "relative, negative": (lambda: RelativeBias(2, -1), ValueError, "max_distance is -1; it must be at least 0"),
    "relative, other heads": (on(RelativeBias(3, 2)), ValueError, "made for num_heads = 3, but q has 2 heads"),
    "T5, odd": (lambda: T5Bias(2, 33), ValueError, "num_buckets is 33; each direction has half of them"),
    "T5, too few": (lambda: T5Bias(2, 2), ValueError, "num_buckets is 2; it must be at least 4"),
    "T5, too near": (lambda: T5Bias(2, 32, 8), ValueError, "max_distance is 8, but the first 8 distances"),
    "T5, a bool": (lambda: T5Bias(True), TypeError, "num_heads is True; give an integer"),
    "T5, no flag": (
        lambda: T5Bias(2, bidirectional="False"), TypeError, "bidirectional is 'False'; give True or False",
    ),
    "T5, other heads": (on(T5Bias(8)), ValueError, "T5Bias was made for num_heads = 8, but q has 2 heads"),
    "edge features, uncalled": (on(EdgeFeatures(3, 2)), TypeError, "a EdgeFeatures; call it on its data (edge_attr)"),
    "edge types, uncalled": (on(EdgeTypes(3, 2)), TypeError, "a EdgeTypes; call it on its data (types)"),
    "node types, uncalled": (on(NodeTypes(3, 2)), TypeError, "NodeTypes; call it on its data (query_types, key_types)"),
    "path features, uncalled": (
        on(PathFeatures(3, 2, 2)), TypeError, "a PathFeatures; call it on its data (edge_attr, paths",
    ),
    "path features, not even made": (on(PathFeatures), TypeError, "the class PathFeatures, not an object of it; give"),
    "path, uncalled": (on(ShortestPath(3, 2)), TypeError, "ShortestPath; call it on its data (distance, sizes)"),
    "edge features, added uncalled": (
        lambda: ALiBi(2) + EdgeFeatures(3, 2), TypeError,
        "EdgeFeatures(3, 2) is none yet; call it on its data (edge_attr)",
    ),
    "edge types, uncalled in front": (
        lambda: EdgeTypes(3, 2) + ALiBi(2), TypeError, "EdgeTypes(3, 2) is none yet; call it on its data (types)",
    ),
    "node types, uncalled in a sum of three": (
        lambda: ALiBi(2) + RoPE(4) + NodeTypes(3, 2), TypeError, "is none yet; call it on its data (query_types, key",
    ),
    "edge features, ints": (lambda: EdgeFeatures(3, 2)(INTS), TypeError, "edge_attr is [3] int64; give floats, [E, F]"),
    "edge features, width": (
        lambda: EdgeFeatures(3, 2)(torch.zeros(5, 4)), ValueError,
        "edge_attr is [5, 4] float32; it must be [E, F] with F = edge_dim = 3",
    ),
    "edge features, one dimension": (lambda: EdgeFeatures(3, 2)(torch.zeros(3)), ValueError, "must be [E, F]"),
    "edge features, dtype": (
        lambda: EdgeFeatures(3, 2)(torch.zeros(5, 3).double()), ValueError,
        "edge_attr is torch.float64, but the weight is torch.float32; convert one of them",
    ),
    "edge features, no graph": (on(EdgeFeatures(3, 2)(torch.zeros(5, 3))), ValueError, "tied to the edges of one"),
    "edge features, other edges": (
        on(EdgeFeatures(3, 2)(torch.zeros(6, 3)), Graph(EDGES)), ValueError, "hold 6 edges, but the mask's graph has 5",
    ),
    "edge types, too great": (
        lambda: EdgeTypes(3, 2)(torch.tensor([0, 3, 9])), ValueError, "types holds 3 at [1]; it must lie in 0..2",
    ),
    "edge types, negative": (lambda: EdgeTypes(3, 2)(torch.tensor([-1])), ValueError, "types holds -1 at [0]"),
    "edge types, floats": (lambda: EdgeTypes(3, 2)(torch.zeros(3)), TypeError, "types is [3] float32; give integers"),
    "edge types, bools": (lambda: EdgeTypes(3, 2)(INTS == 0), TypeError, "types is [3] bool; give integers"),
    "edge types, a list": (lambda: EdgeTypes(3, 2)([0, 1]), TypeError, "types is a list; give integers"),
    "edge types, two dimensions": (lambda: EdgeTypes(3, 2)(INTS[None]), ValueError, "types is [1, 3] int64"),
    "node types, too great": (
        lambda: NodeTypes(3, 2)(INTS, INTS + 3), ValueError, "key_types holds 3 at [0]; it must lie in 0..2",
    ),
    "node types, three dimensions": (
        lambda: NodeTypes(3, 2)(INTS[None, None], INTS), ValueError, "query_types is [1, 1, 3] int64; it must be [N]",
    ),
    "node types, one missing": (lambda: NodeTypes(3, 2)(INTS), TypeError, "key_types"),
    "node types, other nodes": (
        on(NodeTypes(3, 2)(INTS, INTS)), ValueError, "query_types have shape [1, 3], but q and k ask for [4] or [B, N]",
    ),
    "node types, other batch": (
        on(NodeTypes(3, 2)(torch.zeros(3, 4).long(), torch.zeros(4).long())), ValueError, "[B, N] = [2, 4]",
    ),
    "node types, other heads": (
        on(NodeTypes(3, 5)(torch.zeros(4).long(), torch.zeros(4).long())), ValueError, "num_heads = 5, but q has 2",
    ),
    "path, below -1": (lambda: ShortestPath(2, 2)(INTS[:, None] - 2), ValueError, "distance holds -2 at [0, 0]"),
    "path, floats": (lambda: ShortestPath(2, 2)(torch.zeros(3, 3)), TypeError, "distance is [3, 3] float32; give"),
    "path, one dimension": (lambda: ShortestPath(2, 2)(INTS), ValueError, "flattened blocks need sizes"),
    "path, a number": (lambda: ShortestPath(2, 2)(3), TypeError, "distance is a int; give a tensor, or a sequence"),
    "path, other nodes": (
        on(ShortestPath(2, 2)(INTS[:, None].expand(3, 3))), ValueError, "distance is [3, 3], but q and k ask for",
    ),
    "path, blocks not square": (
        lambda: ShortestPath(2, 2)([INTS[None]]), ValueError, "distance[0] is [1, 3] int64; a graph's own table is",
    ),
    "path, a block of floats": (lambda: ShortestPath(2, 2)([torch.zeros(1, 1)]), TypeError, "distance[0] is [1, 1]"),
    "path, blocks of other nodes": (
        on(ShortestPath(2, 2)([INTS[:, None].expand(3, 3)])), ValueError, "blocks have 3 nodes in all, but q and k",
    ),
    "path, too few lengths": (
        on(ShortestPath(2, 2)(INTS, torch.tensor([2, 2]))), ValueError, "blocks ask for 8 pairs (the sum of n * n)",
    ),
    "path, sizes that are none": (
        lambda: ShortestPath(2, 2)(INTS, torch.tensor([-1])), ValueError, "sizes holds -1 at [0]",
    ),
    "path, sizes of a table": (
        lambda: ShortestPath(2, 2)(INTS[None], torch.tensor([1])), ValueError, "flattened blocks are [sum of n * n]",
    ),
    "path features, no such edge": (
        lambda: PathFeatures(3, 2, 2)(torch.zeros(4, 3), PATHS), ValueError, "holds 4 at [2, 3, 1]; it must lie in -1",
    ),
    "path features, a gap": (
        lambda: PathFeatures(3, 2, 2)(torch.zeros(5, 3), PATHS.flip(-1)), ValueError,
        "paths holds an edge after -1 at [0, 1, 1]; paths are filled up at their end",
    ),
    "path features, too long": (
        lambda: PathFeatures(3, 1, 2)(torch.zeros(5, 3), PATHS), ValueError,
        "paths holds up to 2 edges a path, but max_length is 1",
    ),
    "path features, two dimensions": (
        lambda: PathFeatures(3, 2, 2)(torch.zeros(5, 3), INTS[None]), ValueError, "[Nq, Nk, L] or [B, Nq, Nk, L]",
    ),
    "path features, a number": (lambda: PathFeatures(3, 2, 2)(torch.zeros(5, 3), 3), TypeError, "paths is a int; give"),
    "path features, blocks not square": (
        lambda: PathFeatures(3, 2, 2)(torch.zeros(5, 3), [PATHS[:2]]), ValueError,
        "paths[0] is [2, 4, 2] int64; a graph's own table is square, [n, n, L]",
    ),
    "path features, a block of lengths": (
        lambda: PathFeatures(3, 2, 2)(torch.zeros(5, 3), [DISTANCE]), ValueError, "paths[0] is [4, 4] int64; a graph's",
    ),
    "path features, blocks without sizes": (
        lambda: PathFeatures(3, 2, 2)(torch.zeros(5, 3), PATHS.flatten(0, 1)), ValueError, "blocks need sizes",
    ),
    "path features, blocks of other sizes": (
        lambda: PathFeatures(3, 2, 2)(torch.zeros(5, 3), PATHS.flatten(0, 1), torch.tensor([3])), ValueError,
        "sizes ask for 9 paths (the sum of n * n), but paths is [16, 2]: a row a path",
    ),
    "path features, sizes of a table": (
        lambda: PathFeatures(3, 2, 2)(torch.zeros(5, 3), PATHS, torch.tensor([4])), ValueError,
        "paths is [4, 4, 2] int64 and sizes [1] int64; flattened blocks are [sum of n * n, L] and sizes [G]",
    ),
    "path features, edges numbered anew in each graph": (
        lambda: PathFeatures(3, 2, 2)(torch.zeros(5, 3), [PATHS[:3, :3], PATHS[:3, :3]]), ValueError,
        "paths holds edge 0 in blocks 0 and 1: number the edges on from graph to graph, as the rows of edge_attr",
    ),
    "path features, blocks of other nodes": (
        on(PathFeatures(3, 2, 2)(torch.zeros(5, 3), [PATHS[:3, :3]])), ValueError,
        "PathFeatures's blocks have 3 nodes in all, but q and k have 4 rows",
    ),
    "path features, blocks of other heads": (
        on(PathFeatures(3, 2, 3)(torch.zeros(5, 3), [PATHS])), ValueError, "num_heads = 3, but q has 2 heads",
    ),
    "path features, other nodes": (
        on(PathFeatures(3, 2, 2)(torch.zeros(5, 3), PATHS[:3])), ValueError, "paths is [3, 4, 2], but q and k ask for",
    ),
    "path features, other heads": (
        on(PathFeatures(3, 2, 3)(torch.zeros(5, 3), PATHS)), ValueError, "num_heads = 3, but q has 2 heads",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "error", "text"), WRONG.values(), ids=WRONG)
def test_a_wrong_input_raises_and_says_what_to_do(make: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert text in str(caught.value)


def test_representations_read_like_the_call() -> None:
    assert repr(RelativeBias(8, 16)) == "RelativeBias(8, max_distance=16)"
    assert repr(T5Bias(8) + RoPE(4)) == (
        "T5Bias(8, num_buckets=32, max_distance=128, bidirectional=True) + RoPE(4, layout='half')"
    )
    assert repr(EdgeTypes(3, 8)) == "EdgeTypes(3, 8)"
    assert repr(EdgeFeatures(3, 8)) == "EdgeFeatures(3, 8)"
    assert repr(EdgeTypes(3, 8)(INTS)) == "EdgeBias([3, 8])"
    assert repr(NodeTypes(3, 8)(INTS, INTS[:2])) == "NodeTypes(3, 8)([1, 3], [1, 2])"
    assert repr(ShortestPath(3, 8)(DISTANCE)) == "ShortestPath(3, 8)([1, 4, 4])"
    blocks = PathFeatures(3, 2, 8)(torch.zeros(5, 3), [PATHS])
    assert repr(blocks) == "PathFeatures(3, max_length=2, num_heads=8)(1 blocks, 16 pairs)"
    assert repr(PathFeatures(3, 5, 8)) == "PathFeatures(3, max_length=5, num_heads=8)"
