"""Races and overwritten words over the accesses of a whole schedule, given orders of its nodes.

Property: see `compose` for the questions and the kinds of edges, `memory_model` for what each kind may order.

Algorithm: touches in the order of a run, cut into atoms; the race and reads-from passes of the flat check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, cast

import numpy as np

from amk.schedule_ir.schedule import Schedule
from amk.validator.atoms import OUTSIDE, Touches, blocks
from amk.validator.dataflow import DataflowReport, find_faults
from amk.validator.footprint import code
from amk.validator.order import Clocks
from amk.validator.quotient import BracketOrder, Ordering
from amk.validator.races import RaceReport, find_races
from amk.validator.system import I64, MAX_BYTES, READ, WRITE, Bools

LIMIT: Final = 64
NOTHING: Final = np.zeros((0, 5), np.int64)


@dataclass(frozen=True, eq=False)
class Accesses:
    """rows as in `touches_in_order`; numbers of the buffers of tagged words; what is there before and must be after."""

    rows: I64
    tagged: list[int]
    initial: I64
    final: I64


@dataclass(frozen=True)
class Memory:
    """incidences: touches of atoms. races: None where they are asked under several kinds of edges."""

    incidences: int
    dataflow: DataflowReport
    races: RaceReport | None


def plain_memory(accesses: Accesses, order: BracketOrder) -> Memory:
    """Reads-from and races where all edges order alike."""
    touches = touches_in_order(accesses.rows, order, accesses.initial, accesses.final)
    kept = list(blocks(touches))
    return Memory(touches.incidences, find_faults(kept, LIMIT), find_races(kept, cast(Clocks, order), LIMIT))


def reads_from(accesses: Accesses, order: BracketOrder) -> Memory:
    touches = touches_in_order(accesses.rows, order, accesses.initial, accesses.final)
    return Memory(touches.incidences, find_faults(blocks(touches), LIMIT), None)


def overwritten(
    accesses: Accesses, run: BracketOrder, least: BracketOrder, hints: BracketOrder | None
) -> tuple[RaceReport, bool]:
    """Words that a reader may still look for; whether hints were asked and are not there, so that this is not all."""
    blocking = Blocking(least, lambda: hints or least)
    report = early_writes(accesses.rows, accesses.tagged, run, blocking)
    return report, hints is None and blocking.with_hints is not None


def unseen(
    accesses: Accesses, run: BracketOrder, least: BracketOrder, fence: BracketOrder
) -> tuple[RaceReport, RaceReport]:
    """(races, unseen) of `Composition`."""
    return unseen_writes(accesses.rows, accesses.tagged, run, least, fence)


def early_writes(rows: I64, buffers: list[int], run: Ordering, blocking: Blocking) -> RaceReport:
    """Words that a reader may still look for; rows as in `touches_in_order`, buffers: the tagged ones.

    run: an execution in which every read waits for its words.
    """
    tagged = np.isin(rows[:, 1], buffers)
    words_ = _numbered(touches_in_order(rows[tagged], run, NOTHING, NOTHING))
    return _halved(find_races(blocks(words_), cast(Clocks, blocking), LIMIT))


def unseen_writes(
    rows: I64, buffers: list[int], run: Ordering, least: Ordering, fence: Ordering
) -> tuple[RaceReport, RaceReport]:
    """(races, unseen) of `Composition`; least: what is ordered whatever is read."""
    tagged = np.isin(rows[:, 1], buffers)
    written = ~tagged | (rows[:, 2] != READ)
    seen = _numbered(touches_in_order(rows[written], run, NOTHING, NOTHING))
    unseen = races = _halved(find_races(blocks(seen), cast(Clocks, _Visibility(least, fence)), LIMIT))
    if unseen.racy:
        # what a fence orders is ordered in time too, so only now the two can differ
        plain = touches_in_order(rows[~tagged], run, NOTHING, NOTHING)
        races = find_races(blocks(plain), cast(Clocks, least), LIMIT)
    return races, unseen


def _numbered(touches: Touches) -> Touches:
    """Events as 2 * node + is_read, for orders that distinguish the two."""
    touches.event[:] = touches.event * 2 + (touches.kind == READ)
    return touches


def _halved(report: RaceReport) -> RaceReport:
    races = tuple(replace(r, first=r.first // 2, second=r.second // 2) for r in report.races)
    return replace(report, races=races)


class Blocking:
    """Tagged words, numbered 2 * node + is_read: no word is overwritten before those who look for it have found it.

    A read follows the write that it waits for, and the order of writes is `_Visibility`'s business; a read precedes a
    write if the write cannot exist without it. Hints are asked only where words give no order.
    """

    def __init__(self, words: Ordering, hints: Callable[[], Ordering]) -> None:
        self.words, self.system = words, words.system
        self._hints = hints
        self.with_hints: Ordering | None = None

    def precedes(self, before: I64, after: I64) -> Bools:
        ordered: Bools = (after % 2 == 1) | (before % 2 == 0) | (before // 2 == after // 2)
        open_ = np.flatnonzero(~ordered)
        ordered[open_] = self.words.precedes(before[open_] // 2, after[open_] // 2)
        open_ = np.flatnonzero(~ordered)
        if len(open_):
            self.with_hints = self.with_hints or self._hints()
            ordered[open_] = self.with_hints.precedes(before[open_] // 2, after[open_] // 2)
        return ordered


class _Visibility:
    """Order of accesses numbered 2 * node + is_read: a read needs to be over in time, a write must be visible."""

    def __init__(self, time: Ordering, fence: Ordering) -> None:
        self.time, self.fence, self.system = time, fence, time.system

    def precedes(self, before: I64, after: I64) -> Bools:
        read = before % 2 == 1
        before, after = before // 2, after // 2
        ordered: Bools = before == after
        ordered[read] |= self.time.precedes(before[read], after[read])
        ordered[~read] |= self.fence.precedes(before[~read], after[~read])
        return ordered


def boundary_content(schedule: Schedule, tokens: int) -> tuple[I64, I64]:
    """(initial, final) rows (buffer, lo, hi, value, delta): the launch state; outputs, state and last logits."""
    number = {b.name: i for i, b in enumerate(schedule.buffers)}
    size = {b.name: b.bytes for b in schedule.buffers}
    initial = [(number["state"], 0, size["state"], code("state", 0), 0)]
    final = [(number["state"], 0, size["state"], code("state", 1), 0)]
    one = 4 * schedule.batch
    final += [(number["output"], one * n, one * (n + 1), code("output", 0) + n + 1, 0) for n in range(tokens)]
    logits = code("logits", 0) + tokens
    final.append((number["logits"], 0, schedule.model.vocab * one, logits, 0))
    return np.array(initial, np.int64).reshape(-1, 5), np.array(final, np.int64).reshape(-1, 5)


def touches_in_order(rows: I64, order: Ordering, initial: I64, final: I64) -> Touches:
    """The rows as touches in the order of a run; rows are (event, buffer, kind, lo, hi, value, delta)."""
    rows = rows[np.lexsort((rows[:, 2], order.position[rows[:, 0]]))]
    outside = np.full((len(initial), 1), OUTSIDE), np.full((len(final), 1), OUTSIDE)
    before = np.insert(np.concatenate((outside[0], initial), axis=1), 2, WRITE, axis=1)
    after = np.insert(np.concatenate((outside[1], final), axis=1), 2, READ, axis=1)
    rows = np.concatenate((before, rows, after))
    base = rows[:, 1] * (2 * MAX_BYTES)
    low, high = base + rows[:, 3], base + rows[:, 4]
    key = np.unique(np.concatenate((low, high)))
    return Touches(
        event=rows[:, 0], kind=rows[:, 2], value=rows[:, 5], delta=rows[:, 6],
        first=np.searchsorted(key, low), last=np.searchsorted(key, high), atom_key=key,
    )  # fmt: skip
