"""What was tried of edits near the best, and what was not: tables of the report.

Edits have no end, so those of the best are the ones that draws show (`propose/singles.py`). What remains has no closer
bound than the floor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from amk.agent.decide.feedback import Fate, fate
from amk.agent.decide.headroom import left
from amk.agent.decide.keep import needed, percent
from amk.agent.journal.events import Surveyed
from amk.agent.journal.state import State, Trial
from amk.agent.propose.edit_history import WITH
from amk.agent.propose.singles import KNOB, OUTCOMES, Outcome, Settled
from amk.agent.propose.together import Change, Sum
from amk.agent.report.exhaustion import said
from amk.agent.report.survey_table import table
from amk.schedule_ir.edits.directed import KINDS

Gained = Sequence[tuple[float, Change, int]]
"""Log gain, change, a trial of it."""
LINE = 160
WORDS: Final[dict[Outcome, str]] = {
    "measured": "measured", "refused": "refused", "known": "kernel known before", "avoided": "value refused before",
    "lost": "lost before", "open": "open",
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """singles: the changes of this kind of the best, by what became of them; proposals, refused, measured: of all
    proposals that came in this way."""

    name: str
    singles: Counter[Outcome]
    proposals: int
    refused: int
    measured: int
    best: Fate | None

    @property
    def cells(self) -> tuple[str, ...]:
        gain = "" if self.best is None else self.best.gain_text
        counts = (self.singles.total(), *(self.singles[each] for each in OUTCOMES))
        return (self.name, *map(str, (*counts, self.proposals, self.refused, self.measured)), gain)


def kinds_of(state: State, near: Sequence[Settled]) -> list[Kind]:
    """A row for every kind of change; near: the single changes of the best."""
    by_way: dict[str, list[Trial]] = {}
    for trial in state.trials:
        for way in {*trial.proposed.operator.split(WITH)}:
            by_way.setdefault(way, []).append(trial)
    found: dict[str, Counter[Outcome]] = {name: Counter() for name in (*KINDS, KNOB)}
    for each in near:
        found[each.single.kind][each.outcome] += 1
    return [_kind(state, name, singles, by_way.get(name, [])) for name, singles in found.items()]


def _kind(state: State, name: str, singles: Counter[Outcome], trials: Sequence[Trial]) -> Kind:
    told = [(gain, found) for trial in trials if (gain := (found := fate(state, trial)).gain) is not None]
    refused = sum(trial.gated is not None and trial.gated.verdict != "passed" for trial in trials)
    best = max(told, key=lambda each: each[0])[1] if told else None
    return Kind(name, singles, len(trials), refused, len(told), best)


def what_is_left(
    state: State, near: Sequence[Settled], changes: Gained, sums: Sequence[Sum], survey: Surveyed | None = None
) -> str:
    """A section of the report: whether anything is left, single changes of the best, changes that gained without being
    kept, and their combinations. near: none if the best is no plan any more."""
    share = left(state)
    words = "" if share is None else (
        f"Whatever was not tried can save {100 * share:.1f}% of the best's time at most, which is what it is above the "
        f"floor, bytes over bandwidth; nothing closer bounds it."
    )  # fmt: skip
    first = said(state, survey, Counter(each.outcome for each in near), sums) if near else ""
    tables = (_edits(state, near) if near else "") + _together(state, changes, sums)
    return f"<h2>Edits, and changes together</h2>{first}<p>{escape(words)}</p>{tables}"


def _edits(state: State, near: Sequence[Settled]) -> str:
    rows = kinds_of(state, near)
    never = [row.name for row in rows if not row.proposals]
    words = f"Never proposed: {', '.join(never)}." if never else "Every kind was proposed."
    by_kind = table(
        ("kind", "at the best", *(WORDS[each] for each in OUTCOMES), "proposals", "refused", "measured", "most gained"),
        [("", row.cells) for row in rows],
    )
    each = table(("kind", "change of the best", "what became of it", "gain or reason"), [_row(state, s) for s in near])
    return (
        f"<p>{escape(words)}</p><details><summary>changes by kind</summary>{by_kind}</details>"
        f"<details><summary>every single change of the best</summary>{each}</details>"
    )


def _row(state: State, settled: Settled) -> tuple[str, tuple[str, ...]]:
    why = percent(0.0 - settled.worth) if settled.outcome == "lost" else ""
    if settled.index is not None:
        told = fate(state, state.trials[settled.index])
        why = told.gain_text or f"{' '.join(told.codes)} {told.reason}".strip()[:LINE]
    return "", (settled.single.kind, settled.single.told[:LINE], WORDS[settled.outcome], why)


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
