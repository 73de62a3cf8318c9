"""That every thread synchronises as the schedule says, and in no other order.

Property: on every path that a thread may take (`thread_values`), it executes the instructions that `skeleton` found as
    a sequence of the schedule. That is, step by step, of the steps of its role in its program:
        wait        from lane 0 the poll, again and again; from every lane the warp's barrier
        signal      from every lane the warp's barrier, then from the lane of each signal the signal, where its amount
                    is a constant
        barrier     the barrier
        ring        from lane 0 of the stream's role the mbarriers, from every lane the warp's barrier, then copies
        drain       the wait for a slot, again and again; the warp's barrier; from the elected lane perhaps the fence
                    where the stream has one, what the copy expects, and the copy
        refill      from the elected lane the fence, then copies, each behind what it expects
        other ops   their own instructions in any order, or none
    loops over layers and parts at least once, the one over tokens perhaps never; and there is a path to each of them
    that is not in an op. Thread 0 sets up the watchdog.
So a barrier has all threads that it counts, and no branch steps over it, a wait, or a signal, or leads to that of
another step or role.
Not seen: what the instructions of an op other than a product do among each other, how often loops run, and which op's
    they are where those of several stand together in the text. Of a program's workers the first and the last count.
Algorithm: the schedule's sequences as a regular expression over the instructions, of which what may follow what is all
    that is needed (Glushkov, 1961; every instruction stands in it once); the instructions that are met first on the
    ways from each, with the threads that may go there.
Cost: the instructions, times the few turns that sets of threads take around loops; steps, times roles and lanes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from amk.lowering.printed import PartLoop, Printed, PrintedLoop, PrintedStep, printed
from amk.lowering.readback import Instruction, Kind
from amk.lowering.skeleton import ByPart, Part
from amk.lowering.symbolic import DOG, Reading
from amk.lowering.thread_values import ThreadValues
from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.schedule import Signal, Step, Wait

_END = -1
_START = -2
_NEVER = -3
_DRAINS = (Kind.MBARRIER_WAIT, Kind.COPY_WAIT)
_BY_ELECTED = (Kind.PROXY_FENCE_SHARED, Kind.MBARRIER_EXPECT, Kind.BULK_LOAD)
_BEHIND = {
    (Kind.MBARRIER_EXPECT, Kind.MBARRIER_EXPECT): {Kind.BULK_LOAD},
    (Kind.PROXY_FENCE_SHARED, Kind.PROXY_FENCE_SHARED): {Kind.MBARRIER_EXPECT},
    (Kind.PROXY_FENCE_SHARED, Kind.MBARRIER_EXPECT): {Kind.BULK_LOAD},
    (Kind.PROXY_FENCE_SHARED, Kind.BULK_LOAD): {Kind.MBARRIER_EXPECT},
    (Kind.MBARRIER_WAIT, Kind.MBARRIER_WAIT): {Kind.WARP_BARRIER},
    (Kind.MBARRIER_WAIT, Kind.WARP_BARRIER): {Kind.PROXY_FENCE_SHARED, Kind.MBARRIER_EXPECT},
    (Kind.MBARRIER_WAIT, Kind.PROXY_FENCE_SHARED): {Kind.MBARRIER_EXPECT},
    (Kind.MBARRIER_WAIT, Kind.MBARRIER_EXPECT): {Kind.BULK_LOAD},
    (Kind.COPY_WAIT, Kind.COPY_WAIT): {Kind.WARP_BARRIER},
    (Kind.COPY_WAIT, Kind.WARP_BARRIER): {Kind.WARP_BARRIER, Kind.COPY, Kind.COPY_COMMIT},
    (Kind.COPY_WAIT, Kind.COPY): {Kind.COPY, Kind.COPY_COMMIT},
    (Kind.COPY_WAIT, Kind.COPY_COMMIT): {Kind.COPY_COMMIT},
}
"""What goes on with a group of an op's instructions, by its first and its last one so far."""
Places = frozenset[int]
Programs = list[tuple[Printed, ...]]


@dataclass(frozen=True)
class _Agent:
    """A thread, as far as the schedule tells it from others. lane: of those that signal, else one more."""

    program: int
    roles: frozenset[str]
    lane: int
    elected: bool


