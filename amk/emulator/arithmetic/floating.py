"""Floating point instructions of one lane.

add, sub, mul, fma, conversions, minima, maxima and comparisons are those of PTX ISA 9.0, bit for bit. ex2, lg2,
rsqrt, rcp, sqrt, sin, cos, tanh and div in their .approx forms give the correctly rounded result, where the
hardware's may be off by the error that the ISA states (ex2 and rsqrt about 2 units of the last place, div 2).
"""

from __future__ import annotations

import numpy as np

from amk.emulator.arithmetic.bits import (
    NAN32,
    as_f32,
    as_f64,
    bits32,
    bits64,
    compiled,
    eight_as_half,
    flushed,
    half_value,
    odd,
    rounded,
    separate,
    shifted_right,
    sign_extended,
    sum_and_error,
    to_eight,
    to_half,
    whole_number,
    zero_extended,
)
from amk.emulator.ptx import isa
from amk.emulator.ptx.isa import FTZ, NAN, RELU, RN, SAT, SIGNED

FADD, FSUB, FMUL, FMA, FDIV, FMIN, FMAX = isa.FADD, isa.FSUB, isa.FMUL, isa.FMA, isa.FDIV, isa.FMIN, isa.FMAX
FABS, FNEG, FSETP, EX2, LG2, RSQRT, RCP = isa.FABS, isa.FNEG, isa.FSETP, isa.EX2, isa.LG2, isa.RSQRT, isa.RCP
SQRT, SIN, COS, TANH, CVT_IF, CVT_FI, CVT_FF = isa.SQRT, isa.SIN, isa.COS, isa.TANH, isa.CVT_IF, isa.CVT_FI, isa.CVT_FF
CVT_H2, CVT_F8X2, CVT_X2F8, HMIN2, HMAX2 = isa.CVT_H2, isa.CVT_F8X2, isa.CVT_X2F8, isa.HMIN2, isa.HMAX2
HADD2, HSUB2, HMUL2, HFMA2, HNEG2, HABS2 = isa.HADD2, isa.HSUB2, isa.HMUL2, isa.HFMA2, isa.HNEG2, isa.HABS2
COPYSIGN = isa.COPYSIGN
EQ, NE, LT, LE, GT, GE, EQU, NUM, NANS = isa.EQ, isa.NE, isa.LT, isa.LE, isa.GT, isa.GE, isa.EQU, isa.NUM, isa.NANS
F16, BF16, F32, F64 = isa.F16, isa.BF16, isa.F32, isa.F64
SIGN = 0x80000000


@compiled
def finished(word: int, mode: int) -> int:
    """Flush and saturation of a float32 result."""
    if mode & FTZ:
        word = flushed(word)
    if mode & SAT:
        value = as_f32(word)
        if not value > 0.0:
            return 0
        if value > 1.0:
            return bits32(np.float32(1.0))
    return word


@separate
def arithmetic(operation: int, mode: int, a: int, b: int, c: int) -> int:  # noqa: C901
    """add, sub, mul, fma, div of float32 in any rounding: exactly in float64, or rounded to odd there, then once."""
    if mode & FTZ:
        a, b, c = flushed(a), flushed(b), flushed(c)
    x, y = as_f32(a), as_f32(b)
    rounding = mode & 3
    if rounding == RN and operation != FMA:
        if operation == FADD:
            near = x + y
        elif operation == FSUB:
            near = x - y
        elif operation == FMUL:
            near = x * y
        else:
            near = x / y
        return finished(NAN32 if near != near else bits32(near), mode)
    p, q = np.float64(x), np.float64(y)
    if operation == FMA:
        total, error = sum_and_error(p * q, np.float64(as_f32(c)))
    elif operation == FMUL:
        total, error = p * q, 0.0
    elif operation == FDIV:
        total = p / q
        error = (p - total * q) / q if total - total == 0.0 else 0.0
    else:
        total, error = sum_and_error(p, q if operation == FADD else -q)
    if total == 0.0 and error == 0.0:
        word = 0 if bits64(total) == 0 else SIGN
        if operation in (FADD, FSUB, FMA) and rounding == 2 and p * q != 0.0:
            word = SIGN
    else:
        word = rounded(odd(total, error) if error == error else total, rounding)
    return finished(word, mode)


