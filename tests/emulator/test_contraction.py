"""What ptxas contracts: found by its machine code, computed by the emulator, and seen in the memory of an H200."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("numba", reason="the emulator is compiled")

from amk.emulator.machine.machine import Limits, Machine
from amk.emulator.memory.global_memory import Allocation
from amk.emulator.ptx.parse import parse
from amk.emulator.ptx.program import assemble
from amk.interpreter.constants import rope_table
from tests.emulator.contraction import candidates, contracted, written_out
from tests.tiny import PAIRED

F32 = NDArray[np.float32]
KERNEL = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 given, .param .u64 out)
{
.reg .f32 %f<20>;
.reg .b64 %rd<4>;
ld.param.u64 %rd1, [given];
ld.param.u64 %rd2, [out];
ld.global.f32 %f1, [%rd1];
ld.global.f32 %f2, [%rd1+4];
ld.global.f32 %f3, [%rd1+8];
ld.global.f32 %f4, [%rd1+12];
mul.f32 %f5, %f1, %f2;
mul.f32 %f6, %f3, %f4;
add.f32 %f7, %f5, %f3;
sub.f32 %f8, %f5, %f3;
add.f32 %f9, %f3, %f5;
sub.f32 %f10, %f3, %f5;
sub.f32 %f11, %f5, %f6;
add.f32 %f12, %f3, %f4;
st.global.f32 [%rd2], %f7;
st.global.f32 [%rd2+4], %f8;
st.global.f32 [%rd2+8], %f9;
st.global.f32 [%rd2+12], %f10;
st.global.f32 [%rd2+16], %f11;
ret;
}
"""
GIVEN = np.array([1.1, 1.3, -1.43, 0.7], np.float32)


def run(ptx: str) -> list[float]:
    held = [Allocation("given", 16, "constant", GIVEN), Allocation("out", 20, "state", np.zeros(20, np.uint8))]
    machine = Machine(assemble(parse(ptx), "k"), 1, 1, 0, held, Limits(seconds=100.0))
    at = machine.memory.addresses
    outcome = machine.launch(b"".join(at[name].to_bytes(8, "little") for name in ("given", "out")))
    assert outcome.ended and not outcome.faults, outcome.faults
    return np.asarray(machine.read("out", np.float32, 5)).view(np.float32).tolist()


def test_a_sum_written_out_does_not_round_its_first_product() -> None:
    sums = candidates(KERNEL)
    assert [KERNEL.split("\n")[number - 1].split()[1] for number in sums] == ["%f7,", "%f8,", "%f9,", "%f10,", "%f11,"]
    a, b, c = map(Fraction, GIVEN[:3].tolist())
    product, other = Fraction(float(GIVEN[0] * GIVEN[1])), Fraction(float(GIVEN[2] * GIVEN[3]))
    apart = [product + c, product - c, c + product, c - product, product - other]
    fused = [a * b + c, a * b - c, c + a * b, c - a * b, a * b - other]
    assert run(KERNEL) == [float(np.float32(float(exact))) for exact in apart]
    found = run(written_out(KERNEL, sums))
    assert found == [float(np.float32(float(exact))) for exact in fused] != run(KERNEL)


def test_what_becomes_the_same_machine_code_is_contracted() -> None:
    """By a compiler that contracts the second and the fifth."""
    sums = candidates(KERNEL)
    also = {sums[1], sums[4]}
    written = {written_out(KERNEL, kept) for kept in ([], [sums[1]], [sums[4]])}
    assert contracted(KERNEL, lambda ptx: written_out(KERNEL, sorted(also)) if ptx in written else ptx) == sorted(also)


HEADS, GROUP, DIM = 8, 4, 64
MEMORY = Path(__file__).with_name("h200-paired-int4.npz")
LOG2_E = np.float32(1.44269502162933)


