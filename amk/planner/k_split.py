"""What cutting along K does to shared memory: `python -m amk.planner.k_split` prints the README's tables.

A chunk is 8 rows by K / k_split columns of the widest matrix. The agents' partial sums are added in a fixed order. A
warp drains one slot while the others of its ring are in flight, so F bytes in flight take

    slots = 1 + ceil(F / (warps * chunk))        ring = warps * slots * (chunk + barrier)

The peak is the ring and the other arrays (`storage.fixed_buffers`, the planner's own arithmetic). That is the first
table. A chunk larger than F is in flight as a whole, so coarse rows of the table hold more than F.

The second table holds the bytes in flight equal. It compares copies of `COARSE` bytes and the input of `down` whole
with both cut `FINER` times as finely (`Settings.k_parts`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace

from amk.models.matrices import MATRICES, ROWS_PER_GROUP, matrix
from amk.models.model import load_model
from amk.models.model_spec import ModelSpec
from amk.planner.decode import choose_workers, plan
from amk.planner.formats import chunk_widths
from amk.planner.settings import FAST, Settings
from amk.planner.shares import row_tables
from amk.planner.storage import fixed_buffers, slot_bytes
from amk.simulator.kinds import errors_on
from amk.simulator.predict import step_ms
from amk.targets.target import STATIC_SMEM_PER_BLOCK, Target, load_target

IN_FLIGHT = 24 * 1024
"""Bytes in flight of the table: what the l4 plans reach beside their other arrays."""

CONTEXT = 2048
POS = 128


@dataclass(frozen=True)
class Row:
    """k_split 1: a chunk is whole rows of the widest matrix. ms: simulated, None where it does not fit."""

    model: str
    target: str
    k_split: int
    chunk: int
    slots: int
    peak: int
    overlaid: int
    ms: float | None


def rows(model: ModelSpec, target: Target, in_flight: int = IN_FLIGHT, settings: Settings = FAST) -> Iterator[Row]:
    """From no split to the narrowest chunks of the model."""
    widest = max(matrix(model, name).k for name in MATRICES)
    for columns in [widest, *chunk_widths(model, 2 * ROWS_PER_GROUP * widest)]:
        yield row(model, target, columns, in_flight, settings)


def row(model: ModelSpec, target: Target, columns: int, in_flight: int, settings: Settings = FAST) -> Row:
    widest = max(matrix(model, name).k for name in MATRICES)
    chunk = 2 * ROWS_PER_GROUP * columns
    slots = 1 + -(-in_flight // (settings.warps * chunk))
    counts = row_tables(model, choose_workers(model, target))
    ring = slots * slot_bytes(target, settings, chunk)
    plain, overlaid = (fixed_buffers(model, replace(settings, overlay=o), counts)[1] + ring for o in (False, True))
    chosen = replace(settings, plan="search", chunk_bytes=chunk, slots=slots, max_ring_bytes=1 << 20, overlay=True)
    ms = None
    if overlaid + STATIC_SMEM_PER_BLOCK <= target.smem_per_block:
        ms = step_ms(plan(model, target, settings=chosen, max_context=CONTEXT), POS)
    return Row(model.name, target.name, -(-widest // columns), chunk, slots, plain, overlaid, ms)


COARSE = 2048
FINER = 4
EQUAL = 16 * 1024
BATCHES = (1, 2, 4)


@dataclass(frozen=True)
class Cut:
    """One worker's shared memory with the input of `down` in `parts`; ms: simulated, None where it does not fit."""

    model: str
    target: str
    batch: int
    parts: int
    chunk: int
    slots: int
    peak: int
    ms: float | None


def settings_of(batch: int, parts: int) -> Settings:
    """The plan whose copies and input of `down` are cut `parts` times as finely, with EQUAL bytes in flight."""
    chunk = COARSE // parts
    slots = 1 + EQUAL // (FAST.warps * chunk)
    return replace(FAST, plan="search", batch=batch, k_parts=parts, chunk_bytes=chunk, slots=slots)


def cut(model: ModelSpec, target: Target, batch: int, parts: int) -> Cut:
    settings = settings_of(batch, parts)
    chunk, slots = settings.chunk_bytes or 0, settings.slots or 0
    counts = row_tables(model, choose_workers(model, target, batch))
    most = fixed_buffers(model, settings, counts)[1] + slots * slot_bytes(target, settings, chunk)
    ms = None
    if most + STATIC_SMEM_PER_BLOCK <= target.smem_per_block:
        ms = step_ms(plan(model, target, settings=settings, max_context=CONTEXT), POS)
    return Cut(model.name, target.name, batch, parts, chunk, slots, most, ms)


def equal_table(models: list[ModelSpec], targets: list[Target]) -> str:
    """Both cuts for every model, target and batch."""
    head = "| model, target | batch | whole, copies of 2 KiB | ms | in 4 parts, copies of 512 bytes | ms | lower by |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for model in models:
        for target in targets:
            for batch in BATCHES:
                whole, parted = (cut(model, target, batch, parts) for parts in (1, FINER))
                times = ["does not fit" if c.ms is None else f"{c.ms:.2f}" for c in (whole, parted)]
                lower = f"{1 - parted.peak / whole.peak:.0%}"
                lines.append(
                    f"| {model.name}, {target.name} | {batch} | {whole.peak:,} | {times[0]} "
                    f"| {parted.peak:,} | {times[1]} | {lower} |"
                )
    return "\n".join(lines)


def table(rows: list[Row]) -> str:
    head = "| model, target | K-split | chunk | slots a warp | peak | arrays overlaid | simulated ms |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for r in rows:
        ms = "does not fit" if r.ms is None else f"{r.ms:.2f}"
        lines.append(
            f"| {r.model}, {r.target} | {r.k_split} | {r.chunk:,} | {r.slots} | {r.peak:,} | {r.overlaid:,} | {ms} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="shared memory by K-split, at least and exactly equal bytes in flight")
    parser.add_argument("--models", nargs="+", default=["llama3-8b", "qwen2.5-1.5b"])
    parser.add_argument("--gpus", nargs="+", default=["l20", "l4"])
    arguments = parser.parse_args()
    models, targets = [load_model(m) for m in arguments.models], [load_target(g) for g in arguments.gpus]
    print(table([r for m in models for g in targets for r in rows(m, g)]))
    print(f"\n{equal_table(models, targets)}\n\n{errors_on(t.name for t in targets)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
