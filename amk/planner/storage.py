"""Chunk size, shared-memory offsets and streams of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from amk.planner.settings import Settings
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.matrices import MATRICES, ROWS_PER_GROUP, matrix
from amk.schedule_ir.memory import Buffer, Dtype, Stream
from amk.schedule_ir.model_spec import ModelSpec
from amk.schedule_ir.ops.attention import PARTIAL_EXTRA
from amk.schedule_ir.ops.combine import share_heads
from amk.schedule_ir.target import Target

MBARRIER_BYTES = 8
Shares = dict[str, tuple[int, ...]]

STATIC_SHARED = 1024
"""Static shared memory of the generated kernel: the watchdog's words, padded to the alignment of what follows them."""

MAX_SLOTS = 64
COMFORTABLE_SLOTS = 3
"""A ring of two slots waits for every copy; narrower chunks are chosen when that gives at least this many."""


def chunk_widths(model: ModelSpec, chunk_bytes: int) -> list[int]:
    """Columns a chunk may have, widest first: divisors of every matrix's k, multiples of 32, at most `chunk_bytes`.

    AMK011 if there is none: the tensor-core tile is 32 columns wide.
    """
    common = gcd(*(matrix(model, name).k for name in MATRICES))
    widest = chunk_bytes // (2 * ROWS_PER_GROUP)
    fits = [w for w in range(32, widest + 1, 32) if common % w == 0]
    if not fits:
        message = f"no chunk of 32 columns divides the widths of {model.name} (their common divisor is {common})"
        raise AmkError(Diagnostic("AMK011", message))
    return fits[::-1]


def chunk_k(model: ModelSpec, target: Target, settings: Settings, counts: Shares) -> int:
    """The widest chunk with which the rings are comfortably deep, else the one with the deepest rings."""
    enough = min(COMFORTABLE_SLOTS, settings.slots or COMFORTABLE_SLOTS)
    fixed = fixed_buffers(model, settings, counts)[1]
    depths = {w: ring_slots(target, settings, w, fixed) for w in chunk_widths(model, settings.chunk_bytes)}
    comfortable = [width for width, slots in depths.items() if slots >= enough]
    return comfortable[0] if comfortable else max(depths, key=lambda width: (depths[width], width))


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


def fixed_buffers(model: ModelSpec, settings: Settings, counts: Shares) -> tuple[list[Buffer], int]:
    """The shared arrays other than the rings, and the offset behind them."""
    warps, dim = settings.warps, model.head_dim
    most = max(max(c) for name, c in counts.items() if name.endswith(".count"))
    group = model.heads // model.kv_heads
    splits = max(1, len(counts["hidden.count"]) // model.kv_heads)
    # Attention's arrays live while x is free, from the end of the QKV product to the first store of `combine`, and its
    # weights of splits while no partial sums are kept.
    regions: list[list[tuple[str, Dtype, tuple[int, ...]]]] = [
        [("x", "bf16", (max(model.hidden, model.heads * dim, model.ffn),))],
        [("att", "f32", (warps, group, dim + PARTIAL_EXTRA)), ("q", "f32", (group, dim))],
        [("part", "f32", (most + warps, ROWS_PER_GROUP))],
        [("mix", "f32", (warps, share_heads(model.heads, dim, warps), splits, 2))],
        [("residual", "f32", (max(counts["hidden.count"]) * ROWS_PER_GROUP,))],
        [("ssq", "f32", (warps,))],
    ]
    buffers: list[Buffer] = []
    begin = end = 0
    for names in regions:
        offset = begin if names[0][0] in ("att", "mix") else end
        begin = offset
        for name, dtype, shape in names:
            buffers.append(Buffer(name=name, space="shared", dtype=dtype, shape=shape, offset=offset))
            offset = -(-(offset + buffers[-1].bytes) // 128) * 128
        end = max(end, offset)
    return buffers, end


def slot_bytes(target: Target, settings: Settings, width: int) -> int:
    """One slot of every agent's ring, with its barrier where copies use one."""
    return settings.warps * (ROWS_PER_GROUP * width * 2 + (MBARRIER_BYTES if target.has("bulk_copy") else 0))


def ring_slots(target: Target, settings: Settings, width: int, fixed: int) -> int:
    """How deep the rings can be behind `fixed` bytes of other arrays; may be less than the two that work."""
    chunk = ROWS_PER_GROUP * width * 2
    room = target.smem_per_block - STATIC_SHARED - fixed
    wanted = min(settings.slots or MAX_SLOTS, settings.max_ring_bytes // (settings.warps * chunk))
    return min(wanted, room // slot_bytes(target, settings, width), MAX_SLOTS)


def shared_plan(model: ModelSpec, target: Target, settings: Settings, width: int, counts: Shares) -> SharedPlan:
    """Lay out one worker's shared memory: fixed arrays first, then the rings, as deep as fits.

    AMK401 if not even two slots per ring fit.
    """
    warps, chunk, bulk = settings.warps, ROWS_PER_GROUP * width * 2, target.has("bulk_copy")
    buffers, offset = fixed_buffers(model, settings, counts)
    slots = ring_slots(target, settings, width, offset)
    if slots < 2:
        need = STATIC_SHARED + offset + 2 * slot_bytes(target, settings, width)
        has = f"a block has {target.smem_per_block:,}"
        message = f"{model.name} on {target.name} needs {need:,} bytes of shared memory, {has}"
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
