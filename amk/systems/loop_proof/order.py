"""Whether accesses, copies and phases are in order in every period, from what is known at each event.

Of two events a and b of the loop, `lag(a, b)` is the least d such that a of any period is over when b of d periods
later starts; then it is for every larger d too.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor, inf

from amk.systems.loop_proof.knowledge import MOST_PERIODS, NOTHING, Knowledge, OverCount, evenly
from amk.systems.loop_proof.numbers import need
from amk.systems.loop_proof.periods import PARTS, READ, Event
from amk.systems.loop_proof.phases import LoopCountRange, Plain
from amk.systems.rule_numbers import ASYNC, FENCE, GENERIC


class Order:
    """loose: agents, each the second half of a store of the loop, of which several may run at once."""

    def __init__(self, plain: Plain, knowledge: Knowledge, loose: frozenset[int] = frozenset()) -> None:
        self.loose = loose
        self.plain, self.cut, self.knowledge = plain, plain.cut, knowledge
        self.m = knowledge.periods

    def check(self) -> None:
        for count_range in self.plain.count_ranges:
            self.count_range(count_range)
        for event, arrivals in self.plain.in_time:
            need(any(self.always(event, other) for other in arrivals), "bytes may be expected too late")
        for issue, last in self.cut.copies:
            need(self.lag(last, issue) <= 1, "a copy may not be over when the next is issued")
        need(self.loose <= {last.agent for _, last in self.cut.late}, "an agent is not the second half of a store")
        for issue, last in self.cut.late:
            need(
                last.agent in self.loose or self.lag(last, issue) <= 1,
                "a store may not be over when the next is issued",
            )
        self.at_once()
        touches = [event for event in self.cut.events() if event.does == "touch"]
        for k, a in enumerate(touches):
            for b in touches[k + 1 :]:
                if a.of == b.of and a.agent != b.agent and not (a.kind == b.kind and a.kind in (READ, 3)):
                    need(self.apart(a, b), self.complaint("accesses are not known to be ordered", a, b))
        self.fenced(touches)

    def at_once(self) -> None:
        """Of loose agents nothing is known, and what one does in several periods has no byte in common.

        (A loose agent waits for the first half alone. Let each run as early as it can: the others see the same run, so
        what is known of them is so; and a loose agent that runs later knows no less.)
        """
        for row in self.knowledge.claims.values():
            need(not self.loose & set(row), "a claim is of what may be late")
        for agent in self.loose:
            for event in self.cut.agents[agent]["lap"]:
                alone = event.does != "touch" or (event.line[1] and not any(shifts(event, event)))
                need(bool(alone), "stores of several laps that write the same bytes")

    def complaint(self, what: str, a: Event, b: Event) -> str:
        names, verbs = self.cut.names, ("reads", "writes", "adds", "adds")
        return f"{self.cut.buffers[a.of]}: {names[a.agent]} {verbs[a.kind]}, {names[b.agent]} {verbs[b.kind]}; {what}"

    def count_range(self, count_range: LoopCountRange) -> None:
        event, q0 = count_range.event, {"before": 0, "lap": 0, "behind": self.m}[count_range.event.part]
        if count_range.high is not None:
            looped = self.cut.length(event.agent) > 0
            base = self.cut.ahead(event.agent) if event.part != "before" else 0
            moving = looped and event.part != "before"
            claim = OverCount(0, event.place + 1) if moving else OverCount(base + event.place + 1)
            good = self.knowledge.apart(event.of, count_range.high, event.part, event.agent, claim)
            need(good, f"{self.cut.names[event.agent]} may come when a later phase has begun")
        row = self.knowledge.before[event.key] if event.does == "wait" else self.knowledge.at[event.key]
        last = q0 if event.part == "before" else q0 + self.steady(event)
        need(last <= MOST_PERIODS, "periods far apart")
        counts = [
            self.cut.counters[event.of][0] + self.knowledge.weighed(event.of, row, event, q)
            for q in range(q0, last + 1)
        ]
        wanted = [count_range.low[0] + count_range.low[1] * q for q in range(q0, last + 1)]
        need(evenly(counts, wanted), f"{self.cut.names[event.agent]} may come before the phase that it means has begun")

    def steady(self, event: Event) -> int:
        """Periods after which what is over grows evenly."""
        found = self.m
        for p in self.knowledge.signals[event.of]:
            for row in (self.knowledge.before[event.key], self.knowledge.at[event.key]):
                known, length = row.get(p.agent, NOTHING), max(1, self.cut.length(p.agent))
                far = abs(known.count) + self.cut.ahead(p.agent) + p.place + event.place
                far += 0 if known.offset == -inf else int(abs(known.offset))
                found = max(found, far // length + 2)
        return found + 2

    def lag(self, a: Event, b: Event) -> float:
        """Both of the loop."""
        if a.agent == b.agent:
            return 0 if a.place < b.place else 1
        known = self.knowledge.at[b.key].get(a.agent, NOTHING)
        return inf if known.offset == -inf else floor((a.place - known.offset) / self.cut.length(a.agent)) + 1

    def end_lag(self, a: Event, b: Event) -> float:
        """The same, a of the loop, b behind it: a of e periods before the end is over when b starts."""
        if a.agent == b.agent:
            return 1
        known = self.knowledge.at[b.key].get(a.agent, NOTHING)
        return inf if known.offset == -inf else floor((a.place - known.offset) / self.cut.length(a.agent)) + 1

    def index(self, event: Event) -> int | None:
        """The event's number in its agent, where that is the same for all numbers of periods."""
        if event.part == "before":
            return event.place
        return event.place if not self.cut.length(event.agent) and event.part == "behind" else None

    def first(self, a: Event, b: Event) -> float:
        """a has an index; the first period of b from which on a is over when b starts (0: always)."""
        index, known = self.index(a), self.knowledge.at[b.key].get(a.agent, NOTHING)
        assert index is not None
        if a.agent == b.agent:
            return 0 if PARTS.index(a.part) < PARTS.index(b.part) or (a.part == b.part and a.place < b.place) else inf
        if known.count > index:
            return 0
        if known.offset == -inf:
            return inf
        length = self.cut.length(a.agent)
        return max(0, floor((index - self.cut.ahead(a.agent) - known.offset) / length) + 1)

    def times(self, a: Event, b: Event) -> float:
        """a of the loop, b with an index: in how many first periods a is over when b starts."""
        if a.agent == b.agent:
            return 0
        known = self.knowledge.at[b.key].get(a.agent, NOTHING)
        return max(0, ceil((known.count - self.cut.ahead(a.agent) - a.place) / self.cut.length(a.agent)))

    def always(self, a: Event, b: Event) -> bool:
        """a is over when b starts: of the same period, where both are of the loop; else of whatever periods."""
        match a.part, b.part:
            case "lap", "lap":
                return self.lag(a, b) <= 0
            case "lap", "behind":
                return self.end_lag(a, b) <= 1
            case "lap", "before":
                return False
        if self.index(a) is not None:
            return self.first(a, b) <= {"before": 0, "lap": 0, "behind": self.m}[b.part]
        if b.part != "behind":
            return False
        if a.agent == b.agent:
            return a.place < b.place
        return self.knowledge.at[b.key].get(a.agent, NOTHING).offset > a.place

    def apart(self, a: Event, b: Event) -> bool:
        """Wherever they have a byte in common they are in order."""
        if a.part == b.part == "lap":
            return self.laps_apart(a, b, self.lag(a, b), self.lag(b, a))
        a, b = sorted((a, b), key=lambda event: PARTS.index(event.part))
        if never_meet(a, b) or self.always(a, b) or self.always(b, a):
            return True
        if b.part == "lap":
            # a is before the loop
            return all(q >= self.first(a, b) or q < self.times(b, a) for q in self.meetings(a, b))
        if a.part == "lap":
            return self.end_apart(a, b)
        return False

    def laps_apart(self, a: Event, b: Event, one: float, two: float) -> bool:
        """one, two: from how many periods on b is behind a, and a behind b."""
        if never_meet(a, b):
            return True
        if a.line[1] == b.line[1] != 0:
            return all(d >= one or -d >= two for d in shifts(a, b))
        return one + two <= 1

    def meetings(self, a: Event, b: Event) -> Iterable[int]:
        """Periods in which b, of the loop, meets a, which stays."""
        slope = b.line[1]
        if slope == 0:
            # it meets in all periods or none: of those, the ones in which neither need be first
            last = max((n for n in (self.first(a, b), self.times(b, a)) if n != inf), default=0)
            return range(int(last) + 2)
        low = max(0, -((b.line[0] + b.size - 1 - a.line[0]) // slope))
        high = (a.line[0] + a.size - 1 - b.line[0]) // slope
        need(high - low <= MOST_PERIODS, "boxes that meet in too many periods")
        return range(low, high + 1)

    def end_apart(self, a: Event, b: Event) -> bool:
        """a of the loop, b behind it, with boxes that may meet."""
        if a.line[1] == b.line[1] != 0:
            return all(e >= self.end_lag(a, b) for e in shifts(a, b) if e >= 1)
        return False

    def fenced(self, touches: list[Event]) -> None:
        """Ordinary writes and asynchronous accesses of common bytes are in order, by a fence."""
        fences = [event for event in self.cut.events() if event.proxy == FENCE]
        writes = [event for event in touches if event.kind != READ and event.proxy == GENERIC]
        for access in (event for event in touches if event.proxy == ASYNC):
            for write in writes:
                if write.of == access.of:
                    message = self.complaint("no proxy fence is known to be between", write, access)
                    need(self.by_fence(write, access, fences), message)

    def by_fence(self, write: Event, access: Event, fences: list[Event]) -> bool:
        if write.part == access.part == "lap":
            through = [self.lag(write, f) + self.lag(f, access) for f in fences if f.part == "lap"]
            return self.laps_apart(write, access, min(through, default=inf), self.lag(access, write))
        a, b = sorted((write, access), key=lambda event: PARTS.index(event.part))
        if never_meet(a, b) or self.always(access, write):
            return True
        return any(self.always(write, f) and self.always(f, access) for f in fences)


def never_meet(a: Event, b: Event) -> bool:
    """Their boxes have no byte in common, in whatever periods; where both grow alike, if so in the same period."""
    (x, p), (y, r) = a.line, b.line
    if p == r == 0 or (p == r and a.part == b.part != "lap"):
        return x + a.size <= y or y + b.size <= x
    # what stays is below what moves away
    return (p == 0 <= r and x + a.size <= y) or (r == 0 <= p and y + b.size <= x)


def shifts(a: Event, b: Event) -> list[int]:
    """By how many periods b is later where they have a byte in common; both grow alike."""
    (x, slope), (y, _) = a.line, b.line
    low = -((y + b.size - 1 - x) // slope)
    high = (x + a.size - 1 - y) // slope
    need(high - low <= MOST_PERIODS, "boxes that meet in too many periods")
    return list(range(low, high + 1))
