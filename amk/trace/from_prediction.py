"""A simulated token as a timeline: one track for each kind of worker, what its first warp is predicted to do when."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from amk.report.schema import json_pointer
from amk.report.timeline import Arrow, Cell, Kind, Span, Table, Timeline, Track
from amk.simulator.engine import PARTS, Part
from amk.simulator.predict import Prediction
from amk.trace.steps import name_of

KINDS: Final[dict[Part, Kind]] = {
    "memory": "wait", "drain": "weights", "cache": "weights", "waiting": "wait", "hand-off": "signal",
    "staging": "compute", "arithmetic": "compute", "barrier": "barrier",
}  # fmt: skip
"""Time in which the weights are not there yet is exposed wait, like time in which another worker is waited for."""


def of_prediction(prediction: Prediction) -> Timeline:
    """The simulated window: few layers, whose last one stands for all that follow."""
    window = prediction.window
    tracks = tuple(
        Track(f"{len(group.workers)} workers like {group.workers[0]}", "warp 0" + ("  fast SM" if group.fast else ""))
        for group in window.groups
    )
    spans = _spans(prediction)
    notes = (
        f"Simulated, not measured: {prediction.ms:.3f} ms a token at position {prediction.pos}, "
        f"the floor is {prediction.floor_ms:.3f} ms.",
        f"{window.layers} layers are simulated; the others take {prediction.layer_us:.1f} us each, like the last one.",
        "Workers that do the same are drawn once. A wait is for another worker, or for weights that are on their way.",
    )  # fmt: skip
    return Timeline(
        f"{prediction.schedule.name}: simulated, position {prediction.pos}", "us", tracks, tuple(spans),
        tuple(_arrows(prediction, spans)), tables=(_phases(prediction),), notes=notes, microseconds=1.0,
    )  # fmt: skip


def _spans(prediction: Prediction) -> list[Span]:
    """By group and time; rounding of a clock must not make two overlap."""
    window, found = prediction.window, []
    last: dict[int, float] = {}
    for span in sorted(prediction.spans, key=lambda s: (s.group, s.start, s.end)):
        item = window.items[window.groups[span.group].program][span.item]
        start = max(span.start, last.get(span.group, 0.0))
        end = max(span.end, start)
        last[span.group] = end
        name = name_of(item.step) + (f"  L{item.loops['l']}" if "l" in item.loops else "")
        detail = f"{span.part}; {json_pointer(item.site.path)}"
        found.append(Span(span.group, start, end, name, KINDS[span.part], detail))
    return found


def _arrows(prediction: Prediction, spans: list[Span]) -> list[Arrow]:
    """From what the signalling group did last before it gave, to what the waiting one did when it saw."""
    by_group: dict[int, list[int]] = {}
    for i, span in enumerate(spans):
        by_group.setdefault(span.track, []).append(i)
    starts = {group: [spans[i].start for i in row] for group, row in by_group.items()}

    def at(group: int, time: float) -> int | None:
        place = bisect_right(starts.get(group, []), time) - 1
        return by_group[group][place] if place >= 0 else None

    found = []
    for arrow in prediction.arrows:
        source, target = at(arrow.source, arrow.given - 1e-9), at(arrow.group, arrow.seen - 1e-9)
        if source is not None and target is not None and arrow.source != arrow.group:
            found.append(Arrow(source, target, "signal"))
    return found


def _phases(prediction: Prediction) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (phase.name, phase.runs, phase.us, *(phase.parts.get(part, 0.0) for part in PARTS), phase.bottleneck)
        for phase in prediction.phases
    )
    return Table("Mean microseconds of a worker (simulated)", ("phase", "runs", "us", *PARTS, "most"), rows)
