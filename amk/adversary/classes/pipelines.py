"""Classes 23, 26 to 28 and 31 to 35 as flat systems: what the schedule format fixes, or has no words for.

A schedule cannot say how a ring counts laps, phases and bytes, because that follows from its depth and is proved once;
it has no bulk stores and no packed activations. Slots, chunks and shares are those of real plans; each asynchronous
copy is an agent of its own, so copies are unordered among themselves, and an mbarrier is a counter of arrivals (with
its bytes as a second counter). One builder makes every load pipeline, one every store pipeline; a class turns one knob.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from random import Random

from amk.adversary.subjects import draw
from amk.adversary.system_builder import SystemBuilder
from amk.schedule_ir.layout import stream_layout
from amk.schedule_ir.schedule import Schedule
from amk.validator.program.system import System

LONGEST = 7
"""Chunks of a pipeline; more show nothing new and take the judges longer."""


@dataclass(frozen=True)
class Load:
    """A ring of `slots` that `chunks` pass through, drained by `readers` warps, each reading its part of a slot.

    assumed: the depth with which laps are counted. early: chunks whose slot is given back before it is read. full,
    empty: initial arrivals. sizes: bytes of each chunk; expected_bytes: bytes
    that the reader expects of it, None: it does not look at bytes. behind: chunks whose wait is two laps late. restart:
    chunk from which a second task fills the ring anew without waiting.
    """

    slots: int
    chunks: int
    readers: int = 1
    assumed: int = 0
    early: frozenset[int] = frozenset()
    full: int = 0
    empty: int = 0
    sizes: tuple[int, ...] = ()
    expected_bytes: tuple[int, ...] = ()
    behind: frozenset[int] = frozenset()
    restart: int = 0


def plan_ring(rng: Random) -> Load:
    """Depth and length of the ring of one warp of a real plan, scaled to what the judges can visit."""
    base = draw(rng)
    schedule = Schedule.model_validate_json(json.dumps(base.document))
    layout = stream_layout(schedule, schedule.streams[0])
    chunks = int(layout.totals[rng.randrange(base.workers), rng.randrange(base.warps)])
    slots = min(schedule.streams[0].slots, rng.choice((1, 2, 2, 3)))
    return Load(slots, min(chunks, rng.randint(2, LONGEST)), readers=rng.choice((1, 1, 2)))


class _Loader:
    """Builds the system of one load pipeline."""

    def __init__(self, load: Load) -> None:
        self.load, self.build = load, SystemBuilder()
        self.width = max(load.sizes, default=4)
        self.full = [self.build.counter(load.full) for _ in range(load.slots)]
        self.empty = [self.build.counter(load.empty) for _ in range(load.slots)]
        self.bytes = [self.build.counter() for _ in range(load.slots)]
        self.issue = [self.build.counter() for _ in range(load.chunks)]

    def size(self, chunk: int) -> int:
        return self.load.sizes[chunk] if self.load.sizes else self.width

    def lap(self, chunk: int) -> int:
        return chunk // (self.load.assumed or self.load.slots)

    def system(self) -> System:
        self.producer()
        for reader in range(self.load.readers):
            self.reader(reader)
        for chunk in range(self.load.chunks):
            self.copy(chunk)
        return self.build.build()

    def producer(self) -> None:
        load, agent = self.load, self.build.agent("producer")
        for chunk in range(load.chunks):
            event = self.build.event(agent)
            free = load.restart and load.restart <= chunk < load.restart + load.slots
            if chunk >= load.slots and not free:
                self.build.wait(event, self.empty[chunk % load.slots], load.readers * self.lap(chunk))
            self.build.signal(event, self.issue[chunk])

    def copy(self, chunk: int) -> None:
        slot = chunk % self.load.slots
        event = self.build.event(self.build.agent(f"copy {chunk}"))
        self.build.wait(event, self.issue[chunk], 1)
        self.build.write(event, 0, slot * self.width, slot * self.width + self.size(chunk), value=chunk)
        self.build.signal(event, self.full[slot])
        self.build.signal(event, self.bytes[slot], self.size(chunk))

    def reader(self, number: int) -> None:
        load, agent = self.load, self.build.agent(f"reader {number}")
        expected = [0] * load.slots
        for chunk in range(load.chunks):
            slot, event = chunk % load.slots, self.build.event(agent)
            late = 2 if chunk in load.behind and number == load.readers - 1 else 0
            if load.expected_bytes:
                expected[slot] += load.expected_bytes[chunk]
                self.build.wait(event, self.bytes[slot], expected[slot])
            else:
                self.build.wait(event, self.full[slot], max(0, self.lap(chunk) + 1 - late))
            if chunk in load.early:
                self.build.signal(event, self.empty[slot])
                event = self.build.event(agent)
            lo, hi = slot * self.width, slot * self.width + self.size(chunk)
            self.build.read(event, 0, lo, hi, value=chunk)
            if chunk not in load.early:
                self.build.signal(event, self.empty[slot])


def load_system(load: Load) -> System:
    return _Loader(load).system()


def released_early(rng: Random) -> System:
    """26: a slot is given back before its last read; harmless for chunks that nothing replaces."""
    load = plan_ring(rng)
    return load_system(replace(load, early=frozenset({rng.randrange(load.chunks)})))


def wrong_depth(rng: Random) -> System:
    """27: the ring's depth changes, laps are counted with the old one."""
    load = plan_ring(rng)
    return load_system(replace(load, assumed=max(1, load.slots + rng.choice((-1, 0, 0, 1)))))


