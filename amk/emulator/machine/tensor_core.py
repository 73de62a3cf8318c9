"""mma.sync and movmatrix of one warp.

Integers are exact (wrapping in 32 bits). Floating point follows measurements of the hardware, not a specification:

* Products are exact. They and the accumulator are cut off (towards zero) below the `fraction`-th bit under the largest
  exponent among them, and added. The sum is cut off to float32.
* The exponent of a product is the sum of its factors', not that of the product, which may be one more.
* sm_80 and sm_89 add 8 products at a time with 24 bits, sm_90 and later 16 with 25.

All 65,536 sums of bf16 products that an H100 computed are equal in every bit (`tests.emulator.instructions`). Other
architectures were not compared.
Source: PTX ISA 9.0, 9.7.14 (fragments); Fasi et al., Numerical behavior of NVIDIA tensor cores, 2021 (additions).
"""

from __future__ import annotations

import numpy as np

from amk.emulator.arithmetic.bits import (
    M32,
    NAN32,
    as_f32,
    as_f64,
    bits64,
    compiled,
    half_value,
    rounded,
    separate,
    sign_extended,
)
from amk.emulator.memory.cells import at, to
from amk.emulator.memory.state import SCRATCH_WORDS, poison_of, registers_of
from amk.emulator.memory.undefined import mark
from amk.emulator.ptx.isa import BF16, F16, MMA_BF16, MMA_F16, MMA_S8, MMA_S8U8, MMA_U8S8, RZ

TOGETHER, FRACTION = (0, 1)


NOTHING = -4000
"""The exponent of zero: with another's it is still less than that of any sum of products."""


@compiled
def exponent_of(number: float) -> int:
    return NOTHING if number == 0.0 else (bits64(number) >> 52 & 2047) - 1023


@compiled
def fused(terms: int, count: int, largest: int, fraction: int) -> float:
    """The sum of `count` float64 terms, each cut off below the fraction's last bit under the exponent `largest`; cut
    off to float32."""
    plain = 0.0
    for n in range(count):
        term = as_f64(at(terms, n))
        if term - term != 0.0:
            plain += term
    if plain != 0.0 or largest < NOTHING // 2:
        return plain
    unit = 2.0 ** (fraction - largest)
    total = 0.0
    for n in range(count):
        total += np.trunc(as_f64(at(terms, n)) * unit)
    return np.float64(as_f32(rounded(total / unit, RZ)))


@compiled
def byte_of(word: int, place: int, signed: bool) -> int:
    byte = word >> 8 * place & 255
    return sign_extended(byte, 8) if signed else byte


@compiled
def multiply_halves(registers: int, word: int, kind: int, together: int, fraction: int, a: int) -> None:
    """m16n8k16: fragments a (4 registers of two), b (2), c and d (4 float32)."""
    b, found, terms = (a + 8 * 256, a + 8 * 384, a + 8 * 512)
    for lane in range(32):
        group, pair = (lane >> 2, 2 * (lane & 3))
        for n in range(4):
            row, column = (group + 8 * (n & 1), pair + 8 * (n >> 1))
            value = at(registers, 32 * at(word, 7 + n) + lane)
            to(a, 16 * row + column, bits64(half_value(value, kind)))
            to(a, 16 * row + column + 1, bits64(half_value(value >> 16, kind)))
        for n in range(2):
            value = at(registers, 32 * at(word, 11 + n) + lane)
            to(b, 8 * (pair + 8 * n) + group, bits64(half_value(value, kind)))
            to(b, 8 * (pair + 8 * n + 1) + group, bits64(half_value(value >> 16, kind)))
    for lane in range(32):
        for n in range(4):
            row, column = ((lane >> 2) + 8 * (n >> 1), 2 * (lane & 3) + (n & 1))
            total: float = np.float64(as_f32(at(registers, 32 * at(word, 13 + n) + lane)))
            for first in range(0, 16, together):
                largest = exponent_of(total)
                for k in range(together):
                    left, right = as_f64(at(a, 16 * row + first + k)), as_f64(at(b, 8 * (first + k) + column))
                    largest = max(largest, exponent_of(left) + exponent_of(right))
                    to(terms, k, bits64(left * right))
                to(terms, together, bits64(total))
                total = fused(terms, together + 1, largest, fraction)
            to(found, 4 * lane + n, NAN32 if total != total else rounded(total, RZ))
    for lane in range(32):
        for n in range(4):
            to(registers, 32 * at(word, 3 + n) + lane, at(found, 4 * lane + n))


