"""Weight formats: codes, what they stand for, the bytes of a chunk, and the error of the nearest codes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amk.weights.chunks import pack_quantised, unpack_chunks
from amk.weights.e4m3 import from_e4m3, to_e4m3
from amk.weights.quantised import Quantised, dequantised, nearest, rounded, scale_at_least
from amk.weights.weight_format import FORMATS, Chunk, FormatName, weight_format
from tests.reference.codes import e4m3, numbers

CODED: list[FormatName] = [name for name in FORMATS if name != "bf16"]
SETTINGS = settings(max_examples=25, deadline=None, derandomize=True)


@st.composite
def stored(draw: st.DrawFn) -> tuple[FormatName, Quantised]:
    """Any codes, scales and zeros of two row groups, whatever quantiser they come from."""
    name = draw(st.sampled_from(CODED))
    form, k = weight_format(name), draw(st.integers(1, 20)) * 32
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    codes = random.integers(0, 16 if form.bits == 4 else 256, (16, k)).astype(np.uint8)
    scales = random.uniform(1e-6, 4, (16, form.groups(k))).astype(np.float16)
    zeros = random.integers(0, 17, scales.shape).astype(np.uint8) if form.zeros else None
    return name, Quantised(codes, scales, zeros)


@SETTINGS
@given(stored(), st.integers(1, 3))
def test_packing_keeps_every_number(case: tuple[FormatName, Quantised], units: int) -> None:
    name, rows = case
    form, k = weight_format(name), rows.codes.shape[1]
    chunk = Chunk(format=name, columns=units * form.unit)
    packed = pack_quantised(rows, chunk)
    count = -(-k // chunk.columns)
    assert packed.shape == (2 * count, chunk.bytes) and chunk.bytes % 16 == 0
    tiles = unpack_chunks(packed, chunk).reshape(2, count, 8, chunk.columns).transpose(0, 2, 1, 3).reshape(16, -1)
    np.testing.assert_array_equal(tiles[:, :k], dequantised(rows, form))


@pytest.mark.parametrize("name", [name for name in CODED if weight_format(name).per_row])
def test_scales_apart_leave_codes_only(name: FormatName) -> None:
    form, random = weight_format(name), np.random.default_rng(4)
    rows = nearest(random.standard_normal((16, 256)).astype(np.float32), form)
    chunk = Chunk(format=name, columns=128, apart=True)
    packed = pack_quantised(rows, chunk)
    assert packed.shape == (4, 8 * 128)
    codes = unpack_chunks(packed, chunk).reshape(2, 2, 8, 128).transpose(0, 2, 1, 3).reshape(16, 256)
    np.testing.assert_array_equal(codes * rows.scales.astype(np.float32), dequantised(rows, form))


@pytest.mark.parametrize("name", CODED)
def test_codes_stand_for_what_the_format_defines(name: FormatName) -> None:
    form = weight_format(name)
    rows = np.random.default_rng(1).standard_normal((8, 200)).astype(np.float32)
    found = nearest(rows, form)
    wanted = numbers(form.codes, form.group, found.codes, found.scales, found.zeros)
    np.testing.assert_array_equal(dequantised(found, form).astype(np.float64), wanted)


@SETTINGS
@given(st.sampled_from(CODED), st.integers(0, 2**32), st.floats(1e-3, 1e3), st.integers(1, 300))
def test_nearest_codes_are_within_half_a_step(name: FormatName, seed: int, size: float, k: int) -> None:
    form, random = weight_format(name), np.random.default_rng(seed)
    rows = (random.standard_normal((8, k)) * size + random.uniform(-size, size, (8, 1))).astype(np.float32)
    found = nearest(rows, form)
    width = form.group or k
    scales = np.repeat(found.scales.astype(np.float64), width, axis=1)[:, :k]
    error = np.abs(dequantised(found, form) - rows.astype(np.float64))
    if form.codes == "fp8":  # half a step is 2^-4 of the number, or of the smallest normal one
        bound = np.maximum(np.abs(rows), scales * 2.0**-6) * 2.0**-4
    else:
        bound = scales * (1.0 if form.zeros else 0.5)  # a rounded zero point shifts the range by up to half a step
    assert (error <= bound * 1.001).all()


def test_e4m3_is_the_nearest_of_all_codes_and_ties_go_to_even() -> None:
    values = np.array([e4m3(code) for code in range(256)])
    np.testing.assert_array_equal(from_e4m3(np.arange(256, dtype=np.uint8)).astype(np.float64), values)
    finite = values[:127]
    points = np.random.default_rng(2).uniform(-500, 500, 4000).astype(np.float32)
    points = np.concatenate([points, points / 1000, points / 1e5, finite.astype(np.float32), [np.float32(1e30)]])
    best = np.abs(np.minimum(np.abs(points), 448)[:, None].astype(np.float64) - finite).min(axis=1)
    found = from_e4m3(to_e4m3(points)).astype(np.float64)
    np.testing.assert_array_equal(np.abs(np.minimum(np.abs(points), 448) - np.abs(found)), best)
    ties = ((finite[:-1] + finite[1:]) / 2).astype(np.float32)
    assert (to_e4m3(ties) % 2 == 0).all()
    assert not (to_e4m3(points) & 127 == 127).any(), "the pattern that is no number is never made"


def test_scales_are_never_below_their_value() -> None:
    values = np.concatenate([np.random.default_rng(3).uniform(0, 1e-3, 1000), [0.0, 65504.0, 1e-9]]).astype(np.float32)
    scales = scale_at_least(values)
    assert (scales.astype(np.float32) >= values).all() and (scales > 0).all()
    with pytest.raises(ValueError, match="fp16"):
        scale_at_least(np.array([1e6], np.float32))


def test_a_row_of_zeros_stays_zero() -> None:
    for name in CODED:
        assert not rounded(np.zeros((8, 96), np.float32), weight_format(name)).any()


@pytest.mark.parametrize("name", CODED)
def test_needed_bytes_are_what_is_stored(name: FormatName) -> None:
    """Without padding, a chunk holds what the matrix needs: zero points take half a byte there, a whole one here."""
    form = weight_format(name)
    chunk = Chunk(format=name, columns=4 * form.unit)
    scales = 8 * form.groups(chunk.columns)
    slack = -(-scales // 16) * 16 - scales // 2 if form.zeros else 0
    assert chunk.bytes == form.needed_bytes(8, chunk.columns) + slack
