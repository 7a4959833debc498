"""SIMD values inside Numba kernels: ``Lanes``, a block of consecutive floats held in vector registers.

Numba leaves vectorising to LLVM's loop passes, which give up on short loops (8 or 16 floats of a head) and on loops
that write to memory they cannot tell from what they read. A kernel written in ``Lanes`` says what it wants instead:
one ``Lanes`` is one LLVM vector of ``width`` floats, so a head of 32 floats stays in registers however long the row
is, and nothing is left for the optimiser to find. It also compiles quickly, and sums in an order that is the same on
every processor.

Memory is addressed by plain integers (bytes). The *type* carries what is known at compile time, so a helper gets it by
taking any value of that type, conventionally named ``like``:

    bits    32 or 64: the float type
    width   floats per block
    kind    ONE: a head is exactly one block.  MANY: several full blocks.  TAIL: the last block is partly filled, and
            loads and stores are masked

This module imports Numba; import it only from kernels.
"""

import math
import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model
from numba.np.numpy_support import from_dtype

from unified_attn.kernels.csr_args import ARGS

ONE, MANY, TAIL = 0, 1, 2

_CONTRACT = ("contract",)  # lets a product and a sum become one fused instruction; nothing else is relaxed


class Lanes(types.Type):  # type: ignore[misc]
    """The Numba type of one block of ``width`` floats of ``bits`` bits."""

    def __init__(self, bits: int, width: int, kind: int) -> None:
        self.bits, self.width, self.kind = bits, width, kind
        self.scalar = types.float32 if bits == 32 else types.float64
        super().__init__(name=f"Lanes({bits}, {width}, {kind})")

    @property
    def llvm_scalar(self) -> Any:
        return ir.FloatType() if self.bits == 32 else ir.DoubleType()

    @property
    def llvm(self) -> Any:
        return ir.VectorType(self.llvm_scalar, self.width)

    @property
    def llvm_int(self) -> Any:
        return ir.VectorType(ir.IntType(self.bits), self.width)

    @property
    def suffix(self) -> str:
        return f"v{self.width}f{self.bits}"


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Lanes) -> None:
        super().__init__(dmm, fe_type, fe_type.llvm)


def _constant(lanes: Lanes, value: float) -> Any:
    return ir.Constant(lanes.llvm, [ir.Constant(lanes.llvm_scalar, value)] * lanes.width)


def _splat(builder: Any, lanes: Lanes, value: Any) -> Any:
    vector = builder.insert_element(ir.Constant(lanes.llvm, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    order = ir.Constant(ir.VectorType(ir.IntType(32), lanes.width), [0] * lanes.width)
    return builder.shuffle_vector(vector, ir.Constant(lanes.llvm, ir.Undefined), order)


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=_CONTRACT), c, flags=_CONTRACT)


def _pointer(builder: Any, address: Any, pointee: Any) -> Any:
    return builder.inttoptr(address, pointee.as_pointer())


def _mask(builder: Any, lanes: Lanes, count: Any) -> Any:
    """Which of the block's floats exist, from the number that are left in the head."""
    word = ir.VectorType(ir.IntType(32), lanes.width)
    left = builder.trunc(count, ir.IntType(32))
    vector = builder.insert_element(ir.Constant(word, ir.Undefined), left, ir.Constant(ir.IntType(32), 0))
    order = ir.Constant(word, [0] * lanes.width)
    vector = builder.shuffle_vector(vector, ir.Constant(word, ir.Undefined), order)
    return builder.icmp_signed("<", ir.Constant(word, list(range(lanes.width))), vector)


@intrinsic(prefer_literal=True)
def lanes(typingctx: Any, bits: Any, width: Any, kind: Any) -> Any:
    """A block of zeros; the three arguments are compile-time constants."""
    result = Lanes(bits.literal_value, width.literal_value, kind.literal_value)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _constant(result, 0.0)

    return signature(result, bits, width, kind), codegen


@intrinsic
def record_at(typingctx: Any, address: Any) -> Any:
    """What a kernel is told, from its address: as an integer it costs no time at the call."""
    record = from_dtype(ARGS)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(record))

    return signature(record, types.int64), codegen