@compiled
def multiply_bytes(registers: int, word: int, a_signed: bool, b_signed: bool, a: int) -> None:  # noqa: C901
    """m16n8k32 of 8-bit integers: fragments a (4 registers of four), b (2), c and d (4 int32)."""
    b, found = (a + 8 * 512, a + 8 * 768)
    for lane in range(32):
        group, first = (lane >> 2, 4 * (lane & 3))
        for n in range(4):
            for k in range(4):
                element = byte_of(at(registers, 32 * at(word, 7 + n) + lane), k, a_signed)
                to(a, 32 * (group + 8 * (n & 1)) + first + 16 * (n >> 1) + k, element)
        for n in range(2):
            for k in range(4):
                element = byte_of(at(registers, 32 * at(word, 11 + n) + lane), k, b_signed)
                to(b, 8 * (first + 16 * n + k) + group, element)
    for lane in range(32):
        for n in range(4):
            row, column = ((lane >> 2) + 8 * (n >> 1), 2 * (lane & 3) + (n & 1))
            total = at(registers, 32 * at(word, 13 + n) + lane)
            for k in range(32):
                total += at(a, 32 * row + k) * at(b, 8 * k + column)
            to(found, 4 * lane + n, total & M32)
    for lane in range(32):
        for n in range(4):
            to(registers, 32 * at(word, 3 + n) + lane, at(found, 4 * lane + n))


@compiled
def spread(grid: int, warp: int, word: int) -> None:  # noqa: C901
    """An undefined element of a makes its row of d undefined, one of b its column, one of c itself."""
    poison = poison_of(grid, warp)
    low, high, columns = (0, 0, 0)
    for n in range(4):
        lanes = at(poison, at(word, 7 + n))
        for lane in range(32):
            if lanes >> lane & 1:
                if n & 1:
                    high |= 1 << (lane >> 2)
                else:
                    low |= 1 << (lane >> 2)
    for n in range(2):
        lanes = at(poison, at(word, 11 + n))
        for lane in range(32):
            if lanes >> lane & 1:
                columns |= 1 << (lane >> 2)
    bad = np.empty(4, np.int64)
    for n in range(4):
        bad[n] = at(poison, at(word, 13 + n))
        for lane in range(32):
            rows, column = (high if n >> 1 else low, 2 * (lane & 3) + (n & 1))
            if rows >> (lane >> 2) & 1 or columns >> column & 1:
                bad[n] |= 1 << lane
    for n in range(4):
        mark(grid, warp, at(word, 3 + n), M32, bad[n])


@separate
def multiply(grid: int, warp: int, word: int, together: int, fraction: int) -> None:
    """mma.sync by all 32 lanes."""
    registers, scratch, mode = registers_of(grid, warp), at(grid, SCRATCH_WORDS), at(word, 2)
    if mode in (MMA_BF16, MMA_F16):
        multiply_halves(registers, word, BF16 if mode == MMA_BF16 else F16, together, fraction, scratch)
    else:
        multiply_bytes(registers, word, mode in (MMA_S8, MMA_S8U8), mode in (MMA_S8, MMA_U8S8), scratch)
    spread(grid, warp, word)


@separate
def transpose(grid: int, warp: int, word: int) -> None:
    """movmatrix: an 8 x 8 matrix of 16-bit elements; lane 4 r + c holds elements 2 c and 2 c + 1 of row r."""
    registers, found, bad = registers_of(grid, warp), np.empty(32, np.int64), 0
    of, into = (at(word, 4), at(word, 3))
    for lane in range(32):
        row, value = (lane >> 2, 0)
        for half in range(2):
            column = 2 * (lane & 3) + half
            source = 4 * column + (row >> 1)
            value |= (at(registers, 32 * of + source) >> 16 * (row & 1) & 65535) << 16 * half
            bad |= (at(poison_of(grid, warp), of) >> source & 1) << lane
        found[lane] = value
    for lane in range(32):
        to(registers, 32 * into + lane, found[lane])
    mark(grid, warp, into, M32, bad)
