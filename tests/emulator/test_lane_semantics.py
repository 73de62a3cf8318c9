"""Instructions of one lane against oracles of their own: Python integers, numpy, struct, ml_dtypes, exact fractions."""

from __future__ import annotations

import struct
from fractions import Fraction
from itertools import product

import ml_dtypes
import numpy as np

from amk.emulator.arithmetic.bits import call
from amk.emulator.arithmetic.floating import floating
from amk.emulator.arithmetic.whole import whole
from amk.emulator.ptx import isa
from amk.emulator.ptx.encode import form_table

INTERESTING = (
    0, 1, 2, 3, 31, 32, 33, 63, 64, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF,
    0x100000000, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000, 0xFFFFFFFFFFFFFFFF, 0x123456789ABCDEF0,
)  # fmt: skip
INF = float("inf")
FLOATS = (
    0.0, -0.0, 1.0, -1.0, 1.5, 0.1, 3.0, 1e-45, -1e-40, 1.17549435e-38, 3.4028235e38, -3.4028235e38, INF, -INF,
    float("nan"), 65504.0, 65520.0, 448.0, 464.0, 57344.0, 2.0**-24, 1 + 2**-23, 16777217.0,
)  # fmt: skip


def bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def number(word: int) -> float:
    return float(np.uint32(word).view(np.float32))


def signed(word: int, width: int) -> int:
    word &= (1 << width) - 1
    return word - (1 << width) if word >> (width - 1) else word


def executed(opcode: str, *operands: int) -> int:
    """The result of an integer or floating point instruction, as an unsigned number."""
    form = form_table()[opcode]
    words = [signed(word, 64) for word in operands] + [0] * (4 - len(operands))
    if form.operation < isa.FADD:
        return int(call(whole, form.operation, form.mode, *words)) & (1 << 64) - 1
    return int(call(floating, form.operation, form.mode, *words[:3])) & (1 << 64) - 1


def test_integer_arithmetic_is_pythons_modulo_the_width() -> None:
    for kind, width, is_signed in (("u32", 32, False), ("s32", 32, True), ("u64", 64, False), ("s64", 64, True)):
        mask = (1 << width) - 1
        for a in INTERESTING:
            for b in INTERESTING:
                a, b = a & mask, b & mask
                x, y = (signed(a, width), signed(b, width)) if is_signed else (a, b)
                assert executed(f"add.{kind}", a, b) == (x + y) & mask
                assert executed(f"sub.{kind}", a, b) == (x - y) & mask
                assert executed(f"mul.lo.{kind}", a, b) == (x * y) & mask
                assert executed(f"mul.hi.{kind}", a, b) == (x * y >> width) & mask
                assert executed(f"min.{kind}", a, b) == min(x, y) & mask
                assert executed(f"max.{kind}", a, b) == max(x, y) & mask
                assert executed(f"setp.lt.{kind}", a, b) == int(x < y)
                assert executed(f"setp.ge.{kind}", a, b) == int(x >= y)
                if width == 32:
                    assert executed(f"mul.wide.{kind}", a, b) == (x * y) & (1 << 64) - 1
                if y:
                    quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
                    assert executed(f"div.{kind}", a, b) == quotient & mask
                    assert executed(f"rem.{kind}", a, b) == (x - quotient * y) & mask


def test_shifts_clamp_and_fields_are_those_of_the_isa() -> None:
    for a in INTERESTING:
        for by in (0, 1, 31, 32, 33, 200):
            a &= 0xFFFFFFFF
            assert executed("shl.b32", a, by) == (a << by) & 0xFFFFFFFF
            assert executed("shr.u32", a, by) == a >> by
            assert executed("shr.s32", a, by) == (signed(a, 32) >> min(by, 31)) & 0xFFFFFFFF
    assert executed("bfe.u32", 0xABCD1234, 8, 8) == 0x12
    assert executed("bfe.s32", 0xABCD1234, 24, 8) == 0xFFFFFFAB
    assert executed("bfi.b32", 0xFF, 0x12345678, 8, 8) == 0x1234FF78
    assert executed("prmt.b32", 0x33221100, 0x77665544, 0x7140) == 0x77114400
    assert executed("prmt.b32", 0x80, 0, 0x8888) == 0xFFFFFFFF
    assert executed("lop3.b32", 0b1100, 0b1010, 0b0110, 0x96) == 0b1100 ^ 0b1010 ^ 0b0110
    assert executed("popc.b32", 0xF0F0) == 8 and executed("clz.b32", 1) == 31 and executed("brev.b32", 1) == 0x80000000
    assert executed("cvt.s64.s32", 0xFFFFFFFF) == (1 << 64) - 1 and executed("cvt.u64.u32", 0xFFFFFFFF) == 0xFFFFFFFF