@compiled
def extreme(larger: bool, mode: int, a: int, b: int) -> int:
    """min or max: -0 is below +0; of a NaN and a number the number, or NaN where the instruction says .NaN."""
    if mode & FTZ:
        a, b = flushed(a), flushed(b)
    x, y = as_f32(a), as_f32(b)
    if x != x or y != y:
        if mode & NAN or (x != x and y != y):
            return NAN32
        return b if x != x else a
    if x == y:
        return (a & b if larger else a | b) if x == 0.0 else a
    return a if (x > y) == larger else b


@compiled
def ordered(comparison: int, x: float, y: float) -> bool:
    unordered = x != x or y != y
    if comparison == NANS:
        return unordered
    if comparison == NUM:
        return not unordered
    if comparison >= EQU:
        if unordered:
            return True
        comparison -= EQU
    elif unordered:
        return False
    if comparison == EQ:
        return x == y
    if comparison == NE:
        return x != y
    if comparison == LT:
        return x < y
    if comparison == LE:
        return x <= y
    return x > y if comparison == GT else x >= y


@separate
def function(operation: int, mode: int, a: int) -> int:
    """ex2, lg2, rsqrt, rcp, sqrt, sin, cos, tanh of a float32, rounded once from float64."""
    x = np.float64(as_f32(flushed(a) if mode & FTZ else a))
    if operation == EX2:
        found = np.exp2(x)
    elif operation == RSQRT:
        found = 1.0 / np.sqrt(x)
    elif operation == RCP:
        found = 1.0 / x
    elif operation == SQRT:
        found = np.sqrt(x)
    elif operation == LG2:
        found = np.log2(x)
    elif operation == SIN:
        found = np.sin(x)
    elif operation == COS:
        found = np.cos(x)
    else:
        found = np.tanh(x)
    return finished(rounded(found, mode & 3), mode)


@separate
def from_whole(mode: int, a: int) -> int:
    kind, bits, signed = (mode >> 8) & 15, (mode >> 12) & 255, (mode >> 12) & SIGNED != 0
    word = sign_extended(a, bits) if signed else zero_extended(a, bits)
    high, low = (word >> 32) if signed else shifted_right(word, 32), word & 0xFFFFFFFF
    total, error = sum_and_error(np.float64(high) * 4294967296.0, np.float64(low))
    if kind == F64:
        return bits64(total)
    exact = odd(total, error)
    return rounded(exact, mode & 3) if kind == F32 else to_half(exact, F16, mode & 3)


@separate
def to_whole(mode: int, a: int) -> int:
    """Rounded, then the nearest that fits; a NaN is 0, or the largest power of two where 64 bits take part."""
    kind, bits, signed = (mode >> 8) & 15, (mode >> 12) & 255, (mode >> 12) & SIGNED != 0
    number = value_of(kind, flushed(a) if mode & FTZ and kind == F32 else a)
    if number != number:
        return 1 << (bits - 1) if kind == F64 or bits == 64 else 0
    number = whole_number(number, mode & 3)
    most = 2.0 ** (bits - 1) if signed else 2.0**bits
    least = -most if signed else 0.0
    if number < least:
        number = least
    if number >= most:
        found = ((1 << (bits - 1)) - 1) if signed else -1
        if signed and bits == 64:
            found = 0x7FFFFFFFFFFFFFFF
    elif number >= 9223372036854775808.0:
        found = int(number - 9223372036854775808.0) ^ (-1 << 63)
    else:
        found = int(number)
    return zero_extended(found, max(bits, 32) if signed and bits < 32 else bits)


@compiled
def value_of(kind: int, word: int) -> float:
    if kind == F32:
        return np.float64(as_f32(word))
    return as_f64(word) if kind == F64 else half_value(word, kind)


