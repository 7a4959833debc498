"""Masks of sequences against torch's own attention: with the equivalent table, by hand in bands, in a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import pad, scaled_dot_product_attention

from experiments.benchmarks.case import Case, Side
from unified_attn import ALiBi, Causal, Documents, Longformer, Padding, Window, attention

TABLE = "SDPA with a dense mask"


def sequence_cases(
    length: int, window: int, heads: int = 8, channels: int = 64, *, compiled: bool = False
) -> Iterator[Case]:
    """Windows, Longformer, packed documents and a causal mask.

    Args:
        length: Tokens.
        window: Keys to the left of a query that it sees, itself included.
        heads: H.
        channels: Size of a head.
        compiled: Whether FlexAttention, which has to be compiled, is a peer too.
    """
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn(1, heads, length, channels, generator=generator) for _ in range(3))
    ending = f", N={length:,} H={heads} C={channels}"
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)  # ALiBi's, of a power of two heads
    near = Window.causal(window)

    def case(
        name: str,
        peer: str,
        ours: Callable[..., Tensor],
        theirs: Callable[..., Tensor],
        exact: Callable[..., Tensor] | None = None,
    ) -> Case:
        return Case(f"{name}{ending}", peer, inputs, Side(ours), Side(theirs), Side(exact or theirs))

    def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return banded(q, k, v, window, slopes)

    yield case(
        f"window of {window} + ALiBi",
        TABLE,
        lambda q, k, v: attention(q, k, v, mask=near, bias=ALiBi(heads)),
        with_table(window_table(length, window, slopes)),
        by_hand,  # a table of float64 would be as large as the machine
    )
    yield case(
        f"window of {window}",
        "ten lines of banded SDPA",
        lambda q, k, v: attention(q, k, v, mask=near),
        lambda q, k, v: banded(q, k, v, window),
    )
    if compiled:
        yield Case(
            f"window of {window} + ALiBi{ending}",
            "FlexAttention, torch.compile",
            inputs,
            Side(lambda q, k, v: attention(q, k, v, mask=near, bias=ALiBi(heads))),
            Side(flex(length, window, slopes)),
            Side(by_hand),
            trains=False,
        )
    i, j = torch.arange(length)[:, None], torch.arange(length)
    mask, table = Longformer(window // 4, range(4)), ((i - j).abs() <= window // 4) | (i < 4) | (j < 4)
    yield case(
        f"Longformer({window // 4}, 4 global)",
        TABLE,
        lambda q, k, v: attention(q, k, v, mask=mask),
        with_table(table),
    )
    each = max(length // 16, 1)
    packed = Documents(torch.arange(length) // each)
    yield case(
        f"documents of {each} tokens",
        "a loop of SDPA",
        lambda q, k, v: attention(q, k, v, mask=packed),
        lambda q, k, v: torch.cat(
            [
                scaled_dot_product_attention(*parts)
                for parts in zip(*(x.split(each, 2) for x in (q, k, v)), strict=True)
            ],
            2,
        ),
    )
    yield case(
        "causal",
        "SDPA",
        lambda q, k, v: attention(q, k, v, mask=Causal()),
        lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True),
    )
    yield from batch_cases(length // 8, heads, channels)


def batch_cases(length: int, heads: int, channels: int, batch: int = 4) -> Iterator[Case]:
    """What SDPA does alone: no mask, and padding of sequences of half to all of the tokens."""
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn(batch, heads, length, channels, generator=generator) for _ in range(3))
    lengths = torch.linspace(length // 2, length, batch).long()
    keep = torch.arange(length) < lengths[:, None]
    ending = f", B={batch} N={length:,} H={heads} C={channels}"
    sides = (attention, scaled_dot_product_attention)
    yield Case(f"no mask{ending}", "SDPA", inputs, *map(Side, (*sides, scaled_dot_product_attention)))
    masked = Side(with_table(keep[:, None, None]))
    yield Case(
        f"padding by length{ending}",
        "SDPA with a mask of keys",
        inputs,
        Side(lambda q, k, v: attention(q, k, v, mask=Padding(keep))),
        masked,
        masked,
    )


def flex(length: int, window: int, slopes: Tensor) -> Callable[..., Tensor]:
    """ALiBi inside a causal window through torch's FlexAttention, which has no gradients on a CPU."""

    def near(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (i - j < window)

    def add(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score - slopes[h] * (i - j)

    blocks = create_block_mask(near, None, None, length, length, device="cpu")
    run: Callable[..., Tensor] = torch.compile(flex_attention)
    return lambda q, k, v: run(q, k, v, score_mod=add, block_mask=blocks)


def with_table(table: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """SDPA with a bool mask or a float bias that is made beforehand."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = table if table.dtype == torch.bool else table.to(q.dtype)
        return scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return run


def window_table(length: int, window: int, slopes: Tensor) -> Tensor:
    """ALiBi inside a causal window, -inf outside: ``[H, N, N]``."""
    past = torch.arange(length)[:, None] - torch.arange(length)
    bias = slopes[:, None, None] * -past.abs()
    return bias.masked_fill_((past < 0) | (past >= window), -torch.inf)


def banded(q: Tensor, k: Tensor, v: Tensor, window: int, slopes: Tensor | None = None) -> Tensor:
    """A causal window as blocks of queries against their own and the former block of keys; with ALiBi's slopes."""
    heads, length = q.shape[1:3]
    blocks = -(-length // window)
    q, k, v = (pad(x, (0, 0, 0, blocks * window - length)).unflatten(2, (blocks, window)) for x in (q, k, v))
    k, v = (torch.cat([pad(x, (0, 0, 0, 0, 1, 0))[:, :, :-1], x], 3) for x in (k, v))
    i, j = torch.arange(window)[:, None] + window, torch.arange(2 * window)
    seen = (j <= i) & (j > i - window)
    first = seen & (j >= window)
    mask = torch.cat([first[None], seen.expand(blocks - 1, -1, -1)]).repeat(heads, 1, 1)
    if slopes is not None:
        bias = slopes.to(q)[:, None, None] * (j - i)
        mask = bias.repeat_interleave(blocks, 0).masked_fill(~mask, -torch.inf)
    q, k, v = (x.flatten(1, 2) for x in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return out.unflatten(1, (heads, blocks)).flatten(2, 3)[:, :, :length]
