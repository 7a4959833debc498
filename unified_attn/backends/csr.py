"""Fused attention over compressed rows: no tensor of pairs x channels, forward or backward."""

from __future__ import annotations

import functools
import importlib

import torch
from torch import Tensor

from unified_attn.backends.base import Backend
from unified_attn.kernels.csr import csr_attention
from unified_attn.problem import Problem


class CSR(Backend):
    """One fused operator over the listed pairs (Numba on CPU); backward recomputes instead of storing.

    Deterministic: the same bits every run and for any number of threads. No second derivative. Cost: O(E Hq D) time,
    O(N Hq D + E Hq) memory.
    """

    def unsupported(self, problem: Problem) -> list[str]:
        reasons = []
        if problem.candidates is None:
            reasons.append(
                f"the mask {problem.mask!r} names no list of pairs (a Graph, or a Window with two sides, does)"
            )
        if not problem.fused:
            reasons.append(f"the score {problem.score!r} has no fused form (Dot, GAT and GATv2 have)")
        if problem.q.device.type != "cpu":
            reasons.append(f"the tensors are on {problem.q.device}, and the kernels run on CPU")
        if not torch.compiler.is_compiling():  # an import cannot be traced
            reasons.extend(_numba_error())
        return reasons

    def run(self, problem: Problem) -> tuple[Tensor, Tensor]:
        # Kernels skip hidden pairs before they read anything; a score that contracts its inputs first reads them all.
        low = problem.listed(clean=problem.score.contracts)
        form = low.form()
        if form is None or low.rows is None:
            raise ValueError(f"the score {problem.score!r} has no fused form")
        return csr_attention(
            form.query,
            form.key,
            low.v,
            low.rows(),
            add=low.add,
            key_vectors=form.key_vectors,
            value_vectors=low.value_vectors,
            att=form.att,
            scale=low.scale,
            cap=form.cap or 0.0,
            slope=form.negative_slope,
            dropout_p=low.dropout_p,
            seed=low.seed,
            pair_counter=low.pairs.edge is None,
        )


@functools.cache
def _numba_error() -> tuple[str, ...]:
    """Why numba cannot be used, in one line, or nothing."""
    try:
        importlib.import_module("numba")
    except Exception as error:  # a mismatched binary raises more than ImportError
        return (f"numba does not import: {str(error).splitlines()[0]}",)
    return ()
