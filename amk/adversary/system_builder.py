"""Flat systems written piece by piece: published mistakes, pipelines, and whatever tests make up.

Property: events keep the order in which they were added to their agent; rows of one event keep their order.
"""

from __future__ import annotations

from amk.validator.program.system import DONT_CARE, I64, READ, WRITE, System, assemble


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
