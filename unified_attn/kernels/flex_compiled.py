"""Torch's ``flex_attention`` on blocks of pairs: rules as functions of one pair, compiled once a structure.

Lengths are the only sizes that a compiled function leaves open; heads, batch and head sizes belong to the structure.
There are to be few open sizes: torch 2.13 names those of a block of its kernel by textual replacement (``ks3``), which
also hits other names (``ks37``), and then the C++ does not compile.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from unified_attn.biases import Bias
from unified_attn.errors import UnsupportedError
from unified_attn.masks import Mask
from unified_attn.pairs import Pairs, Shape
from unified_attn.problem import Problem
from unified_attn.rows import recent
from unified_attn.scores import Score
from unified_attn.strips import Cut, strips

BLOCK = 128
"""Queries and keys of a block."""

Compiled = Callable[..., tuple[Tensor, Tensor | None]]

_COMPILED: dict[object, Compiled] = {}


@dataclass(frozen=True, eq=False, kw_only=True)
class Point(Pairs):
    """One pair: index tensors without dimensions.

    Args:
        at: Batch entry, head, query and key.
        tokens: ``[1, Nq]``: the queries as tokens, which a compiler is not to compute from open sizes.
    """

    at: tuple[Tensor, Tensor, Tensor, Tensor]
    tokens: Tensor

    @property
    def is_dense(self) -> bool:
        return False

    @property
    def batch(self) -> Tensor:
        return self.at[0]

    @property
    def head(self) -> Tensor:
        return self.at[1]

    @property
    def query(self) -> Tensor:
        return self.at[2]

    @property
    def key(self) -> Tensor:
        return self.at[3]

    @property
    def query_position(self) -> Tensor:
        return self.gather(self.q_positions[:, None, :, None])

    @property
    def key_position(self) -> Tensor:
        return self.gather(self.k_positions[:, None, None, :])

    def ends(self, space: str) -> tuple[Tensor, Tensor]:
        if space == "token":
            return self.gather(self.tokens[:, None, :, None]), self.key
        return super().ends(space)

    def gather(self, table: Tensor) -> Tensor:
        table = table.reshape(*[1] * (4 - table.dim()), *table.shape)
        return table[
            tuple(n if size != 1 else torch.zeros_like(n) for n, size in zip(self.at, table.shape, strict=True))
        ]


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks that a row of blocks visits.

    Args:
        number: ``[1, 1, blocks of queries]``, how many.
        index: ``[1, 1, blocks of queries, blocks of keys]``, which: the first ``number`` count.
    """

    number: Tensor
    index: Tensor

    @classmethod
    def of(cls, problem: Problem) -> Blocks:
        """Those that hold a visible pair, from the tiles that do: no table of pairs is made.

        There are two of either side at least, for a compiler takes a size of 1 for a constant.
        """
        sizes = (problem.shape.num_queries, problem.shape.num_keys)
        table = torch.zeros([max(-(-size // BLOCK), 2) for size in sizes], dtype=torch.bool, device=problem.q.device)
        for strip in strips(problem, Cut()):
            rows, keys = table[strip.rows.start // BLOCK : (strip.rows.stop - 1) // BLOCK + 1], strip.keys
            if isinstance(keys, range):
                rows[:, keys.start // BLOCK : (keys.stop - 1) // BLOCK + 1] = True
            else:
                rows[:, keys // BLOCK] = True
        index = table.int().argsort(dim=1, descending=True, stable=True).int()
        return cls(table.sum(1, dtype=torch.int32)[None, None], index[None, None])


def uncompiled(problem: Problem, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
    """Output and lse of turned q, k and v: forms all logits."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        return _forward(True, *_arguments(problem, q, k, v))


def compiled(problem: Problem, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The output alone: torch compiles none for the lse.

    Raises:
        UnsupportedError: If torch cannot compile the rules.
    """
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

    arguments = _arguments(problem, q, k, v)
    # Sizes that are no length belong to the structure, so that only lengths are left open.
    sizes = (q.shape[:2], k.shape[1], q.shape[3], v.shape[3], len(problem.q_positions), len(problem.k_positions))
    structure = (sizes, *(tuple(map(type, part.modules())) for part in arguments[:3]))
    # Tensors of masks and biases follow the lengths; their numbers (a window, a cap) are constants.
    options = torch._dynamo.config.patch(
        force_nn_module_property_static_shapes=False, force_parameter_static_shapes=False, specialize_float=True
    )
    with options, _lengths_alone_open(arguments), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.", DeprecationWarning)  # torch's compiler still imports it
        try:
            return recent(_COMPILED, structure, _made)(False, *arguments)[0]
        except FailOnRecompileLimitHit:  # many windows of one structure, say: the latest ones are kept
            _COMPILED.pop(structure)
            return recent(_COMPILED, structure, _made)(False, *arguments)[0]
        except TorchDynamoException as error:
            said = " ".join(str(error).split())[:200]
            raise UnsupportedError("flex", [f"torch cannot compile the rules: {said}"]) from error


@contextmanager
def _lengths_alone_open(arguments: tuple[Any, ...]) -> Iterator[None]:
    """Marks as constants all sizes that are no length, of what is computed with and of tensors that rules hold."""
    q, k = arguments[3:5]
    lengths = (q.shape[2], k.shape[2])
    held = [x for part in arguments[:3] for x in (*part.buffers(), *part.parameters())]
    before = [x.__dict__.copy() for x in held]
    try:
        for x in arguments[3:6]:
            torch._dynamo.mark_static(x, [0, 1, 3])  # a head size may equal a length
        for x in (*arguments[6:-2], *held):
            for side, size in enumerate(x.shape):
                if size not in lengths:
                    torch._dynamo.mark_static(x, side)
        yield
    finally:
        for x, marks in zip(held, before, strict=True):  # they are not ours, and may be compiled elsewhere
            x.__dict__.clear()
            x.__dict__.update(marks)


def _made() -> Compiled:
    """A function to be compiled, of its own code: torch keeps what it compiled with the code, up to a limit."""
    own = FunctionType(_forward.__code__.replace(), _forward.__globals__, _forward.__name__)
    compiled: Compiled = torch.compile(own, fullgraph=True, dynamic=True)
    return compiled


def _arguments(problem: Problem, q: Tensor, k: Tensor, v: Tensor) -> tuple[Any, ...]:
    """What the computation sees: tensor objects of our own, as they are marked."""
    shape, blocks = problem.shape, Blocks.of(problem)
    tokens = torch.arange(shape.num_queries, device=shape.device)[None] + (shape.num_keys - shape.num_queries)
    # Scaled here: a number that varies would be a constant of the compiled function.
    tensors = [x.detach().contiguous() for x in (q * problem.scale, k, v)]
    positions = [x.detach() for x in (problem.q_positions, problem.k_positions)]
    return problem.mask, problem.bias, problem.score, *tensors, *positions, tokens, blocks.number, blocks.index


def _forward(
    with_lse: bool,
    mask: Mask,
    bias: Bias,
    score: Score,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    tokens: Tensor,
    number: Tensor,
    index: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """What is compiled. All that varies with the length is the size of a tensor."""
    from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

    sizes = (q.shape[2], k.shape[2])
    shape = Shape(q.shape[0], q.shape[1], k.shape[1], *sizes, q.shape[3], v.shape[3], None, None, q.device)
    problem = Problem(q, k, v, mask, bias, score, 1.0, 0.0, q_positions, k_positions, shape, None)

    def point(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Point:
        return Point(shape, q_positions, k_positions, at=(b, h, i, j), tokens=tokens)

    def score_mod(raw: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        raw = score.finish(raw)
        add = problem.added_by_bias(point(b, h, i, j))
        return raw if add is None else raw + add

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return mask.on(point(b, h, i, j))

    blocks = BlockMask.from_kv_blocks(
        number, index, BLOCK_SIZE=BLOCK, mask_mod=mask_mod, seq_lengths=sizes, compute_q_blocks=False
    )
    gqa = q.shape[1] != k.shape[1]
    if not with_lse:
        return flex_attention(q, k, v, score_mod=score_mod, block_mask=blocks, scale=1.0, enable_gqa=gqa), None
    out, aux = flex_attention(
        q, k, v, score_mod=score_mod, block_mask=blocks, scale=1.0, enable_gqa=gqa, return_aux=AuxRequest(lse=True)
    )
    return out, aux.lse
