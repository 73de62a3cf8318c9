"""A timeline in the Trace Event Format, which https://ui.perfetto.dev and chrome://tracing open.

Groups become processes, tracks threads, spans complete events (`X`), arrows flows (`s` at the end of the source, `f`
at the target), series counters (`C`). Timestamps are microseconds; a timeline that is not in time gets 1 us a unit.
"""

from __future__ import annotations

from typing import Any

from amk.report.timeline import Timeline

SERIES_PID = 0


def perfetto(timeline: Timeline) -> dict[str, Any]:
    """The trace as JSON-ready data."""
    scale = timeline.microseconds or 1.0
    groups = list(dict.fromkeys(track.group for track in timeline.tracks))
    pid = {group: i + 1 for i, group in enumerate(groups)}
    events: list[dict[str, Any]] = [_name("process_name", pid[group], 0, group) for group in groups]
    events += [_sort(pid[group], i) for i, group in enumerate(groups)]
    for tid, track in enumerate(timeline.tracks):
        events.append(_name("thread_name", pid[track.group], tid, track.name))
    place = [(pid[track.group], tid) for tid, track in enumerate(timeline.tracks)]
    for span in timeline.spans:
        arguments = {"detail": span.detail} | ({timeline.mark: True} if span.marked else {})
        events.append(
            {"ph": "X", "name": span.name, "cat": span.kind, "ts": span.start * scale, "args": arguments}
            | {"dur": (span.end - span.start) * scale, "pid": place[span.track][0], "tid": place[span.track][1]}
        )
    events += [event for i, _ in enumerate(timeline.arrows) for event in _flow(timeline, i, place, scale)]
    events += [_name("process_name", SERIES_PID, 0, "numbers")] if timeline.series else []
    for series in timeline.series:
        name = f"{series.name} ({series.unit})"
        events += [
            {"ph": "C", "name": name, "pid": SERIES_PID, "ts": at * scale, "args": {series.unit: value}}
            for at, value in series.points
        ]
    metadata = {"title": timeline.title, "unit": timeline.unit, "notes": list(timeline.notes)}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": metadata}


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _sort(pid: int, index: int) -> dict[str, Any]:
    return {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": index}}


def _flow(timeline: Timeline, number: int, place: list[tuple[int, int]], scale: float) -> list[dict[str, Any]]:
    """A flow binds to the slice that encloses its timestamp: the source's last moment, the target's last moment."""
    arrow = timeline.arrows[number]
    source, target = timeline.spans[arrow.source], timeline.spans[arrow.target]
    common = {"name": arrow.name or "signal", "cat": timeline.mark if arrow.marked else "signal", "id": number}
    ends = (("s", source, source.end), ("f", target, max(target.start, source.end)))
    return [
        common | {"ph": ph, "pid": place[s.track][0], "tid": place[s.track][1], "ts": at * scale}
        | ({"bp": "e"} if ph == "f" else {})
        for ph, s, at in ends
    ]  # fmt: skip
