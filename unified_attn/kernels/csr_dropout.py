"""Which weights dropout keeps, inside of kernels: the hash of ``unified_attn.dropout``, for one head or several.

Everything here is inlined into the kernels.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.typing.templates import signature
from numba.extending import intrinsic

from unified_attn._compiling import inlined
from unified_attn.dropout import DRAW_BITS, FIRST_FACTOR, HEAD_STEP, HIGH_HALF, PAIR_STEP, SECOND_FACTOR

DRAW_SHIFT, DRAW_MASK = 64 - DRAW_BITS, 2**DRAW_BITS - 1


@inlined
def counted(seed, head, counter):  # type: ignore[no-untyped-def]
    """What is hashed for a pair; ``head`` is b * Hq + h."""
    return seed + head * HEAD_STEP + counter * PAIR_STEP


@inlined
def kept(x, least):  # type: ignore[no-untyped-def]
    """Whether dropout keeps the pair of this number."""
    x = (x ^ ((x >> 32) & HIGH_HALF)) * FIRST_FACTOR
    x = (x ^ ((x >> 32) & HIGH_HALF)) * SECOND_FACTOR
    x = x ^ ((x >> 32) & HIGH_HALF)
    return ((x >> DRAW_SHIFT) & DRAW_MASK) >= least


@intrinsic
def gains(typingctx: Any, gain: Any, x: Any, least: Any) -> Any:
    """``gain``, a block, where a pair is kept, else 0: of the head whose number is ``x``, and of those that follow."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        width = gain.width
        words = ir.VectorType(ir.IntType(64), width)

        def splat(value: Any) -> Any:
            first = builder.insert_element(ir.Constant(words, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
            order = ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width)
            return builder.shuffle_vector(first, ir.Constant(words, ir.Undefined), order)

        def constant(value: int) -> Any:
            return ir.Constant(words, [value % 2**64] * width)

        def folded(value: Any) -> Any:
            return builder.xor(value, builder.lshr(value, constant(32)))

        numbers = builder.add(splat(args[1]), ir.Constant(words, [n * HEAD_STEP % 2**64 for n in range(width)]))
        numbers = builder.mul(folded(numbers), constant(FIRST_FACTOR))
        numbers = builder.mul(folded(numbers), constant(SECOND_FACTOR))
        draws = builder.lshr(folded(numbers), constant(DRAW_SHIFT))
        keeps = builder.icmp_signed(">=", draws, splat(args[2]))
        return builder.select(keeps, args[0], ir.Constant(gain.llvm, [0.0] * width))

    return signature(gain, gain, types.int64, types.int64), codegen
