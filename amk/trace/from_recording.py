"""A recorded token as a timeline: what each warp did when, with the time that waits exposed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amk.report.schema import json_pointer
from amk.report.timeline import Span, Timeline, Track
from amk.schedule_ir.schedule import Schedule
from amk.trace.from_schedule import WORKERS
from amk.trace.phases import Measured
from amk.trace.recording import Recording
from amk.trace.steps import Agents, kind_of, name_of


def of_recording(
    schedule: Schedule, recording: Recording, workers: Sequence[int] | None = None, every_warp: bool = False
) -> Timeline:
    """workers None: the slowest and fastest on weights, and the first ones, `WORKERS` in all.

    Raises `MalformedTimeline` if the marks of a warp go back in time.
    """
    measured = Measured(schedule, recording)
    launch, agents = schedule.launch, Agents(schedule)
    shown = workers if workers is not None else chosen_workers(measured)
    warps = range(launch.warps) if every_warp else agents.representatives()
    tracks: list[Track] = []
    spans: list[Span] = []
    for worker in shown:
        for warp in warps:
            spans += _spans(measured, worker, warp, len(tracks))
            tracks.append(Track(f"worker {worker}", agents.label(warp, every_warp)))
    notes = (
        f"Recorded on {recording.device}: the last token of a launch, at position {recording.pos}.",
        f"{len(shown)} of {launch.workers} workers, {len(warps)} of {launch.warps} warps each; tables and curves: all.",
        "Workers are aligned at the start of the token on each: the cycle counters of SMs do not start together.",
        "Recording costs time itself: one store a step and warp.",
    )  # fmt: skip
    return Timeline(
        f"{schedule.name}: measured, position {recording.pos}", "us", tuple(tracks), tuple(spans),
        series=measured.series(), tables=measured.tables(), notes=notes, microseconds=1.0,
    )  # fmt: skip


def chosen_workers(measured: Measured) -> tuple[int, ...]:
    weights = measured.time(None, "weights")
    order = np.argsort(-weights, kind="stable").tolist()
    workers = dict.fromkeys([*order[:2], *order[-2:], *range(len(order))])
    return tuple(sorted(list(workers)[:WORKERS]))


def _spans(measured: Measured, worker: int, warp: int, track: int) -> list[Span]:
    items, steps = measured.items(worker), measured.steps(worker, warp)
    marks = measured.marks[worker, warp, : len(steps) + 1].tolist()
    spans = []
    for k, i in enumerate(steps):
        step, loops = items[i].step, items[i].loops
        layer = f"  L{loops['l']}" if "l" in loops else ""
        detail = json_pointer(items[i].site.path)
        spans.append(Span(track, marks[k], marks[k + 1], name_of(step) + layer, kind_of(step), detail))
    return spans
