"""Weights in the order the streams read them.

A chunk is a tile W[8 rows, columns]; its bytes are chunks.py's business. Where each chunk stands is
layout.stream_layout; which tensor rows make a group of 8 is matrices.tensor_rows.

One worker's weights are contiguous, so they are packed worker by worker: memory is bounded by the largest worker's
share and one block of tensor rows, whatever the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from amk.schedule_ir.bfloat import F32, Bits
from amk.schedule_ir.chunks import pack_bf16, pack_quantised
from amk.schedule_ir.layout import StreamLayout, stream_layout
from amk.schedule_ir.matrices import ROWS_PER_GROUP, MatrixName, matrix
from amk.schedule_ir.memory import Stream
from amk.schedule_ir.model_spec import ModelSpec
from amk.schedule_ir.quantised import Quantiser, nearest
from amk.schedule_ir.schedule import Schedule
from amk.schedule_ir.weight_format import Chunk

BLOCK_ELEMENTS = 1 << 22
"""Elements of a matrix converted at a time: 16 MiB of float32."""


class TensorSource(Protocol):
    """Rows of a named tensor as float32; a checkpoint is one."""

    def tensor(self, name: str, rows: slice = ...) -> F32: ...


def group_rows(source: TensorSource, model: ModelSpec, name: MatrixName, layer: int, first: int, last: int) -> F32:
    """Row groups [first, last) of a matrix, f32 [last - first, 8, k]; rows past the matrix's end are zero."""
    if name == "gate_up":
        return _gate_up_rows(source, model, layer, first, last)
    shape = matrix(model, name)
    lo, hi = first * ROWS_PER_GROUP, min(last * ROWS_PER_GROUP, shape.rows)
    pieces = [source.tensor(tensor, slice(a, b)) for tensor, a, b in _row_runs(model, name, layer, lo, hi)]
    padding = last * ROWS_PER_GROUP - hi
    if padding:
        pieces.append(np.zeros((padding, shape.k), np.float32))
    rows = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    return rows.reshape(last - first, ROWS_PER_GROUP, shape.k)


def _row_runs(model: ModelSpec, name: MatrixName, layer: int, lo: int, hi: int) -> list[tuple[str, int, int]]:
    """(tensor, first row, end row) of logical rows [lo, hi) of a matrix whose rows keep their order."""
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    parts: list[tuple[str, int]]
    match name:
        case "qkv":
            parts = [(f"l{layer}.wq", q), (f"l{layer}.wk", kv), (f"l{layer}.wv", kv)]
        case "lm_head":
            parts = [("lm_head", model.vocab)]
        case _:
            parts = [(f"l{layer}.{'wo' if name == 'o' else 'w_down'}", model.hidden)]
    runs, start = [], 0
    for tensor, rows in parts:
        a, b = max(lo, start), min(hi, start + rows)
        if a < b:
            runs.append((tensor, a - start, b - start))
        start += rows
    return runs


def _gate_up_rows(source: TensorSource, model: ModelSpec, layer: int, first: int, last: int) -> F32:
    """Four gate rows, then four up rows, in every group."""
    half = ROWS_PER_GROUP // 2
    lo, hi = first * half, min(last * half, model.ffn)
    out = np.zeros((last - first, 2, half, model.hidden), np.float32)
    for place, tensor in enumerate(("w_gate", "w_up")):
        rows = source.tensor(f"l{layer}.{tensor}", slice(lo, hi))
        whole = (hi - lo) // half
        out[:whole, place] = rows[: whole * half].reshape(whole, half, model.hidden)
        if whole < last - first:
            out[whole, place, : hi - lo - whole * half] = rows[whole * half :]
    return out.reshape(last - first, ROWS_PER_GROUP, model.hidden)


