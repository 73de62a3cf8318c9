"""What is over at each event, in every period.

Notation: agent w has L events in a period and A before it; m is the least number of periods. `Known(count, offset)` of
agent w stands at an event of period q (behind the loop, q is the number of periods). It says that w's first
max(count, A + q * L + offset) events are over when the event starts.

The certificate claims such numbers for waits. What holds at an event is the maximum over its waits and what holds at
the event before it. At the beginning of a lap that event is one for the first period and another for all others.

A claim holds if the wait cannot be met without the claimed events: the signals that may come before they are over
weigh less than its threshold. This is no circle. Take the first event of a run at which something claimed is not over.
Everything earlier is as claimed, so every signal that was sent knew less than the claim.

A few q decide for all. What a signal of the loop adds before the claim is its amount times max(0, q + constant), from
some q on; the growth behind them decides the rest.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Final

from amk.systems.loop_proof.numbers import need
from amk.systems.loop_proof.periods import Cut, Event, Line, Part

MOST_PERIODS: Final = 1 << 12
"""Periods that are looked at one by one."""
Key = tuple[int, str, int]


@dataclass(frozen=True)
class OverCount:
    count: int = 0
    offset: float = -inf

    def joined(self, other: OverCount) -> OverCount:
        return OverCount(max(self.count, other.count), max(self.offset, other.offset))


Row = dict[int, OverCount]
NOTHING: Final = OverCount()


class Knowledge:
    """Of a system of counters; `claims`: by wait, of other agents."""

    def __init__(self, cut: Cut, claims: dict[Key, Row], periods: int) -> None:
        self.cut, self.claims, self.periods = cut, claims, periods
        self.signals: dict[int, list[Event]] = defaultdict(list)
        for event in cut.events():
            if event.does == "signal":
                self.signals[event.of].append(event)
        self.before: dict[Key, Row] = {}
        """What is over when the agent gets to an event."""
        self.at: dict[Key, Row] = {}
        for agent in range(len(cut.agents)):
            self._follow(agent)

    def length(self, agent: int) -> int:
        return self.cut.length(agent)

    def ahead(self, agent: int) -> int:
        return self.cut.ahead(agent)

    def _follow(self, agent: int) -> None:
        parts = self.cut.agents[agent]
        row = self._along(parts["before"], {})
        if parts["lap"]:
            entered = row
            ended = self._along(parts["lap"], entered)
            again = self._carried(entered, ended)
            ended = self._along(parts["lap"], again)
            row = {w: OverCount(k.count, k.offset - self.length(w)) for w, k in ended.items()}
        self._along(parts["behind"], row)

    def _carried(self, entered: Row, ended: Row) -> Row:
        """What holds at the beginning of every lap: of the first, because it holds before the loop."""
        found = dict(entered)
        for w, k in ended.items():
            if k.offset > -inf:
                first = entered.get(w, NOTHING).count - self.ahead(w)
                found[w] = OverCount(entered.get(w, NOTHING).count, min(k.offset - self.length(w), first))
        return found

    def _along(self, events: list[Event], row: Row) -> Row:
        for event in events:
            self.before[event.key] = row
            claim = self.claims.get(event.key)
            if claim:
                row = row | {w: row.get(w, NOTHING).joined(known) for w, known in claim.items()}
            self.at[event.key] = row
        return row

    def check(self) -> None:
        """Every claim holds."""
        waits = {event.key: event for event in self.cut.events() if event.does == "wait"}
        for key, row in self.claims.items():
            need(key in waits, "a claim is of no wait")
            wait = waits[key]
            for w, known in row.items():
                self.claim(wait, w, known)
                need(self.proved(wait, w, known), "a claim does not follow")

    def claim(self, wait: Event, w: int, claim: OverCount) -> None:
        """It can be claimed."""
        need(wait.strong and all(p.strong for p in self.signals[wait.of]), "a relaxed operation orders nothing")
        need(0 <= w < len(self.cut.agents) and w != wait.agent and claim.count >= 0, "a claim is malformed")
        if claim.offset > -inf:
            need(self.length(w) > 0 and wait.part != "before", "a claim is malformed")

    def proved(self, wait: Event, w: int, claim: OverCount) -> bool:
        counted = not claim.count or self.apart(wait.of, wait.line, wait.part, w, OverCount(claim.count))
        return counted and (
            claim.offset == -inf or self.apart(wait.of, wait.line, wait.part, w, OverCount(0, claim.offset))
        )

    def apart(self, counter: int, line: Line, part: Part, w: int, claim: OverCount) -> bool:
        """Before the claim holds, the counter is below the line. claim: a count, or an offset."""
        signals = self.signals[counter]
        low = {"before": 0, "lap": 0, "behind": self.periods}[part]
        high = low + 2 if part == "before" else self._last(signals, w, claim, low)
        if high > MOST_PERIODS:
            return False
        init, short = self.cut.counters[counter][0], []
        for q in range(low, high + 1 if part != "before" else 1):
            events = self._events(w, claim, q)
            if events <= 0:
                continue
            weight = sum(p.line[0] * self._earlier(p, w, events, part, q) for p in signals)
            short.append(line[0] + line[1] * q - init - weight)
            if short[-1] <= 0:
                return False
        return part == "before" or len(short) < 2 or short[-1] >= short[-2]

    def _events(self, w: int, claim: OverCount, q: int) -> int:
        """How many of w's events are claimed in period q."""
        return claim.count if claim.offset == -inf else self.ahead(w) + q * self.length(w) + int(claim.offset)

    def _last(self, signals: list[Event], w: int, claim: OverCount, low: int) -> int:
        """A period from which on everything grows evenly."""
        length, ahead = max(1, self.length(w)), self.ahead(w)
        found = max(low, self.periods)
        for p in signals:
            known = self.over(p, w)
            if claim.offset > -inf:
                found = max(found, -int((ahead + claim.offset - known.count) // length) + 1)
            if known.offset > -inf:
                shift = known.offset - (claim.offset if claim.offset > -inf else claim.count - ahead)
                found = max(found, abs(int(shift // length)) + 2)
        if claim.offset > -inf:
            found = max(found, -int((ahead + claim.offset) // length) + 1)
        return found + 3

    def over(self, p: Event, w: int) -> OverCount:
        """What is over of w when p is: p itself is."""
        if w != p.agent:
            return self.at[p.key].get(w, NOTHING)
        if p.part == "before" or not self.length(w):
            return OverCount(self.ahead(w) * (p.part != "before") + p.place + 1)
        return OverCount(0, p.place + 1)

    def _earlier(self, p: Event, w: int, events: int, part: Part, q: int) -> float:
        """How many times, at most, p may be sent before so many events of w are over."""
        known = self.over(p, w)
        if known.count >= events:
            return 0
        if p.part == "before":
            return 1
        ahead, length = self.ahead(w), self.length(w)
        if p.part == "behind":
            last = {"before": self.periods, "lap": max(self.periods, q + 1), "behind": q}[part]
            return 0 if ahead + last * length + known.offset >= events else 1
        if known.offset == -inf:
            return q if part == "behind" else inf
        times = max(0, -int((ahead + known.offset - events) // length))
        return min(q, times) if part == "behind" else times

    def weighed(self, counter: int, row: Row, event: Event, q: int) -> int:
        """What signals that are over when the event's agent gets to it, or so far into it, add at least."""
        return sum(p.line[0] * self._count_over(p, row, event, q) for p in self.signals[counter])

    def _count_over(self, p: Event, row: Row, event: Event, q: int) -> int:
        w = p.agent
        if w == event.agent:
            base = self.ahead(w) * (event.part != "before") + q * self.length(w) * (event.part != "before")
            events = base + event.place
        else:
            known = row.get(w, NOTHING)
            moving = -inf if known.offset == -inf else self.ahead(w) + q * self.length(w) + known.offset
            events = int(max(known.count, moving))
        if p.part == "before":
            return int(events > p.place)
        if p.part == "lap":
            times = max(0, -((self.ahead(w) + p.place - events) // self.length(w)))
            return min(times, q) if event.part == "behind" else times
        if event.part == "behind":
            return int(events > self.ahead(w) + q * self.length(w) + p.place)
        return int(not self.length(w) and events > self.ahead(w) + p.place)


def evenly(counts: list[int], needs: list[int]) -> bool:
    """Each is at least what is wanted, and the last grows as fast."""
    enough = all(count >= want for count, want in zip(counts, needs, strict=True))
    return enough and all(
        a[1] - a[0] >= b[1] - b[0] for a, b in [*zip(pairwise(counts), pairwise(needs), strict=True)][-1:]
    )
