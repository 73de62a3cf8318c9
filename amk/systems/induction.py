"""Safe for every number of laps: claims about periods, checked once for all of them.

Notation: agent w has L[w] events in a period and A[w] before; o is an offset: "the first A[w] + q * L[w] + o events of
w are over", said in period q. D(c) is what one period adds to counter c.

Property: `prove` returns None only if for every number of periods Q >= `periods` the system (1) executes every event in
every interleaving, and (2) orders all conflicting accesses in every interleaving. Fewer periods, and what is read, are
for the caller to decide by unrolling.

(1) Let X(m) be the furthest cut that takes no event of period m or later. If X(m + 1) = X(m) + L for one m and X(m) is
within the periods, the same steps lead from X(k) to X(k + 1) for every k >= m: no threshold grows faster than its
counter. If the program of m periods also finishes, its last steps finish every longer one.

(2) Claims: for a wait for c >= t + q * D(c) and an agent w, an offset o such that the first A[w] + q * L[w] + o events
of w are over when the wait is. They hold in every execution if, for all q at once, the producers that need not be
behind that many events of w weigh less than t + q * D(c) - init(c) (the rule of the validator's clocks: any such
family is sound). A producer of amount a with offset o' counts in the periods i < q + (o - o') / L[w], so the sum is
W(q) + sum of a * max(0, q + h). The second, minus q * D(c), does not grow with q. W, which is what comes from before
the loop, does not from some q on. So the first few q decide. Claims that fail are dropped and the rest checked again,
until all hold. What happens before an event is then the maximum over its waits and its predecessors, with L[w] less
where the predecessor is of the period before.

Two accesses with the difference d of their periods are ordered for all d >= d1 and all d <= -d2; every d at which their
boxes meet must be one of these.

Cost: the clocks of one unrolling, and the square of the events in a period.
"""

from __future__ import annotations

from collections import defaultdict
from math import ceil, inf

import numpy as np

from amk.systems.flat_judge import I64, READ, System, greedy, must_clocks
from amk.systems.period import Event, Period

Offsets = list[float]
Claim = list[float]


def finishes(period: Period, systems: dict[int, System]) -> str | None:
    """(1): None, or why it is not known. systems: by number of periods, each of them one that finishes."""
    growth = _growth(period)
    for event in period.events:
        if event.verb == "wait" and event.part != "before" and event.slope > growth[event.of]:
            return f"a wait for {event.of} grows by {event.slope} in {period.laps} laps, and it by {growth[event.of]}"
    most = max(systems)
    length, ahead = np.array(period.length), np.array(period.ahead)
    cuts = {m: _cut(systems[most], ahead + m * length, length) for m in range(1, most)}
    for m in range(1, most - 1):
        within = (cuts[m] >= ahead) | (length == 0)
        if m in systems and within.all() and (cuts[m + 1] - cuts[m] == length).all():
            return None
    return "no period leads from where the one before it ended"


def _growth(period: Period) -> dict[str, int]:
    growth: dict[str, int] = defaultdict(int)
    for event in period.events:
        if event.verb == "signal" and event.part == "lap":
            growth[event.of] += event.first
    return growth


def _cut(system: System, stop: I64, length: I64) -> I64:
    """How far all agents get that stop before these events of theirs, where they have a loop."""
    held = system.agent_first[:-1] + stop
    return greedy(system, held[(length > 0) & (stop < system.agent_size)].tolist()).cut


