"""Beam search over prefixes: knobs are decided one by one, constraints first, on the simulator instead of a GPU.

A prefix is a set of decided knobs; the rest keeps the incumbent's values. Prefixes that cannot be planned are cut,
those that lower to a kernel already in the beam are dominated, and the `WIDTH` best by the model survive. All that was
estimated on the way is proposed best first. When nothing of it is new, a beam is grown around the next best measured
point; when those are used up the proposer is silent, which is the fallback of whoever asked it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from amk.agent.candidate import Candidate
from amk.agent.propose.base import Context, Item, Suggestion
from amk.agent.space import Knob, moved
from amk.planner.settings import Settings
from amk.simulator.predict import Simulator

WIDTH = 10
LEAVES = 120
ROOTS = 4


@dataclass
class Beam:
    """`model` estimates; it is never told what the simulator's constants are."""

    model: Simulator = field(default_factory=Simulator)
    name: str = "beam"
    _grown: dict[tuple[Settings, frozenset[frozenset[Item]]], list[Settings]] = field(default_factory=dict)
    _estimates: dict[str, float] = field(default_factory=dict)

    def ask(self, context: Context) -> Sequence[Suggestion]:
        roots = sorted(context.scored(), key=lambda pair: pair[1])[:ROOTS]
        for root, _ in roots:
            key = root, context.history.blocked
            if key not in self._grown:
                self._grown[key] = self.grow(context, root)
            for leaf in self._grown[key]:
                if context.is_new(leaf):
                    return context.suggest(self.name, leaf, "best leaf of the beam by the simulator")
        return []

    def grow(self, context: Context, root: Settings) -> list[Settings]:
        """Leaves around `root`, best estimate first."""
        beam: dict[str, tuple[float, Settings]] = {}
        self._add(context, beam, root)
        everything = dict(beam)
        for knob in constraint_first(context.space.knobs):
            wider = dict(beam)
            for _, settings in beam.values():
                for value in knob.values:
                    self._add(context, wider, moved(settings, {knob.name: value}))
            everything |= wider
            beam = dict(sorted(wider.items(), key=lambda item: item[1][0])[:WIDTH])
        ranked = sorted(everything.values(), key=lambda pair: pair[0])
        return [settings for _, settings in ranked[:LEAVES]]

    def _add(self, context: Context, beam: dict[str, tuple[float, Settings]], settings: Settings) -> None:
        if context.history.hopeless(settings):
            return
        made = context.workshop.make(settings)
        if isinstance(made, Candidate) and made.key not in beam:
            beam[made.key] = (self.estimate(context, made), settings)

    def estimate(self, context: Context, made: Candidate) -> float:
        if made.key not in self._estimates:
            run = context.state.run
            positions = run.positions if run else (128,)
            self._estimates[made.key] = sum(self.model.step_ms(made.schedule, p) for p in positions[1:2] or positions)
        return self._estimates[made.key]


def constraint_first(knobs: Sequence[Knob]) -> list[Knob]:
    """Knobs that claim shared memory and registers before those that only order work."""
    tight = ("warps", "chunk_bytes", "max_ring_bytes", "slots")
    return sorted(knobs, key=lambda k: tight.index(k.name) if k.name in tight else len(tight))
