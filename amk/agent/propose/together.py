"""Near misses together: changes that each gained, but not what a keep needs, made to the best at once.

Gains of separate changes nearly add up on a logarithmic scale, so two that miss a keep alone may make it together.
Whatever was measured to gain, knob or edit, is combined as soon as the sum is worth it, the greatest sum first. This
does not wait until everything else near the best was tried. What gained over another plan is made to the best alone,
too, as knobs are beside a best that has edits.

A fit to all trials that have a change says what it is worth, drawn towards zero: the luckiest of many measurements is
no gain. A combination that lost lowers each of its parts. One that gained clearly more than its parts is a change by
itself. Where the simulator measures, a combination that it predicts to be no faster than the best is left out.
"""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

import numpy as np

from amk.agent.decide.feedback import fate
from amk.agent.decide.keep import least_gain, percent
from amk.agent.gate.candidate import Candidate
from amk.agent.gate.design import Design, in_words
from amk.agent.journal.inbox import Suggestion
from amk.agent.journal.state import START
from amk.agent.propose.archive import WITHIN, merged, position_of
from amk.agent.propose.base import Context
from amk.agent.propose.combine import RIDGE, WORTH_TRYING
from amk.planner.space import Value, moved
from amk.report.diagnostic import AmkError

LEAST_GAIN = 0.001
"""Log gain of a change that is worth a try beside others."""
FEW = 4
"""Knobs and edits of a change: many at once say little of what they do elsewhere."""
CHANGES = 8
"""Changes that are combined, the most gain first."""
AT_ONCE = (4, 3, 2, 1)
PLANS = 6
"""Combinations that are planned for one proposal: a plan takes a while."""


@dataclass(frozen=True)
class Change:
    """knobs: name, value before, value; edits: those that came."""

    knobs: tuple[tuple[str, Value, Value], ...]
    edits: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.knobs) + len(self.edits)

    @property
    def whole(self) -> frozenset[object]:
        return frozenset((*self.knobs, *self.edits))

    @property
    def text(self) -> str:
        return "; ".join((*(f"{name}={value}" for name, _, value in self.knobs), *in_words(self.edits)))

    def on(self, design: Design) -> Design | None:
        """The design with it; None if the design is not what it changes: has some of it, or something in its place."""
        if any(getattr(design.settings, name) != before for name, before, _ in self.knobs):
            return None
        edits = merged(design.edits, self.edits)
        if len(edits) < len(design.edits) + len(self.edits):
            return None
        return Design(moved(design.settings, {name: value for name, _, value in self.knobs}), edits)


@dataclass(frozen=True)
class Together:
    name: str = "together"

    def ask(self, context: Context) -> Sequence[Suggestion]:
        best = context.state.best
        new = (each for each in combined(context) if not each.proposed)
        for each in islice(new, PLANS):
            candidate = context.workshop.make(each.design)
            if (
                isinstance(candidate, Candidate)
                and candidate.key not in context.state.by_key
                and not _slower(context, candidate)
            ):
                why = f"changes that gained alone, {percent(each.total)} in sum"
                edits = tuple(map(json.loads, each.design.edits))
                settings = dict(context.space.point(each.design.settings))
                return [Suggestion(self.name, settings, why, parent=best, edits=edits, other=each.index)]
        return []


@dataclass(frozen=True)
class Sum:
    """Changes made to the best. total: of their log gains; index: a trial of the greatest."""

    total: float
    design: Design
    index: int
    proposed: bool


def combined(context: Context, gains: Sequence[tuple[float, Change, int]] | None = None) -> Iterator[Sum]:
    """What may come to a keep, the greatest sum first; gains: the result of `gained`, where that is known."""
    base, known = context.design(context.state.best), {*context.history.designs}
    gains = gained(context) if gains is None else gains
    sums = [(sum(gain for gain, _, _ in some), some) for count in AT_ONCE for some in combinations(gains, count)]
    for total, some in sorted(sums, key=lambda each: -each[0]):
        if total < WORTH_TRYING * least_gain(context.state.noise):
            return
        knobs = [name for _, change, _ in some for name, _, _ in change.knobs]
        design: Design | None = base if len(knobs) == len(set(knobs)) else None
        for _, change, _ in some:
            design = None if design is None else change.on(design)
        if design is not None:
            yield Sum(total, design, some[0][2], design in known)


