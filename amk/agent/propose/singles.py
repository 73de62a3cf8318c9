"""Single changes of the best, each once: goes through what structural search draws at random, and comes to an end.

Edits have no end, so those of the best are the distinct ones that DRAWS draws of each kind make to it, all places
alike. `unseen` estimates how often one more draw would show another. Where the best has edits, its knobs are turned one
at a time too; those of a plan without edits are the sweep's. A change is settled as one of:

* measured, refused or known: it was made to the best, and the device, the gate or an equal kernel has the answer;
* avoided: a knob's value that the gate refused several times and never let pass;
* lost: it was made alone to an earlier best, and lost there at least what a keep gains. Here it would have to help by
  twice that.

What gained before comes first, then what is not known, one of each kind in turn, then what lost little. Nothing is
proposed where the simulator measures and may be asked, because structural search knows its answers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from amk.agent.decide.keep import least_gain
from amk.agent.gate.candidate import Candidate
from amk.agent.gate.design import Design, in_words, text_of
from amk.agent.journal.inbox import Suggestion
from amk.agent.journal.state import START, Trial
from amk.agent.propose.archive import fresh, replaced
from amk.agent.propose.base import Context
from amk.planner.space import Value, moved
from amk.report.diagnostic import AmkError
from amk.schedule_ir.edits.apply import apply
from amk.schedule_ir.edits.directed import KINDS, Hot

DRAWS = 60
KNOB = "knob"
Outcome = Literal["measured", "refused", "known", "avoided", "lost", "open"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("measured", "refused", "known", "avoided", "lost", "open")


@dataclass(frozen=True)
class Single:
    """kind: of the draw that it came from first, or KNOB; change: the knob that is turned, if one is; edits: those that
    come."""

    kind: str
    change: tuple[str, Value] | None = None
    edits: tuple[str, ...] = ()

    def on(self, design: Design) -> Design:
        """The design with it, without those of its edits that it undoes."""
        settings = moved(design.settings, dict([self.change])) if self.change is not None else design.settings
        return Design(settings, (*replaced(design.edits, self.edits), *self.edits))

    @property
    def text(self) -> str:
        return "; ".join(in_words(self.edits)) if self.change is None else "{}={}".format(*self.change)


@dataclass(frozen=True)
class Settled:
    """A single change of the best, and how it is settled. worth: the least log time that it took alone beside what was
    the best before, 0 where that is not known; index: the trial that made it to the best, if one did."""

    single: Single
    outcome: Outcome
    worth: float
    index: int | None = None


@dataclass(frozen=True)
class SingleTrial:
    """A single change made to the best, and to what was the best before, with the score that this has."""

    single: Single
    here: Design
    before: tuple[tuple[float, Design], ...]

    def worth(self, context: Context, indices: Mapping[Design, int]) -> float:
        """The least log time that it took alone beside an earlier best, 0 where that is not known."""
        trials = context.state.trials
        scores = [
            score - was
            for was, design in self.before
            if (index := indices.get(design)) is not None and (score := trials[index].score) is not None
        ]
        return min(scores, default=0.0)


@dataclass
class Singles:
    """Remembers the changes of the best, which are a function of the trials so far."""

    name: str = "singles"
    unseen: dict[str, float] = field(default_factory=dict)
    """By kind, as of `unseen`; of the best of the last survey."""
    _best: Design | None = None
    _trials: tuple[SingleTrial, ...] = ()

    def ask(self, context: Context) -> Sequence[Suggestion]:
        run = context.state.run
        if run is not None and run.simulated and run.prior:
            return []
        left = [each for each in self.survey(context) if each.outcome == "open"]
        if not left:
            return []
        single = min(left, key=lambda each: each.worth).single
        design = single.on(context.design(context.state.best))
        why, edits = f"single changes of the best: {single.text}", tuple(map(json.loads, design.edits))
        settings = dict(context.space.point(design.settings))
        return [Suggestion(self.name, settings, why, parent=context.state.best, edits=edits, operator=single.kind)]

    def survey(self, context: Context, decided: bool = False) -> Iterator[Settled]:
        """Every single change of the best. What was proposed counts as settled; where only what is `decided` does, the
        rest of it is open."""
        known = {design: index for index, design in reversed(list(enumerate(context.history.designs)))}
        for change in self._of_the_best(context):
            worth, index = change.worth(context, known), known.get(change.here)
            outcome: Outcome = "lost" if worth >= least_gain(context.state.noise) else "open"
            if index is not None:
                trial = context.state.trials[index]
                outcome = _became(trial) if trial.closed or not decided else "open"
            elif change.single.change is not None and context.history.hopeless(change.here.settings):
                outcome = "avoided"
            yield Settled(change.single, outcome, worth, index)

    def _of_the_best(self, context: Context) -> tuple[SingleTrial, ...]:
        best = context.design(context.state.best)
        if best != self._best:
            marks = context.state.curve[:-1] if context.state.best != START else []
            before = [(0.0, START), *((mark.score, mark.index) for mark in marks)]
            earlier = [(score, context.design(index)) for score, index in before if index != context.state.best]
            drawn = draws(context)
            self.unseen = {kind: unseen(found) for kind, found in drawn.items()}
            found = dict.fromkeys(changes(context, drawn))
            self._trials = tuple(SingleTrial(s, s.on(best), tuple((was, s.on(d)) for was, d in earlier)) for s in found)
            self._best = best
        return self._trials


def _became(trial: Trial) -> Outcome:
    if trial.evaluated:
        return "measured"
    return "known" if trial.gated is not None and trial.gated.verdict == "duplicate" else "refused"


Draws = Mapping[str, Sequence[tuple[str, ...]]]
"""The edits that each draw of a kind made to the best; a draw that finds no place makes none."""


def changes(context: Context, draws: Draws) -> Iterator[Single]:
    """Knobs under the edits of the best, then edits of it, one of each kind in turn."""
    best = context.design(context.state.best)
    if draws and best.edits:
        for settings in context.space.neighbours(best.settings):
            yield Single(KNOB, next(iter(context.space.changes(settings, best.settings).items())))
    for place in range(DRAWS):
        for kind, found in draws.items():
            yield from (Single(kind, edits=edits) for edits in found[place : place + 1])


def draws(context: Context) -> Draws:
    """Of each kind; none if the best is no plan any more."""
    best = context.design(context.state.best)
    base = context.workshop.make(best.settings)
    if not isinstance(base, Candidate):
        return {}
    result = apply(base.schedule, best.parsed)
    hot = Hot(result.schedule, np.random.default_rng(0), roots=result.roots)
    return {kind: list(_drawn(hot, kind, best)) for kind in KINDS}


def unseen(draws: Sequence[tuple[str, ...]]) -> float:
    """The chance that one more draw makes an edit that none of these made, by Good and Turing's estimate: the share of
    draws whose edit was drawn once. 0 where nothing can be drawn."""
    counts = Counter(draws)
    return sum(count == 1 for count in counts.values()) / len(draws) if draws else 0.0


def _drawn(hot: Hot, kind: str, best: Design) -> Iterator[tuple[str, ...]]:
    for _ in range(DRAWS):
        try:
            yield tuple(map(text_of, fresh(KINDS[kind](hot), best.edits)))
        except (LookupError, AmkError):
            continue
