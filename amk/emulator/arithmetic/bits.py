"""Reinterpreting and rounding numbers, compiled: what numpy has no scalar operation for.

Registers are int64 throughout, the pattern of a narrower value in the low bits and zeros above.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic

from amk.emulator.machine_code import in_cache
from amk.emulator.ptx.isa import RM, RN, RP, RZ

M32 = 0xFFFFFFFF
NAN32 = 0x7FFFFFFF
"""What every operation on float32 answers instead of any other NaN."""

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """The function as machine code, made when it is first called and kept for later processes."""
    with in_cache():
        return cast(F, njit(cache=True, error_model="numpy", nogil=True)(function))


_SEPARATE: list[tuple[str, Callable[..., Any], Any]] = []
_LINKED: dict[str, Any] = {}
"""Keeps the machine code alive whose addresses callers hold."""


def separate(function: F) -> F:
    """The function as machine code of its own, which compiled callers call by its symbol and do not take in.

    Numba optimises everything that a compiled function calls together with it, at every level again; this is where
    that ends. Parameters are int, bool or float, the result may be None. `link` compiles what was declared so.
    """
    kinds = {"int": types.int64, "bool": types.int64, "float": types.float64, "None": types.void}
    hints = dict(function.__annotations__)
    answer = kinds[hints.pop("return")]
    signature = answer(*[kinds[hint] for hint in hints.values()])
    symbol = f"amk_emulator_{function.__module__.rpartition('.')[2]}_{function.__name__}"
    _SEPARATE.append((symbol, function, signature))
    return cast(F, types.ExternalFunction(symbol, signature))


def link() -> None:
    """Compile the separate functions, or load them; callees come first, as modules define them before their callers."""
    while _SEPARATE:
        symbol, function, signature = _SEPARATE.pop(0)
        with in_cache():
            _LINKED[symbol] = cfunc(signature, cache=True, error_model="numpy", nogil=True)(function)
        llvm.add_symbol(symbol, _LINKED[symbol].address)


def call(function: Callable[..., Any], *arguments: float) -> Any:
    """Call a separate function from Python."""
    link()
    return _LINKED[cast(Any, function).symbol].ctypes(*arguments)


@intrinsic  # type: ignore[untyped-decorator]
def as_f32(_: Any, word: Any) -> Any:
    """The float32 whose bits are the low half of an int64."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.trunc(arguments[0], ir.IntType(32)), ir.FloatType())

    return types.float32(types.int64), code


@intrinsic  # type: ignore[untyped-decorator]
def bits32(_: Any, number: Any) -> Any:
    """The bits of a float32, as an int64."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.bitcast(arguments[0], ir.IntType(32)), ir.IntType(64))

    return types.int64(types.float32), code


@intrinsic  # type: ignore[untyped-decorator]
def as_f64(_: Any, word: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), code


@intrinsic  # type: ignore[untyped-decorator]
def bits64(_: Any, number: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), code


@compiled
def zero_extended(word: int, bits: int) -> int:
    return word if bits >= 64 else word & ((1 << bits) - 1)


@compiled
def sign_extended(word: int, bits: int) -> int:
    return (word << (64 - bits)) >> (64 - bits)


@compiled
def shifted_right(word: int, by: int) -> int:
    """Of an unsigned 64-bit word, by less than 64."""
    return word if by == 0 else (word >> by) & ((1 << (64 - by)) - 1)


@compiled
def below(a: int, b: int) -> bool:
    """a < b as unsigned 64-bit words."""
    return (a ^ (-1 << 63)) < (b ^ (-1 << 63))


@compiled
def sum_and_error(a: float, b: float) -> tuple[float, float]:
    """a + b in float64 and what the rounding lost, exactly."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@compiled
def odd(number: float, error: float) -> float:
    """number + error, rounded to odd: any rounding to half the bits or fewer that follows is that of the exact sum."""
    word = bits64(number)
    if error == 0.0 or number != number or word & 1 == 1 or number - number != 0.0:
        return number
    if number == 0.0:
        return error
    away = (error > 0.0) == (number > 0.0)
    return as_f64(word | 1) if away else as_f64(word - 1)


