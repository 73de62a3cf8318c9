"""Add up what the workers counted."""

from __future__ import annotations

from typing import ClassVar, Literal

from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Count, Geometry, Memory, Op, split
from amk.schedule_ir.ops.precondition import ROUND, Need, untagged, whole_sums
from amk.schedule_ir.ranking import joined_sums, split_sums
from amk.schedule_ir.sampling import TALLY


class GatherOp(Op):
    """gathered[a] = sum of counted[round, w] over agent a's share [W*a/n, W*(a+1)/n) of the W workers, for
    each sequence."""

    needs: ClassVar[tuple[Need, ...]] = (
        ROUND,
        Need("counts", untagged("counted"), "counts have no tags"),
        whole_sums("counted"),
        whole_sums("gathered"),
    )
    leaves: ClassVar[str | None] = "gather_agents"
    op: Literal["gather"] = "gather"
    round: Count
    counted: Name
    gathered: Name

    def _span(self, env: Env, geo: Geometry) -> tuple[int, int]:
        lo, hi = split(geo.workers, geo.role_size[self.role], int(env.agent))
        first = self.round * geo.workers
        return (first + lo) * TALLY, (first + hi) * TALLY

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        at = int(env.agent) * TALLY
        return [
            *geo.rows("read", self.counted, *self._span(env, geo), ("counted", self.round)),
            *geo.slots("write", self.gathered, at, at + TALLY, ("gathered", self.round), TALLY),
        ]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        for s in range(geo.vectors):
            lo, hi = (geo.row(self.counted, s) + word for word in self._span(env, geo))
            sums = split_sums(joined_sums(mem.read_int(self.counted, lo, hi)))
            mem.write(self.gathered, geo.row(self.gathered, s) + int(env.agent) * TALLY, sums)
