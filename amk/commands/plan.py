"""`amk plan`: a model and a GPU to a schedule, with a summary of what it takes."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from amk.commands.output import add_format, print_json, print_table
from amk.commands.plan_search import add_search_arguments, asked_settings, no_search, searched_settings
from amk.commands.planning import (
    add_accepts_choice,
    add_batch_choice,
    add_headless_choice,
    add_live_choice,
    add_plan_arguments,
    add_rows_choice,
    add_tree_choice,
    planned,
)
from amk.planner.fit import Budget, budget
from amk.planner.settings import PRESETS, Settings
from amk.planner.storage import runs_of_stream
from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.schedule_ir.codec import canonical_json, schedule_hash
from amk.schedule_ir.sampling import MODES
from amk.schedule_ir.schedule import Schedule, mode_of
from amk.schedule_ir.shared_memory import peak


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan_arguments(parser, required=True)
    add_batch_choice(parser)
    add_live_choice(parser)
    add_rows_choice(parser)
    add_accepts_choice(parser)
    add_headless_choice(parser)
    add_tree_choice(parser)
    parser.add_argument("--plan", choices=PRESETS, help="which plan, where none is searched for (default: fast)")
    add_search_arguments(parser)
    parser.add_argument(
        "--sampling", choices=MODES, default="greedy", help="how tokens can be chosen when it runs (default: greedy)"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the schedule")
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    settings = asked_settings(arguments, _settings(arguments))
    schedule = planned(arguments, settings)
    memory = memory_of(schedule, settings)
    if arguments.output is not None:
        _write(Path(arguments.output), canonical_json(schedule))
    if arguments.format == "json":
        print_json(summary(schedule, memory))
    else:
        _print(schedule, memory)
    return 0


def _settings(arguments: argparse.Namespace) -> Settings:
    if arguments.search:
        return searched_settings(arguments)
    no_search(arguments)
    return PRESETS[arguments.plan or "fast"]


def memory_of(schedule: Schedule, settings: Settings) -> Budget:
    """Device memory of a plan made with `settings`."""
    (stream,) = schedule.streams
    settings = replace(settings, kv_dtype=schedule.kv.dtype)
    runs = runs_of_stream(stream, schedule.model.layers)
    return budget(schedule.model, schedule.target, settings, schedule.launch.workers, runs, schedule.kv.context)


def summary(schedule: Schedule, memory: Budget) -> dict[str, object]:
    """The figures of a plan, sizes in bytes."""
    launch, (stream,) = schedule.launch, schedule.streams
    return {
        "schedule": schedule.name,
        "schedule_sha256": schedule_hash(schedule),
        "plan": schedule.plan,
        "sampling": mode_of(schedule),
        "batch": schedule.batch,
        "rows": schedule.rows,
        "context": schedule.kv.context,
        "model_context": schedule.model.max_context,
        "kv_splits": schedule.kv.splits,
        "workers": launch.workers,
        "warps": launch.warps,
        "shared_bytes": launch.shared_bytes,
        "shared_peak": peak(schedule),
        "shared_limit": schedule.target.smem_per_block,
        "ring_slots": stream.slots,
        "chunk_bytes": stream.chunk_bytes,
        "memory": {
            "weights": memory.weights,
            "kv_cache": memory.kv,
            "activations": memory.activations,
            "reserve": memory.reserve,
            "sum": memory.total,
            "device": memory.device,
        },
    }


def _guessed(schedule: Schedule) -> str:
    guesses = ", those behind the first are guesses" if schedule.accepts else ""
    guesses = ", no output head" if schedule.headless else guesses
    return ", nodes of a tree" if schedule.tree else guesses


def _print(schedule: Schedule, memory: Budget) -> None:
    launch, (stream,) = schedule.launch, schedule.streams
    ring = stream.slots * stream.chunk_bytes
    rows = [
        ("schedule", f"{schedule.name}, {schedule.plan} plan, {mode_of(schedule)} choice of tokens"),
        ("sha256", schedule_hash(schedule)),
        ("batch", f"{schedule.batch} sequence{'s' if schedule.batch > 1 else ''} decoded together"),
        ("rows", f"{schedule.rows} token{'s' if schedule.rows > 1 else ''} of a sequence a step{_guessed(schedule)}"),
        ("context", f"{schedule.kv.context:,} of the model's {schedule.model.max_context:,} positions"),
        ("workers", f"{launch.workers} of {launch.warps} warps, attention in {schedule.kv.splits} splits a head"),
        (
            "shared memory",
            f"{launch.shared_bytes:,} of {schedule.target.smem_per_block:,} bytes a worker, {peak(schedule):,} at once",
        ),
        ("ring", f"{stream.slots} chunks of {stream.chunk_bytes:,} bytes = {ring:,} bytes a warp"),
    ]
    print_table(("what", "value"), rows)
    print("\n".join(memory.lines()))


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise AmkError(Diagnostic("AMK001", f"cannot write: {why}", where=Where(file=str(path)))) from error
    print(f"wrote {path} ({len(content):,} bytes)", file=sys.stderr)
