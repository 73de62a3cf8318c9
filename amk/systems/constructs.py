"""What kernels synchronise with besides plain counters, as calls of `System` and `Agent` (constructs.md says more).

Property: each call is one event, or the few that its paragraph in constructs.md names; `rules` says what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from amk.systems.flat_judge import MAX_AMOUNT, MAX_THRESHOLD
from amk.systems.names import Buffer, Counter, Scope, integer, refuse
from amk.systems.rules import ADD, COMPLETE, EQUAL, EXPECT, FENCE, NEXT_PHASE, ONLY_EXPECT, PARITY, STORE

if TYPE_CHECKING:
    from amk.systems.builder import Agent, System

Bytes = tuple[Buffer, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Barrier(Counter):
    """An mbarrier, a named barrier or a barrier of a cluster: phases of `arrivals` arrivals each."""

    arrivals: int


@dataclass(frozen=True, slots=True, eq=False)
class Flag(Counter):
    """A word that is stored to, and waited for to hold a value."""


@dataclass(slots=True)
class Tasks:
    """A queue that `workers` agents take tasks of, in order, by an atomic counter."""

    system: System
    name: str
    workers: int
    done: Counter
    count: int = 0

    def task(self, name: str) -> Task:
        """The next task; whoever is free takes it."""
        agent = self.system.agent(name, cta=self.count, exits=False)
        if self.count >= self.workers:
            agent.wait(self.done, self.count - self.workers + 1, order="relaxed")
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
            self.agent.signal(self.queue.done, order="relaxed")


@dataclass(slots=True)
class Kernel:
    """`with sys.kernel("second", after=first) as k:`; what `k.agent(name)` makes starts when `first` has ended."""

    system: System
    name: str
    after: Kernel | None
    done: Counter
    agents: list[Agent]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for agent in self.agents if kind is None else ():
            agent.signal(self.done)

    def agent(self, name: str, cta: int = 0, cluster: int = 0, gpu: int = 0) -> Agent:
        made = self.system.agent(name, cta, cluster, gpu)
        if self.after is not None:
            made.wait_kernel(self.after)
        self.agents.append(made)
        return made


class SystemConstructs:
    """Calls of `System`."""

    if TYPE_CHECKING:
        _phases: dict[int, int]
        _shared: list[tuple[Buffer, tuple[int, int, int]]]

        def counter(self, name: str, scope: Scope = "gpu", init: int = 0) -> Counter: ...

        def buffer(self, name: str, size: int) -> Buffer: ...

    def mbarrier(self, name: str, arrivals: int = 1, scope: Scope = "cta") -> Barrier:
        """arrivals: what `mbarrier.init` counts; scope: how far its arrivals and waits order memory."""
        counter = self.counter(name, scope)
        self._phases[counter.number] = integer("the number of arrivals", arrivals, 1, 1 << 20)
        return Barrier(counter.system, counter.number, name, arrivals)

    def barrier(self, name: str, warps: int, scope: Scope = "cta") -> Barrier:
        """`bar.sync name, 32 * warps`; with scope "cluster" and all warps of the cluster, `barrier.cluster`."""
        return self.mbarrier(name, warps, scope)

    def flag(self, name: str, scope: Scope = "gpu", init: int = 0) -> Flag:
        """A word in memory that agents store to; init: what it holds before the launch."""
        counter = self.counter(name, scope, init)
        return Flag(counter.system, counter.number, name)

    def shared(self, name: str, size: int, cta: int = 0, cluster: int = 0, gpu: int = 0) -> Buffer:
        """Shared memory of one CTA: it is gone when all agents of that CTA have ended."""
        buffer = self.buffer(name, size)
        self._shared.append((buffer, (gpu, cluster, cta)))
        return buffer

    def queue(self, name: str, workers: int) -> Tasks:
        """Tasks that `workers` CTAs take in turn; SAFE means safe whoever takes which."""
        integer("the number of workers", workers, 1, 1 << 20)
        done = self.counter(f"{name}: done", "sys")
        return Tasks(done.system, name, workers, done)

    def kernel(self, name: str, after: Kernel | None = None) -> Kernel:
        """A launch; after: the one before it in its stream. Kernels without an order run at once."""
        ended = self.counter(f"{name}: ended", "sys")
        return Kernel(ended.system, name, after, ended, [])


class AgentConstructs:
    """Calls of `Agent`."""

    if TYPE_CHECKING:
        system: System
        number: int
        _group: list[tuple[Counter, Counter]]
        _stores: list[int]

        def wait(self, counter: Counter, at_least: int) -> None: ...

        def _wait(self, counter: Counter, threshold: int, order: object, rule: int) -> None: ...

        def _signal(self, counter: Counter, amount: int, order: object, rule: int) -> None: ...

        def _engine(self, what: str) -> Agent: ...

        def _open_group(self) -> None: ...

    def arrive(self, barrier: Barrier, count: int = 1, order: Literal["release", "relaxed"] = "release") -> None:
        """`mbarrier.arrive` with a count, `bar.arrive`, `barrier.cluster.arrive`."""
        integer("the number of arrivals", count, 1, _barrier(barrier).arrivals + 1)
        self._signal(barrier, count, order, ADD)

    def expect(self, barrier: Barrier, size: int, arrives: bool = True) -> None:
        """`mbarrier.arrive.expect_tx`: one arrival, and the phase also waits for `size` bytes.

        arrives False: `mbarrier.expect_tx`, which is no arrival.
        """
        rule = EXPECT if arrives else ONLY_EXPECT
        self._signal(_barrier(barrier), integer("the bytes", size, 1, MAX_AMOUNT), "release", rule)

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
        engine = self._engine("load")
        if source is not None:
            engine.read(*source, value, proxy="async")
        engine.write(*target, value, proxy="async")
        engine.complete(barrier, target[2] - target[1])

    def complete(self, barrier: Barrier, size: int) -> None:
        """`mbarrier.complete_tx`: `size` bytes that a phase expects have come. `load` does it by itself."""
        self._signal(_barrier(barrier), integer("the bytes", size, 1, MAX_AMOUNT), "release", COMPLETE)

    def issue(self, what: str) -> Agent:
        """An asynchronous operation of another kind (`tcgen05.mma`, say), as an agent: say what it does, in turn."""
        return self._engine(what)

    def store(self, source: Bytes, target: Bytes | None, value: object = None, add: bool = False) -> None:
        """A bulk or TMA store of the current group; target None: memory that nobody else touches. add: a reduction."""
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
        self.wait(kernel.done, len(kernel.agents))


def _barrier(barrier: object) -> Barrier:
    if not isinstance(barrier, Barrier):
        raise refuse("AMK009", "this is no barrier: make one with `sys.mbarrier(name, arrivals)`")
    return barrier


def _flag(flag: object) -> Flag:
    if not isinstance(flag, Flag):
        raise refuse("AMK009", "this is no flag: make one with `sys.flag(name)`")
    return flag
