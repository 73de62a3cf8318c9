"""The composed check: every worker of a full-size schedule in well under a second.

Property: liveness, race freedom and reads-from of the schedule for any number of tokens, all positions included.

Two tokens cover every adjacency except prologue to epilogue, so launches of one token are checked separately: there
`finish` stores the state right after `begin` has loaded it. Where the one follows from the other
(`induction.tokens.one_follows`), `verify` composes no launch of one token.

Assumptions: structure, positions and streams are checked elsewhere (barriers are joined by exactly their role, cache
rows never cross workers, weight rings are private). Tokens beyond the second follow from `induction.tokens`;
layers beyond the second from `induction.layers`.

Algorithm: one clock pass over one worker per program (`two_levels`), one over the
interface nodes of all workers, intervals for everything between; then the race and reads-from passes
of the flat check on the rows of the `position_abstraction`. Kinds of edges (see `two_levels`) answer questions:
    block   does every agent finish?
    word    are conflicting accesses separated in time, and does every read find the value it expects?
    wait    like word, with hints: is a flag word kept until every reader has found it?
    fence   is a write visible to whoever touches the bytes next? Only pairs that begin with a write need this: a read
            is over when its event is, because the op has used what it read.
Without hints, relaxed operations and flag words all are one. `memory_model` argues for what each kind may order.

Cost: llama3-8b on 132 workers has about 10^6 incidences and 10^4 inter-CTA system events.

Witness: races and faults name composite nodes; `confirm` finds the flat events and replays them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

import numpy as np

from amk.report.diagnostic import Diagnostic
from amk.schedule_ir.schedule import Schedule
from amk.validator.memory.position_abstraction import touched
from amk.validator.memory.races import ByFirst, DataflowReport, RaceReport, blocks, find_faults, find_races, touches_in
from amk.validator.order.intervals import IntervalOrder, Ordering
from amk.validator.order.two_levels import Edges, Group, InterCtaSystem, local_order
from amk.validator.program.footprint import Clash, Footprints, code
from amk.validator.program.handoffs import CounterEvents, FlagWords, Instances, words
from amk.validator.program.system import I64, READ, Bools
from amk.validator.program.trace import trace

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
        A write that a fence shows to a reader, and a write behind words behind that reader, are ordered by no fence:
        two kinds of order do not add up. So of two writes in turn it is asked whatever is read between them.
        """
        writes = self.rows[:, 2] != READ
        races = unseen = races_of(self.rows[~self._on_words | writes], ByFirst(least, fence))
        if not unseen.racy:
            races = unseen = races_of(self.rows[writes], ByFirst(fence, fence))
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

    def __init__(self, words: Ordering, relaxed_waits: Callable[[], Ordering]) -> None:
        self.words, self._relaxed_waits = words, relaxed_waits
        self.with_relaxed_waits: Ordering | None = None

    def precedes(self, before: I64, after: I64) -> Bools:
        return self._with_relaxed_waits(self.words.precedes(before, after), before, after)

    def _with_relaxed_waits(self, ordered: Bools, before: I64, after: I64) -> Bools:
        open_ = np.flatnonzero(~ordered & (before != after))
        if len(open_):
            self.with_relaxed_waits = self.with_relaxed_waits or self._relaxed_waits()
            ordered[open_] = self.with_relaxed_waits.precedes(before[open_], after[open_])
        return ordered


def boundary_content(schedule: Schedule, tokens: int) -> tuple[I64, I64]:
    """(initial, final) rows (buffer, lo, hi, value, delta): the launch state; outputs, state and last logits, or
    of a slice of layers state and the last hidden state, or logits."""
    number = {b.name: i for i, b in enumerate(schedule.buffers)}
    size = {b.name: b.bytes for b in schedule.buffers}
    initial = [(number["state"], 0, size["state"], code("state", 0), 0)]
    final = [(number["state"], 0, size["state"], code("state", 1), 0)]
    one = 4 * schedule.vectors
    if not schedule.model.has_head:
        state = code("h", len(schedule.model.graph.additions) * schedule.model.layers) + tokens
        final.append((number["hidden_out"], 0, one * schedule.model.hidden, state, 0))
        return np.array(initial, np.int64), np.array(final, np.int64)
    if schedule.model.slice is None:
        final += [(number["output"], one * n, one * (n + 1), code("output", 0) + n + 1, 0) for n in range(tokens)]
    if schedule.model.slice is not None or not schedule.headless:
        logits = code("logits", 0) + tokens
        final.append((number["logits"], 0, schedule.model.vocab * one, logits, 0))
    return np.array(initial, np.int64).reshape(-1, 5), np.array(final, np.int64).reshape(-1, 5)


TOKENS: Final = 2
Start = tuple[int, int]
"""The position that a launch starts at, and by how many each of its steps moves on."""
Kept = Literal["most", "always"]
"""Which reads of flag words count: all, or those at every position."""


