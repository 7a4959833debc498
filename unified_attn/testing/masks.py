"""Laws of a mask."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence

import torch
from torch import Tensor

from unified_attn import attention_with_lse
from unified_attn.masks import Mask, Where
from unified_attn.masks.graph import EdgeMask
from unified_attn.testing import formula
from unified_attn.testing.call import SIZES, Call, Sizes, able, call, fitting
from unified_attn.testing.law import LawBroken, require, require_kind, require_same


def check_mask(
    mask: Mask,
    *,
    sizes: Sizes = SIZES,
    batch: int = 2,
    num_heads: int = 2,
    backends: Sequence[str] | None = None,
) -> None:
    """Holds a mask to the laws of masks.

    Its rule takes index tensors of any broadcastable shapes and gives bools; dense and listed evaluation, ``draw``,
    ``band``, ``prefix`` and ``candidates`` say the same; it composes by the laws of logic; copies mean the same; its
    repr is one readable line; and attention with it is a plain float64 softmax over its pairs, on every back end that
    does not decline.

    Args:
        mask: One's own mask.
        sizes: Queries x keys to try; those that the mask refuses with a ValueError are left out.
        batch: B.
        num_heads: Hq.
        backends: Names; default all but ``flex``, which is slow.

    Raises:
        LawBroken: Naming the law, the sizes and the pair.
        ValueError: If it takes none of the sizes.

    Example:
        A window whose band is one off, so that back ends which read the band see another mask:

        >>> class Near(Mask):
        ...     def allow(self, b, h, i, j):
        ...         return (i - j).abs() <= 1
        ...     def band(self):
        ...         return 1, 0
        >>> check_mask(Near(), sizes=[(3, 3)])
        Traceback (most recent call last):
            ...
        unified_attn.testing.law.LawBroken: law broken: the band is exact: Near() at 3 queries x 3 keys: got False \
