"""That a wait goes on only when what it waits for is there, or when the watchdog has tripped.

Property: from the poll of a wait every path either takes the branch that the value polled on that path decides for
    "satisfied", or sets a flag of the watchdog, or comes back to the poll, before it reaches any other instruction that
    synchronises, or the end. None goes round without the poll: it would look at one value for ever.
Algorithm: depth first from the poll; predicates that were set to a constant on the path decide their branches, and
    registers that were computed on it from the polled value are fresh. A loop with more than `_LIMIT` states fails.
Cost: linear in the instructions of the loop, times the few sets of constants and fresh registers that there are.
"""

from __future__ import annotations

import re

from amk.lowering.affine import Form, Values, added, constant, only_leaf
from amk.lowering.ptx_code import Code, Kernel

_TRIP = "atom.relaxed.cta.shared::cta.or.b32"
_SIGNED = re.compile(r"setp\.(lt|le|gt|ge)\.s32")
_LIMIT = 20_000
_REGISTERS = re.compile(r"[%\w$#]+")
Predicates = frozenset[tuple[str, bool]]
State = tuple[int, Predicates, frozenset[str]]
"""An instruction, the predicates that are known there, and the fresh registers."""


class WaitLoop:
    """One poll of `kernel`. stops: the other instructions that synchronise."""

    def __init__(self, kernel: Kernel, values: Values, poll: int, stops: set[int]) -> None:
        self.kernel, self.values, self.poll, self.stops = kernel, values, poll, stops
        self.found_exit = False

    def target(self) -> Form | None:
        """What a poll of a counter has to reach: value - target >= 0 leaves the loop; None where that is not so."""
        polled, found = self._polled(), list[Form]()
        for at in sorted(self._reached()):
            decision = self._compared(at, polled)
            if decision is not None and decision not in found:
                found.append(decision)
        return found[0] if len(found) == 1 else None

    def _compared(self, at: int, polled: Form) -> Form | None:
        one = self.kernel.code[at]
        if one.opcode.split(".")[0] != "bra" or not one.guard:
            return None
        test = self._definition(one.guard.lstrip("!"))
        match = _SIGNED.fullmatch(test.opcode) if test else None
        if test is None or match is None:
            return None
        difference = added(self.values.operand(test, 1), self.values.operand(test, 2), -1)
        from_least = added(difference, {"": {"gt": -1, "ge": 0, "lt": 0, "le": -1}[match[1]]})
        return added(polled, from_least, -1) if from_least.get(only_leaf(polled)) == 1 else None

    def _polled(self) -> Form:
        poll = self.kernel.code[self.poll]
        return self.values.result(self.poll, poll.results[0])

    def holds(self) -> bool:
        """The property of the module."""
        reached = self._reached()
        ends = any(at in self.stops or not self.kernel.successors(at) for at in reached)
        return self.found_exit and self.poll not in reached and not ends

    def _reached(self) -> set[int]:
        """Instructions that a path from the poll comes to while neither satisfied nor tripped; with the poll where
        they are too many to be followed, or a path goes round without it."""
        start: State = (self.poll + 1, frozenset(), frozenset(self.kernel.code[self.poll].results))
        seen, on_path, stack = {start}, {start}, [(start, iter(self._steps(*start)))]
        while stack:
            state, steps = stack[-1]
            following = next((each for each in steps if each[0] != self.poll), None)
            if following is None:
                on_path.discard(state)
                stack.pop()
            elif following in on_path or len(seen) > _LIMIT:
                return {self.poll}
            elif following not in seen:
                seen.add(following)
                if following[0] not in self.stops:
                    on_path.add(following)
                    stack.append((following, iter(self._steps(*following))))
        return {at for at, *_ in seen}

    def _steps(self, at: int, values: Predicates, fresh: frozenset[str]) -> list[State]:
        one = self.kernel.code[at]
        if one.opcode == _TRIP:
            return []
        values, fresh = _after(one, values), _fresh(one, fresh)
        following = self.kernel.successors(at)
        if one.opcode.split(".")[0] == "bra" and one.guard:
            following = self._branch(one, dict(values), fresh, following)
        return [(to, values, fresh) for to in following]

    def _branch(self, one: Code, values: dict[str, bool], fresh: frozenset[str], following: list[int]) -> list[int]:
        """Of (target, next) those that may be taken without the wait being satisfied."""
        register, negated = one.guard.lstrip("!"), one.guard.startswith("!")
        if register in values:
            return following[:1] if values[register] != negated else following[1:]
        satisfied = self._satisfied(register) if register in fresh else None
        if satisfied is None:
            return following
        self.found_exit = True
        return following[1:] if satisfied != negated else following[:1]

    def _satisfied(self, register: str) -> bool | None:
        """What the predicate says when the wait is satisfied; None if it does not look at the polled value."""
        poll, test = self.kernel.code[self.poll], self._definition(register)
        if test is None or not test.opcode.startswith("setp"):
            return True if register == poll.results[0] else None
        left, right = self.values.operand(test, 1), self.values.operand(test, 2)
        if poll.opcode.startswith("mbarrier"):
            chosen = self._definition(test.operands[1])
            if chosen is None or chosen.opcode != "selp.u32" or chosen.operands[1:] != ("1", "0", poll.results[0]):
                return None
            return {"setp.ne.s32": True, "setp.eq.s32": False}.get(test.opcode) if constant(right) == 0 else None
        match = _SIGNED.fullmatch(test.opcode)
        difference = added(left, right, -1)
        if match is None or difference.get(only_leaf(self._polled()), 0) != 1:
            return None
        return match[1] in ("gt", "ge")

    def _definition(self, register: str) -> Code | None:
        places = self.kernel.definitions.get(register, [])
        return self.kernel.code[places[0]] if len(places) == 1 else None


def _after(one: Code, values: Predicates) -> Predicates:
    """Predicates whose value is known behind the instruction."""
    left = {pair for pair in values if pair[0] not in one.results}
    if one.opcode == "mov.pred" and one.operands[1] in ("0", "-1", "1"):
        left.add((one.results[0], one.operands[1] != "0"))
    return frozenset(left)


def _fresh(one: Code, fresh: frozenset[str]) -> frozenset[str]:
    """The fresh registers behind the instruction."""
    if not one.results:
        return fresh
    reads_fresh = any(name in fresh for source in one.sources for name in _REGISTERS.findall(source))
    return fresh | set(one.results) if reads_fresh else fresh - set(one.results)
