"""A system with an open loop, cut into what happens once before, in each period, and once behind.

With P laps to a period, the program of N = P * (peeled + Q) + rest laps is, for each agent, its `before` (with the
first `peeled` periods), Q times its `lap` (P laps each), and its `behind` (the last `rest` laps and the code behind the
loop).
Property: every number in event e of period q is that in period 0 plus q times a slope; in `behind`, plus Q times it.

Errors: `Outside` where a number of arrivals or the choice of a counter grows with the lap, or a box changes its size.
"""

from __future__ import annotations

from dataclasses import dataclass

from amk.systems.flat_judge import ACCUMULATE_FLOAT, READ, WRITE
from amk.systems.loop_recorder import PARTS, LoopAgent, Operation, Part
from amk.systems.loops import LoopSystem

KINDS = {"read": READ, "write": WRITE, "add": ACCUMULATE_FLOAT}


class Outside(ValueError):
    """The system is not of the class that is decided for every number of laps; the message says why."""


@dataclass(frozen=True)
class Event:
    """One operation; `number` is that of its counter or buffer, `slope` what its first number grows by in a period."""

    agent: int
    part: Part
    place: int
    verb: str
    of: str
    first: int
    slope: int
    size: int
    ordering: bool

    @property
    def kind(self) -> int:
        return KINDS[self.verb]


@dataclass(frozen=True)
class Period:
    """Events by agent and part; `length[w]` is how many of agent w are in a period, `ahead[w]` how many before it."""

    laps: int
    peeled: int
    rest: int
    events: tuple[Event, ...]
    length: tuple[int, ...]
    ahead: tuple[int, ...]

    def number(self, periods: int) -> int:
        """Laps of the program with this many periods."""
        return self.laps * (self.peeled + periods) + self.rest


def period_of(system: LoopSystem, peeled: int, rest: int) -> Period:
    laps = system.period
    events: list[Event] = []
    length, ahead = [], []
    for number, agent in enumerate(system.agents):
        parts = {part: _placed(number, agent, part, laps, peeled, rest) for part in PARTS}
        events += [event for part in PARTS for event in parts[part]]
        length.append(len(parts["lap"]))
        ahead.append(len(parts["before"]))
    return Period(laps, peeled, rest, tuple(events), tuple(length), tuple(ahead))


def _placed(number: int, agent: LoopAgent, part: Part, laps: int, peeled: int, rest: int) -> list[Event]:
    first = peeled * laps
    code: list[tuple[Operation, int]]
    if part == "before":
        code = [(op, 0) for op in agent.code["before"]]
        code += [(op, lap) for lap in range(first) for op in agent.code["lap"]]
    elif part == "lap":
        code = [(op, first + k) for k in range(laps) for op in agent.code["lap"]]
    else:
        code = [(op, first + k) for k in range(rest) for op in agent.code["lap"]]
        code += [(op, first + rest) for op in agent.code["behind"]]
    return [_event(number, part, place, op, lap, laps) for place, (op, lap) in enumerate(code)]


def _event(agent: int, part: Part, place: int, operation: Operation, lap: int, laps: int) -> Event:
    slope = 0 if part == "before" else operation.numbers[0].step(laps)
    shown = f"{operation.source[0]}:{operation.source[1]}"
    if operation.of.number is not None and operation.of.number.step(laps) != 0:
        raise Outside(f"{shown}: which of {operation.of.name} is meant grows with the lap")
    if operation.verb == "signal" and operation.numbers[0].step(laps) != 0:
        raise Outside(f"{shown}: the number of arrivals grows with the lap")
    if len(operation.numbers) > 1 and operation.numbers[1].step(laps) != operation.numbers[0].step(laps):
        raise Outside(f"{shown}: the size of the box grows with the lap")
    first = operation.numbers[0].at(lap)
    size = operation.numbers[-1].at(lap) - first
    ordering = operation.order != "relaxed"
    return Event(agent, part, place, operation.verb, operation.of.at(lap), first, slope, size, ordering)
