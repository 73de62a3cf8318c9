"""How every step of a run synchronised, beside what the schedule says of that step.

Property: for each step that a warp ran, these are compared in both directions, whatever their order: additions to
    counters and their amounts; waits for counters and their targets; tags that were written, and awaited, by buffer; of
    a ring of bulk copies, each fill of a slot, its expected bytes beside those of its copies, and each wait for a fill,
    which is told by the parity it waits for and how often the slot has been filled until then; groups of small copies.
Assumes: instructions belong to steps as `steps` says, and synchronise in the order of the text (they are volatile).
    What a wait compares with is what `comparisons` finds. Without any, a wait has the schedule's target if the content
    that ended it has reached that, and none before it had. Words that an op reads only if data say so may be left out.
Algorithm: the steps of a warp, loops unrolled, each with what it has to do. What was executed goes to the first run of
    its step from the last one on that has not done all of its kind. If that is behind something else that is still to
    be done, it is one too many of the run before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Literal

from amk.emulator.memory import state
from amk.emulator.ptx import isa
from amk.emulator.ptx.comparisons import Comparison, Load, comparisons
from amk.emulator.ring_steps import (
    EMPTY,
    FILLS,
    WAITS,
    GroupSteps,
    RingSteps,
    fill_text,
    fill_wait_text,
    group_wait_text,
)
from amk.emulator.steps import COUNTERS, NO_CALL, SHARED, Site, Steps, Touched, Visit, merged
from amk.lowering.abi import COUNTER_STRIDE, abi, counter_names
from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Stream

WORD, HALF = 1 << 32, 1 << 31
SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
Kind = Literal["unscheduled", "unexecuted"]


@dataclass(frozen=True)
class Difference:
    """What one run of a step did and its schedule does not say, or the reverse.

    op: its name, "none" outside all steps. loops: n, t and l.
    """

    kind: Kind
    what: str
    op: str
    worker: int
    agent: int
    loops: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        at = "".join(f", {name} {value}" for name, value in self.loops)
        return f"{self.kind}: {self.what}: {self.op}, worker {self.worker}, agent {self.agent}{at}"


def differences(steps: Steps, ended: bool) -> list[Difference]:
    """Without `ended`, a warp has run its steps up to the last that did something. AMK803 if the log of notes was
    full."""
    return list(_Schedule(steps, ended).all())


class _Schedule:
    """What is the same for all warps."""

    def __init__(self, steps: Steps, ended: bool) -> None:
        self.steps, self.schedule, self.ended = steps, steps.schedule, ended
        self.base, self.names = abi(self.schedule).counter_base, counter_names(self.schedule)
        self.counters = {counter.name: counter for counter in self.schedule.counters}
        self.tags = {b.name: b.tag for b in self.schedule.buffers if b.tagged}
        self.comparisons = comparisons(steps.machine.program)

    def all(self) -> Iterator[Difference]:
        rows, machine = self.steps.machine.notes(), self.steps.machine
        warps = rows[:, 0] >> 32
        for number in range(machine.blocks * machine.warps):
            worker, warp = divmod(number, machine.warps)
            yield from _Warp(self, worker, warp).differences(rows[warps == number])

    def counter(self, name: str, index: tuple[Expr, ...], env: Env) -> str:
        """The counter's name for the watchdog's report, such as 'qkv[3,0]'."""
        flat = 0
        for size, expr in zip(self.counters[name].shape, index, strict=True):
            flat = flat * size + int(env.eval(expr))
        number = self.base[name] + flat
        return self.names[number] if 0 <= number < len(self.names) else f"counter {number}"

    def counter_at(self, byte: int) -> str:
        """The same of a place among the counters."""
        number, rest = divmod(byte, 4 * COUNTER_STRIDE)
        return self.names[number] if rest == 0 and number < len(self.names) else f"byte {byte} of the counters"

    def waits(self, visit: Visit, env: Env) -> list[str]:
        waits = visit.step.waits
        return [wait_text(self.counter(w.counter, w.index, env), int(env.eval(w.at_least)), w.compare) for w in waits]

    def signals(self, visit: Visit, env: Env) -> list[str]:
        """An amount of 0 is no signal, and has an empty text."""
        found = []
        for signal in visit.step.signals:
            amount = int(env.eval(signal.add)) % WORD
            found.append(addition_text(self.counter(signal.counter, signal.index, env), amount) if amount else "")
        return found


def wait_text(counter: str, target: int, compare: str = ">=") -> str:
    return f"waits for {counter} {compare} {target % WORD}"


def addition_text(counter: str, amount: int) -> str:
    return f"adds {amount} to {counter}"


def tag_write_text(tag: int, buffer: str) -> str:
    return f"writes tag {tag} to {buffer}"


def tag_wait_text(tag: int, buffer: str) -> str:
    return f"awaits tag {tag} in {buffer}"


@dataclass
class _Duty:
    """What one run of a step has to do, and what it did.

    room: how often it may still do each kind of thing. words: of buffers with tags, by whether they are written.
    perhaps: what it need not do. awaited: tags that comparisons asked for, of the words of a load. accepted: the last
    tag of each word, and of which load.
    """

    expected: Counter[str]
    executed: Counter[str]
    room: Counter[Hashable]
    words: Touched
    perhaps: set[str]
    awaited: dict[Load, set[int]]
    accepted: dict[tuple[str, int], tuple[int, Load]]
    tags_written: set[tuple[str, int]]


@dataclass
class _Poll:
    """Looks at one counter, one after the other. target: None where no comparison was seen.

    refused: the greatest content that did not end it. over: whether the last look ended it.
    """

    pc: int
    byte: int
    content: int
    target: str | None = None
    refused: int | None = None
    over: bool = False


@dataclass
class _Fill:
    """A fill of a slot as executed: bytes that were expected, and that copies brought to where they belong."""

    duty: _Duty
    slot: str
    expected: int
    copied: int = 0
    elsewhere: bool = False


def _duty() -> _Duty:
    return _Duty(Counter(), Counter(), Counter(), defaultdict(list), set(), defaultdict(set), {}, set())


class _Warp:
    def __init__(self, common: _Schedule, worker: int, warp: int) -> None:
        self.common, self.steps, self.worker, self.warp = common, common.steps, worker, warp
        self.visits = self.steps.visits(worker, warp)
        self.duties = [self._duty(visit) for visit in self.visits]
        self.outside = _duty()
        self.runs: dict[Site | int, list[int]] = defaultdict(list)
        for number, visit in enumerate(self.visits):
            call = () if visit.number == NO_CALL else (visit.number,)
            for place in (*call, *visit.places.waits, *visit.places.signals):
                self.runs[place].append(number)
        self.now = 0
        self.poll: _Poll | None = None
        self.blocked: tuple[int, str, int] | None = None
        self.fills: dict[str, list[_Fill]] = defaultdict(list)
        self.group: list[tuple[int, int]] = []
        self.groups = 0
        self._expect_of_ring()

    def _duty(self, visit: Visit) -> _Duty:
        common, env = self.common, self.steps.env(self.worker, visit)
        duty = _duty()
        for sites, texts in (
            (visit.places.waits, common.waits(visit, env)), (visit.places.signals, common.signals(visit, env)),
        ):  # fmt: skip
            for site, text in zip(sites, texts, strict=True):
                duty.expected[text] += bool(text)
                duty.room[site] += bool(text)
        optional = {getattr(visit.op, name) for name in visit.op.perhaps}
        for (writes, buffer), spans in self.steps.declared(self.worker, visit).items():
            if (expr := common.tags.get(buffer)) is not None:
                duty.words[writes, buffer] = spans
                text = (tag_write_text if writes else tag_wait_text)(int(env.eval(expr)) % WORD, buffer)
                duty.expected[text] = 1
                duty.perhaps |= {text} if not writes and buffer in optional else set()
        return duty

    def _expect_of_ring(self) -> None:
        for stream in self.common.schedule.streams:
            role = self.steps.roles[stream.role]
            if not role.first <= self.warp < role.first + role.count:
                continue
            ops = [(visit.op, self.steps.env(self.worker, visit)) for visit in self.visits]
            kind = RingSteps if stream.full else GroupSteps
            ring = kind(stream, self.steps.geometry, ops)
            self.outside.expected.update(ring.before())
            for duty, (op, env) in zip(self.duties, ops, strict=True):
                fills, waits = ring.of(op, env)
                duty.expected.update([*fills, *waits])
                duty.room.update({FILLS: len(fills), WAITS: len(waits)})

    def differences(self, rows: state.Words) -> Iterator[Difference]:
        handlers = (
            self._added, self._loaded, self._stored, self._compared, self._expected, self._copied, self._awaited,
            self._copied_small, self._committed, self._groups_awaited,
        )  # fmt: skip
        for key, _, a, b, c in rows.tolist():
            handlers[key & 255](key >> 8 & 0xFFFFFF, a, b, c)
        if self.common.ended:
            self._end_of_poll()
        else:
            self._stop()
        for fills in self.fills.values():
            for one in fills:
                if not self.common.ended and one.copied < one.expected:
                    continue
                one.duty.executed[_executed_fill(one)] += 1
        over = self.common.ended or self.now > 0
        yield from self._of(None, self.outside, over)
        for number, (visit, duty) in enumerate(zip(self.visits, self.duties, strict=True)):
            yield from self._of(visit, duty, self.common.ended or number < self.now)

    def _of(self, visit: Visit | None, duty: _Duty, over: bool) -> Iterator[Difference]:
        duty.executed.update(set(_words(duty)))
        op, agent, loops = ("none", self.warp, ()) if visit is None else (
            visit.op.op, visit.agent, tuple(sorted(visit.loops.items()))
        )  # fmt: skip
        for what in sorted(duty.executed - duty.expected):
            yield Difference("unscheduled", what, op, self.worker, agent, loops)
        for what in sorted(duty.expected - duty.executed):
            if over and what not in duty.perhaps:
                yield Difference("unexecuted", what, op, self.worker, agent, loops)

    def _run(self, place: Site | int, kind: Hashable) -> _Duty:
        """The run of a step that executes something of this kind now."""
        runs = [number for number in self.runs.get(place, ()) if number >= self.now]
        if not runs:
            before = self.runs.get(place, ())
            return self.duties[before[-1]] if before else self.outside
        chosen = next((number for number in runs if self.duties[number].room[kind] > 0), runs[0])
        if chosen > runs[0] and runs[0] == self.now and self._owes(self.now, chosen):
            chosen = runs[0]
        self.now = chosen
        self.duties[chosen].room[kind] -= 1
        return self.duties[chosen]

    def _owes(self, first: int, end: int) -> bool:
        """Is anything else still to be done by the runs of steps [first, end)?"""
        return any(count > 0 for duty in self.duties[first:end] for count in duty.room.values())

    def _of_words(self, call: int, writes: bool, buffer: str, byte: int) -> _Duty:
        """The run of a step that touches a word; the first one from now on that declares it, if any does."""
        runs = [number for number in self.runs.get(call, ()) if number >= self.now]
        if call == NO_CALL or not runs:
            return self.outside
        for number in runs:
            spans = self.duties[number].words.get((writes, buffer), ())
            if any(lo <= byte < hi for lo, hi in spans):
                self.now = number
                return self.duties[number]
        return self.duties[runs[0]]

    def _place(self, pc: int) -> Site | int:
        site = self.steps.site_of[pc]
        return self.steps.step_of[pc] if site is None else site

    def _added(self, pc: int, place: int, operand: int, operation: int) -> None:
        buffer, (byte, _) = self.steps.buffer(place, place + 4, self.worker)
        if buffer == COUNTERS:
            self._end_of_poll()
            counter, at = self.common.counter_at(byte), self._place(pc)
            text = addition_text(counter, operand % WORD)
            self._run(at, at).executed[text if operation == isa.A_ADD else f"changes {counter}, not by adding"] += 1

    def _stored(self, pc: int, place: int, word: int, _: int) -> None:
        buffer, (byte, _) = self.steps.buffer(place, place + 4, self.worker)
        if buffer == COUNTERS:
            self._run(self._place(pc), None).executed[f"stores to {self.common.counter_at(byte)}"] += 1
        elif buffer in self.common.tags:
            self._end_of_poll()
            self._of_words(self.steps.step_of[pc], True, buffer, byte).tags_written.add((buffer, word >> 32 & WORD - 1))

    def _loaded(self, pc: int, place: int, content: int, part: int) -> None:
        buffer, (byte, _) = self.steps.buffer(place, place + 4, self.worker)
        if buffer == COUNTERS:
            self._look(pc, byte, content % WORD)
        elif buffer in self.common.tags:
            self._end_of_poll()
            duty = self._of_words(self.steps.step_of[pc], False, buffer, byte)
            duty.accepted[buffer, byte] = content >> 32 & WORD - 1, (pc, part)

    def _look(self, pc: int, byte: int, content: int) -> None:
        poll = self.poll
        if poll is None or poll.over or (poll.pc, poll.byte) != (pc, byte):
            self._end_of_poll()
            self.poll = _Poll(pc, byte, content)
            return
        poll.refused = poll.content if poll.refused is None else max(poll.refused, poll.content)
        poll.content = content

    def _compared(self, pc: int, first: int, second: int, _: int) -> None:
        comparison = self.common.comparisons[pc]
        operands = (first, second) if comparison.side == 0 else (second, first)
        if comparison.loads:
            call = self.steps.step_of[pc]
            runs = [number for number in self.runs.get(call, ()) if number <= self.now]
            duty = self.duties[runs[-1]] if runs else self.outside
            for load in comparison.loads:
                duty.awaited[load].add(operands[1] % WORD)
        elif self.poll is not None:
            opcode = self.steps.machine.program.opcodes[pc]
            target, self.poll.over = _target(opcode, comparison, self.poll.content, *operands)
            counter = self.common.counter_at(self.poll.byte)
            text = f"waits for {counter} {target}"
            if self.poll.target not in (None, text):
                content = self.poll.content
                self._end_of_poll(ended=False)
                self.poll = _Poll(self.poll.pc, self.poll.byte, content, over=self.poll.over)
            self.poll.target = text

    def _end_of_poll(self, ended: bool = True, stopped: bool = False) -> None:
        """A wait is over, because something else follows; without `ended`, it looks for something else from here on.

        stopped: the launch stopped here, so that it may not be over.
        """
        poll, counter = self.poll, ""
        if poll is None or (stopped and poll.target is None):
            return
        place, counter = self._place(poll.pc), self.common.counter_at(poll.byte)
        duty = self._run(place, place)
        if poll.target is None:
            duty.executed[_unseen(duty, counter, poll)] += 1
        elif ended and not poll.over and not stopped:
            duty.executed[f"{poll.target}, and goes on at {poll.content}"] += 1
        else:
            duty.executed[poll.target] += 1
        self.poll = None if ended else poll

    def _slot(self, place: int) -> tuple[str, Stream | None, int]:
        """What an mbarrier is called: the number of this warp's slot; its stream, and where the slot begins."""
        byte = self.steps.buffer(place, place + 8, self.worker)[1][0]
        for stream in (one for one in self.common.schedule.streams if one.full):
            agent = self.warp - self.steps.roles[stream.role].first
            number = (byte - self.steps.offset[stream.full or ""]) / 8 - agent * stream.slots
            if 0 <= number < stream.slots and number == int(number):
                first = self.steps.offset[stream.ring] + (agent * stream.slots + int(number)) * stream.chunk_bytes
                return str(int(number)), stream, first
        return f"at byte {byte}", None, 0

    def _expected(self, pc: int, place: int, size: int, _: int) -> None:
        self._end_of_poll()
        slot = self._slot(place)[0]
        self.fills[slot].append(_Fill(self._run(self._place(pc), FILLS), slot, size))

    def _copied(self, pc: int, place: int, size: int, destination: int) -> None:
        slot, _, first = self._slot(place)
        if not self.fills[slot]:
            self._run(self._place(pc), None).executed[f"copies {size:,} bytes to slot {slot}, expecting none"] += 1
            return
        one, (buffer, (byte, _)) = self.fills[slot][-1], self.steps.buffer(destination, destination + 1, self.worker)
        one.elsewhere |= buffer != SHARED or byte != first + one.copied
        one.copied += size

    def _awaited(self, pc: int, place: int, parity: int, over: int) -> None:
        slot = self._slot(place)[0]
        number = len(self.fills[slot])
        if not over:
            self.blocked = pc, slot, number + ((number - 1) % 2 != parity)
            return
        self._end_of_poll()
        self.blocked = None
        number -= (number - 1) % 2 != parity
        self._run(self._place(pc), WAITS).executed[fill_wait_text(slot, number)] += 1

    def _copied_small(self, _: int, destination: int, size: int, __: int) -> None:
        byte = self.steps.buffer(destination, destination + size, self.worker)[1][0]
        self.group.append((byte, byte + size))

    def _committed(self, pc: int, *_: int) -> None:
        self._end_of_poll()
        self.groups += 1
        self._run(self._place(pc), FILLS).executed[self._group()] += 1
        self.group = []

    def _group(self) -> str:
        """What the copies of a group fill."""
        if not self.group:
            return EMPTY
        spans = merged(self.group)
        size = sum(hi - lo for lo, hi in self.group)
        for stream in self.common.schedule.streams:
            agent = self.warp - self.steps.roles[stream.role].first
            slot, rest = divmod(spans[0][0] - self.steps.offset[stream.ring], stream.chunk_bytes)
            own = 0 <= slot - agent * stream.slots < stream.slots
            if own and rest == 0 and [hi - lo for lo, hi in spans] == [size]:
                return fill_text(slot - agent * stream.slots, size)
        return f"copies {size:,} bytes to {spans}"

    def _groups_awaited(self, pc: int, pending: int, *_: int) -> None:
        self._end_of_poll()
        self._run(self._place(pc), WAITS).executed[group_wait_text(self.groups - pending)] += 1

    def _stop(self) -> None:
        """What the warp waited for when the launch stopped counts as a wait."""
        self._end_of_poll(stopped=True)
        if self.blocked is not None:
            pc, slot, number = self.blocked
            self._run(self._place(pc), WAITS).executed[fill_wait_text(slot, number)] += 1


