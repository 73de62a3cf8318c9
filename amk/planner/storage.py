"""Chunk size, shared-memory offsets and streams of a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from amk.models.matrices import MATRICES, ROWS_PER_GROUP, matrix, share_table
from amk.models.model_spec import ModelSpec
from amk.planner.formats import BF16, Formats, Layered, Runs, chunk_choices, layered
from amk.planner.settings import Settings, chunk_bytes_of, down_apart, in_place, per_vector, sum_slots, turns_of
from amk.planner.staging import DOWN, DOWN_SUMS, free_from, layout, shared, staged_arrays
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.memory import Alignment, Buffer, LayerChunks, Stream
from amk.schedule_ir.ops.attention import PARTIAL_EXTRA, sharers
from amk.schedule_ir.ops.combine import share_heads
from amk.schedule_ir.sampling import PICK, TALLY
from amk.schedule_ir.shared_memory import extent
from amk.targets.target import RESERVED_SMEM_PER_BLOCK, STATIC_SMEM_PER_BLOCK, Target

MBARRIER_BYTES = 8
Shares = dict[str, tuple[int, ...]]
Array = tuple[str, str, tuple[int, ...]]

LINE: Literal[128] = 128
"""Bytes of a cache line."""

MAX_SLOTS = 64
NO_PLAIN = 32
"""Columns of a bf16 chunk in a stream that has none."""

COMFORTABLE_SLOTS = 3
"""A ring of two slots waits for every copy; narrower chunks are chosen when that gives at least this many."""


def choose_chunks(model: ModelSpec, target: Target, settings: Settings, counts: Shares, formats: Layered) -> Runs:
    """The largest chunks with which the rings are comfortably deep, else those with the deepest rings."""
    enough = comfortable_slots(settings)
    fixed = fixed_buffers(model, settings, counts, formats)[1]
    used = {form for _, forms in formats for form in forms.values()}
    limit = chunk_bytes_of(settings, model, target, used, len(counts["hidden.count"]))
    choices = chunk_choices(
        model, limit // settings.row_groups, formats, settings.scales_apart, (settings.k_parts or 1) * settings.k_splits
    )
    depths = [ring_slots(target, settings, copied(settings, chunks), fixed) for chunks in choices]
    comfortable = [chunks for chunks, slots in zip(choices, depths, strict=True) if slots >= enough]
    return comfortable[0] if comfortable else choices[depths.index(max(depths))]


def choose_parts(model: ModelSpec, target: Target, settings: Settings, counts: Shares, formats: Layered) -> int:
    """The fewest steps for the product of `down` with which rings are comfortably deep, one where none is enough.

    For a single sequence always one: its input is small.
    """
    if settings.k_parts or settings.vectors == 1:
        return settings.k_parts or 1
    for parts in (1, 2, 4, 8):
        parted = replace(settings, k_parts=parts)
        chunks = choose_chunks(model, target, parted, counts, formats)
        if any(model.ffn % (parts * settings.k_splits * each["down"].columns) for _, each in chunks):
            continue
        fixed = fixed_buffers(model, parted, counts, formats)[1]
        if ring_slots(target, parted, copied(settings, chunks), fixed) >= comfortable_slots(settings):
            return parts
    return 1


def comfortable_slots(settings: Settings) -> int:
    """`COMFORTABLE_SLOTS`, or fewer where fewer are asked for."""
    return min(COMFORTABLE_SLOTS, settings.slots or COMFORTABLE_SLOTS)


def chunk_align(runs: Runs) -> Alignment:
    """Whole lines where that adds at most a 32nd to the largest chunk (and something): copies that begin within a line
    are slower by more than that. Measured on an H200: amk/lowering/LADDER.md.
    """
    most = max(chunk.bytes for _, chunks in runs for chunk in chunks.values())
    return LINE if 0 < -most % LINE <= most // 32 else 16


def largest(runs: Runs) -> int:
    """Bytes of a row group of the largest chunk with its padding: what that of every chunk takes in stream and slot."""
    align = chunk_align(runs)
    return max(-(-chunk.bytes // align) * align for _, chunks in runs for chunk in chunks.values())


def copied(settings: Settings, runs: Runs) -> int:
    """Bytes of a copy: of all row groups of the largest chunk."""
    return settings.row_groups * largest(runs)


def packed_bytes(model: ModelSpec, runs: Runs) -> int:
    """Bytes of all packed weight chunks, padding included."""
    head = matrix(model, "lm_head")
    count = head.groups * head.k_chunks(runs[0][1]["lm_head"].columns)
    for layers, chunks in runs:
        for shape in (matrix(model, name) for name in chunks):
            count += shape.groups * shape.k_chunks(chunks[shape.name].columns) * layers * shape.per_layer
    return count * largest(runs)


@dataclass(frozen=True)
class SharedPlan:
    buffers: list[Buffer]
    stream: Stream
    bytes: int


def fixed_buffers(
    model: ModelSpec, settings: Settings, counts: Shares, formats: Formats | Layered = BF16
) -> tuple[list[Buffer], int]:
    """The shared arrays other than the rings, and the offset behind them.

    The arrays of attention and those of products are never live at the same stage (`amk.schedule_ir.shared_memory`):
    with `overlay` they take the same bytes.
    """
    warps, dim = settings.warps, model.head_dim
    most = max(max(c) for name, c in counts.items() if name.endswith(".count") and not _elsewhere(settings, name))
    vectors = model.heads // model.kv_heads * settings.rows
    together, each = settings.vectors, per_vector(settings)
    apart = down_apart(model, settings)
    k_parts = -(-model.ffn * settings.x_parts // model.hidden) if apart else (settings.k_parts or 1) * settings.k_splits
    staged = staged_arrays(model, formats, together, k_parts, settings.x_parts)
    products: list[Array] = [("part", "f32", (sum_slots(settings, most), *each, ROWS_PER_GROUP))]
    turns = turns_of(settings, model, len(counts["hidden.count"]))
    attention: list[Array] = [("q", "f32", (turns * vectors, dim))]
    if not model.layers:
        attention = []
    elif in_place(model, settings):
        attention = [("q", "f32", (vectors, dim + PARTIAL_EXTRA))]
    else:
        sharing = turns * sharers(vectors, settings.rows, warps // min(turns, warps))
        attention.insert(0, ("att", "f32", (sharing, vectors, dim + PARTIAL_EXTRA)))
    kept: list[Array] = []
    if model.layers:
        kept.append(("residual", "f32", (*each, max(counts["hidden.count"]) * ROWS_PER_GROUP)))
    if model.graph.norm == "rms":
        kept.append(("ssq", "f32", (*each, warps)))
    else:
        kept += [("hidden", "f32", (*each, model.hidden)), ("moments", "f32", (*each, 2 * warps))]
    if settings.sampling != "greedy":
        kept += [("pick", "i32", (*each, warps, len(PICK)))]
        kept += [(name, "i32", (*each, warps, TALLY)) for name in ("tally", "gathered")]
    splits = max(1, len(counts["hidden.count"]) // model.kv_heads)
    mixed: list[Array] = []
    if together == 1 and model.layers:
        blocks = {layout("o", forms, together) != "bf16" for _, forms in layered(model, formats)}
        heads = max(share_heads(model.heads, dim, warps, block) for block in blocks)
        mixed.append(("mix", "f32", (warps, heads, splits, 2)))
    part = free_from(staged)
    first, end = _laid_out(products, part)
    if apart:
        wide = shared(DOWN, "bf16", -(-model.ffn // ((settings.k_parts or 1) * settings.k_splits)), 0, together)
        slots = sum_slots(settings, max(counts[f"{share_table('down', settings.k_splits)}.count"]))
        sums, last = _laid_out([(DOWN_SUMS, "f32", (slots, *each, ROWS_PER_GROUP))], free_from([wide]))
        first, end = [*first, wide, *sums], max(end, last)
    second, behind = _laid_out(attention, 0 if settings.overlay else end)
    # The weights of splits are used while x is written, so they may lie on the partial sums only.
    third, beyond = _laid_out(mixed, part if settings.overlay else behind)
    fourth, offset = _laid_out(kept, max(end, behind, beyond))
    return [*staged, *first, *second, *third, *fourth], offset


def _elsewhere(settings: Settings, table: str) -> bool:
    """Whether the sums of the rows of `table` lie in global memory, or there are none."""
    return (settings.headless or settings.head_sums == "global") and table == "lm_head.count"


def _laid_out(arrays: list[Array], offset: int) -> tuple[list[Buffer], int]:
    """Shared buffers one after the other from `offset`, and the offset behind them."""
    buffers = []
    for name, dtype, shape in arrays:
        buffer = Buffer.model_validate(
            {"name": name, "space": "shared", "dtype": dtype, "shape": shape, "offset": offset}
        )
        buffers.append(buffer)
        offset = -(-(offset + buffer.bytes) // 128) * 128
    return buffers, offset


def slot_bytes(target: Target, settings: Settings, chunk: int) -> int:
    """One slot of every agent's ring, with its barrier where copies use one; `chunk` in bytes, here and below."""
    return settings.warps * (chunk + (MBARRIER_BYTES if target.has("bulk_copy") else 0))


