"""Packed weights: every chunk stands where the layout says and holds the rows the model says, rounded to bf16."""

from __future__ import annotations

import numpy as np
import pytest

from amk.interpreter.constants import constants
from amk.interpreter.packing import pack_weights, packed_array, packed_arrays
from amk.models.matrices import MATRICES, MatrixName, matrix, tensor_rows
from amk.planner.formats import formats
from amk.schedule_ir.layout import stream_layout
from amk.schedule_ir.schedule import Schedule
from amk.weights.bfloat import from_bf16_bits, round_bf16, to_bf16_bits
from amk.weights.chunks import pack_bf16, unpack_chunks
from amk.weights.quantised import nearest
from amk.weights.weight_format import weight_format
from tests.engine.tiny import RandomTensors, tiny_model, tiny_plan


def expected_tile(
    schedule: Schedule, source: RandomTensors, name: MatrixName, layer: int, group: int, column: int
) -> np.ndarray:
    """Chunk content from tensor_rows alone, one row at a time."""
    width = schedule.streams[0].chunk_k
    out, place = np.zeros((8, width), np.float32), 0
    for tensor, first, count in tensor_rows(schedule.model, name, layer, group):
        for row in range(first, first + count):
            values = source.tensor(tensor, slice(row, row + 1))[0][column * width : (column + 1) * width]
            out[place, : len(values)] = values
            place += 1
    return out


@pytest.mark.parametrize(("width", "parts"), [(None, 1), (64, 1), (None, 5)])
@pytest.mark.parametrize("workers", [1, 3, 13])
def test_every_chunk_is_where_its_consumer_looks(workers: int, width: int | None, parts: int) -> None:
    """width 64 does not divide k = 96: the last chunk of a row is padded."""
    model = tiny_model(hidden=96, heads=3, kv_heads=1, ffn=160, vocab=83)
    schedule = tiny_plan(model, workers=workers, k_parts=parts)
    if width:
        stream = schedule.streams[0].model_copy(update={"chunk_k": width})
        schedule = schedule.model_copy(update={"streams": (stream,)})
    source, (stream,) = RandomTensors(model), schedule.streams
    layout, packed = stream_layout(schedule, stream), packed_array(schedule, source)
    at = layout.base.copy()
    for name, layer, part in layout.drains:
        key = "hidden" if name in ("o", "down") else name
        columns = matrix(model, name).k_chunks(stream.chunk_k) // layout.parts[name]
        for worker in range(workers):
            first, chunk = schedule.tables[f"{key}.first"][worker], 0
            for agent, count in enumerate(layout.counts[name, layer][worker]):
                for _ in range(count):
                    (tile,) = unpack_chunks(packed[at[worker, agent]][None], stream.chunk(name))
                    group, column = divmod(chunk, columns)
                    expected = expected_tile(schedule, source, name, layer, first + group, part * columns + column)
                    assert np.array_equal(tile, expected), (name, layer, worker, agent, group, column)
                    at[worker, agent] += 1
                    chunk += 1
            assert chunk == columns * schedule.tables[f"{key}.count"][worker]
    assert at.max() == len(packed)
    assert {name for name, *_ in layout.drains} == set(MATRICES)
    assert sum(name == "down" for name, *_ in layout.drains) == parts * model.layers


def test_scales_that_stand_apart_are_those_of_the_rows() -> None:
    """In the order of the row groups, zeros behind the last row of the model; only where a row has one scale."""
    model = tiny_model(vocab=83)
    wanted = formats("int8-g64", "int8") | {"gate_up": "fp8"}
    schedule = tiny_plan(model, weights=wanted, workers=5, scales_apart=True)
    source, buffers = RandomTensors(model), {b.name: b for b in schedule.buffers}
    packed, scales = packed_arrays(schedule, source)
    assert set(scales) == {"scales.gate_up", "scales.lm_head"} == {name for name in buffers if "scales." in name}
    assert packed.nbytes == buffers["weights"].bytes
    assert all(buffers[name].shape == data.shape for name, data in scales.items())
    head = nearest(source.tensor("lm_head"), weight_format("int8")).scales[:, 0]
    assert np.array_equal(scales["scales.lm_head"][0, :83], head) and scales["scales.lm_head"].shape == (1, 88)
    up = nearest(source.tensor("l1.w_up"), weight_format("fp8")).scales[:, 0]
    assert np.array_equal(scales["scales.gate_up"][1].reshape(-1, 2, 4)[:, 1].reshape(-1), up)


