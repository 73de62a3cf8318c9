"""Where a warp's lanes must meet between two of its steps.

In a schedule a warp runs one step after the other. On the device that is true of every lane by itself: what another
lane of the warp stored is only there behind a barrier of the warp or of the block (M1). Plans mostly have one: a
barrier step, a wait, or a signal. Where there is none and both steps use the same memory, the lowering prints a barrier
of the warp. Else a schedule could be SAFE and its kernel have a race. A `wait` or `signal` step with an empty list
prints nothing, so lanes do not meet there.

Which lane touches what is the op's business, so any two uses of a buffer that something writes count, also two reads.

Flag words order whole steps, but lanes store and find them one by one. So lanes also meet between a use of memory and a
step with flag words, and between such a step and the next use: what a warp has read is over before it stores words, and
none of its lanes goes on to write before all have found theirs.
"""

from __future__ import annotations

from amk.schedule_ir.ops import BarrierOp, Op
from amk.schedule_ir.schedule import Loop, Node, Schedule, Step


def lane_barriers(schedule: Schedule) -> list[bool]:
    """For every step of all programs, in the order of the text: does a barrier of the warp stand before its op?"""
    found: list[bool] = []
    memory = _Memory(schedule)
    for program in schedule.programs:
        walk = _Walk(memory)
        walk.body(program.body)
        found += [walk.meets[n] for n in range(len(walk.meets))]
    return found


def met_before(schedule: Schedule) -> list[bool]:
    """For every step of all programs, in the order of the text: have all warps of the worker met at one barrier since
    one of them used bytes of the shared arrays that the step names? Then no warp still needs what was there, whatever
    words of other workers have arrived. A barrier step of some warps does not count, though its number may be of all:
    the others may come to theirs behind this step.
    """
    memory, walk = _Memory(schedule), []
    shared = {b.name for b in schedule.buffers if b.space == "shared"}
    for program in schedule.programs:
        found: dict[int, bool] = {}
        _blocks(program.body, 0, set(), found, memory, shared, schedule.launch.warps)
        walk += [found[n] for n in range(len(found))]
    return walk


def _blocks(
    body: tuple[Node, ...], number: int, used: set[str], fresh: dict[int, bool], memory: _Memory, shared: set[str],
    warps: int,
) -> int:  # fmt: skip
    """The number of the first step behind; used: since the barrier. A loop is walked twice, as in `_Walk`."""
    for node in body:
        if isinstance(node, Loop):
            _blocks(node.body, number, used, fresh, memory, shared, warps)
            number = _blocks(node.body, number, used, fresh, memory, shared, warps)
            continue
        if isinstance(node.op, BarrierOp) and node.op.agents == warps == len(memory.warps[node.op.role]):
            used.clear()
        own = memory.named(node.op) & shared
        fresh[number] = fresh.get(number, True) and used.isdisjoint(memory.touched(own))
        used |= own
        number += 1
    return number


class _Memory:
    """What a step names, and which of it has bytes in common."""

    def __init__(self, schedule: Schedule) -> None:
        self.warps = {r.name: range(r.first, r.first + r.count) for r in schedule.roles}
        written = [b for b in schedule.buffers if b.role != "constant"]
        places = {b.name: (b.offset, b.offset + b.bytes) for b in written if b.offset is not None}
        self.words = {b.name for b in written if b.tagged}
        self.meeting = {b.name: {b.name} for b in written}
        for name, (lo, hi) in places.items():
            self.meeting[name] |= {other for other, (start, end) in places.items() if lo < end and start < hi}

    def named(self, op: Op) -> set[str]:
        return {value for _, value in op if isinstance(value, str) and value in self.meeting}

    def uses(self, op: Op) -> bool:
        """Does it touch memory? Some name buffers to fetch them ahead only."""
        return type(op).accesses is not Op.accesses

    def touched(self, named: set[str]) -> set[str]:
        """All buffers that share bytes with one of these."""
        return {other for name in named for other in self.meeting[name]}


class _Walk:
    """Steps of one program in order; since[w]: buffers that warp w has used since its lanes met.

    uses[number]: buffers that the step names, and all that share bytes with them.
    """

    def __init__(self, memory: _Memory) -> None:
        self.memory = memory
        self.meets: dict[int, bool] = {}
        self.uses: dict[int, tuple[set[str], set[str]]] = {}
        self.since: dict[int, set[str]] = {w: set() for warps in memory.warps.values() for w in warps}

    def body(self, body: tuple[Node, ...], number: int = 0) -> int:
        """The number of the first step behind; a loop is walked twice, so that its end meets its beginning."""
        for node in body:
            if isinstance(node, Loop):
                self.body(node.body, number)
                number = self.body(node.body, number)
            else:
                self.step(node, number)
                number += 1
        return number

    def step(self, step: Step, number: int) -> None:
        warps = self.memory.warps[step.op.role]
        if step.waits or isinstance(step.op, BarrierOp):
            self._meet(warps)
        named, touched = self._uses(step, number)
        meets = any(not touched.isdisjoint(self.since[w]) or self._words_between(named, w) for w in warps)
        self.meets[number] = self.meets.get(number, False) or meets
        if step.signals or meets:
            self._meet(warps)
        for w in warps if not step.signals else ():
            self.since[w] |= named

    def _words_between(self, named: set[str], warp: int) -> bool:
        """Are there flag words among what the warp has used since its lanes met, or is about to use, and more?"""
        since, words = self.since[warp], self.memory.words
        return bool(named and since) and not (words.isdisjoint(since) and words.isdisjoint(named))

    def _uses(self, step: Step, number: int) -> tuple[set[str], set[str]]:
        if number not in self.uses:
            named = self.memory.named(step.op) if self.memory.uses(step.op) else set()
            self.uses[number] = named, self.memory.touched(named)
        return self.uses[number]

    def _meet(self, warps: range) -> None:
        for w in warps:
            self.since[w] = set()