def _executed_fill(one: _Fill) -> str:
    if one.elsewhere:
        return f"copies {one.copied:,} bytes to another place than slot {one.slot}"
    if one.copied != one.expected:
        return f"expects {one.expected:,} bytes in slot {one.slot} and copies {one.copied:,}"
    return fill_text(one.slot, one.copied)


def _words(duty: _Duty) -> Iterator[str]:
    """What was done with words of each buffer."""
    for buffer, tag in duty.tags_written:
        yield tag_write_text(tag, buffer)
    for (buffer, _), (tag, load) in duty.accepted.items():
        awaited = duty.awaited[load]
        if tag in awaited:
            yield tag_wait_text(tag, buffer)
        else:
            yield f"takes tag {tag} in {buffer}, awaiting {sorted(awaited) or 'none'}"


def _unseen(duty: _Duty, counter: str, poll: _Poll) -> str:
    """A wait whose comparison is not known: one of the schedule's that the contents fit, else the contents."""
    for text in duty.expected - duty.executed:
        head, _, target = text.rpartition(" ")
        if head == f"waits for {counter} >=":
            passed = [(seen - int(target)) % WORD < HALF for seen in (poll.content, poll.refused) if seen is not None]
            if passed in ([True], [True, False]):
                return text
    refused = "" if poll.refused is None else f", and not at {poll.refused}"
    return f"goes on at {poll.content} of {counter}{refused}"


def _target(opcode: str, comparison: Comparison, content: int, dependent: int, constant: int) -> tuple[str, bool]:
    """What a comparison asks of the content, and whether that holds. dependent, constant: the operand that depends on
    the content, and the other one."""
    _, relation, kind = opcode.split(".")[:3]
    relation = SWAPPED.get(relation, relation) if comparison.side else relation
    shift = content - dependent if comparison.sign > 0 else content + dependent
    bound = shift + constant if comparison.sign > 0 else shift - constant
    relation = SWAPPED.get(relation, relation) if comparison.sign < 0 else relation
    if relation in ("eq", "ne"):
        return f"== {bound % WORD}", (content - bound) % WORD == 0
    if kind != "s32" or relation not in SWAPPED:
        return f"by {relation}.{kind} with {bound % WORD}", True
    target = bound + (relation in ("gt", "le"))
    return f">= {target % WORD}", (content - target) % WORD < HALF
