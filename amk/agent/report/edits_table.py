"""What was tried of edits near the best, and what was not: tables of the report.

Edits have no end, so what is left of them is told by drawing: each kind is drawn DRAWS times from the best schedule,
all places alike, and the distinct edits that come are looked for among those of the run. What remains has no closer
bound than the floor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from amk.agent.decide.feedback import Fate, fate
from amk.agent.decide.headroom import left
from amk.agent.decide.keep import needed, percent
from amk.agent.gate.design import text_of
from amk.agent.journal.events import Surveyed
from amk.agent.journal.state import State, Trial
from amk.agent.propose.edit_history import WITH
from amk.agent.propose.together import Change, Sum
from amk.agent.report.exhaustion import said
from amk.agent.report.survey_table import table
from amk.report.diagnostic import AmkError
from amk.schedule_ir.edits.directed import KINDS, Hot
from amk.schedule_ir.schedule import Schedule

Gained = Sequence[tuple[float, Change, int]]
"""Log gain, change, a trial of it."""
DRAWS = 60
LINE = 160


@dataclass(frozen=True)
class Kind:
    """places: distinct edits of the best that were drawn; tried: those of them that some proposal had."""

    name: str
    places: int
    tried: int
    proposals: int
    refused: int
    measured: int
    best: Fate | None

    @property
    def cells(self) -> tuple[str, ...]:
        gain = "" if self.best is None else self.best.gain_text
        counts = (self.places, self.tried, self.proposals, self.refused, self.measured)
        return (self.name, *map(str, counts), gain)


def kinds_of(state: State, best: Schedule) -> list[Kind]:
    """A row for every kind of edit that structural search draws."""
    hot = Hot(best, np.random.default_rng(0))
    had = {text for trial in state.trials for text in trial.proposed.edits}
    by_way: dict[str, list[Trial]] = {}
    for trial in state.trials:
        for way in {*trial.proposed.operator.split(WITH)}:
            by_way.setdefault(way, []).append(trial)
    return [_kind(state, name, set(_drawn(hot, name)), had, by_way.get(name, [])) for name in KINDS]


def _drawn(hot: Hot, kind: str) -> Iterable[frozenset[str]]:
    for _ in range(DRAWS):
        try:
            yield frozenset(map(text_of, KINDS[kind](hot)))
        except (LookupError, AmkError):
            continue


def _kind(state: State, name: str, drawn: set[frozenset[str]], had: set[str], trials: Sequence[Trial]) -> Kind:
    told = [(gain, found) for trial in trials if (gain := (found := fate(state, trial)).gain) is not None]
    refused = sum(trial.gated is not None and trial.gated.verdict != "passed" for trial in trials)
    best = max(told, key=lambda each: each[0])[1] if told else None
    return Kind(name, len(drawn), sum(edits <= had for edits in drawn), len(trials), refused, len(told), best)


def what_is_left(
    state: State, best: Schedule | None, changes: Gained, sums: Sequence[Sum], survey: Surveyed | None = None
) -> str:
    """A section of the report: whether anything is left, edits by kind, changes that gained without being kept, and
    their combinations."""
    share = left(state)
    words = "" if share is None else (
        f"Whatever was not tried can save {100 * share:.1f}% of the best's time at most, which is what it is above the "
        f"floor, bytes over bandwidth; nothing closer bounds it."
    )  # fmt: skip
    rows = [] if best is None else kinds_of(state, best)
    first = said(state, survey, sum(row.places for row in rows), sum(row.tried for row in rows), sums) if rows else ""
    tables = _edits(rows) + _together(state, changes, sums)
    return f"<h2>Edits, and changes together</h2>{first}<p>{escape(words)}</p>{tables}"


def _edits(rows: Sequence[Kind]) -> str:
    if not rows:
        return ""
    tried, places = sum(row.tried for row in rows), sum(row.places for row in rows)
    never = [row.name for row in rows if not row.proposals]
    words = (
        f"Of {places} distinct edits that {DRAWS} draws of each kind make to the best, {tried} were among those of a "
        f"proposal. " + (f"Never proposed: {', '.join(never)}." if never else "Every kind was proposed.")
    )
    header = ("kind of edit", "drawn at the best", "of these tried", "proposals", "refused", "measured", "most gained")
    cells = table(header, [("", row.cells) for row in rows])
    return f"<p>{escape(words)}</p><details><summary>edits by kind</summary>{cells}</details>"


def _together(state: State, changes: Gained, sums: Sequence[Sum]) -> str:
    asked = percent(needed(state.noise))
    if not changes:
        return f"<p>No change gained without being kept. A keep needs {escape(asked)}.</p>"
    new = [each.total for each in sums if not each.proposed]
    words = (
        f"{len(changes)} changes gained, and are not in the best, where a keep needs {asked}. Of their combinations "
        f"that may come to that, {len(sums) - len(new)} were proposed and {len(new)} were not"
    )
    words += f": {percent(max(new))} at most, by the sum of what they gained." if new else "."
    rows = [("", (change.told[:LINE], percent(gain))) for gain, change, _ in changes]
    cells = table(("change", "gain, fitted to all trials that have it"), rows)
    return f"<p>{escape(words)}</p><details><summary>changes that gained</summary>{cells}</details>"
