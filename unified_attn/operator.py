"""The front door: attention as one operator over any mask, bias and score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType

import torch
from torch import Tensor

from unified_attn._autocast import autocasts, without_autocast
from unified_attn.backends import BACKENDS, Backend, choose, order, reasons_of
from unified_attn.backends.base import normalise, row_max
from unified_attn.backends.reference import dense_weights
from unified_attn.backends.scatter import edge_weights
from unified_attn.biases import Bias, Sum
from unified_attn.biases.learned import Maker
from unified_attn.masks import DenseMask, Full, Mask
from unified_attn.problem import Problem, build
from unified_attn.scores import Dot, Score

_FULL, _NO_BIAS, _DOT = Full(), Sum(), Dot()  # what is not given; made once


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: Bias | None = None,
    score: Score | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    backend: str | Backend | None = None,
) -> Tensor:
    """Attention of queries over keys, in the layout of ``scaled_dot_product_attention``.

        logits_ij = scale * score(q_i, k_j) + b_ij
        out_i     = sum_{j in N(i)} softmax_j(logits_ij) v_j

    A query without an allowed key gets 0. Keys that nobody may attend may hold anything, NaN included.

    Args:
        q: Queries ``[B, Hq, Nq, D]``, any strides.
        k: Keys ``[B, Hkv, Nk, D]``; Hq is a multiple of Hkv, and query head h reads key head ``h // (Hq // Hkv)``.
        v: Values ``[B, Hkv, Nk, Dv]``.
        mask: Who may interact, N(i): a :class:`~unified_attn.masks.Mask`, or a bool tensor (True = may attend) that
            broadcasts to ``[B, Hq, Nq, Nk]``. Default all.
        bias: Which pairs are preferred, b_ij. Default none.
        score: How alike q and k are. Default :class:`~unified_attn.Dot`.
        scale: Multiplies the raw score, before any bias. Default the score's own: ``D ** -0.5`` for ``Dot``, else 1;
            ``0.0`` and ``1.0`` are legal.
        dropout_p: Probability to drop a weight. It acts whenever it is above 0: layers pass 0 in evaluation.
        q_positions: ``[Nq]`` or ``[B, Nq]`` integers. Default: the queries are the last tokens; with a graph 0, 1, ...
        k_positions: ``[Nk]`` or ``[B, Nk]`` integers. Default 0, 1, ...
        backend: A name (``"sdpa"``, ``"tiled"``, ``"csr"``, ``"scatter"``, ``"flex"``, ``"reference"``) or an object;
            None chooses by the rule in :mod:`unified_attn.backends`.

    Returns:
        ``[B, Hq, Nq, Dv]`` in q's dtype, computed in float32 (float64 for float64 inputs). Under autocast k and v are
        taken in q's dtype.

    Raises:
        TypeError: If an argument is of the wrong kind, such as a mask of floats.
        ValueError: If sizes, devices or numbers do not fit; the message names argument, value and remedy.
        UnsupportedError: If the named back end cannot run this.

    Cost: O(Nq Nk D) dense; O(E D) time and O(E Hq) memory where the mask lists E pairs. Differentiable in q, k, v and
    every tensor of bias and score.

    Example:
        >>> import torch
        >>> from unified_attn import Causal
        >>> v = torch.eye(3)[None, None]  # so that a row of the output is the row of weights
        >>> attention(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2), v, mask=Causal())[0, 0]
        tensor([[1.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000],
                [0.3333, 0.3333, 0.3333]])
    """
    return _run(q, k, v, mask, bias, score, scale, dropout_p, q_positions, k_positions, backend, needs_lse=False)[0]


def graph_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | Tensor | None = None,
    *,
    bias: Bias | None = None,
    score: Score | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    backend: str | Backend | None = None,
) -> Tensor:
    """:func:`attention` for node-major tensors: ``[N, H, D]`` in, ``[N, H, D]`` out, nothing copied.

    Args:
        q: Queries ``[Nq, Hq, D]``: one a target node.
        k: Keys ``[Nk, Hkv, D]``: one a source node.
        v: Values ``[Nk, Hkv, Dv]``.
        mask: Usually a :class:`~unified_attn.Graph`.
        bias: As in :func:`attention`, like all that follow.
        score: How alike q and k are.
        scale: Multiplies the raw score.
        dropout_p: Probability to drop a weight.
        q_positions: ``[Nq]`` integers.
        k_positions: ``[Nk]`` integers.
        backend: Name or object.

    Returns:
        ``[Nq, Hq, Dv]`` in q's dtype.

    Raises:
        TypeError: As :func:`attention`.
        ValueError: If an input does not have three dimensions; else as :func:`attention`.

    Example:
        Node 2 listens to nodes 0 and 1 alike; nobody speaks to the others:

        >>> import torch
        >>> from unified_attn import Graph
        >>> x = torch.tensor([[[1.0]], [[3.0]], [[5.0]]])
        >>> graph_attention(x * 0, x * 0, x, Graph(torch.tensor([[0, 1], [2, 2]]))).flatten()
        tensor([0., 0., 2.])
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}; give a tensor [N, H, D]")
        if x.dim() != 3:
            hint = " ([B, H, N, D] inputs go to attention)" if x.dim() == 4 else ""
            raise ValueError(f"{name} has shape {list(x.shape)}; graph_attention takes node-major [N, H, D]{hint}")
    query = q.transpose(0, 1).unsqueeze(0)  # one view of what is one tensor
    key = query if k is q else k.transpose(0, 1).unsqueeze(0)
    value = query if v is q else key if v is k else v.transpose(0, 1).unsqueeze(0)
    options = (mask, bias, score, scale, dropout_p, q_positions, k_positions, backend)
    out, _ = _run(query, key, value, *options, needs_lse=False)
    return out.squeeze(0).transpose(0, 1)


