"""The part of a list of edits that matters, by delta debugging (Zeller and Hildebrandt, TSE 2002)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amk.report.diagnostic import AmkError
from amk.schedule_ir.edits.kinds import Edit

Predicate = Callable[[Sequence[Edit]], bool]
"""Whether a list still has what is looked for; an AmkError (it does not apply) is a no."""


def shrunk(edits: Sequence[Edit], holds: Predicate) -> tuple[Edit, ...]:
    """A part of the list, in its order, for which `holds` and from which no single edit can be left out.

    ValueError if it does not hold for the whole list. At most n^2 + 3n calls of `holds`, about 2 log n where one edit
    matters.
    """
    if not _holds(edits, holds):
        raise ValueError("the list itself does not have what is looked for")
    now, parts = list(edits), 2
    while len(now) > 1 or (now and parts):
        size = max(1, len(now) // parts)
        cuts = range(0, len(now), size)
        smaller = next((rest for at in cuts if _holds(rest := now[:at] + now[at + size :], holds)), None)
        if smaller is not None:
            now, parts = smaller, max(parts - 1, 2)
        elif size == 1:
            break
        else:
            parts = min(2 * parts, len(now))
    return tuple(now)


def _holds(edits: Sequence[Edit], holds: Predicate) -> bool:
    try:
        return holds(edits)
    except AmkError:
        return False
