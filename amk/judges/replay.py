"""Replays a witness: runs its interleaving step by step and looks for what it claims. Uses nothing of the validator.

`Events` reads the columns of the system (`System.to_json`); `Run` and `replay` judge.
"""

from __future__ import annotations

from typing import Any

READ, WRITE, FLOAT, DONT_CARE = 0, 1, 3, -1
Row = tuple[Any, ...]


class Events:
    """The rows of the system. Of accesses and contents only what lies on one watched byte, read once."""

    def __init__(self, system: dict[str, Any], buffer: int | None, byte: int | None) -> None:
        self.system, self.buffer, self.byte = system, buffer, byte
        self.known: dict[int, list[Row]] = {}

    def rows(self, table: str, span: slice, *names: str) -> list[Row]:
        return list(zip(*(self.system[f"{table}_{name}"][span] for name in names), strict=True))

    def of(self, table: str, first: int, end: int, *names: str) -> list[Row]:
        """Of events first to end - 1."""
        starts = self.system[f"{table}_first"]
        return self.rows(table, slice(starts[first], starts[end]), *names)

    def waits(self, event: int) -> list[Row]:
        return self.of("wait", event, event + 1, "counter", "threshold")

    def signals(self, first: int, end: int) -> list[Row]:
        return self.of("signal", first, end, "counter", "amount")

    def here(self, rows: list[Row]) -> list[Row]:
        """Of rows that begin with buffer, lo, hi: the rest, where the byte lies within."""
        return [row[3:] for row in rows if row[0] == self.buffer and row[1] <= self.byte < row[2]]

    def content(self, table: str) -> list[Row]:
        """(value, delta) before ("initial") or after ("final")."""
        return self.here(self.rows(table, slice(None), "buffer", "lo", "hi", "value", "delta"))

    def touches(self, event: int) -> list[Row]:
        """(kind, value, delta), reads first."""
        if event not in self.known:
            found = self.of("access", event, event + 1, "buffer", "lo", "hi", "kind", "value", "delta")
            self.known[event] = sorted(self.here(found), key=lambda row: row[0])
        return self.known[event]


class Run:
    """Where each agent is, the counters, and the byte: its content, and whether a reader took it as complete.

    What a write of content (value, delta) leaves is what a reader means, and an accumulation finds and leaves.
    """

    def __init__(self, events: Events) -> None:
        first: list[int] = events.system["agent_first"]
        self.events, self.at, self.ends = events, first[:-1], first[1:]
        self.counters = events.system["counter_init"][:]
        self.cell: Row | None = (None, *events.content("initial"))[-1]
        self.taken, self.seen = False, set[tuple[str, int]]()

    def enabled(self, agent: int) -> bool:
        event, end = self.at[agent], self.ends[agent]
        return event < end and all(self.counters[counter] >= least for counter, least in self.events.waits(event))

    def step(self, agent: int) -> None:
        event = self.at[agent]
        for kind, *content in self.events.touches(event):
            self.touch(event, kind, tuple(content))
        for counter, amount in self.events.signals(event, event + 1):
            self.counters[counter] += amount
        self.at[agent] += 1

    def touch(self, event: int, kind: int, content: Row) -> None:
        anything = content[0] == DONT_CARE
        if kind != WRITE and not (anything and (kind == READ or self.cell is None)):
            if self.cell is None:
                self.seen.add(("uninitialised", event))
            elif self.cell[0] != content[0] if anything else self.cell != content:
                self.seen.add(("stale", event))
            elif kind != READ and self.taken and not anything:
                self.seen.add(("partial", event))
        self.taken = kind == READ and (self.taken or (self.cell == content and not anything))
        self.cell = self.cell if kind == READ else content

    def stuck(self, wait_cycle: list[list[int]]) -> bool:
        """No wait of the wait cycle is met even if all others run to their ends, whatever they wait for."""
        ends, most = self.ends[:], self.counters[:]
        for agent, event, *_ in wait_cycle:
            ends[agent] = min(ends[agent], event)
        for at, end in zip(self.at, ends, strict=True):
            for counter, amount in self.events.signals(at, max(at, end)):
                most[counter] += amount
        return bool(wait_cycle) and all(
            self.at[agent] == event < self.ends[agent]
            and (counter, threshold) in self.events.waits(event)
            and most[counter] < threshold
            for agent, event, counter, threshold, *_ in wait_cycle
        )

    def clash(self, events: list[int], sums: bool) -> bool:
        """Two events of two agents are next and conflict; sums: both accumulate floats."""
        heads = {self.at[agent] for agent in range(len(self.at)) if self.enabled(agent)}
        if len(events) != 2 or len({*events} & heads) != 2:
            return False
        one, two = ([touch[0] for touch in self.events.touches(event)] for event in events)
        pairs = {(x, y) for x in one for y in two}
        return (FLOAT, FLOAT) in pairs if sums else any(x != y or x == WRITE for x, y in pairs)

    def wrong_at_the_end(self) -> bool:
        """Nobody writes the byte any more, and something else is wanted there."""
        ahead = (event for at, end in zip(self.at, self.ends, strict=True) for event in range(at, end))
        settled = all(kind == READ for event in ahead for kind, *_ in self.events.touches(event))
        return settled and any(wanted[0] >= 0 and self.cell != wanted for wanted in self.events.content("final"))


def replay(system: dict[str, Any], witness: dict[str, Any]) -> bool:
    """True iff the interleaving is legal and ends in what the witness says (columns as in `System.to_json`)."""
    return replayed(Events(system, witness["buffer"], witness["byte"]), witness)


def replayed(rows: Events, witness: dict[str, Any]) -> bool:
    """`replay` with rows that may have been read before, of the witness's byte."""
    run, kind, events = Run(rows), witness["kind"], witness["events"]
    for agent in (agent for agent, count in witness["order"] for _ in range(count)):
        if not run.enabled(agent):
            return False
        run.step(agent)
    if kind == "deadlock":
        return run.stuck(witness.get("wait_cycle") or [])
    if kind in ("race", "unordered_sum"):
        return run.clash(events, sums=kind == "unordered_sum")
    return run.wrong_at_the_end() if kind == "final" else (kind, events[0]) in run.seen
