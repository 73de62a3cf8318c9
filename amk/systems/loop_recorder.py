"""What the calls of a system with loops have written down so far; `LoopSystem` is what a user sees of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import lcm
from typing import Any, Final

from amk.report.diagnostic import AmkError, Where
from amk.systems.affine import MAX_PERIOD, Index
from amk.systems.agent import Agent
from amk.systems.builder import System
from amk.systems.loop_agent import PARTS, Array, LoopAgent, Named, Operation, parts_of
from amk.systems.names import Scope, integer, refuse

MAX_UNROLLED: Final = 1 << 16
"""Laps of the longest unrolling."""


@dataclass(frozen=True)
class Declared:
    """A counter, or `size` of them alike."""

    name: str
    scope: Scope
    init: int
    size: int | None
    arrivals: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,) if self.size is None else tuple(f"{self.name}[{n}]" for n in range(self.size))


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

    def mbarrier(self, name: str, arrivals: int = 1, scope: Scope = "cta") -> Named:
        """As `System.mbarrier`."""
        if scope not in ("cta", "cluster"):
            raise refuse("AMK005", f"a barrier by phase is for one CTA or one cluster, not {str(scope)[:40]!r}")
        arrivals = integer("the number of arrivals", arrivals, 1, 1 << 20)
        self.declared.append(Declared(name, scope, 0, None, arrivals))
        return Named(name)

    def mbarriers(self, name: str, size: int, arrivals: int = 1, scope: Scope = "cta") -> Array:
        """`size` barriers alike, chosen by a number: `full[k % 3]`."""
        self.mbarrier(name, arrivals, scope)
        size = integer("the number of barriers", size, 1, 1 << 16)
        self.declared[-1] = replace(self.declared[-1], size=size)
        return Array(name, size)

    def barrier(self, name: str, warps: int, scope: Scope = "cta") -> Named:
        """As `System.barrier`."""
        return self.mbarrier(name, warps, scope)

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
        system = System(f"{self.name}, {laps} lap{'s' * (laps != 1)}")
        known: dict[str, Any] = {}
        for one in self.declared:
            for name in one.names:
                plain = one.arrivals is None
                known[name] = (
                    system.counter(name, one.scope, one.init)
                    if plain
                    else system.mbarrier(name, one.arrivals or 1, one.scope)
                )
        buffers = {name: system.buffer(name, size) for name, size in self.sizes}
        for name, lo, hi, value in self.contents:
            system.initial(buffers[name], lo, hi, None if value is None else parts_of(value))
        for agent in self.agents:
            stream = system.agent(agent.name, agent.place["cta"], agent.place["cluster"], agent.place["gpu"])
            for operation, lap in agent.events(laps):
                with system.at(operation.source):
                    _Call(operation, lap, known, buffers).on(stream)
        return system


@dataclass
class _Call:
    """An operation at one lap."""

    operation: Operation
    lap: int
    counters: dict[str, Any]
    buffers: dict[str, Any]

    def on(self, stream: Agent) -> None:
        one = self.operation
        try:
            numbers = [number.at(self.lap) for number in one.numbers]
            value = tuple(part.at(self.lap) if isinstance(part, Index) else part for part in parts_of(one.value))
            ends = [] if one.other is None else [n.at(self.lap) for n in one.other[1:]]
        except ValueError as error:
            raise refuse("AMK005", str(error)) from error
        said = None if one.value is None else value
        far = None if one.other is None else (self._of(one.other[0], self.buffers), ends[0], ends[1])
        match one.verb:
            case "wait" | "signal" | "arrive" | "wait_parity":
                getattr(stream, one.verb)(self._of(one.of, self.counters), *numbers, order=one.order)
            case "expect":
                stream.expect(self._of(one.of, self.counters), numbers[0], one.flag)
            case "wait_others":
                stream.wait_others(self._of(one.of, self.counters))
            case "fence_async" | "commit":
                getattr(stream, one.verb)()
            case "wait_group":
                stream.wait_group(numbers[0], one.flag)
            case "load":
                assert one.barrier is not None
                near = (self._of(one.of, self.buffers), numbers[0], numbers[1])
                stream.load(far, near, self._of(one.barrier, self.counters), said)
            case "store":
                stream.store((self._of(one.of, self.buffers), numbers[0], numbers[1]), far, said)
            case verb:
                getattr(stream, verb)(self._of(one.of, self.buffers), *numbers, value=said, proxy=one.proxy)

    def _of(self, named: Named, values: dict[str, Any]) -> Any:
        name = named.at(self.lap)
        if name not in values:
            raise refuse("AMK009", f"there is no {name} at lap {self.lap}")
        return values[name]
