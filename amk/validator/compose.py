"""The composed check: every worker of a full-size schedule in well under a second.

Property: liveness, race freedom and reads-from of the schedule for any number of tokens, all positions included.

Two tokens show every neighbourhood but one: in a launch of one token what stands before the loop meets what stands
behind it (`begin` loads the state that `finish` stores). So `verify` asks for one token too.

Assumptions: structure, positions and streams are checked elsewhere (barriers are joined by exactly their role, cache
rows never cross workers, weight rings are private). Tokens beyond the second follow from `epochs`; layers beyond the
third from `reduce`.

Algorithm (section 11 of the theory): one clock pass over one worker per program (`local_order`), one over the interface
nodes of all workers (`quotient`), brackets for everything between; then the race and reads-from passes of the flat
check on the rows of the `envelope`. Kinds of edges (see `quotient`) answer questions:
    block   does every agent finish?
    word    are conflicting accesses separated in time, and does every read find the value it expects?
    wait    like word, with hints: is a tagged word kept until every reader has found it?
    fence   is a write visible to whoever touches the bytes next? Only pairs that begin with a write need this: a read
            is over when its event is, because the op has used what it read.
Without hints, relaxed operations and tagged words all are one. `memory_model` argues for what each kind may order.

Cost: llama3-8b on 132 workers has about 10^6 incidences and 10^4 quotient events.

Witness: races and faults name composite nodes; `confirm` finds the flat events and replays them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, cast

import numpy as np

from amk.report.diagnostic import Diagnostic
from amk.schedule_ir.schedule import Schedule
from amk.validator.atoms import OUTSIDE, Touches, blocks
from amk.validator.counter_events import CounterEvents, Instances
from amk.validator.dataflow import DataflowReport, find_faults
from amk.validator.envelope import Envelope
from amk.validator.footprint import Footprints
from amk.validator.liveness import Run
from amk.validator.local_order import local_order
from amk.validator.order import Clocks
from amk.validator.quotient import BracketOrder, Group, Ordering, Quotient
from amk.validator.races import RaceReport, find_races
from amk.validator.system import I64, MAX_BYTES, READ, WRITE, Bools
from amk.validator.trace import trace
from amk.validator.words import Words, words

TOKENS: Final = 2
LIMIT: Final = 64
NOTHING: Final = np.zeros((0, 5), np.int64)


class Ran(Protocol):
    """Something that has been run."""

    @property
    def run(self) -> Run: ...


@dataclass(eq=False)
class Composition:
    """Result of the composed check of `schedule` (already reduced) for `tokens` tokens, as far as it got.

    stuck: programs whose worker alone does not finish. never: words that nobody writes, tags out of order. races,
    dataflow: over composite nodes with word edges; overwritten: tagged words that a reader may still look for; unseen:
    writes that fences do not order. hints: the order with hints, if words alone do not keep the words. fence: the order
    of what is visible, if it is not `order`. at: the only position that was looked at. private: what the buffers behind
    the schedule's are, in turn.
    """

    schedule: Schedule
    tokens: int
    groups: list[Group]
    instances: Instances
    footprints: Footprints
    stuck: tuple[str, ...] = ()
    never: list[Diagnostic] = field(default_factory=list)
    block: Ran | None = None
    order: Ordering | None = None
    races: RaceReport | None = None
    overwritten: RaceReport | None = None
    unseen: RaceReport | None = None
    hints: Ordering | None = None
    fence: Ordering | None = None
    dataflow: DataflowReport | None = None
    classes: int = 0
    incidences: int = 0
    weak: bool = False
    at: int | None = None
    private: tuple[str, ...] = ("shared memory", "the key cache", "the value cache")

    @property
    def live(self) -> bool:
        return not self.stuck and not self.never and self.block is not None and self.block.run.complete

    @property
    def safe(self) -> bool:
        if self.races is None or self.dataflow is None or not self.dataflow.correct:
            return False
        return self.live and not any(r.racy for r in (self.races, self.overwritten, self.unseen) if r is not None)


def groups_of(schedule: Schedule, tokens: int, instances: Instances) -> list[Group]:
    """One group per program; raises `TooLarge`."""
    found: list[Group] = []
    nodes = 0
    for number, program in enumerate(schedule.programs):
        counters = CounterEvents(schedule, trace(schedule, number, tokens), instances)
        order = local_order(counters.trace)
        group = Group(number, program.first, program.count, order, counters.waits, counters.signals, nodes)
        found.append(group)
        nodes += program.count * group.nodes
    return found


def compose(schedule: Schedule, tokens: int = TOKENS, footprints: Footprints | None = None) -> Composition:
    """Check the schedule; raises `TooLarge`, `ClocksTooLarge` or `NotComposable`.

    footprints: those of an earlier check of the same schedule.
    """
    instances = Instances(schedule.counters)
    groups = groups_of(schedule, tokens, instances)
    result = Composition(schedule, tokens, groups, instances, footprints or Footprints(schedule))
    result.stuck = tuple(schedule.programs[g.number].name for g in groups if not g.order.complete)
    if result.stuck:
        return result
    envelope = Envelope(schedule, result.footprints)
    for group in groups:
        envelope.add(group)
    result.classes = envelope.classes
    rows = envelope.columns()
    tagged = words(schedule, [g.order.trace.items for g in groups], _word_rows(groups, rows, envelope.tagged))
    result.never = tagged.never
    result.weak = not tagged.empty or any(bool(g.waits[:, 4].any() or g.signals[:, 4].any()) for g in groups)
    if result.never:
        return result
    result.block = Quotient(groups, instances, tagged, "block")
    if not result.block.run.complete:
        return result
    always = words(schedule, [g.order.trace.items for g in groups], _always_rows(groups, rows, envelope))
    _check_memory(result, rows, tagged, always, envelope)
    return result


def _check_memory(result: Composition, rows: I64, most: Words, always: Words, envelope: Envelope) -> None:
    """Reads-from with the edges of the envelope; races with those of every position; visibility with fences."""
    groups, instances, block = result.groups, result.instances, result.block
    assert isinstance(block, Quotient)
    order = BracketOrder(Quotient(groups, instances, most, "word") if result.weak else block)
    touches = touches_in_order(rows, order, *boundary_content(result.schedule, result.footprints, result.tokens))
    kept = list(blocks(touches))
    result.order, result.incidences = order, touches.incidences
    result.dataflow = find_faults(kept, LIMIT)
    if not result.weak:
        result.races = find_races(kept, cast(Clocks, order), LIMIT)
        return
    result.order = least = BracketOrder(Quotient(groups, instances, always, "word"))
    result.fence = fence = BracketOrder(Quotient(groups, instances, most, "fence"))
    blocking = Blocking(least, lambda: BracketOrder(Quotient(groups, instances, always, "wait")))
    result.races, result.overwritten, result.unseen = weak_races(rows, envelope.tagged, order, least, blocking, fence)
    result.hints = blocking.with_hints


def weak_races(
    rows: I64, buffers: list[int], run: Ordering, least: Ordering, blocking: Blocking, fence: Ordering
) -> tuple[RaceReport, RaceReport, RaceReport]:
    """(races, overwritten, unseen) of `Composition`; rows as in `touches_in_order`, buffers: the tagged ones.

    run: an execution in which every read waits for its words; least: what is ordered whatever is read.
    """
    tagged = np.isin(rows[:, 1], buffers)
    words_ = _numbered(touches_in_order(rows[tagged], run, NOTHING, NOTHING))
    overwritten = _halved(find_races(blocks(words_), cast(Clocks, blocking), LIMIT))
    written = ~tagged | (rows[:, 2] != READ)
    seen = _numbered(touches_in_order(rows[written], run, NOTHING, NOTHING))
    unseen = races = _halved(find_races(blocks(seen), cast(Clocks, _Visibility(least, fence)), LIMIT))
    if unseen.racy:
        # what a fence orders is ordered in time too, so only now the two can differ
        plain = touches_in_order(rows[~tagged], run, NOTHING, NOTHING)
        races = find_races(blocks(plain), cast(Clocks, least), LIMIT)
    return races, overwritten, unseen


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


def _always_rows(groups: list[Group], rows: I64, envelope: Envelope) -> I64:
    """`_word_rows` with only those reads that happen at every position."""
    found = _word_rows(groups, rows, envelope.tagged)
    moving = {(number, node) for number, node in envelope.moving}
    items = {(g, node - group.order.trace.events) for g, group in enumerate(groups) for n, node in moving if n == g}
    keys = np.array([g << 32 | i for g, i in sorted(items)], np.int64)
    kept = (found[:, 4] != READ) | ~np.isin(found[:, 0] << 32 | found[:, 2], keys)
    least = _word_rows(groups, np.concatenate(envelope.least), envelope.tagged)
    return np.concatenate((found[kept], least))


def _word_rows(groups: list[Group], rows: I64, tagged: list[int]) -> I64:
    """(group, worker, item, buffer, kind, lo, hi) of the rows on tagged buffers."""
    found = [np.zeros((0, 7), np.int64)]
    for g, group in enumerate(groups):
        end = group.node_base + group.count * group.nodes
        mine = rows[np.isin(rows[:, 1], tagged) & (rows[:, 0] >= group.node_base) & (rows[:, 0] < end)]
        worker, node = np.divmod(mine[:, 0] - group.node_base, group.nodes)
        events = group.order.trace.events
        item = np.where(node < events, group.order.trace.item[np.minimum(node, events - 1)], node - events)
        head = np.stack((np.full(len(mine), g), worker + group.first, item), axis=1)
        found.append(np.concatenate((head, mine[:, 1:5]), axis=1))
    return np.concatenate(found)


def boundary_content(schedule: Schedule, footprints: Footprints, tokens: int) -> tuple[I64, I64]:
    """(initial, final) rows (buffer, lo, hi, value, delta): the launch state; outputs, state and last logits."""
    number = footprints.number
    size = {b.name: b.bytes for b in schedule.buffers}
    initial = [(number["state"], 0, size["state"], footprints.code("state", 0), 0)]
    final = [(number["state"], 0, size["state"], footprints.code("state", 1), 0)]
    one = 4 * schedule.batch
    outputs = footprints.code("output", 0)
    final += [(number["output"], one * n, one * (n + 1), outputs + n + 1, 0) for n in range(tokens)]
    logits = footprints.code("logits", 0) + tokens
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
