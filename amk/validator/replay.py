"""Replays a witness: runs its interleaving step by step and looks for what it claims. Uses nothing of the validator."""

from __future__ import annotations

from typing import Any

READ, WRITE, FLOAT, DONT_CARE = 0, 1, 3, -1


class Simulator:
    """Counters, program positions, and one watched byte: its content and whether a reader took it as complete."""

    def __init__(self, system: dict[str, Any], buffer: int | None, byte: int | None) -> None:
        self.system, self.watched, self.seen = system, (buffer, byte), set[tuple[str, int]]()
        self.first, self.at, self.value = system["agent_first"], system["agent_first"][:-1], system["counter_init"][:]
        self.cell, self.taken = ([None, *self.here("initial", slice(None), "value", "delta")][-1], False)

    def rows(self, table: str, span: slice, *names: str) -> list[tuple[Any, ...]]:
        return list(zip(*(self.system[f"{table}_{name}"][span] for name in names), strict=True))

    def span(self, table: str, event: int) -> slice:
        return slice(*self.system[f"{table}_first"][event : event + 2])

    def here(self, table: str, span: slice, *names: str) -> list[tuple[Any, ...]]:
        found = self.rows(table, span, *names, "buffer", "lo", "hi")
        return [row[:-3] for row in found if row[-3] == self.watched[0] and row[-2] <= self.watched[1] < row[-1]]

    def enabled(self, w: int) -> bool:
        waits = self.rows("wait", self.span("wait", self.at[w]), "counter", "threshold") if not self.done(w) else []
        return not self.done(w) and all(self.value[counter] >= threshold for counter, threshold in waits)

    def done(self, w: int) -> bool:
        return bool(self.at[w] == self.first[w + 1])

    def touches(self, event: int) -> list[tuple[Any, ...]]:
        return sorted(self.here("access", self.span("access", event), "kind", "value", "delta"), key=lambda row: row[0])

    def wrong(self, kind: int, content: tuple[int, int]) -> str:
        """What is wrong with reading or accumulating ``content`` here: nothing, or the kind of fault."""
        anything = content[0] == DONT_CARE
        if kind == WRITE or (anything and (kind == READ or self.cell is None)):
            return ""
        if self.cell is None:
            return "uninitialised"
        if self.cell[0] != content[0] if anything else self.cell != content:
            return "stale"
        return "partial" if kind > WRITE and self.taken and not anything else ""

    def touch(self, event: int, kind: int, content: tuple[int, int]) -> None:
        self.seen.add((self.wrong(kind, content), event))
        self.taken = kind == READ and (self.taken or (self.cell == content and content[0] != DONT_CARE))
        self.cell = self.cell if kind == READ else content

    def step(self, w: int) -> None:
        for kind, *content in self.touches(self.at[w]):
            self.touch(self.at[w], kind, (content[0], content[1]))
        for counter, amount in self.rows("signal", self.span("signal", self.at[w]), "counter", "amount"):
            self.value[counter] += amount
        self.at[w] += 1

    def settled(self) -> bool:
        """No event that is still to come writes the watched byte."""
        ahead = (e for at, end in zip(self.at, self.first[1:], strict=True) for e in range(at, end))
        return all(kind == READ for event in ahead for kind, *_ in self.touches(event))


def _stuck(state: Simulator, knot: list[list[int]]) -> bool:
    """Each agent of the knot is blocked until events run that come after the blocked events of the knot."""
    first = state.system["signal_first"]
    behind = {k for agent, event, *_ in knot for k in range(first[event], first[state.first[agent + 1]])}
    most = state.system["counter_init"][:]  # the counters after everything that is not behind the knot
    for k, (counter, amount) in enumerate(state.rows("signal", slice(None), "counter", "amount")):
        most[counter] += 0 if k in behind else amount
    return bool(knot) and all(
        state.at[agent] == event < state.first[agent + 1]
        and (counter, threshold) in state.rows("wait", state.span("wait", event), "counter", "threshold")
        and most[counter] < threshold
        for agent, event, counter, threshold, *_ in knot
    )


def _clash(state: Simulator, kind: str, a: int, b: int) -> bool:
    pairs = {(x[0], y[0]) for x in state.touches(a) for y in state.touches(b)}
    if kind == "unordered_sum":
        return (FLOAT, FLOAT) in pairs
    return any(x != y or x == WRITE for x, y in pairs)


def replay(system: dict[str, Any], witness: dict[str, Any]) -> bool:
    """True iff the interleaving is legal and ends in what the witness says (columns as in `System.to_json`)."""
    state, agents = Simulator(system, witness["buffer"], witness["byte"]), range(len(system["agent_first"]) - 1)
    for w in (w for w, count in witness["order"] for _ in range(count)):
        if not state.enabled(w):
            return False
        state.step(w)
    kind, events, enabled = witness["kind"], witness["events"], [w for w in agents if state.enabled(w)]
    if kind == "deadlock":
        return _stuck(state, witness.get("knot") or [])
    if kind in ("race", "unordered_sum"):
        return {*events} <= {state.at[w] for w in enabled} and _clash(state, kind, *events)
    if kind == "final":
        wanted = state.here("final", slice(None), "value", "delta")
        return state.settled() and any(v >= 0 and state.cell != (v, d) for v, d in wanted)
    return (kind, events[0]) in state.seen