def attention_with_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: Bias | None = None,
    score: Score | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    backend: str | Backend | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`attention` and the log-sum-exp of its logits, so that partial results can be joined by :func:`merge`.

    Args:
        q: As in :func:`attention`, like all that follow.
        k: Keys.
        v: Values.
        mask: Who may interact.
        bias: Which pairs are preferred.
        score: How alike q and k are.
        scale: Multiplies the raw score.
        dropout_p: Probability to drop a weight.
        q_positions: Positions of queries.
        k_positions: Positions of keys.
        backend: Name or object.

    Returns:
        Output ``[B, Hq, Nq, Dv]`` in q's dtype, and lse ``[B, Hq, Nq]``: natural log, float32 (float64 for float64
        inputs), -inf for a query without an allowed key; both differentiable.

    Raises:
        TypeError: As :func:`attention`.
        ValueError: As :func:`attention`.

    Example:
        >>> import torch
        >>> x = torch.zeros(1, 1, 4, 2)
        >>> attention_with_lse(x, x, x)[1][0, 0]  # log of four keys
        tensor([1.3863, 1.3863, 1.3863, 1.3863])
    """
    out, lse = _run(q, k, v, mask, bias, score, scale, dropout_p, q_positions, k_positions, backend, needs_lse=True)
    assert lse is not None  # checked
    return out, lse


def merge(outs: Sequence[Tensor], lses: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Joins attention over disjoint sets of keys into attention over all of them, exactly.

    Args:
        outs: Outputs ``[B, Hq, Nq, Dv]`` of :func:`attention_with_lse`, one a set of keys.
        lses: Their lse ``[B, Hq, Nq]``.

    Returns:
        Output in the dtype of the first, and lse. A query that no part gave a key gets 0 and -inf.

    Raises:
        ValueError: If there is nothing to join, or numbers or shapes differ.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 1, 2, 6, 4).unbind()
        >>> parts = [attention_with_lse(q, k[:, :, s], v[:, :, s]) for s in (slice(0, 2), slice(2, 6))]
        >>> out, lse = merge(*zip(*parts))
        >>> bool(torch.allclose(out, attention(q, k, v), atol=1e-6))
        True
    """
    outs, lses = list(outs), list(lses)
    if not outs or len(outs) != len(lses):
        raise ValueError(
            f"got {len(outs)} outs and {len(lses)} lses; give as many of one as of the other, at least one"
        )
    for n, (out, lse) in enumerate(zip(outs, lses, strict=True)):
        if not (isinstance(out, Tensor) and isinstance(lse, Tensor)):
            raise TypeError(f"part {n} is a {type(out).__name__} and a {type(lse).__name__}; give tensors")
        if out.shape != outs[0].shape or lse.shape != outs[0].shape[:-1]:
            raise ValueError(
                f"part {n} has out {list(out.shape)} and lse {list(lse.shape)}; all parts must be "
                f"{list(outs[0].shape)} and {list(outs[0].shape[:-1])}"
            )
    logits = torch.stack(lses, dim=-1)
    shift = row_max(logits)
    exp = (logits - shift).exp()
    weights, lse = normalise(exp, exp.sum(-1, keepdim=True), shift)
    out = (torch.stack(outs, dim=-1).to(weights.dtype) * weights[..., None, :]).sum(-1)
    return out.to(outs[0].dtype), lse[..., 0]


def attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: Bias | None = None,
    score: Score | None = None,
    scale: float | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
) -> Tensor:
    """The weights that :func:`attention` gives the values, before any dropout.

    Args:
        q: Queries ``[B, Hq, Nq, D]``.
        k: Keys ``[B, Hkv, Nk, D]``.
        mask: As in :func:`attention`, like all that follow.
        bias: Which pairs are preferred.
        score: How alike q and k are.
        scale: Multiplies the raw score.
        q_positions: Positions of queries.
        k_positions: Positions of keys.

    Returns:
        ``[B, Hq, E]`` in the caller's edge order where the mask holds a graph (alone or with ``&``), 0 where another
        mask hides the edge; otherwise ``[B, Hq, Nq, Nk]``. float32, or float64 for float64 inputs. Rows sum to 1, to 0
        where nothing is allowed, and to less with a sink.

    Raises:
        TypeError: As :func:`attention`.
        ValueError: As :func:`attention`.

    Example:
        >>> import torch
        >>> from unified_attn import Graph
        >>> x = torch.zeros(1, 1, 3, 2)
        >>> attention_weights(x, x, mask=Graph(torch.tensor([[0, 1, 2], [1, 0, 1]])))
        tensor([[[0.5000, 1.0000, 0.5000]]])
    """
    problem = _problem(q, k, None, mask, bias, score, scale, 0.0, q_positions, k_positions)
    with without_autocast(q.device):
        if problem.has_edges:
            low = problem.listed()
            weights, lse = edge_weights(low)
            lse = lse.index_select(2, low.pairs.query.flatten())
        else:
            weights, lse = dense_weights(problem.dense())
        sink = problem.score.sink
        return weights if sink is None else weights * _share(lse, sink).reshape(*lse.shape, *[1] * (weights.dim() - 3))


@dataclass(frozen=True)
class Explanation:
    """What :func:`explain` found; prints as a table.

    Args:
        backend: Name of the back end that would run; None if a named one cannot.
        rule: Why that one.
        reasons: For each back end, why it cannot run this; empty if it can.
        notes: For each back end, what it found on this machine.
    """

    backend: str | None
    rule: str
    reasons: dict[str, tuple[str, ...]]
    notes: dict[str, str]

    def __str__(self) -> str:
        width = max(map(len, self.reasons))
        lines = [f"{self.backend or 'nothing'} runs: {self.rule}"]
        for name, reasons in self.reasons.items():
            state = "; ".join(reasons) if reasons else "chosen" if name == self.backend else "could run it"
            note = f" [{self.notes[name]}]" if self.notes[name] else ""
            lines.append(f"  {name:<{width}}  {'no: ' if reasons else ''}{state}{note}")
        return "\n".join(lines)


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: Bias | None = None,
    score: Score | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    backend: str | Backend | None = None,
) -> Explanation:
    """Which back end :func:`attention` would run, and for every other one the reason why not. Computes nothing.

    Args:
        q: As in :func:`attention`, like all that follow.
        k: Keys.
        v: Values.
        mask: Who may interact.
        bias: Which pairs are preferred.
        score: How alike q and k are.
        scale: Multiplies the raw score.
        dropout_p: Probability to drop a weight.
        q_positions: Positions of queries.
        k_positions: Positions of keys.
        backend: Name or object; None asks for the default.

    Returns:
        An :class:`Explanation`: ``.backend``, ``.rule``, ``.reasons``, ``.notes``, and a table as its text.

    Raises:
        TypeError: As :func:`attention`.
        ValueError: As :func:`attention`.

    Example:
        >>> import torch
        >>> from unified_attn import Causal
        >>> x = torch.zeros(1, 1, 4, 2)
        >>> explain(x, x, x, mask=Causal()).backend
        'sdpa'
    """
    problem = _problem(q, k, v, mask, bias, score, scale, dropout_p, q_positions, k_positions)
    known = dict(BACKENDS)
    if isinstance(backend, Backend):
        known = {backend.name: backend, **known}
    reasons = {name: reasons_of(one, problem) for name, one in known.items()}
    notes = {name: one.note() for name, one in known.items()}
    if backend is None:
        names, why = order(problem)
        return Explanation(choose(problem, None).name, f"{why}, so the order is {', '.join(names)}", reasons, notes)
    named = backend if isinstance(backend, str) else backend.name
    if named not in known:
        choose(problem, backend)  # raises, naming the choices
    return Explanation(None if reasons[named] else named, f"{named!r} was named", reasons, notes)


