"""A system written down in Python, so that it reads like the kernel.

    sys = System()
    ring, full = sys.buffer("ring", 4096), sys.counter("full", scope="cta")
    with sys.agent("producer") as p:
        p.write(ring, 0, 1024)
        p.signal(full)
    with sys.agent("consumer") as c:
        c.wait(full, 1)
        c.read(ring, 0, 1024)
    assert amk.verify(sys).safe

Property: every call is one event of its agent, in the order of the calls; its source is the caller's file and line.

Errors: `AmkError` at the caller's line (AMK005 for a number or box that cannot be, AMK008 for a name, AMK009 for a
counter or buffer of another system).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import numpy as np

from amk.report.diagnostic import AmkError, Where
from amk.systems.constructs import AgentConstructs, Barrier, Flag, SystemConstructs
from amk.systems.flat_judge import (
    ACCUMULATE_FLOAT,
    ACCUMULATE_INT,
    DONT_CARE,
    I64,
    MAX_AMOUNT,
    MAX_BYTES,
    MAX_NAME,
    MAX_THRESHOLD,
    READ,
    WRITE,
    assemble,
)
from amk.systems.flat_system import SCOPES, FlatSystem
from amk.systems.names import Buffer, Counter, Scope, caller, integer, refuse, short
from amk.systems.rules import ADD, ASYNC, AT_LEAST, GENERIC, Rules

Place = tuple[int, int, int]
Proxy = Literal["generic", "async"]


class System(SystemConstructs):
    """Agents, counters and buffers of one kernel, or of several that run at once."""

    def __init__(self, name: str = "system") -> None:
        self.name = name
        self._agents: list[str] = []
        self._places: list[Place] = []
        self._counters: list[str] = []
        self._init: list[int] = []
        self._scopes: list[int] = []
        self._buffers: list[str] = []
        self._agent_of: list[int] = []
        self._source: list[int] = []
        self._sources: dict[tuple[str, int], int] = {}
        self._waits: list[tuple[int, int, int]] = []
        self._acquires: list[bool] = []
        self._signals: list[tuple[int, int, int]] = []
        self._releases: list[bool] = []
        self._accesses: list[tuple[int, int, int, int, int, int, int]] = []
        self._initial: list[tuple[int, int, int, int, int]] = []
        self._final: list[tuple[int, int, int, int, int]] = []
        self._values: dict[object, int] = {}
        self._place: tuple[str, int] | None = None
        self._wait_rules: list[int] = []
        self._signal_rules: list[int] = []
        self._phases: dict[int, int] = {}
        self._proxies: list[int] = []
        self._shared: list[tuple[Buffer, Place]] = []
        self._ending: list[Agent] = []

    @contextmanager
    def at(self, place: tuple[str, int]) -> Iterator[None]:
        """Calls within come from this file and line, whoever makes them."""
        before, self._place = self._place, place
        try:
            yield
        except AmkError as error:
            here = Where(file=place[0], line=place[1])
            known = (d.where is not None and d.where.path is not None for d in error.diagnostics)
            placed = [d if own else replace(d, where=here) for d, own in zip(error.diagnostics, known, strict=True)]
            raise AmkError(placed) from error
        finally:
            self._place = before

    def counter(self, name: str, scope: Scope = "gpu", init: int = 0) -> Counter:
        """scope: the widest distance at which its waits and signals order memory. init: value before the launch."""
        if scope not in SCOPES:
            raise refuse("AMK005", f"scope {str(scope)[:40]!r} is none of {', '.join(SCOPES)}")
        self._init.append(integer("the initial value", init, 0, MAX_AMOUNT))
        self._scopes.append(SCOPES.index(scope))
        self._named(name, self._counters)
        return Counter(self, len(self._counters) - 1, name)

    def buffer(self, name: str, size: int) -> Buffer:
        """size in bytes."""
        integer("the size", size, 1, MAX_BYTES + 1)
        self._named(name, self._buffers)
        return Buffer(self, len(self._buffers) - 1, name, size)

    def agent(self, name: str, cta: int = 0, cluster: int = 0, gpu: int = 0, exits: bool = True) -> Agent:
        """One stream of operations in program order: a warp, a warp role, a copy. cta, cluster, gpu: where it runs.

        exits: its CTA does not end before it does.
        """
        self._named(name, self._agents)
        numbers = (("gpu", gpu), ("cluster", cluster), ("cta", cta))
        x, y, z = (integer(what, value, 0, 1 << 31) for what, value in numbers)
        self._places.append((x, y, z))
        made = Agent(self, len(self._agents) - 1, name)
        if exits:
            self._ending.append(made)
        return made

    def initial(self, buffer: Buffer, lo: int, hi: int, value: object = None) -> None:
        """Bytes lo to hi - 1 hold something before the launch: `value`, or content that no reader asks for."""
        self._initial.append((*self._box(buffer, lo, hi), self._value(value), 0))

    def final(self, buffer: Buffer, lo: int, hi: int, value: object) -> None:
        """At the end bytes lo to hi - 1 must hold `value`."""
        self._final.append((*self._box(buffer, lo, hi), self._value(value), 0))

    def flat(self) -> FlatSystem:
        """The system as columns, events in the order of the calls of each agent."""
        self._end_ctas()
        names = {"agent_names": self._agents, "counter_names": self._counters, "buffer_names": self._buffers}
        block, ids = assemble(
            len(self._agents), self._agent_of, self._init, self._waits, self._signals, self._accesses,
            self._initial, self._final, names={key: tuple(value) for key, value in names.items()},
        )  # fmt: skip
        source = np.empty(len(ids), dtype=np.int64)
        source[ids] = np.array(self._source, dtype=np.int64)
        # the rows of a table follow their events, and an event has at most one
        waits, signals = (
            np.argsort(ids[np.array([row[0] for row in rows], dtype=np.int64)], kind="stable")
            for rows in (self._waits, self._signals)
        )
        return FlatSystem(
            block,
            np.array(self._acquires, dtype=bool)[waits],
            np.array(self._releases, dtype=bool)[signals],
            np.array(self._scopes, dtype=np.int64),
            np.array(self._places, dtype=np.int64).reshape(-1, 3),
            source,
            tuple(f"{short(file)}:{line}" for file, line in self._sources),
            self.name,
            rules=self._rules(block.counters, ids, waits, signals),
        )

    def _rules(self, counters: int, ids: I64, waits: I64, signals: I64) -> Rules | None:
        """The rules of the rows in their order, if there are any but those of counters."""
        proxy = np.empty(len(ids), dtype=np.int64)
        proxy[ids] = np.array(self._proxies, dtype=np.int64)
        phase = np.array([self._phases.get(number, 0) for number in range(counters)], dtype=np.int64)
        found = Rules(
            np.array(self._wait_rules, dtype=np.int64)[waits],
            np.array(self._signal_rules, dtype=np.int64)[signals],
            phase,
            proxy,
        )
        return None if found.silent else found

    def _end_ctas(self) -> None:
        """Shared memory of a CTA goes when its agents have ended: as if somebody wrote it then."""
        shared, self._shared = self._shared, []
        for place in dict.fromkeys(place for _, place in shared):
            mine = [agent for agent in self._ending if self._places[agent.number] == place]
            gpu, cluster, cta = place
            ended = self.counter(f"CTA {cta} of cluster {cluster} ends", "sys")
            for agent in mine:
                agent.signal(ended)
            last = self.agent(f"end of CTA {cta} of cluster {cluster}", cta, cluster, gpu, exits=False)
            last.wait(ended, len(mine))
            for buffer, where in shared:
                if where == place:
                    last.write(buffer, 0, buffer.size)

    def save(self, path: str | Path) -> None:
        """Write the file that `amk verify` reads."""
        from amk.systems.document import written

        Path(path).write_text(written(self.flat()) + "\n", encoding="utf-8")

    def _named(self, name: object, names: list[str]) -> None:
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
            raise refuse("AMK008", f"a name is a text of 1 to {MAX_NAME} printable characters, not {str(name)[:40]!r}")
        if name in names:
            raise refuse("AMK007", f"there is another {name!r} of this kind already")
        names.append(name)

    def _value(self, value: object) -> int:
        return DONT_CARE if value is None else self._values.setdefault(value, len(self._values))

    def _box(self, buffer: Buffer, lo: int, hi: int) -> tuple[int, int, int]:
        if not isinstance(buffer, Buffer) or buffer.system is not self:
            raise refuse("AMK009", "the buffer is none of this system's: make it with `sys.buffer(name, size)`")
        if type(lo) is not int or type(hi) is not int or not 0 <= lo < hi <= buffer.size:
            message = f"bytes {str(lo)[:40]} to {str(hi)[:40]} (exclusive) are no box within the {buffer.size} of"
            raise refuse("AMK005", f"{message} {buffer.name}")
        return buffer.number, lo, hi

    def _counter(self, counter: Counter) -> int:
        if not isinstance(counter, Counter) or counter.system is not self:
            raise refuse("AMK009", "the counter is none of this system's: make it with `sys.counter(name)`")
        return counter.number

    def _event(self, agent: int, proxy: int = GENERIC) -> int:
        self._agent_of.append(agent)
        self._proxies.append(proxy)
        self._source.append(self._sources.setdefault(self._place or caller(), len(self._sources)))
        return len(self._agent_of) - 1


class Agent(AgentConstructs):
    """Appends one event per call. Usable as `with sys.agent("name") as p:`, which changes nothing but the looks."""

    def __init__(self, system: System, number: int, name: str) -> None:
        self.system, self.number, self.name = system, number, name
        self._copies = 0
        self._group: list[tuple[Counter, Counter]] = []
        self._stores: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def wait(self, counter: Counter, at_least: int, order: Literal["acquire", "relaxed"] = "acquire") -> None:
        """Go on when the counter is at least that. A relaxed poll without a fence behind it orders nothing."""
        if isinstance(counter, Barrier | Flag):
            raise refuse("AMK009", f"{counter.name} is waited for by parity or for equality, not for at least a value")
        self._wait(counter, integer("the threshold", at_least, 0, MAX_THRESHOLD), order, AT_LEAST)

    def signal(self, counter: Counter, amount: int = 1, order: Literal["release", "relaxed"] = "release") -> None:
        """Add to the counter when everything before is done. A relaxed one says nothing about what is before it."""
        if isinstance(counter, Barrier | Flag):
            raise refuse("AMK009", f"at {counter.name} one arrives, or stores to it: it is no plain counter")
        self._signal(counter, integer("the amount", amount, 1, MAX_AMOUNT), order, ADD)

    def _wait(self, counter: Counter, threshold: int, order: object, rule: int) -> None:
        number, acquires = self.system._counter(counter), self._order(order, "acquire")
        self.system._waits.append((self.system._event(self.number), number, threshold))
        self.system._acquires.append(acquires)
        self.system._wait_rules.append(rule)

    def _signal(self, counter: Counter, amount: int, order: object, rule: int) -> None:
        number, releases = self.system._counter(counter), self._order(order, "release")
        self.system._signals.append((self.system._event(self.number), number, amount))
        self.system._releases.append(releases)
        self.system._signal_rules.append(rule)

    def read(self, buffer: Buffer, lo: int, hi: int, value: object = None, proxy: Proxy = "generic") -> None:
        """Read bytes lo to hi - 1; with a `value`, those must hold what was written under that value."""
        self._access(READ, buffer, lo, hi, value, proxy)

    def write(self, buffer: Buffer, lo: int, hi: int, value: object = None, proxy: Proxy = "generic") -> None:
        """Write bytes lo to hi - 1; `value` (any hashable thing: "tile 3") is what they hold then."""
        self._access(WRITE, buffer, lo, hi, value, proxy)

    def add(
        self,
        buffer: Buffer,
        lo: int,
        hi: int,
        value: object = None,
        floating: bool = True,
        proxy: Proxy = "generic",
    ) -> None:
        """Accumulate atomically. Sums do not race with sums of their kind; floating ones in open order are told."""
        self._access(ACCUMULATE_FLOAT if floating else ACCUMULATE_INT, buffer, lo, hi, value, proxy)

    def copy(
        self,
        source: tuple[Buffer, int, int] | None,
        target: tuple[Buffer, int, int],
        done: Counter,
        value: object = None,
    ) -> None:
        """Issue an asynchronous copy (TMA, cp.async.bulk): it runs on its own, later, and adds 1 to `done`.

        source None: memory that nobody writes. Copies are not ordered among themselves. Its cost is one agent.
        """
        engine = self._engine("copy")
        if source is not None:
            engine.read(*source, value=value)
        engine.write(*target, value=value)
        engine.signal(done)

    def _engine(self, what: str) -> Agent:
        """An asynchronous operation that this agent issues now: an agent of its own."""
        system, number = self.system, self._copies
        issued = system.counter(f"{self.name} issues {what} {number}", scope="sys")
        self.signal(issued)
        self._copies += 1
        engine = system.agent(f"{self.name} {what} {number}", *self._at, exits=False)
        engine.wait(issued, 1)
        if what == "store" and not self._group:
            self._open_group()
        return engine

    def _open_group(self) -> None:
        number = len(self._group)
        kinds = (f"{self.name}: group {number} {what}" for what in ("read", "written"))
        read, written = (self.system.counter(name, scope="sys") for name in kinds)
        self._group.append((read, written))
        self._stores.append(0)

    @property
    def _at(self) -> Place:
        """cta, cluster, gpu."""
        gpu, cluster, cta = self.system._places[self.number]
        return cta, cluster, gpu

    def _access(self, kind: int, buffer: Buffer, lo: int, hi: int, value: object, proxy: object) -> None:
        if proxy not in ("generic", "async"):
            raise refuse("AMK005", f"proxy {str(proxy)[:40]!r} is neither 'generic' nor 'async'")
        number, first, end = self.system._box(buffer, lo, hi)
        content = self.system._value(value)
        event = self.system._event(self.number, ASYNC if proxy == "async" else GENERIC)
        self.system._accesses.append((event, number, first, end, kind, content, 0))

    @staticmethod
    def _order(order: object, strong: str) -> bool:
        if order not in (strong, "relaxed"):
            raise refuse("AMK005", f"order {str(order)[:40]!r} is neither '{strong}' nor 'relaxed'")
        return order == strong
