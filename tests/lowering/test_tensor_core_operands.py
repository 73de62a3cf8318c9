"""The lanes' view of a chunk: packed bytes and staged x through the fragments of the mma instructions.

What the types of codes, `write_block` and `chunk_product` do, lane by lane in numpy, is the product with the
dequantised rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from amk.models.matrices import matrix
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.targets.target import load_target
from amk.weights.bfloat import from_bf16_bits
from amk.weights.block_point import BLOCK, block_scales, round_digits, round_halves
from amk.weights.chunks import pack_quantised
from amk.weights.quantised import Quantised, dequantised
from amk.weights.weight_format import FORMATS, Chunk, FormatName, weight_format
from tests.reference.codes import e4m3 as reference_e4m3
from tests.tiny import PAIRED, PLAIN, RAGGED

Words = NDArray[np.uint32]
Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]
LANE = np.arange(32)


def pair(word: Words) -> Floats:
    """Two bf16 in a word, [..., 2], the lower half first."""
    halves = np.stack([word & 0xFFFF, word >> 16], axis=-1).astype(np.uint16)
    return from_bf16_bits(halves).astype(np.float64)


def octets(word: Words, kind: str) -> Floats:
    """The four bytes of each word, [..., 4]."""
    return np.ascontiguousarray(word).view(kind).reshape(*word.shape, 4).astype(np.float64)


def mma(a: Floats, b: Floats) -> Floats:
    """C [16, 8] from the lanes' registers: a [4, 32, w], b [2, 32, w], w elements each: 4 bytes or 2 halves."""
    row, q, wide = LANE // 4, LANE % 4, a.shape[2]
    left, right = np.zeros((16, 8 * wide)), np.zeros((8 * wide, 8))
    for i in range(wide):
        for half in range(2):
            k = half * 4 * wide + wide * q + i
            left[row, k], left[row + 8, k] = a[2 * half, :, i], a[2 * half + 1, :, i]
            right[k, row] = b[half, :, i]
    product: Floats = left @ right
    return product


