"""Packed weights of an engine on a GPU: bf16 of a checkpoint is put in order there, codes are put in order by the CPU.

Rows that a file stores in bf16 go to the GPU as they stand in the file, through a buffer of a few row groups, and a
kernel writes them to the places of the stream (`pack.cuh`), in about the time that reading the file takes. The kernel
is not admitted: it is no kernel of a schedule. It reads the buffer, and writes the packed weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from amk.engine.backends.cuda_engine import CudaEngine
from amk.engine.packed_weights import Progress, packed_weights
from amk.lowering import refusal
from amk.lowering.compile import ARCHITECTURES, compile_cuda
from amk.lowering.device_memory import DeviceBuffer
from amk.lowering.launch import Enqueue, Module
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
BLOCK_BYTES = 64 << 20
"""Of rows that the GPU holds beside the packed weights."""
_IN_ORDER = 0
"""The stream whose work follows copies, and which copies follow."""


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
    """For a block, the pieces' places and flags, and the kernel."""
    return engine.device.free_bytes() > 4 * BLOCK_BYTES


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


def argument(schedule: Schedule, name: MatrixName, layer: int, length: int, **addresses: int) -> np.ndarray[Any, Any]:
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
    done, total = 0, sum(map(len, places.values())) * stream.piece_bytes
    most = max(matrix(schedule.model, name).k for name, _ in places) * 2 * ROWS_PER_GROUP
    rows = DeviceBuffer(device, max(BLOCK_BYTES, most))
    where = DeviceBuffer(device, max(each.nbytes for each in places.values()))
    infinite = DeviceBuffer.of(device, np.zeros(where.nbytes // 4, np.uint32))
    code = compile_cuda(SOURCE, device.arch).cubin
    with rows, where, infinite, Module(device, code) as module:
        kernel = module.kernel(KERNEL)
        for (name, layer), pieces in places.items():
            across = matrix(schedule.model, name).k_chunks(stream.chunk(name, layer).columns)
            for groups in blocks_of(schedule, name):
                mine = pieces[groups.start * across : groups.stop * across]
                length = _rows_to(rows, schedule, source, name, layer, groups)
                where.upload(mine)
                block = argument(
                    schedule, name, layer, length, count=len(mine), rows=rows.address, places=where.address,
                    chunks=engine.buffers[stream.source].address, infinite=infinite.address,
                )  # fmt: skip
                Enqueue(kernel, -(-len(mine) // WARPS), 32 * WARPS)(block, _IN_ORDER)
                done += len(mine) * stream.piece_bytes
                if progress:
                    progress(done, total)
        if infinite.download(np.uint32, infinite.nbytes // 4).any():
            raise _named(schedule, source)


def _rows_to(
    buffer: DeviceBuffer, schedule: Schedule, source: StoredSource, name: MatrixName, layer: int, groups: range
) -> int:
    """Copy the rows of some groups, a tensor behind the other; how many rows they are."""
    at = length = 0
    for tensor, first, end in rows_of_groups(schedule.model, name, layer, groups.start, groups.stop):
        stored = source.stored_bits(tensor, slice(first, end))
        assert stored is not None
        buffer.upload(np.ascontiguousarray(stored), at)
        at, length = at + stored.nbytes, length + len(stored)
    return length


def _named(schedule: Schedule, source: StoredSource) -> Exception:
    """AMK013, by the source, which says which value it is."""
    for name, layer, _ in stream_layout(schedule, schedule.streams[0]).packed:
        for tensor, *_ in rows_of_groups(schedule.model, name, layer, 0, matrix(schedule.model, name).groups):
            source.bits(tensor, slice(None))
    return refusal.internal("a weight is infinite or no number, which its file does not show")
