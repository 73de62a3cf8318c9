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

from bisect import bisect_left
from collections.abc import Callable, Iterable

from amk.lowering.ptx_code import Kernel


class Gaps:
    """Of one kernel. stops: indices of its synchronising instructions."""

    def __init__(self, kernel: Kernel, stops: Iterable[int]) -> None:
        self._kernel, self._stops = kernel, sorted(stops)
        self._number = {at: n for n, at in enumerate(self._stops)}

    def around(self, at: int) -> set[int]:
        """The gaps in which the instruction, which is no stop, is executed."""
        in_text = bisect_left(self._stops, at)
        behind = self._met(at, self._kernel.successors, len(self._stops))
        executed = behind & {n + 1 for n in self._met(at, self._kernel.predecessors.__getitem__, -1)}
        return executed if executed and in_text not in executed else {in_text}

    def _met(self, at: int, onward: Callable[[int], list[int]], end: int) -> set[int]:
        """Numbers of the stops that are met first on the ways from an instruction; `end` where a way has none."""
        found: set[int] = set()
        seen, stack = set[int](), [at]
        while stack:
            here = stack.pop()
            if here in seen:
                continue
            seen.add(here)
            if here in self._number:
                found.add(self._number[here])
                continue
            following = onward(here)
            if not following:
                found.add(end)
            stack += following
        return found
