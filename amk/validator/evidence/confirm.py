"""Findings of the composed check put to the flat system: real at some position, or only a doubt.

A race is confirmed if both events are enabled where a greedy run that leaves them out stops: that is the definition,
no clocks involved. The strict inter-CTA system is asked first, because what it confirms is real (see `maximal_runs`);
what it does not confirm is asked of the flat system. Accesses are those of the two steps at one position. A wait for
more than all steps signal in all is a deadlock whatever else happens; other deadlocks and wrong content are looked
for on the flat system.

What is confirmed has evidence: a witness that `replay` checks. It takes far longer to make than to know that it
exists, so it is made when it is asked for.
"""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final

import numpy as np

from amk.validator.evidence.compact import GONE
from amk.validator.evidence.flat_system import MAX_EVENTS, MAX_LISTED, WHOLE, Flat, expand, left_at_most
from amk.validator.evidence.maximal_runs import Event, MaximalRuns
from amk.validator.evidence.witness import Witness, race_witness
from amk.validator.memory.composition import Composition
from amk.validator.memory.races import Race
from amk.validator.order.between_ctas import Edges, InterCtaSystem
from amk.validator.order.greedy_run import Run, greedy
from amk.validator.order.intervals import Ordering
from amk.validator.order.within_cta import NotComposable
from amk.validator.program.footprint import Footprint, Footprints, flat_rows
from amk.validator.program.system import I64, READ, WRITE, Bools, System
from amk.validator.program.trace import Trace

FORMAT: Final = "amk.evidence/1"
PAIRS: Final = 1 << 20
"""Pairs of rows that are compared at once."""
Place = tuple[Trace, int, int]
"""(trace, worker, item) of a step as run."""
Made = tuple[System, Witness]


class Evidence:
    """A witness of a kind and the system it is about. Both are made when they are asked for. large: see `large`."""

    def __init__(self, kind: str, edges: Edges, pos: int, make: Callable[[], Made], large: bool) -> None:
        self.kind, self.edges, self.pos, self._make, self._large = kind, edges, pos, make, large

    @cached_property
    def _made(self) -> Made:
        if self._large:
            gc.collect()  # what the verdict was found with refers to itself, and a large system is about to be made
        return self._make()

    @property
    def system(self) -> System:
        return self._made[0]

    @property
    def witness(self) -> Witness:
        return self._made[1]

    def to_json(self, schedule: str) -> dict[str, Any]:
        """schedule: hash of the schedule that the system was made from."""
        return {
            "format": FORMAT,
            "schedule": schedule,
            "edges": self.edges,
            "pos": self.pos,
            "system": self.system.to_json(),
            "witness": self.witness.to_json(),
        }

    def json_parts(self, schedule: str) -> Iterator[str]:
        """The text of `to_json`, piece by piece."""
        head = {"format": FORMAT, "schedule": schedule, "edges": self.edges, "pos": self.pos}
        yield json.dumps(head).removesuffix("}") + ', "system": '
        yield from self.system.json_parts()
        yield f', "witness": {json.dumps(self.witness.to_json())}}}'


@dataclass(frozen=True, eq=False)
class Touching:
    """An event of a worker with its rows (buffer, lo, hi, kind, value, delta) at a position."""

    event: Event
    place: Place
    warp: int
    rows: I64

    @property
    def agent(self) -> tuple[int, int]:
        return self.event.worker, self.warp

    def kind_at(self, buffer: int, byte: int) -> int:
        rows = self.rows
        here = (rows[:, 0] == buffer) & (rows[:, 1] <= byte) & (rows[:, 2] > byte)
        return int(rows[here, 3].max())


def _number(flat: Flat, event: Event) -> int:
    first = flat.traces[event.group].program.first
    number = int(flat.event_id[event.group][event.worker - first, event.number])
    assert number != GONE, "events that touch listed bytes are all there"
    return number