@intrinsic
def zero(typingctx: Any, like: Any) -> Any:
    """A block of zeros."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _constant(like, 0.0)

    return signature(like, like), codegen


@intrinsic
def splat(typingctx: Any, like: Any, value: Any) -> Any:
    """A block that holds one number everywhere."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _splat(builder, like, args[1])

    return signature(like, like, like.scalar), codegen


@intrinsic
def real(typingctx: Any, like: Any, value: Any) -> Any:
    """A number in the block's float type (so that float32 kernels never slip into float64)."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return context.cast(builder, args[1], sig.args[1], like.scalar)

    return signature(like.scalar, like, value), codegen


@intrinsic
def block_count(typingctx: Any, like: Any, size: Any) -> Any:
    """Blocks in a head of ``size`` floats; the constant 1 where the type says so."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = ir.IntType(64)
        if like.kind == ONE:
            return ir.Constant(word, 1)
        return builder.sdiv(builder.add(args[1], ir.Constant(word, like.width - 1)), ir.Constant(word, like.width))

    return signature(types.int64, like, types.int64), codegen


@intrinsic
def block_width(typingctx: Any, like: Any) -> Any:
    """Floats per block."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.Constant(ir.IntType(64), like.width)

    return signature(types.int64, like), codegen


@intrinsic
def float_size(typingctx: Any, like: Any) -> Any:
    """Bytes of one float."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.Constant(ir.IntType(64), like.bits // 8)

    return signature(types.int64, like), codegen


