"""The groups of a ring of 16-byte copies in the compiled kernel: a wait for all but n groups finds its chunk's closed.

Property, on every path of the kernel:
    closed      a group is committed between a copy and the next wait for groups
    counted     between two waits a group is committed; where a step fills the ring first, one for each slot besides. So
                the chunk that a wait is for is never among the slots - 1 youngest groups, which may be under way
Where the compiler kept the loop that fills the ring, one pass of it is asked for one group.
Algorithm: backwards from each wait to the wait before, or the start of the kernel, with the number of groups passed.
Cost: the instructions between two waits, times the slots.
"""

from __future__ import annotations

from collections.abc import Collection

from amk.lowering.readback import Instruction, Kind
from amk.lowering.skeleton import Part
from amk.lowering.symbolic import Reading
from amk.schedule_ir.memory import Stream


def check_groups(reading: Reading, stream: Stream) -> None:
    """Raise AMK609 for the first copy or wait that is not as above."""
    groups = _Groups(reading)
    for part, instructions in reading.by_part:
        for one in instructions:
            if one.kind is Kind.COPY and not groups.closed(one):
                raise reading.refused(part.label, one, "waits for the copy while its group is open")
        if not any(one.kind is Kind.COPY_WAIT for one in instructions):
            continue
        first = next(n for n, one in enumerate(instructions) if one.kind is Kind.COPY_WAIT)
        for n, one in enumerate(instructions):
            filling = instructions[:first] if n == first and not stream.run_ahead else ()
            if one.kind is Kind.COPY_WAIT and not groups.counted(part, one, filling, stream.slots):
                raise reading.refused(part.label, one, "waits for fewer groups than there were chunks")


class _Groups:
    def __init__(self, reading: Reading) -> None:
        self.kernel, self.stops = reading.kernel, reading.stops
        self.commits, self.waits = (
            {self.kernel.by_line[one.line] for _, found in reading.by_part for one in found if one.kind is kind}
            for kind in (Kind.COPY_COMMIT, Kind.COPY_WAIT)
        )

    def closed(self, copy: Instruction) -> bool:
        start = self.kernel.by_line[copy.line]
        seen, stack = {start}, [start]
        while stack:
            for at in self.kernel.successors(stack.pop()):
                if at in self.waits:
                    return False
                if at not in self.commits and at not in seen:
                    seen.add(at)
                    stack.append(at)
        return True

    def counted(self, part: Part, wait: Instruction, filling: Collection[Instruction], slots: int) -> bool:
        """filling: the copies and groups by which the step fills the ring before its first wait."""
        filled = {self.kernel.by_line[one.line] for one in filling} & self.commits
        start = (self.kernel.by_line[wait.line], 0, 0)
        least = 1 if filled and self._in_loop(filled, start[0]) else slots
        seen, stack = {start}, [start]
        while stack:
            at, full, others = stack.pop()
            before = self.kernel.predecessors[at]
            ends = [place for place in before if place in self.waits]
            if ((ends or not before) and 0 < full < least) or (ends and not others):
                return False
            for place in (place for place in before if place not in ends):
                more = (
                    place,
                    min(full + (place in filled), least),
                    min(others + (place in self.commits - filled), 1),
                )
                if more not in seen:
                    seen.add(more)
                    stack.append(more)
        return True

    def _in_loop(self, filled: set[int], wait: int) -> bool:
        """Does a branch before the wait lead back over one of them, within the text of the step?"""
        before = max((at for at in self.stops if at < min(filled)), default=-1)
        back = ((self.kernel.successors(at)[0], at) for at in range(min(filled), wait) if self._branches(at))
        return any(before < target <= place <= at for target, at in back for place in filled)

    def _branches(self, at: int) -> bool:
        return self.kernel.code[at].opcode.startswith("bra")
