"""Everything that has paid at once: the changes that made single steps faster, together, on the best point.

Effects of knobs nearly add up on a logarithmic scale. From all measured points a linear model of log time is fitted,
one coefficient a knob value, drawn towards zero; the best value of each knob that gains more than the noise goes into
one proposal. When that was tried, the proposals with one of those values less follow, the least valuable first; when
those were tried, single changes, so that more is known, and then pairs of changes that paid alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from amk.agent.decide.keep import least_gain, percent
from amk.agent.journal.inbox import Suggestion
from amk.agent.propose.base import Context
from amk.agent.propose.local import knob_by_knob
from amk.planner.settings import Settings
from amk.planner.space import Value, moved

RIDGE = 0.3
"""Pull of a coefficient towards zero, in observations."""

MEMORY = 300
"""Latest trials that are looked at."""

NOISE = 0.002
"""Log gain below which a value is left as it is."""

WORST = 0.5
"""Log times above this say that something is broken; how much is of no interest."""

WORTH_TRYING = 0.75
"""Share of the gain that a keep needs, below which the changes that pay near the best are not tried together."""

Effect = tuple[float, str, Value]


@dataclass(frozen=True)
class Paid:
    """Three and more changes of the best that pay, by themselves and beside one other: as many as there are first."""

    name: str = "combine"

    def ask(self, context: Context) -> Sequence[Suggestion]:
        base, paid = context.incumbent(), context.neighbourhood.paid(context)
        for count in range(len(paid), 2, -1):
            total = -sum(worth for worth, _ in paid[:count])
            settings = moved(base, dict(change for _, change in paid[:count]))
            if total >= WORTH_TRYING * least_gain(context.state.noise) and context.is_new(settings):
                return context.suggest(self.name, settings, f"{count} changes that pay, {percent(total)} in sum")
        return []


@dataclass(frozen=True)
class Combine:
    name: str = "combine"

    def ask(self, context: Context) -> Sequence[Suggestion]:
        base = context.leader()
        for settings in combinations(base, effects(context, base)):
            if context.is_new(settings):
                return context.suggest(self.name, settings, "the changes that paid, together")
        for settings in knob_by_knob(context, base, context.rng(self.name)):
            if context.is_new(settings):
                return context.suggest(self.name, settings, "a single change, to know what it is worth")
        for settings in context.paying_pairs(base):
            if context.is_new(settings):
                return context.suggest(self.name, settings, "two changes that paid alone")
        return []


def combinations(base: Settings, effects: list[Effect]) -> Iterator[Settings]:
    """All effects at once, then all but one, then ever fewer of the greatest."""
    values: dict[str, Value] = {name: value for _, name, value in effects}
    if len(values) < 2:
        return
    yield moved(base, values)
    for _, left_out, _ in reversed(effects):
        yield moved(base, {name: value for name, value in values.items() if name != left_out})
    for count in range(len(effects) - 2, 1, -1):
        yield moved(base, {name: value for _, name, value in effects[:count]})


def effects(context: Context, base: Settings) -> list[Effect]:
    """(log gain, knob, value) of the best value of each knob in which it beats that of `base`, greatest gain first."""
    everything = dict(context.scored())
    recent = dict(list(everything.items())[-MEMORY:]) | {base: everything[base]}
    scored = list(recent.items())
    columns = {(k.name, v): i for i, (k, v) in enumerate((k, v) for k in context.space.knobs for v in k.values)}
    x = np.zeros((len(scored), len(columns)))
    for row, (settings, _) in enumerate(scored):
        for knob in context.space.knobs:
            x[row, columns[knob.name, getattr(settings, knob.name)]] = 1.0
            x[row, columns[knob.name, getattr(base, knob.name)]] -= 1.0
    origin = everything[base]
    y = np.array([min(score - origin, WORST) for _, score in scored])
    beta = np.linalg.solve(x.T @ x + RIDGE * np.eye(len(columns)), x.T @ y)
    found: list[Effect] = []
    for knob in context.space.knobs:
        here = getattr(base, knob.name)
        gains = [(float(beta[columns[knob.name, here]] - beta[columns[knob.name, v]]), v) for v in knob.values]
        gain, value = max(gains, key=lambda pair: pair[0])
        if gain > NOISE and value != here:
            found.append((gain, knob.name, value))
    return sorted(found, key=lambda effect: -effect[0])
