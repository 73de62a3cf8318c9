"""What was tried of edits near the best, and what was not: tables of the report.

Edits have no end, so those of the best are the ones that draws show (`propose/singles.py`), and each kind says how
often one more draw would show another.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from types import MappingProxyType
from typing import Final

from amk.agent.decide.feedback import Fate, fate
from amk.agent.decide.headroom import share_above_floor
from amk.agent.decide.keep import least_gain, percent
from amk.agent.journal.events import Surveyed
from amk.agent.journal.state import State, Trial
from amk.agent.propose.edit_history import WITH
from amk.agent.propose.singles import KNOB, OUTCOMES, Outcome, Settled, Single
from amk.agent.propose.together import Change, Sum
from amk.agent.report.exhaustion import summary
from amk.agent.report.survey_table import table
from amk.schedule_ir.edits.directed import KINDS

Gained = Sequence[tuple[float, Change, int]]
"""Log gain, change, a trial of it."""
LINE = 160
LEAST_CHANCE = 0.02
"""Chance of a new draw from which the verdict names a kind."""
WORDS: Final[dict[Outcome, str]] = {
    "measured": "measured", "refused": "refused", "known": "kernel known before", "avoided": "value refused before",
    "lost": "lost before", "open": "open",
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """What became of the changes of one kind.

    singles: of the best, by what became of them. unseen: the chance that one more draw shows another; None for knobs,
    which are all there. proposals, measured: of all that came in this way. refused: by reason code, or by the gate's
    verdict where it gives none.
    """

    name: str
    singles: Counter[Outcome]
    unseen: float | None
    proposals: int
    refused: Counter[str]
    measured: int
    best: Fate | None

    @property
    def more(self) -> str:
        return "" if self.unseen is None else f"{100 * self.unseen:.0f}%"

    @property
    def cells(self) -> tuple[str, ...]:
        gain = "" if self.best is None else self.best.gain_text
        counts = (self.singles.total(), *(self.singles[each] for each in OUTCOMES))
        refused = ", ".join(f"{code} {n}" for code, n in self.refused.most_common())
        return (self.name, *map(str, counts), self.more, str(self.proposals), refused, str(self.measured), gain)


def kinds_header(state: State) -> tuple[str, ...]:
    """Of the cells of `Kind`."""
    words = (WORDS[each] for each in OUTCOMES)
    return ("kind", "at the best", *words, "a draw is new", "proposals", "refused by", measured(state), "most gained")


def measured(state: State) -> str:
    """What a device did with a candidate."""
    return "simulated" if state.run is not None and state.run.simulated else "measured"


@dataclass(frozen=True)
class Spot:
    """A place of the schedule, or a knob of the planner, and the single changes of the best there. best: the one that
    gained most."""

    name: str
    singles: Counter[Outcome]
    codes: Counter[str]
    best: Fate | None

    @property
    def cells(self) -> tuple[str, ...]:
        gain = "" if self.best is None else self.best.gain_text
        refused = ", ".join(f"{code} {n}" for code, n in self.codes.most_common())
        counts = (self.singles.total(), *(self.singles[each] for each in OUTCOMES))
        return (self.name, *map(str, counts), refused, gain)


SPOTS: Final = ("place", "changes", *WORDS.values(), "refused by", "most gained")


def spots_of(state: State, near: Sequence[Settled]) -> list[Spot]:
    """A row for every place that a single change of the best names first, the one with the most open first. An edit
    that kinds share is counted once here."""
    by_place: dict[str, list[Settled]] = {}
    for each in {(settled.single.change, settled.single.edits): settled for settled in near}.values():
        by_place.setdefault(_place(each.single), []).append(each)
    found = []
    for name, there in by_place.items():
        fates = [fate(state, state.trials[each.index]) for each in there if each.index is not None]
        gains = [each for each in fates if each.gain is not None]
        codes = sum((_codes(state.trials[each.index]) for each in fates), Counter[str]())
        best = max(gains, key=lambda each: each.gain or 0.0, default=None)
        found.append(Spot(name, Counter(each.outcome for each in there), codes, best))
    return sorted(found, key=lambda spot: (-spot.singles["open"], spot.name))


def _place(single: Single) -> str:
    """The step, table, ring, role or header that the first of its edits is of."""
    if single.change is not None:
        return f"knob {single.change[0]}"
    fields = json.loads(single.edits[0])
    node, to = fields.get("node"), fields.get("to", {})
    where = (node if isinstance(node, str) else to.get("of"), *map(fields.get, ("name", "matrix", "of", "do")))
    return str(next(filter(None, where)))


def _codes(trial: Trial) -> Counter[str]:
    """Why the gate refused it; empty where it did not, or has not decided."""
    gated = trial.gated
    return Counter() if gated is None or gated.verdict == "passed" else Counter(gated.codes or (gated.verdict,))


def kinds_of(state: State, near: Sequence[Settled], unseen: Mapping[str, float] = MappingProxyType({})) -> list[Kind]:
    """A row for every kind of change; near: the single changes of the best; unseen: as of `Singles`."""
    by_way: dict[str, list[Trial]] = {}
    for trial in state.trials:
        for way in {*trial.proposed.operator.split(WITH)}:
            by_way.setdefault(way, []).append(trial)
    found: dict[str, Counter[Outcome]] = {name: Counter() for name in (*KINDS, KNOB)}
    for each in near:
        found[each.single.kind][each.outcome] += 1
    return [_kind(state, name, n, unseen.get(name), by_way.get(name, [])) for name, n in found.items()]


def _kind(state: State, name: str, singles: Counter[Outcome], unseen: float | None, trials: Sequence[Trial]) -> Kind:
    gains = [(gain, found) for trial in trials if (gain := (found := fate(state, trial)).gain) is not None]
    refused = sum((_codes(trial) for trial in trials), Counter[str]())
    best = max(gains, key=lambda each: each[0])[1] if gains else None
    return Kind(name, singles, unseen, len(trials), refused, len(gains), best)


@dataclass(frozen=True)
class Remaining:
    """What is near the best. near: its single changes, none if it is no plan any more; changes: those that gained
    without being kept; sums: their combinations; unseen: as of `Singles`; bounds: sentences on what was measured with
    parts of the kernel left out (`bounds.py`)."""

    near: Sequence[Settled]
    changes: Gained
    sums: Sequence[Sum]
    survey: Surveyed | None = None
    unseen: Mapping[str, float] = field(default_factory=dict)
    bounds: Sequence[str] = ()

    def headroom(self, state: State) -> str:
        share = share_above_floor(state)
        floor = "How far the best is above the floor is not known." if share is None else (
            f"Whatever was not tried can save {100 * share:.1f}% of the best's time at most, which is what it is above "
            f"the floor, bytes over bandwidth."
        )  # fmt: skip
        return " ".join((floor, *(self.bounds or ("No closer bound was handed in (--bounds).",))))

    def verdict(self, state: State) -> tuple[str, str]:
        """Whether anything is left, and how sure that is."""
        if not self.near:
            return "", ""
        what, error = summary(state, self.survey, Counter(each.outcome for each in self.near), self.sums)
        more = sorted(((chance, kind) for kind, chance in self.unseen.items() if chance >= LEAST_CHANCE), reverse=True)
        if more:
            kinds = ", ".join(f"{kind} {100 * chance:.0f}%" for chance, kind in more)
            error += f" One more draw would show a change that is not among these with a chance of: {kinds}."
        return what, error


def what_is_left(state: State, left: Remaining) -> str:
    """A section of the report: whether anything is left, single changes of the best, changes that gained without being
    kept, and their combinations."""
    what, error = left.verdict(state)
    first = f"<p><b>{escape(what)}</b> {escape(error)}</p>" if what else ""
    tables = (_edits(state, left) if left.near else "") + _together(state, left.changes, left.sums)
    return f"<h2>Edits, and changes together</h2>{first}<p>{escape(left.headroom(state))}</p>{tables}"


NOT_COUNTED = (
    "What structural search only simulated or only let judge before it proposed something else is not counted. "
    "Two or more edits that gain nothing alone were not gone through."
)


def never(rows: Sequence[Kind]) -> str:
    names = [row.name for row in rows if not row.proposals]
    return f"Never proposed: {', '.join(names)}." if names else "Every kind was proposed."


def _edits(state: State, left: Remaining) -> str:
    rows = kinds_of(state, left.near, left.unseen)
    by_kind = table(kinds_header(state), [("", row.cells) for row in rows])
    by_place = table(SPOTS, [("", spot.cells) for spot in spots_of(state, left.near)])
    each = table(
        ("kind", "change of the best", "what became of it", "gain or reason"), [_row(state, s) for s in left.near]
    )
    return (
        f"<p>{escape(never(rows))} {escape(NOT_COUNTED)}</p>"
        f"<details><summary>changes by kind</summary>{by_kind}</details>"
        f"<details><summary>single changes of the best by place</summary>{by_place}</details>"
        f"<details><summary>every single change of the best</summary>{each}</details>"
    )


def _row(state: State, settled: Settled) -> tuple[str, tuple[str, ...]]:
    why = percent(0.0 - settled.worth) if settled.outcome == "lost" else ""
    if settled.index is not None:
        ending = fate(state, state.trials[settled.index])
        why = ending.gain_text or f"{' '.join(ending.codes)} {ending.reason}".strip()[:LINE]
    return "", (settled.single.kind, settled.single.text[:LINE], WORDS[settled.outcome], why)


def _together(state: State, changes: Gained, sums: Sequence[Sum]) -> str:
    asked = percent(least_gain(state.noise))
    if not changes:
        return f"<p>No change gained without being kept. A keep needs {escape(asked)}.</p>"
    new = [each.total for each in sums if not each.proposed]
    words = (
        f"{len(changes)} changes gained, and are not in the best, where a keep needs {asked}. Of their combinations "
        f"that may come to that, {len(sums) - len(new)} were proposed and {len(new)} were not"
    )
    words += f": {percent(max(new))} at most, by the sum of what they gained." if new else "."
    rows = [("", (change.text[:LINE], percent(gain))) for gain, change, _ in changes]
    cells = table(("change", "gain, fitted to all trials that have it"), rows)
    return f"<p>{escape(words)}</p><details><summary>changes that gained</summary>{cells}</details>"
