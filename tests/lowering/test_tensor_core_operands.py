"""The lanes' view of a chunk: packed bytes through the bit tricks of weights.cuh and the fragments of mma.m16n8k16.

What `operands` and `chunk_product` do, lane by lane in numpy, gives the product with the dequantised rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from amk.schedule_ir.bfloat import from_bf16_bits, round_bf16
from amk.schedule_ir.chunks import pack_quantised
from amk.schedule_ir.quantised import Quantised, dequantised
from amk.schedule_ir.weight_format import FORMATS, Chunk, FormatName, weight_format
from tests.reference.codes import e4m3 as reference_e4m3

Words = NDArray[np.uint32]
Floats = NDArray[np.float64]
LANE = np.arange(32)


def pair(word: Words) -> Floats:
    """Two bf16 in a word, [..., 2], the lower half first."""
    halves = np.stack([word & 0xFFFF, word >> 16], axis=-1).astype(np.uint16)
    return from_bf16_bits(halves).astype(np.float64)


def signed_bytes(word: Words) -> Floats:
    return pair(word & 0x007F007F | 0x43004300) - pair(word & 0x00800080 | 0x43004300)


def eight_bits(convert: Callable[[Words, bool], Floats]) -> Callable[[Words, int], Floats]:
    def operands(words: Words, unit: int) -> Floats:
        a = np.zeros((2, 4, 32, 2))
        for i in range(4):
            a[i // 2, i % 2] = convert(words[:, i], False)
            a[i // 2, i % 2 + 2] = convert(words[:, i], True)
        return a

    return operands


def e4m3(word: Words, odd: bool) -> Floats:
    signs, rest = (word, word >> 4) if odd else (word << 8, word << 4)
    return pair(signs & 0x80008000 | rest & 0x07F007F0) * 2.0**120


def nibbles(words: Words, unit: int) -> Floats:
    a = np.zeros((2, 4, 32, 2))
    for i in range(2):
        word = words[:, 2 * unit + i]
        for register, shift in ((0, 0), (2, 4), (1, 8), (3, 12)):
            a[i, register] = pair(word >> np.uint32(shift) & 0x000F000F | 0x43004300)
    return a


OPERANDS = {
    "int8": eight_bits(lambda word, odd: signed_bytes(word >> np.uint32(8) if odd else word)),
    "fp8": eight_bits(e4m3),
    "int4": nibbles,
}


def mma(a: Floats, b0: Floats, b1: Floats) -> Floats:
    """C [16, 8] of m16n8k16 from the lanes' registers: a [4, 32, 2], b [32, 2] each."""
    row, q = LANE // 4, LANE % 4
    left, right = np.zeros((16, 16)), np.zeros((16, 8))
    for half in range(2):
        left[row, 2 * q + half], left[row + 8, 2 * q + half] = a[0, :, half], a[1, :, half]
        left[row, 2 * q + 8 + half], left[row + 8, 2 * q + 8 + half] = a[2, :, half], a[3, :, half]
        right[2 * q + half, row], right[2 * q + 8 + half, row] = b0[:, half], b1[:, half]
    product: Floats = left @ right
    return product


