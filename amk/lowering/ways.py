"""That no way through the compiled kernel leaves out what a step synchronises with, or takes it with other lanes.

Property, of the instructions that `skeleton` found, on every path of the kernel:
    wait        behind its poll comes the poll again, or the warp's barrier behind it (M3, M4); before that barrier
                comes the poll, on the ways of the lane that polls
    signal      before it comes the warp's barrier of its step (M1), or another signal of the step
    drain       behind the wait for a slot comes that wait again, or the warp's barrier, before which comes the wait;
                before the refill comes that barrier, and the fence where the stream has one
    bulk copy   it stands behind what it expects, in one block with it and with the fence of a drain; that block is
                executed by the lane that was elected before it, mbarriers are initialised by lane 0
    barrier     behind one of all warps comes the next one of all warps, or the first one of a loop that ends there
So a branch cannot step over a barrier or a fence that the text has in the right place.
Not read here: barriers of some warps only, those inside ops, fences before several copies, and whether a step as a
    whole is executed.
Cost: for every synchronising instruction, the instructions up to the next ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from amk.lowering.conditions import compared, conditions, lanes_of
from amk.lowering.printed import PartLoop, Printed, PrintedLoop, printed
from amk.lowering.readback import Instruction, Kind
from amk.lowering.skeleton import Part
from amk.lowering.symbolic import Reading
from amk.schedule_ir.memory import Stream
from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.schedule import Step, Wait

_SIGNALS = (Kind.SIGNAL_RELEASE, Kind.SIGNAL_RELAXED)
_DRAINS = (Kind.MBARRIER_WAIT, Kind.COPY_WAIT)
_REFILLS = (Kind.MBARRIER_EXPECT, Kind.COPY)
_END = -1
Nested = list["int | Nested"]


def check_ways(reading: Reading) -> None:
    """AMK609 for the first instruction that a way leaves out, or that other lanes execute."""
    ways = _Ways(reading)
    stream = reading.schedule.streams[0]
    for part, instructions in reading.found:
        if isinstance(part.item, Wait):
            ways.behind(part, instructions[0], instructions)
            polling = min(lanes_of(list(conditions(reading, ways.at(instructions[0])))), default=0)
            ways.before(part, instructions[1], instructions[:1], polling)
        elif isinstance(part.item, Step) and part.signals:
            for one in instructions[1:]:
                ways.before(part, one, instructions)
        elif isinstance(part.item, Step) and isinstance(part.item.op, GemvOp):
            _drain(ways, part, instructions, stream)
        if stream.engine == "bulk":
            _copies(ways, part, instructions, stream)
    _barriers(reading, ways)


class _Ways:
    def __init__(self, reading: Reading) -> None:
        self.reading, self.kernel = reading, reading.kernel

    def at(self, one: Instruction) -> int:
        return self.kernel.by_line[one.line]

    def behind(self, part: Part, one: Instruction, allowed: Iterable[Instruction]) -> None:
        """What synchronises next is one of these."""
        found = self.met(self.at(one), self.kernel.successors, self.reading.stops)
        if not found <= {self.at(each) for each in allowed}:
            raise self.reading.refused(part.label, one, "goes on without what comes next in the step")

    def before(self, part: Part, one: Instruction, allowed: Iterable[Instruction], lane: int | None = None) -> None:
        """What synchronised last, on the ways of the lane, was one of these."""
        found = self.met(self.at(one), lambda at: self._from(at, lane), self.reading.stops)
        if not found <= {self.at(each) for each in allowed}:
            raise self.reading.refused(part.label, one, "is reached without what comes before it in the step")

    def met(self, at: int, onward: Callable[[int], list[int]], stops: set[int]) -> set[int]:
        """The stops that are met first on the ways from an instruction; the end of the kernel is `_END`."""
        found = set[int]()
        seen, stack = set[int](), [at]
        while stack:
            following = onward(stack.pop())
            found |= {_END} if not following else set()
            for place in following:
                if place in stops:
                    found.add(place)
                elif place not in seen:
                    seen.add(place)
                    stack.append(place)
        return found

    def _from(self, at: int, lane: int | None) -> list[int]:
        """The instructions behind which the lane may execute that at a place."""
        before = self.kernel.predecessors[at]
        return before if lane is None else [p for p in before if self._may_take(p, at, lane)]

    def _may_take(self, branch: int, to: int, lane: int) -> bool:
        one, following = self.kernel.code[branch], self.kernel.successors(branch)
        if not one.opcode.startswith("bra") or not one.guard or len(set(following)) < 2:
            return True
        true = (following[0] == to) != one.guard.startswith("!")
        return lane in lanes_of(list(compared(self.reading, one.guard.lstrip("!"), true)))

    def elected(self, at: int) -> bool:
        """Is the block of the instruction executed by one lane of those that came before it?"""
        start = self.kernel.block(at)
        while len(before := self.kernel.predecessors[start]) == 1:
            branch = self.kernel.code[before[0]]
            if branch.opcode.startswith("bra") and branch.guard:
                taken = self.kernel.successors(before[0])[0] == start
                return self._chosen(branch.guard.lstrip("!"), taken != branch.guard.startswith("!"))
            start = before[0]
        return False

    def _chosen(self, register: str, true: bool) -> bool:
        """Does the predicate, being `true`, say that the lane was elected?"""
        test = self.reading.definition(register)
        if test is None or test.opcode not in ("setp.eq.s32", "setp.ne.s32") or test.operands[2] != "0":
            return False
        chosen = self.reading.definition(test.operands[1])
        if chosen is None or chosen.opcode != "selp.u32" or chosen.operands[1:3] != ("1", "0"):
            return False
        elect = self.reading.definition(chosen.operands[3])
        return elect is not None and elect.opcode == "elect.sync" and true == (test.opcode == "setp.ne.s32")


def _drain(ways: _Ways, part: Part, instructions: tuple[Instruction, ...], stream: Stream) -> None:
    """Groups of instructions that begin with the wait for a slot."""
    starts = [n for n, one in enumerate(instructions) if one.kind in _DRAINS]
    for start, end in zip(starts, [*starts[1:], len(instructions)], strict=True):
        group = instructions[start:end]
        barriers = [n for n, one in enumerate(group) if one.kind is Kind.WARP_BARRIER]
        ways.behind(part, group[0], group[: barriers[0] + 1])
        ways.before(part, group[barriers[0]], group[:1])
        for n, one in enumerate(group):
            if one.kind is Kind.PROXY_FENCE_SHARED:
                ways.before(part, one, (group[barriers[-1]],))
            elif one.kind in _REFILLS:
                fenced = one.kind is Kind.MBARRIER_EXPECT and stream.refill_fence
                ways.before(part, one, group[n - 1 : n] if fenced else group[barriers[-1] : n])


def _copies(ways: _Ways, part: Part, instructions: tuple[Instruction, ...], stream: Stream) -> None:
    block = ways.kernel.block
    for n, one in enumerate(instructions):
        if one.kind is Kind.MBARRIER_INIT:
            alone = lanes_of(list(conditions(ways.reading, ways.at(instructions[0])))) == {0}
            if not alone or block(ways.at(one)) != block(ways.at(instructions[0])):
                raise ways.reading.refused(part.label, one, "is executed by other lanes than lane 0")
        if one.kind is not Kind.MBARRIER_EXPECT:
            continue
        drained = n >= 2 and [each.kind for each in instructions[n - 2 : n]] == [
            Kind.WARP_BARRIER, Kind.PROXY_FENCE_SHARED,
        ]  # fmt: skip
        together = instructions[n - drained : n + 2]
        places = [ways.at(each) for each in together]
        if places != sorted(places) or len({block(place) for place in places}) > 1:
            raise ways.reading.refused(part.label, one, "is not executed together with the copy that it expects")
        if not ways.elected(places[0]):
            raise ways.reading.refused(part.label, one, "is not executed by one elected lane")


def _barriers(reading: Reading, ways: _Ways) -> None:
    whole = {r.name for r in reading.schedule.roles if r.first == 0 and r.count == reading.schedule.launch.warps}
    found = [(part, ones[0]) for part, ones in reading.found if _of_all(part.item, whole)]
    places, after = [ways.at(one) for _, one in found], dict[int, set[int]]()
    numbers = iter(range(len(found)))
    end = {_END}  # a worker runs one program; the text has a way from each into those behind it
    for nodes in reversed([_numbered(nodes, whole, numbers) for nodes in printed(reading.schedule)]):
        end = end | _follow(nodes, end, after)
    for number, (part, one) in enumerate(found):
        allowed = {places[n] if n != _END else _END for n in after[number]}
        if not ways.met(places[number], reading.kernel.successors, set(places)) <= allowed:
            raise reading.refused(part.label, one, "is not followed by the next barrier of all warps on every way")


def _of_all(item: object, whole: set[str]) -> bool:
    return isinstance(item, Step) and isinstance(item.op, BarrierOp) and item.op.role in whole


def _numbered(nodes: Iterable[Printed], whole: set[str], numbers: Iterator[int]) -> Nested:
    """The barriers by their numbers, loops as lists."""
    found: Nested = []
    for node in nodes:
        if isinstance(node, PrintedLoop | PartLoop):
            found.append(_numbered(node.body, whole, numbers))
        elif _of_all(node.step, whole):
            found.append(next(numbers))
    return found


def _follow(nodes: Nested, end: set[int], after: dict[int, set[int]]) -> set[int]:
    """Fills in what may come next after every barrier, `end` being what comes after all; what comes first."""
    for node in reversed(nodes):
        if isinstance(node, int):
            after[node], end = end, {node}
        else:
            end = _follow(node, end | _first(node), after) if _first(node) else end
    return end


def _first(nodes: Nested) -> set[int]:
    for node in nodes:
        if found := {node} if isinstance(node, int) else _first(node):
            return found
    return set()
