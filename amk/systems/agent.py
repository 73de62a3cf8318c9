"""An agent of a system: one stream of operations in program order (constructs.md says what each of them means).

Property: each call is one event, or the few that its paragraph in constructs.md names; `rules` says what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self

from amk.systems.flat_judge import ACCUMULATE_FLOAT, ACCUMULATE_INT, MAX_AMOUNT, MAX_THRESHOLD, READ, WRITE
from amk.systems.names import Barrier, Buffer, Counter, Flag, integer, refuse
from amk.systems.recorder import Recorder, Site
from amk.systems.rules import (
    ADD,
    ASYNC,
    AT_LEAST,
    COMPLETE,
    EQUAL,
    EXPECT,
    FENCE,
    GENERIC,
    MOST_BYTES,
    NEXT_PHASE,
    ONLY_EXPECT,
    PARITY,
    STORE,
)

BULK: Final = 16
"""Bytes: a bulk copy is of multiples of it, from and to multiples of it; buffers begin at one."""
Proxy = Literal["generic", "async"]
Bytes = tuple[Buffer, int, int]


class Agent:
    """Appends one event per call. Usable as `with sys.agent("name") as p:`, which changes nothing but the looks."""

    def __init__(self, system: Recorder, number: int, name: str) -> None:
        self.system, self.number, self.name = system, number, name
        self._copies = 0
        self._group: list[tuple[Counter, Counter]] = []
        self._stores: list[int] = []

    @classmethod
    def of(cls, system: Recorder, name: str, site: Site, exits: bool = True) -> Self:
        """One more agent of a system; see `System.agent`."""
        grid, (gpu, cluster, cta) = site
        return cls(system, system.new_agent(name, cta, cluster, gpu, exits, grid), name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def wait(self, counter: Counter, at_least: int, order: Literal["acquire", "relaxed"] = "acquire") -> None:
        """Go on when the counter is at least that. A relaxed poll without a fence behind it orders nothing."""
        if isinstance(counter, Barrier | Flag):
            raise refuse("AMK009", f"{counter.name} is no plain counter: wait for it by {_ways(counter)[0]}")
        self._wait(counter, integer("the threshold", at_least, 0, MAX_THRESHOLD), order, AT_LEAST)

    def signal(self, counter: Counter, amount: int = 1, order: Literal["release", "relaxed"] = "release") -> None:
        """Add to the counter when everything before is done. A relaxed one says nothing about what is before it."""
        if isinstance(counter, Barrier | Flag):
            raise refuse("AMK009", f"{counter.name} is no plain counter: signal it by {_ways(counter)[1]}")
        self._signal(counter, integer("the amount", amount, 1, MAX_AMOUNT), order, ADD)

    def _wait(self, counter: Counter, threshold: int, order: object, rule: int) -> None:
        number, acquires = self.system._counter(counter), self._order(order, "acquire")
        self.system._waits.append((self.system._event(self.number), number, threshold))
        self.system._acquires.append(acquires)
        self.system._wait_rules.append(rule)

    def _signal(self, counter: Counter, amount: int, order: object, rule: int) -> None:
        number, releases = self.system._counter(counter), self._order(order, "release")
        self.system._signals.append((self.system._event(self.number), number, amount))
        self.system._releases.append(releases)
        self.system._signal_rules.append(rule)

    def read(self, buffer: Buffer, lo: int, hi: int, value: object = None, proxy: Proxy = "generic") -> None:
        """Read bytes lo to hi - 1; with a `value`, those must hold what was written under that value."""
        self._access(READ, buffer, lo, hi, value, proxy)

    def write(self, buffer: Buffer, lo: int, hi: int, value: object = None, proxy: Proxy = "generic") -> None:
        """Write bytes lo to hi - 1; `value` (any hashable thing: "tile 3") is what they hold then."""
        self._access(WRITE, buffer, lo, hi, value, proxy)

    def add(
        self,
        buffer: Buffer,
        lo: int,
        hi: int,
        value: object = None,
        floating: bool = True,
        proxy: Proxy = "generic",
    ) -> None:
        """Accumulate atomically. Sums do not race with sums of their kind; floating ones in open order are told."""
        self._access(ACCUMULATE_FLOAT if floating else ACCUMULATE_INT, buffer, lo, hi, value, proxy)

    def copy(
        self,
        source: tuple[Buffer, int, int] | None,
        target: tuple[Buffer, int, int],
        counter: Counter,
        value: object = None,
    ) -> None:
        """Issue an asynchronous copy (cp.async): it runs on its own, later, and adds 1 to `counter`.

        Bulk copies, which need proxy fences, are `load` and `store`.

        source None: memory that nobody writes. Copies are not ordered among themselves. Its cost is one agent.
        """
        engine = self._engine("copy")
        if source is not None:
            engine.read(*source, value=value)
        engine.write(*target, value=value)
        engine.signal(counter)

    def init(self, barrier: Barrier) -> None:
        """`mbarrier.init`, once: uses that may come before it are races. Without it the barrier is there at once."""
        system, number = self.system, _barrier(barrier).number
        if number not in system._mbarriers or number in system._inits:
            raise refuse("AMK009", f"{barrier.name} is no mbarrier, or is initialised already")
        word = system.buffer(f"mbarrier {barrier.name}", 8)
        self.write(word, 0, 8)
        system._inits[number] = word.number

    def arrive(self, barrier: Barrier, count: int = 1, order: Literal["release", "relaxed"] = "release") -> None:
        """`mbarrier.arrive` with a count, `bar.arrive`, `barrier.cluster.arrive`."""
        integer("the number of arrivals", count, 1, _barrier(barrier).arrivals + 1)
        self._signal(barrier, count, order, ADD)

    def expect(self, barrier: Barrier, size: int, arrives: bool = True) -> None:
        """`mbarrier.arrive.expect_tx`: one arrival, and the phase also waits for `size` bytes.

        arrives False: `mbarrier.expect_tx`, which is no arrival.
        """
        rule = EXPECT if arrives else ONLY_EXPECT
        self._signal(_barrier(barrier), integer("the bytes", size, 1, MOST_BYTES), "release", rule)

    def wait_parity(self, barrier: Barrier, parity: int, order: Literal["acquire", "relaxed"] = "acquire") -> None:
        """`mbarrier.try_wait.parity`, in a loop: the phase of this parity is over."""
        self._wait(_barrier(barrier), integer("the parity", parity, 0, 2), order, PARITY)

    def wait_others(self, barrier: Barrier) -> None:
        """`barrier.cluster.wait`: the phase in which this agent arrived last is over."""
        self._wait(_barrier(barrier), 0, "acquire", NEXT_PHASE)

    def sync(self, barrier: Barrier) -> None:
        """`bar.sync`, `arrive_and_wait`, `cluster.sync`: arrive, then wait for the others."""
        self.arrive(barrier)
        self.wait_others(barrier)

    def set(self, flag: Flag, value: int, order: Literal["release", "relaxed"] = "release") -> None:
        """`st.release` (or relaxed) of a value, a reset to 0 included."""
        self._signal(_flag(flag), integer("the value", value, 0, MAX_AMOUNT - 1) + 1, order, STORE)

    def wait_equal(self, flag: Flag, value: int, order: Literal["acquire", "relaxed"] = "acquire") -> None:
        """Poll until the flag holds this value."""
        self._wait(_flag(flag), integer("the value", value, 0, MAX_THRESHOLD), order, EQUAL)

    def fence_async(self) -> None:
        """`fence.proxy.async`: what happened before it is seen by asynchronous accesses that are behind it."""
        self.system._event(self.number, FENCE)

    def load(self, source: Bytes | None, target: Bytes, barrier: Barrier, value: object = None) -> None:
        """A bulk or TMA load: it runs on its own, later, and brings its bytes to the barrier.

        source None: memory that nobody writes.
        """
        _aligned("load", source, target)
        engine = self._engine("load")
        if source is not None:
            engine.read(*source, value, proxy="async")
        engine.write(*target, value, proxy="async")
        engine.complete(barrier, target[2] - target[1])

    def complete(self, barrier: Barrier, size: int) -> None:
        """`mbarrier.complete_tx`: `size` bytes that a phase expects have come. `load` does it by itself."""
        self._signal(_barrier(barrier), integer("the bytes", size, 1, MOST_BYTES), "release", COMPLETE)

    def issue(self, what: str) -> Self:
        """An asynchronous operation of another kind (`tcgen05.mma`, say), as an agent: say what it does, in turn."""
        return self._engine(what)

    def store(self, source: Bytes, target: Bytes | None, value: object = None, add: bool = False) -> None:
        """A bulk or TMA store of the current group; target None: memory that nobody else touches. add: a reduction."""
        _aligned("store", source, target)
        engine = self._engine("store")
        read, written = self._group[-1]
        engine.read(*source, value, proxy="async")
        engine.signal(read)
        if target is not None:
            (engine.add if add else engine.write)(*target, value, proxy="async")
        engine.signal(written)
        self._stores[-1] += 1

    def commit(self) -> None:
        """`cp.async.bulk.commit_group`: the stores since the last one are a group."""
        self._open_group()

    def wait_group(self, most: int = 0, read: bool = False) -> None:
        """`cp.async.bulk.wait_group most`: of the committed groups at most so many are not done; read: not read."""
        integer("the number of groups", most, 0, 1 << 20)
        closed = len(self._group) - 1
        for number in range(closed - most):
            if self._stores[number]:
                self.wait(self._group[number][0 if read else 1], self._stores[number])

    def wait_kernel(self, kernel: Kernel) -> None:
        """`griddepcontrol.wait`: all agents of that kernel have ended."""
        self.wait(kernel.completions, len(kernel.agents))

    def _engine(self, what: str) -> Self:
        """An asynchronous operation that this agent issues now: an agent of its own."""
        system, number = self.system, self._copies
        issued = system.counter(f"{self.name} issues {what} {number}", scope="sys")
        self.signal(issued)
        self._copies += 1
        engine = self.of(system, f"{self.name} {what} {number}", system._site(self.number), exits=False)
        engine.wait(issued, 1)
        if what == "store" and not self._group:
            self._open_group()
        return engine

    def _open_group(self) -> None:
        number = len(self._group)
        kinds = (f"{self.name}: group {number} {what}" for what in ("read", "written"))
        read, written = (self.system.counter(name, scope="sys") for name in kinds)
        self._group.append((read, written))
        self._stores.append(0)

    def _access(self, kind: int, buffer: Buffer, lo: int, hi: int, value: object, proxy: object) -> None:
        if proxy not in ("generic", "async"):
            raise refuse("AMK005", f"proxy {str(proxy)[:40]!r} is neither 'generic' nor 'async'")
        number, first, end = self.system._box(buffer, lo, hi)
        home = self.system._home.get(number)
        if home is not None and _cluster(home) != _cluster(self.system._site(self.number)):
            raise refuse(
                "AMK505", f"{buffer.name} is shared memory of another cluster or kernel: {self.name} cannot reach it"
            )
        content = self.system._value(value)
        event = self.system._event(self.number, ASYNC if proxy == "async" else GENERIC)
        self.system._accesses.append((event, number, first, end, kind, content, 0))

    @staticmethod
    def _order(order: object, strong: str) -> bool:
        if order not in (strong, "relaxed"):
            raise refuse("AMK005", f"order {str(order)[:40]!r} is neither '{strong}' nor 'relaxed'")
        return order == strong


@dataclass(slots=True)
class Tasks:
    """A queue that `workers` agents take tasks of, in order, by an atomic counter."""

    system: Recorder
    name: str
    workers: int
    completions: Counter
    count: int = 0

    def task(self, name: str) -> Task:
        """The next task; whoever is free takes it."""
        agent = Agent.of(self.system, name, (self.system._new_grid(), (0, 0, self.count)), exits=False)
        if self.count >= self.workers:
            agent.wait(self.completions, self.count - self.workers + 1, order="relaxed")
        self.count += 1
        return Task(self, agent)


@dataclass(slots=True)
class Task:
    """`with queue.task("tile 3") as t:`; at the end of the block the worker is free again."""

    queue: Tasks
    agent: Agent

    def __enter__(self) -> Agent:
        return self.agent

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.agent.signal(self.queue.completions, order="relaxed")


@dataclass(slots=True)
class Kernel:
    """`with sys.kernel("second", after=first) as k:`; what `k.agent(name)` makes starts when `first` has ended."""

    system: Recorder
    name: str
    after: Kernel | None
    completions: Counter
    agents: list[Agent]
    grid: int

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for agent in self.agents if kind is None else ():
            agent.signal(self.completions)

    def shared(self, name: str, size: int, cta: int = 0, cluster: int = 0, gpu: int = 0) -> Buffer:
        """Shared memory of one of its CTAs; see `System.shared`."""
        return self.system._shared_of(name, size, (self.grid, (gpu, cluster, cta)))

    def agent(self, name: str, cta: int = 0, cluster: int = 0, gpu: int = 0) -> Agent:
        agent = Agent.of(self.system, name, (self.grid, (gpu, cluster, cta)))
        if self.after is not None:
            agent.wait_kernel(self.after)
        self.agents.append(agent)
        return agent


def _cluster(site: Site) -> tuple[int, int, int]:
    grid, (gpu, cluster, _) = site
    return grid, gpu, cluster


def _aligned(what: str, *boxes: Bytes | None) -> None:
    """Both ends of a bulk copy; of others PTX says that what happens is undefined."""
    for box in boxes:
        if box is not None and any(type(place) is int and place % BULK for place in box[1:]):
            message = f"bytes {box[1]} to {box[2]}: a {what} is of {BULK} bytes or multiples, from such an address"
            raise refuse("AMK005", message)


def _ways(counter: Barrier | Flag) -> tuple[str, str]:
    """How it is waited for, and signalled."""
    return (
        ("`wait_equal`", "`set`") if isinstance(counter, Flag) else ("`wait_parity` or `sync`", "`arrive` or `expect`")
    )


def _barrier(barrier: object) -> Barrier:
    if not isinstance(barrier, Barrier):
        raise refuse("AMK009", "this is no barrier: make one with `sys.mbarrier(name, arrivals)`")
    return barrier


def _flag(flag: object) -> Flag:
    if not isinstance(flag, Flag):
        raise refuse("AMK009", "this is no flag: make one with `sys.flag(name)`")
    return flag