def test_a_lane_reads_sixteen_consecutive_bytes() -> None:
    """Lane 4 n + q reads row n, columns 32 i + 8 q .. + 8 of the tile from bytes 512 i + 16 * (4 n + q)."""
    rows = np.arange(8 * 96, dtype=np.float32).reshape(1, 8, 96) % 128
    (chunk,) = pack_bf16(to_bf16_bits(rows), 96)
    for i in range(3):
        for lane in range(32):
            n, q = divmod(lane, 4)
            start = (512 * i + 16 * lane) // 2
            values = from_bf16_bits(chunk[start : start + 8])
            assert np.array_equal(values, rows[0, n, 32 * i + 8 * q : 32 * i + 8 * q + 8])


def test_spans_arrive_in_order_and_progress_ends_at_the_total() -> None:
    schedule = tiny_plan(tiny_model(), workers=5)
    source, spans, seen = RandomTensors(schedule.model), [], []
    pack_weights(
        schedule, source, lambda a, p: spans.append((a, len(p))), lambda count, total: seen.append((count, total))
    )
    assert [a for a, _ in spans] == list(np.cumsum([0, *(n for _, n in spans)])[:-1])
    assert seen[-1][0] == seen[-1][1] == 2 * 8 * schedule.streams[0].chunk_k * sum(n for _, n in spans)
    weights = next(b for b in schedule.buffers if b.name == "weights")
    assert seen[-1][1] == weights.bytes


@pytest.mark.parametrize(
    ("value", "bits"),
    [(1.0, 0x3F80), (1.00390625, 0x3F80), (1.01171875, 0x3F82), (1.0039063692092896, 0x3F81), (-2.5, 0xC020), (0.0, 0)],
)
def test_rounding_is_to_nearest_even(value: float, bits: int) -> None:
    one = np.array([value, 1.0000001], np.float32)  # the second keeps the shortcut for exact values out of the way
    assert int(to_bf16_bits(one)[0]) == bits
    assert round_bf16(one).view(np.uint32)[0] >> 16 == bits


def test_rounding_agrees_with_the_nearest_of_the_neighbours() -> None:
    values = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    rounded = round_bf16(values)
    assert np.array_equal(from_bf16_bits(to_bf16_bits(values)), rounded)
    below = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    above = (below.view(np.uint32) + np.uint32(0x10000)).view(np.float32)
    nearest = np.where(np.abs(values - below) <= np.abs(above - values), below, above)
    assert np.array_equal(rounded, nearest)
    assert np.array_equal(round_bf16(rounded), rounded)


def test_constants_fill_their_buffers() -> None:
    model = tiny_model(qkv_bias=True, qk_norm=True)
    schedule, source = tiny_plan(model), RandomTensors(model)
    found = constants(schedule, source)
    buffers = {b.name: b for b in schedule.buffers}
    assert set(found) == {"embedding", "norm", "rope", "qkv_bias", "q_norm", "k_norm"}
    assert all(data.shape == buffers[name].shape for name, data in found.items())
    assert np.array_equal(found["norm"][3], source.arrays["l1.ffn_norm"])
    assert np.array_equal(found["norm"][4], source.arrays["final_norm"])
    assert np.array_equal(from_bf16_bits(found["embedding"]), source.arrays["embed"])
    bias = np.concatenate([source.arrays[f"l1.b{x}"] for x in "qkv"])
    assert np.array_equal(found["qkv_bias"][1], bias)
    half = model.head_dim // 2
    angle = 5 * model.rope_theta ** (-np.arange(half) / half)
    np.testing.assert_allclose(found["rope"][5], np.concatenate([np.cos(angle), np.sin(angle)]), atol=1e-6)
