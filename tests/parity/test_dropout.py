"""Dropout: one mask for all back ends, there and back, and right on average."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.parity.cases import BACKENDS
from tests.parity.tensors import LISTED, made, qkv, same, some_edges
from unified_attn import Causal, Graph, Window, attention, explain


@pytest.mark.parametrize(
    ("mask", "able"),
    [
        (Graph(some_edges()), ["reference", "scatter", "csr"]),
        (Graph(some_edges()) & Causal(), ["reference", "scatter", "csr"]),
        (Window(2, 1), ["reference", "scatter", "csr", "tiled"]),
        (Causal(), ["reference", "tiled"]),
    ],
    ids=repr,
)
def test_one_seed_is_one_dropout_for_all_back_ends(mask: object, able: list[str]) -> None:
    reasons = explain(*qkv(), mask=mask, dropout_p=0.5).reasons
    assert {backend for backend in BACKENDS if not reasons[backend]} == set(able)
    outs = {}
    for backend in able:
        torch.manual_seed(11)
        outs[backend] = attention(*qkv(), mask=mask, dropout_p=0.5, backend=backend)
        same(outs[backend], next(iter(outs.values())))
    torch.manual_seed(12)
    assert not torch.allclose(attention(*qkv(), mask=mask, dropout_p=0.5), outs["reference"])


@LISTED
def test_dropout_changes_nothing_on_average(backend: str) -> None:
    q, k, v = (x.detach().expand(2000, -1, -1, -1) for x in qkv(batch=1))  # each sequence of a batch draws its own
    torch.manual_seed(0)
    draws = attention(q, k, v, mask=Window(3, 2), dropout_p=0.3, backend=backend)
    error = (draws.mean(0) - attention(q[:1], k[:1], v[:1], mask=Window(3, 2))[0]).abs()
    assert bool((error < 5 * draws.std(0) / 2000**0.5).all())  # five standard errors


@LISTED
@pytest.mark.parametrize("p", [0.0, 0.4, 1.0])
def test_the_way_back_drops_what_the_way_there_dropped(backend: str, p: float) -> None:
    q, k, v = qkv()
    weight = torch.randn(2, 4, 7, 7, dtype=torch.float64)
    out = attention(q, k, v, mask=Graph(some_edges()), dropout_p=p, backend=backend)
    (grad,) = torch.autograd.grad((out * weight).sum(), v)
    # The output is linear in v, so <dL/dv, v> = L for the mask of this very call (Euler).
    same((grad * v).sum(), (out * weight).sum())
    assert bool((out != 0).any()) == (p < 1.0)


@LISTED
def test_the_way_back_drops_what_the_way_there_dropped_in_q_and_k(backend: str) -> None:
    def loss(q: Tensor, k: Tensor) -> Tensor:
        torch.manual_seed(4)
        return attention(q, k, qkv()[2], mask=Window(2, 2), dropout_p=0.4, backend=backend).cos().sum()

    q, k, _ = qkv()
    dq, dk = torch.autograd.grad(loss(q, k), (q, k))
    a, b = (x.detach() for x in made(q.shape, k.shape, seed=13))
    step = 1e-5
    finite = (loss(q + step * a, k + step * b) - loss(q - step * a, k - step * b)) / (2 * step)
    torch.testing.assert_close((dq * a).sum() + (dk * b).sum(), finite, rtol=1e-7, atol=1e-7)