@dataclass(frozen=True, eq=False)
class Clash:
    """Two events of different warps and the first bytes on which they conflict at the position."""

    pos: int
    first: Touching
    second: Touching
    buffer: int
    lo: int
    hi: int

    @property
    def kinds(self) -> tuple[int, int]:
        return self.first.kind_at(self.buffer, self.lo), self.second.kind_at(self.buffer, self.lo)

    @property
    def workers(self) -> frozenset[int]:
        return frozenset((self.first.event.worker, self.second.event.worker))

    def on(self, flat: Flat) -> Race:
        first, second = _number(flat, self.first.event), _number(flat, self.second.event)
        return Race(first, second, self.buffer, self.lo, self.hi, *self.kinds)


Met = tuple[int, Touching, Touching]
"""(position, event, event) of different agents, in their order, that touch a common byte, one writing."""


@dataclass(frozen=True, eq=False)
class ConfirmedRace:
    clash: Clash
    evidence: Evidence


def positions(result: Composition, workers: frozenset[int] = frozenset()) -> list[int]:
    """First positions of launches worth trying: late, where every split works, and where a worker's split appends."""
    kv, tokens = result.schedule.kv, result.tokens * result.schedule.rows
    if result.at is not None:
        return [result.at]
    split = result.schedule.tables["attn.split"]
    found = [kv.context - tokens, *(split[w] * kv.block for w in sorted(workers)), 0, kv.block - 1]
    return [p for p in dict.fromkeys(found) if 0 <= p <= kv.context - tokens] or [0]


def fits(result: Composition, listed: int | None = 2) -> bool:
    """Can the flat system be made where so many workers list what they touch? None: all of them."""
    groups = [(g.order.trace, g.signals[:, 1], g.count if listed is None else listed) for g in result.groups]
    left = sum(left_at_most(result.schedule, *group) for group in groups)
    return left <= MAX_EVENTS and sum(t.program.count * t.events for t, *_ in groups) <= MAX_LISTED


def large(result: Composition) -> bool:
    """Is the flat system so large that what else is in memory matters? Looking for what nobody needs any more takes
    longer than making a small one."""
    return sum(g.count * g.order.trace.events for g in result.groups) > WHOLE


def order_of(result: Composition, edges: Edges) -> Ordering | None:
    """The order of these edges, or one with fewer."""
    return {"word": result.order, "wait": result.hints, "fence": result.fence}.get(edges) or result.order