def test_the_scores_of_an_h200_have_the_bits_of_a_contracted_rotation() -> None:
    """Of 48 largest scores, all of them; rounded apart, five differ. No approximate instruction is in a score. Sums of
    weights have the GPU's bits too, or would with an ex2 that it was not asked for one unit of the last place away."""
    rotations: dict[str, Callable[..., F32]] = {
        "contracted": lambda a, b, c, d: (wide(a) * wide(b) - wide(c * d)).astype(np.float32),
        "apart": lambda a, b, c, d: a * b - c * d,
    }
    off: dict[str, list[tuple[int, int, int]]] = {name: [] for name in rotations}
    open_sums = []
    with np.load(MEMORY) as kept:
        ex2 = {int(a): int(said) for a, _, said in kept["ex2.approx.f32"].T}
        for tokens, head in itertools.product(range(1, 7), range(HEADS)):
            left = kept[f"{tokens} split_scale"].view(np.float32)[::2].reshape(HEADS, 2, 2)[head, 0]
            for name, rotation in rotations.items():
                found = scores(kept, tokens, head, rotation)
                units = int(found.max().view(np.int32)) - int(left[0].view(np.int32))
                off[name] += [(tokens, head, units)] if units else []
                if name == "contracted":
                    totals = sums_of_weights(found, ex2)
                    assert left[1] in totals, (tokens, head)
                    open_sums += [(tokens, head)] if left[1] != totals[0] else []
    assert off["contracted"] == []
    assert off["apart"] == [(2, 2, -12), (3, 2, 8), (4, 6, -34), (5, 7, -1), (6, 3, 1)]
    assert open_sums == [(3, 2), (6, 3)]


def wide(values: Any) -> NDArray[np.float64]:
    return np.asarray(values, np.float64)


def scores(kept: Any, tokens: int, head: int, rotation: Callable[..., F32]) -> F32:
    """Of the last layer's query of a head and every key, as rope_append and attend compute them."""
    qkv = kept[f"{tokens} qkv"].view(np.float32)[::2]
    keys = (kept[f"{tokens} k_cache"].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    keys = keys.reshape(2, HEADS // GROUP, tokens, DIM)[1, head // GROUP]
    a, b = qkv[DIM * head : DIM * (head + 1)].reshape(2, DIM // 2)
    cosine, sine = rope_table(PAIRED, tokens)[tokens - 1].reshape(2, DIM // 2)
    rotated = np.concatenate((rotation(a, cosine, b, sine), (wide(a) * sine + b * cosine).astype(np.float32)))
    query = rotated * np.float32(DIM**-0.5)
    coarse = bf16(query)
    rest = bf16(query - coarse)
    found = []
    for key in keys:
        halves = [np.float32(0), np.float32(0)]
        for half, quad in itertools.product(range(2), range(2)):
            dims = np.add.outer(32 * half + 4 * quad + np.arange(0, 32, 8), np.arange(4)).reshape(-1)
            for part in (coarse, rest):
                halves[half] = mma(halves[half], part[dims], key[dims])
        found.append(halves[0] + halves[1])
    return np.array(found, np.float32)


def bf16(values: F32) -> F32:
    word = values.view(np.uint32).astype(np.uint64)
    return (word + 0x7FFF + (word >> 16 & 1) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def mma(before: np.float32, left: F32, right: F32) -> np.float32:
    """One sum of 16 products on sm_90, as amk/emulator/machine/tensor_core.py says."""
    terms = np.append(wide(left) * right, wide(before))
    factors = np.append(exponent(left) + exponent(right), exponent(wide(before)))
    unit = 2.0 ** (25 - int(factors.max()))
    total = float(np.trunc(terms * unit).sum() / unit)
    near = np.float32(total)
    return np.nextafter(near, np.float32(0)) if abs(float(near)) > abs(total) else near


def exponent(values: Any) -> NDArray[np.int64]:
    return np.where(wide(values) == 0, -4000, np.frexp(wide(values))[1] - 1)


def sums_of_weights(found: F32, ex2: dict[int, int]) -> list[np.float32]:
    """With the GPU's ex2; where it was not asked, with the one rounded once (first) and its neighbours."""
    choices = []
    for power in (found - found.max()) * LOG2_E:
        once = int(np.float32(2.0 ** float(power)).view(np.uint32))
        choices.append([ex2[word]] if (word := int(power.view(np.uint32))) in ex2 else [once, once + 1, once - 1])
    sums = []
    for words in itertools.product(*choices):
        w = np.zeros(8, np.float32)
        w[: len(words)] = np.array(words, np.uint32).view(np.float32)
        lanes = w[:4] + w[4:]
        sums.append((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]))
    return sums
