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

from amk.systems.agent import Agent, Kernel, Tasks
from amk.systems.flat_system import FlatSystem
from amk.systems.names import Barrier, Buffer, Flag, Scope, integer
from amk.systems.recorder import Recorder


class System(Recorder):
    """Agents, counters and buffers of one kernel, or of several that run at once."""

    def agent(self, name: str, cta: int = 0, cluster: int = 0, gpu: int = 0, exits: bool = True) -> Agent:
        """One stream of operations in program order: a warp, a warp role, a copy. cta, cluster, gpu: where it runs.

        exits: its CTA does not end before it does.
        """
        return Agent.of(self, name, cta, cluster, gpu, exits)

    def mbarrier(self, name: str, arrivals: int = 1, scope: Scope = "cta") -> Barrier:
        """arrivals: what `mbarrier.init` counts; scope: how far its arrivals and waits order memory."""
        counter = self.counter(name, scope)
        self._phases[counter.number] = integer("the number of arrivals", arrivals, 1, 1 << 20)
        return Barrier(self, counter.number, name, arrivals)

    def barrier(self, name: str, warps: int, scope: Scope = "cta") -> Barrier:
        """`bar.sync name, 32 * warps`; with scope "cluster" and all warps of the cluster, `barrier.cluster`."""
        return self.mbarrier(name, warps, scope)

    def flag(self, name: str, scope: Scope = "gpu", init: int = 0) -> Flag:
        """A word in memory that agents store to; init: what it holds before the launch."""
        counter = self.counter(name, scope, init)
        return Flag(self, counter.number, name)

    def shared(self, name: str, size: int, cta: int = 0, cluster: int = 0, gpu: int = 0) -> Buffer:
        """Shared memory of one CTA: it is gone when all agents of that CTA have ended."""
        buffer = self.buffer(name, size)
        self._shared.append((buffer, (gpu, cluster, cta)))
        return buffer

    def queue(self, name: str, workers: int) -> Tasks:
        """Tasks that `workers` CTAs take in turn; SAFE means safe whoever takes which."""
        integer("the number of workers", workers, 1, 1 << 20)
        done = self.counter(f"{name}: done", "sys")
        return Tasks(self, name, workers, done)

    def kernel(self, name: str, after: Kernel | None = None) -> Kernel:
        """A launch; after: the one before it in its stream. Kernels without an order run at once."""
        ended = self.counter(f"{name}: ended", "sys")
        return Kernel(self, name, after, ended, [])

    def flat(self) -> FlatSystem:
        """The system as columns, events in the order of the calls of each agent."""
        self._end_ctas()
        return self._columns()

    def save(self, path: str | Path) -> None:
        """Write the file that `amk verify` reads."""
        from amk.systems.document import written

        Path(path).write_text(written(self.flat()) + "\n", encoding="utf-8")

    def _end_ctas(self) -> None:
        """Shared memory of a CTA goes when its agents have ended: as if somebody wrote it then."""
        shared, self._shared = self._shared, []
        for place in dict.fromkeys(place for _, place in shared):
            mine = [agent for agent in self._ending if self._places[agent] == place]
            gpu, cluster, cta = place
            ended = self.counter(f"CTA {cta} of cluster {cluster} ends", "sys")
            for agent in mine:
                Agent(self, agent, self._agents[agent]).signal(ended)
            last = self.agent(f"end of CTA {cta} of cluster {cluster}", cta, cluster, gpu, exits=False)
            last.wait(ended, len(mine))
            for buffer, where in shared:
                if where == place:
                    last.write(buffer, 0, buffer.size)
