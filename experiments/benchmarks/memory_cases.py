"""What a training step needs beside its inputs: ours and the peer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.benchmarks.case import Size
from experiments.benchmarks.sequence_cases import window_table, with_table
from experiments.layers import layer
from graphs.edges import without_loops
from unified_attn import ALiBi, Documents, Graph, Window, attention

Run = Callable[[Tensor, Tensor, Tensor], Tensor]
Step = Callable[[], list[Tensor]]
"""A forward and a backward pass; returns the output and the gradients, which are part of what it needs."""

MESSAGES, LARGE = Size(20_000, 500_000, 4, 16), Size(20_000, 2_000_000, 8, 64)


@dataclass(frozen=True)
class MemoryCase:
    """One step.

    Args:
        name: Row of the table.
        peer: What ours is compared with.
        ours: Makes the step, at full size or at a small one that compiles what there is to compile.
        theirs: The same of the peer.
    """

    name: str
    peer: str
    ours: Callable[[bool], Step]
    theirs: Callable[[bool], Step]


def differentiated(run: Callable[[], Tensor], leaves: list[Tensor]) -> Step:
    """Forward and backward."""

    def step() -> list[Tensor]:
        out = run()
        return [out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out))]

    return step


def conv(source: str, kind: str, size: Size) -> Callable[[bool], Step]:
    """A layer of 64 inputs, projections included."""

    def make(full: bool) -> Step:
        nodes, edges = (size.nodes, size.edges) if full else (50, 200)
        generator = torch.Generator().manual_seed(0)
        edge_index = without_loops(torch.randint(0, nodes, (2, edges), generator=generator))
        x = torch.randn(nodes, 64, generator=generator, requires_grad=True)
        torch.manual_seed(0)
        made = layer(source, kind, 64, size.channels, size.heads)
        graph = Graph(edge_index, num_keys=nodes) if source == "unified_attn" else edge_index
        return differentiated(lambda: made(x, graph), [x, *made.parameters()])

    return make


def sequence(run: Run, length: int) -> Callable[[bool], Step]:
    """8 heads of 64."""

    def make(full: bool) -> Step:
        generator = torch.Generator().manual_seed(0)
        q, k, v = (
            torch.randn(1, 8, length if full else 600, 64, generator=generator, requires_grad=True) for _ in range(3)
        )
        return differentiated(lambda: run(q, k, v), [q, k, v])

    return make


def windowed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A window of 64 keys with ALiBi."""
    return attention(q, k, v, mask=Window.causal(64), bias=ALiBi(8))


def windowed_table(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same with a table of all pairs."""
    return with_table(window_table(q.shape[2], 64, 2.0 ** -torch.arange(1.0, 9.0)))(q, k, v)


def packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Documents of 512 tokens."""
    return attention(q, k, v, mask=Documents(torch.arange(q.shape[2]) // 512))


def packed_table(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same with a table of all pairs."""
    number = torch.arange(q.shape[2]) // 512
    return with_table(number[:, None] == number)(q, k, v)


def layers(kind: str, name: str, size: Size) -> MemoryCase:
    """Our layer and torch-geometric's."""
    ours, theirs = (conv(source, kind, size) for source in ("unified_attn", "torch_geometric"))
    return MemoryCase(f"{name}, {size}", "torch-geometric", ours, theirs)


def sequences(name: str, run: Run, table: Run, length: int) -> MemoryCase:
    """Our mask and the table of all pairs."""
    return MemoryCase(
        f"{name}, N={length:,} H=8 C=64", "SDPA with a dense mask", sequence(run, length), sequence(table, length)
    )


CASES = {
    case.name: case
    for case in (
        layers("gat", "GATConv", MESSAGES),
        layers("gatv2", "GATv2Conv", MESSAGES),
        layers("transformer", "TransformerConv", MESSAGES),
        layers("gatv2", "GATv2Conv", LARGE),
        sequences("window of 64 + ALiBi", windowed, windowed_table, 8_192),
        sequences("window of 64 + ALiBi", windowed, windowed_table, 32_768),
        sequences("documents of 512 tokens", packed, packed_table, 32_768),
    )
}