class Confirmer:
    """Races of one composition under one kind of edges. in_time: raises where the time is over."""

    def __init__(self, result: Composition, edges: Edges, in_time: Callable[[], None] = lambda: None) -> None:
        self.result, self.edges, self._in_time = result, edges, in_time
        self._strict: dict[Edges, MaximalRuns] = {}
        self._last: tuple[int, frozenset[int], Flat] | None = None
        self._in_words: dict[tuple[int, frozenset[int]], Flat] = {}

    @cached_property
    def footprints(self) -> Footprints:
        return Footprints(self.result.schedule)

    @cached_property
    def fits(self) -> bool:
        return fits(self.result)

    @cached_property
    def _block(self) -> MaximalRuns:
        block = self.result.block
        assert isinstance(block, InterCtaSystem)
        return MaximalRuns(block)

    def _maximal_runs(self, edges: Edges) -> Iterator[MaximalRuns]:
        """Whom to ask what can be enabled, the one at hand first: the other shows more and has to be made. Where no two
        accesses race in time the first shows nothing: what one of its runs enables together is not ordered in time."""
        if self.result.strict is None:
            return
        if edges != "fence" or self.result.races is None or self.result.races.racy:
            yield self._block
        if edges not in self._strict:
            inter_cta = self.result.strict(edges)
            self._strict[edges] = MaximalRuns(inter_cta)
        yield self._strict[edges]

    def quickly(self, a: Place, b: Place) -> ConfirmedRace | None:
        """What the strict inter-CTA system shows; None says nothing."""
        if self.result.strict is None or not self.fits:
            return None
        among = self._open(a, b)
        # the inter-CTA system is the same at every position
        met = {(x.event, y.event): (pos, x, y) for pos, x, y in reversed(self._met(a, b, among))}
        for events, (pos, x, y) in reversed(met.items()):
            self._in_time()
            if any(one.both_enabled(*events) for one in self._maximal_runs(self.edges)):
                clash = _clash(pos, x, y)
                if not self._over_in_time(clash):
                    return self._confirmed(clash)
        return None

    def _open(self, a: Place, b: Place) -> Bools:
        """[warps of a, warps of b] which of their events the composed order leaves open: no run enables others."""
        order = order_of(self.result, self.edges)
        sides = [(worker, trace.event_of[item, list(_warps((trace, worker, item)))]) for trace, worker, item in (a, b)]
        shape = len(sides[0][1]), len(sides[1][1])
        if order is None:
            return np.ones(shape, bool)
        one, two = (order.numbers(np.full(len(events), worker), events) for worker, events in sides)
        x, y = np.repeat(one, shape[1]), np.tile(two, shape[0])
        ordered = order.precedes_plainly(np.append(x, y), np.append(y, x))
        left: Bools = ~(ordered[: len(x)] | ordered[len(x) :]).reshape(shape)
        return left

    def race(self, a: Place, b: Place) -> ConfirmedRace | None:
        """None if no run of the flat system shows that the two steps race."""
        if not self.fits:
            return None
        try:
            clashes = (_clash(*met) for met in self._met(a, b, np.ones((len(_warps(a)), len(_warps(b))), bool)))
            found = next((c for c in clashes if self._both_enabled(c) and not self._over_in_time(c)), None)
        except NotComposable:
            return None
        return None if found is None else self._confirmed(found)

    def _met(self, a: Place, b: Place, among: Bools) -> list[Met]:
        """What meets at the positions worth trying; among [warps of a, warps of b]: which of their events count."""
        if not among.any():
            return []
        tried = positions(self.result, frozenset((a[1], b[1])))
        moving = [self._positional(place, tried[0]) for place in (a, b)]
        first = [self._touching(place, tried[0]) for place in (a, b)]
        found: list[Met] = []
        for pos in tried if any(moving) else tried[:1]:
            one, two = (self._touching(p, pos) if m else f for p, m, f in zip((a, b), moving, first, strict=True))
            found += [(pos, *pair) for pair in _meeting(one, two, among)]
        return found if any(moving) else [(pos, x, y) for pos in tried for _, x, y in found]

    def _positional(self, place: Place, pos: int) -> bool:
        """Does what the step touches depend on the position?"""
        return self._footprint(place, pos).positional

    def _footprint(self, place: Place, pos: int) -> Footprint:
        """In a launch that starts at this position."""
        trace, worker, number = place
        here = pos + self.result.schedule.rows * max(trace.items[number].token, 0)
        return self.footprints.of([trace.items[number]], np.array([worker]), np.array([[here]]))

    def _confirmed(self, clash: Clash) -> ConfirmedRace:
        # the witness needs no more than this of what the race was found with
        flat = partial(self._flat, clash) if self._known(clash) else self._expansion(clash, self.edges)

        def make() -> Made:
            made = flat()
            return made.system, race_witness(made.system, clash.on(made))

        return ConfirmedRace(clash, Evidence("race", self.edges, clash.pos, make, large(self.result)))

    def _expansion(self, clash: Clash, edges: Edges) -> Callable[[], Flat]:
        result = self.result
        return partial(expand, result.schedule, clash.pos, result.tokens, edges, clash.workers, sure=True, brief=True)

    def _known(self, clash: Clash) -> bool:
        return self._last is not None and self._last[:2] == (clash.pos, clash.workers)

    def _flat(self, clash: Clash) -> Flat:
        if self._last is None or not self._known(clash):
            self._last = clash.pos, clash.workers, self._expansion(clash, self.edges)()
        return self._last[2]

    def _both_enabled(self, clash: Clash) -> bool:
        self._in_time()
        flat = self._flat(clash)
        race = clash.on(flat)
        run = greedy(flat.system, (race.first, race.second))
        return all(_enabled(flat.system, run, event) for event in (race.first, race.second))

    def _over_in_time(self, clash: Clash) -> bool:
        """Whether one of the two is a read that is over before the other starts: no fence has to make it visible.

        By definition: the write does not run as long as the read is withheld. Fences are fewer edges than words, so the
        question is put to a system of its own.
        """
        if self.edges != "fence" or READ not in clash.kinds:
            return False
        swapped = clash.kinds[1] == READ
        read, write = (clash.second, clash.first) if swapped else (clash.first, clash.second)
        if any(one.enabled_without(write.event, read.event) for one in self._maximal_runs("word")):
            return False
        timed = self._timed(clash)
        system = timed.system
        before, after = _number(timed, read.event), _number(timed, write.event)
        run = greedy(system, (before,))
        return int(run.cut[system.agent_of[after]]) <= int(system.index_of[after])

    def _timed(self, clash: Clash) -> Flat:
        key = clash.pos, clash.workers
        if key not in self._in_words:
            self._in_words = {key: self._expansion(clash, "word")()}
        return self._in_words[key]

    def _touching(self, place: Place, pos: int) -> list[Touching]:
        """The events of a step, one per warp."""
        trace, worker, item = place
        group = next(g.number for g in self.result.groups if g.first == trace.program.first)
        found = self._footprint(place, pos)
        rows = flat_rows(self.footprints, [trace.items[item]], found)
        return [
            Touching(Event(group, worker, int(trace.event_of[item, warp])), place, warp, rows[found.agent == agent])
            for agent, warp in enumerate(_warps(place))
        ]


