"""What cutting row groups along K does to shared memory: `python -m amk.planner.k_split` prints the README's table.

A chunk is 8 rows by K / k_split columns of the widest matrix; the agents' partial sums are added in a fixed order. A
warp drains one slot while the others of its ring are in flight, so that F bytes in flight take

    slots = 1 + ceil(F / (warps * chunk))        ring = warps * slots * (chunk + barrier)

and the peak is the ring and the other arrays (`storage.fixed_buffers`, the planner's own arithmetic).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace

from amk.planner.decode import choose_workers, plan
from amk.planner.formats import chunk_widths
from amk.planner.settings import FAST, Settings
from amk.planner.shares import row_tables
from amk.planner.storage import STATIC_SHARED, fixed_buffers, slot_bytes
from amk.schedule_ir.matrices import MATRICES, ROWS_PER_GROUP, matrix
from amk.schedule_ir.model import load_model
from amk.schedule_ir.model_spec import ModelSpec
from amk.schedule_ir.target import Target, load_target
from amk.simulator.predict import step_ms

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
    if overlaid + STATIC_SHARED <= target.smem_per_block:
        ms = step_ms(plan(model, target, settings=chosen, max_context=CONTEXT), POS)
    return Row(model.name, target.name, -(-widest // columns), chunk, slots, plain, overlaid, ms)


def table(found: list[Row]) -> str:
    head = "| model, target | K-split | chunk | slots a warp | peak | arrays overlaid | simulated ms |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for r in found:
        ms = "does not fit" if r.ms is None else f"{r.ms:.2f}"
        lines.append(
            f"| {r.model}, {r.target} | {r.k_split} | {r.chunk:,} | {r.slots} | {r.peak:,} | {r.overlaid:,} | {ms} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="shared memory by K-split at equal bytes in flight")
    parser.add_argument("--models", nargs="+", default=["llama3-8b", "qwen2.5-1.5b"])
    parser.add_argument("--gpus", nargs="+", default=["l20", "l4"])
    arguments = parser.parse_args()
    found = [r for m in arguments.models for g in arguments.gpus for r in rows(load_model(m), load_target(g))]
    print(table(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
