"""Loops over parts of a product (`printed`): each runs as often as it stands for parts.

Property: from behind the last synchronising instruction of the loop, one branch leads back before the first one and
    behind what synchronises before the loop. It is taken in all passes but the last, as a variable says that has a
    constant start and step.
What the number of the part is used for, addresses, is not read here.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import groupby

from amk.lowering.affine import constant
from amk.lowering.ptx_code import Code
from amk.lowering.symbolic import Reading

_COMPARED = {
    f"setp.{name}.{kind}": test
    for name, test in (("lt", operator.lt), ("le", operator.le), ("ne", operator.ne), ("gt", operator.gt),
                       ("ge", operator.ge), ("eq", operator.eq))
    for kind in ("s32", "u32", "s64", "u64")
}  # fmt: skip
_FURTHEST = 1 << 31
"""Numbers at which signed and unsigned comparisons of 32 bits, and wrapped ones, still agree."""


def check_part_loops(reading: Reading) -> None:
    """Raise AMK609 for a loop over parts that is not there or has another number of passes."""
    before = 0  # behind the last synchronising instruction so far
    for at, (loop, group) in enumerate(
        groups := [(loop, list(group)) for loop, group in groupby(reading.by_part, lambda entry: entry[0].part_loop)]
    ):
        places = [reading.kernel.by_line[one.line] for _, found in group for one in found]
        if loop is not None and places:
            behind = _first(reading, groups[at + 1 :])
            back = [
                one for one in _branches(reading, places[-1], behind) if before <= _target(reading, one) <= places[0]
            ]
            if len(back) != 1 or passes(reading, back[0], loop.count) != loop.count:
                first = reading.kernel.code[places[0]]
                raise reading.refused(group[0][0].label, first, f"is not in a loop of {loop.count} passes")
        before = max([before, *(place + 1 for place in places)])


def _first(reading: Reading, groups: list) -> int:  # type: ignore[type-arg]
    """The first synchronising instruction of the groups, or the end of the kernel."""
    lines = (one.line for _, group in groups for _, found in group for one in found)
    first = next(lines, None)
    return len(reading.kernel.code) if first is None else reading.kernel.by_line[first]


def _branches(reading: Reading, last: int, behind: int) -> Iterator[Code]:
    return (one for one in reading.kernel.code[last + 1 : behind] if one.opcode.split(".")[0] == "bra")


def _target(reading: Reading, branch: Code) -> int:
    return reading.kernel.successors(branch.at)[0]


def passes(reading: Reading, branch: Code, most: int) -> int | None:
    """How often the loop that the branch closes runs, up to one more than `most`; None where that is not seen."""
    test = reading.definition(branch.guard.lstrip("!")) if branch.guard else None
    compared = _COMPARED.get(test.opcode) if test is not None else None
    if test is None or compared is None:
        return None
    end, variable = constant(reading.values.operand(test, 2)), reading.values.operand(test, 1)
    leaves = variable.keys() - {""}
    if end is None or len(leaves) != 1 or variable[leaf := leaves.pop()] != 1:
        return None
    found = reading.values.recurrence(leaf)
    start = None if found is None else constant(found[0])
    if found is None or start is None:
        return None
    for done in range(1, most + 2):
        value = start + (done - 1) * found[1] + variable.get("", 0)
        if not 0 <= value < _FURTHEST or not 0 <= end < _FURTHEST:
            return None
        if compared(value, end) == branch.guard.startswith("!"):
            return done
    return most + 1
