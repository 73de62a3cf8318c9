"""Barriers by phase as counters that only grow, for every number of periods.

The certificate says, by lines, the phase that each arrival is of and each wait means. For m and m + 1 periods these are
the numbers that `rule_proof` checks, and it says the thresholds and count ranges that follow. Here these must lie on
lines.

Why that holds for more periods: let F phases be over in a period. Let the first numbers of all lines of a barrier,
those at the beginning and those at the end, lie within R. If m * F >= R + 2 * F, a phase is one of three:

* among those at the beginning, made of the same events whatever m is;
* among those at the end, made of the same events counted from the end;
* between, made of the events of the loop alone and like the one F phases before.

One period more adds F phases like those between. So what holds for m and m + 1 holds for more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from amk.systems.loop_proof.numbers import need
from amk.systems.loop_proof.periods import Cut, Event, Line, spelled
from amk.systems.rule_numbers import ADD, EQUAL, EXPECT, GENERIC, ONLY_EXPECT, PARITY, STORE
from amk.systems.rule_proof import Skeleton, in_turns, skeleton

Key = tuple[int, str, int]


@dataclass(frozen=True)
class LoopCountRange:
    """While the event is pending the counter is at least `low`, and below `high` until it is over (None: always)."""

    event: Event
    low: Line
    high: Line | None


@dataclass(frozen=True)
class Plain:
    """The system of counters, and what must hold for it to have the same runs. in_time: before one of the others."""

    cut: Cut
    count_ranges: list[LoopCountRange]
    in_time: list[tuple[Event, list[Event]]]


def ruled(cut: Cut) -> bool:
    return any(one[1] for one in cut.counters) or any(e.rule or e.proxy != GENERIC for e in cut.events())


def plain(cut: Cut, periods: int, claims: dict[Key, Line]) -> Plain:
    """claims: of every wait by phase and every arrival at a barrier, by its key."""
    if not ruled(cut):
        return Plain(cut, [], [])
    need(all(event.strong for event in cut.events()), "relaxed operations beside barriers by phase")
    need(all(e.rule not in ((EQUAL,) if e.does == "wait" else (STORE,)) for e in cut.events()), "flags in a loop")
    _at_home(cut)
    lines = {e.key: claims.get(e.key, (0, 0)) for e in cut.events() if e.does in ("wait", "signal")}
    _apart(cut, periods, lines)
    few, more = (_Few(cut, n, lines) for n in (periods, periods + 1))
    return _Lines(cut, few, more).plain(lines)


class _Few:
    """What `rule_proof` says of so many periods: by event, and by period."""

    def __init__(self, cut: Cut, periods: int, lines: dict[Key, Line]) -> None:
        self.periods, flat = periods, spelled(cut, periods)
        counts: dict[str, list[int]] = {"wait": [], "signal": []}
        rows: dict[str, list[tuple[Event, int]]] = {"wait": [], "signal": []}
        for event, q in flat.index:
            if event.does in counts:
                first, slope = lines[event.key]
                need(first + slope * q >= 0, "a phase is negative")
                counts[event.does].append(first + slope * q)
                rows[event.does].append((event, q))
        found: Skeleton = skeleton(flat.block, flat.orders, {"met": counts["wait"], "sent": counts["signal"]})
        in_turns(found.reading, flat.orders["scope"])
        self.threshold = _by_event(rows["wait"], found.columns["wait_threshold"])
        self.weight = _by_event(rows["signal"], found.columns["signal_amount"])
        self.low: dict[Key, dict[int, int]] = defaultdict(dict)
        self.high: dict[Key, dict[int, int | None]] = defaultdict(dict)
        for number, _, low, high, _ in found.count_ranges:
            event, q = flat.index[number]
            self.low[event.key][q], self.high[event.key][q] = low, high


def _by_event(rows: list[tuple[Event, int]], column: Iterable[int]) -> dict[Key, dict[int, int]]:
    found: dict[Key, dict[int, int]] = defaultdict(dict)
    for (event, q), entry in zip(rows, column, strict=False):
        found[event.key][q] = entry
    return found


def _at_home(cut: Cut) -> None:
    """Who arrives at an mbarrier is of the CTA that waits for it: of others, starts and ends of CTAs would matter."""
    waited = {e.of: cut.places[e.agent] for e in cut.events() if e.does == "wait" and e.rule == PARITY}
    for event in cut.events():
        home = event.does in ("wait", "signal") and waited.get(event.of, cut.places[event.agent])
        need(not home or home == cut.places[event.agent], "an mbarrier of another CTA in an open loop")


def _apart(cut: Cut, periods: int, lines: dict[Key, Line]) -> None:
    by: dict[int, list[tuple[Event, Line]]] = defaultdict(list)
    for event in cut.events():
        if event.does in ("wait", "signal") and cut.counters[event.of][1]:
            by[event.of].append((event, lines[event.key]))
    for found in by.values():
        grows = {line[1] for event, line in found if event.part == "lap"} or {0}
        phases = max(grows)
        need(grows == {phases} and phases >= 0, "the phases of a barrier do not repeat with the loop")
        need(all(line[1] == 0 for event, line in found if event.part == "before"), "a phase before the loop grows")
        need(all(line[1] in (0, phases) for _, line in found), "the phases of a barrier do not repeat with the loop")
        firsts = [line[0] for _, line in found]
        need(periods * phases >= max(firsts) - min(firsts) + 2 * phases, "phases are far apart")


class _Lines:
    def __init__(self, cut: Cut, few: _Few, more: _Few) -> None:
        self.cut, self.few, self.more = cut, few, more
        self.grows: dict[int, int] = defaultdict(int)
        for event in cut.events():
            if event.does == "signal" and event.part == "lap":
                self.grows[event.of] += self.weight(event)

    def weight(self, event: Event) -> int:
        weights = {*self.few.weight[event.key].values(), *self.more.weight[event.key].values()}
        need(len(weights) == 1, "what an event adds depends on the period")
        return weights.pop()

    def plain(self, lines: dict[Key, Line]) -> Plain:
        agents = [
            {part: [self.event(e) for e in events] for part, events in parts.items()} for parts in self.cut.agents
        ]
        counters = [(init, 0, scope) for init, _, scope in self.cut.counters]
        of = {event.key: event for parts in agents for events in parts.values() for event in events}
        copies = [(of[issue.key], of[last.key]) for issue, last in self.cut.copies]
        late = [(of[issue.key], of[last.key]) for issue, last in self.cut.late]
        cut = replace(self.cut, agents=agents, counters=counters, copies=copies, late=late)
        count_ranges = [self.count_range(of[key]) for key in self.more.low]
        in_time = []
        for event in self.cut.events():
            if event.does == "signal" and event.rule == ONLY_EXPECT:
                alike = [
                    e for e in self.cut.events() if e.does == "signal" and e.of == event.of and e.part == event.part
                ]
                same = [of[e.key] for e in alike if e.rule in (ADD, EXPECT) and lines[e.key] == lines[event.key]]
                in_time.append((of[event.key], same))
        return Plain(cut, count_ranges, in_time)

    def event(self, event: Event) -> Event:
        if event.does == "wait" and event.rule:
            few, more = self.few.threshold[event.key], self.more.threshold[event.key]
            return replace(event, line=self.line(event, few, more), rule=0)
        if event.does == "signal":
            return replace(event, line=(self.weight(event), 0), rule=0)
        return event

    def line(self, event: Event, few: dict[int, int], more: dict[int, int]) -> Line:
        """The line through what was said of the event for few periods and one more."""
        n = self.few.periods
        if event.part == "before":
            need(few == more, "what comes before the loop depends on its laps")
            return more[0], 0
        if event.part == "behind":
            slope = more[n + 1] - few[n]
            need(slope >= 0, "a threshold falls")
            return few[n] - n * slope, slope
        slope = more[n] - more[n - 1]
        on_it = all(more[q] == more[0] + slope * q for q in range(n + 1)) and all(few[q] == more[q] for q in range(n))
        need(on_it and slope >= 0, "the phases of a barrier do not repeat with the loop")
        return more[0], slope

    def count_range(self, event: Event) -> LoopCountRange:
        few, more = dict(self.few.low[event.key]), dict(self.more.low[event.key])
        if event.part == "lap" and more[0] == 0:
            # there may be nothing to be above at the beginning
            few[0] = more[0] = 2 * more[1] - more[2]
            need(more[0] <= 0, "the phases of a barrier do not repeat with the loop")
        return LoopCountRange(event, self.line(event, few, more), self.high(event))

    def high(self, event: Event) -> Line | None:
        few, more = self.few.high[event.key], self.more.high[event.key]
        some: dict[Any, Any] = {q: high for q, high in more.items() if high is not None}
        if event.part != "lap":
            if not some:
                return None
            both: dict[Any, Any] = {q: high for q, high in few.items() if high is not None}
            need(bool(both), "a phase is there for more laps alone")
            return self.line(event, both, some)
        if not some:
            need(self.grows[event.of] == 0, "no later phase is seen")
            return None
        slope = self.grows[event.of]
        need(all(some.get(q) == some[0] + slope * q for q in range(len(some))), "phases do not repeat with the loop")
        return some[0], slope
