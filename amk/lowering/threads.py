"""That a step's signals and polls are executed in the warps of its role, all of them and no others.

Property: a signal or a poll is reached by threads of one lane, in just those warps that have the step's role.
Algorithm: from the start of the kernel with all threads of a block, along every branch with those that may take it:
    comparisons that nothing but the thread decides are decided for each thread, others for none.
Not seen: what two such branches one behind the other exclude together where ways have met between them.
Cost: the branches, times the threads of a block.
"""

from __future__ import annotations

from amk.lowering.conditions import Condition, compared
from amk.lowering.readback import Kind
from amk.lowering.symbolic import Reading
from amk.schedule_ir.schedule import Step

_BY_ONE_LANE = (Kind.SIGNAL_RELEASE, Kind.SIGNAL_RELAXED, Kind.POLL_ACQUIRE, Kind.POLL_RELAXED)


def check_threads(reading: Reading) -> None:
    """AMK609 for the first signal or poll that other warps execute, or not all of the role's."""
    reached = _reached(reading)
    roles = {role.name: role for role in reading.schedule.roles}
    name = ""
    for part, instructions in reversed(reading.found):
        name = part.item.op.role if isinstance(part.item, Step) else name  # a step's waits stand before it
        for one in instructions:
            if one.kind not in _BY_ONE_LANE:
                continue
            threads = reached[reading.kernel.block(reading.kernel.by_line[one.line])]
            wanted = set(range(roles[name].first, roles[name].first + roles[name].count))
            if {thread // 32 for thread in threads} != wanted or len({thread % 32 for thread in threads}) != 1:
                raise reading.refused(part.label, one, "is not executed by one lane of every warp of the role")


def _reached(reading: Reading) -> dict[int, frozenset[int]]:
    """For every block the threads that may come to it."""
    kernel, everybody = reading.kernel, frozenset(range(32 * reading.schedule.launch.warps))
    ends = dict(zip(kernel.blocks, [*kernel.blocks[1:], len(kernel.code)], strict=True))
    found = {block: frozenset[int]() for block in kernel.blocks} | {0: everybody}
    decided: dict[tuple[str, bool], frozenset[int]] = {}
    stack = [0]
    while stack:
        block = stack.pop()
        last = kernel.code[ends[block] - 1]
        following = kernel.successors(last.at)
        for to in following:
            threads = found[block]
            if last.opcode.startswith("bra") and last.guard and len(set(following)) == 2:
                key = last.guard.lstrip("!"), (to == following[0]) != last.guard.startswith("!")
                if key not in decided:
                    decided[key] = _that_take(list(compared(reading, *key)), everybody)
                threads &= decided[key]
            if not threads <= found[to]:
                found[to] |= threads
                stack.append(to)
    return found


def _that_take(conditions: list[Condition], threads: frozenset[int]) -> frozenset[int]:
    for one in conditions:
        if one.of_thread:
            threads = frozenset(thread for thread in threads if one.holds(thread))
    return threads