@intrinsic
def load(typingctx: Any, like: Any, address: Any, left: Any) -> Any:
    """The block at ``address``; of a TAIL only the first ``left`` floats are read, the others are 0."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _pointer(builder, args[1], like.llvm)
        if like.kind != TAIL:
            return builder.load(pointer, align=like.bits // 8)
        flags = ir.VectorType(ir.IntType(1), like.width)
        kind = ir.FunctionType(like.llvm, [pointer.type, ir.IntType(32), flags, like.llvm])
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.masked.load.{like.suffix}.p0")
        mask = _mask(builder, like, args[2])
        align = ir.Constant(ir.IntType(32), like.bits // 8)
        return builder.call(function, [pointer, align, mask, _constant(like, 0.0)])

    return signature(like, like, types.int64, types.int64), codegen


@intrinsic
def store(typingctx: Any, address: Any, value: Any, left: Any) -> Any:
    """Write the block to ``address``; of a TAIL only the first ``left`` floats."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _pointer(builder, args[0], value.llvm)
        if value.kind != TAIL:
            builder.store(args[1], pointer, align=value.bits // 8)
            return context.get_dummy_value()
        flags = ir.VectorType(ir.IntType(1), value.width)
        kind = ir.FunctionType(ir.VoidType(), [value.llvm, pointer.type, ir.IntType(32), flags])
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.masked.store.{value.suffix}.p0")
        mask = _mask(builder, value, args[2])
        builder.call(function, [args[1], pointer, ir.Constant(ir.IntType(32), value.bits // 8), mask])
        return context.get_dummy_value()

    return signature(types.void, types.int64, value, types.int64), codegen


@intrinsic
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c``."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _fma(builder, *args)

    return signature(a, a, a, a), codegen


@intrinsic
def total(typingctx: Any, value: Any) -> Any:
    """The sum of the block, by halves (a fixed order)."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        (vector,), width, word = args, value.width, ir.IntType(32)
        while width > 1:
            width //= 2
            none = ir.Constant(vector.type, ir.Undefined)
            halves = [
                builder.shuffle_vector(
                    vector, none, ir.Constant(ir.VectorType(word, width), list(range(start, start + width)))
                )
                for start in (0, width)
            ]
            vector = builder.fadd(*halves)
        return builder.extract_element(vector, ir.Constant(word, 0))

    return signature(value.scalar, value), codegen


def _shuffled(builder: Any, a: Any, b: Any, order: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order))


@intrinsic
def totals(typingctx: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
    """The sums of eight blocks of eight floats, as one block: half the instructions of eight :func:`total`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def neighbours(x: Any, y: Any) -> Any:
            """Sums of two that lie next to each other: two of x, two of y, and again, from either half."""
            even = _shuffled(builder, x, y, [0, 2, 8, 10, 4, 6, 12, 14])
            return builder.fadd(even, _shuffled(builder, x, y, [1, 3, 9, 11, 5, 7, 13, 15]))

        twos = [neighbours(args[n], args[n + 1]) for n in (0, 2, 4, 6)]
        first, second = neighbours(twos[0], twos[1]), neighbours(twos[2], twos[3])
        low = _shuffled(builder, first, second, [0, 1, 2, 3, 8, 9, 10, 11])
        return builder.fadd(low, _shuffled(builder, first, second, [4, 5, 6, 7, 12, 13, 14, 15]))

    return signature(a, *[a] * 8), codegen


@intrinsic(prefer_literal=True)
def spread(typingctx: Any, value: Any, place: Any) -> Any:
    """One float of a block everywhere; ``place`` is a constant."""
    at = place.literal_value

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _shuffled(builder, args[0], ir.Constant(value.llvm, ir.Undefined), [at] * value.width)

    return signature(value, value, place), codegen


@intrinsic(prefer_literal=True)
def every_other(typingctx: Any, a: Any, b: Any, first: Any) -> Any:
    """Of two blocks that lie next to each other every second float, from the first (0) or the second (1) on."""
    at = first.literal_value

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _shuffled(builder, args[0], args[1], list(range(at, 2 * a.width, 2)))

    return signature(a, a, a, first), codegen


@intrinsic(prefer_literal=True)
def by_turns(typingctx: Any, a: Any, b: Any, half: Any) -> Any:
    """The first (0) or second (1) of the two blocks that hold the floats of ``a`` and ``b`` by turns."""
    at = half.literal_value

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        places = range(at * a.width // 2, (at + 1) * a.width // 2)
        return _shuffled(builder, args[0], args[1], [n + side for n in places for side in (0, a.width)])

    return signature(a, a, a, half), codegen


@intrinsic
def leaky(typingctx: Any, value: Any, slope: Any) -> Any:
    """LeakyReLU: ``value`` where it is positive, else ``slope * value``."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        positive = builder.fcmp_ordered(">", args[0], _constant(value, 0.0))
        return builder.select(positive, args[0], builder.fmul(args[0], _splat(builder, value, args[1])))

    return signature(value, value, value.scalar), codegen


@intrinsic
def leaky_gain(typingctx: Any, value: Any, slope: Any) -> Any:
    """The derivative of LeakyReLU: 1 where ``value`` is positive, else ``slope``."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        positive = builder.fcmp_ordered(">", args[0], _constant(value, 0.0))
        return builder.select(positive, _constant(value, 1.0), _splat(builder, value, args[1]))

    return signature(value, value, value.scalar), codegen


@intrinsic
def maximum(typingctx: Any, a: Any, b: Any) -> Any:
    """The greater of two numbers, place by place; ``a`` where ``b`` is NaN."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", args[1], args[0]), args[1], args[0])

    return signature(a, a, a), codegen


@intrinsic
def finite(typingctx: Any, value: Any) -> Any:
    """``value``, and 0 where that is -inf."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        hidden = builder.fcmp_ordered("==", args[0], _constant(value, -math.inf))
        return builder.select(hidden, _constant(value, 0.0), args[0])

    return signature(value, value), codegen


@intrinsic
def inverse(typingctx: Any, value: Any) -> Any:
    """``1 / value``, and 1 where that is 0."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        nothing = builder.fcmp_ordered("==", args[0], _constant(value, 0.0))
        divisor = builder.select(nothing, _constant(value, 1.0), args[0])
        return builder.fdiv(_constant(value, 1.0), divisor)

    return signature(value, value), codegen


@intrinsic
def log(typingctx: Any, value: Any) -> Any:
    """Natural logarithm of normal numbers, within 3 units in the last place; of 0 it is -inf, inf and NaN stay.

    x = m 2 ** n with m between sqrt(1/2) and sqrt(2). With s = (m - 1) / (m + 1), log m = 2 (s + s ** 3 / 3 + ...), and
    s ** 2 is below 0.03.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, high, low, _, mantissa, _ = _exp_constants(value.bits)
        (x,), terms = args, 6 if value.bits == 32 else 12

        def whole(number: int) -> Any:
            return ir.Constant(value.llvm_int, [ir.Constant(ir.IntType(value.bits), number)] * value.width)

        word = builder.bitcast(x, value.llvm_int)
        least = 0x3F3504F3 if value.bits == 32 else 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2)
        n = builder.ashr(builder.sub(word, whole(least)), whole(mantissa))
        m = builder.bitcast(builder.sub(word, builder.shl(n, whole(mantissa))), value.llvm)
        s = builder.fdiv(builder.fsub(m, _constant(value, 1.0)), builder.fadd(m, _constant(value, 1.0)))
        z = builder.fmul(s, s)
        series = _constant(value, 2.0 / (2 * terms - 1))
        for k in range(terms - 2, -1, -1):
            series = _fma(builder, series, z, _constant(value, 2.0 / (2 * k + 1)))
        n = builder.sitofp(n, value.llvm)
        result = _fma(builder, n, _constant(value, low), builder.fmul(series, s))
        result = _fma(builder, n, _constant(value, high), result)
        nothing = builder.fcmp_ordered("==", x, _constant(value, 0.0))
        result = builder.select(nothing, _constant(value, -math.inf), result)
        # unordered, so that NaN counts too
        return builder.select(builder.fcmp_unordered("==", x, _constant(value, math.inf)), x, result)

    return signature(value, value), codegen


def _exp_constants(bits: int) -> tuple[float, float, float, float, int, int]:
    """Rounding constant, ln 2 in two parts, smallest exponent kept, mantissa bits, polynomial degree."""
    if bits == 32:  # n has at most 8 bits, so n * high is exact with 9 bits
        high = 355.0 / 512.0
        return 1.5 * 2.0**23, high, math.log(2.0) - high, -87.0, 23, 7
    high = math.floor(math.log(2.0) * 2.0**32) / 2.0**32  # n has at most 11 bits
    # 2.3190468138462996e-17 is what rounding to float64 takes from ln 2
    return 1.5 * 2.0**52, high, (math.log(2.0) - high) + 2.3190468138462996e-17, -708.0, 52, 13


@intrinsic
def exp(typingctx: Any, value: Any) -> Any:
    """e ** value for values that are not positive, within 2 units in the last place; -inf gives 0, NaN stays NaN.

    value = n ln 2 + r with |r| <= ln 2 / 2; e ** r by its Taylor polynomial, whose remainder is below half a unit, and
    2 ** n by adding n to the exponent. Adding 1.5 * 2 ** 23 rounds to an integer and leaves n in the low bits, so
    no conversion is needed (of NaN it would be undefined). Results below the smallest normal number become 0.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        magic, high, low, least, mantissa, degree = _exp_constants(value.bits)
        x = args[0]
        shifted = _fma(builder, x, _constant(value, 1.0 / math.log(2.0)), _constant(value, magic))
        n = builder.fsub(shifted, _constant(value, magic))
        r = _fma(builder, n, _constant(value, -high), x)
        r = _fma(builder, n, _constant(value, -low), r)
        result = _constant(value, 1.0 / math.factorial(degree))
        for power in range(degree - 1, -1, -1):
            result = _fma(builder, result, r, _constant(value, 1.0 / math.factorial(power)))
        shift = ir.Constant(value.llvm_int, [ir.Constant(ir.IntType(value.bits), mantissa)] * value.width)
        exponent = builder.shl(builder.bitcast(shifted, value.llvm_int), shift)
        result = builder.bitcast(builder.add(builder.bitcast(result, value.llvm_int), exponent), value.llvm)
        tiny = builder.fcmp_ordered("<", x, _constant(value, least))
        result = builder.select(tiny, _constant(value, 0.0), result)
        return builder.select(builder.fcmp_unordered("uno", x, x), x, result)

    return signature(value, value), codegen


def _pointwise(operation: Any, emit: str) -> None:
    """Let ``+``, ``-`` or ``*`` take two blocks of one type."""

    @infer_global(operation)
    class Template(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == 2 and isinstance(args[0], Lanes) and args[0] == args[1]:
                return signature(args[0], *args)
            return None

    @lower_builtin(operation, Lanes, Lanes)
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, emit)(*args, flags=_CONTRACT)


for _operation, _emit in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul")):
    _pointwise(_operation, _emit)


@intrinsic
def peek(typingctx: Any, like: Any, address: Any) -> Any:
    """One float."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(_pointer(builder, args[1], like.llvm_scalar), align=like.bits // 8)

    return signature(like.scalar, like, types.int64), codegen


@intrinsic
def poke(typingctx: Any, like: Any, address: Any, value: Any) -> Any:
    """Write one float."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[2], _pointer(builder, args[1], like.llvm_scalar), align=like.bits // 8)
        return context.get_dummy_value()

    return signature(types.void, like, types.int64, like.scalar), codegen


@intrinsic
def peek_int32(typingctx: Any, address: Any) -> Any:
    """A 32-bit integer, widened."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.sext(builder.load(_pointer(builder, args[0], ir.IntType(32)), align=4), ir.IntType(64))

    return signature(types.int64, types.int64), codegen


@intrinsic
def peek_int64(typingctx: Any, address: Any) -> Any:
    """A 64-bit integer."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(_pointer(builder, args[0], ir.IntType(64)), align=8)

    return signature(types.int64, types.int64), codegen


@intrinsic
def poke_int32(typingctx: Any, address: Any, value: Any) -> Any:
    """Write a 32-bit integer."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = ir.IntType(32)
        builder.store(builder.trunc(args[1], word), _pointer(builder, args[0], word), align=4)
        return context.get_dummy_value()

    return signature(types.void, types.int64, types.int64), codegen


@intrinsic
def poke_int64(typingctx: Any, address: Any, value: Any) -> Any:
    """Write a 64-bit integer."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[1], _pointer(builder, args[0], ir.IntType(64)), align=8)
        return context.get_dummy_value()

    return signature(types.void, types.int64, types.int64), codegen


@intrinsic
def nonzero_bits(typingctx: Any, value: Any) -> Any:
    """Which floats of a block are not 0 (NaN is not), as the bits of an integer."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        some = builder.fcmp_unordered("!=", args[0], _constant(value, 0.0))
        return builder.zext(builder.bitcast(some, ir.IntType(value.width)), ir.IntType(64))

    return signature(types.int64, value), codegen


@intrinsic
def first_bit(typingctx: Any, bits: Any) -> Any:
    """The place of the lowest bit that is set, of which there must be one."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return signature(types.int64, types.int64), codegen


@intrinsic
def take(typingctx: Any, address: Any) -> Any:
    """The number at ``address``, which becomes one more; atomically, so that no two threads take the same."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = ir.IntType(64)
        return builder.atomic_rmw("add", _pointer(builder, args[0], word), ir.Constant(word, 1), "monotonic")

    return signature(types.int64, types.int64), codegen


@intrinsic
def call(typingctx: Any, function: Any, first: Any, second: Any, third: Any) -> Any:
    """Call the C function at an address with three 64-bit integers."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 3)
        builder.call(_pointer(builder, args[0], kind), args[1:])
        return context.get_dummy_value()

    return signature(types.void, *[types.int64] * 4), codegen


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Ask for the cache line at ``address``; never faults."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = ir.IntType(32)
        pointer = _pointer(builder, args[0], ir.IntType(8))
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # read, keep in every level of the cache, data
        builder.call(function, [pointer, ir.Constant(word, 0), ir.Constant(word, 3), ir.Constant(word, 1)])
        return context.get_dummy_value()

    return signature(types.void, types.int64), codegen
