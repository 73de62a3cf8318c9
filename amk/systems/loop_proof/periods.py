"""A program cut into periods of laps, event by event, and spelled out as a flat system.

Each agent has three parts: `before`, which includes the first `peeled` periods; Q times `lap`; and `behind`, the last
`rest` laps and the code behind the loop. With P laps to a period these are N = P * (peeled + Q) + rest laps. A line
(first, slope) is first + slope * q in period q, and first + slope * Q behind the loop.

A copy is an agent. What one place of a period issues in each period is one agent here. `order` checks that this is no
other system (`Cut.copies`). Property: apart from that, `spelled` of Q periods is the file's system.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from amk.systems.loop_proof.numbers import Number, need
from amk.systems.loop_proof.program import Agent, Call, Program
from amk.systems.rule_numbers import (
    ADD,
    ASYNC,
    AT_LEAST,
    COMPLETE,
    EXPECT,
    FENCE,
    GENERIC,
    NEXT_PHASE,
    ONLY_EXPECT,
    PARITY,
)

Part = Literal["before", "lap", "behind"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)
Json = dict[str, Any]
Line = tuple[int, int]
READ, WRITE, FLOAT = 0, 1, 3
KINDS: Final = {"read": READ, "write": WRITE, "add": FLOAT}
MOST_BYTES: Final = 1 << 44


@dataclass(frozen=True)
class Event:
    """does: wait, signal, touch or fence; of: counter or buffer; line: threshold, amount or first byte.

    value: texts, integers and lines; None: nothing in particular.
    """

    agent: int
    part: Part
    place: int
    does: str
    of: int
    line: Line
    rule: int = 0
    strong: bool = True
    size: int = 0
    kind: int = 0
    value: tuple[Any, ...] | None = None
    proxy: int = GENERIC

    @property
    def key(self) -> tuple[int, str, int]:
        return self.agent, self.part, self.place


@dataclass
class Cut:
    """events by agent and part. copies: what issues a copy in each period, and the copy's last event; late: the same
    of the second half of a store."""

    peeled: int
    rest: int
    laps: int
    agents: list[dict[Part, list[Event]]]
    counters: list[tuple[int, int, int]]
    places: list[tuple[int, int, int]]
    initial: list[tuple[Any, ...]]
    buffers: list[str]
    names: list[str]
    copies: list[tuple[Event, Event]] = field(default_factory=list)
    late: list[tuple[Event, Event]] = field(default_factory=list)

    def length(self, agent: int) -> int:
        return len(self.agents[agent]["lap"])

    def ahead(self, agent: int) -> int:
        return len(self.agents[agent]["before"])

    def events(self) -> list[Event]:
        return [event for parts in self.agents for part in PARTS for event in parts[part]]


def cut(program: Program, laps: int, peeled: int, rest: int) -> Cut:
    """laps: of a period, a multiple of the program's own."""
    return _Cutter(program, laps, peeled, rest, None).cut


def unrolled(program: Program, number: int) -> Cut:
    """All of `number` laps, as what comes before a loop of no events."""
    return _Cutter(program, 1, 0, 0, number).cut


