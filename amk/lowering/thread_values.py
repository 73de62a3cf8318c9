"""Which branches of a compiled kernel nothing but the worker and the thread decide, and how.

Property: `taken[branch]` are the agents that may take a branch, `passed[branch]` those that may go on behind it, and
    `reached[block]` those that may come to a block. What an agent does in a run, it may do here.
Algorithm: sparse conditional constant propagation (Wegman and Zadeck, 1991), for all agents at once. An operand is a
    constant for an agent if all definitions that reach it, of those that the agent may come to, leave that one, and no
    way leaves out an only one; of 64-bit registers it is their lower half. Loads and special registers other than
    %tid.x and %ctaid.x hold none.
Cost: the instructions, times the few passes over them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.lowering.definite_assignment import Dominators
from amk.lowering.ptx_code import Code, Kernel

Column = NDArray[np.int64]
"""One number for each agent: an unsigned word, `_UNSET` or `_OPEN`."""
_UNSET, _OPEN = -1, -2
_ELECTS = "elect.sync"
"""It chooses the same lane of a warp each time (PTX ISA 9.0, 9.7.13.16)."""
_WORD = 0xFFFFFFFF
_COMPARES = re.compile(r"setp\.(eq|ne|lt|le|gt|ge|lo|ls|hi|hs)\.([bsu])32")
_RELATIONS: dict[str, Callable[[Column, Column], Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_CONVERTED = [(f"{a}{m}", f"{b}{n}") for a in "us" for b in "us" for m, n in ((64, 32), (32, 64), (64, 64), (32, 32))]
_COMPUTES: dict[str, Callable[..., Any]] = {
    "mov.u32": lambda a: a, "mov.s32": lambda a: a, "mov.b32": lambda a: a, "mov.pred": lambda a: a != 0,
    "add.s32": np.add, "add.u32": np.add, "sub.s32": np.subtract, "sub.u32": np.subtract,
    "mul.lo.s32": np.multiply, "mul.lo.u32": np.multiply, "mad.lo.s32": lambda a, b, c: a * b + c,
    "and.b32": np.bitwise_and, "or.b32": np.bitwise_or, "xor.b32": np.bitwise_xor, "not.b32": np.invert,
    "shl.b32": lambda a, b: np.where(b < 32, a << np.minimum(b, 31), 0),
    "shr.u32": lambda a, b: np.where(b < 32, a >> np.minimum(b, 31), 0),
    "shr.s32": lambda a, b: _signed(a) >> np.minimum(b, 31),
    **dict.fromkeys(("mov.u64", "mov.s64", "mov.b64", *(f"cvt.{a}.{b}" for a, b in _CONVERTED)), lambda a: a),
    "add.s64": np.add, "sub.s64": np.subtract, "mul.wide.s32": np.multiply, "mul.wide.u32": np.multiply,
    "xor.pred": np.bitwise_xor, "not.pred": lambda a: a == 0,
}  # fmt: skip


class ThreadValues:
    """Of one kernel. agents: (worker, thread, whether `elect` chooses it) of each. A set of agents is an integer with
    bit n for agent n."""

    def __init__(self, kernel: Kernel, agents: list[tuple[int, int, bool]]) -> None:
        self.kernel, self.everybody = kernel, (1 << len(agents)) - 1
        self._unset = np.full(len(agents), _UNSET, np.int64)
        self._open = np.full(len(agents), _OPEN, np.int64)
        self._elected = np.array([elected for *_, elected in agents], np.int64)
        self._constant = {
            "%ctaid.x": np.array([worker for worker, *_ in agents], np.int64),
            "%tid.x": np.array([thread for _, thread, _ in agents], np.int64),
        }
        self._ends = dict(zip(kernel.blocks, [*kernel.blocks[1:], len(kernel.code)], strict=True))
        self._here = {0: np.ones(len(agents), np.bool_)}
        self._ways = Dominators(kernel)
        self._decides = self._deciding()
        self._within = {
            block: [one for one in kernel.code[block:end] if one.at in self._decides]
            for block, end in self._ends.items()
        }
        self.takers: dict[int, int] = {}
        self.passers: dict[int, int] = {}
        self._sweep()
        self.reached = {block: _bits(here) for block, here in self._here.items()}

    def _deciding(self) -> set[int]:
        """The instructions that a predicate of a branch is computed by, without those that leave no constant."""
        definitions, code = self.kernel.definitions, self.kernel.code
        found, stack = set[int](), [one.guard.lstrip("!") for one in code if one.opcode.startswith("bra") and one.guard]
        while stack:
            for place in definitions.get(stack.pop(), ()):
                if place not in found and (
                    code[place].opcode in (*_CHOOSES, _ELECTS) or _computing(code[place].opcode)
                ):
                    found.add(place)
                    stack += [*code[place].sources, code[place].guard.lstrip("!")]
        while open_ := {place for place in found if not self._may_be_known(code[place], found)}:
            found -= open_
        self._values = dict.fromkeys(found, self._unset)
        return found

    def _may_be_known(self, one: Code, deciding: set[int]) -> bool:
        places = [self.kernel.definitions.get(source) for source in one.sources]
        known = [not each or not deciding.isdisjoint(each) for each in places]
        return any(known) if one.opcode in _CHOOSES else all(known)

    def _sweep(self) -> None:
        order = self._ways.order
        changed = True
        while changed:
            changed = False
            for block in order:
                if block in self._here:
                    changed |= self._block(block)

    def _block(self, block: int) -> bool:
        """Whether anything is new behind it."""
        here, end = self._here[block], self._ends[block]
        new = False
        for one in self._within[block]:
            if self._values[one.at] is not self._open:
                new |= self._joined(one.at, here, self._result(one))
        last = self.kernel.code[end - 1]
        following = self.kernel.successors(last.at)
        ways = [here] * len(following)
        if last.opcode.startswith("bra") and last.guard:
            holds = self._column(last.guard.lstrip("!"), last.at)
            true = (holds == 0) if last.guard.startswith("!") else (holds == 1)
            ways = [here & (true | (holds < 0)), here & ~true][: len(following)]
            self.takers[last.at], self.passers[last.at] = _bits(ways[0]), _bits(ways[-1])
        for to, way in zip(following, ways, strict=True):
            before = self._here.get(to)
            after = way if before is None else before | way
            if after.any() and (before is None or not np.array_equal(after, before)):
                self._here[to], new = after, True
        return new

    def _joined(self, place: int, here: NDArray[np.bool_], value: Column) -> bool:
        held = self._values[place]
        after = value if value is self._open else _joined(held, np.where(here, value, _UNSET))
        self._values[place] = self._open if (after == _OPEN).all() else after
        return not np.array_equal(after, held)

    def _column(self, operand: str, at: int) -> Column:
        """What an operand holds where it is read."""
        if operand in self.kernel.definitions:
            places = self.kernel.definitions[operand]
            if self._decides.isdisjoint(places) or (len(places) == 1 and not self._ways.passes(places[0], at)):
                return self._open
            held = [self._values.get(place, self._open) for place in self.kernel.reaching(operand, at)]
            return self._open if any(each is self._open for each in held) else reduce(_joined, held, self._unset)
        if operand not in self._constant:
            try:
                self._constant[operand] = np.full_like(self._unset, int(operand, 0) & _WORD)
            except ValueError:
                self._constant[operand] = self._open
        return self._constant[operand]

    def _result(self, one: Code) -> Column:
        """What it leaves; of a register that it may leave as it was, nothing is known."""
        if one.opcode == _ELECTS:
            return self._elected
        compute = _CHOOSES.get(one.opcode) or _computing(one.opcode)
        columns = [self._column(source, one.at) for source in one.sources] if compute else []
        closed = [column is not self._open for column in columns]
        if compute is None or not (any if one.opcode in _CHOOSES else all)(closed):
            return self._open
        found = compute(*columns)
        if not one.guard:
            return found
        does = self._column(one.guard.lstrip("!"), one.at) == (not one.guard.startswith("!"))
        return np.where(does, found, _OPEN)


def _joined(left: Column, right: Column) -> Column:
    """What is known where either may be."""
    return np.where(left == _UNSET, right, np.where((right == _UNSET) | (left == right), left, _OPEN))


def _signed(column: Column) -> Column:
    return np.where(column > _WORD >> 1, column - _WORD - 1, column)


@cache
def _computing(opcode: str) -> Callable[..., Column] | None:
    """What the instruction does with words; nothing of one that is not known."""
    compute = _COMPUTES.get(opcode)
    if match := _COMPARES.fullmatch(opcode):
        relation, unsigned = _RELATIONS[match[1]], match[2] == "u"
        compute = lambda a, b: relation(a, b) if unsigned else relation(_signed(a), _signed(b))  # noqa: E731
    if compute is None:
        return None

    def column_of(*columns: Column) -> Column:
        least = np.minimum.reduce(columns)
        return np.where(least >= 0, np.asarray(compute(*columns), np.int64) & _WORD, least)

    return column_of


def _both(left: Column, right: Column) -> Column:
    return np.where((left == 0) | (right == 0), 0, np.where((left == 1) & (right == 1), 1, np.minimum(left, right)))


def _either(left: Column, right: Column) -> Column:
    return np.where((left == 1) | (right == 1), 1, np.where((left == 0) & (right == 0), 0, np.minimum(left, right)))


def _selected(yes: Column, no: Column, which: Column) -> Column:
    return np.where(which == 1, yes, np.where(which == 0, no, np.where(yes == no, yes, which)))


_CHOOSES: dict[str, Callable[..., Column]] = {
    "and.pred": _both, "or.pred": _either, "selp.b32": _selected, "selp.u32": _selected, "selp.s32": _selected,
}  # fmt: skip


def _bits(here: NDArray[np.bool_]) -> int:
    return int.from_bytes(np.packbits(here, bitorder="little").tobytes(), "little")