@dataclass(eq=False)
class Composition:
    """Result of the composed check of `schedule` (already reduced) for `tokens` tokens, as far as it got.

    stuck: programs whose worker alone does not finish. never: words that nobody writes, tags out of order. races,
    dataflow: over composite nodes with word edges; overwritten: flag words that a reader may still look for; unseen:
    writes that fences do not order. outside, clashes, written_constants: see `Touched`.
    relaxed_waits: the order with relaxed waits, if words alone do not keep the words. fence: the order of what is
    visible, if it is not `order`. at: the only start that was looked at. private: what the buffers behind the
    schedule's are, in turn. complete: does every agent finish with the edges of `block`? rows, by_counters: see
    `Touched`.
    """

    schedule: Schedule
    tokens: int
    groups: list[Group]
    instances: Instances
    outside: dict[tuple[str | int, ...], str] = field(default_factory=dict)
    clashes: dict[tuple[str | int, ...], Clash] = field(default_factory=dict)
    written_constants: frozenset[str] = frozenset()
    stuck: tuple[str, ...] = ()
    never: list[Diagnostic] = field(default_factory=list)
    complete: bool = False
    order: Ordering | None = None
    races: RaceReport | None = None
    overwritten: RaceReport | None = None
    unseen: RaceReport | None = None
    relaxed_waits: Ordering | None = None
    fence: Ordering | None = None
    dataflow: DataflowReport | None = None
    rows: I64 = field(default_factory=lambda: np.zeros((0, 7), np.int64))
    classes: int = 0
    incidences: int = 0
    weak: bool = False
    by_counters: bool = False
    at: Start | None = None
    private: tuple[str, ...] = ("shared memory", "the key cache", "the value cache")

    @property
    def live(self) -> bool:
        return not self.stuck and not self.never and self.complete

    @property
    def safe(self) -> bool:
        if self.races is None or self.dataflow is None or not self.dataflow.correct:
            return False
        reports = self.races, self.overwritten, self.unseen
        return self.live and not any(report.racy for report in reports if report is not None)


def groups_of(schedule: Schedule, tokens: int, instances: Instances) -> list[Group]:
    """One group per program; raises `TooLarge`."""
    found: list[Group] = []
    nodes = 0
    for number, program in enumerate(schedule.programs):
        order = local_order(trace(schedule, number, tokens))
        counters = CounterEvents(schedule, order.trace, instances)
        found.append(Group(number, program.first, program.count, order, counters.waits, counters.signals, nodes))
        nodes += program.count * order.nodes
    return found


def compose(schedule: Schedule, tokens: int = TOKENS, footprints: Footprints | None = None) -> Composition:
    """Check the schedule; raises `TooLarge`, `ClocksTooLarge` or `NotComposable`. footprints: of the schedule."""
    footprints = footprints or Footprints(schedule, folded=True)
    found = _Composer(footprints, tokens).run()
    return _Composer(footprints, tokens, each=True).run() if found.by_counters and found.safe else found


class _Composer:
    """each: look at the private memory of every worker."""

    def __init__(self, footprints: Footprints, tokens: int, each: bool = False) -> None:
        self.footprints, schedule, self.each = footprints, footprints.schedule, each
        instances = Instances(schedule.counters)
        self.schedule, self.groups = schedule, groups_of(schedule, tokens, instances)
        self.inter_ctas: dict[tuple[Edges, Kept], InterCtaSystem] = {}
        self.result = Composition(schedule, tokens, self.groups, instances)

    def run(self) -> Composition:
        result = self.result
        result.stuck = tuple(self.schedule.programs[g.number].name for g in self.groups if not g.order.complete)
        if result.stuck:
            return result
        boundary = boundary_content(self.schedule, result.tokens)
        self.seen = touched(self.footprints, self.groups, boundary, self.each)
        result.by_counters = self.seen.by_counters
        self.items = [group.order.trace.items for group in self.groups]
        most, always = (words(self.schedule, self.items, rows) for rows in (self.seen.most, self.seen.always))
        self.words: dict[Kept, FlagWords] = {"most": most, "always": always}
        result.classes, result.written_constants = self.seen.classes, frozenset(self.footprints.written_constants)
        result.rows = self.seen.rows
        result.outside, result.clashes = self.footprints.outside, self.footprints.clashes
        if result.outside or result.written_constants:
            return result  # wrong whatever else there is
        result.never = most.never
        result.weak = not most.empty or any(bool(g.waits[:, 4].any() or g.signals[:, 4].any()) for g in self.groups)
        if result.never:
            return result
        result.complete = self._inter_cta("block").run.complete
        if result.complete:
            self._check_memory()
        return result

    def _inter_cta(self, edges: Edges, words: Kept = "most") -> InterCtaSystem:
        if (edges, words) not in self.inter_ctas:
            system = InterCtaSystem(self.groups, self.result.instances, self.words[words], edges)
            self.inter_ctas[edges, words] = system
        return self.inter_ctas[edges, words]

    def _order(self, edges: Edges, words: Kept = "most") -> IntervalOrder:
        return IntervalOrder(self._inter_cta(edges, words))

    def _accesses(self, run: IntervalOrder) -> Accesses:
        """In the order of a run."""
        rows = self.seen.rows
        return accesses(rows, run.placed(rows[:, 0]), self.seen.tagged, self.seen.boundary)

    def _check_memory(self) -> None:
        """Reads-from with all edges, races with those of every position, visibility with those of fences."""
        result = self.result
        if not result.weak:
            order = self._order("block")
            found = self._accesses(order)
            result.order, result.races = order, found.races(order)
            result.incidences, result.dataflow = found.faults()
            return
        # a run of the system that blocks is one of every other, because these leave out waits
        found, least = self._accesses(self._order("block")), self._order("word", "always")
        result.incidences, result.dataflow = found.faults()
        result.order, result.fence = least, self._order("fence")
        result.races, result.unseen = found.unseen(least, result.fence)
        blocking = Blocking(least, lambda: self._order("wait", "always"))
        result.overwritten, result.relaxed_waits = found.overwritten(blocking), blocking.with_relaxed_waits
