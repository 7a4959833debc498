"""Holds the library against the oracle: output, lse and every gradient. Gives what differs, in words."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tests.parity import oracle
from tests.parity.cases import BACKENDS, Case
from unified_attn import UnsupportedError, attention_with_lse, explain

# Errors are measured against the greatest exact number of a tensor, but never against less than 1.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5}


@dataclass
class Result:
    out: Tensor
    lse: Tensor
    grads: dict[str, Tensor | None]  # empty of a forward pass alone

    def tensors(self) -> dict[str, Tensor | None]:
        return {"out": self.out, "lse": self.lse, **{f"gradient of {name}": grad for name, grad in self.grads.items()}}


def differentiate(out: Tensor, lse: Tensor, given: dict[str, Tensor], seed: int) -> Result:
    """Gradients of a random weighting of output and lse. An empty row's lse is -inf, and takes no part."""
    random = torch.Generator().manual_seed(seed)
    weight, lse_weight = (torch.randn(x.shape, generator=random, dtype=torch.float64) for x in (out, lse))
    # Numbers that every dtype holds, so that all runs are asked for the gradient of one function.
    weight, lse_weight = weight.to(torch.float16).to(torch.bfloat16), lse_weight.to(torch.float16).to(torch.bfloat16)
    finite = lse.masked_fill(lse == -torch.inf, 0.0)
    loss = (out.to(lse.dtype) * weight).sum() + (finite * lse_weight).sum()
    # Kept for the next back end: what a bias computed from its data (edge features) is shared by all of them.
    grads = torch.autograd.grad(loss, list(given.values()), allow_unused=True, retain_graph=True)
    return Result(out.detach(), lse.detach(), dict(zip(given, grads, strict=True)))


def run(case: Case, backend: str | None) -> Result:
    torch.manual_seed(case.seed)  # for dropout
    out, lse = attention_with_lse(**case.inputs, **case.keywords, backend=backend)
    if not torch.is_grad_enabled():
        return Result(out, lse, {})
    return differentiate(out, lse, case.given, case.seed)


def run_oracle(case: Case, compute: torch.dtype, dtype: torch.dtype) -> Result:
    """The oracle on the very numbers that the library gets, computed in one dtype and handed out in another."""
    given = {name: x.detach().clone().to(dtype).requires_grad_() for name, x in case.given.items()}
    out, lse, _ = oracle.attention(case.exact({name: x.to(compute) for name, x in given.items()}))
    return differentiate(out.to(dtype), lse, given, case.seed)


def compare(case: Case, backends: tuple[str, ...] = BACKENDS) -> list[str]:
    """All that is wrong; a back end that declines must raise its own reasons when it is named."""
    reasons = explain(**case.inputs, **case.keywords).reasons
    dtype = case.inputs["q"].dtype
    exact = run_oracle(case, torch.float64, torch.float64)
    half = run_oracle(case, torch.float32, dtype) if dtype in (torch.bfloat16, torch.float16) else None
    found = []
    for backend in backends:
        if reasons[backend]:
            found += declined(case, backend, reasons[backend])
        else:
            found += [f"{backend}: {fault}" for fault in faults(run(case, backend), exact, half, dtype)]
    return found


def compare_forward(case: Case, backend: str) -> list[str]:
    """The same of a back end that has no gradients, and says so where they are asked for."""
    found = compare(case, (backend,))
    dtype = case.inputs["q"].dtype
    exact = replace(run_oracle(case, torch.float64, torch.float64), grads={})
    half = run_oracle(case, torch.float32, dtype) if dtype in (torch.bfloat16, torch.float16) else None
    with torch.no_grad():
        reasons = explain(**case.inputs, **case.keywords).reasons[backend]
        if reasons:
            return found + declined(case, backend, reasons)
        return found + [f"{backend}: {fault}" for fault in faults(run(case, backend), exact, half, dtype)]


def declined(case: Case, backend: str, reasons: tuple[str, ...]) -> list[str]:
    try:
        run(case, backend)
    except UnsupportedError as error:
        same = error.backend == backend and error.reasons == reasons and all(reasons)
        return [] if same else [f"{backend} explains {reasons}, but raises {error!r}"]
    return [f"{backend} explains {reasons}, but runs"]


def faults(ours: Result, exact: Result, half: Result | None, dtype: torch.dtype) -> list[str]:
    """What differs. With ``half``, the error may be twice that of the eager formula, and a rounding, and no more."""
    found = []
    if ours.out.dtype != dtype:
        found.append(f"out is {ours.out.dtype}, not {dtype}")
    eager = half.tensors() if half else {}
    for name, wanted in exact.tensors().items():
        got = ours.tensors()[name]
        if wanted is None or not bool((wanted != 0).any()):
            if got is not None and bool((got != 0).any()):
                found.append(f"{name} is not zero")
            continue
        if got is None or not bool((got != 0).any()):
            found.append(f"{name} is zero")
            continue
        if got.shape != wanted.shape:
            found.append(f"{name} has shape {list(got.shape)}, not {list(wanted.shape)}")
            continue
        size = wanted[wanted.isfinite()].abs().max() if bool(wanted.isfinite().any()) else wanted.new_tensor(0.0)
        if half is not None and name != "lse":
            allowed = 2 * distance(eager[name], wanted) + torch.finfo(dtype).eps * size / 2
        else:  # lse is float32 for half inputs
            allowed = TOLERANCE[got.dtype] * size.clamp_min(1.0)
        error = distance(got, wanted)
        if not error <= allowed:
            found.append(f"{name} is off by {error:.2e}, allowed are {allowed:.2e}")
    return found


def distance(a: Tensor, b: Tensor) -> Tensor:
    """The greatest difference; equal infinities do not differ, and NaN differs from all."""
    a = a.double()
    off = torch.where(a == b, 0.0, (a - b).abs())
    return off.nan_to_num(nan=torch.inf).max()