def test_dot_products_of_halves_and_bytes() -> None:
    """Beside numpy's views of the same memory."""
    draw = np.random.default_rng(3)
    for kinds in product("us", repeat=2):
        first, second = (np.dtype(f"<{'u' if kind == 'u' else 'i'}1") for kind in kinds)
        names = ".".join(f"{kind}32" for kind in kinds)
        for _ in range(20):
            a, b, c = draw.integers(0, 256, (3, 4)).astype(np.uint8)
            words = [int(each.view(np.uint32)[0]) for each in (a, b, c)]
            of_bytes = a.view(first).astype(int), b.view(second).astype(int)
            halves = a.view(np.dtype(f"<{'u' if kinds[0] == 'u' else 'i'}2")).astype(int)
            wanted = {
                "dp4a": of_bytes[0] @ of_bytes[1],
                "dp2a.lo": halves @ of_bytes[1][:2],
                "dp2a.hi": halves @ of_bytes[1][2:],
            }
            for name, value in wanted.items():
                assert executed(f"{name}.{names}", *words) == (words[2] + int(value)) & 0xFFFFFFFF, (name, names)


def rounded_exactly(value: Fraction, mode: str) -> float:
    """The float32 nearest to a fraction, or next to it towards zero, below or above; by neighbours, not by
    arithmetic."""
    near = np.float32(float(value))
    candidates = {
        float(near),
        float(np.nextafter(near, np.float32(-np.inf))),
        float(np.nextafter(near, np.float32(np.inf))),
    }
    finite = sorted(Fraction(c) for c in candidates if np.isfinite(c))
    below, above = [c for c in finite if c <= value], [c for c in finite if c >= value]
    if mode == "rn":
        return float(min(finite, key=lambda c: (abs(c - value), bits(float(c)) & 1)))
    if mode == "rz":
        return float(max(below) if value > 0 else min(above))
    return float(max(below) if mode == "rm" else min(above))


def test_fused_multiply_add_rounds_once_in_every_mode() -> None:
    draw = np.random.default_rng(0)
    for _ in range(400):
        a, b = (number(int(draw.integers(0x3F000000, 0x40800000))) for _ in range(2))
        c = -np.float32(a * b) * np.float32(draw.choice([1, 1 + 2**-23, 2**-20, -1, 3]))
        exact = Fraction(a) * Fraction(b) + Fraction(float(c))
        for mode in ("rn", "rz", "rm", "rp"):
            if exact:
                found = number(executed(f"fma.{mode}.f32", bits(a), bits(b), bits(float(c))))
                assert found == rounded_exactly(exact, mode), (a, b, c, mode)


def test_float_arithmetic_is_numpys_and_every_nan_is_the_same() -> None:
    with np.errstate(all="ignore"):
        for a in FLOATS:
            for b in FLOATS:
                x, y = np.float32(a), np.float32(b)
                for opcode, expected in (
                    ("add.f32", x + y),
                    ("sub.f32", x - y),
                    ("mul.f32", x * y),
                    ("div.rn.f32", x / y),
                ):
                    word = 0x7FFFFFFF if np.isnan(expected) else bits(float(expected))
                    assert executed(opcode, bits(a), bits(b)) == word, (opcode, a, b)
                assert executed("setp.lt.f32", bits(a), bits(b)) == int(x < y)
                assert executed("setp.neu.f32", bits(a), bits(b)) == int(x != y)
    assert executed("max.f32", bits(-0.0), bits(0.0)) == 0 and executed("min.f32", bits(0.0), bits(-0.0)) == 0x80000000
    assert executed("max.f32", bits(float("nan")), bits(2.0)) == bits(2.0)
    assert executed("add.ftz.f32", bits(1e-40), bits(0.0)) == 0


def test_conversions_are_those_of_struct_and_ml_dtypes() -> None:
    draw = np.random.default_rng(1)
    values = [*FLOATS, *(number(int(word)) for word in draw.integers(0, 1 << 32, 2000))]
    for value in values:
        x = np.float32(value)
        if np.isnan(x):
            continue
        with np.errstate(all="ignore"):
            assert executed("cvt.rn.f16.f32", bits(value)) == int(np.float16(x).view(np.uint16)), value
        assert executed("cvt.rn.bf16.f32", bits(value)) == int(np.asarray(x).astype(ml_dtypes.bfloat16).view(np.uint16))
        clipped = np.clip(x, np.float32(-448), np.float32(448))
        expected = int(np.asarray(clipped).astype(ml_dtypes.float8_e4m3fn).view(np.uint8))
        assert executed("cvt.rn.satfinite.e4m3x2.f32", bits(0.0), bits(value)) == expected, value
    for word in range(256):
        value = float(np.uint8(word).view(ml_dtypes.float8_e4m3fn).astype(np.float32))
        if not np.isnan(value):
            half = struct.unpack("<H", struct.pack("<e", value))[0]
            assert executed("cvt.rn.f16x2.e4m3x2", word | word << 8) == half | half << 16
    assert executed("cvt.rzi.s32.f32", bits(-1.9)) == 0xFFFFFFFF and executed("cvt.rni.s32.f32", bits(2.5)) == 2
    assert executed("cvt.rzi.s32.f32", bits(1e20)) == 0x7FFFFFFF and executed("cvt.rzi.u32.f32", bits(-5.0)) == 0
    assert executed("cvt.rn.f32.s32", 16777217) == bits(16777216.0) and executed("cvt.rp.f32.s32", 16777217) == bits(
        16777218.0
    )
