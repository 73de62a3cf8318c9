"""A timeline as data: tracks, spans, arrows, series and tables; `timeline_html` and `timeline_perfetto` draw it.

Whoever has something to show over time (a schedule in logical order, a witness, a recorded launch, a simulation) builds
one of these; the renderers know nothing else. All names are text of any origin: renderers escape them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

Kind = Literal["compute", "weights", "wait", "barrier", "signal", "blocked", "other"]
"""What a span is, which decides its colour: `wait` is exposed waiting, `blocked` a wait that never ends."""
KINDS: tuple[Kind, ...] = get_args(Kind)

Cell = str | int | float


@dataclass(frozen=True, slots=True)
class Track:
    """One row: an agent or a role of `group` (an SM, a worker)."""

    group: str
    name: str


@dataclass(frozen=True, slots=True)
class Span:
    """[start, end] on a track, in the timeline's unit. Spans of one track do not overlap. marked: draw attention."""

    track: int
    start: float
    end: float
    name: str
    kind: Kind = "compute"
    detail: str = ""
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Arrow:
    """From the end of one span to the start, or the end of the waiting part, of another."""

    source: int
    target: int
    name: str = ""
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """A quantity over time: from each point on it has that value, until the next point."""

    name: str
    unit: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A summary. Cells that are numbers are aligned right."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


class MalformedTimeline(ValueError):
    """An index, an interval or an overlap that cannot be drawn; the message says which."""


@dataclass(frozen=True)
class Timeline:
    """unit: what the x axis counts, e.g. "us" or "steps"; microseconds: length of one unit, None if it is no time.

    notes: sentences on what is shown, what is left out and what is assumed. mark: what `marked` means.
    """

    title: str
    unit: str
    tracks: tuple[Track, ...]
    spans: tuple[Span, ...]
    arrows: tuple[Arrow, ...] = ()
    series: tuple[Series, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    mark: str = "marked"
    microseconds: float | None = None

    def __post_init__(self) -> None:
        _check_spans(self.tracks, self.spans)
        for arrow in self.arrows:
            if not (0 <= arrow.source < len(self.spans) and 0 <= arrow.target < len(self.spans)):
                raise MalformedTimeline(f"an arrow from span {arrow.source} to {arrow.target} of {len(self.spans)}")
        for series in self.series:
            if any(b[0] < a[0] for a, b in pairwise(series.points)):
                raise MalformedTimeline(f"the points of series '{series.name}' go back in time")

    @property
    def end(self) -> float:
        return max((span.end for span in self.spans), default=0.0)


def _check_spans(tracks: Sequence[Track], spans: Sequence[Span]) -> None:
    by_track: dict[int, list[Span]] = {}
    for span in spans:
        if not 0 <= span.track < len(tracks):
            raise MalformedTimeline(f"span '{span.name}' is on track {span.track} of {len(tracks)}")
        if not 0 <= span.start <= span.end < float("inf"):
            raise MalformedTimeline(f"span '{span.name}' lasts from {span.start} to {span.end}")
        by_track.setdefault(span.track, []).append(span)
    for track, row in by_track.items():
        row.sort(key=lambda span: (span.start, span.end))
        for before, after in pairwise(row):
            if after.start < before.end:
                raise MalformedTimeline(f"'{before.name}' and '{after.name}' overlap on track {track}")