@separate
def rounded(number: float, mode: int) -> int:
    """Bits of a float64 (rounded to odd where it was inexact) as float32 in a rounding mode."""
    near = np.float32(number)
    if near != near:
        return NAN32
    word = bits32(near)
    if mode == RN or np.float64(near) == number:
        return word
    larger, negative = np.float64(near) > number, word >> 31 == 1
    if (mode == RZ and larger != negative) or (mode == RM and larger):
        return word + 1 if negative and larger else (word - 1 if word & NAN32 else 0x80000001)
    if mode == RP and not larger:
        return word - 1 if negative and word & NAN32 else (word + 1 if not negative else 1)
    return word


@compiled
def flushed(word: int) -> int:
    """Bits of a float32, a subnormal number made zero of its sign."""
    return word & 0x80000000 if word & 0x7F800000 == 0 else word


@separate
def narrowed(number: float, exponent_bits: int, mantissa_bits: int, mode: int) -> int:
    """The pattern of |number| in a small format, without the sign; what is too large comes out as the pattern of
    infinity or above. `number` is finite, and rounded to odd where it was inexact. mode: RN (to even) or RZ.
    """
    size = abs(number)
    if size == 0.0:
        return 0
    lowest = 2 - (1 << (exponent_bits - 1))
    exponent = ((bits64(size) >> 52) & 0x7FF) - 1023
    scale = max(exponent, lowest)
    if scale < -900:
        return 0
    steps = size * 2.0 ** (mantissa_bits - scale)
    whole = int(np.floor(steps))
    rest = steps - whole
    if mode == RN and (rest > 0.5 or (rest == 0.5 and whole & 1 == 1)):
        whole += 1
    if exponent < lowest:
        return whole
    return ((exponent - lowest + 1) << mantissa_bits) + whole - (1 << mantissa_bits)


@separate
def to_half(number: float, kind: int, mode: int) -> int:
    """Bits of f16 (kind 1) or bf16 (kind 2)."""
    sign = (bits64(number) >> 48) & 0x8000
    infinity = 0x7C00 if kind == 1 else 0x7F80
    if number != number:
        return 0x7FFF
    if number - number != 0.0:
        return sign | infinity
    found = narrowed(number, 5, 10, mode) if kind == 1 else narrowed(number, 8, 7, mode)
    if found >= infinity:
        found = infinity if mode == RN else infinity - 1
    return sign | found


@separate
def half_value(word: int, kind: int) -> float:
    """The value of an f16 (kind 1) or bf16 (kind 2) as float64."""
    if kind == 2:
        return np.float64(as_f32((word & 0xFFFF) << 16))
    exponent, mantissa = (word >> 10) & 31, word & 1023
    if exponent == 31:
        size = np.inf if mantissa == 0 else np.nan
    elif exponent == 0:
        size = mantissa * 2.0**-24
    else:
        size = (1024 + mantissa) * 2.0 ** (exponent - 25)
    return -size if word & 0x8000 else size


@separate
def to_eight(number: float, kind: int) -> int:
    """Bits of e4m3 (kind 0) or e5m2 (kind 1), to nearest even, what is too large made the largest number."""
    sign = (bits64(number) >> 56) & 0x80
    if number != number:
        return 0x7F
    most = 0x7E if kind == 0 else 0x7B
    if number - number != 0.0:
        return sign | most
    return sign | min(narrowed(number, 4, 3, RN) if kind == 0 else narrowed(number, 5, 2, RN), most)


@separate
def eight_as_half(word: int, kind: int) -> int:
    """The f16 of an e4m3 (kind 0) or e5m2 (kind 1); both are exact."""
    if kind == 1:
        return 0x7FFF if word & 0x7F > 0x7C else (word & 0xFF) << 8
    if word & 0x7F == 0x7F:
        return 0x7FFF
    exponent, mantissa = (word >> 3) & 15, word & 7
    size = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return to_half(-size if word & 0x80 else size, 1, RN) | (word & 0x80) << 8


@compiled
def whole_number(number: float, mode: int) -> float:
    """A float64 rounded to a whole number: 0 to nearest even, 1 towards zero, 2 down, 3 up."""
    if mode == RN:
        return np.rint(number)
    if mode == RZ:
        return np.trunc(number)
    return np.floor(number) if mode == RM else np.ceil(number)
