"""Count rows, or add their weights, at and above 32 keys."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.argmax_rows import head_rows
from amk.schedule_ir.ops.base import Access, Count, Geometry, Memory, Op
from amk.schedule_ir.ops.precondition import ROUND, Need, untagged, whole_sums
from amk.schedule_ir.ranking import float_of, keys, split_sums, weights
from amk.schedule_ir.sampling import GOAL, PEAK, PICK, PIVOTS, ROUNDS, SHIFTS, TALLY


class CensusOp(Op):
    """tally[a, j] = sum over the agent's own rows with key >= max(keep, cut + (j << shift)), j < 32; for each sequence.

    A row counts 1 while top-k is searched (round < ROUNDS), its weight while top-p is.
    """

    needs: ClassVar[tuple[Need, ...]] = (
        ROUND,
        Need("logits", untagged("logits"), "logits have no tags"),
        whole_sums("tally"),
    )
    leaves: ClassVar[str | None] = "tally_agents"
    op: Literal["census"] = "census"
    round: Count
    logits: Name
    sampling: Name
    pick: Name
    tally: Name

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        agent, at = int(env.agent), int(env.agent) * len(PICK)
        _, lo, hi, _ = head_rows(env, geo, self.role)
        # a weight is relative to the largest logit
        by_weight = self.round >= ROUNDS and lo < hi
        return [
            *geo.slots("read", self.pick, at, at + GOAL, ("pick", self.round), len(PICK)),
            *geo.slots("read", self.pick, at + PEAK, at + PEAK + int(by_weight), ("peak", 0), len(PICK)),
            *geo.texts(self.sampling, 0, int(by_weight)),
            *geo.rows("read", self.logits, lo, hi, ("logits", 0)),
            *geo.slots("write", self.tally, agent * TALLY, (agent + 1) * TALLY, ("tally", self.round), TALLY),
        ]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        for s in range(geo.vectors):
            self._count(env, geo, mem, s)

    def _count(self, env: Env, geo: Geometry, mem: Memory, sequence: int) -> None:
        agent, at = int(env.agent), geo.row(self.pick, sequence) + int(env.agent) * len(PICK)
        _, lo, hi, _ = head_rows(env, geo, self.role)
        first, parameters = geo.row(self.logits, sequence), geo.text_row(self.sampling, sequence)
        keep, cut = (int(v) for v in mem.read_int(self.pick, at, at + GOAL))
        weight = np.ones(hi - lo, np.uint64)
        found = mem.read(self.logits, first + lo, first + hi) if lo < hi else np.zeros(0, np.float32)
        logits = np.asarray(found, np.float32)
        if self.round >= ROUNDS and lo < hi:
            inverse = float_of(int(mem.read_int(self.sampling, parameters, parameters + 1)[0]))
            peak = int(mem.read_int(self.pick, at + PEAK, at + PEAK + 1)[0])
            weight = weights(logits, float_of(peak), inverse)
        key = keys(logits)
        pivots = (cut & 0xFFFFFFFF) + (np.arange(PIVOTS) << SHIFTS[self.round % ROUNDS])
        counted = (key >= np.maximum(pivots, keep & 0xFFFFFFFF)[:, None]) * weight
        sums = split_sums(counted.sum(axis=1, dtype=np.uint64))
        mem.write(self.tally, geo.row(self.tally, sequence) + agent * TALLY, sums)
