"""Local search: one knob away from the best, and a restart when all of its neighbours are known.

The order of the neighbours is random, but knobs whose changes have paid so far come first. A restart walks from another
good point, or from a random one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from amk.agent.journal.inbox import Suggestion
from amk.agent.propose.base import TRIES, Context
from amk.planner.settings import Settings

ELITE = 8
MEMORY = 150
RESTART = 0.25
"""Share of restarts that begin at a random point instead of a known good one."""


@dataclass(frozen=True)
class Local:
    name: str = "local"

    def ask(self, context: Context) -> Sequence[Suggestion]:
        rng = context.rng(self.name)
        for base, why in self._bases(context, rng):
            if (found := self._neighbour(context, base, rng)) is not None:
                return context.suggest(self.name, found, why)
        for _ in range(TRIES):
            settings = context.space.random(rng)
            if context.is_new(settings):
                return context.suggest(self.name, settings, "restart from a random point")
        return []

    def _bases(self, context: Context, rng: np.random.Generator) -> Iterator[tuple[Settings, str]]:
        scored = sorted(context.scored(), key=lambda pair: pair[1])
        yield scored[0][0], "neighbour of the best"
        if rng.random() < RESTART:
            return
        for settings, _ in scored[1:ELITE]:
            yield settings, "neighbour of another good point"

    def _neighbour(self, context: Context, base: Settings, rng: np.random.Generator) -> Settings | None:
        return next((s for s in knob_by_knob(context, base, rng) if context.is_new(s)), None)


def knob_by_knob(context: Context, base: Settings, rng: np.random.Generator) -> Iterator[Settings]:
    """Neighbours of `base`, one value of every knob before the second of any, so that a switch is not drowned by the
    many values of a size. Knobs whose changes have paid come earlier."""
    by_knob: dict[str, list[Settings]] = {}
    for settings in context.space.neighbours(base):
        by_knob.setdefault(next(iter(context.space.changes(settings, base))), []).append(settings)
    worth = knob_worth(context)
    order = sorted(by_knob, key=lambda name: rng.random() - worth.get(name, 0.0))
    for rank in range(max(map(len, by_knob.values()), default=0)):
        yield from (by_knob[name][rank] for name in order if rank < len(by_knob[name]))


def knob_worth(context: Context) -> dict[str, float]:
    """How often a single change of each knob was an improvement over the point it was made from, in [0, 1].

    Of the latest trials only: every one is compared with every other.
    """
    tried: dict[str, list[float]] = {}
    scores = dict(context.scored()[-MEMORY:])
    for trial in context.state.trials[-MEMORY:]:
        if trial.edited or trial.score is None or trial.decided is None or trial.decided.log_gain is None:
            continue
        settings = context.history.settings[trial.index]
        for other, score in scores.items():
            changed = context.space.changes(settings, other)
            if len(changed) == 1:
                tried.setdefault(next(iter(changed)), []).append(float(trial.score < score))
                break
    return {name: sum(wins) / len(wins) for name, wins in tried.items()}
