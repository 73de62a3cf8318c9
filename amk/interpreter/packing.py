"""Weights in the order the streams read them.

A chunk is a tile W[8 rows, columns]; its bytes are chunks.py's business. Where each chunk stands is
layout.stream_layout; which tensor rows make a group of 8 is matrices.tensor_rows.

One worker's weights are contiguous, so they are packed worker by worker, in as many threads as there are processors:
memory is bounded by two workers' shares and two blocks of tensor rows a thread, whatever the model.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np

from amk.models.matrices import (
    K_SPLIT,
    ROWS_PER_GROUP,
    MatrixName,
    matrices_of,
    matrix,
    scale_buffer,
    scale_shape,
)
from amk.models.row_groups import TensorSource, group_bits, quantised_groups
from amk.schedule_ir.layout import StreamLayout, stream_layout
from amk.schedule_ir.memory import Stream
from amk.schedule_ir.schedule import Schedule
from amk.weights.bfloat import F32, Bits
from amk.weights.chunks import pack_bf16, pack_quantised
from amk.weights.quantised import Quantiser, nearest

BLOCK_ELEMENTS = 1 << 22
"""Elements of a matrix converted at a time: 16 MiB of float32."""
MOST_THREADS = 16
"""Each holds the share of a worker."""

Result = TypeVar("Result")


def filled(words: Bits, size: int) -> Bits:
    """Chunks [n, words] -> chunks of `size` bytes, zeros behind."""
    short = size // 2 - words.shape[1]
    return np.pad(words, ((0, 0), (0, short))) if short else words


@dataclass(frozen=True)
class Packer:
    """Packs the weights of one stream from a source of tensors. scales: those of rows that stand apart, by buffer."""

    schedule: Schedule
    stream: Stream
    source: TensorSource
    layout: StreamLayout
    quantise: Quantiser = nearest
    scales: dict[str, F32] = field(default_factory=dict)

    def worker(self, worker: int) -> Bits:
        """All chunks of `worker`, 16-bit words [chunks, chunk_bytes / 2], its agents one after the other."""
        chunks = int(self.layout.places[worker].sum())
        out = np.zeros((chunks, self.stream.chunk_bytes // 2), np.uint16)
        ends = np.cumsum(self.layout.places[worker])
        place = (ends - self.layout.places[worker]).tolist()
        for name, layer, part in self.layout.packed:
            counts = self.layout.counts[name, layer][worker].tolist()
            self._scatter(out, place, counts, self._sequence(worker, name, layer, part))
        return out

    def _sequence(self, worker: int, name: MatrixName, layer: int, part: int) -> Iterator[Bits]:
        """The worker's group-major chunks of one part of a matrix, in blocks."""
        model, tables = self.schedule.model, self.schedule.tables
        key, splits = self.layout.shares(name), self.layout.splits[name]
        index = tables[f"{K_SPLIT}.index"][worker] if splits > 1 else 0
        first, count = tables[f"{key}.first"][worker], tables[f"{key}.count"][worker]
        each = self.stream.row_groups
        step = max(1, BLOCK_ELEMENTS // (ROWS_PER_GROUP * matrix(model, name).k) // each) * each
        for group in range(first, first + count, step):
            groups = range(group, min(group + step, first + count))
            chunks = self._chunks(name, layer, groups)
            own = chunks.reshape(len(groups), splits, self.layout.parts[name], -1, chunks.shape[1])[:, index, part]
            pieces = own.reshape(len(groups) // each, each, -1, chunks.shape[1]).swapaxes(1, 2)
            filled_up = filled(pieces.reshape(-1, chunks.shape[1]), self.piece_bytes)
            yield filled_up.reshape(-1, self.piece_bytes * each // 2)

    @cached_property
    def piece_bytes(self) -> int:
        """Of a row group of a chunk."""
        return self.stream.piece_bytes

    def _chunks(self, name: MatrixName, layer: int, groups: range) -> Bits:
        """16-bit words [chunks, chunk.bytes / 2] of some row groups of a matrix, group-major."""
        model, chunk = self.schedule.model, self.stream.chunk(name, layer)
        if chunk.format == "bf16":
            return pack_bf16(group_bits(self.source, model, name, layer, groups.start, groups.stop), chunk.columns)
        codes = quantised_groups(self.source, model, name, layer, groups, chunk.weights, self.quantise)
        if chunk.apart:
            rows = slice(groups.start * ROWS_PER_GROUP, groups.stop * ROWS_PER_GROUP)
            self.scales[scale_buffer(name)][layer, rows] = codes.scales[:, 0]
        return pack_quantised(codes, chunk).view(np.uint16)

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
) -> dict[str, F32]:
    """Pack every stream, one call of `sink` per worker. progress is told (bytes packed, bytes in all).

    Returned: the scales that stand apart from the chunks, by buffer (`matrices.scale_buffer`).
    """
    scales: dict[str, F32] = {}
    for stream in schedule.streams:
        layout = stream_layout(schedule, stream)
        scales |= {
            scale_buffer(name): np.zeros(scale_shape(schedule.model, name), np.float32)
            for name in matrices_of(schedule.model)
            if any(chunk.apart for chunk in stream.kinds(name))
        }
        packer = Packer(schedule, stream, source, layout, quantise, scales)
        total, done = int(layout.places.sum()) * stream.chunk_bytes, 0
        for worker, packed in enumerate(ahead(packer.worker, schedule.launch.workers)):
            if len(packed):
                sink(int(layout.base[worker, 0]), packed)
            done += packed.nbytes
            if progress:
                progress(done, total)
    return scales


def ahead(work: Callable[[int], Result], count: int) -> Iterator[Result]:
    """The results for 0, 1, .. count - 1 in order, of which a few are made ahead, in threads."""
    threads = min(MOST_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for number in range(count):
                waiting.append(pool.submit(work, number))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def packed_array(schedule: Schedule, source: TensorSource, quantise: Quantiser = nearest) -> Bits:
    """The whole packed buffer of a schedule with one stream, 16-bit words [chunks, chunk_bytes / 2]."""
    return packed_arrays(schedule, source, quantise)[0]


def packed_arrays(
    schedule: Schedule, source: TensorSource, quantise: Quantiser = nearest
) -> tuple[Bits, dict[str, F32]]:
    """`packed_array`, and the scales that stand apart from the chunks, by buffer."""
    (stream,) = schedule.streams
    chunks = int(stream_layout(schedule, stream).places.sum())
    out = np.zeros((chunks, stream.chunk_bytes // 2), np.uint16)

    def place(first: int, packed: Bits) -> None:
        out[first : first + len(packed)] = packed

    return out, pack_weights(schedule, source, place, quantise=quantise)
