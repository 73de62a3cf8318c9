"""Near misses together: changes of which each gained, but not what a keep needs, made to the best at once.

Gains of separate changes nearly add up on a logarithmic scale, so two that miss it alone may make it together.
That does not wait until everything else near the best was tried: whatever was measured to gain, knob or edit, is
combined as soon as the sum is worth it, sums of three before those of two. What gained with a combination is a change
itself, which later ones are built of. A change that was measured often counts with its median, because the luckiest of
many measurements is no gain.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from amk.agent.decide.feedback import fate
from amk.agent.decide.keep import needed, percent
from amk.agent.gate.candidate import Candidate
from amk.agent.gate.design import Design
from amk.agent.journal.inbox import Suggestion
from amk.agent.journal.state import START
from amk.agent.propose.archive import WITHIN, merged
from amk.agent.propose.base import Context
from amk.agent.propose.combine import WORTH_TRYING
from amk.planner.space import Value, moved

GAINED = 0.001
"""Log gain of a change that is worth a try beside others."""
FEW = 4
"""Knobs and edits of a change: many at once say little of what they do elsewhere."""
CHANGES = 8
"""Changes that are combined, the most gain first."""
AT_ONCE = (3, 2)
LOOKED = 6
"""Combinations that are planned for one proposal: a plan takes a while."""


@dataclass(frozen=True)
class Change:
    """knobs: values by name; edits: those that came."""

    knobs: tuple[tuple[str, Value], ...]
    edits: tuple[str, ...]

    def on(self, design: Design) -> Design | None:
        """The design with it; None if the design has some of it, or something in its place."""
        if any(getattr(design.settings, name) == value for name, value in self.knobs):
            return None
        edits = merged(design.edits, self.edits)
        if len(edits) < len(design.edits) + len(self.edits):
            return None
        return Design(moved(design.settings, dict(self.knobs)), edits)


@dataclass(frozen=True)
class Together:
    name: str = "together"

    def ask(self, context: Context) -> Sequence[Suggestion]:
        best = context.state.best
        for total, design, index in list(self._combined(context))[:LOOKED]:
            made = context.workshop.make(design)
            if isinstance(made, Candidate) and made.key not in context.state.by_key:
                why = f"changes that gained alone, {percent(total)} in sum"
                edits = tuple(map(json.loads, design.edits))
                settings = dict(context.space.point(design.settings))
                return [Suggestion(self.name, settings, why, parent=best, edits=edits, other=index)]
        return []

    def _combined(self, context: Context) -> Iterator[tuple[float, Design, int]]:
        """(sum of log gains, design, trial of the greatest) of what is worth a try and was not proposed, best first."""
        base = context.design(context.state.best)
        found = gained(context)
        sums = [(sum(gain for gain, _, _ in some), some) for count in AT_ONCE for some in combinations(found, count)]
        known = {*context.history.designs}
        for total, some in sorted(sums, key=lambda each: -each[0]):
            if total < WORTH_TRYING * needed(context.state.noise):
                return
            knobs = [name for _, change, _ in some for name, _ in change.knobs]
            design: Design | None = base if len(knobs) == len(set(knobs)) else None
            for _, change, _ in some:
                design = None if design is None else change.on(design)
            if design is not None and design not in known:
                yield total, design, some[0][2]


def gained(context: Context) -> list[tuple[float, Change, int]]:
    """(median log gain, change, a trial of it) of the changes that gained, and that can be made to the best."""
    state, best = context.state, context.design(context.state.best)
    seen: dict[Change, list[tuple[float, int]]] = defaultdict(list)
    for trial in state.trials:
        gain, parent = fate(state, trial).gain, trial.proposed.parent
        if gain is None or (0.0 if parent == START else state.trials[parent].score or 0.0) > state.best_score + WITHIN:
            continue
        if (change := _change(context, trial.index, parent)) is not None:
            seen[change].append((gain, trial.index))
    found = [(median(gain for gain, _ in all_of), change, max(all_of)[1]) for change, all_of in seen.items()]
    worth = [each for each in found if each[0] > GAINED and each[1].on(best) is not None]
    return sorted(worth, key=lambda each: -each[0])[:CHANGES]


def _change(context: Context, index: int, parent: int) -> Change | None:
    """What the trial changed of its parent; None if it is nothing that can be made elsewhere."""
    before, after = context.design(parent), context.design(index)
    if any(text not in after.edits for text in before.edits):
        return None
    knobs = tuple(sorted(context.space.changes(after.settings, before.settings).items(), key=lambda item: item[0]))
    came = tuple(text for text in after.edits if text not in before.edits)
    return Change(knobs, came) if 0 < len(knobs) + len(came) <= FEW else None
