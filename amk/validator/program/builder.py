"""Building a flat system: piece by piece, or from unsorted rows in bulk.

Property: events keep the order in which they were added to their agent; rows of one event keep their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from amk.validator.program.system import BOXES, CSR, DONT_CARE, I64, READ, WRITE, MalformedSystem, System


def by_event(event_count: int, event: I64, *columns: I64) -> tuple[I64, ...]:
    """Where the rows of each event begin, and the columns with the rows of events in turn."""
    order = np.argsort(event, kind="stable")
    first = np.zeros(event_count + 1, dtype=np.int64)
    np.cumsum(np.bincount(event, minlength=event_count), out=first[1:])
    return first, *(column[order] for column in columns)


def _csr(event_count: int, event: I64, fields: Mapping[str, I64], table: str) -> dict[str, I64]:
    names = (f"{table}_{name}" for name in ("first", *fields))
    return dict(zip(names, by_event(event_count, event, *fields.values()), strict=True))


def _table(rows: object, names: Sequence[str]) -> dict[str, I64]:
    matrix = np.asarray(rows, dtype=np.int64).reshape(-1, len(names))
    return {name: np.ascontiguousarray(matrix[:, i]) for i, name in enumerate(names)}


def assemble(
    agents: int,
    event_agent: npt.ArrayLike,
    counter_init: npt.ArrayLike,
    waits: npt.ArrayLike,
    signals: npt.ArrayLike,
    accesses: npt.ArrayLike,
    initial: npt.ArrayLike = (),
    final: npt.ArrayLike = (),
    event_tag: npt.ArrayLike | None = None,
    names: Mapping[str, tuple[str, ...]] | None = None,
) -> tuple[System, I64]:
    """System from unsorted rows, and the map from the caller's event numbers to event ids.

    ``event_agent`` [events] gives each event's agent; events of one agent run in the order they are listed. ``waits``
    [n, 3] = (event, counter, threshold), ``signals`` [n, 3] = (event, counter, amount), ``accesses`` [n, 7] =
    (event, buffer, lo, hi, kind, value, delta), ``initial`` and ``final`` [n, 5] = (buffer, lo, hi, value, delta).
    """
    agent = np.asarray(event_agent, dtype=np.int64).reshape(-1)
    if len(agent) and (int(agent.min()) < 0 or int(agent.max()) >= agents):
        raise MalformedSystem(f"event_agent: names an agent outside the {agents} declared")
    order = np.argsort(agent, kind="stable")
    ids = np.empty(len(agent), dtype=np.int64)
    ids[order] = np.arange(len(agent))
    first = np.zeros(agents + 1, dtype=np.int64)
    np.cumsum(np.bincount(agent, minlength=agents), out=first[1:])
    tag = np.full(len(agent), -1, dtype=np.int64) if event_tag is None else np.asarray(event_tag, dtype=np.int64)[order]
    columns: dict[str, Any] = {}
    for table, rows in (("wait", waits), ("signal", signals), ("access", accesses)):
        parts = _table(rows, ("event", *CSR[table]))
        event = parts.pop("event")
        if len(event) and (int(event.min()) < 0 or int(event.max()) >= len(agent)):
            raise MalformedSystem(f"{table}: names an event that does not exist")
        columns |= _csr(len(agent), ids[event], parts, table)
    for table, rows in (("initial", initial), ("final", final)):
        columns |= {f"{table}_{name}": column for name, column in _table(rows, BOXES).items()}
    init = np.asarray(counter_init, dtype=np.int64).reshape(-1)
    columns |= names or {}
    return System(agent_first=first, event_tag=tag, counter_init=init, **columns), ids


class SystemBuilder:
    """Collects a system piece by piece; numbers returned by `event` are valid until `build` renumbers them by agent."""

    def __init__(self) -> None:
        self._agents: list[str] = []
        self._counters: list[str] = []
        self._init: list[int] = []
        self._agent_of: list[int] = []
        self._tags: list[int] = []
        self._waits: list[tuple[int, int, int]] = []
        self._signals: list[tuple[int, int, int]] = []
        self._accesses: list[tuple[int, int, int, int, int, int, int]] = []
        self._initial: list[tuple[int, int, int, int, int]] = []
        self._final: list[tuple[int, int, int, int, int]] = []
        self._edges: dict[int, int] = {}

    def agent(self, name: str = "") -> int:
        self._agents.append(name or f"agent {len(self._agents)}")
        return len(self._agents) - 1

    def counter(self, init: int = 0, name: str = "") -> int:
        self._counters.append(name or f"counter {len(self._counters)}")
        self._init.append(init)
        return len(self._init) - 1

    def event(self, agent: int, tag: int = -1) -> int:
        """Append an event to the agent's program; ``tag`` is the caller's own reference (a task number, say)."""
        self._agent_of.append(agent)
        self._tags.append(tag)
        return len(self._agent_of) - 1

    def wait(self, event: int, counter: int, threshold: int) -> None:
        self._waits.append((event, counter, threshold))

    def signal(self, event: int, counter: int, amount: int = 1) -> None:
        self._signals.append((event, counter, amount))

    def edge(self, before: int, after: int) -> None:
        """``before`` finishes before ``after`` starts: one private counter per source event."""
        if before not in self._edges:
            self._edges[before] = self.counter(name=f"edge {before}")
            self.signal(before, self._edges[before])
        self.wait(after, self._edges[before], 1)

    def access(
        self, event: int, kind: int, buffer: int, lo: int, hi: int, value: int = DONT_CARE, delta: int = 0
    ) -> None:
        self._accesses.append((event, buffer, lo, hi, kind, value, delta))

    def read(self, event: int, buffer: int, lo: int, hi: int, value: int = DONT_CARE, delta: int = 0) -> None:
        self.access(event, READ, buffer, lo, hi, value, delta)

    def write(self, event: int, buffer: int, lo: int, hi: int, value: int = DONT_CARE, delta: int = 0) -> None:
        self.access(event, WRITE, buffer, lo, hi, value, delta)

    def initial(self, buffer: int, lo: int, hi: int, value: int = DONT_CARE, delta: int = 0) -> None:
        self._initial.append((buffer, lo, hi, value, delta))

    def final(self, buffer: int, lo: int, hi: int, value: int, delta: int = 0) -> None:
        self._final.append((buffer, lo, hi, value, delta))

    def assemble(self) -> tuple[System, I64]:
        """The system, and the event id of every number `event` returned."""
        names = {"agent_names": tuple(self._agents), "counter_names": tuple(self._counters)}
        return assemble(
            len(self._agents), self._agent_of, self._init, self._waits, self._signals, self._accesses,
            self._initial, self._final, self._tags, names,
        )  # fmt: skip

    def build(self) -> System:
        return self.assemble()[0]
