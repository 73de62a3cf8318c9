"""The composed check: every worker of a full-size schedule in well under a second.

Property: liveness, race freedom and reads-from of the schedule for any number of tokens, all positions included.

Two tokens show every neighbourhood but one: in a launch of one token what stands before the loop meets what stands
behind it (`begin` loads the state that `finish` stores). So `verify` asks for one token too: `one_token` mostly has the
answer, otherwise that launch is composed.

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
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final, Literal, Protocol, TypeVar

import numpy as np

from amk.report.diagnostic import Diagnostic
from amk.schedule_ir.memory import Counter
from amk.schedule_ir.schedule import Program, Role, Schedule
from amk.validator.abreast import events_abreast
from amk.validator.aliases import Clash
from amk.validator.brackets import BracketOrder, Ordering
from amk.validator.counter_events import CounterEvents, Instances
from amk.validator.dataflow import DataflowReport
from amk.validator.finishing import counters_come, words_come
from amk.validator.in_order import Part
from amk.validator.liveness import Run, replayed
from amk.validator.local_order import LocalOrder, local_order
from amk.validator.memo import Keyed, Memo, given
from amk.validator.memory_check import (
    Accesses,
    boundary_content,
    named,
    ordered,
    ordered_abreast,
    overwritten,
    plain_memory,
    reads_from,
    unseen,
)  # fmt: skip
from amk.validator.order import Clocks
from amk.validator.parts import bare_program
from amk.validator.quotient import Edges, Group, Quotient, clocks_abreast, clocks_of, projected, run_of
from amk.validator.races import RaceReport
from amk.validator.still import Names, paths, still, synced
from amk.validator.still import names as names_of
from amk.validator.system import I64
from amk.validator.touched import Touched, gathered, sure_words, tagged_words, touched
from amk.validator.trace import Path, Trace, trace_of
from amk.validator.words import Counted, Words, tags_of, told

T = TypeVar("T")
TOKENS: Final = 2
Kept = Literal["most", "always", "sure"]
"""Which reads of tagged words count: all, those at every position, or all but those that depend on the data."""


class Ran(Protocol):
    """Something that has been run."""

    @property
    def run(self) -> Run: ...


@dataclass(eq=False)
class Composition:
    """Result of the composed check of `schedule` (already reduced) for `tokens` tokens, as far as it got.

    stuck: programs whose worker alone does not finish. never: words that nobody writes, tags out of order. races,
    dataflow: over composite nodes with word edges; overwritten: tagged words that a reader may still look for; unseen:
    writes that fences do not order. outside, clashes, written_constants: see `Gathered`. memo: what may serve again.
    hints: the order with hints, if words alone do not keep the words. fence: the order of what is visible, if it is not
    `order`. at: the only position that was looked at. accesses: all there are. private: what the buffers behind the
    schedule's are, in turn. blocking: makes `block`. complete: does every agent finish with its edges?
    strict: strict quotients; None if the flat system cannot tell the words apart. abreast: accesses are in the order of
    the run of all workers abreast. pending: makes `overwritten` and `hints` what they are said to be; until then the
    former has words that hints may keep. Only where content is wrong, and that mostly says enough.
    """

    schedule: Schedule
    tokens: int
    groups: list[Group]
    instances: Instances
    memo: Memo
    outside: dict[tuple[str | int, ...], str] = field(default_factory=dict)
    clashes: dict[tuple[str | int, ...], Clash] = field(default_factory=dict)
    written_constants: frozenset[str] = frozenset()
    stuck: tuple[str, ...] = ()
    never: list[Diagnostic] = field(default_factory=list)
    blocking: Callable[[], Ran] | None = None
    complete: bool = False
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
    strict: Callable[[Edges], Quotient] | None = None
    abreast: bool = False
    pending: Callable[[], None] | None = None
    accesses: Accesses | None = None
    private: tuple[str, ...] = ("shared memory", "the key cache", "the value cache")

    @cached_property
    def block(self) -> Ran | None:
        """What has the edges of `block`, made when it is asked for."""
        return None if self.blocking is None else self.blocking()

    @property
    def live(self) -> bool:
        return not self.stuck and not self.never and self.complete

    @property
    def unraced(self) -> bool:
        """Is it known that no two accesses race?"""
        reports = self.races, self.overwritten, self.unseen
        return self.races is not None and self.pending is None and not any(r.racy for r in reports if r is not None)

    @property
    def safe(self) -> bool:
        if self.races is None or self.dataflow is None or not self.dataflow.correct:
            return False
        return self.live and self.unraced


def ordered_program(
    memo: Memo, program: Program, number: int, roles: tuple[Role, ...], warps: int, tokens: int
) -> LocalOrder:
    """The local order of a program whose steps neither wait nor signal; raises `TooLarge`."""
    return local_order(trace_of(program, number, roles, warps, tokens), memo)


def _orders(schedule: Schedule, tokens: int, memo: Memo) -> list[Keyed[LocalOrder]]:
    roles, warps = schedule.roles, schedule.launch.warps
    return [
        memo.within(ordered_program, bare_program(program), number, roles, warps, tokens)
        for number, program in enumerate(schedule.programs)
    ]


def _groups(schedule: Schedule, orders: list[Keyed[LocalOrder]], instances: Instances) -> list[Group]:
    found: list[Group] = []
    nodes = 0
    for number, (program, order) in enumerate(zip(schedule.programs, orders, strict=True)):
        counters = CounterEvents(schedule, order.value.trace, instances)
        group = Group(number, program.first, program.count, order.value, counters.waits, counters.signals, nodes)
        found.append(group)
        nodes += program.count * group.nodes
    return found


def groups_of(schedule: Schedule, tokens: int, instances: Instances) -> list[Group]:
    """One group per program; raises `TooLarge`."""
    return _groups(schedule, _orders(schedule, tokens, Memo()), instances)


def quotient_of(
    edges: Edges,
    strict: bool,
    counters: tuple[Counter, ...],
    words: Words,
    bases: tuple[tuple[int, ...], ...],
    *parts: Any,
) -> Quotient:
    """The quotient of projected groups: bases are (first, count, node_base), parts (order, waits, signals) of each."""
    rows = zip(bases, parts[::3], parts[1::3], parts[2::3], strict=True)
    groups = [
        Group(number, first, count, order, waits, signals, base)
        for number, ((first, count, base), order, waits, signals) in enumerate(rows)
    ]
    return Quotient(groups, Instances(counters), words, edges, strict)


def clocks_in(memo: Memo, quotient: Quotient) -> Keyed[Clocks]:
    """By its waits and signals, which other quotients may have too."""
    order = events_abreast(quotient)
    if order is not None:
        found = memo(clocks_abreast, order, *quotient.synchronisation)
        if found.value is not None:
            return Keyed(found.value, found.key)
    return memo(clocks_of, *quotient.synchronisation)


def compose(schedule: Schedule, tokens: int = TOKENS, memo: Memo | None = None) -> Composition:
    """Check the schedule; raises `TooLarge`, `ClocksTooLarge` or `NotComposable`.

    memo: results of earlier checks, of this schedule or of others.
    """
    return _Composer(schedule, tokens, memo or Memo()).run()


def _accesses(found: Keyed[Touched], names: Names, tagged: list[int], initial: I64, final: I64) -> Keyed[Accesses]:
    content = Accesses(found.value.rows, names, tagged, initial, final)
    return Keyed(content, given((found.key, names.key, tuple(tagged), initial, final)).key)


class _Composer:
    def __init__(self, schedule: Schedule, tokens: int, memo: Memo) -> None:
        self.schedule, self.memo = schedule, memo
        self.orders = _orders(schedule, tokens, memo)
        instances = Instances(schedule.counters)
        self.groups = _groups(schedule, self.orders, instances)
        self.alone = given(tuple((g.first, g.count, o) for g, o in zip(self.groups, self.orders, strict=True))).key
        self.quotients: dict[tuple[Edges, Kept, bool], Keyed[Quotient]] = {}
        self.result = Composition(schedule, tokens, self.groups, instances, memo)

    def run(self) -> Composition:
        result, memo, tokens = self.result, self.memo, self.result.tokens
        result.stuck = tuple(self.schedule.programs[g.number].name for g in self.groups if not g.order.complete)
        if result.stuck:
            return result
        quiet = still(self.schedule)
        whole = memo(gathered, given(quiet), memo.evaluations, *self._traces(quiet))
        found_rows = memo(touched, whole, synced(self.schedule))
        rows, names = found_rows.value, names_of(whole.value.teams, self.groups)
        boundary = boundary_content(quiet, tokens)
        self.accesses = _accesses(found_rows, names, whole.value.envelope.tagged, *boundary)
        result.accesses = self.accesses.value
        self.seen, self.places = (whole, found_rows), names.places(rows.places)
        self.items = [group.order.trace.items for group in self.groups]
        tagged = rows.tagged.value
        self.tags = given(tags_of(self.schedule, self.items, self.places, tagged.steps))
        found = memo.within(tagged_words, self.tags, rows.tagged).value
        most = self._named(found.most)
        self.words: dict[Kept, Keyed[Words]] = {"most": most, "always": self._named(found.always)}
        result.classes = whole.value.envelope.classes
        result.written_constants = whole.value.constants
        result.outside, result.clashes = (
            self._there(quiet, found) for found in (whole.value.outside, whole.value.clashes)
        )
        if result.outside or result.written_constants:
            return result  # wrong whatever else there is
        result.never = most.value.never
        result.weak = not most.value.empty or any(
            bool(g.waits[:, 4].any() or g.signals[:, 4].any()) for g in self.groups
        )
        if result.never:
            return result
        result.strict = None if found.doubled else self.strict
        result.blocking, result.abreast = self._block, self._finishing(most)
        if not result.abreast:
            block = self._block()
            result.blocking, result.abreast = (lambda: block), block.abreast is not None
        elif tokens not in memo.composed:
            self._block()  # races of later schedules that touch other bytes are looked for on it
        memo.composed.add(tokens)
        result.complete = result.abreast or block.run.complete
        if result.complete:
            self._check_memory()
        return result

    def _finishing(self, words: Keyed[Words]) -> bool:
        """Do all workers abreast finish? False says nothing."""
        if len(self.groups) != 1 or not self.memo(words_come, self.orders[0], words).value:
            return False
        return counters_come(self.groups[0], self.result.instances)

    def _block(self) -> Quotient:
        block = self._quotient("block").value
        # of those that run abreast, the run of the clocks is the same
        if not self.result.abreast or not block.ran:
            block.adopt(self._run(block))
        return block

    def _traces(self, quiet: Schedule) -> list[Keyed[Trace]]:
        """What the workers of still programs run."""
        rest = quiet.roles, quiet.launch.warps, self.result.tokens
        return [self.memo(trace_of, program, number, *rest) for number, program in enumerate(quiet.programs)]

    def _there(self, quiet: Schedule, found: dict[Path, T]) -> dict[Path, T]:
        """What was found on steps of still programs, and where they are in the schedule; paths go on behind those of
        steps."""
        places = paths(quiet, self.schedule) if found else {}
        return {(*places[path[:-1]], path[-1]): what for path, what in found.items()}

    def _run(self, quotient: Quotient) -> Run:
        """A complete run if there is one: all workers abreast, or much like the run of an earlier schedule."""
        if quotient.abreast is not None:
            return quotient.abreast
        known = self.memo.orders.get(self.result.tokens)
        if known is not None and (run := replayed(quotient.system, quotient.in_order_of(*known))) is not None:
            return run
        run = self.memo(run_of, *quotient.synchronisation).value
        if run.complete:
            self.memo.orders[self.result.tokens] = quotient.labels, run.position
        return run

    def _quotient(self, edges: Edges, words: Kept = "most", strict: bool = False) -> Keyed[Quotient]:
        """Of what these edges make of the groups, so that what they leave out cannot matter."""
        if (edges, words, strict) in self.quotients:
            return self.quotients[edges, words, strict]
        parts: list[Any] = []
        bases = []
        for group, order in zip(projected(self.groups, edges), self.orders, strict=True):
            bases.append((group.first, group.count, group.node_base))
            parts += [order, group.waits, group.signals]
        made = self.memo(quotient_of, edges, strict, self.schedule.counters, self.words[words], tuple(bases), *parts)
        self.quotients[edges, words, strict] = made
        return made

    def _named(self, found: Counted) -> Keyed[Words]:
        """Words by their content: different accesses may well have the same."""
        words = told(self.schedule, self.items, self.places, found)
        return Keyed(words, given((found.key, self.places[:, 1])).key)

    def _sure(self) -> Counted:
        steps = [[bool(item.step.op.perhaps) for item in items] for items in self.items]
        perhaps = np.array([steps[g][i] for g, i in self.places.tolist()], bool)
        return self.memo.within(sure_words, self.tags, perhaps, self.seen[1].value.tagged).value

    def strict(self, edges: Edges) -> Quotient:
        """With all words that a step looks for at some position, whatever the data say."""
        if "sure" not in self.words:
            self.words["sure"] = self._named(self._sure())
        return self._quotient(edges, "sure", strict=True).value

    def _order(self, edges: Edges, words: Kept = "most") -> Keyed[BracketOrder]:
        """A new order each time, because it counts what it is asked."""
        quotient = self._quotient(edges, words)
        clocks = self.memo.within(clocks_in, quotient).value
        quotient.value.adopt(clocks.value.run, clocks.value)
        return Keyed(BracketOrder(quotient.value, quotient, clocks.key, self.alone), quotient.key)

    def _parts(self, edges: Edges) -> Keyed[list[Part]]:
        """The accesses in the order of a run; the one of all workers abreast knows nothing of waits and signals.

        If it is a run with the edges of `block`, it is one with others: these only leave waits out, and let weak
        signals come earlier.
        """
        if self.result.abreast:
            whole, rows = self.seen
            names = self.accesses.value.names
            return self.memo(named, self.memo(ordered_abreast, rows, whole), Keyed(names, names.key))
        return self.memo(ordered, self.accesses, self._order(edges))

    def _check_memory(self) -> None:
        """Reads-from with the edges of the envelope; races with those of every position; visibility with fences."""
        result, memo = self.result, self.memo
        if not result.weak:
            order = self._order("block")
            parts = self._parts("block")
            found = memo.within(plain_memory, self.accesses, parts, order).value
            result.order, result.incidences = order.value, found.incidences
            result.dataflow, result.races = found.dataflow, found.races
            return
        parts, least = self._parts("word"), self._order("word", "always")
        seen = memo.within(reads_from, self.accesses, parts).value
        result.incidences, result.dataflow, result.order = seen.incidences, seen.dataflow, least.value
        fence = self._order("fence")
        result.fence = fence.value
        result.races, result.unseen = memo.within(unseen, self.accesses, parts, least, fence).value
        result.overwritten, asked = memo.within(overwritten, self.accesses, parts, least, None).value
        if asked:
            result.pending = partial(self._ask_hints, parts, least)
            if seen.dataflow.correct or not result.abreast:
                result.pending()

    def _ask_hints(self, parts: Keyed[list[Part]], least: Keyed[BracketOrder]) -> None:
        """Clocks with hints may take long, because thresholds of hints may be anything."""
        hints = self._order("wait", "always")
        self.result.hints, self.result.pending = hints.value, None
        self.result.overwritten, _ = self.memo.within(overwritten, self.accesses, parts, least, hints).value