class _Cutter:
    def __init__(self, program: Program, laps: int, peeled: int, rest: int, all_laps: int | None) -> None:
        self.program, self.laps, self.all_laps = program, laps, all_laps
        places = [agent.place for agent in program.agents]
        parts: list[dict[Part, list[Event]]] = [{part: [] for part in PARTS} for _ in program.agents]
        self.cut = Cut(
            peeled,
            rest,
            laps,
            parts,
            list(program.counters),
            places,
            program.initial,
            program.buffers,
            list(program.names),
        )
        for number, agent in enumerate(program.agents):
            groups = _Groups(self)
            for part in PARTS:
                calls = self.calls(agent, part)
                groups.enter(part, calls)
                for call, k in calls:
                    self.put(number, part, call, k, groups)

    def calls(self, agent: Agent, part: Part) -> list[tuple[Call, int]]:
        """Of a part, each with its lap; a lap of a loop with that of the first period."""
        skipped = self.cut.peeled * self.laps
        if self.all_laps is not None:
            n = self.all_laps
            laps = [(call, k) for k in range(n) for call in agent.lap]
            whole = [*((call, 0) for call in agent.before), *laps, *((call, n) for call in agent.behind)]
            return whole if part == "before" else []
        if part == "before":
            return [*((call, 0) for call in agent.before), *((call, k) for k in range(skipped) for call in agent.lap)]
        if part == "lap":
            return [(call, skipped + k) for k in range(self.laps) for call in agent.lap]
        last = [(call, skipped + k) for k in range(self.cut.rest) for call in agent.lap]
        return [*last, *((call, skipped + self.cut.rest) for call in agent.behind)]

    def line(self, number: Number, k: int, part: Part) -> Line:
        if part == "before":
            return number.at(k), 0
        slope = number.shape[1] * self.laps
        need(slope == int(slope) and self.laps % number.shape[0] == 0, "a number does not repeat with the period")
        return number.at(k), int(slope)

    def fixed(self, call: Call, key: str, k: int, part: Part) -> int:
        first, slope = self.line(call.numbers[key], k, part)
        what = {"number": "which counter is meant", "parity": "the parity"}.get(key, "the number of arrivals or bytes")
        need(slope == 0, f"{call.statement['source'] or ''}: {what} grows with the lap")
        return first

    def counter(self, call: Call, k: int, part: Part) -> int:
        if "number" in call.numbers:
            self.fixed(call, "number", k, part)
        return self.program.counter(call, k)

    def put(self, agent: int, part: Part, call: Call, k: int, groups: _Groups) -> None:
        """The events of a call."""
        said = call.statement
        match said["do"]:
            case "wait" | "wait_parity" | "signal" | "arrive" | "expect" | "sync" | "wait_others":
                self.at_counter(agent, part, call, k)
            case "read" | "write" | "add" as verb:
                proxy = ASYNC if said["proxy"] == "async" else GENERIC
                self.touch(agent, part, KINDS[verb], self.box(call, "", k, part), call, k, proxy, part)
            case "load" | "store":
                self.copy(agent, part, call, k, groups)
            case "commit":
                groups.closed += 1
            case "wait_group":
                for of, line in groups.waits(part, said["most"], said["read"]):
                    self.add(agent, part, "wait", of, line)
            case "fence_async":
                self.add(agent, part, "fence", 0, (0, 0), proxy=FENCE)
            case _:
                need(False, "a statement is unknown")

    def at_counter(self, agent: int, part: Part, call: Call, k: int) -> None:
        """Waits and signals."""
        said, numbers = call.statement, call.numbers
        strong = said.get("order", "release") != "relaxed"
        match said["do"]:
            case "wait":
                of = self.counter(call, k, part)
                need(not self.cut.counters[of][1], "a barrier is used as a counter")
                self.add(agent, part, "wait", of, self.line(numbers["at_least"], k, part), strong=strong)
            case "wait_parity":
                parity = self.fixed(call, "parity", k, part)
                need(parity in (0, 1), "a parity is neither 0 nor 1")
                self.add(agent, part, "wait", self.barrier(call, k, part), (parity, 0), PARITY, strong)
            case "sync" | "wait_others" as verb:
                of = self.barrier(call, k, part)
                if verb == "sync":
                    self.add(agent, part, "signal", of, (1, 0))
                self.add(agent, part, "wait", of, (0, 0), NEXT_PHASE)
            case verb:
                key = {"signal": "amount", "arrive": "count", "expect": "bytes"}[verb]
                of = self.counter(call, k, part) if verb == "signal" else self.barrier(call, k, part)
                need(verb != "signal" or not self.cut.counters[of][1], "a barrier is used as a counter")
                rule = ADD if verb != "expect" else EXPECT if said["arrives"] else ONLY_EXPECT
                amount = self.fixed(call, key, k, part)
                need(0 < amount < 1 << 32, "an amount is not positive")
                self.add(agent, part, "signal", of, (amount, 0), rule, strong)

    def barrier(self, call: Call, k: int, part: Part) -> int:
        of = self.counter(call, k, part)
        need(self.cut.counters[of][1] > 0, "a counter is used as a barrier")
        return of

    def box(self, call: Call, end: str, k: int, part: Part) -> tuple[int, Line, int]:
        """Buffer, first byte, size."""
        said = call.statement if not end else call.statement[end]
        lo, hi = (self.line(call.numbers[f"{end}/{key}" if end else key], k, part) for key in ("lo", "hi"))
        need(lo[1] == hi[1], f"{call.statement['source'] or ''}: the size of the box grows with the lap")
        need(0 <= lo[0] < hi[0] and lo[1] >= 0, f"{call.statement['source'] or ''}: the box is empty or negative")
        return self.program.buffer(said["buffer"]), lo, hi[0] - lo[0]

    def touch(
        self, agent: int, own: Part, kind: int, box: tuple[int, Line, int], call: Call, k: int, proxy: int, part: Part
    ) -> Event:
        """own: the part of the agent that touches; part: that of the call, which says how its numbers grow."""
        value = None
        if call.value is not None:
            value = tuple(self.line(one, k, part) if isinstance(one, Number) else one for one in call.value)
        return self.add(agent, own, "touch", box[0], box[1], 0, True, box[2], kind, value, proxy)

    def copy(self, agent: int, part: Part, call: Call, k: int, groups: _Groups) -> None:
        """A bulk copy: an agent that runs when it is issued."""
        store = call.statement["do"] == "store"
        # a copy that is not of the loop has no loop, and all of it is behind
        own: Part = "behind" if part == "before" and self.all_laps is None else part
        issued = self.new_counter()
        issue = self.add(agent, part, "signal", issued, (1, 0))
        number = self.new_agent(agent, f"a {call.statement['do']}")
        self.add(number, own, "wait", issued, (1, 1 if part == "lap" else 0))
        near = self.box(call, "", k, part)
        end = "target" if store else "origin"
        far = None if call.statement[end] is None else self.box(call, end, k, part)
        sixteens = [n for box in (near, far) if box is not None for n in (*box[1], box[2])]
        need(all(n % 16 == 0 for n in sixteens), "a bulk copy is not of multiples of 16 bytes")
        if store:
            self.touch(number, own, READ, near, call, k, ASYNC, part)
            read, written = groups.store()
            last = self.add(number, own, "signal", read, (1, 0))
            if far is None:
                last = self.add(number, own, "signal", written, (1, 0))
            else:
                self.late(agent, own, part, call, k, far, (issue, read, written))
        else:
            if far is not None:
                self.touch(number, own, READ, far, call, k, ASYNC, part)
            self.touch(number, own, WRITE, near, call, k, ASYNC, part)
            last = self.add(number, own, "signal", self.barrier(call, k, part), (near[2], 0), COMPLETE)
        if part == "lap":
            self.cut.copies.append((issue, last))

    def late(
        self, agent: int, own: Part, part: Part, call: Call, k: int, far: tuple[int, Line, int],
        of: tuple[Event, int, int],
    ) -> None:  # fmt: skip
        """The second half of a store, which may take longer than what comes after the first: an agent of its own."""
        issue, read, written = of
        number = self.new_agent(agent, "a store, when it writes,")
        self.add(number, own, "wait", read, (1, 1 if part == "lap" else 0))
        self.touch(number, own, WRITE, far, call, k, ASYNC, part)
        last = self.add(number, own, "signal", written, (1, 0))
        if part == "lap":
            self.cut.late.append((issue, last))

    def new_agent(self, agent: int, what: str) -> int:
        """One that an agent starts."""
        self.cut.agents.append({part: [] for part in PARTS})
        self.cut.places.append(self.cut.places[agent])
        self.cut.names.append(f"{what} of {self.cut.names[agent]}")
        return len(self.cut.agents) - 1

    def new_counter(self) -> int:
        """One that no statement names."""
        self.cut.counters.append((0, 0, 3))
        return len(self.cut.counters) - 1

    def add(self, agent: int, part: Part, *rest: Any, **more: Any) -> Event:
        event = Event(agent, part, len(self.cut.agents[agent][part]), *rest, **more)
        self.cut.agents[agent][part].append(event)
        return event


