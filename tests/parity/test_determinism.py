"""The fused back end gives the same bits, every run and for any number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.parity.tensors import derivatives, made, qkv, some_edges
from unified_attn import ALiBi, EdgeBias, GATv2, Graph, Window, attention_with_lse


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("score", ["dot", "gatv2"])
@pytest.mark.parametrize("mask", ["graph", "window"])
def test_csr_gives_the_same_bits_each_time(mask: str, score: str) -> None:
    q, k, v = (x.detach().float().requires_grad_() for x in qkv(queries=300, keys=300))
    edges = some_edges(300, 300, 4000)
    (values,), (att,) = made((4000, 4)), made((4, 4))
    values, att = (x.detach().float().requires_grad_() for x in (values, att))
    learned = ([values] if mask == "graph" else []) + ([att] if score == "gatv2" else [])
    first: list[Tensor] = []
    threads = torch.get_num_threads()
    for n in range(10):
        torch.set_num_threads(1 + n % 2)  # nor does the number of threads change a bit
        torch.manual_seed(0)
        out, lse = attention_with_lse(
            q, k, v,
            mask=Graph(edges) if mask == "graph" else Window(9, 4),
            bias=EdgeBias(values) if mask == "graph" else ALiBi(4),
            score=GATv2(att) if score == "gatv2" else None,
            dropout_p=0.2, backend="csr",
        )  # fmt: skip
        got = [out, lse, *derivatives(out, [q, k, v, *learned])]
        first = first or got
        assert all(torch.equal(a, b) for a, b in zip(first, got, strict=True))
    torch.set_num_threads(threads)