def wrong_parity(rng: Random) -> System:
    """28: the first phase counts as complete before anything has arrived."""
    load = plan_ring(rng)
    return load_system(replace(load, full=rng.choice((0, 0, 1)), empty=rng.choice((0, 0, 1))))


def late_expectation(rng: Random) -> System:
    """31: arrive comes before expect_tx, so the phase ends while its bytes are still on the way."""
    load = plan_ring(rng)
    sizes = [rng.randint(1, 4) for _ in range(load.chunks)]
    wanted = list(sizes)
    if rng.random() < 0.55:
        wanted[rng.randrange(load.chunks)] = 0
    return load_system(replace(load, sizes=tuple(sizes), expected_bytes=tuple(wanted)))


def two_phases_behind(rng: Random) -> System:
    """32: a parity test cannot tell a phase from the one two later or earlier; a reader may lag that far or not."""
    load = plan_ring(rng)
    chunks = [c for c in range(load.chunks) if rng.random() < 0.15]
    return load_system(replace(load, behind=frozenset(chunks)))


def undrained(rng: Random) -> System:
    """33: the next task fills the ring as if it were empty; the last one may still be reading."""
    load = plan_ring(rng)
    return load_system(replace(load, restart=rng.choice((0, rng.randint(1, load.chunks)))))


@dataclass(frozen=True)
class Store:
    """Slots written by a warp and stored by bulk copies. pending: groups that a refill leaves open (slots - 1 is
    right); read_only: the wait before the signal to the other SM is of the `.read` kind."""

    slots: int
    chunks: int
    pending: int
    read_only: bool


def store_system(store: Store) -> System:
    """The warp, one agent per store (source read, then destination write), and the SM that is told."""
    build = SystemBuilder()
    warp, other = build.agent("warp"), build.agent("other SM")
    issued = [build.counter() for _ in range(store.chunks)]
    read = [build.counter() for _ in range(store.chunks)]
    done = [build.counter() for _ in range(store.chunks)]
    announcement = build.counter(name="told")
    for chunk in range(store.chunks):
        event, slot = build.event(warp), chunk % store.slots
        for earlier in range(chunk - store.pending):
            build.wait(event, read[earlier], 1)
        build.write(event, 0, slot, slot + 1, value=chunk)
        build.signal(event, issued[chunk])
        agent = build.agent(f"store {chunk}")
        source, destination = build.event(agent), build.event(agent)
        build.wait(source, issued[chunk], 1)
        build.read(source, 0, slot, slot + 1, value=chunk)
        build.signal(source, read[chunk])
        build.write(destination, 1, chunk, chunk + 1, value=chunk)
        build.signal(destination, done[chunk])
    last = build.event(warp)
    for chunk in range(store.chunks):
        build.wait(last, (read if store.read_only else done)[chunk], 1)
    build.signal(last, announcement)
    event = build.event(other)
    build.wait(event, announcement, 1)
    for chunk in range(store.chunks):
        build.read(event, 1, chunk, chunk + 1, value=chunk)
    return build.build()


def _store(rng: Random) -> Store:
    load = plan_ring(rng)
    return Store(load.slots, min(load.chunks, 4), load.slots - 1, False)


def wrong_group(rng: Random) -> System:
    """34: a store slot is refilled after waiting for the wrong group."""
    store = _store(rng)
    return store_system(replace(store, pending=max(0, store.pending + rng.choice((-1, 0, 1, 1)))))


def read_wait(rng: Random) -> System:
    """35: `.read` says that the source may be reused, not that the destination is written."""
    store = _store(rng)
    return store_system(replace(store, pending=rng.randint(0, store.pending), read_only=rng.random() < 0.5))


def packed_nibbles(rng: Random) -> System:
    """23: rows of int4, two to a byte: tiles of odd width share a byte with their neighbour."""
    base = draw(rng)
    counts = base.document["tables"][f"{rng.choice(('qkv', 'hidden', 'gate_up'))}.count"]
    bounds = [0]
    for count in counts:
        bounds.append(bounds[-1] + count * 2 + rng.choice((0, 0, 0, 0, 1)))
    build = SystemBuilder()
    done, turn = build.counter(), build.counter()
    ordered = rng.random() < 0.2
    for worker in range(base.workers):
        event = build.event(build.agent())
        lo, hi = bounds[worker] // 2, -(-bounds[worker + 1] // 2)
        build.write(event, 0, lo, hi)
        if ordered:
            build.wait(event, turn, worker)
            build.signal(event, turn)
        build.signal(event, done)
    event = build.event(build.agent())
    build.wait(event, done, base.workers)
    build.read(event, 0, 0, -(-bounds[-1] // 2))
    return build.build()
