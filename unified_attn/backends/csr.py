"""Fused attention over compressed rows: no tensor of pairs x channels, forward or backward."""

from __future__ import annotations

import functools
import importlib

import torch
from torch import Tensor

from unified_attn.backends.base import Backend, list_reasons, refuse_tangents
from unified_attn.kernels.contract import contract, contract_both
from unified_attn.kernels.csr import csr_attention
from unified_attn.problem import Lowered, Problem
from unified_attn.scores.base import Form
from unified_attn.vectors import NO_VECTORS, Operands, Stored, Vectors


class CSR(Backend):
    """One fused operator over the listed pairs (Numba on CPU); backward recomputes instead of storing.

    Deterministic: the same bits every run and for any number of threads. No second derivative. Cost: O(E Hq D) time,
    O(N Hq D + E Hq) memory.
    """

    def unsupported(self, problem: Problem) -> list[str]:
        reasons = list_reasons(problem)
        if not problem.fused:
            reasons.append(f"the score {problem.score!r} has no fused form (Dot, GAT and GATv2 have)")
        if problem.q.device.type != "cpu":
            reasons.append(f"the tensors are on {problem.q.device}, and the kernels run on CPU")
        if not torch.compiler.is_compiling():  # an import cannot be traced
            reasons.extend(_numba_error())
            if torch._C._are_functorch_transforms_active():
                reasons.append("a transform of torch.func is active, and the fused kernels know none of them")
        return reasons

    def run(self, problem: Problem) -> tuple[Tensor, Tensor]:
        low = problem.listed(clean=False)  # kernels skip hidden pairs before they read anything
        form = _form(low)
        # Some take part in products before the kernel skips what is hidden, or in no pair.
        vectors = [x for x in (form.key_vectors, low.value_vectors) if x is not None]
        queries = form.att is None and form.key_vectors is not None and form.key_vectors.projects
        features = any(x.forms for x in vectors) or (form.contracted and form.key_vectors is not None)
        if low.hides and (queries or features):
            low = low.silenced()
            form = _form(low)
        elif queries:
            low = low.without_lone_queries()
            form = _form(low)
        value_vectors = _operands(low.value_vectors)
        one = low.value_vectors is form.key_vectors and not form.contracted
        key_vectors = value_vectors if one else _operands(form.key_vectors)
        of_vectors = [x for side in (key_vectors, value_vectors) for x in (side.rows, side.features, side.weight)]
        of_score = [form.att, form.contract_query, form.contract_key, form.edge]
        refuse_tangents(self.name, form.query, form.key, low.v, low.add, *of_score, *of_vectors)
        query, key, value, key_vectors = _contracted(form, low.v, key_vectors)
        return csr_attention(
            query,
            key,
            value,
            low.rows(),
            add=low.add,
            add_hides=low.hides,
            key_vectors=key_vectors,
            value_vectors=value_vectors,
            att=form.att,
            scale=low.scale,
            cap=form.cap or 0.0,
            slope=form.negative_slope,
            dropout_p=low.dropout_p,
            seed=low.seed,
            pair_counter=not low.pairs.has_edges,
        )


def _form(low: Lowered) -> Form:
    form = low.form()
    if form is None:
        raise ValueError(f"the score {low.score!r} has no fused form")
    return form


def _operands(vectors: Vectors | None) -> Operands:
    return NO_VECTORS if vectors is None else vectors.operands()


def _contracted(form: Form, value: Tensor, key_vectors: Operands) -> tuple[Tensor, Tensor, Tensor, Operands]:
    """Query, key, value and key vectors of a form, contracted if it asks for that."""
    if form.contract_query is None or form.contract_key is None:
        return form.query, form.key, value, key_vectors
    scalars = None if form.key_vectors is None else form.key_vectors.contracted(form.contract_key)
    if form.edge is not None:
        edge = Stored(form.edge[..., None])
        scalars = edge if scalars is None else scalars + edge
    key_vectors = _operands(scalars)
    if form.query is form.key:
        query, key, same = contract_both(form.query, form.contract_query, form.contract_key)
    else:
        query, _ = contract(form.query, form.contract_query)
        key, same = contract(form.key, form.contract_key)
    value = same if value is form.key else value  # then its gradient is added to
    return query[..., None], key[..., None], value, key_vectors


@functools.cache
def _numba_error() -> tuple[str, ...]:
    """Why numba cannot be used, in one line, or nothing."""
    try:
        importlib.import_module("numba")
    except Exception as error:  # a mismatched binary raises more than ImportError
        return (f"numba does not import: {(str(error) or type(error).__name__).splitlines()[0]}",)
    return ()