def shared_limit(target: Target, settings: Settings) -> int:
    """Bytes that a worker may use: a block's, or its part of the SM where workers share one."""
    return min(target.smem_per_block, target.smem_per_sm // settings.ctas_per_sm - RESERVED_SMEM_PER_BLOCK)


def ring_slots(target: Target, settings: Settings, chunk: int, fixed: int) -> int:
    """How deep the rings can be behind `fixed` bytes of other arrays; may be less than the two that work."""
    room = shared_limit(target, settings) - STATIC_SMEM_PER_BLOCK - fixed
    wanted = min(settings.slots or MAX_SLOTS, settings.max_ring_bytes // (settings.warps * chunk))
    return min(wanted, room // slot_bytes(target, settings, chunk), MAX_SLOTS)


def shared_plan(model: ModelSpec, target: Target, settings: Settings, runs: Runs, counts: Shares) -> SharedPlan:
    """Lay out one worker's shared memory: fixed arrays first, then the rings, as deep as fits.

    AMK401 if not even two slots per ring fit.
    """
    warps, chunk, bulk = settings.warps, copied(settings, runs), target.has("bulk_copy")
    wanted = tuple((count, {name: each.format for name, each in chunks.items()}) for count, chunks in runs)
    buffers, offset = fixed_buffers(model, settings, counts, wanted)
    slots = ring_slots(target, settings, chunk, offset)
    if slots < 2:
        need = STATIC_SMEM_PER_BLOCK + offset + 2 * slot_bytes(target, settings, chunk)
        has = f"a block has {shared_limit(target, settings):,}"
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
    plain = {chunk.columns for _, chunks in runs for chunk in chunks.values() if chunk.format == "bf16"}
    stream = Stream(
        name="weights", source="weights", ring="ring", full="full" if bulk else None, role="all", slots=slots,
        chunk_rows=16 if settings.row_groups == 2 else 8, chunk_k=plain.pop() if plain else NO_PLAIN,
        engine="bulk" if bulk else "cp_async", run_ahead=settings.run_ahead,
        refill_fence=settings.refill_fence and bulk,
        chunks={name: chunk for name, chunk in runs[0][1].items() if chunk.format != "bf16"}, later=_later(runs),
        chunk_align=chunk_align(runs),
    )  # fmt: skip
    return SharedPlan(buffers, stream, extent(buffers))


def _later(runs: Runs) -> tuple[LayerChunks, ...]:
    """What changes from run to run."""
    found, first = [], 0
    for (count, before), (_, chunks) in pairwise(runs):
        first += count
        found.append(LayerChunks(first=first, chunks={n: c for n, c in chunks.items() if c != before[n]}))
    return tuple(found)


def runs_of_stream(stream: Stream, layers: int) -> Runs:
    """The chunks of a planned stream, by runs of layers."""
    firsts = [0, *(change.first for change in stream.later), layers]
    return tuple((b - a, {name: stream.chunk(name, a) for name in MATRICES}) for a, b in pairwise(firsts))
