"""The timeline of one layer as text: a row for each kind of group, a column for each slice of time."""

from __future__ import annotations

from amk.simulator.engine import PARTS, Span
from amk.simulator.predict import Prediction

COLUMNS = 96
ROWS = 8
MARKS = {
    "memory": "m", "drain": "#", "cache": "k", "waiting": ".", "hand-off": "h", "staging": "s", "arithmetic": "a",
    "barrier": "|",
}  # fmt: skip


def timeline_text(prediction: Prediction) -> str:
    """The last simulated layer of the groups with the most workers."""
    window = prediction.window
    layer = window.layers - 1
    spans = [s for s in prediction.spans if _layer(prediction, s) == layer]
    if not spans:
        return ""
    start, end = min(s.start for s in spans), max(s.end for s in spans)
    largest = sorted(range(len(window.groups)), key=lambda g: -len(window.groups[g].workers))[:ROWS]
    lines = [
        f"{len(window.groups[g].workers):4d} workers  {_row([s for s in spans if s.group == g], start, end)}"
        for g in largest
    ]
    legend = "  ".join(f"{MARKS[p]} {p}" for p in PARTS)
    return "\n".join([f"one layer, {end - start:.1f} us from left to right:", *lines, legend])


def _layer(prediction: Prediction, span: Span) -> int | None:
    window = prediction.window
    return window.items[window.groups[span.group].program][span.item].loops.get("l")


def _row(spans: list[Span], start: float, end: float) -> str:
    """The mark of whatever takes most of each column."""
    width = (end - start) / COLUMNS
    row = []
    for column in range(COLUMNS):
        lo = start + column * width
        cover = {p: 0.0 for p in PARTS}
        for s in spans:
            cover[s.part] += max(0.0, min(s.end, lo + width) - max(s.start, lo))
        most = max(PARTS, key=lambda p: cover[p])
        row.append(MARKS[most] if cover[most] > 0 else " ")
    return "".join(row)
