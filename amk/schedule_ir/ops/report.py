"""Publish a worker's counts."""

from __future__ import annotations

from typing import ClassVar, Literal

from amk.schedule_ir.expr import WORKER, Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Count, Geometry, Memory, Op
from amk.schedule_ir.ops.precondition import AGENTS, ROUND, Need, untagged, whole_sums
from amk.schedule_ir.ranking import joined_sums, split_sums
from amk.schedule_ir.sampling import TALLY


class ReportOp(Op):
    """counted[round, worker] = sum of tally[a] over the worker's agents, for each sequence; one agent does it."""

    needs: ClassVar[tuple[Need, ...]] = (
        ROUND,
        Need("counts", untagged("counted"), "counts have no tags"),
        whole_sums("tally"),
        whole_sums("counted"),
        Need("one-warp", AGENTS.equals(1), "one warp reports"),
    )
    op: Literal["report"] = "report"
    round: Count
    tally_agents: Count
    tally: Name
    counted: Name

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        at = (self.round * geo.workers + env.number(WORKER)) * TALLY
        return [
            *geo.slots("read", self.tally, 0, self.tally_agents * TALLY, ("tally", self.round), TALLY),
            *geo.rows("write", self.counted, at, at + TALLY, ("counted", self.round)),
        ]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        at = (self.round * geo.workers + env.number(WORKER)) * TALLY
        for s in range(geo.vectors):
            first = geo.row(self.tally, s)
            sums = split_sums(joined_sums(mem.read_int(self.tally, first, first + self.tally_agents * TALLY)))
            mem.write(self.counted, geo.row(self.counted, s) + at, sums)