def _slower(context: Context, candidate: Candidate) -> bool:
    """Whether the simulator, which will measure it, calls it no faster than the best."""
    run, best = context.state.run, context.workshop.make(context.design(context.state.best))
    if run is None or not (run.simulated and run.prior) or not isinstance(best, Candidate):
        return False
    pos, step_ms = position_of(context), context.workshop.simulator.step_ms
    try:
        return step_ms(candidate.schedule, pos) >= step_ms(best.schedule, pos)
    except AmkError:
        return True


def gained(context: Context) -> list[tuple[float, Change, int]]:
    """(log gain, change, the first trial of it) of the changes that gained, and that can be made to the best."""
    known, rows = _measured(context)
    gains = fitted(len(known), rows)
    best = context.design(context.state.best)
    found = [(gain, change, index) for gain, (change, index) in zip(gains, known.items(), strict=True)]
    worth = [each for each in found if each[0] > LEAST_GAIN and each[1].on(best) is not None]
    return sorted(worth, key=lambda each: -each[0])[:CHANGES]


def fitted(count: int, rows: Sequence[tuple[float, list[int]]]) -> list[float]:
    """What each of `count` changes gains, by least squares drawn towards zero. Only those that were measured together
    with others have to be solved for at once, and most were not."""
    joined = sorted({part for _, parts in rows if len(parts) > 1 for part in parts})
    place = {part: number for number, part in enumerate(joined)}
    x, y = [], []
    sums, trials = [0.0] * count, [0] * count
    for gain, parts in rows:
        if parts[0] in place:
            x.append([place[part] for part in parts])
            y.append(gain)
        else:
            sums[parts[0]] += gain
            trials[parts[0]] += 1
    found = [total / (n + RIDGE) for total, n in zip(sums, trials, strict=True)]
    matrix = np.zeros((len(x), len(joined)))
    for row, parts in enumerate(x):
        matrix[row, parts] = 1.0
    solved = np.linalg.solve(matrix.T @ matrix + RIDGE * np.eye(len(joined)), matrix.T @ np.array(y))
    for part, gain in zip(joined, solved, strict=True):
        found[part] = float(gain)
    return found


def _measured(context: Context) -> tuple[dict[Change, int], list[tuple[float, list[int]]]]:
    """Changes with the first trial of each, and of every trial its log gain over its parent and which of the changes it
    consists of. What gained clearly more than its parts did alone is a change by itself: they help each other. Trials
    whose parent is far behind the best say nothing of the best."""
    state, known, rows = context.state, dict[Change, int](), list[tuple[float, list[int]]]()
    largest: list[tuple[int, int, frozenset[object]]] = []
    alone: list[list[float]] = []
    for trial in state.trials:
        gain, parent = fate(state, trial).gain, trial.proposed.parent
        if gain is None or (0.0 if parent == START else state.trials[parent].score or 0.0) > state.best_score + WITHIN:
            continue
        if (change := _change(context, trial.index, parent)) is None:
            continue
        parts = _parts(change, largest)
        beyond = gain - sum(sum(alone[part]) / len(alone[part]) for part in parts)
        new = change not in known and (not parts or beyond > least_gain(state.noise))
        if new and len(change) <= FEW:
            insort(largest, (-len(change), len(known), change.whole))
            parts, known[change] = [len(known)], trial.index
            alone.append([])
        if len(parts) == 1:
            alone[parts[0]].append(gain)
        rows += [(max(gain, -WITHIN), parts)] if parts else []
    return known, rows


def _parts(change: Change, largest: Sequence[tuple[int, int, frozenset[object]]]) -> list[int]:
    """The known changes that it consists of, the largest first; none if they do not make all of it.

    largest: of the known ones how much they change (negative), their number, and what.
    """
    left, parts = change.whole, list[int]()
    for _, number, whole in largest:
        if whole <= left:
            left -= whole
            parts.append(number)
    return [] if left else parts


def _change(context: Context, index: int, parent: int) -> Change | None:
    """What the trial changed of its parent; None if it is nothing that can be made elsewhere."""
    before, after = context.design(parent), context.design(index)
    if any(text not in after.edits for text in before.edits):
        return None
    changes = sorted(context.space.changes(after.settings, before.settings).items(), key=lambda item: item[0])
    knobs = tuple((name, getattr(before.settings, name), value) for name, value in changes)
    came = tuple(text for text in after.edits if text not in before.edits)
    return Change(knobs, came) if knobs or came else None
