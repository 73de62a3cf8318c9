"""Start of a draw: the largest logit, and no row dropped yet."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Count, Geometry, Memory, Op
from amk.schedule_ir.ops.precondition import ALONE, Need, number, own, row, wide
from amk.schedule_ir.sampling import PEAK, PICK, word_of


class PeakOp(Op):
    """pick[a] = (keep 0, cut 0, goal 0, peak = largest of best_value) in every agent a, for each sequence.

    round is the number of the first round of counting that follows, or LAST when none does.
    """

    needs: ClassVar[tuple[Need, ...]] = (
        Need("candidates", number(1) <= own("candidates"), "there is a candidate"),
        Need(
            "rows", ALONE | row("best_value").multiple_of(wide("best_value")), "every sequence's row is whole fetches"
        ),
    )
    op: Literal["peak"] = "peak"
    round: Count
    candidates: Count
    best_value: Name
    pick: Name

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        at = int(env.agent) * len(PICK)
        return [
            *geo.rows("read", self.best_value, 0, self.candidates, ("best_value", 0)),
            *geo.slots("write", self.pick, at, at + PEAK, ("pick", self.round), len(PICK)),
            *geo.slots("write", self.pick, at + PEAK, at + len(PICK), ("peak", 0), len(PICK)),
        ]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        for s in range(geo.vectors):
            first, at = geo.row(self.best_value, s), geo.row(self.pick, s) + int(env.agent) * len(PICK)
            peak = float(np.max(mem.read(self.best_value, first, first + self.candidates)))
            mem.write(self.pick, at, [0, 0, 0, 0, word_of(peak)])
