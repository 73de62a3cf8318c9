"""What the calls of a system with loops have written down so far; `LoopSystem` is what a user sees of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import lcm
from typing import Any, Final, Literal, Self, get_args

from amk.report.diagnostic import AmkError, Where
from amk.systems.affine import MAX_PERIOD, Index
from amk.systems.agent import Agent
from amk.systems.builder import System
from amk.systems.names import Scope, caller, integer, refuse

Part = Literal["before", "lap", "behind"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)
Number = int | Index
MAX_UNROLLED: Final = 1 << 16
"""Laps of the longest unrolling."""


@dataclass(frozen=True)
class Named:
    """A counter or buffer by its name; of an array, by name and number."""

    name: str
    number: Index | None = None

    def at(self, lap: int) -> str:
        return self.name if self.number is None else f"{self.name}[{self.number.at(lap)}]"


@dataclass(frozen=True)
class Declared:
    """A counter, or `size` of them alike."""

    name: str
    scope: Scope
    init: int
    size: int | None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,) if self.size is None else tuple(f"{self.name}[{n}]" for n in range(self.size))


@dataclass(frozen=True)
class Array:
    """`size` counters, chosen by a number: `full[k % 3]`."""

    name: str
    size: int

    def __getitem__(self, number: Number) -> Named:
        try:
            return Named(self.name, Index.of(number))
        except TypeError as error:
            raise refuse("AMK005", str(error)) from error


@dataclass(frozen=True)
class Operation:
    """One event: `verb` of `agent`, its object and numbers, and the caller's line."""

    verb: Literal["wait", "signal", "read", "write", "add"]
    of: Named
    numbers: tuple[Index, ...]
    order: str | None
    value: Any
    source: tuple[str, int]

    @property
    def period(self) -> int:
        mine = [*self.numbers, *([self.of.number] if self.of.number is not None else [])]
        mine += [part for part in parts_of(self.value) if isinstance(part, Index)]
        return lcm(*(index.period for index in mine))


def parts_of(value: Any) -> tuple[Any, ...]:
    """A value that is no tuple is the only part."""
    return value if isinstance(value, tuple) else (value,)


class LoopAgent:
    """One stream of operations in program order, with at most one loop."""

    def __init__(self, system: LoopRecorder, name: str, place: dict[str, int]) -> None:
        self.system, self.name, self.place = system, name, place
        self.code: dict[Part, list[Operation]] = {part: [] for part in PARTS}
        self.part: Part = "before"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @contextmanager
    def loop(self) -> Iterator[Index]:
        """Laps 0 to N - 1; what it gives is the number of the lap."""
        if self.part != "before":
            raise refuse("AMK205", f"{self.name} has a second loop; one loop with an open number of laps is decided")
        self.part = "lap"
        yield Index()
        self.part = "behind"

    def wait(self, counter: Named, at_least: Number, order: Literal["acquire", "relaxed"] = "acquire") -> None:
        self._add("wait", counter, (at_least,), order)

    def signal(self, counter: Named, amount: Number = 1, order: Literal["release", "relaxed"] = "release") -> None:
        self._add("signal", counter, (amount,), order)

    def read(self, buffer: Named, lo: Number, hi: Number, value: object = None) -> None:
        self._add("read", buffer, (lo, hi), None, value)

    def write(self, buffer: Named, lo: Number, hi: Number, value: object = None) -> None:
        self._add("write", buffer, (lo, hi), None, value)

    def add(self, buffer: Named, lo: Number, hi: Number, value: object = None) -> None:
        self._add("add", buffer, (lo, hi), None, value)

    def _add(
        self, verb: Any, of: object, numbers: tuple[Number, ...], order: str | None = None, value: object = None
    ) -> None:
        if not isinstance(of, Named):
            raise refuse("AMK009", f"{str(of)[:40]!r} is no counter or buffer of this system")
        try:
            made = tuple(Index.of(number) for number in numbers)
        except TypeError as error:
            raise refuse("AMK005", str(error)) from error
        if self.part == "before" and any(index.slope or index.period > 1 for index in made):
            message = "a lap's number is for the loop, and the number of laps for behind it: `with agent.loop(): pass`"
            raise refuse("AMK005", message)
        self.code[self.part].append(Operation(verb, of, made, order, value, self.system.place or caller()))

    def events(self, laps: int) -> Iterator[tuple[Operation, int]]:
        """Its operations for this number of laps, each with the number that stands for `k` in it."""
        yield from ((operation, 0) for operation in self.code["before"])
        for lap in range(laps):
            yield from ((operation, lap) for operation in self.code["lap"])
        yield from ((operation, laps) for operation in self.code["behind"])