def chunk_product(stored: NDArray[np.uint8], chunk: Chunk, x: Floats) -> Floats:
    """[8]: what lanes 0, 4, ... 28 end up with."""
    form, columns = chunk.weights, chunk.columns
    group, per_load = form.group or columns, 2 if form.bits == 4 else 1
    offset = {"int4": 128.0 if form.zeros else 136.0}.get(form.codes, 0.0)
    groups = columns // group
    size = form.payload_bytes(columns)
    scales = stored[size : size + 16 * groups].view(np.float16).astype(np.float64).reshape(8, groups)
    zeros = (
        stored[size + 16 * groups :][: 8 * groups].reshape(8, groups).astype(np.float64) if form.zeros else 0 * scales
    )
    total, sums, ones = np.zeros(8), np.zeros((16, 8)), np.zeros((16, 8))
    for unit in range(columns // 64):
        load = stored[unit // per_load * 512 :][:512].view(np.uint32).reshape(32, 4)
        xs = x[unit * 64 + (LANE % 4)[:, None] * 16 + (LANE // 4)[:, None] * 8 % 16 + np.arange(8)]
        xs[8:] = np.nan  # columns whose products nobody reads
        a = OPERANDS[form.codes](load, unit % per_load)
        for i in range(2):
            b0, b1 = xs[:, 4 * i : 4 * i + 2], xs[:, 4 * i + 2 : 4 * i + 4]
            sums += mma(a[i], b0, b1)
            ones += mma(np.ones((4, 32, 2)), b0, b1)
        if (unit + 1) * 64 % group == 0:
            at = (unit + 1) * 64 // group - 1
            row = np.arange(8)
            y = sums[row, 0] + sums[row + 8, 1] - (offset + zeros[:, at]) * (ones[row, 0] + ones[row + 8, 1])
            total += scales[:, at] * y
            sums, ones = np.zeros((16, 8)), np.zeros((16, 8))
    return total


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "bf16"])
@pytest.mark.parametrize("chunks", [1, 3])
def test_lanes_multiply_what_the_codes_stand_for(name: FormatName, chunks: int) -> None:
    form, draw = weight_format(name), np.random.default_rng(5)
    columns = 2 * form.unit
    k = chunks * columns - 24
    codes = draw.integers(0, 16 if form.bits == 4 else 256, (8, k)).astype(np.uint8)
    if form.codes == "fp8":
        codes[codes & 127 == 127] = 3
    scales = draw.uniform(0.01, 0.2, (8, form.groups(k))).astype(np.float16)
    zeros = draw.integers(0, 17, scales.shape).astype(np.uint8) if form.zeros else None
    rows = Quantised(codes, scales, zeros)
    x = round_bf16(draw.standard_normal(k).astype(np.float32)).astype(np.float64)
    padded = np.concatenate([x, np.zeros(chunks * columns - k)])
    packed = pack_quantised(rows, Chunk(format=name, columns=columns))
    found = sum(
        chunk_product(stored, Chunk(format=name, columns=columns), padded[i * columns : (i + 1) * columns])
        for i, stored in enumerate(packed)
    )
    np.testing.assert_allclose(found, dequantised(rows, form).astype(np.float64) @ x, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("batch", range(1, 9))
def test_lanes_multiply_a_bf16_tile_with_every_sequence(batch: int) -> None:
    """gemv: a tile [8, 32] with x of each sequence; lane 4 r + q ends up with row r of sequence q, and of q + 4."""
    draw = np.random.default_rng(batch)
    tile, x = draw.standard_normal((8, 32)), draw.standard_normal((batch, 32))
    words = tile.reshape(32, 4, 2).transpose(1, 0, 2)  # lane 4 r + q: row r, columns 8 q .. + 8, as its four words
    pairs = x.reshape(batch, 4, 4, 2)[:, :, [0, 2, 1, 3]]  # x_place: the second and the third pair change places
    found = np.zeros((batch, 8))
    for first in range(0, batch, 4):
        sequence = np.minimum(first + LANE // 8, batch - 1)
        inputs = pairs.reshape(batch, 4, 2, 2, 2)[sequence, LANE % 4, LANE // 4 % 2]
        product = mma(words, inputs[:, 0], inputs[:, 1])
        for lane in LANE:
            row, own = lane // 4, first + lane % 4
            if own < batch:
                column = 2 * (lane % 4)  # words 0 and 3 of the lane's sums
                found[own, row] = product[row, column] + product[row + 8, column + 1]
    np.testing.assert_allclose(found, x @ tile.T, rtol=1e-12, atol=1e-12)


def byte_perm(word: Words, selector: int) -> Words:
    """__byte_perm(word, 0, selector)."""
    octets = [word >> np.uint32(8 * i) & np.uint32(255) for i in range(4)] + [np.zeros_like(word)] * 4
    picked = [octets[selector >> 4 * i & 7] << np.uint32(8 * i) for i in range(4)]
    return picked[0] | picked[1] | picked[2] | picked[3]


def test_a_word_of_an_fp8_cache_row_is_four_numbers_in_order() -> None:
    codes = np.array([code for code in range(256) if code & 127 != 127] + [0, 1], np.uint8)
    words = codes.view(np.uint32)
    halves = []
    for selector in (0x1404, 0x3424):  # as in cache.cuh
        apart = byte_perm(words, selector)
        halves.append(pair(apart & 0x80008000 | apart >> np.uint32(4) & 0x07F007F0) * 2.0**120)
    found = np.concatenate(halves, axis=-1).reshape(-1)
    np.testing.assert_array_equal(found, [reference_e4m3(int(code)) for code in codes])
