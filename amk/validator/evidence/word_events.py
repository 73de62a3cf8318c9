"""Flag words between single events: which writes a reading event looks for.

Property: event r reads words with tag v, so it finishes only when every one of them has been written with tag v. It
waits for exactly the events that write those words with that tag, not for the whole steps of other warps; `two_levels`
does the same for whole steps of whole workers, which is what the composed check can afford.

Readers with the same writers share one *join node*: an agent of one event that waits for all of them and lets all
readers go. A word that nobody writes with the reader's tag makes a join node that never finishes (`MISSING`).

Errors: `NotComposable` if two events write a word with one tag, because then the tag does not say which was meant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from amk.validator.order.two_levels import NotComposable
from amk.validator.program.system import I64, WRITE

MISSING: Final = -1


@dataclass(frozen=True)
class JoinNodes:
    """writers: the events (or `MISSING`) of each join node. readers [n, 2]: (event, join node) pairs."""

    writers: list[tuple[int, ...]] = field(default_factory=list)
    readers: list[tuple[int, int]] = field(default_factory=list)


def join_nodes(rows: I64) -> JoinNodes:
    """Join nodes of the rows (event, buffer, tag, kind, lo, hi) on tagged buffers."""
    found = JoinNodes()
    number: dict[tuple[int, ...], int] = {}
    rows = rows[np.lexsort((rows[:, 4], rows[:, 0], rows[:, 2], rows[:, 1]))]
    bounds = np.flatnonzero((np.diff(rows[:, 1:3], axis=0, prepend=-1) != 0).any(axis=1))
    for part in np.split(rows, bounds[1:]):
        for event, writers in _needs(part):
            join_node = number.setdefault(writers, len(number))
            if join_node == len(found.writers):
                found.writers.append(writers)
            found.readers.append((event, join_node))
    return found


def _needs(rows: I64) -> list[tuple[int, tuple[int, ...]]]:
    """(reading event, events it looks for) within one buffer and tag."""
    writing = rows[rows[:, 3] == WRITE]
    writing = writing[np.argsort(writing[:, 4], kind="stable")]
    start, end, writer = writing[:, 4], writing[:, 5], writing[:, 0]
    if (start[1:] < end[:-1]).any():
        raise NotComposable("two steps write the same flag word with the same tag")
    reading = rows[rows[:, 3] != WRITE]
    cuts = np.flatnonzero(np.diff(reading[:, 0], prepend=-1))
    known: dict[bytes, tuple[int, ...]] = {}
    found = []
    for part in np.split(reading, cuts[1:]) if len(reading) else ():
        key = part[:, 4:6].tobytes()
        if key not in known:
            known[key] = _covering(start, end, writer, part[:, 4:6])
        found.append((int(part[0, 0]), known[key]))
    return found


def _covering(start: I64, end: I64, writer: I64, spans: I64) -> tuple[int, ...]:
    found: set[int] = set()
    for lo, hi in spans.tolist():
        first, last = int(np.searchsorted(end, lo, side="right")), int(np.searchsorted(start, hi, side="left"))
        covered = first < last and start[first] <= lo and end[last - 1] >= hi
        if not covered or (start[first + 1 : last] > end[first : last - 1]).any():
            found.add(MISSING)
        found |= set(writer[first:last].tolist())
    return tuple(sorted(found))