class LoopRecorder:
    """Agents, counters and buffers of a kernel whose loops run `at_least` to `at_most` laps; None: any number.

    count: what the number of laps is called in its file.
    """

    laps = Index()
    """The number of laps, for operations behind the loop."""

    def __init__(
        self, name: str = "system", at_least: int = 0, at_most: int | None = None, count: str = "laps"
    ) -> None:
        if not count.isidentifier() or count == "k":
            raise refuse("AMK008", f"{count[:40]!r} is no name for the number of laps: take letters, and not only k")
        self.name, self.at_least, self.at_most, self.count = name, at_least, at_most, count
        self.agents: list[LoopAgent] = []
        self.declared: list[Declared] = []
        self.sizes: list[tuple[str, int]] = []
        self.contents: list[tuple[str, int, int, object]] = []
        self.place: tuple[str, int] | None = None

    @contextmanager
    def at(self, place: tuple[str, int]) -> Iterator[None]:
        """Calls within come from this file and line, whoever makes them."""
        before, self.place = self.place, place
        try:
            yield
        except AmkError as error:
            here = Where(file=place[0], line=place[1])
            raise AmkError([replace(diagnostic, where=here) for diagnostic in error.diagnostics]) from error
        finally:
            self.place = before

    def counter(self, name: str, scope: Scope = "gpu", init: int = 0) -> Named:
        self.declared.append(Declared(name, scope, init, None))
        return Named(name)

    def counters(self, name: str, size: int, scope: Scope = "gpu", init: int = 0) -> Array:
        """`size` counters alike, chosen by a number: an mbarrier for each slot, say."""
        self.declared.append(Declared(name, scope, init, integer("the number of counters", size, 1, 1 << 16)))
        return Array(name, size)

    def buffer(self, name: str, size: int) -> Named:
        """size in bytes; what every lap has of its own (a tile of global memory) needs no bound: give a large one."""
        self.sizes.append((name, size))
        return Named(name)

    def agent(self, name: str, cta: int = 0, cluster: int = 0, gpu: int = 0) -> LoopAgent:
        self.agents.append(LoopAgent(self, name, {"cta": cta, "cluster": cluster, "gpu": gpu}))
        return self.agents[-1]

    def initial(self, buffer: Named, lo: int, hi: int, value: object = None) -> None:
        self.contents.append((buffer.name, lo, hi, value))

    @property
    def period(self) -> int:
        """Laps after which everything but the slopes repeats."""
        found = lcm(*(op.period for agent in self.agents for part in PARTS for op in agent.code[part]))
        if found > MAX_PERIOD:
            raise refuse("AMK205", f"the loop repeats after {found} laps; at most {MAX_PERIOD}")
        return found

    def unrolled(self, laps: int) -> System:
        """The system for this number of laps."""
        made = System(f"{self.name}, {laps} laps")
        counters = {name: made.counter(name, one.scope, one.init) for one in self.declared for name in one.names}
        buffers = {name: made.buffer(name, size) for name, size in self.sizes}
        for name, lo, hi, value in self.contents:
            made.initial(buffers[name], lo, hi, None if value is None else parts_of(value))
        for agent in self.agents:
            stream = made.agent(agent.name, agent.place["cta"], agent.place["cluster"], agent.place["gpu"])
            for operation, lap in agent.events(laps):
                with made.at(operation.source):
                    _do(stream, operation, lap, counters, buffers)
        return made


def _do(stream: Agent, operation: Operation, lap: int, counters: dict[str, Any], buffers: dict[str, Any]) -> None:
    named, known = operation.of.at(lap), counters if operation.verb in ("wait", "signal") else buffers
    if named not in known:
        raise refuse("AMK009", f"there is no {named} at lap {lap}")
    try:
        numbers = [number.at(lap) for number in operation.numbers]
        value = tuple(part.at(lap) if isinstance(part, Index) else part for part in parts_of(operation.value))
    except ValueError as error:
        raise refuse("AMK005", str(error)) from error
    if operation.verb in ("wait", "signal"):
        getattr(stream, operation.verb)(known[named], *numbers, order=operation.order)
    else:
        getattr(stream, operation.verb)(known[named], *numbers, value=None if operation.value is None else value)