at [0, 0, 0, 1], wanted True
    """
    require_kind("masks are masks", mask, Mask)
    text = repr(mask)
    require("the repr is readable", text.strip() != "" and "\n" not in text and " at 0x" not in text, repr(text))
    calls = [call(mask, queries, keys, batch, num_heads) for queries, keys in sizes]
    for one in fitting(mask.check, calls, text):
        where = f"{text} at {one.sizes}"
        if not any(isinstance(part, EdgeMask) for part in mask.modules()):  # that one knows edges alone, no pairs
            table = _table(mask, one)
            require_same("two calls agree", where, _table(mask, one), table)
            if not _has_parts(mask):
                _broadcasts(mask, one, table, where)
            _lists(mask, one, table, where)
            _draws(mask, one, table, where)
            _structure(mask, one, table, where)
            _logic(mask, one, table, where)
            _copies(mask, one, table, where)
        _attends(mask, one, where, backends)


def _dense(one: Call) -> Call:
    """The same call with all pairs, whether or not the mask holds a graph."""
    shape = one.shape
    query, key = formula.all_pairs(shape.num_queries, shape.num_keys)
    pairs = type(one.pairs)(shape, one.pairs.q_positions, one.pairs.k_positions)
    return Call(shape, one.mask, query, key, pairs)


def _full(one: Call) -> tuple[int, int, int, int]:
    return one.shape.batch, one.shape.num_heads, one.shape.num_queries, one.shape.num_keys


def _table(mask: Mask, one: Call) -> Tensor:
    """The mask as ``[B, H, Nq, Nk]``."""
    try:
        return mask.on(_dense(one).pairs).expand(_full(one))
    except TypeError as error:
        raise LawBroken("allow returns a bool tensor", str(error)) from error


def _has_parts(mask: Mask) -> bool:
    """Whether it is made of masks: those may count different things, so that its `allow` alone says nothing."""
    return any(isinstance(part, Mask) for part in list(mask.modules())[1:])


def _broadcasts(mask: Mask, one: Call, table: Tensor, where: str) -> None:
    pairs = _dense(one).pairs
    thin = [pairs.batch, pairs.head, *pairs.ends(mask.space)]
    full = [x.expand(_full(one)).contiguous() for x in thin]
    law = "allow takes index tensors of any shape"
    for name, index in (("full", full), ("flat", [x.flatten() for x in full])):
        try:
            got = mask.allow(*index)
        except (IndexError, RuntimeError, ValueError) as error:
            raise LawBroken(law, f"{where}: {name} index tensors raise {error}") from error
        require("allow returns a bool tensor", got.dtype == torch.bool, f"{where}: got {got.dtype}")
        require_same(law, f"{where}, {name} index tensors", got.expand(index[0].shape).reshape(table.shape), table)
    for n in {0, table.numel() // 2, table.numel() - 1} if table.numel() else ():
        got = mask.allow(*(x.flatten()[n] for x in full))
        require_same(law, f"{where}, one pair", got.reshape(()), table.flatten()[n])


def _some_pairs(one: Call) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    sizes = one.shape.num_queries, one.shape.num_keys
    count = 3 * max(sizes) if min(sizes) else 0
    query, key = (torch.randint(max(size, 1), (count,), generator=random) for size in sizes)
    return query, key


def _lists(mask: Mask, one: Call, table: Tensor, where: str) -> None:
    query, key = _some_pairs(one)
    got = mask.on(one.listing(query, key)).expand(*table.shape[:2], -1)
    law = "listed pairs are those of the table"
    require_same(law, where, got.expand(-1, -1, len(query)), table[:, :, query, key], ends=(query, key))


def _draws(mask: Mask, one: Call, table: Tensor, where: str) -> None:
    batch, heads, queries, keys = _full(one)
    text = mask.draw(queries, keys, batch=batch, num_heads=heads)
    drawn = torch.tensor([[c == "#" for c in line] for line in text.split("\n")], dtype=torch.bool).reshape(
        queries, keys
    )
    require_same("the drawing is the table", where, drawn, table[0, 0])


def _structure(mask: Mask, one: Call, table: Tensor, where: str) -> None:
    queries, keys = one.pairs.q_positions[0][:, None], one.pairs.k_positions[0]
    distance = (keys - queries).double()
    band = mask.band()
    if band is not None:
        left, right = (torch.inf if side is None else side for side in band)
        inside = (distance >= -left) & (distance <= right)
        require_same("the band is exact", where, inside.expand(table.shape), table)
    prefix = mask.prefix(one.shape)
    if prefix is not None:
        inside = (distance <= (torch.inf if prefix.right is None else prefix.right)).expand(table.shape)
        if prefix.queries is not None:
            inside = inside & prefix.queries[:, None, :, None]
        if prefix.keys is not None:
            inside = inside & prefix.keys[:, None, None, :]
        require_same("the prefix is exact", where, inside, table)
    candidates = mask.candidates(one.shape)
    if candidates is None:
        return
    listed = candidates.list()
    law = "candidates are a superset, and the rest makes them exact"
    allowed = torch.ones(*table.shape[:2], len(listed.query), dtype=torch.bool)
    if candidates.rest is not None:
        pairs = type(one.pairs)(one.shape, one.pairs.q_positions, one.pairs.k_positions, listed)
        allowed = candidates.rest.on(pairs).expand(allowed.shape)
    found = torch.zeros_like(table, dtype=torch.int64)
    found = (
        found.flatten(2).index_add(2, listed.query * table.shape[3] + listed.key, allowed.long()).reshape(table.shape)
    )
    require_same(law, where, found > 0, table)
    if mask.graph is None:
        twice = f"{where}: a pair is listed {int(found.max()) if found.numel() else 0} times"
        require("candidates hold no pair twice", not bool((found > 1).any()), twice)
    require(
        "candidates count their pairs",
        candidates.pairs.num_pairs >= len(listed.query),  # it may be a bound that is known without the list
        f"{where}: num_pairs is {candidates.pairs.num_pairs}, but {len(listed.query)} are listed",
    )


def _logic(mask: Mask, one: Call, table: Tensor, where: str) -> None:
    other = Where(lambda b, h, i, j: (i + 2 * j + h) % 3 != 0)
    second = _table(other, one)
    for law, composed, wanted in (
        ("not not is the mask", ~~mask, table),
        ("not is the complement", ~mask, ~table),
        ("and is both", mask & other, table & second),
        ("and is both", other & mask, table & second),
        ("or is either", mask | other, table | second),
        ("De Morgan's laws", ~(mask & other), ~table | ~second),
        ("De Morgan's laws", ~(~mask | ~other), table & second),
    ):
        composed.check(one.shape)
        require_same(law, where, _table(composed, one), wanted)


def _copies(mask: Mask, one: Call, table: Tensor, where: str) -> None:
    law = "copies mean the same"
    require_same(law, f"{where}, copied", _table(copy.deepcopy(mask), one), table)
    require_same(law, f"{where}, moved", _table(copy.deepcopy(mask).to("cpu").float(), one), table)
    try:
        stored = pickle.dumps(mask)
    except (AttributeError, TypeError, pickle.PicklingError):  # a function of one's own may have no name to store
        return
    require_same(law, f"{where}, pickled", _table(pickle.loads(stored), one), table)


def _attends(mask: Mask, one: Call, where: str, backends: Sequence[str] | None) -> None:
    q, k, v = one.inputs()
    visible = one.entries(mask.on(one.pairs))
    logits = (q[:, :, one.query] * k[:, :, one.key]).sum(-1) / one.shape.head_dim**0.5
    out, lse = formula.softmax(logits, visible, one.query, v[:, :, one.key], one.shape.num_queries)
    law = "attention is a softmax over the allowed pairs"
    for name in able(backends, q, k, v, mask=mask):
        got = attention_with_lse(q, k, v, mask=mask, backend=name)
        require_same(law, f"{where}, back end {name}", got[0], out, 1e-10)
        require_same(law, f"{where}, lse of back end {name}", got[1], lse, 1e-10)
