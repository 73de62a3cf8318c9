"""The population: MAP-Elites (Mouret and Clune, 2015, "Illuminating search spaces by mapping elites").

Every measured design falls into a cell by two descriptors, and a cell keeps its fastest:

* bottleneck: the phase of a layer that loses most time to anything but memory, and to what (simulated). It is "" where
  nobody may ask the simulator.
* structure: which families of edits the design has beyond its settings (hand-offs, order of steps, shares, memory,
  work). It is "plan" if it has none.

So a design that is slower than the best, but held up elsewhere or built differently, stays a parent: its edits may
help the best once they are merged. Designs that are further than WITHIN behind the best are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from amk.agent.decide.rulings import promised
from amk.agent.gate.candidate import Candidate
from amk.agent.gate.design import Design, edit_of
from amk.agent.journal.state import START
from amk.agent.propose.base import Context
from amk.agent.tools.time_by_step import StepTimes, step_times
from amk.report.diagnostic import AmkError
from amk.schedule_ir.edits import kinds

WITHIN = 0.05
"""Log time behind the best."""
TIE = 0.001
"""Of two in a cell that differ by less than this, the one with fewer edits is kept: what does not matter goes."""
POSITION = 1
"""Which of the run's positions the descriptor is of."""

FAMILIES: dict[str, str] = {
    "add_wait": "hand-offs", "drop_wait": "hand-offs", "set_wait": "hand-offs", "add_signal": "hand-offs",
    "drop_signal": "hand-offs", "set_signal": "hand-offs", "split_waits": "hand-offs", "split_signals": "hand-offs",
    "fuse": "hand-offs", "move": "order", "swap": "order", "add": "order", "remove": "order", "split_loop": "order",
    "set_loop": "order", "share": "shares", "set_table": "shares", "set": "memory", "set_header": "memory",
    "declare": "memory", "withdraw": "memory", "set_op": "work", "replace": "work",
}  # fmt: skip
"""Kind of edit -> family."""

NOWHERE = StepTimes({}, "", 0.0)


@dataclass(frozen=True)
class Elite:
    """The fastest of its cell. index: its trial; score: log time relative to the start."""

    index: int
    design: Design
    score: float
    cell: tuple[str, str]


@dataclass
class Archive:
    """A function of the trials; remembers where the time of a design goes, which is the costly part."""

    _times: dict[int, StepTimes] = field(default_factory=dict)

    def elites(self, context: Context) -> list[Elite]:
        """One a cell, the fastest first."""
        scored = scores(context)
        best = min(score for _, score in scored)
        found: dict[tuple[str, str], Elite] = {}
        for index, score in scored:
            if score > best + WITHIN:
                continue
            design = context.design(index)
            cell = self._bottleneck(context, index), structure(design)
            known = found.get(cell)
            if known is None or _better(score, design, known):
                found[cell] = Elite(index, design, score, cell)
        return sorted(found.values(), key=lambda elite: elite.score)

    def _bottleneck(self, context: Context, index: int) -> str:
        """As the gate saw it where it simulated the design: a simulation takes longer than a pilot on a device."""
        run, gated = context.state.run, context.state.trials[index].gated if index != START else None
        if run is not None and run.prior and gated is not None and gated.bottleneck:
            return gated.bottleneck
        return self.times(context, index).bottleneck

    def times(self, context: Context, index: int) -> StepTimes:
        """Of a trial or of the start; `NOWHERE` where nobody may ask the simulator, or it cannot tell."""
        run = context.state.run
        if run is None or not run.prior:
            return NOWHERE
        if index not in self._times:
            candidate, times = context.workshop.make(context.design(index)), NOWHERE
            with suppress(AmkError):
                if isinstance(candidate, Candidate):
                    times = step_times(context.workshop.simulator.predict(candidate.schedule, position_of(context)))
            self._times[index] = times
        return self._times[index]


def position_of(context: Context) -> int:
    """The position at which the simulator is asked: neither the shortest text nor a long one."""
    positions = context.state.run.positions if context.state.run is not None else (128,)
    return positions[min(POSITION, len(positions) - 1)]


def scores(context: Context) -> list[tuple[int, float]]:
    """Measured designs with their log time relative to the start, the start first, in order of trial."""
    found = [(START, 0.0)]
    for trial in context.state.trials:
        if (score := trial.score if trial.closed else promised(context.state, trial)) is not None:
            found.append((trial.index, score))
    return found


def structure(design: Design) -> str:
    return "+".join(sorted({family(text) for text in design.edits})) or "plan"


def family(text: str) -> str:
    return FAMILIES[edit_of(text).do]


def _better(score: float, design: Design, elite: Elite) -> bool:
    if abs(score - elite.score) < TIE:
        return len(design.edits) < len(elite.design.edits)
    return score < elite.score


def place(edit: kinds.Edit) -> tuple[str, ...]:
    """What an edit is about: of two edits of one place the later undoes the earlier."""
    fields = edit.model_dump(mode="json")
    group = "wait" if edit.do in ("set_wait", "drop_wait") else "signal" if "_signal" in edit.do else edit.do
    names = ("node", "counter", "nth", "of", "name", "field", "matrix", "worker")
    return (group, *(f"{name}={fields[name]}" for name in names if fields.get(name) is not None))


def fresh(edits: Sequence[kinds.Edit], old: Sequence[str]) -> Iterator[kinds.Edit]:
    """The edits, what they add under names that the old ones do not use."""
    for edit in edits:
        name = getattr(edit, "name", "")
        if isinstance(name, str) and name.startswith("+"):
            edit = edit.model_copy(update={"name": f"{name}{len(old)}"})
        yield edit


def replaced(old: Sequence[str], new: Sequence[str]) -> tuple[str, ...]:
    """Without the edits that the new ones undo."""
    undone = {place(edit_of(text)) for text in new}
    return tuple(text for text in old if place(edit_of(text)) not in undone)


def merged(one: Sequence[str], other: Sequence[str]) -> tuple[str, ...]:
    """The edits of one, then those of the other that are about something else."""
    taken = {place(edit_of(text)) for text in one}
    named, gone = {_node(text) for text in one}, {_node(text) for text in one if edit_of(text).do == "remove"}

    def goes(text: str) -> bool:
        undone = named if edit_of(text).do == "remove" else gone
        return place(edit_of(text)) not in taken and _node(text) not in undone - {None}

    return (*one, *filter(goes, other))


def _node(text: str) -> str | None:
    """The step that the edit is about, if the schedule has it."""
    edit = edit_of(text)
    return None if isinstance(edit, kinds.Add) else getattr(edit, "node", None)