def _warps(place: Place) -> range:
    """Those that run the step."""
    trace, _, item = place
    return trace.roles[trace.items[item].step.op.role]


def _meeting(first: list[Touching], second: list[Touching], among: Bools) -> Iterator[tuple[Touching, Touching]]:
    """Pairs of different agents, in their order, that touch a common byte, one writing. among [first, second]: which
    pairs count."""
    for i, j in _conflicting([x.rows for x in first], [y.rows for y in second]):
        x, y = first[i], second[j]
        if among[i, j] and x.agent != y.agent:
            yield (x, y) if x.agent < y.agent else (y, x)


def _conflicting(first: list[I64], second: list[I64]) -> list[tuple[int, int]]:
    """Numbers of the sets of rows of which some two conflict, in order: all at once, because few do."""
    one, two = np.concatenate(first), np.concatenate(second)
    writing, written = (int((rows[:, 3] == WRITE).sum()) for rows in (one, two))
    if writing * len(two) + len(one) * written > PAIRS:
        every = itertools.product(enumerate(first), enumerate(second))
        return [(i, j) for (i, x), (j, y) in every if len(_conflicts(x, y)[0])]
    i, j = _conflicts(one, two)
    x, y = (np.repeat(np.arange(len(rows)), [len(own) for own in rows]) for rows in (first, second))
    return sorted(set(zip(x[i].tolist(), y[j].tolist(), strict=True)))


def _conflicts(one: I64, two: I64) -> tuple[I64, I64]:
    """Rows of each that touch a common byte, one writing: few write, so they are looked at apart."""
    sides = [one[:, 3] == WRITE, two[:, 3] == WRITE]
    writes, reads, written = (np.flatnonzero(side) for side in (sides[0], ~sides[0], sides[1]))
    i, j = _common(one[writes], two)
    m, n = _common(one[reads], two[written])
    left, right = np.append(writes[i], reads[m]), np.append(j, written[n])
    order = np.lexsort((right, left))
    return left[order], right[order]


def _common(one: I64, two: I64) -> tuple[I64, I64]:
    """Rows of each that touch a common byte."""
    meet = np.maximum(one[:, 1:2], two[:, 1]) < np.minimum(one[:, 2:3], two[:, 2])
    i, j = np.nonzero((one[:, :1] == two[:, 0]) & meet)
    return i, j


def _clash(pos: int, one: Touching, two: Touching) -> Clash:
    """Two events that meet, with the first bytes on which they do."""
    i, j = (found[0] for found in _conflicts(one.rows, two.rows))
    row, other = one.rows[i], two.rows[j]
    return Clash(pos, one, two, int(row[0]), int(max(row[1], other[1])), int(min(row[2], other[2])))


def _enabled(system: System, run: Run, event: int) -> bool:
    span = slice(int(system.wait_first[event]), int(system.wait_first[event + 1]))
    met = bool((run.values[system.wait_counter[span]] >= system.wait_threshold[span]).all())
    return met and int(run.cut[system.agent_of[event]]) == int(system.index_of[event])
