"""Noise on the kept logits: the row with the largest score is a draw from their softmax (the Gumbel-max rule)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.argmax_rows import NO_ROWS, head_rows
from amk.schedule_ir.ops.base import Access, Count, Geometry, Memory, Op
from amk.schedule_ir.ops.begin import pos_register
from amk.schedule_ir.ops.precondition import Need, untagged
from amk.schedule_ir.ranking import float_of, gumbel, keys, scores
from amk.schedule_ir.sampling import PARAMETERS, PEAK, PICK


class DrawOp(Op):
    """draw_value, draw_index[worker, a] = largest score of the agent's own rows with key >= keep, lowest row first.

    For each sequence, with its parameters. The noise of a row is a function of the sequence's seed and position and of
    the row alone. round is the number of rounds behind it, or LAST.
    """

    registers: ClassVar[tuple[str, ...]] = ("pos",)
    needs: ClassVar[tuple[Need, ...]] = (Need("logits", untagged("logits"), "logits have no tags"),)
    leaves: ClassVar[str | None] = "candidates"
    op: Literal["draw"] = "draw"
    round: Count
    logits: Name
    sampling: Name
    pick: Name
    draw_value: Name
    draw_index: Name

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        at = int(env.agent) * len(PICK)
        _, lo, hi, slot = head_rows(env, geo, self.role)
        return [
            *geo.slots("read", self.pick, at, at + 1, ("pick", self.round), len(PICK)),
            *geo.slots("read", self.pick, at + PEAK, at + len(PICK), ("peak", 0), len(PICK)),
            *geo.texts(self.sampling, 0, len(PARAMETERS)),
            *geo.rows("read", self.logits, lo, hi, ("logits", 0)),
            *geo.rows("write", self.draw_value, slot, slot + 1, ("draw_value", 0)),
            *geo.rows("write", self.draw_index, slot, slot + 1, ("draw_index", 0)),
        ]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        for s in range(geo.vectors):
            self._draw(env, geo, mem, s)

    def _draw(self, env: Env, geo: Geometry, mem: Memory, sequence: int) -> None:
        at = geo.row(self.pick, sequence) + int(env.agent) * len(PICK)
        _, lo, hi, slot = head_rows(env, geo, self.role)
        first, parameters = geo.row(self.logits, sequence), geo.text_row(self.sampling, sequence)
        keep, peak = (int(mem.read_int(self.pick, at + word, at + word + 1)[0]) for word in (0, PEAK))
        inverse, _, _, *seed = (int(v) for v in mem.read_int(self.sampling, parameters, parameters + len(PARAMETERS)))
        value, index = NO_ROWS, 0
        found = mem.read(self.logits, first + lo, first + hi) if lo < hi else np.zeros(0, np.float32)
        logits = np.asarray(found, np.float32)
        kept = keys(logits) >= np.uint32(keep & 0xFFFFFFFF)
        if kept.any():
            pos = mem.regs[pos_register(sequence if geo.live else 0)] + (sequence if geo.rows_each > 1 else 0)
            noise = gumbel((seed[0] & 0xFFFFFFFF, seed[1] & 0xFFFFFFFF), pos, range(lo, hi))
            score = np.where(kept, scores(logits, float_of(peak), float_of(inverse), noise), NO_ROWS)
            index = lo + int(np.argmax(score))
            value = np.float32(score.max())
        mem.write(self.draw_value, geo.row(self.draw_value, sequence) + slot, [value])
        mem.write(self.draw_index, geo.row(self.draw_index, sequence) + slot, [index])
