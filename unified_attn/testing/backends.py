"""Laws of a back end."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unified_attn import UnsupportedError, attention_with_lse, explain
from unified_attn.backends import Backend, find
from unified_attn.testing.law import LawBroken, require, require_same
from unified_attn.testing.problems import HEADS, Case, problems

_TOLERANCE = {torch.float64: 1e-10, torch.float32: 3e-5}


def check_backend(
    backend: Backend | str,
    *,
    forward_only: bool = False,
    dtypes: Sequence[torch.dtype] = (torch.float64, torch.float32),
) -> None:
    """Holds a back end to the laws of back ends, over a few hundred small problems.

    What it does not decline agrees with a float64 formula, and so do all gradients; a query without a key gets output
    0, lse -inf and gradients 0; what nobody attends may hold NaN; two runs give the same bits; grouped heads are
    repeated heads; dropout draws by the documented counter. What it declines raises ``UnsupportedError`` with the same
    reasons.

    Args:
        backend: An object, or a name.
        forward_only: Leave gradients out.
        dtypes: float64 and float32, or one of them.

    Raises:
        LawBroken: Naming the law and the problem.
        ValueError: If it declines everything, or a dtype is another.

    Example:
        Plain attention that has forgotten the queries which see nothing:

        >>> class Plain(Backend):
        ...     def unsupported(self, problem):
        ...         return ["too much for plain code"] if problem.has_edges or problem.dropout_p else []
        ...     def run(self, problem):
        ...         low = problem.dense()
        ...         logits = low.logits()
        ...         return logits.softmax(-1) @ low.values(), logits.logsumexp(-1)
        >>> check_backend(Plain())
        Traceback (most recent call last):
            ...
        unified_attn.testing.law.LawBroken: law broken: a query without a key gets 0: plain: mask none, bias hiding, \