class Claims:
    """Offsets of all waits, and what follows for all events."""

    def __init__(self, period: Period, block: System, word: System, periods: int) -> None:
        self.period, self.periods, self.growth = period, periods, _growth(period)
        self.agents = range(len(period.length))
        self.init = dict(zip(block.counter_names, block.counter_init.tolist(), strict=True))
        self.code = [[e for e in period.events if e.agent == w] for w in self.agents]
        self.weak = {e.of for e in period.events if e.verb == "signal" and not e.ordering}
        self.signals = [e for e in period.events if e.verb == "signal"]
        clocks = must_clocks(greedy(word))
        self.matrix, self.first = clocks.matrix(), word.agent_first
        self.claims = {e: self._guess(e) for e in period.events if e.verb == "wait"}
        self.at: dict[Event, Offsets] = {}
        self.entered: list[Offsets] = [[] for _ in self.agents]
        """What each agent knows before its loop: counts of the first events of the others."""
        self.reach = 1.0
        """The largest difference of periods that decides the order of two accesses."""

    def _index(self, event: Event, period: int) -> int:
        """The event's number in its agent, in this period of the unrolling."""
        w = event.agent
        before, length = self.period.ahead[w], self.period.length[w]
        base = {"before": 0, "lap": before + period * length, "behind": before + self.periods * length}
        return base[event.part] + event.place

    def _guess(self, wait: Event) -> Claim:
        """What one wait in the middle of the unrolling has behind it: its row, which the wait made.

        Of agents without a loop, and of waits before the loop: how many events, without an offset.
        """
        usable = wait.ordering and wait.of not in self.weak
        usable = usable and (wait.part == "before" or wait.slope == self.growth[wait.of])
        middle = self.periods // 2
        row = self.matrix[int(self.first[wait.agent]) + self._index(wait, middle)].tolist()
        base = {"before": 0, "lap": middle, "behind": self.periods}[wait.part]
        claim = []
        for w in self.agents:
            over = row[w] - (self._base(w, base) if self._moves(wait, w) else 0)
            claim.append(over if usable and row[w] > 0 and w != wait.agent else -inf)
        return claim

    def _base(self, w: int, period: int) -> int:
        return self.period.ahead[w] + period * self.period.length[w]

    def _moves(self, event: Event, w: int) -> bool:
        """Offsets at this event are of the period; otherwise they count the events of w from its first."""
        return event.part != "before" and self.period.length[w] > 0

    def settle(self) -> None:
        """Drop claims until all that are left hold."""
        while True:
            self._follow()
            bad = [(wait, w) for wait, claim in self.claims.items() for w in self.agents if not self._holds(wait, w)]
            if not bad:
                return
            for wait, w in bad:
                self.claims[wait][w] = -inf

    def _follow(self) -> None:
        """What is over at each event, by its waits and what is before it in its agent."""
        for w in self.agents:
            known: Offsets = [-inf] * len(self.agents)
            for event in self.code[w]:
                if event.part == "before":
                    known = self.at[event] = self._joined(event, known)
            self.entered[w] = known
            known = self._around([e for e in self.code[w] if e.part == "lap"], self._fixed(known))
            for event in self.code[w]:
                if event.part == "behind":
                    known = self.at[event] = self._joined(event, known)

    def _around(self, body: list[Event], enter: Offsets) -> Offsets:
        """One period behind the other: what the last event knows, the first of the next period knows."""
        known = enter
        for _ in range(2 if body else 0):
            for event in body:
                known = self.at[event] = self._joined(event, known)
            carried = [o - length for o, length in zip(known, self.period.length, strict=True)]
            moving = [o if length else -inf for o, length in zip(carried, self.period.length, strict=True)]
            last = [max(a, b) for a, b in zip(self._fixed(known), moving, strict=True)]
            known = [max(a, b) for a, b in zip(enter, moving, strict=True)]
        return last if body else known

    def _fixed(self, known: Offsets) -> Offsets:
        """Counts of the events of agents without a loop; they stay. Those of others are of another kind in a loop."""
        return [-inf if length else o for o, length in zip(known, self.period.length, strict=True)]

    def _joined(self, event: Event, known: Offsets) -> Offsets:
        if event.verb != "wait":
            return known
        return [max(a, b) for a, b in zip(known, self.claims[event], strict=True)]

    def over(self, event: Event, w: int) -> float:
        """The offset of agent w behind the event: its own events up to itself are over."""
        if w != event.agent:
            return self.at[event][w]
        own = event.place + 1
        return own if self._moves(event, w) or event.part == "before" else self.period.ahead[w] + own

    def _holds(self, wait: Event, w: int) -> bool:
        """The producers that need not be behind what is claimed of w weigh less than the wait needs."""
        offset = self.claims[wait][w]
        if offset == -inf:
            return True
        need = wait.first - self.init[wait.of]
        if not self._moves(wait, w):
            return self._constant(wait, w, int(offset), need)
        last = wait.part == "behind"
        length, ahead = self.period.length[w], self.period.ahead[w]
        producers = [p for p in self.signals if p.of == wait.of]
        first = max(0, (-int(offset) - ahead) // length + 1)
        # one from before the loop counts from some period on; when all of them do, the sum does not grow any more
        entered = [(int(self.over(p, w)) - int(offset) - ahead) // length + 1 for p in producers if self._early(p, w)]
        periods = [self.periods] if last else range(first, max([first, *entered]) + 1)
        for q in periods:
            weight = sum(p.first * self._times(p, w, int(offset), q, last) for p in producers)
            if not weight < need + q * wait.slope:
                return False
        return True

    def _early(self, p: Event, w: int) -> bool:
        return p.part == "before" and self.over(p, w) > -inf

    def _times(self, p: Event, w: int, offset: int, q: int, last: bool) -> float:
        """In how many periods producer p need not be behind the claim of w made in period q."""
        over = self.over(p, w)
        if p.part == "before":
            return 1 if last or over < self._base(w, q) + offset else 0
        if p.part == "behind":
            return 1 if over < offset - (0 if last else self.period.length[w]) else 0
        if over == -inf:
            return inf
        times = max(0, q + ceil((offset - over) / self.period.length[w]))
        return min(times, q) if last else times

    def _constant(self, wait: Event, w: int, count: int, need: int) -> bool:
        """The same for a claim that the first `count` events of w are over, made in any period."""
        weight = 0.0
        for p in self.signals:
            if p.of != wait.of:
                continue
            over, length = self.over(p, w), self.period.length[w]
            if p.part == "before" or not length:
                counted = over < count
                weight += p.first * counted * (1 if p.part != "lap" else inf if counted else 0)
            elif over == -inf:
                weight += inf
            else:
                below = ceil((count - self.period.ahead[w] - over) / length)
                weight += p.first * (max(0, below) if p.part == "lap" else 1)
        return weight < need

    def entry(self) -> str | None:
        """What the first period takes from the one before it must be known without one."""
        for w in self.agents:
            body = [e for e in self.code[w] if e.part == "lap"]
            for v in self.agents:
                if not body or v == w or not self.period.length[v]:
                    continue
                carried = self.at[body[-1]][v] - self.period.length[v]
                count = carried + self.period.ahead[v]
                first = self.claims[body[0]][v] if body[0].verb == "wait" else -inf
                if count > 0 and self.entered[w][v] < count and first < carried:
                    return f"what agent {w} knows of agent {v} in the first period"
        return None

    def conflict(self) -> str | None:
        """(2): None, or two accesses that are not known to be ordered."""
        touches = [e for e in self.period.events if e.verb in ("read", "write", "add")]
        for k, a in enumerate(touches):
            for b in touches[k:]:
                clash = a.of == b.of and a.agent != b.agent and (a.kind != b.kind or a.verb == "write")
                if clash and not (a.kind == b.kind == READ) and not self._apart(a, b):
                    return f"{a.of}: {a.verb} by agent {a.agent} and {b.verb} by agent {b.agent}"
        return None

    def _apart(self, a: Event, b: Event) -> bool:
        if a.part == b.part == "lap":
            return self._laps_apart(a, b)
        order = ("before", "lap", "behind")
        a, b = sorted((a, b), key=lambda e: order.index(e.part))
        same = a.slope == b.slope or (a.part == "before" and not b.slope) or not (a.slope or b.slope)
        if same and a.part == b.part and not _meet(a, b, 0):
            return True
        if (a.slope == b.slope == 0 and not _meet(a, b, 0)) or _beyond(a, b) or _beyond(b, a):
            return True
        return self._first(a, b) or (a.part == b.part and self._first(b, a))

    def _first(self, a: Event, b: Event) -> bool:
        """a, of each period that it is in, is over when b starts."""
        over, w = self.at[b][a.agent], a.agent
        if a.part == "before" and b.part != "before" and self.entered[b.agent][w] > a.place:
            return True
        if not self._moves(b, w):
            # a count of the first events of w
            behind = a.part == "behind" and not self.period.length[w]
            return (a.part == "before" or behind) and over > a.place + (self.period.ahead[w] if behind else 0)
        if a.part == "before":
            at = 0 if b.part == "lap" else self.periods
            return self._base(w, at) + over > a.place
        if a.part == "lap":
            return over > a.place - self.period.length[w]
        return over > a.place

    def _laps_apart(self, a: Event, b: Event) -> bool:
        one = _lag(self.at[b][a.agent], a.place, self.period.length[a.agent])
        two = _lag(self.at[a][b.agent], b.place, self.period.length[b.agent])
        self.reach = max([self.reach, *(abs(lag) for lag in (one, two) if lag != inf)])
        if a.slope == b.slope != 0:
            low, high = _meeting(a, b)
            return all(d >= one or -d >= two for d in range(low, high + 1))
        if (a.slope == b.slope and not _meet(a, b, 0)) or _beyond(a, b) or _beyond(b, a):
            return True
        return one + two <= 1


def _lag(over: float, place: int, length: int) -> float:
    """The least number of periods between an event at `place` and a later one that knows that it is over."""
    return inf if over == -inf else (place - int(over)) // length + 1


def _meet(a: Event, b: Event, d: int) -> bool:
    """Their boxes have a byte in common if b is d periods later."""
    shift = d * a.slope
    return a.first < b.first + shift + b.size and b.first + shift < a.first + a.size


def _beyond(a: Event, b: Event) -> bool:
    """The boxes of a stay where they are, those of b begin behind them and move away."""
    return a.slope == 0 <= b.slope and a.first + a.size <= b.first


def _meeting(a: Event, b: Event) -> tuple[int, int]:
    """Every difference of periods at which boxes of one slope meet is within these."""
    reach = (abs(a.first - b.first) + a.size + b.size) // abs(a.slope) + 1
    return -reach, reach


def prove(period: Period, systems: dict[int, System], word: System) -> str | None:
    """None if every number of periods from the second largest of `systems` on is safe but for what is read."""
    reason = finishes(period, systems)
    if reason is not None:
        return reason
    most = max(systems)
    claims = Claims(period, systems[most], word, most)
    claims.settle()
    found = claims.entry() or claims.conflict()
    if found is None and 2 * claims.reach + 3 > most:
        return f"accesses that are {int(claims.reach)} periods apart; {most} are unrolled"
    return found
