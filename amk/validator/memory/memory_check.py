"""Races and overwritten words over the accesses of a whole schedule, given orders of its nodes.

Property: see `compose` for the questions and the kinds of edges, `memory_model` for what each kind may order.

Algorithm: accesses in the order of a run, cut into atoms; the race and reads-from passes of the flat check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from amk.schedule_ir.schedule import Schedule
from amk.validator.memory.atoms import blocks, touches_in
from amk.validator.memory.dataflow import DataflowReport, find_faults
from amk.validator.memory.races import ByFirst, RaceReport, find_races
from amk.validator.order.intervals import Ordering
from amk.validator.program.contents import code
from amk.validator.program.system import I64, READ, Bools

LIMIT: Final = 64
NOTHING: Final = np.zeros((0, 5), np.int64)


@dataclass(frozen=True, eq=False)
class Accesses:
    """rows [n, 7]: (node, buffer, kind, lo, hi, value, delta) in the order of a run; tagged: numbers of the
    buffers of flag words; initial, final [n, 5]: what is there before and must be after."""

    rows: I64
    tagged: list[int]
    initial: I64
    final: I64

    @cached_property
    def _on_words(self) -> Bools:
        return np.isin(self.rows[:, 1], self.tagged)

    def faults(self) -> tuple[int, DataflowReport]:
        """Touches of atoms, and reads-from."""
        touches = touches_in(self.rows, self.initial, self.final)
        return touches.incidences, find_faults(blocks(touches), LIMIT)

    def races(self, order: Ordering) -> RaceReport:
        return races_of(self.rows, ByFirst(order, order))

    def unseen(self, least: Ordering, fence: Ordering) -> tuple[RaceReport, RaceReport]:
        """(races, unseen) of `Composition`; least: what is ordered whatever is read.

        A read needs to be over in time, a write must be visible. Reads of flag words are `overwritten`'s business.
        """
        races = unseen = races_of(self.rows[~self._on_words | (self.rows[:, 2] != READ)], ByFirst(least, fence))
        if unseen.racy:
            # what a fence orders is ordered in time too, so only now the two can differ
            races = races_of(self.rows[~self._on_words], ByFirst(least, least))
        return races, unseen

    def overwritten(self, blocking: Blocking) -> RaceReport:
        """Words that a reader may still look for, where every read waits for its words."""
        return races_of(self.rows[self._on_words], ByFirst(blocking, None))


def accesses(rows: I64, placed: I64, tagged: list[int], boundary: tuple[I64, I64]) -> Accesses:
    """placed: sort keys of the rows' nodes in a run; boundary: initial and final content."""
    return Accesses(rows[np.lexsort((rows[:, 2], placed))], tagged, *boundary)


def races_of(rows: I64, order: ByFirst) -> RaceReport:
    """rows [n, 7] as in `Accesses`, in the order of a run."""
    return find_races(blocks(touches_in(rows, NOTHING, NOTHING)), order, LIMIT)


class Blocking:
    """No word is overwritten before those who look for it have found it: a read precedes a write if the write cannot
    exist without it. A read follows the write that it waits for, and `Accesses.unseen` asks about the order of writes.

    Hints are asked only where words give no order.
    """

    def __init__(self, words: Ordering, hints: Callable[[], Ordering]) -> None:
        self.words, self._hints = words, hints
        self.with_hints: Ordering | None = None

    def precedes(self, before: I64, after: I64) -> Bools:
        return self._with_hints(self.words.precedes(before, after), before, after)

    def _with_hints(self, ordered: Bools, before: I64, after: I64) -> Bools:
        open_ = np.flatnonzero(~ordered & (before != after))
        if len(open_):
            self.with_hints = self.with_hints or self._hints()
            ordered[open_] = self.with_hints.precedes(before[open_], after[open_])
        return ordered


def boundary_content(schedule: Schedule, tokens: int) -> tuple[I64, I64]:
    """(initial, final) rows (buffer, lo, hi, value, delta): the launch state; outputs, state and last logits, or
    of a slice of layers state and the last hidden state."""
    number = {b.name: i for i, b in enumerate(schedule.buffers)}
    size = {b.name: b.bytes for b in schedule.buffers}
    initial = [(number["state"], 0, size["state"], code("state", 0), 0)]
    final = [(number["state"], 0, size["state"], code("state", 1), 0)]
    one = 4 * schedule.vectors
    if schedule.model.slice is not None:
        state = code("h", len(schedule.model.graph.additions) * schedule.model.layers) + tokens
        final.append((number["hidden_out"], 0, one * schedule.model.hidden, state, 0))
        return np.array(initial, np.int64), np.array(final, np.int64)
    final += [(number["output"], one * n, one * (n + 1), code("output", 0) + n + 1, 0) for n in range(tokens)]
    logits = code("logits", 0) + tokens
    final.append((number["logits"], 0, schedule.model.vocab * one, logits, 0))
    return np.array(initial, np.int64).reshape(-1, 5), np.array(final, np.int64).reshape(-1, 5)
