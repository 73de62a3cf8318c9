"""A system written down in Python, so that it reads like the kernel.

    sys = System()
    ring, full = sys.buffer("ring", 4096), sys.counter("full", scope="cta")
    with sys.agent("producer") as p:
        p.write(ring, 0, 1024)
        p.signal(full)
    with sys.agent("consumer") as c:
        c.wait(full, 1)
        c.read(ring, 0, 1024)
    assert amk.verify(sys).safe

Property: every call is one event of its agent, in the order of the calls; its source is the caller's file and line.

Errors: `AmkError` at the caller's line (AMK005 for a number or box that cannot be, AMK008 for a name, AMK009 for a
counter or buffer of another system).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from amk.systems.agent import Agent, Kernel, Tasks
from amk.systems.flat_system import FlatSystem
from amk.systems.initialisation import use
from amk.systems.lifetime import close
from amk.systems.names import Barrier, Buffer, Flag, Scope, integer, refuse
from amk.systems.recorder import Recorder

WARPS: Final = 32
"""Of a CTA, at most."""


class System(Recorder):
    """Agents, counters and buffers of one kernel, or of several that run at once."""

    def agent(self, name: str, cta: int = 0, cluster: int = 0, gpu: int = 0, exits: bool = True) -> Agent:
        """One stream of operations in program order: a warp, a warp role, a copy. cta, cluster, gpu: where it runs.

        exits: its CTA does not end before it does.
        """
        return Agent.of(self, name, (0, (gpu, cluster, cta)), exits)

    def mbarrier(self, name: str, arrivals: int = 1, scope: Scope = "cta") -> Barrier:
        """arrivals: what `mbarrier.init` counts; scope: how far its arrivals and waits order memory.

        It lies in the shared memory of the CTA whose agents wait for it.
        """
        if scope not in ("cta", "cluster"):
            raise refuse("AMK005", f"an mbarrier is for one CTA or one cluster, not {str(scope)[:40]!r}")
        barrier = self._of_phases(name, arrivals, scope)
        self._mbarriers.add(barrier.number)
        return barrier

    def barrier(self, name: str, warps: int, scope: Scope = "cta") -> Barrier:
        """`bar.sync name, 32 * warps`; with scope "cluster" and all warps of the cluster, `barrier.cluster`."""
        return self._of_phases(
            name, integer("the number of warps", warps, 1, WARPS + 1 if scope == "cta" else 1 << 20), scope
        )

    def _of_phases(self, name: str, arrivals: int, scope: Scope) -> Barrier:
        counter = self.counter(name, scope)
        self._phases[counter.number] = integer("the number of arrivals", arrivals, 1, 1 << 20)
        return Barrier(self, counter.number, name, arrivals)

    def flag(self, name: str, scope: Scope = "gpu", init: int = 0) -> Flag:
        """A word in memory that agents store to; init: what it holds before the launch."""
        counter = self.counter(name, scope, init)
        return Flag(self, counter.number, name)

    def shared(self, name: str, size: int, cta: int = 0, cluster: int = 0, gpu: int = 0) -> Buffer:
        """Shared memory of one CTA of `agent`s: there from its start until all of them have ended."""
        return self._shared_of(name, size, (0, (gpu, cluster, cta)))

    def queue(self, name: str, workers: int) -> Tasks:
        """Tasks that `workers` CTAs take in turn; SAFE means safe whoever takes which."""
        integer("the number of workers", workers, 1, 1 << 20)
        done = self.counter(f"{name}: done", "sys")
        return Tasks(self, name, workers, done)

    def kernel(self, name: str, after: Kernel | None = None) -> Kernel:
        """A launch; after: the one before it in its stream. Kernels without an order run at once."""
        ended = self.counter(f"{name}: ended", "sys")
        return Kernel(self, name, after, ended, [], self._new_grid())

    def flat(self) -> FlatSystem:
        """The system as columns, events in the order of the calls of each agent."""
        use(self)
        close(self)
        return self._columns()

    def save(self, path: str | Path) -> None:
        """Write the file that `amk verify` reads."""
        from amk.systems.document import written

        Path(path).write_text(written(self.flat()) + "\n", encoding="utf-8")
