"""Chunk size, shared-memory offsets and streams of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from amk.planner.settings import Settings
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.matrices import MATRICES, ROWS_PER_GROUP, matrix
from amk.schedule_ir.memory import Buffer, Stream
from amk.schedule_ir.model_spec import ModelSpec
from amk.schedule_ir.ops.attention import PARTIAL_EXTRA
from amk.schedule_ir.target import Target

MBARRIER_BYTES = 8
RESERVED_SHARED = 1024
"""Shared memory the driver keeps for itself in every CTA (CUDA C++ Programming Guide, compute capability tables)."""


def chunk_k(model: ModelSpec, chunk_bytes: int) -> int:
    """The widest chunk, in columns, that divides every matrix's k, is a multiple of 32 and fits `chunk_bytes` in bf16.

    AMK011 if there is none: the tensor-core tile is 32 columns wide.
    """
    common = gcd(*(matrix(model, name).k for name in MATRICES))
    widest = chunk_bytes // (2 * ROWS_PER_GROUP)
    fits = [w for w in range(32, widest + 1, 32) if common % w == 0]
    if not fits:
        message = f"no chunk of 32 columns divides the widths of {model.name} (their common divisor is {common})"
        raise AmkError(Diagnostic("AMK011", message))
    return max(fits)


def packed_bytes(model: ModelSpec, width: int) -> int:
    """Bytes of all packed weight chunks, padding rows included."""
    per_layer = sum(matrix(model, n).groups * matrix(model, n).k_chunks(width) for n in MATRICES if n != "lm_head")
    head = matrix(model, "lm_head")
    chunks = per_layer * model.layers + head.groups * head.k_chunks(width)
    return chunks * ROWS_PER_GROUP * width * 2


@dataclass(frozen=True)
class SharedPlan:
    buffers: list[Buffer]
    stream: Stream
    bytes: int


def shared_plan(
    model: ModelSpec, target: Target, settings: Settings, width: int, counts: dict[str, tuple[int, ...]]
) -> SharedPlan:
    """Lay out one worker's shared memory: fixed arrays first, then the rings, as deep as fits.

    AMK401 if not even two slots per ring fit.
    """
    warps, dim = settings.warps, model.head_dim
    most = max(max(c) for name, c in counts.items() if name.endswith(".count"))
    residual_rows = max(counts["hidden.count"]) * ROWS_PER_GROUP
    x = max(model.hidden, model.heads * dim, model.ffn)
    group = model.heads // model.kv_heads
    wanted = [
        ("x", "bf16", (x,)),
        ("part", "f32", (most + warps, ROWS_PER_GROUP)),
        ("att", "f32", (warps, group, dim + PARTIAL_EXTRA)),
        ("q", "f32", (group, dim)),
        ("residual", "f32", (residual_rows,)),
        ("ssq", "f32", (warps,)),
    ]
    buffers, offset = [], 0
    for name, dtype, shape in wanted:
        buffer = Buffer.model_validate(
            {"name": name, "space": "shared", "dtype": dtype, "shape": shape, "offset": offset}
        )
        buffers.append(buffer)
        offset = -(-(offset + buffer.bytes) // 128) * 128
    chunk = ROWS_PER_GROUP * width * 2
    bulk = target.has("bulk_copy")
    per_slot = warps * (chunk + (MBARRIER_BYTES if bulk else 0))
    room = target.smem_per_block - offset - 128
    slots = min(settings.slots or 64, settings.max_ring_bytes // (warps * chunk), room // per_slot, 64)
    if slots < 2:
        need = offset + 2 * per_slot
        message = f"{model.name} on {target.name} needs {need:,} bytes of shared memory, a block has {target.smem_per_block:,}"
        raise AmkError(Diagnostic("AMK401", message))
    ring = Buffer(name="ring", space="shared", dtype="bf16", shape=(warps, slots, chunk // 2), offset=offset, align=128)
    offset += ring.bytes
    buffers.append(ring)
    if bulk:
        buffers.append(
            Buffer(name="full", space="shared", dtype="u32", shape=(warps, slots, 2), offset=offset, align=8)
        )
        offset += buffers[-1].bytes
    stream = Stream(
        name="weights", source="weights", ring="ring", full="full" if bulk else None, role="all", slots=slots,
        chunk_k=width, engine="bulk" if bulk else "cp_async", run_ahead=settings.run_ahead,
        refill_fence=settings.refill_fence and bulk,
    )  # fmt: skip
    return SharedPlan(buffers, stream, offset)
