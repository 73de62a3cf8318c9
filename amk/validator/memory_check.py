"""Races and overwritten words over the accesses of a whole schedule, given orders of its nodes.

Property: see `compose` for the questions and the kinds of edges, `memory_model` for what each kind may order.

Algorithm: accesses in the order of a run, buffer by buffer (`in_order`), cut into atoms; the race and reads-from passes
of the flat check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from amk.schedule_ir.schedule import Schedule
from amk.validator.abreast import places_abreast
from amk.validator.brackets import BracketOrder, Ordering, divided
from amk.validator.contents import code
from amk.validator.dataflow import DataflowReport
from amk.validator.in_order import InOrder, Part, Question, parts_of
from amk.validator.memo import Memo, given
from amk.validator.neighbours import Asked
from amk.validator.races import RaceReport
from amk.validator.still import Names
from amk.validator.system import I64, Bools
from amk.validator.touched import Gathered, Touched


@dataclass(frozen=True, eq=False)
class Accesses:
    """still: rows as in `touched`; numbers of the buffers of tagged words; what is there before and must be after."""

    still: I64
    names: Names
    tagged: list[int]
    initial: I64
    final: I64

    @cached_property
    def rows(self) -> I64:
        """With nodes of the programs."""
        return self.names.rows(self.still)

    def some(self, numbers: I64) -> I64:
        """Of these numbers."""
        return self.names.rows(self.still.take(numbers, axis=0))


@dataclass(frozen=True)
class Memory:
    """incidences: touches of atoms. races: None where they are asked under several kinds of edges."""

    incidences: int
    dataflow: DataflowReport
    races: RaceReport | None


def ordered(accesses: Accesses, run: BracketOrder) -> list[Part]:
    return parts_of(accesses.rows, run.placed(accesses.rows[:, 0]))


def ordered_abreast(touched: Touched, gathered: Gathered) -> list[Part]:
    """In the run of all workers abreast (see `abreast`), of still programs."""
    common, (team,) = touched.common, gathered.teams

    def parts(rows: I64) -> list[Part]:
        worker, node = divided(rows[:, 0] - team.node_base, team.nodes)
        return parts_of(rows, places_abreast(team.trace, team.count, worker, node))

    if not common.abreast:
        common.abreast.extend(parts(common.rows))
    return [*common.abreast, *parts(touched.private)]


def named(parts: list[Part], names: Names) -> list[Part]:
    """Parts of still programs with the nodes of the programs."""
    return [Part(p.buffer, names.of(p.node), p.columns, given((p.nodes, names.key)).key) for p in parts]


def plain_memory(memo: Memo, accesses: Accesses, parts: list[Part], order: BracketOrder) -> Memory:
    """Reads-from and races where all edges order alike."""
    found = InOrder(parts, memo)
    seen = found.faults(accesses.initial, accesses.final)
    return Memory(seen.incidences, seen.report, found.races(_question("all", order)))


def reads_from(memo: Memo, accesses: Accesses, parts: list[Part]) -> Memory:
    seen = InOrder(parts, memo).faults(accesses.initial, accesses.final)
    return Memory(seen.incidences, seen.report, None)


def overwritten(
    memo: Memo, accesses: Accesses, parts: list[Part], least: BracketOrder, hints: BracketOrder | None
) -> tuple[RaceReport, bool]:
    """Words that a reader may still look for; whether hints were asked and are not there, so that this is not all."""
    blocking = Blocking(least, lambda: hints or least)
    report = early_writes(InOrder(parts, memo), accesses.tagged, blocking)
    return report, hints is None and blocking.with_hints is not None


def unseen(
    memo: Memo, accesses: Accesses, parts: list[Part], least: BracketOrder, fence: BracketOrder
) -> tuple[RaceReport, RaceReport]:
    """(races, unseen) of `Composition`."""
    return unseen_writes(InOrder(parts, memo), accesses.tagged, least, fence)


def early_writes(found: InOrder, buffers: list[int], blocking: Blocking) -> RaceReport:
    """Words that a reader may still look for, where every read waits for its words; buffers: the tagged ones."""
    chains = blocking.words if isinstance(blocking.words, BracketOrder) else None
    return found.of(buffers).races(Question("reads", blocking, chains))


def unseen_writes(
    found: InOrder, buffers: list[int], least: Ordering, fence: Ordering
) -> tuple[RaceReport, RaceReport]:
    """(races, unseen) of `Composition`; least: what is ordered whatever is read.

    A read needs to be over in time, a write must be visible.
    """
    unseen = races = found.written(buffers).races(_question("reads", least), _question("writes", fence))
    if unseen.racy:
        # what a fence orders is ordered in time too, so only now the two can differ; of reads the answer is known
        races = found.of(buffers, inside=False).races(_question("reads", least), _question("writes", least))
    return races, unseen


def _question(asked: Asked, order: Ordering) -> Question:
    return Question(asked, order, order if isinstance(order, BracketOrder) else None)


class Blocking:
    """No word is overwritten before those who look for it have found it: a read precedes a write if the write cannot
    exist without it. A read follows the write that it waits for, and the order of writes is `unseen_writes`' business.

    Hints are asked only where words give no order.
    """

    def __init__(self, words: Ordering, hints: Callable[[], Ordering]) -> None:
        self.words, self._hints = words, hints
        self.with_hints: Ordering | None = None

    def precedes(self, before: I64, after: I64) -> Bools:
        return self._with_hints(self.words.precedes(before, after), before, after)

    def precedes_otherwise(self, before: I64, after: I64) -> Bools:
        return self._with_hints(self.words.precedes_otherwise(before, after), before, after)

    def undecided(self, before: I64) -> bool:
        """Hints may order any."""
        return True

    def _with_hints(self, ordered: Bools, before: I64, after: I64) -> Bools:
        open_ = np.flatnonzero(~ordered & (before != after))
        if len(open_):
            self.with_hints = self.with_hints or self._hints()
            ordered[open_] = self.with_hints.precedes(before[open_], after[open_])
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
