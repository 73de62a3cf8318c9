"""Count rows, or add their weights, at and above 32 keys."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.argmax_rows import head_rows
from amk.schedule_ir.ops.base import Access, Count, Geometry, Memory, Op
from amk.schedule_ir.ops.precondition import RANKED, ROUND, Need, untagged
from amk.schedule_ir.ranking import (
    GOAL,
    PEAK,
    PICK,
    PIVOTS,
    ROUNDS,
    SHIFTS,
    TALLY,
    float_of,
    keys,
    split_sums,
    weights,
)


class CensusOp(Op):
    """tally[a, j] = sum over the agent's own rows with key >= max(keep, cut + (j << shift)), j < 32.

    A row counts 1 while top-k is searched (round < ROUNDS), its weight while top-p is.
    """

    needs: ClassVar[tuple[Need, ...]] = (
        RANKED,
        ROUND,
        Need("logits", untagged("logits"), "logits have no tags"),
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
            *geo.span("read", self.pick, at, at + GOAL, ("pick", self.round)),
            *geo.span("read", self.pick, at + PEAK, at + PEAK + int(by_weight), ("peak", 0)),
            *geo.span("read", self.sampling, 0, int(by_weight), None),
            *geo.span("read", self.logits, lo, hi, ("logits", 0)),
            *geo.span("write", self.tally, agent * TALLY, (agent + 1) * TALLY, ("tally", self.round)),
        ]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        agent, at = int(env.agent), int(env.agent) * len(PICK)
        _, lo, hi, _ = head_rows(env, geo, self.role)
        keep, cut = (int(v) for v in mem.read_int(self.pick, at, at + GOAL))
        weight = np.ones(hi - lo, np.uint64)
        logits = np.asarray(mem.read(self.logits, lo, hi), np.float32) if lo < hi else np.zeros(0, np.float32)
        if self.round >= ROUNDS and lo < hi:
            inverse = float_of(int(mem.read_int(self.sampling, 0, 1)[0]))
            peak = int(mem.read_int(self.pick, at + PEAK, at + PEAK + 1)[0])
            weight = weights(logits, float_of(peak), inverse)
        key = keys(logits)
        pivots = (cut & 0xFFFFFFFF) + (np.arange(PIVOTS) << SHIFTS[self.round % ROUNDS])
        counted = (key >= np.maximum(pivots, keep & 0xFFFFFFFF)[:, None]) * weight
        mem.write(self.tally, agent * TALLY, split_sums(counted.sum(axis=1, dtype=np.uint64)))