def _problem(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    mask: Mask | Tensor | None,
    bias: Bias | None,
    score: Score | None,
    scale: float | None,
    dropout_p: float,
    q_positions: Tensor | None,
    k_positions: Tensor | None,
    *,
    needs_lse: bool = False,
) -> Problem:
    """Puts objects in place of defaults, and checks the call."""
    if mask is None:
        mask = _FULL
    elif isinstance(mask, Tensor):
        mask = DenseMask(mask)
    elif not isinstance(mask, Mask):
        remedy = "it is a bias: pass it as bias=" if isinstance(mask, Bias) else _wrapped(mask, "Where")
        raise TypeError(f"mask is {kind_of(mask)}; {remedy or 'give a Mask, or a bool tensor (True = may attend)'}")
    if bias is None:
        bias = _NO_BIAS
    elif isinstance(bias, Tensor):
        raise TypeError(f"bias is a tensor {list(bias.shape)}; say what it is: DenseBias(t), or EdgeBias(t) on a graph")
    elif not isinstance(bias, Bias):
        remedy = "it is a mask: pass it as mask=" if isinstance(bias, Mask) else _wrapped(bias, "Additive")
        remedy = bias.remedy if isinstance(bias, Maker) else remedy
        raise TypeError(f"bias is {kind_of(bias)}; {remedy or 'give a Bias'}")
    if score is None:
        score = _DOT
    elif not isinstance(score, Score):
        raise TypeError(f"score is {kind_of(score)}; give a Score")
    if isinstance(q, Tensor) and autocasts(q.device):
        # Under autocast a model's q, k and v may come in different precisions; q's is the one asked for.
        k = k.to(q.dtype) if isinstance(k, Tensor) and k.is_floating_point() else k
        v = v.to(q.dtype) if isinstance(v, Tensor) and v.is_floating_point() else v
    return build(q, k, v, mask, bias, score, scale, dropout_p, q_positions, k_positions, needs_lse=needs_lse)


def kind_of(thing: object) -> str:
    """What was given in place of an object, for an error message."""
    if isinstance(thing, type):
        return f"the class {thing.__name__}, not an object of it"
    return f"a {type(thing).__name__}"


def _wrapped(thing: object, wrapper: str) -> str:
    """What to do with a function given in place of an object; empty for other things."""
    return f"wrap it as {wrapper}(fn)" if isinstance(thing, FunctionType | partial) else ""


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | Tensor | None,
    bias: Bias | None,
    score: Score | None,
    scale: float | None,
    dropout_p: float,
    q_positions: Tensor | None,
    k_positions: Tensor | None,
    backend: str | Backend | None,
    *,
    needs_lse: bool,
) -> tuple[Tensor, Tensor | None]:
    problem = _problem(q, k, v, mask, bias, score, scale, dropout_p, q_positions, k_positions, needs_lse=needs_lse)
    with without_autocast(q.device):
        chosen = choose(problem, backend)
        out, lse = _checked(chosen.name, chosen.run(problem), problem)
        sink = problem.score.sink
        if sink is not None and lse is not None:
            sink = sink.to(lse.dtype)  # once: of a half, the two gradients are then summed before they are rounded
            out = out * _share(lse, sink)[..., None]
            lse = torch.logaddexp(lse, sink[:, None])
    return out.to(q.dtype), lse


def _checked(name: str, answer: object, problem: Problem) -> tuple[Tensor, Tensor | None]:
    """What a back end returned, if it is what it must return: one's own may not."""
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], Tensor):
        out, lse = answer
        rows = problem.q.shape[:3]
        if lse is None and problem.needs_lse:
            raise ValueError(f"back end {name!r} must return an lse where problem.needs_lse, not None")
        if lse is None or isinstance(lse, Tensor):
            if out.shape == (*rows, problem.v.shape[3]) and (lse is None or lse.shape == rows):
                return out, lse
            sizes = [[*rows, problem.v.shape[3]], list(rows)]
            shapes = [list(out.shape), sizes[1] if lse is None else list(lse.shape)]
            raise ValueError(f"back end {name!r} must return out {sizes[0]} and lse {sizes[1]}, not shapes {shapes}")
    raise TypeError(f"back end {name!r} must return two tensors, out and lse, not {kind_of(answer)}")


def _share(lse: Tensor, sink: Tensor) -> Tensor:
    """What a sink leaves of the weights of each query: exp(lse) / (exp(lse) + exp(sink)), for lse ``[B, Hq, ...]``."""
    return torch.sigmoid(lse - sink.to(lse.dtype)[:, None])