def own(c: Floats) -> Floats:
    """c[0] + c[3] of every lane."""
    at: Floats = c[LANE // 4, LANE % 4 * 2] + c[LANE // 4 + 8, LANE % 4 * 2 + 1]
    return at


def staged_digits(x: Floats) -> tuple[Bytes, Floats]:
    """x as write_block leaves it in digits, bytes [blocks, 128], and the scales."""
    scales = block_scales(x).astype(np.float64)
    numbers = (round_digits(x).reshape(-1, BLOCK) / scales[:, None]).astype(np.int64)
    assert np.abs(numbers).max() < 32640
    high = (numbers + 128) >> 8
    low = numbers - 256 * high
    return np.concatenate([low, high], axis=1).astype(np.int8).view(np.uint8), scales


def test_digits_come_out_of_the_bits_of_a_float() -> None:
    """digit_bits of vector_layouts.cuh: one fma, whose low bytes are the digits but for a flipped bit."""
    draw = np.random.default_rng(8)
    x = np.asarray(draw.standard_t(2, 64 * BLOCK), np.float32)
    staged, scales = staged_digits(x)
    # Exact in double precision: the rounding to float32 is the fma's.
    sums = x.astype(np.float64).reshape(-1, BLOCK) / scales[:, None] + (1.5 * 2**23 + 128)
    octets_of = sums.astype(np.float32).view(np.uint8).reshape(-1, BLOCK, 4)
    np.testing.assert_array_equal(staged[:, :BLOCK], octets_of[..., 0] ^ 0x80)
    np.testing.assert_array_equal(staged[:, BLOCK:], octets_of[..., 1])


def staged_halves(x: Floats) -> tuple[Bytes, Floats]:
    scales = block_scales(x).astype(np.float64)
    numbers = (round_halves(x).reshape(-1, BLOCK) / scales[:, None]).astype(np.float16)
    return numbers.view(np.uint8).reshape(-1, 2 * BLOCK), scales


def int8_sum(words: Words, block: int, x: Bytes) -> Floats:
    return own(mma(octets(words.T, "i1"), read_by(16, digit_operand(x))))


def int4_sum(words: Words, block: int, x: Bytes) -> Floats:
    return signed_nibble_sum(words, block, digit_operand(x))


def int4_zp_sum(words: Words, block: int, x: Bytes) -> Floats:
    return nibble_sum(words, block, digit_operand(x))


def signed_nibble_sum(words: Words, block: int, operand: Floats) -> Floats:
    flip, upper = np.uint32(0x80808080), np.uint32(0xF0F0F0F0)
    a = [half for word in (words[:, 2 * block], words[:, 2 * block + 1]) for half in (word << np.uint32(4), word)]
    return own(mma(octets(np.stack([half & upper ^ flip for half in a]), "i1"), operand))


def nibble_sum(words: Words, block: int, operand: Floats) -> Floats:
    first, second = words[:, 2 * block], words[:, 2 * block + 1]
    a = [first & 0x0F0F0F0F, first, second & 0x0F0F0F0F, second]
    c = mma(octets(np.stack(a), "u1"), operand)
    low_of_high = c[LANE // 4, LANE % 4 * 2 + 1]
    return 16 * c[LANE // 4, LANE % 4 * 2] + c[LANE // 4 + 8, LANE % 4 * 2 + 1] - low_of_high


def digit_operand(x: Bytes) -> Floats:
    place = LANE // 8 % 2 * BLOCK + LANE % 4 * 16 + LANE // 4 % 2 * 8
    words = x[place[:, None] + np.arange(8)].view(np.uint32)
    return octets(words.T, "i1")


def read_by(lanes: int, x: Floats) -> Floats:
    """An operand [2, 32, w] that only the first lanes read; the others' columns are of no account."""
    return np.where((lanes > LANE)[:, None], x, 0.0)


def fp8_sum(words: Words, block: int, x: Bytes) -> Floats:
    place = LANE % 4 * 32 + LANE // 4 % 2 * 16
    halves = x[place[:, None] + np.arange(16)].view(np.float16).astype(np.float64).reshape(32, 4, 2)
    codes = np.array([reference_e4m3(code) for code in range(256)])[words.view(np.uint8).reshape(32, 4, 4)]
    low, high = codes[..., :2], codes[..., 2:]
    c = np.zeros((16, 8))
    for i in range(2):
        a = np.stack([low[:, 2 * i], low[:, 2 * i + 1], high[:, 2 * i], high[:, 2 * i + 1]])
        c += mma(a, read_by(8, np.stack([halves[:, 2 * i], halves[:, 2 * i + 1]])))
    return own(c)


SUMS: dict[tuple[str, bool], tuple[Callable[[Words, int, Bytes], Floats], float]] = {
    ("int8", False): (int8_sum, 1.0), ("int4", False): (int4_sum, 16.0), ("int4", True): (int4_zp_sum, 16.0),
    ("fp8", False): (fp8_sum, 1.0),
}  # fmt: skip
"""By codes and whether zeros are stored: a lane's sum of a block, and what a code of 1 counts there."""


def chunk_product(stored: Bytes, chunk: Chunk, x: Bytes, scales: Floats, totals: Floats) -> Floats:
    """[32]: what the lanes add up; x, scales and totals (sums of x) of the chunk's blocks."""
    form, columns = chunk.weights, chunk.columns
    group = form.group or columns
    groups, size, per_load = columns // group, form.payload_bytes(columns), 2 if form.bits == 4 else 1
    weight = stored[size : size + 16 * groups].view(np.float16).astype(np.float64).reshape(8, groups)
    zeros = np.zeros((8, groups))
    if form.zeros:
        zeros = stored[size + 16 * groups :][: 8 * groups].reshape(8, groups).astype(np.float64)
    block_sum, unit = SUMS[form.codes, form.zeros]
    offset = np.where(LANE % 4 == 0, unit, 0.0)
    total = np.zeros(32)
    for g in range(groups):
        y = np.zeros(32)
        for i in range(g * group // BLOCK, (g + 1) * group // BLOCK):
            words = stored[i // per_load * 512 :][:512].view(np.uint32).reshape(32, 4)
            y += block_sum(words, i % per_load, x[i]) * scales[i] - offset * zeros[LANE // 4, g] * totals[i]
        total += weight[LANE // 4, g] * y
    return total / unit


def paired_product(stored: Bytes, chunk: Chunk, x: Bytes, scales: Floats, totals: Floats) -> Floats:
    """The same of codes of four bits in pairs: lanes 16 to 31 read the second half of x, odd pairs of lanes sum it."""
    form, columns = chunk.weights, chunk.columns
    groups, blocks, size = columns // form.group, columns // BLOCK // 2, form.payload_bytes(columns)
    weight = stored[size : size + 16 * groups].view(np.float16).astype(np.float64).reshape(8, groups)
    zeros = np.zeros((8, groups))
    if form.zeros:
        zeros = stored[size + 16 * groups :][: 8 * groups].reshape(8, groups).astype(np.float64)
    block_sum = nibble_sum if form.zeros else signed_nibble_sum
    half, row = LANE % 4 // 2, LANE // 4
    total = np.zeros(32)
    for i in range(blocks):
        operand = np.where((LANE < 16)[:, None], digit_operand(x[i]), digit_operand(x[i + blocks]))
        both = [block_sum(tile(stored, block), block % 2, operand) for block in (i, i + blocks)]
        own, group = i + half * blocks, i * BLOCK // form.group + half * (groups // 2)
        y = (
            np.where(half == 0, *both) * scales[own]
            - np.where(LANE % 2 == 0, 16.0, 0.0) * zeros[row, group] * totals[own]
        )
        total += weight[row, group] * y
    return total / 16


def tile(stored: Bytes, block: int) -> Words:
    return stored[block // 2 * 512 :][:512].view(np.uint32).reshape(32, 4)


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
    x = np.zeros(chunks * columns, np.float32)
    x[:k] = draw.standard_normal(k) * draw.choice([1e-3, 1.0, 1e3], k)
    digits = form.staged() == "digits"
    staged, x_scales = staged_digits(x) if digits else staged_halves(x)
    exact = (round_digits(x) if digits else round_halves(x)).astype(np.float64)
    found, paired = np.zeros(32), np.zeros(32)
    for i, stored in enumerate(pack_quantised(rows, Chunk(format=name, columns=columns))):
        here = slice(i * columns // BLOCK, (i + 1) * columns // BLOCK)
        totals = exact.reshape(-1, BLOCK)[here].sum(axis=1)
        of_x = staged[here], x_scales[here], totals
        found += chunk_product(stored, Chunk(format=name, columns=columns), *of_x)
        if form.bits == 4:
            paired += paired_product(stored, Chunk(format=name, columns=columns), *of_x)
    y = found[0::4] + 256 * found[1::4] if digits else found[0::4]
    expected = dequantised(rows, form).astype(np.float64) @ exact[:k]
    np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-6)
    if form.bits == 4:
        both = paired[0::4] + paired[2::4] + 256 * (paired[1::4] + paired[3::4])
        np.testing.assert_allclose(both, expected, rtol=1e-9, atol=1e-6)


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
        product = mma(words, np.stack([inputs[:, 0], inputs[:, 1]]))
        for lane in LANE:
            row, own = lane // 4, first + lane % 4
            if own < batch:
                column = 2 * (lane % 4)  # words 0 and 3 of the lane's sums
                found[own, row] = product[row, column] + product[row + 8, column + 1]
    np.testing.assert_allclose(found, x @ tile.T, rtol=1e-12, atol=1e-12)


def byte_perm(word: Words, selector: int) -> Words:
    """__byte_perm(word, 0, selector)."""
    parts = [word >> np.uint32(8 * i) & np.uint32(255) for i in range(4)] + [np.zeros_like(word)] * 4
    picked = [parts[selector >> 4 * i & 7] << np.uint32(8 * i) for i in range(4)]
    return picked[0] | picked[1] | picked[2] | picked[3]


CODES = np.array([code for code in range(256) if code & 127 != 127] + [0, 1], np.uint8)
"""Every e4m3 number."""


def test_a_word_of_an_fp8_cache_row_is_four_numbers_in_order() -> None:
    words = CODES.view(np.uint32)
    halves = []
    for selector in (0x1404, 0x3424):  # as in cache.cuh
        apart = byte_perm(words, selector)
        halves.append(pair(apart & 0x80008000 | apart >> np.uint32(4) & 0x07F007F0) * 2.0**120)
    found = np.concatenate(halves, axis=-1).reshape(-1)
    np.testing.assert_array_equal(found, [reference_e4m3(int(code)) for code in CODES])


def test_fp8_weights_without_an_instruction_for_them() -> None:
    """e4m3_halves of fp8.cuh before sm_89: 256 times too small, subnormals included."""
    words = CODES.view(np.uint32)
    halves = []
    for selector in (0x1404, 0x3424):
        apart = byte_perm(words, selector)
        word = apart & 0x80008000 | apart >> np.uint32(1) & 0x3F803F80
        halves.append(np.stack([word & 0xFFFF, word >> 16], axis=-1).astype(np.uint16).view(np.float16) * 256.0)
    found = np.concatenate(halves, axis=-1).reshape(-1)
    np.testing.assert_array_equal(found, [reference_e4m3(int(code)) for code in CODES])


@pytest.mark.parametrize("name", [name for name in FORMATS if weight_format(name).bits == 4])
@pytest.mark.parametrize(("model", "expected"), [(PAIRED, {True}), (PLAIN, {True, False}), (RAGGED, {False})])
def test_products_in_pairs_and_alone_are_among_the_models_of_tests(
    name: FormatName, model: ModelSpec, expected: set[bool]
) -> None:
    """Of which tests/gpu takes the logits: what one of the two does wrong is seen."""
    (stream,) = plan(model, load_target("h200"), formats=formats(name), max_context=4096).streams
    found = {in_pairs(chunk, matrix(model, of).k) for of, chunk in stream.chunks.items()}
    assert found == expected


def in_pairs(chunk: Chunk, k: int) -> bool:
    """`kPairs` of quantised_gemv.cuh: both halves of every chunk are whole groups and whole loads."""
    return k % chunk.columns == 0 and chunk.columns % (2 * max(chunk.weights.group, 2 * BLOCK)) == 0
