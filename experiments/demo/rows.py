"""The rows of the table. Peers are torch's own functions, formulas written here, and torch-geometric's layers.

Nothing here is shared with the library: a peer that used its code would agree with its mistakes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call
from torch.nn.functional import linear
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv

from experiments.demo.table import Function, Row
from unified_attn import (
    GAT,
    ALiBi,
    Causal,
    DenseBias,
    Dot,
    EdgeBias,
    GATv2,
    Graph,
    Padding,
    PairVectors,
    RoPE,
    Window,
    attention,
    graph_attention,
)

BATCH, HEADS, TOKENS, DIM = 2, 8, 256, 32
NODES, EDGES, CHANNELS = 3000, 30000, 64

Case = tuple[Sequence[Tensor], Function, Function]


def qkv(g: Generator, batch: int = BATCH, kv_heads: int = HEADS, tokens: int = TOKENS) -> list[Tensor]:
    return [torch.randn(batch, heads, tokens, DIM, generator=g) for heads in (HEADS, kv_heads, kv_heads)]


def distance(tokens: int = TOKENS) -> Tensor:
    """j - i, ``[Nq, Nk]``."""
    return torch.arange(tokens) - torch.arange(tokens)[:, None]


def gpt2(g: Generator) -> Case:
    return qkv(g), lambda q, k, v: attention(q, k, v, mask=Causal()), lambda q, k, v: sdpa(q, k, v, is_causal=True)


def bert(g: Generator) -> Case:
    layer = nn.MultiheadAttention(HEADS * DIM, HEADS, batch_first=True)
    keep = torch.arange(TOKENS) < torch.tensor([[TOKENS], [TOKENS * 2 // 3]])
    weights = {name: torch.randn(p.shape, generator=g) * p.shape[-1] ** -0.5 for name, p in layer.named_parameters()}
    names = list(weights)

    def ours(x: Tensor, *given: Tensor) -> Tensor:
        w = dict(zip(names, given, strict=True))
        projected = linear(x, w["in_proj_weight"], w["in_proj_bias"])
        q, k, v = projected.unflatten(-1, (3, HEADS, DIM)).permute(2, 0, 3, 1, 4)
        out = attention(q, k, v, mask=Padding(keep)).transpose(1, 2).flatten(2)
        return linear(out, w["out_proj.weight"], w["out_proj.bias"])

    def peer(x: Tensor, *given: Tensor) -> Tensor:
        options = {"key_padding_mask": ~keep, "need_weights": False}
        return functional_call(layer, dict(zip(names, given, strict=True)), (x, x, x), options)[0]

    return [torch.randn(BATCH, TOKENS, HEADS * DIM, generator=g), *weights.values()], ours, peer


def rotate_half(x: Tensor) -> Tensor:
    """RoPE as Llama's code in transformers has it."""
    angle = torch.outer(torch.arange(x.shape[2]).float(), 1 / 10000 ** (torch.arange(0, DIM, 2) / DIM)).repeat(1, 2)
    return x * angle.cos() + torch.cat([-x[..., DIM // 2 :], x[..., : DIM // 2]], -1) * angle.sin()


def rotate_complex(x: Tensor) -> Tensor:
    """RoPE as the paper has it: neighbouring coordinates are a complex number, turned by a product."""
    angle = torch.outer(torch.arange(x.shape[2]).float(), 1 / 10000 ** (torch.arange(0, DIM, 2) / DIM))
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).flatten(-2)


def llama(g: Generator) -> Case:
    def peer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa(rotate_half(q), rotate_half(k), v, is_causal=True, enable_gqa=True)

    return qkv(g, kv_heads=2), lambda q, k, v: attention(q, k, v, mask=Causal(), bias=RoPE(DIM)), peer


def gptj(g: Generator) -> Case:
    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, mask=Causal(), bias=RoPE(DIM, layout="interleaved"))

    return qkv(g), ours, lambda q, k, v: sdpa(rotate_complex(q), rotate_complex(k), v, is_causal=True)


def bloom(g: Generator) -> Case:
    def peer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        slopes = torch.tensor([2.0 ** -(h + 1) for h in range(HEADS)])  # of 8 heads
        bias = (slopes[:, None, None] * distance()).masked_fill(distance() > 0, -math.inf)
        return sdpa(q, k, v, attn_mask=bias)

    return qkv(g), lambda q, k, v: attention(q, k, v, mask=Causal(), bias=ALiBi(HEADS)), peer


def mistral(g: Generator, tokens: int = 1024, window: int = 128) -> Case:
    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, mask=Window.causal(window), bias=RoPE(DIM))

    def peer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        d = distance(tokens)
        return sdpa(rotate_half(q), rotate_half(k), v, attn_mask=(d <= 0) & (d > -window), enable_gqa=True)

    return qkv(g, batch=1, kv_heads=2, tokens=tokens), ours, peer