score dot, 5 queries x 5 keys, float64: got nan at [0, 0], wanted 0
    """
    chosen = find(backend)
    for dtype in dtypes:
        if dtype not in _TOLERANCE:
            raise ValueError(f"dtypes holds {dtype}; choose from {', '.join(map(str, _TOLERANCE))}")
    with torch.set_grad_enabled(not forward_only), torch.random.fork_rng(devices=[]):  # draws are the CPU's
        ran = sum(_checked(chosen, case, forward_only) for dtype in dtypes for case in problems(dtype))
    if not ran:
        raise ValueError(f"back end {chosen.name!r} declines every problem, so nothing was checked")


def _checked(chosen: Backend, case: Case, forward_only: bool) -> bool:
    """Whether the case ran."""
    where = f"{chosen.name}: {case.name}"
    if forward_only:
        case.inputs = [x.detach() for x in case.inputs]
    reasons = explain(*case.inputs, **case.options, backend=chosen).reasons[chosen.name]
    if reasons:
        _declines(chosen, case, reasons, where)
        return False
    _computes(chosen, case, where, forward_only)
    _drops(chosen, case, where)
    return True


def _declines(backend: Backend, case: Case, reasons: tuple[str, ...], where: str) -> None:
    law = "declined problems raise their reasons"
    require(law, all(isinstance(r, str) and r for r in reasons), f"{where}: {reasons} are not all sentences")
    try:
        attention_with_lse(*case.inputs, **case.options, backend=backend)
    except UnsupportedError as error:
        require(law, error.reasons == reasons, f"{where}: explains {reasons}, but raises {error.reasons}")
        return
    raise LawBroken(law, f"{where}: explains {reasons}, but runs")


def _run(backend: Backend, case: Case, inputs: list[Tensor], where: str, p: float = 0.0) -> tuple[Tensor, Tensor]:
    torch.default_generator.manual_seed(7)
    try:
        return attention_with_lse(*inputs, **case.options, dropout_p=p, backend=backend)
    except Exception as error:
        raise LawBroken("what is not declined runs", f"{where}: {type(error).__name__}: {error}") from error


def _derivatives(out: Tensor, lse: Tensor, leaves: list[Tensor], where: str) -> list[Tensor]:
    """Of a sum in which every number counts differently; an lse of -inf takes no part. None counts as 0."""
    finite = lse.masked_fill(lse == -torch.inf, 0.0)
    total = torch.zeros((), dtype=torch.float64)
    for x in (out, finite):
        total = total + (x.double() * torch.linspace(-1.0, 2.0, x.numel(), dtype=torch.float64).reshape(x.shape)).sum()
    try:
        grads = torch.autograd.grad(total, leaves, allow_unused=True)
    except RuntimeError as error:
        raise LawBroken("gradients are those of the formula", f"{where}: {error}") from error
    return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(leaves, grads, strict=True)]


def _computes(backend: Backend, case: Case, where: str, forward_only: bool) -> None:
    inputs, tolerance = case.inputs, _TOLERANCE[case.inputs[0].dtype]
    out, lse = _run(backend, case, inputs, where)
    queries = inputs[0].shape[2]
    ends = torch.zeros(*lse.shape, dtype=torch.int64).index_add(2, case.query, case.visible.long())
    empty = ends == 0
    law = "a query without a key gets 0"
    require_same(law, where, out[empty], torch.zeros_like(out[empty]))
    require_same("the lse of a query without a key is -inf", where, lse[empty], torch.full_like(lse[empty], -torch.inf))

    exact_out, exact_lse = case.exact()
    require_same("attention is the formula", where, out, exact_out.to(out.dtype), tolerance)
    require_same("the lse is the formula's", where, lse, exact_lse, tolerance)
    names = ["q", "k", "v", *case.learned]
    leaves = [*inputs, *case.learned.values()]
    grads = [] if forward_only else _derivatives(out, lse, leaves, where)
    if not forward_only:
        wanted = _derivatives(exact_out, exact_lse, leaves, where)
        for name, got, exact in zip(names, grads, wanted, strict=True):
            require_same("gradients are those of the formula", f"{where}: {name}", got, exact, tolerance)

    again = _run(backend, case, inputs, where)
    require_same("two runs agree", where, again[0], out)
    _ignores_hidden(backend, case, where, out, grads, queries)

    group = HEADS // inputs[1].shape[1]
    repeated = [inputs[0], *(x.repeat_interleave(group, 1) for x in inputs[1:])]
    if not case.learned.keys() & {"key vectors", "value vectors"}:  # those come a key head
        full = _run(backend, case, repeated, where)
        require_same("grouped heads are repeated heads", where, out, full[0], tolerance)


def _ignores_hidden(backend: Backend, case: Case, where: str, out: Tensor, grads: list[Tensor], queries: int) -> None:
    """NaN in the rows that take part in no visible pair changes no output and no gradient."""
    law = "what nobody attends changes nothing"
    seen = case.visible.long()
    group = HEADS // case.inputs[1].shape[1]
    sides = []
    for x, end in zip(case.inputs, (case.query, case.key, case.key), strict=True):
        rows = seen.new_zeros(*seen.shape[:2], x.shape[2]).index_add(2, end, seen)
        heads = rows if end is case.query else rows.unflatten(1, (-1, group)).sum(2)
        sides.append((heads == 0)[..., None])
    if not any(bool(side.any()) for side in sides):
        return
    spoilt = [
        x.detach().masked_fill(side, torch.nan).requires_grad_(x.requires_grad)
        for x, side in zip(case.inputs, sides, strict=True)
    ]
    got = _run(backend, case, spoilt, where)
    require_same(law, where, got[0], out, 1e-6)
    if grads:
        leaves = [*spoilt, *case.learned.values()]
        for name, a, b in zip("qkv", _derivatives(*got, leaves, where), grads, strict=False):
            require_same(law, f"{where}: gradient of {name}", a, b, 1e-5)


def _drops(backend: Backend, case: Case, where: str) -> None:
    """Dropout multiplies the weights by factors that a counter draws: see :mod:`unified_attn.dropout`."""
    reasons = explain(*case.inputs, **case.options, dropout_p=0.5, backend=backend).reasons[backend.name]
    if reasons or case.options["bias"] is not None:  # once a mask and size is enough
        return
    out, lse = _run(backend, case, case.inputs, where, 0.5)
    torch.default_generator.manual_seed(7)
    seed = int(torch.randint(2**62, (1,)))
    batch, heads, _ = case.visible.shape
    kept = [[[_kept(seed, b * heads + h, n) for n in case.counters] for h in range(heads)] for b in range(batch)]
    factors = torch.tensor(kept, dtype=torch.float64).reshape(batch, heads, len(case.counters)) * 2.0
    wanted = case.exact(factors)
    law, tolerance = "dropout drops weights by the documented counter", _TOLERANCE[case.inputs[0].dtype]
    require_same(law, where, out, wanted[0], tolerance)
    require_same("the lse knows no dropout", where, lse, wanted[1], tolerance)


def _kept(seed: int, head: int, counter: int) -> bool:
    """Whether a weight stays at p = 1/2, in Python's integers: the hash as the documentation states it."""
    word = 2**64 - 1
    x = (seed + head * 0x9E3779B97F4A7C15 + counter * 0xD1B54A32D192ED03) & word
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        x = ((x ^ (x >> 32)) * factor) & word
    return (x ^ (x >> 32)) >> 40 >= 2**23
