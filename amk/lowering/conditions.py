"""On what conditions an instruction of the compiled kernel is executed, and by which lanes.

Property: every comparison that decides whether the instruction runs, back to the synchronising instruction before it or
    to where several ways meet; comparisons of the lane with constants are decided for each of the 32 lanes.
Cost: linear in the instructions looked at.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from amk.lowering.affine import Form, added
from amk.lowering.symbolic import Reading

_COMPARES = re.compile(r"setp\.(eq|ne|lt|le|gt|ge|lo|ls|hi|hs)\.([bsu])32$")
_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge,
}  # fmt: skip
_NEGATED = {
    "eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "lo": "hs", "hs": "lo",
    "ls": "hi", "hi": "ls",
}  # fmt: skip
LANES = frozenset(range(32))


@dataclass(frozen=True)
class Condition:
    """`relation` of two forms in the schedule's words is `true`."""

    left: Form
    right: Form
    relation: str
    unsigned: bool
    true: bool

    @property
    def of_lane(self) -> bool:
        """Nothing but the lane decides."""
        return (self.left.keys() | self.right.keys()) <= {"lane", ""}

    @property
    def of_thread(self) -> bool:
        """Nothing but the thread decides."""
        return (self.left.keys() | self.right.keys()) <= {"lane", "warp", "%tid.x", ""}

    def lanes(self) -> frozenset[int]:
        """The lanes for which it holds, of a condition that nothing else decides."""
        return frozenset(lane for lane in LANES if self.holds(lane))

    def holds(self, thread: int) -> bool:
        """Of a condition that nothing but the thread decides."""
        return _RELATIONS[self.relation](self._at(self.left, thread), self._at(self.right, thread)) == self.true

    def not_zero(self) -> Form | None:
        """What is not zero where the condition holds; None of one that says something else."""
        unequal = {"eq": False, "ne": True}.get(self.relation) == self.true
        return added(self.left, self.right, -1) if unequal and self.relation in ("eq", "ne") else None

    def at_least(self) -> Form | None:
        """What is 0 or more just where the condition holds, as long as nothing wraps; None of one for equality."""
        relation = self.relation if self.true else _NEGATED[self.relation]
        difference = added(self.left, self.right, -1)
        match relation:
            case "ge" | "hs":
                return difference
            case "gt" | "hi":
                return added(difference, {"": 1}, -1)
            case "le" | "ls":
                return added({}, difference, -1)
            case "lt" | "lo":
                return added(added({}, difference, -1), {"": 1}, -1)
        return None

    def _at(self, form: Form, thread: int) -> int:
        of_thread = {"": 1, "lane": thread % 32, "warp": thread // 32, "%tid.x": thread}
        value = sum(factor * of_thread[leaf] for leaf, factor in form.items()) % (1 << 32)
        return value if self.unsigned or value < 1 << 31 else value - (1 << 32)


def lanes_of(conditions: list[Condition]) -> frozenset[int]:
    """The lanes for which all conditions of the lane hold."""
    found = LANES
    for one in conditions:
        found &= one.lanes() if one.of_lane else LANES
    return found


def conditions(reading: Reading, at: int) -> Iterator[Condition]:
    """The conditions of the instruction at a place."""
    while len(before := reading.kernel.predecessors[at]) == 1 and before[0] not in reading.stops:
        one = reading.kernel.code[before[0]]
        if one.guard and one.opcode.startswith("bra"):
            taken = reading.kernel.successors(before[0])[0] == at
            yield from compared(reading, one.guard.lstrip("!"), taken != one.guard.startswith("!"))
        at = before[0]


def compared(reading: Reading, register: str, true: bool) -> Iterator[Condition]:
    """Comparisons behind a predicate that is `true`; what is none stands for itself."""
    test = reading.definition(register)
    if test is not None and test.opcode == ("and.pred" if true else "or.pred"):
        for operand in test.operands[1:]:
            yield from compared(reading, operand, true)
    elif test is not None and (kind := _COMPARES.match(test.opcode)):
        left, right = (reading.named(reading.values.operand(test, n)) for n in (1, 2))
        yield Condition(left, right, kind[1], kind[2] == "u", true)
    elif test is not None and test.opcode == "not.pred":
        yield from compared(reading, test.operands[1], not true)
    else:
        yield Condition({register: 1}, {}, "ne", False, true)