def longformer(g: Generator, tokens: int = 1024, window: int = 64) -> Case:
    def peer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa(q, k, v, attn_mask=distance(tokens).abs() <= window)

    return qkv(g, 1, tokens=tokens), lambda q, k, v: attention(q, k, v, mask=Window(window, window)), peer


def t5(g: Generator) -> Case:
    table = torch.randn(1, HEADS, TOKENS, TOKENS, generator=g)
    inputs = qkv(g)
    inputs[0] *= DIM**-0.5  # T5 leaves the scale to its initialisation

    def ours(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        return attention(q, k, v, bias=DenseBias(table), scale=1.0)

    return [*inputs, table], ours, lambda q, k, v, table: sdpa(q, k, v, attn_mask=table, scale=1.0)


def graphormer(g: Generator) -> Case:
    edge_index = torch.randint(TOKENS, (2, 4 * TOKENS), generator=g)

    def ours(q: Tensor, k: Tensor, v: Tensor, values: Tensor) -> Tensor:
        return attention(q, k, v, bias=EdgeBias(values, edge_index))

    def peer(q: Tensor, k: Tensor, v: Tensor, values: Tensor) -> Tensor:
        source, target = edge_index
        bias = torch.zeros(TOKENS, TOKENS, HEADS).index_put((target, source), values, accumulate=True)
        return sdpa(q, k, v, attn_mask=bias.permute(2, 0, 1)[None])

    return [*qkv(g), torch.randn(4 * TOKENS, HEADS, generator=g)], ours, peer


def gemma2(g: Generator) -> Case:
    def peer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = 5 * torch.tanh(q @ k.mT * DIM**-0.5 / 5)
        return logits.masked_fill(distance() > 0, -math.inf).softmax(-1) @ v

    return qkv(g), lambda q, k, v: attention(q, k, v, mask=Causal(), score=Dot(softcap=5.0)), peer


def gpt_oss(g: Generator) -> Case:
    def ours(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
        return attention(q, k, v, mask=Window.causal(128), score=Dot(sink=sink))

    def peer(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
        hidden = (distance() > 0) | (distance() <= -128)
        logits = (q @ k.mT * DIM**-0.5).masked_fill(hidden, -math.inf)
        extra = sink[:, None, None].expand(BATCH, HEADS, TOKENS, 1)
        return torch.cat([logits, extra], -1).softmax(-1)[..., :-1] @ v

    return [*qkv(g), torch.randn(HEADS, generator=g)], ours, peer


def random_edges(g: Generator) -> Tensor:
    return torch.randint(NODES, (2, EDGES), generator=g)


def layer_case(g: Generator, layer: nn.Module, ours: Function, edge_index: Tensor, edge_dim: int = 0) -> Case:
    """x, the layer's weights by name, and edge features, as inputs of both.

    No biases: that of the keys moves all logits of a row alike, so its gradient is 0, and would compare rounding noise.
    """
    x = torch.randn(NODES, CHANNELS, generator=g)
    edges = [torch.randn(EDGES, edge_dim, generator=g)] if edge_dim else []
    names = [name for name, _ in layer.named_parameters()]
    weights = [torch.randn(p.shape, generator=g) * p.shape[-1] ** -0.5 for p in layer.parameters()]

    def call(function: Function) -> Function:
        def run(x: Tensor, *rest: Tensor) -> Tensor:
            return function(x, dict(zip(names, rest, strict=False)), *rest[len(names) :])

        return run

    def peer(x: Tensor, w: dict[str, Tensor], *edge_attr: Tensor) -> Tensor:
        return functional_call(layer, w, (x, edge_index, *edge_attr))

    return [x, *weights, *edges], call(ours), call(peer)


def project(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    """A layer's linear map of that name, ``[N, F]`` to ``[N, H, D]``."""
    return linear(x, w[f"{name}.weight"]).unflatten(-1, (HEADS, -1))


def gat(g: Generator) -> Case:
    edge_index = random_edges(g)
    graph = Graph(edge_index, num_keys=NODES)
    layer = GATConv(CHANNELS, CHANNELS // HEADS, HEADS, add_self_loops=False, bias=False)

    def ours(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        h = project(x, w, "lin")
        return graph_attention(h, h, h, graph, score=GAT(w["att_src"][0], w["att_dst"][0])).flatten(1)

    return layer_case(g, layer, ours, edge_index)


def gatv2(g: Generator) -> Case:
    edge_index = random_edges(g)
    graph = Graph(edge_index, num_keys=NODES)
    layer = GATv2Conv(CHANNELS, CHANNELS // HEADS, HEADS, add_self_loops=False, bias=False)

    def ours(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        q, k = project(x, w, "lin_r"), project(x, w, "lin_l")
        return graph_attention(q, k, k, graph, score=GATv2(w["att"][0])).flatten(1)

    return layer_case(g, layer, ours, edge_index)


def gatv2_edges(g: Generator) -> Case:
    edge_index = random_edges(g)
    graph = Graph(edge_index, num_keys=NODES)
    layer = GATv2Conv(CHANNELS, CHANNELS // HEADS, HEADS, add_self_loops=False, bias=False, edge_dim=8)

    def ours(x: Tensor, w: dict[str, Tensor], edge_attr: Tensor) -> Tensor:
        q, k = project(x, w, "lin_r"), project(x, w, "lin_l")
        r = PairVectors(key=project(edge_attr, w, "lin_edge"))
        return graph_attention(q, k, k, graph, bias=r, score=GATv2(w["att"][0])).flatten(1)

    return layer_case(g, layer, ours, edge_index, edge_dim=8)


def transformer(g: Generator) -> Case:
    edge_index = random_edges(g)
    graph = Graph(edge_index, num_keys=NODES)
    layer = TransformerConv(CHANNELS, CHANNELS // HEADS, HEADS, bias=False, edge_dim=8)

    def ours(x: Tensor, w: dict[str, Tensor], edge_attr: Tensor) -> Tensor:
        q, k, v = (project(x, w, f"lin_{name}") for name in ("query", "key", "value"))
        r = project(edge_attr, w, "lin_edge")
        out = graph_attention(q, k, v, graph, bias=PairVectors(key=r, value=r))
        return (out + project(x, w, "lin_skip")).flatten(1)

    return layer_case(g, layer, ours, edge_index, edge_dim=8)


def temporal(g: Generator) -> Case:
    """Edges from later nodes are there, but hidden by a rule; the peer gets the others alone."""
    edge_index = random_edges(g)
    graph = Graph(edge_index, num_keys=NODES)
    layer = TransformerConv(CHANNELS, CHANNELS // HEADS, HEADS, bias=False)

    def ours(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        q, k, v = (project(x, w, f"lin_{name}") for name in ("query", "key", "value"))
        return (graph_attention(q, k, v, graph & Causal()) + project(x, w, "lin_skip")).flatten(1)

    return layer_case(g, layer, ours, edge_index[:, edge_index[0] <= edge_index[1]])


ROWS = [
    Row("GPT-2", "Causal()", "", "Dot()", "torch SDPA", gpt2),
    Row("BERT", "Padding(keep)", "", "Dot()", "torch MultiheadAttention", bert),
    Row("Llama, GQA", "Causal()", "RoPE(32)", "Dot()", "SDPA, rotate_half", llama),
    Row("GPT-J", "Causal()", "RoPE(32, layout='interleaved')", "Dot()", "SDPA, complex numbers", gptj),
    Row("BLOOM, MPT", "Causal()", "ALiBi(8)", "Dot()", "SDPA, float mask", bloom),
    Row("Mistral, GQA", "Window.causal(128)", "RoPE(32)", "Dot()", "SDPA, bool mask", mistral),
    Row("Longformer, local", "Window(64, 64)", "", "Dot()", "SDPA, bool mask", longformer),
    Row("T5 encoder", "Full()", "DenseBias(table)", "Dot(), scale=1", "SDPA, float mask", t5),
    Row("Graphormer", "Full()", "EdgeBias(e, edge_index)", "Dot()", "SDPA, float mask", graphormer),
    Row("Gemma 2", "Causal()", "", "Dot(softcap=5)", "formula", gemma2),
    Row("gpt-oss", "Window.causal(128)", "", "Dot(sink=s)", "formula", gpt_oss),
    Row("GAT", "Graph(edge_index)", "", "GAT(a, b)", "PyG GATConv", gat),
    Row("GATv2", "Graph(edge_index)", "", "GATv2(att)", "PyG GATv2Conv", gatv2),
    Row("GATv2, edge features", "Graph(edge_index)", "PairVectors(r)", "GATv2(att)", "PyG GATv2Conv", gatv2_edges),
    Row("Graph Transformer", "Graph(edge_index)", "PairVectors(r, r)", "Dot()", "PyG TransformerConv", transformer),
    Row("... in time order", "Graph(...) & Causal()", "", "Dot()", "PyG, edges filtered", temporal),
]