def encoded(rows: F32, chunk: Chunk, size: int, quantise: Quantiser) -> Bits:
    """f32 [groups, 8, k] -> chunks of `size` bytes, 16-bit words [groups * k_chunks, size / 2], group-major."""
    if chunk.format == "bf16":
        words = pack_bf16(rows, chunk.columns)
    else:
        words = pack_quantised(quantise(rows.reshape(-1, rows.shape[2]), chunk.weights), chunk).view(np.uint16)
    return np.pad(words, ((0, 0), (0, size // 2 - words.shape[1]))) if size // 2 > words.shape[1] else words


@dataclass(frozen=True)
class Packer:
    """Packs the weights of one stream from a source of tensors."""

    schedule: Schedule
    stream: Stream
    source: TensorSource
    layout: StreamLayout
    quantise: Quantiser = nearest

    def worker(self, worker: int) -> Bits:
        """All chunks of `worker`, 16-bit words [chunks, chunk_bytes / 2], its agents one after the other."""
        chunks = int(self.layout.totals[worker].sum())
        out = np.zeros((chunks, self.stream.chunk_bytes // 2), np.uint16)
        ends = np.cumsum(self.layout.totals[worker])
        place = (ends - self.layout.totals[worker]).tolist()
        for name, layer in self.layout.drains:
            counts = self.layout.counts[name][worker].tolist()
            self._scatter(out, place, counts, self._sequence(worker, name, layer))
        return out

    def _sequence(self, worker: int, name: MatrixName, layer: int) -> Iterator[Bits]:
        """The worker's group-major chunks of one matrix, in blocks."""
        model, tables = self.schedule.model, self.schedule.tables
        key = "hidden" if name in ("o", "down") else name
        first, count = tables[f"{key}.first"][worker], tables[f"{key}.count"][worker]
        step = max(1, BLOCK_ELEMENTS // (ROWS_PER_GROUP * matrix(model, name).k))
        for group in range(first, first + count, step):
            rows = group_rows(self.source, model, name, layer, group, min(group + step, first + count))
            yield encoded(rows, self.stream.chunk(name), self.stream.chunk_bytes, self.quantise)

    @staticmethod
    def _scatter(out: Bits, place: list[int], counts: list[int], blocks: Iterator[Bits]) -> None:
        """Deal the chunks of one drain to the agents: each takes the next counts[a], at place[a], which advances."""
        agent, left = 0, counts[0]
        for block in blocks:
            done = 0
            while done < len(block):
                while left == 0:
                    agent += 1
                    left = counts[agent]
                take = min(left, len(block) - done)
                out[place[agent] : place[agent] + take] = block[done : done + take]
                place[agent], left, done = place[agent] + take, left - take, done + take


Sink = Callable[[int, Bits], None]
"""Receives (first chunk, 16-bit words [chunks, chunk_bytes / 2]), contiguous in the packed buffer, ascending."""


def pack_weights(
    schedule: Schedule,
    source: TensorSource,
    sink: Sink,
    progress: Callable[[int, int], None] | None = None,
    quantise: Quantiser = nearest,
) -> None:
    """Pack every stream, one call of `sink` per worker. progress is told (bytes packed, bytes in all)."""
    for stream in schedule.streams:
        layout = stream_layout(schedule, stream)
        packer = Packer(schedule, stream, source, layout, quantise)
        total, done = int(layout.totals.sum()) * stream.chunk_bytes, 0
        for worker in range(schedule.launch.workers):
            packed = packer.worker(worker)
            if len(packed):
                sink(int(layout.base[worker, 0]), packed)
            done += packed.nbytes
            if progress:
                progress(done, total)


def packed_array(schedule: Schedule, source: TensorSource, quantise: Quantiser = nearest) -> Bits:
    """The whole packed buffer of a schedule with one stream, 16-bit words [chunks, chunk_bytes / 2]."""
    (stream,) = schedule.streams
    chunks = int(stream_layout(schedule, stream).totals.sum())
    out = np.zeros((chunks, stream.chunk_bytes // 2), np.uint16)

    def place(first: int, packed: Bits) -> None:
        out[first : first + len(packed)] = packed

    pack_weights(schedule, source, place, quantise=quantise)
    return out
