"""A prediction as a timeline: one track per group of workers, the simulated layers of one token."""

from __future__ import annotations

from bisect import bisect_right

from amk.report.timeline import Arrow, Cell, Kind, Span, Table, Timeline, Track
from amk.simulator.engine import PARTS, Part
from amk.simulator.predict import Prediction

KIND: dict[Part, Kind] = {
    "memory": "weights", "drain": "weights", "cache": "weights", "waiting": "wait", "hand-off": "wait",
    "staging": "compute", "arithmetic": "compute", "barrier": "barrier",
}  # fmt: skip


def timeline_of(prediction: Prediction) -> Timeline:
    """Spans of the first warp of one worker of each group; arrows from the signals that ended waits."""
    groups = prediction.window.groups
    tracks = tuple(
        Track(
            f"{len(g.workers)} workers" if len(g.workers) > 1 else "1 worker",
            f"worker {g.workers[0]}{' (fast SM)' if g.fast else ''}",
        )
        for g in groups
    )
    ordered = sorted(range(len(prediction.spans)), key=lambda i: prediction.spans[i].start)
    spans = tuple(_span(prediction, i) for i in ordered)
    schedule, seen = prediction.schedule, prediction.window.layers
    notes = (
        "Simulated: no GPU was used.",
        f"{seen} of {schedule.model.layers} layers are simulated, the others take {prediction.layer_us:.2f} us each.",
        "Workers of one row do the same; its first warp is shown.",
    )
    title = f"{schedule.name} at position {prediction.pos}: {prediction.ms:.4f} ms a token, simulated"
    table = _table(prediction)
    return Timeline(title, "us", tracks, spans, _arrows(prediction, spans), (), (table,), notes, microseconds=1.0)


def step_name(prediction: Prediction, group: int, item: int) -> str:
    """`gemv o`, `attend`, ..."""
    op = prediction.window.items[prediction.window.groups[group].program][item].step.op
    matrix = getattr(op, "matrix", None)
    return f"{op.op} {matrix}" if matrix else op.op


def _span(prediction: Prediction, index: int) -> Span:
    span = prediction.spans[index]
    name = step_name(prediction, span.group, span.item)
    return Span(span.group, span.start, span.end, name, KIND[span.part], span.part)


def _arrows(prediction: Prediction, spans: tuple[Span, ...]) -> tuple[Arrow, ...]:
    """From the span in which the last signal was given to the wait that it ended."""
    rows: dict[int, list[int]] = {}
    for i, span in enumerate(spans):
        rows.setdefault(span.track, []).append(i)
    starts = {track: [spans[i].start for i in row] for track, row in rows.items()}

    def at(track: int, time: float) -> int | None:
        place = bisect_right(starts.get(track, []), time) - 1
        return rows[track][place] if place >= 0 else None

    arrows = []
    for arrow in prediction.arrows:
        source, target = at(arrow.source, arrow.signal_time), at(arrow.group, arrow.signal_time)
        if source is not None and target is not None and source != target:
            arrows.append(Arrow(source, target, "signal"))
    return tuple(arrows)


def _table(prediction: Prediction) -> Table:
    header = ("phase", "runs", "us per run", "bottleneck", *PARTS)
    rows: list[tuple[Cell, ...]] = []
    for p in prediction.phases:
        parts = (round(p.parts.get(name, 0.0) / p.runs, 3) for name in PARTS)
        rows.append((p.name, p.runs, round(p.us / p.runs, 3), p.bottleneck, *parts))
    return Table("Mean over workers, microseconds", header, tuple(rows))
