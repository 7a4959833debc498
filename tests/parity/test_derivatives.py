"""First and second derivatives against finite differences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from tests.parity.tensors import LISTED, made, qkv, some_edges
from unified_attn import GAT, Dot, EdgeBias, GATv2, Graph, PairVectors, UnsupportedError, attention, attention_with_lse


@contextmanager
def torch_scatter_hidden(hidden: bool, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whether the scatter back end must use torch's own reductions."""
    with monkeypatch.context() as patch:
        if hidden:
            patch.setattr("unified_attn.kernels.segment.torch_scatter", lambda: (None, "hidden by a test"))
        yield


def small(name: str) -> tuple[object, list[Tensor]]:
    """A function of all its tensors on a graph with an isolated node and parallel edges, for gradcheck."""
    shapes = [(1, 2, 3, 2), (1, 1, 3, 2), (1, 1, 3, 3), (5, 2), (5, 1, 2), (5, 1, 3), (2, 2), (2, 2)]
    tensors = made(*shapes, seed=21)
    edges = torch.tensor([[0, 1, 2, 2, 0], [1, 1, 2, 2, 2]])

    def call(backend: str, q, k, v, values, r, s, att, other) -> tuple[Tensor, Tensor]:
        score = {"gat": GAT(att, other), "gatv2": GATv2(att)}.get(name, Dot(softcap=2.0))
        bias = EdgeBias(values) + PairVectors(r, s)
        out, lse = attention_with_lse(q, k, v, mask=Graph(edges), bias=bias, score=score, backend=backend)
        return out, lse[:, :, 1:]

    return call, tensors


@pytest.mark.parametrize("name", ["dot", "gat", "gatv2"])
@LISTED
def test_gradcheck(backend: str, name: str) -> None:
    call, tensors = small(name)
    assert torch.autograd.gradcheck(lambda *x: call(backend, *x), tensors)


@pytest.mark.parametrize("name", ["dot", "gat", "gatv2"])
@pytest.mark.parametrize(("backend", "hidden"), [("reference", False), ("scatter", False), ("scatter", True)])
def test_second_derivatives(backend: str, hidden: bool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, tensors = small(name)
    with torch_scatter_hidden(hidden, monkeypatch):
        assert torch.autograd.gradgradcheck(lambda *x: call(backend, *x), tensors)


def test_a_second_derivative_of_csr_names_who_has_one() -> None:
    q, k, v = qkv()
    out = attention(q, k, v, mask=Graph(some_edges()), backend="csr")
    (dq,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(UnsupportedError, match=r"scatter.*reference") as error:
        torch.autograd.grad(dq.sum(), k)
    assert error.value.backend == "csr"
