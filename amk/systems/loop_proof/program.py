"""The agents of a file, as what they do before the open loop, in each lap, and behind it.

`document` is the file's JSON with all keys (`LoopDocument.model_dump`), of which the schema has been checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import lcm
from typing import Any, Final

from amk.systems.loop_proof.numbers import MOST_LAPS, Number, need, number

Json = dict[str, Any]
NUMBERS: Final = ("number", "at_least", "amount", "count", "bytes", "parity", "lo", "hi")
MOST: Final = 1 << 16
"""Statements, closed loops unrolled."""
SCOPES: Final = ("cta", "cluster", "gpu", "sys")
Value = tuple[Any, ...] | None


@dataclass(frozen=True)
class Call:
    """A statement with its numbers; `value`: texts, integers and numbers."""

    statement: Json
    numbers: dict[str, Number]
    value: tuple[Any, ...] | None

    def all_numbers(self) -> Iterator[Number]:
        yield from self.numbers.values()
        yield from (part for part in self.value or () if isinstance(part, Number))


@dataclass
class Agent:
    """looped: it has the open loop. Without one, everything is `behind`."""

    place: tuple[int, int, int]
    looped: bool = False
    before: list[Call] = field(default_factory=list)
    lap: list[Call] = field(default_factory=list)
    behind: list[Call] = field(default_factory=list)


class Program:
    """For given values of all parameters but `count`, the number of laps (None: there is no open loop)."""

    def __init__(self, document: Json, values: Mapping[str, int], count: str | None) -> None:
        self.count, self.left = count, MOST
        known = self.values = dict(values)
        self.counters: list[tuple[int, int, int]] = []
        """Initial value, arrivals of a phase, scope."""
        self.counter_of: dict[str, tuple[int, int | None]] = {}
        for one in document["counters"]:
            size = None if one["size"] is None else number(one["size"], known, None).at(0)
            need(one["name"] not in self.counter_of and (size is None or 0 < size <= MOST), "counters: malformed")
            self.counter_of[one["name"]] = (len(self.counters), size)
            init = number(one["init"], known, None).at(0)
            phase = 0 if one["arrivals"] is None else number(one["arrivals"], known, None).at(0)
            need(init >= 0 and phase >= (one["arrivals"] is not None) and not (init and phase), "counters: malformed")
            self.counters += [(init, phase, SCOPES.index(one["scope"]))] * (1 if size is None else size)
        self.buffers = [buffer["name"] for buffer in document["buffers"]]
        self.sizes = [number(buffer["size"], known, None).at(0) for buffer in document["buffers"]]
        need(len(set(self.buffers)) == len(self.buffers), "buffers: malformed")
        self.initial = [
            (self.buffer(one["buffer"]), *(number(one[key], known, None).at(0) for key in ("lo", "hi")),
             _fixed(self.value(one["value"], known, None)))
            for one in document["initial"]
        ]  # fmt: skip
        self.agents = []
        self.names = [one["name"] for one in document["agents"]]
        for one in document["agents"]:
            cta, cluster, gpu = (number(one[key], known, None).at(0) for key in ("cta", "cluster", "gpu"))
            agent = Agent((gpu, cluster, cta))
            self.code(agent, one["code"], known)
            if not agent.looped:
                agent.behind = agent.before + agent.behind
                agent.before = []
            self.agents.append(agent)

    @property
    def period(self) -> int:
        """Laps after which every number repeats, but for what it grows by."""
        shapes = [
            n.shape[0]
            for a in self.agents
            for code in (a.before, a.lap, a.behind)
            for c in code
            for n in c.all_numbers()
        ]
        found = lcm(*shapes)
        need(found <= MOST_LAPS, "the loop repeats after too many laps")
        return found

    def code(self, agent: Agent, statements: list[Json], values: dict[str, int]) -> None:
        """The statements of an agent outside of the open loop."""
        for statement in statements:
            if statement["do"] == "loop":
                self.loop(agent, statement, values)
                continue
            behind = agent.looped or bool(agent.behind)
            call = self.call(statement, values, self.count)
            if self.count is not None and any(n.uses(self.count) for n in call.all_numbers()):
                behind = True
            (agent.behind if behind else agent.before).append(call)

    def loop(self, agent: Agent, loop: Json, values: dict[str, int]) -> None:
        need(loop["index"] not in values and loop["index"] != self.count, "the index of a loop means something else")
        turns = number(loop["count"], values, self.count)
        if self.count is not None and turns.uses(self.count):
            need(
                loop["count"] == self.count and not agent.looped and not agent.behind,
                "an open loop is not the only one",
            )
            agent.looped = True
            agent.lap += self.inner(loop["code"], values, loop["index"])
            return
        count = turns.at(0)
        self.spend(max(0, count))
        for turn in range(count):
            self.code(agent, loop["code"], {**values, loop["index"]: turn})

    def inner(self, statements: list[Json], values: dict[str, int], lap: str) -> list[Call]:
        """The statements of a lap of the open loop."""
        found: list[Call] = []
        for statement in statements:
            if statement["do"] != "loop":
                call = self.call(statement, values, lap)
                need(
                    not any(n.uses(self.count or "") for n in call.all_numbers()), "the open count is used in its loop"
                )
                found.append(call)
                continue
            index, turns = statement["index"], number(statement["count"], values, lap)
            need(index not in values and index not in (lap, self.count), "the index of a loop means something else")
            need(not turns.uses(lap) and not turns.uses(self.count or ""), "an open loop is not the only one")
            self.spend(max(0, turns.at(0)))
            for turn in range(turns.at(0)):
                found += self.inner(statement["code"], {**values, index: turn}, lap)
        return found

    def call(self, statement: Json, values: dict[str, int], lap: str | None) -> Call:
        self.spend(1)
        numbers = {key: number(statement[key], values, lap) for key in NUMBERS if statement.get(key) is not None}
        for end in ("origin", "target"):
            if statement.get(end) is not None:
                numbers |= {f"{end}/{key}": number(statement[end][key], values, lap) for key in ("lo", "hi")}
        return Call(statement, numbers, self.value(statement.get("value"), values, lap))

    def spend(self, statements: int) -> None:
        self.left -= statements
        need(self.left >= 0, "too many statements")

    @staticmethod
    def value(value: Any, values: dict[str, int], lap: str | None) -> tuple[Any, ...] | None:
        if value is None:
            return None
        parts = value if isinstance(value, list | tuple) else [value]
        return tuple(number(part["number"], values, lap) if isinstance(part, dict) else part for part in parts)

    def buffer(self, name: str) -> int:
        need(name in self.buffers, "there is no such buffer")
        return self.buffers.index(name)

    def counter(self, call: Call, k: int) -> int:
        """The counter that a call means at lap k."""
        name = call.statement["counter"]
        need(name in self.counter_of, "there is no such counter")
        first, size = self.counter_of[name]
        need((size is None) == ("number" not in call.numbers), "one counter of several is not chosen")
        chosen = 0 if size is None else call.numbers["number"].at(k)
        need(0 <= chosen < (size or 1), "there is no such counter")
        return first + chosen


def _fixed(value: tuple[Any, ...] | None) -> Value:
    return None if value is None else tuple(part.at(0) if isinstance(part, Number) else part for part in value)
