"""Between which synchronising instructions another instruction is executed.

The compiler may put a block elsewhere in the text than where it is executed, so the text alone does not say it.

Property: gap n is before the nth of `stops` and behind the one before it. An instruction is in the gap where the text
    has it if it can be executed there, else in the gaps where it can. It can where some path that meets no other stop
    comes from the stop before the gap, and some such path goes to the stop behind it; the start of the kernel is the
    stop before the first gap, an exit the one behind the last. Where no gap is so (the first instructions of a program
    that is not the first, say), the text decides.
Cost: the blocks between an instruction and the stops around it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from amk.lowering.ptx_code import Kernel


class Gaps:
    """Of one kernel. stops: indices of its synchronising instructions."""

    def __init__(self, kernel: Kernel, stops: Iterable[int]) -> None:
        self._kernel, self._stops = kernel, sorted(stops)

    def around(self, at: int) -> set[int]:
        """The gaps in which the instruction, which is no stop, is executed."""
        in_text = bisect_left(self._stops, at)
        executed = self._behind(at) & {n + 1 for n in self._before(at)}
        return executed if executed and in_text not in executed else {in_text}

    def _behind(self, at: int) -> set[int]:
        """Numbers of the stops that are met first on the ways from an instruction; their count where a way has none."""
        found, seen, stack = set[int](), set[int](), [at]
        while stack:
            here = stack.pop()
            if here in seen:
                continue
            seen.add(here)
            last, number = self._kernel.last(here), bisect_left(self._stops, here)
            if number < len(self._stops) and self._stops[number] <= last:
                found.add(number)
            elif following := self._kernel.successors(last):
                stack += following
            else:
                found.add(len(self._stops))
        return found

    def _before(self, at: int) -> set[int]:
        """Numbers of the stops that are met last on the ways to an instruction; -1 where a way has none."""
        found, seen, stack = set[int](), set[int](), [at]
        while stack:
            here = stack.pop()
            if here in seen:
                continue
            seen.add(here)
            first, number = self._kernel.block(here), bisect_right(self._stops, here) - 1
            if number >= 0 and self._stops[number] >= first:
                found.add(number)
            elif earlier := self._kernel.predecessors[first]:
                stack += earlier
            else:
                found.add(-1)
        return found
