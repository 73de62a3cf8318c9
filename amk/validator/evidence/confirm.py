"""Findings of the composed check put to the flat system: real at some position, or only a doubt.

A race is confirmed if both events are enabled where a greedy run that leaves them out stops: that is the definition,
no clocks involved. Wrong content is confirmed if some run of the flat system finds it too. Positions are tried in turn,
and only accesses of the workers that a finding is about are listed: so a flat system of full size stays small.

What is confirmed has evidence: the flat system and a witness that `replay` checks. A witness takes longer to make than
to know that it exists, so it is made when it is asked for.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final

import numpy as np

from amk.validator.evidence.compact import GONE
from amk.validator.evidence.flat_system import Flat, expand
from amk.validator.evidence.witness import Witness, fault_witness, race_witness
from amk.validator.memory.composition import Composition, Start
from amk.validator.memory.races import Fault, Race, blocks, find_faults, touches_of
from amk.validator.order.greedy_run import Run, greedy
from amk.validator.order.two_levels import Edges, NotComposable
from amk.validator.program.system import I64, READ, WRITE, Bools, System
from amk.validator.program.trace import TooLarge, Trace

SMALL: Final = 100_000
"""Nodes up to which every finding is looked at, at every start: a composite step may race where no single warp of it
does."""

FORMAT: Final = "amk.evidence/1"
Place = tuple[Trace, int, int]
"""(trace, worker, item) of a step as run."""


@dataclass(eq=False)
class Evidence:
    """A flat system with these edges, of a launch from `start` on, and what makes a witness of this kind of it."""

    kind: str
    edges: Edges
    start: Start
    system: System
    make: Callable[[], Witness]

    @cached_property
    def witness(self) -> Witness:
        return self.make()

    def json_parts(self, schedule: str) -> Iterator[str]:
        """The text of the evidence, piece by piece; schedule: hash of the one that the system was made from."""
        pos, advance = self.start
        head = {"format": FORMAT, "schedule": schedule, "edges": self.edges, "pos": pos, "advance": advance}
        yield json.dumps(head).removesuffix("}") + ', "system": '
        yield from self.system.json_parts()
        yield f', "witness": {json.dumps(self.witness.to_json())}}}'

    def to_json(self, schedule: str) -> dict[str, Any]:
        """What `json_parts` says."""
        found: dict[str, Any] = json.loads("".join(self.json_parts(schedule)))
        return found


@dataclass(frozen=True, eq=False)
class Clash:
    """Two flat events of different warps, in their order, and the first bytes on which they conflict."""

    flat: Flat
    race: Race
    places: tuple[Place, Place]

    @property
    def sides(self) -> tuple[tuple[int, Place, int], tuple[int, Place, int]]:
        """(event, step, kind of its access) of both."""
        race, (one, two) = self.race, self.places
        return (race.first, one, race.first_kind), (race.second, two, race.second_kind)


def nodes(result: Composition) -> int:
    """Of the composed system, all workers' together."""
    return sum(group.count * group.nodes for group in result.groups)


def starts(result: Composition, workers: frozenset[int] = frozenset()) -> list[Start]:
    """Of launches worth trying: late, where every split works, and where a worker's split appends. Where steps accept
    guesses, they accept all, or none, or, in systems that are SMALL, so many as lie between."""
    kv, tokens = result.schedule.kv, result.tokens * result.schedule.rows
    if result.at is not None:
        return [result.at]
    split = result.schedule.tables["attn.split"]
    found = [kv.context - tokens, *(split[w] * kv.block for w in sorted(workers)), 0, kv.block - 1]
    places = [p for p in dict.fromkeys(found) if 0 <= p <= kv.context - tokens] or [0]
    all_, *fewer = reversed(result.schedule.advances)
    advances = [all_, *reversed(fewer)] if result.tokens > 1 else [all_]
    advances = advances if nodes(result) <= SMALL else advances[:2]
    return [*itertools.product(places, advances)]


class Confirmer:
    """Races of one composition under one kind of edges. in_time: raises where the time is over."""

    def __init__(self, result: Composition, edges: Edges, in_time: Callable[[], None] = lambda: None) -> None:
        self.result, self.edges, self.in_time = result, edges, in_time

    def race(self, a: Place, b: Place) -> tuple[Clash, Evidence] | None:
        """None if no run of the flat system shows that the two steps race."""
        open_, workers = self._open(a, b), frozenset((a[1], b[1]))
        try:
            for start in starts(self.result, workers) if open_.any() else ():
                self.in_time()
                flat = self._flat(self.edges, start, workers)
                for clash in clashes(flat, a, b, open_, self.edges):
                    if _both_enabled(flat.system, clash.race) and not self._over_in_time(clash):
                        witness = partial(race_witness, flat.system, clash.race)
                        return clash, Evidence("race", self.edges, start, flat.system, witness)
        except (NotComposable, TooLarge):
            pass
        return None

    def _flat(self, edges: Edges, start: Start, workers: frozenset[int]) -> Flat:
        pos, advance = start
        schedule, tokens = self.result.schedule, self.result.tokens
        return expand(schedule, pos, tokens, edges, workers, sure=True, brief=True, advance=advance)

    def _open(self, a: Place, b: Place) -> Bools:
        """[warps of a, warps of b] which of their events the composed order leaves open: no run enables others."""
        result = self.result
        orders = {"word": result.order, "wait": result.relaxed_waits, "fence": result.fence}
        order = orders.get(self.edges) or result.order
        assert order is not None, "something races in an order"
        one, two = (order.numbers(np.full(len(e), w), e) for e, w in ((_local(p), p[1]) for p in (a, b)))
        shape = len(one), len(two)
        x, y = np.repeat(one, shape[1]), np.tile(two, shape[0])
        ordered = order.precedes_plainly(np.append(x, y), np.append(y, x))
        left: Bools = ~(ordered[: len(x)] | ordered[len(x) :]).reshape(shape)
        return left

    def _over_in_time(self, clash: Clash) -> bool:
        """Whether one of the two is a read that is over before the other starts: no fence has to make it visible.

        By definition: the write does not run as long as the read does not. Fences are fewer edges than words, so the
        question is put to a system of its own.
        """
        sides = sorted(clash.sides, key=lambda side: side[2] != READ)
        if self.edges != "fence" or sides[0][2] != READ:
            return False
        owners = [clash.flat.owner(event) for event, *_ in sides]
        timed = self._flat("word", (clash.flat.pos, clash.flat.advance), frozenset(worker for _, worker, _ in owners))
        read, write = (int(timed.events_of(worker, np.array([local]))[0]) for _, worker, local in owners)
        run = greedy(timed.system, (read,))
        return int(run.cut[timed.system.agent_of[write]]) <= int(timed.system.index_of[write])


