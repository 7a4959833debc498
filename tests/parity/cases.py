"""A case is a choice of mask, bias, score, sizes and dtype: its library call beside its oracle."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from tests.parity import oracle
from tests.parity.bias_case import BiasCase, Vectors
from tests.parity.bias_cases import BIASES, NEEDS_EDGES, NEEDS_EVEN
from tests.parity.grid import Grid
from tests.parity.mask_cases import MASKS, WITH_EDGES, MaskCase, counts_nodes, names_tokens, takes_positions
from tests.parity.score_cases import SCORES, ScoreCase

BACKENDS = ("reference", "scatter", "csr", "sdpa", "tiled")

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
HEADS = {"8/8": (8, 8), "6/2": (6, 2), "4/1": (4, 1), "1/1": (1, 1)}  # query heads / key heads
SIZES = {"5x5": (5, 5), "4x7": (4, 7), "7x5": (7, 5), "1x6": (1, 6), "9x63": (9, 63)}  # queries x keys
DIMS = {"8/8": (8, 8), "4/7": (4, 7), "5/3": (5, 3), "16/6": (16, 6)}  # D / Dv

AXES: dict[str, list[Any]] = {
    "mask": list(MASKS),
    "bias": list(BIASES),
    "score": list(SCORES),
    "dtype": list(DTYPES),
    "batch": [1, 3],
    "heads": list(HEADS),
    "sizes": list(SIZES),
    # Fused kernels are compiled for each kind of head size and dtype, in seconds: 16/6 is left to the slow part.
    "dims": ["8/8", "4/7", "5/3"],
    "positions": ["default", "shared", "batch"],
    "scale": [None, 0.7, 1.0, 0.0],
    "dropout": [0.0, 0.3],
}


def possible(one: str, a: object, other: str, b: object) -> bool:
    """Whether two values of two axes may meet. What may not is undefined, and the library has to say so."""
    pair = {one: a, other: b}
    if pair.keys() == {"mask", "bias"}:
        return pair["mask"] in WITH_EDGES or pair["bias"] not in NEEDS_EDGES
    if pair.keys() == {"mask", "score"}:
        return pair["mask"] in WITH_EDGES or pair["score"] != "gat edge"
    if pair.keys() == {"mask", "positions"}:
        return pair["positions"] == "default" or takes_positions(pair["mask"])
    if pair.keys() == {"mask", "sizes"}:
        queries, keys = SIZES[pair["sizes"]]
        return queries <= keys or not names_tokens(pair["mask"])
    if pair.keys() == {"bias", "dims"}:
        return pair["dims"] != "5/3" or pair["bias"] not in NEEDS_EVEN
    return True


@dataclass(frozen=True)
class Choice:
    """A value for each axis."""

    mask: str = "full"
    bias: str = "none"
    score: str = "default"
    dtype: str = "float64"
    batch: int = 1
    heads: str = "6/2"
    sizes: str = "5x5"
    dims: str = "8/8"
    positions: str = "default"
    scale: float | None = None
    dropout: float = 0.0

    def __str__(self) -> str:
        return ", ".join(map(str, astuple(self)))

    @property
    def defined(self) -> bool:
        values = list(asdict(self).items())
        return all(possible(*a, *b) for n, a in enumerate(values) for b in values[n + 1 :])


@dataclass(repr=False)
class Case:
    """Everything that a call and its oracle need."""

    inputs: dict[str, Any]  # q, k, v
    keywords: dict[str, Any]
    given: dict[str, Tensor]  # all tensors that get gradients, q, k and v among them
    exact: Callable[[dict[str, Tensor]], oracle.Spec]  # the oracle's problem, from its own copies of those
    seed: int

    def __repr__(self) -> str:
        named = {name: list(x.shape) for name, x in self.inputs.items()} | self.keywords
        return f"Case({', '.join(f'{name}={value!r}' for name, value in named.items() if value is not None)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # Hypothesis would print every number


def build(choice: Choice) -> Case:
    """The same case each time: its numbers follow from the choice alone."""
    seed = zlib.crc32(str(choice).encode())
    (heads, kv_heads), (queries, keys), (dim, value_dim) = HEADS[choice.heads], SIZES[choice.sizes], DIMS[choice.dims]
    random = torch.Generator().manual_seed(seed)
    q_positions, k_positions = torch.arange(queries)[None], torch.arange(keys)[None]
    if choice.positions == "default":
        q_positions = q_positions + (0 if counts_nodes(choice.mask) else keys - queries)
    else:
        rows = choice.batch if choice.positions == "batch" else 1
        q_positions, k_positions = (torch.randint(12, (rows, n), generator=random) for n in (queries, keys))
    grid = Grid(
        choice.batch, heads, kv_heads, queries, keys, dim, value_dim, DTYPES[choice.dtype], random,
        q_positions, k_positions,
    )  # fmt: skip
    return assemble(
        grid, MASKS[choice.mask], BIASES[choice.bias], SCORES[choice.score], choice.scale, choice.dropout,
        given_positions=choice.positions != "default", seed=seed,
    )  # fmt: skip


def assemble(
    g: Grid,
    mask: Callable[[Grid], MaskCase],
    bias: Callable[[Grid, MaskCase], BiasCase],
    score: Callable[[Grid, MaskCase], ScoreCase],
    scale: float | None = None,
    dropout: float = 0.0,
    *,
    given_positions: bool = False,
    seed: int = 0,
) -> Case:
    """The case of a mask, a bias and a score on a grid."""
    for name, heads, rows, size in (
        ("q", g.heads, g.queries, g.dim),
        ("k", g.kv_heads, g.keys, g.dim),
        ("v", g.kv_heads, g.keys, g.value_dim),
    ):
        g.leaf(name, g.batch, heads, rows, size)
    m = mask(g)
    b = bias(g, m)
    s = score(g, m)
    keywords = {"mask": m.mask, "bias": b.bias, "score": s.score, "scale": scale, "dropout_p": dropout}
    if given_positions:
        # A single row of positions is given as [N], the other form that is taken.
        shared = len(g.q_positions) == 1
        keywords["q_positions"] = g.q_positions[0] if shared else g.q_positions
        keywords["k_positions"] = g.k_positions[0] if shared else g.k_positions

    # The entries: edges in the caller's order, or all pairs in row order.
    if m.edges is None:
        query = torch.arange(g.queries).repeat_interleave(g.keys)
        key = torch.arange(g.keys).repeat(g.queries)
        counters = list(range(g.queries * g.keys))
    else:
        key, query = m.edges
        counters = list(range(len(key)))
    visible = m.allowed.expand(g.full)[:, :, query, key]
    if m.keep is not None:
        visible = visible & (m.keep.T if m.keep.dim() == 2 else m.keep)

    def exact(x: dict[str, Tensor]) -> oracle.Spec:
        dtype = x["q"].dtype
        shown, total = visible, None
        terms = [term(x).expand(g.full)[:, :, query, key] for term in b.dense]
        terms += [term(x) for term in b.tied]
        for term in terms:
            # At or below the lowest number of the caller's dtype is hidden, each term by itself.
            low = term.detach() <= torch.finfo(g.dtype).min
            shown = shown & ~low
            value = torch.where(low, 0.0, term).to(dtype)
            total = value if total is None else total + value

        def total_of(vectors: list[Vectors]) -> Tensor | None:
            terms = [term(x, query, key) for term in vectors]
            return sum(terms[1:], terms[0]) if terms else None

        params = {**s.numbers, **{parameter: x[name] for parameter, name in s.names.items()}}
        factor = None
        if dropout > 0.0:
            torch.manual_seed(seed)
            drawn = int(torch.randint(2**62, (1,)))  # how a call draws the seed of its counter
            factor = oracle.dropout_factor(drawn, g.batch, g.heads, counters, dropout, dtype)
        return oracle.Spec(
            q=x["q"],
            k=x["k"].expand(g.batch, -1, -1, -1),
            v=x["v"].expand(g.batch, -1, -1, -1),
            query=query,
            key=key,
            visible=shown,
            score=s.formula,
            params=params,
            scale=scale if scale is not None else g.dim**-0.5 if s.formula == "dot" else 1.0,
            bias=total,
            q_turn=b.turn(g.q_positions).to(dtype) if b.turn else None,
            k_turn=b.turn(g.k_positions).to(dtype) if b.turn else None,
            key_vectors=total_of(b.key_vectors),
            value_vectors=total_of(b.value_vectors),
            sink=params.pop("sink", None),
            factor=factor,
        )

    inputs = {name: g.given[name] for name in ("q", "k", "v")}
    return Case(inputs, keywords, g.given, exact, seed)
