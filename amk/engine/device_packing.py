"""Packed weights of an engine on a GPU: bf16 of a checkpoint is put in order there, codes are put in order by the CPU.

Rows that a file stores in bf16 go to the GPU as they stand in the file, a block of row groups at a time, and a kernel
writes them to the places of the stream (`pack.cuh`). Threads read the file into page-locked memory while the block
before is on its way. The kernel is not admitted: it is no kernel of a schedule. It reads blocks, and writes the packed
weights.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from amk.engine.backends.cuda_engine import CudaEngine
from amk.engine.packed_weights import Progress, packed_weights
from amk.lowering import refusal
from amk.lowering.compile import ARCHITECTURES, compile_cuda
from amk.lowering.device_memory import DeviceBuffer, MappedBuffer
from amk.lowering.launch import Device, Enqueue, Module
from amk.lowering.stream import Stream
from amk.models.matrices import ROWS_PER_GROUP, MatrixName, matrix
from amk.models.row_groups import StoredSource, TensorSource, rows_of_groups
from amk.schedule_ir.layout import matrix_places, stream_layout
from amk.schedule_ir.schedule import Schedule
from amk.weights.bfloat import F32, Bits
from amk.weights.quantised import Quantiser

KERNEL: Final = "amk_pack"
SOURCE: Final = f"""#include "amk/pack.cuh"
extern "C" __global__ void __launch_bounds__(256) {KERNEL}(const __grid_constant__ amk::pack::Rows rows) {{
  amk::pack::pack(rows);
}}
"""
WARPS = 8
"""Of a block: pieces that it makes."""
ARGUMENT = np.dtype(
    [(name, np.uint64) for name in ("rows", "places", "chunks", "infinite")]
    + [(name, np.uint32) for name in ("count", "across", "columns", "length", "k", "parts")]
)
"""`amk::pack::Rows`."""
BLOCK_BYTES = 32 << 20
"""Of rows that are on their way together."""
BLOCKS = 2
"""One is read while the other is copied."""
THREADS = 8
"""At most, that read."""
_READ_BYTES = 1 << 20
"""By a thread at a time."""


class _Block:
    """Rows and the places of their pieces, in page-locked memory and on the GPU, and the stream that orders what is
    done with them."""

    def __init__(self, device: Device, nbytes: int, stack: ExitStack) -> None:
        self.stream = stack.enter_context(Stream(device))
        self._host = stack.enter_context(MappedBuffer(device, nbytes // 4))
        self._there = stack.enter_context(DeviceBuffer(device, nbytes))
        self.address = self._there.address

    def copy(self, parts: list[NDArray[Any]], pool: ThreadPoolExecutor) -> None:
        """Copy arrays, one behind the other."""
        host, at, reads = self._host.words.view(np.uint8), 0, []
        for part in parts:
            bytes_ = part.reshape(-1).view(np.uint8)
            for first in range(0, len(bytes_), _READ_BYTES):
                read = bytes_[first : first + _READ_BYTES]
                reads.append((host[at + first : at + first + len(read)], read))
            at += len(bytes_)
        for _ in pool.map(np.copyto, *zip(*reads, strict=True)):
            pass
        self._there.upload_from(self._host.host_address, at, 0, self.stream.handle)


def pack_into(
    engine: CudaEngine, source: TensorSource, quantise: Quantiser, progress: Progress | None = None
) -> dict[str, F32]:
    """Write the packed weights of an engine. Returned: scales that stand apart from the chunks, by buffer.

    progress: called with (bytes packed, bytes in all). AMK013 for a weight that is NaN or infinite.
    """
    (stream,) = engine.schedule.streams
    known = engine.device.arch in ARCHITECTURES  # of the GPU that is there, not of the target
    if known and isinstance(source, StoredSource) and is_stored(engine.schedule, source) and _has_room(engine):
        _pack_stored(engine, source, progress)
        return {}

    def upload(first: int, packed: Bits) -> None:
        engine.upload(stream.source, packed, first * stream.chunk_bytes)

    return packed_weights(engine.schedule, source, upload, progress, quantise)


def _has_room(engine: CudaEngine) -> bool:
    """For blocks, flags, and the kernel."""
    return engine.device.free_bytes() > 4 * BLOCKS * BLOCK_BYTES


def is_stored(schedule: Schedule, source: StoredSource) -> bool:
    """Whether all matrices of the only stream stay bf16 in chunks without padding, and are stored so."""
    (stream,) = schedule.streams
    matrices = {(name, layer) for name, layer, _ in stream_layout(schedule, stream).packed}
    return all(
        stream.chunk(name, layer).format == "bf16" and source.stored_bits(tensor, slice(first, first + 1)) is not None
        for name, layer in matrices
        for tensor, first, _ in rows_of_groups(schedule.model, name, layer, 0, matrix(schedule.model, name).groups)
    )


def blocks_of(schedule: Schedule, name: MatrixName) -> Iterator[range]:
    """The row groups of a matrix, in runs whose rows take at most BLOCK_BYTES, or one group."""
    shape = matrix(schedule.model, name)
    each = max(1, BLOCK_BYTES // (2 * ROWS_PER_GROUP * shape.k))
    for first in range(0, shape.groups, each):
        yield range(first, min(first + each, shape.groups))


def argument(schedule: Schedule, name: MatrixName, layer: int, length: int, **addresses: int) -> NDArray[Any]:
    """The kernel's parameter for a run of row groups with `length` rows. addresses: fields of `ARGUMENT`, and `count`,
    the pieces of the run."""
    (stream,) = schedule.streams
    shape, chunk, product = matrix(schedule.model, name), stream.chunk(name, layer), schedule.model.graph.products[name]
    values = addresses | {
        "across": shape.k_chunks(chunk.columns), "columns": chunk.columns,
        "length": length, "k": shape.k, "parts": len(product.rows) if product.in_turn else 1,
    }  # fmt: skip
    block = np.zeros((), ARGUMENT)
    for field, value in values.items():
        block[field] = value
    return block


def _pack_stored(engine: CudaEngine, source: StoredSource, progress: Progress | None) -> None:
    schedule, device = engine.schedule, engine.device
    (stream,) = schedule.streams
    places = matrix_places(schedule, stream)
    runs = [
        (name, layer, groups, pieces[groups.start * across : groups.stop * across])
        for (name, layer), pieces in places.items()
        for across in [matrix(schedule.model, name).k_chunks(stream.chunk(name, layer).columns)]
        for groups in blocks_of(schedule, name)
    ]
    most = max(
        2 * ROWS_PER_GROUP * matrix(schedule.model, name).k * len(groups) + pieces.nbytes
        for name, _, groups, pieces in runs
    )
    done, total = 0, sum(map(len, places.values())) * stream.piece_bytes
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(min(THREADS, len(os.sched_getaffinity(0)))))
        code = pool.submit(compile_cuda, SOURCE, device.arch)
        blocks = [_Block(device, most, stack) for _ in range(BLOCKS)]
        stack.callback(pool.shutdown)  # before that is freed which its threads write
        flags = np.zeros(max(len(pieces) for *_, pieces in runs), np.uint32)
        infinite = stack.enter_context(DeviceBuffer.of(device, flags))
        kernel = stack.enter_context(Module(device, code.result().cubin)).kernel(KERNEL)
        for block, (name, layer, groups, pieces) in zip(cycle(blocks), runs, strict=False):
            rows = _rows(schedule, source, name, layer, groups)
            block.stream.synchronise()  # the GPU has what was in it
            block.copy([*rows, pieces], pool)
            parameter = argument(
                schedule, name, layer, sum(map(len, rows)), count=len(pieces), rows=block.address,
                places=block.address + sum(part.nbytes for part in rows),
                chunks=engine.buffers[stream.source].address, infinite=infinite.address,
            )  # fmt: skip
            Enqueue(kernel, -(-len(pieces) // WARPS), 32 * WARPS)(parameter, block.stream.handle)
            done += len(pieces) * stream.piece_bytes
            if progress:
                progress(done, total)
        for block in blocks:
            block.stream.synchronise()
        if infinite.download(np.uint32, len(flags)).any():
            raise _named(schedule, source)


def _rows(
    schedule: Schedule, source: StoredSource, name: MatrixName, layer: int, groups: range
) -> list[NDArray[np.uint16]]:
    """Of some groups, by tensor."""
    found = []
    for tensor, first, end in rows_of_groups(schedule.model, name, layer, groups.start, groups.stop):
        stored = source.stored_bits(tensor, slice(first, end))
        assert stored is not None
        found.append(np.ascontiguousarray(stored))
    return found


def _named(schedule: Schedule, source: StoredSource) -> Exception:
    """AMK013, by the source, which says which value it is."""
    for name, layer, _ in stream_layout(schedule, schedule.streams[0]).packed:
        for tensor, *_ in rows_of_groups(schedule.model, name, layer, 0, matrix(schedule.model, name).groups):
            source.bits(tensor, slice(None))
    return refusal.internal("a weight is infinite or no number, which its file does not show")