def _local(place: Place) -> I64:
    """The events of a step, one for each of its warps."""
    trace, _, item = place
    events: I64 = trace.event_of[item, list(trace.roles[trace.items[item].step.op.role])]
    return events


def clashes(flat: Flat, a: Place, b: Place, among: Bools, edges: Edges) -> Iterator[Clash]:
    """What conflicts of two steps; among [warps of a, warps of b]: which of their events count. Reads of flag words
    conflict in `wait` alone: whose own the word is, the edges of others do not say."""
    words = frozenset(i for i, b in enumerate(flat.schedule.buffers) if b.tagged and edges != "wait")
    sides = (flat.parts_of(place[1], _local(place)).T.tolist() for place in (a, b))
    for (i, one), (j, two) in itertools.product(*map(enumerate, sides)):
        for x, y in itertools.product(one, two) if among[i, j] else ():
            if GONE in (x, y) or flat.system.agent_of[x] == flat.system.agent_of[y]:
                continue
            (x, first), (y, second) = sorted(((x, a), (y, b)), key=lambda side: side[0])
            if (race := _conflict(flat.system, x, y, words)) is not None:
                yield Clash(flat, race, (first, second))


def _conflict(system: System, x: int, y: int, written: frozenset[int] = frozenset()) -> Race | None:
    """The first accesses of the two that touch a common byte, one writing, or both where only what is `written` of the
    buffer counts; with all that each does to it."""
    one, two = (slice(*system.access_first[event : event + 2].tolist()) for event in (x, y))
    meet = system.access_buffer[one, None] == system.access_buffer[two]
    meet &= system.access_lo[one, None] < system.access_hi[two]
    meet &= system.access_lo[two] < system.access_hi[one, None]
    first, second = system.access_kind[one, None] == WRITE, system.access_kind[two] == WRITE
    meet &= np.where(np.isin(system.access_buffer[two], [*written]), first & second, first | second)
    i, j = np.nonzero(meet)
    if not len(i):
        return None
    spans = (one.start + int(i[0]), two.start + int(j[0]))
    buffer, lo = int(system.access_buffer[spans[0]]), max(int(system.access_lo[k]) for k in spans)
    kinds = (_kind(system, rows, buffer, lo) for rows in (one, two))
    return Race(x, y, buffer, lo, min(int(system.access_hi[k]) for k in spans), *kinds)


def _kind(system: System, rows: slice, buffer: int, byte: int) -> int:
    here = (system.access_buffer[rows] == buffer) & (system.access_lo[rows] <= byte) & (byte < system.access_hi[rows])
    return int(system.access_kind[rows][here].max())


def _both_enabled(system: System, race: Race) -> bool:
    run = greedy(system, (race.first, race.second))
    return _enabled(system, run, race.first) and _enabled(system, run, race.second)


def _enabled(system: System, run: Run, event: int) -> bool:
    span = slice(int(system.wait_first[event]), int(system.wait_first[event + 1]))
    met = bool((run.values[system.wait_counter[span]] >= system.wait_threshold[span]).all())
    return met and int(run.cut[system.agent_of[event]]) == int(system.index_of[event])


def confirmed_fault(result: Composition, fault: Fault, reader: Place | None, writer: Place | None) -> Evidence | None:
    """Wrong content that some run of the flat system finds too; reader None: at the end."""
    workers = frozenset(place[1] for place in (reader, writer) if place)
    touching = workers if reader and fault.kind != "uninitialised" else None
    try:
        for start in starts(result, workers):
            pos, advance = start
            flat = expand(result.schedule, pos, result.tokens, "block", touching, brief=True, advance=advance)
            wanted = set(flat.parts_of(reader[1], _local(reader)).reshape(-1).tolist()) - {GONE} if reader else {-1}
            run = greedy(flat.system)
            faults = find_faults(blocks(touches_of(run)), None).faults
            for found in faults:
                if found.event in wanted and found.kind == fault.kind:
                    kind = fault.kind if reader else "final"
                    return Evidence(kind, "block", start, flat.system, partial(fault_witness, run, found))
    except (NotComposable, TooLarge):
        pass
    return None