def check_threads(reading: Reading) -> None:
    """AMK609 for the first instruction behind which a thread may come to one that is not the schedule's next."""
    schedule = reading.schedule
    workers = sorted({n for p in schedule.programs for n in (p.first, p.first + p.count - 1)})
    threads = [
        (worker, thread, elected)
        for worker in workers for thread in range(32 * schedule.launch.warps) for elected in (False, True)
    ]  # fmt: skip
    programs, parts = printed(schedule), list(_with_neighbours(reading))
    values = ThreadValues(reading.kernel, threads)
    met = _meetings(reading, values)
    lanes = max(len(step.signals) for step in _steps(programs)) or 1
    agents: dict[_Agent, int] = defaultdict(int)
    for n, (worker, thread, elected) in enumerate(threads):
        program = next(i for i, p in enumerate(schedule.programs) if p.first <= worker < p.first + p.count)
        roles = frozenset(r.name for r in schedule.roles if r.first <= thread // 32 < r.first + r.count)
        agents[_Agent(program, roles, min(thread % 32, lanes), elected)] |= 1 << n
    arrived: dict[int, int] = defaultdict(int)
    for (_, to), who in met.items():
        arrived[to] |= who
    labels = {reading.kernel.by_line[one.line]: (part, one) for part, found in reading.by_part for one in found}
    for agent, those in agents.items():
        sequences = _Sequences(reading, values, agent, those, programs, parts)
        wrong = [at for at in sequences.duties if those & ~arrived[at]]
        for (at, to), who in met.items():
            if who & those and to not in sequences.follow[at]:
                wrong.append(to if to in labels else at)
        if wrong:
            part, one = labels[max(min(wrong), min(labels))]
            words = "is executed by other threads, or in another order, than the schedule's"
            raise reading.refused(part.label, one, words)
    _watchdog(reading, values, sum(1 << n for n, (_, thread, _) in enumerate(threads) if thread == 0))


def _watchdog(reading: Reading, values: ThreadValues, first: int) -> None:
    kernel = reading.kernel
    for one in kernel.code:
        sets_up = one.opcode.startswith("st.shared") and reading.roots.of_address(one) == {DOG}
        if sets_up and values.reached.get(kernel.block(one.at), 0) != first:
            raise reading.refused("the watchdog", one, "is executed by other threads than the first of a worker")


def _meetings(reading: Reading, values: ThreadValues) -> dict[tuple[int, int], int]:
    """For every synchronising instruction, and the start of the kernel, those that are met next, with the threads that
    may go there."""
    kernel, stops = reading.kernel, reading.stops
    starts = sorted({*kernel.blocks, *(at + 1 for at in stops)})
    last = dict(zip(starts, [*(at - 1 for at in starts[1:]), len(kernel.code) - 1], strict=True))
    found: dict[tuple[int, int], int] = defaultdict(int)
    for stop in (_START, *stops):
        here = {max(stop, _START + 1) + 1: values.reached.get(kernel.block(max(stop, 0)), 0)}
        stack = list(here)
        while stack:
            start = stack.pop()
            end = last[start]
            if end in stops:
                found[stop, end] |= here[start]
                continue
            following = kernel.successors(end)
            if not following or kernel.ends(end):
                found[stop, _END] |= here[start]
            for n, to in enumerate(following):
                way = here[start] & (values.passers if n else values.takers).get(end, values.everybody)
                if way & ~here.get(to, 0):
                    here[to] = here.get(to, 0) | way
                    stack.append(to)
    return found


def _steps(programs: Programs) -> Iterator[Step]:
    for nodes in programs:
        for node in nodes:
            if isinstance(node, PrintedStep):
                yield node.step
            else:
                yield from _steps([tuple(node.body)])


@dataclass(frozen=True)
class _Language:
    first: Places
    last: Places
    empty: bool


_NOTHING = _Language(Places(), Places(), True)


class _Sequences:
    """follow[at]: what an agent may come to behind an instruction. duties: what no way leaves out."""

    def __init__(
        self, reading: Reading, values: ThreadValues, agent: _Agent, those: int, programs: Programs, parts: ByPart
    ) -> None:
        self.reading, self.agent, self.schedule = reading, agent, reading.schedule
        self.values, self.those = values, those
        self.follow: dict[int, set[int]] = defaultdict(set)
        self.duties = set[int]()
        self.parts = iter(parts)
        whole = [self.one(_START), *self.start()]
        for number, nodes in enumerate(programs):
            others = set(self.duties)
            program = self.sequence([self.node(node) for node in nodes])
            if number == agent.program:
                whole.append(program)
            else:
                self.duties = others
        self.sequence([*whole, self.one(_END)])

    def start(self) -> Iterator[_Language]:
        _, found = next(self.parts)
        yield self.due(found[0])
        stream = self.schedule.streams[0]
        if stream.engine == "bulk" or stream.run_ahead:
            _, found = next(self.parts)
            if stream.role in self.agent.roles:
                yield from self.ring(found)

    def ring(self, instructions: tuple[Instruction, ...]) -> Iterator[_Language]:
        for one in instructions:
            if one.kind in (Kind.MBARRIER_INIT, Kind.MBARRIER_INIT_FENCE):
                yield self.due(one) if self.agent.lane == 0 else _NOTHING
            elif one.kind is Kind.WARP_BARRIER:
                yield self.due(one)
        yield self.op(one for one in instructions if one.kind in (*_BY_ELECTED, Kind.COPY, Kind.COPY_COMMIT))

    def node(self, node: Printed) -> _Language:
        if isinstance(node, PrintedLoop):
            return self.loop([self.node(each) for each in node.body], node.loop.count)
        if isinstance(node, PartLoop):
            return self.loop([self.node(each) for each in node.body], node.count)
        step = node.step
        parts = [next(self.parts) for _ in range(len(step.waits) + node.lanes_meet + 1 + bool(step.signals))]
        if step.op.role not in self.agent.roles:
            return _NOTHING
        return self.sequence([each for part, found in parts for each in self.part(part, found)])

    def part(self, part: Part, instructions: tuple[Instruction, ...]) -> Iterator[_Language]:
        if isinstance(part.item, Wait):
            poll, barrier = instructions
            yield self.loop([self.due(poll)], 2) if self.agent.lane == 0 else _NOTHING
            yield self.due(barrier)
        elif isinstance(part.item, Step) and part.signals:
            yield self.due(instructions[0])
            yield from self.signals(part.item.signals, instructions[1:])
        elif part.item is None or isinstance(part.item.op, BarrierOp):
            yield self.due(instructions[0])
        else:
            yield self.op(instructions)

    def signals(self, signals: tuple[Signal, ...], instructions: tuple[Instruction, ...]) -> Iterator[_Language]:
        """Those of one lane keep their order; the compiler may put them anywhere among those of others."""
        own = [signal for lane, signal in enumerate(signals) if lane % 32 == self.agent.lane]
        places = [self.at(one) for one in instructions]
        mine = [at for at in places if self.values.reached.get(self.reading.kernel.block(at), 0) & self.those]
        for number, signal in enumerate(own):
            if number < len(mine):
                yield replace(self.one(mine[number]), empty=not isinstance(signal.add, int))
            else:
                yield self.one(_NEVER)

    def at(self, one: Instruction) -> int:
        return self.reading.kernel.by_line[one.line]

    def one(self, one: Instruction | int) -> _Language:
        at = frozenset({one if isinstance(one, int) else self.at(one)})
        return _Language(at, at, False)

    def due(self, one: Instruction) -> _Language:
        self.duties.add(self.at(one))
        return self.one(one)

    def op(self, instructions: Iterable[Instruction]) -> _Language:
        """Its instructions in any order, but for those of the ring."""
        return self.any_of([self.group(group) for group in _groups(instructions)])

    def group(self, instructions: list[Instruction]) -> _Language:
        """The wait for a slot, again and again, the warp's barrier, and perhaps the refill; the fence, and copies; a
        copy with what it expects; any other instruction."""
        first = instructions[0]
        if first.kind is Kind.PROXY_FENCE_SHARED:
            return self.sequence(
                [self.chosen(first), self.any_of([self.group(pair) for pair in _groups(instructions[1:])])]
            )
        if first.kind not in _DRAINS:
            return self.sequence(self.chosen(one) if one.kind in _BY_ELECTED else self.one(one) for one in instructions)
        barriers = [one for one in instructions[1:] if one.kind is Kind.WARP_BARRIER]
        refill = [self.group(group) for group in _groups(instructions[1 + len(barriers) :])]
        last = replace(refill[0], empty=True) if len(refill) == 1 else self.any_of(refill)
        return self.sequence([self.loop([self.one(first)], 2), *map(self.one, barriers), last])

    def chosen(self, one: Instruction) -> _Language:
        return self.one(one) if self.agent.elected else _NOTHING

    def any_of(self, each: list[_Language]) -> _Language:
        """These in any order, once, several times or never."""
        first, last = (Places().union(*places) for places in ([e.first for e in each], [e.last for e in each]))
        return self.loop([_Language(first, last, True)], None)

    def sequence(self, each: Iterable[_Language]) -> _Language:
        first, last, empty = Places(), Places(), True
        for one in each:
            for at in last:
                self.follow[at] |= one.first
            first = first | one.first if empty else first
            last = last | one.last if one.empty else one.last
            empty = empty and one.empty
        return _Language(first, last, empty)

    def loop(self, body: Iterable[_Language], count: int | None) -> _Language:
        """count: how often it runs; nobody knows of None."""
        whole = self.sequence(body)
        if count != 1:
            for at in whole.last:
                self.follow[at] |= whole.first
        return replace(whole, empty=whole.empty or count is None)


def _with_neighbours(reading: Reading) -> Iterator[tuple[Part, tuple[Instruction, ...]]]:
    """The parts; ops that nothing of the schedule stands between in the text have their instructions in common."""
    common: dict[int, tuple[Instruction, ...]] = {}
    filled = [(n, *found) for n, found in enumerate(reading.by_part) if found[1]]
    for of_ops, run in groupby(filled, lambda entry: _is_op(entry[1])):
        if of_ops:
            ops = list(run)
            common |= {n: tuple(one for _, _, found in ops for one in found) for n, _, _ in ops}
    for n, (part, found) in enumerate(reading.by_part):
        yield part, common.get(n, found)


def _groups(instructions: Iterable[Instruction]) -> Iterator[list[Instruction]]:
    """What belongs together of an op's instructions, in the order of the text."""
    group: list[Instruction] = []
    for one in instructions:
        if group and one.kind in _BEHIND.get((group[0].kind, group[-1].kind), ()):
            group.append(one)
        else:
            yield from [group] if group else []
            group = [one]
    yield from [group] if group else []


def _is_op(part: Part) -> bool:
    return isinstance(part.item, Step) and not part.signals and not isinstance(part.item.op, BarrierOp)
