"""Choose the interval of keys in which the next round looks; after a search's last round, drop the rows below."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Count, Geometry, Memory, Op
from amk.schedule_ir.ops.precondition import ROUND, Need, whole_sums
from amk.schedule_ir.ranking import HALF, goal_of, joined_sums
from amk.schedule_ir.sampling import GOAL, PEAK, PICK, ROUNDS, SHIFTS, TALLY, signed


class NarrowOp(Op):
    """cut += j << shift for the largest j whose total over all agents of `gathered` reaches the goal (0 if none does).

    For each sequence, with its parameters. The first round of a search sets the goal; the last one sets
    keep = max(keep, cut) and cut = 0. Every agent computes the same.
    """

    meets: ClassVar[int] = 1
    needs: ClassVar[tuple[Need, ...]] = (ROUND, whole_sums("gathered"))
    op: Literal["narrow"] = "narrow"
    round: Count
    gather_agents: Count
    gathered: Name
    sampling: Name
    pick: Name

    def _parameter(self) -> tuple[int, int]:
        """Word of the parameters that sets the goal: k, then p; read in the first round of a search."""
        word = 1 + self.round // ROUNDS
        return word, word + (self.round % ROUNDS == 0)

    def _start_words(self) -> int:
        """Words of pick that it starts from: not the goal in the first round of a search."""
        return PEAK if self.round % ROUNDS else GOAL

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        at = int(env.agent) * len(PICK)
        return [
            *geo.slots("read", self.gathered, 0, self.gather_agents * TALLY, ("gathered", self.round), TALLY),
            *geo.texts(self.sampling, *self._parameter()),
            *geo.slots("read", self.pick, at, at + self._start_words(), ("pick", self.round), len(PICK)),
            *geo.slots("write", self.pick, at, at + PEAK, ("pick", self.round + 1), len(PICK)),
        ]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        for s in range(geo.vectors):
            self._choose(env, geo, mem, s)

    def _choose(self, env: Env, geo: Geometry, mem: Memory, sequence: int) -> None:
        at, first = geo.row(self.pick, sequence) + int(env.agent) * len(PICK), geo.row(self.gathered, sequence)
        keep, cut, *halves = (int(v) for v in mem.read_int(self.pick, at, at + self._start_words()))
        keep, cut, goal = keep & 0xFFFFFFFF, cut & 0xFFFFFFFF, sum(half << HALF * n for n, half in enumerate(halves))
        totals = joined_sums(mem.read_int(self.gathered, first, first + self.gather_agents * TALLY))
        digit = self.round % ROUNDS
        if digit == 0:
            lo, hi = (geo.text_row(self.sampling, sequence) + word for word in self._parameter())
            parameter = int(mem.read_int(self.sampling, lo, hi)[0]) & 0xFFFFFFFF
            goal = goal_of(self.round, int(totals[0]), parameter)
        reached = int(np.count_nonzero(totals >= np.uint64(goal)))
        cut += max(reached - 1, 0) << SHIFTS[digit]
        if digit == ROUNDS - 1:
            keep, cut = max(keep, cut), 0
        mem.write(self.pick, at, [signed(keep), signed(cut), goal & (2**HALF - 1), goal >> HALF])
