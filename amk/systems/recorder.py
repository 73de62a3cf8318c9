"""What the calls of a system have written down so far, as columns.

Property: every call is one event of its agent, in the order of the calls; its source is the caller's file and line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from amk.report.diagnostic import AmkError, Where
from amk.systems.flat_judge import DONT_CARE, I64, MAX_AMOUNT, MAX_BYTES, MAX_NAME, assemble
from amk.systems.flat_system import SCOPES, FlatSystem
from amk.systems.names import Buffer, Counter, Scope, caller, integer, refuse, short
from amk.systems.rules import GENERIC, Rules

Place = tuple[int, int, int]
"""gpu, cluster, cta."""
Site = tuple[int, Place]
"""A CTA. The number is that of the kernel, of the queue's task, or 0: each of them has CTAs of its own."""


class Recorder:
    """Counters, buffers, agents by number, and their events. `System` is what a user sees of it."""

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
        self._shared: list[tuple[Buffer, Site]] = []
        self._home: dict[int, Site] = {}
        self._ending: list[int] = []
        self._mbarriers: set[int] = set()
        self._inits: dict[int, int] = {}
        self._grid: list[int] = []
        self._grids = 0

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

    def initial(self, buffer: Buffer, lo: int, hi: int, value: object = None) -> None:
        """Bytes lo to hi - 1 hold something before the launch: `value`, or content that no reader asks for."""
        self._initial.append((*self._box(buffer, lo, hi), self._value(value), 0))

    def final(self, buffer: Buffer, lo: int, hi: int, value: object) -> None:
        """At the end bytes lo to hi - 1 must hold `value`."""
        self._final.append((*self._box(buffer, lo, hi), self._value(value), 0))

    def new_agent(self, name: str, cta: int, cluster: int, gpu: int, exits: bool, grid: int) -> int:
        """The number of one more agent; exits: its CTA does not end before it does; grid: see `Site`."""
        self._named(name, self._agents)
        numbers = (("gpu", gpu), ("cluster", cluster), ("cta", cta))
        x, y, z = (integer(what, value, 0, 1 << 31) for what, value in numbers)
        self._places.append((x, y, z))
        self._grid.append(grid)
        number = len(self._agents) - 1
        if exits:
            self._ending.append(number)
        return number

    def _new_grid(self) -> int:
        """The number of CTAs that are none of those so far: of one more kernel or task."""
        self._grids += 1
        return self._grids

    def _site(self, agent: int) -> Site:
        return self._grid[agent], self._places[agent]

    def _shared_of(self, name: str, size: int, site: Site) -> Buffer:
        buffer = self.buffer(name, size)
        self._shared.append((buffer, site))
        self._home[buffer.number] = site
        return buffer

    def _numbered(self) -> list[Place]:
        """Where agents are. Clusters of several kernels get different numbers if a counter of one cluster or CTA would
        take them for one."""
        users: dict[int, set[int]] = {}
        for event, counter, _ in (*self._waits, *self._signals):
            if self._scopes[counter] < SCOPES.index("gpu"):
                users.setdefault(counter, set()).add(self._grid[self._agent_of[event]])
        if all(len(grids) == 1 for grids in users.values()):
            return self._places
        most = max(cluster for _, cluster, _ in self._places) + 1
        return [(x, y + most * grid, z) for grid, (x, y, z) in zip(self._grid, self._places, strict=True)]

    def _put_before(self, later: dict[int | None, list[int]]) -> None:
        """These events come right before the event that they are under; those under None before all others."""
        moved = {event for events in later.values() for event in events}
        order = list(later.get(None, ()))
        for event in range(len(self._agent_of)):
            if event not in moved:
                order += [*later.get(event, ()), event]
        now = {event: place for place, event in enumerate(order)}
        self._agent_of, self._proxies, self._source = (
            [column[event] for event in order] for column in (self._agent_of, self._proxies, self._source)
        )
        self._waits = [(now[row[0]], row[1], row[2]) for row in self._waits]
        self._signals = [(now[row[0]], row[1], row[2]) for row in self._signals]
        self._accesses = [(now[row[0]], *row[1:]) for row in self._accesses]

    def _columns(self) -> FlatSystem:
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
            np.array(self._numbered(), dtype=np.int64).reshape(-1, 3),
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
