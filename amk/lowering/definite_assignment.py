"""No register of the compiled kernel is read before it is written, as far as synchronisation goes.

Property: every register that an instruction reads is written by some instruction. Where that is the only one, no guard
    skips it that does not skip the reader; it does not stand behind the reader in its block; and every way from the
    start of the kernel to the reader comes by it if either of them synchronises. So a poll, a tagged load or an address
    that was moved behind its use, or left out, is seen.
Not seen: the same between two plain instructions of different blocks, or of several writers. Compilers leave such
    registers where two branches decide alike.
Algorithm: immediate dominators of blocks by iteration in reverse postorder (Cooper, Harvey, Kennedy, 2001).
Cost: linear in the text, times the few iterations.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from functools import cached_property

from amk.lowering import refusal
from amk.lowering.ptx_code import Code, Kernel
from amk.report.diagnostic import shown

_REGISTER = re.compile(r"(?<![\w$%#.])(?:%(?:p|rs?|rd|rq|fd?|h+|b)\d+|\w+#\d+)(?![\w$#.])")


def check_written(kernel: Kernel, stops: Container[int]) -> None:
    """AMK609 for the first instruction that reads what nothing has written. stops: those that synchronise."""
    ways = Dominators(kernel)
    for one in kernel.code:
        for register in read_by(one):
            writers = kernel.definitions.get(register, [])
            if not writers or (len(writers) == 1 and not _does(kernel.code[writers[0]], one, ways, stops)):
                instruction = shown(f"line {one.line}: {one.opcode} {', '.join(one.operands)}")
                raise refusal.unsafe("AMK609", f"the machine code reads {register} before it is written", instruction)


def _does(writer: Code, reader: Code, ways: Dominators, stops: Container[int]) -> bool:
    """Has the only writer of a register written it for the reader?"""
    if writer.guard and writer.guard != reader.guard:
        return False
    if writer.at in stops or reader.at in stops:
        return ways.passes(writer.at, reader.at)
    return not ways.behind(writer.at, reader.at)


def read_by(one: Code) -> Iterator[str]:
    """The registers that an instruction reads, also those of its guard and of addresses."""
    for words in (one.guard.lstrip("!"), *one.sources):
        yield from _REGISTER.findall(words)


class Dominators:
    """Of one kernel, between its blocks."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def passes(self, earlier: int, at: int) -> bool:
        """Does every way from the start to the instruction at a place come by an earlier one?"""
        first, block = self._kernel.block(earlier), self._kernel.block(at)
        if first == block:
            return earlier < at
        while (before := self._last.get(block, block)) != block:
            if before == first:
                return True
            block = before
        return block not in self._last  # no way from the start leads there

    def behind(self, later: int, at: int) -> bool:
        """Does it stand in the block of the instruction at a place, and not before that?"""
        return later >= at and self._kernel.block(later) == self._kernel.block(at)

    @cached_property
    def _last(self) -> dict[int, int]:
        """For every block that is reached: the last other one that every way to it comes by; itself for the first."""
        order, kernel = self.order, self._kernel
        number = {block: n for n, block in enumerate(order)}
        found, changed = {order[0]: order[0]}, True
        while changed:
            changed = False
            for block in order[1:]:
                known = [p for last in kernel.predecessors[block] if (p := kernel.block(last)) in found]
                common = known[0]
                for other in known[1:]:
                    while common != other:
                        if number[common] > number[other]:
                            common = found[common]
                        else:
                            other = found[other]
                changed |= found.get(block) != common
                found[block] = common
        return found

    @cached_property
    def order(self) -> list[int]:
        """The blocks that are reached, in reverse postorder."""
        kernel, done, seen = self._kernel, list[int](), {0}
        ends = dict(zip(kernel.blocks, [*kernel.blocks[1:], len(kernel.code)], strict=True))
        stack = [(0, iter(kernel.successors(ends[0] - 1)))]
        while stack:
            block, following = stack[-1]
            new = next((to for to in following if to not in seen), None)
            if new is None:
                done.append(block)
                stack.pop()
            else:
                seen.add(new)
                stack.append((new, iter(kernel.successors(ends[new] - 1))))
        return done[::-1]