class _Groups:
    """Groups of stores of an agent. Each store has two counters: of what it has read, and written.

    In a loop, a wait leaves out stores from before it which only later periods would wait for: stores end by
    themselves, so that leaving them out blocks nobody less than before for ever, and makes less known.
    """

    def __init__(self, cutter: _Cutter) -> None:
        self.cutter, self.closed, self.each = cutter, 0, 0
        self.stores: list[tuple[Part, int, tuple[int, int]]] = []
        self.coming: list[tuple[Part, int, tuple[int, int]]] = []

    def enter(self, part: Part, calls: list[tuple[Call, int]]) -> None:
        group, self.coming = self.closed, []
        for call, _ in calls:
            group += call.statement["do"] == "commit"
            if call.statement["do"] == "store":
                self.coming.append((part, group, (self.cutter.new_counter(), self.cutter.new_counter())))
        if part == "lap":
            self.each = group - self.closed
            self.stores += self.coming

    def store(self) -> tuple[int, int]:
        entry = self.coming.pop(0)
        if entry[0] != "lap":
            self.stores.append(entry)
        return entry[2]

    def waits(self, part: Part, most: int, read: bool) -> list[tuple[int, Line]]:
        """Counters and thresholds: of group g of period i, those with g + i * each below what is closed but `most`."""
        found, upto = [], self.closed - most
        for of, group, counters in self.stores:
            counter = counters[0 if read else 1]
            if of != "lap":
                found += [(counter, (1, 0))] if group < upto else []
            elif self.each:
                periods = -((group - upto) // self.each)
                # behind the loop, `closed` counts one of its periods
                found.append((counter, (periods if part == "lap" else min(0, periods - 1), 1)))
        return found


@dataclass(frozen=True)
class Spelled:
    """A flat system's columns, and the event and period of each of its events."""

    block: Json
    orders: Json
    index: list[tuple[Event, int]]

    def document(self) -> Json:
        return {"format": "amk.flat/1", "systems": {"block": self.block}, "orders": self.orders}


def spelled(cut: Cut, periods: int) -> Spelled:
    """The system of so many periods."""
    index, first = [], [0]
    for parts in cut.agents:
        index += [(event, 0) for event in parts["before"]]
        index += [(event, q) for q in range(periods) for event in parts["lap"]]
        index += [(event, periods) for event in parts["behind"]]
        first.append(len(index))
    block: Json = {"format": "amk.system/1", "agent_first": first, "counter_init": [one[0] for one in cut.counters]}
    orders: Json = {name: [] for name in ("wait", "signal", "wait_rule", "signal_rule")}
    tables: dict[str, list[list[int]]] = {"wait": [], "signal": [], "access": []}
    firsts: dict[str, list[int]] = {table: [0] for table in tables}
    values: dict[tuple[Any, ...], int] = {}
    for event, q in index:
        number = event.line[0] + event.line[1] * q
        if event.does in ("wait", "signal"):
            tables[event.does].append([event.of, max(0, number)])
            orders[event.does].append(int(event.strong))
            orders[f"{event.does}_rule"].append(event.rule)
        elif event.does == "touch":
            value = -1 if event.value is None else values.setdefault(at(event.value, q), len(values))
            tables["access"].append([event.of, number, number + event.size, event.kind, value, 0])
        for table in tables:
            firsts[table].append(len(tables[table]))
    keys = {"wait": ("counter", "threshold"), "signal": ("counter", "amount"),
            "access": ("buffer", "lo", "hi", "kind", "value", "delta")}  # fmt: skip
    for table, names in keys.items():
        block[f"{table}_first"] = firsts[table]
        block |= {f"{table}_{name}": [row[k] for row in tables[table]] for k, name in enumerate(names)}
    contents = [(b, lo, hi, -1 if v is None else values.setdefault(v, len(values)), 0) for b, lo, hi, v in cut.initial]
    for k, name in enumerate(("buffer", "lo", "hi", "value", "delta")):
        block |= {f"initial_{name}": [row[k] for row in contents], f"final_{name}": []}
    orders |= {"phase": [one[1] for one in cut.counters], "scope": [one[2] for one in cut.counters]}
    orders |= {name: [place[k] for place in cut.places] for k, name in enumerate(("gpu", "cluster", "cta"))}
    orders["proxy"] = [event.proxy for event, _ in index]
    return Spelled(block, orders, index)


def at(value: tuple[Any, ...], q: int) -> tuple[Any, ...]:
    """A value in period q."""
    return tuple(part[0] + part[1] * q if isinstance(part, tuple) else part for part in value)


__all__ = ["AT_LEAST", "PARITY", "Cut", "Event", "Line", "Part", "Spelled", "at", "cut", "spelled", "unrolled"]