@separate
def between_floats(mode: int, a: int) -> int:
    """cvt between float formats, and rounding of float32 to whole numbers (bit 16 of the mode)."""
    to, of = (mode >> 8) & 15, (mode >> 12) & 15
    number = value_of(of, flushed(a) if mode & FTZ and of == F32 else a)
    if mode & 1 << 16:
        number = whole_number(number, mode & 3)
    if mode & SAT:
        number = 0.0 if not number > 0.0 else min(number, 1.0)
    if to == F64:
        return bits64(number)
    if to == F32:
        word = rounded(number, mode & 3)
        return flushed(word) if mode & FTZ else word
    return to_half(number, to, mode & 3)


@separate
def of_halves(operation: int, mode: int, a: int, b: int, c: int) -> int:
    """One 16-bit element of an arithmetic instruction on f16 or bf16."""
    kind = (mode >> 8) & 15
    if operation == HNEG2:
        return (a ^ 0x8000) & 0xFFFF
    if operation == HABS2:
        return a & 0x7FFF
    x, y = half_value(a, kind), half_value(b, kind)
    if operation in (HMIN2, HMAX2):
        if x != x or y != y:
            if mode & NAN or (x != x and y != y):
                return 0x7FFF
            return (b if x != x else a) & 0xFFFF
        if x == y:
            both = (a & b if operation == HMAX2 else a | b) if x == 0.0 else a
            return both & 0xFFFF
        return (a if (x > y) == (operation == HMAX2) else b) & 0xFFFF
    if operation == HFMA2:
        total, error = sum_and_error(x * y, half_value(c, kind))
        total = odd(total, error) if error == error else total
        if mode & RELU and total < 0.0:
            total = 0.0
    elif operation == HMUL2:
        total = x * y
    else:
        total, error = sum_and_error(x, y if operation == HADD2 else -y)
        total = odd(total, error) if error == error else total
    return to_half(total, kind, RN)


@separate
def small_formats(operation: int, mode: int, a: int, b: int) -> int:
    """Pairs: two float32 to f16x2 or bf16x2 (the first operand goes above), and to or from two 8-bit floats."""
    kind = (mode >> 8) & 15
    if operation == CVT_F8X2:
        low, high = eight_as_half(a & 255, kind), eight_as_half((a >> 8) & 255, kind)
        return low | high << 16
    if operation == CVT_X2F8 and (mode >> 12) & 15 == F16:
        x, y = half_value(a >> 16, F16), half_value(a, F16)
    else:
        x, y = np.float64(as_f32(a)), np.float64(as_f32(b))
    if mode & RELU:
        x, y = (0.0 if x < 0.0 else x), (0.0 if y < 0.0 else y)
    if operation == CVT_X2F8:
        return to_eight(x, kind) << 8 | to_eight(y, kind)
    return to_half(x, kind, mode & 3) << 16 | to_half(y, kind, mode & 3)


@separate
def floating(operation: int, mode: int, a: int, b: int, c: int) -> int:  # noqa: C901
    """One lane of a floating point instruction."""
    if operation <= FDIV:
        return arithmetic(operation, mode, a, b, c)
    if operation in (FMIN, FMAX):
        return extreme(operation == FMAX, mode, a, b)
    if operation == FABS:
        return (flushed(a) if mode & FTZ else a) & 0x7FFFFFFF
    if operation == FNEG:
        return (flushed(a) if mode & FTZ else a) ^ SIGN
    if operation == FSETP:
        if mode & FTZ:
            a, b = flushed(a), flushed(b)
        return 1 if ordered(mode >> 12, as_f32(a), as_f32(b)) else 0
    if operation == CVT_IF:
        return from_whole(mode, a)
    if operation == CVT_FI:
        return to_whole(mode, a)
    if operation == CVT_FF:
        return between_floats(mode, a)
    if operation in (CVT_H2, CVT_F8X2, CVT_X2F8):
        return small_formats(operation, mode, a, b)
    if operation == COPYSIGN:
        return (a & SIGN) | (b & 0x7FFFFFFF)
    if operation >= HMIN2:
        low = of_halves(operation, mode, a & 0xFFFF, b & 0xFFFF, c & 0xFFFF)
        if mode & 1 << 16:
            return low | of_halves(operation, mode, a >> 16, b >> 16, c >> 16) << 16
        return low
    return function(operation, mode, a)
