"""That a warp reads a tagged word again while it is stale, or gives up.

Property: on every path from a tagged load on which one of its words is compared with the tag and is stale, the load is
    executed again, or a flag of the watchdog is set, before anything else that synchronises, but for other tagged loads
    of the same loop, and before the end. So the comparison of each word decides the loop around its load.
Not seen: what excuses a word, a branch around its comparison, what "or" joins to it or a choice of something else, as
    for splits of attention that are not active, and more than `_LIMIT` states of a word.
Algorithm: depth first from the load, for one word at a time, until a way goes back to where every way to the load
    passes, or leaves the innermost loop around it. Of registers is known along the path whether they hold the word, its
    upper half, zero, or something else than zero: comparisons of the upper half with the tag say "stale", and what is
    computed from these follows. A branch on anything else goes both ways.
Assumptions: a register of 32 bits that was cut from the word is not zero only if it was compared (`xor`) with the tag.
Cost: the instructions of the loop for each word, times the states that they are met in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property

from amk.lowering.affine import Form, constant
from amk.lowering.definite_assignment import Dominators
from amk.lowering.ptx_code import Code
from amk.lowering.symbolic import Reading

_TRIP = "atom.relaxed.cta.shared::cta.or.b32"
_EQUAL = re.compile(r"setp\.(eq|ne)\.[bsu](?:16|32|64)")
_MOVES = re.compile(r"mov\.(?:[bsu](?:16|32|64)|pred)|cvt\.[us](?:16|32|64)\.[us](?:16|32|64)")
_PASS = ("mov", "cvt", "shr", "setp", "xor", "and", "or", "not", "selp")
_VERDICTS = ("%p", "%rs")
"""Registers that say whether words are stale, also where they are set to a number on a way."""
_LIMIT = 4_000
_WORD, _UPPER, _ZERO, _OTHER = "word", "upper", "zero", "not zero"
_COMPARED = ""
"""Stands for a register: the word was compared on the path."""
Contents = frozenset[tuple[str, str]]


class StaleWords:
    """Of one kernel. loads: its tagged loads. consumers: the instructions that read each register."""

    def __init__(self, reading: Reading, loads: set[int], consumers: dict[str, list[Code]]) -> None:
        self.reading, self.loads, self.ways = reading, loads, Dominators(reading.kernel)
        self.consumers = consumers
        reads = {register: [one.at for one in each] for register, each in consumers.items()}
        for one in reading.kernel.code:
            reads.setdefault(one.guard.lstrip("!"), []).append(one.at)
        self._last_read = {register: max(each) for register, each in reads.items()}

    def leave(self, load: Code, word: str, tag: Callable[[Form], bool]) -> bool:
        """Whether a path leaves the loop around the load although the word is stale, as far as it is followed."""
        start = (load.at + 1, frozenset({(word, _WORD)}))
        around, made_of, head = self._around(load.at), self._made_of(word), self._head(load.at)
        seen, stack = {start}, [start]
        while stack and len(seen) < _LIMIT:
            at, known = stack.pop()
            one, held = self.reading.kernel.code[at], dict(known)
            following = self._following(one, held)
            outside = not self._passes(head, at) or (at in self.reading.stops and at not in around)
            if outside or not following:
                if _COMPARED in held:
                    return True
                continue
            after = known
            if any(register in made_of or register.startswith(_VERDICTS) for register in one.results):
                after = frozenset(_after(self.reading, one, held, tag).items())
            after = frozenset(pair for pair in after if pair[0] == _COMPARED or self._last_read.get(pair[0], 0) > at)
            for to in following if one.opcode != _TRIP else ():
                if (to, after) not in seen and not self._passes(to, load.at):
                    seen.add((to, after))
                    stack.append((to, after))
        return False

    def _passes(self, earlier: int, at: int) -> bool:
        return earlier == at or self.ways.passes(earlier, at)

    def _head(self, at: int) -> int:
        """Where the innermost loop around a place begins; the kernel's start without one."""
        return max((head for head in self._heads if self._passes(head, at)), key=self.ways.order.index, default=0)

    @cached_property
    def _heads(self) -> list[int]:
        before = self.reading.kernel.blocks_before
        return [block for block in self.ways.order if any(self._passes(block, last) for last in before[block])]

    def _following(self, one: Code, contents: dict[str, str]) -> list[int]:
        if self.reading.kernel.ends(one.at):
            return []
        following = self.reading.kernel.successors(one.at)
        holds = contents.get(one.guard.lstrip("!")) if one.opcode.startswith("bra") and one.guard else None
        if holds in (_ZERO, _OTHER):
            return following[:1] if (holds == _OTHER) != one.guard.startswith("!") else following[1:]
        return following

    def _made_of(self, word: str) -> set[str]:
        """The registers that something known of the word may come to."""
        found, stack = {word}, [word]
        while stack:
            for one in self.consumers.get(stack.pop(), ()):
                new = set(one.results) - found if one.opcode.split(".")[0] in _PASS else set[str]()
                found |= new
                stack += new
        return found

    def _around(self, start: int) -> set[int]:
        """The tagged loads from which a way leads to one past nothing else that synchronises."""
        seen, stack = {start}, [start]
        while stack:
            for before in self.reading.kernel.predecessors[stack.pop()]:
                if before not in seen and (before not in self.reading.stops or before in self.loads):
                    seen.add(before)
                    stack.append(before)
        return seen & self.loads


def _after(reading: Reading, one: Code, contents: dict[str, str], tag: Callable[[Form], bool]) -> dict[str, str]:
    if not one.results:
        return contents
    left = {register: value for register, value in contents.items() if register not in one.results}
    found = _result(reading, one, contents, tag)
    if found in (_ZERO, _OTHER) and _UPPER in (contents.get(source) for source in one.sources):
        left[_COMPARED] = _OTHER
    if found is not None and not one.guard:
        left[one.results[-1] if one.opcode == "mov.b64" and len(one.results) == 2 else one.results[0]] = found
    return left


def _result(reading: Reading, one: Code, contents: dict[str, str], tag: Callable[[Form], bool]) -> str | None:
    """What is known of the instruction's result."""
    if one.opcode == "mov.b64" and len(one.results) == 2:
        return _UPPER if contents.get(one.operands[1]) == _WORD else None
    values = [contents.get(source) or _literal(source) for source in one.sources]
    if not values or not (one.opcode.startswith("mov") or any(source in contents for source in one.sources)):
        return None
    name = one.opcode.split(".")[0]
    if _MOVES.fullmatch(one.opcode):
        return values[0]
    if name == "shr" and values[0] == _WORD:
        return _UPPER if constant(reading.values.operand(one, 2)) == 32 else None
    if match := _EQUAL.fullmatch(one.opcode):
        return _compared(reading, one, values, match[1] == "eq", tag)
    if name == "xor" and _UPPER in values:
        return _OTHER if tag(_beside(reading, one, values)) else None
    if name in ("and", "or", "not", "selp"):
        return _logic(name, one.opcode.endswith("pred"), values, [source in contents for source in one.sources])
    return None


def _compared(
    reading: Reading, one: Code, values: list[str | None], equal: bool, tag: Callable[[Form], bool]
) -> str | None:
    if _UPPER in values:
        same = False if tag(_beside(reading, one, values)) else None
    elif _ZERO in values:
        other = values[1 - values.index(_ZERO)]
        same = {_ZERO: True, _OTHER: False}.get(other or "")
    else:
        same = None
    return None if same is None else _OTHER if same == equal else _ZERO


def _beside(reading: Reading, one: Code, values: list[str | None]) -> Form:
    """What the other operand of two holds."""
    return reading.values.of(one.sources[1 - values.index(_UPPER)], one.at)


def _logic(name: str, predicate: bool, values: list[str | None], of_words: list[bool]) -> str | None:
    """of_words: which of the values are known of the word, not of a number."""
    if name == "not":
        return {_ZERO: _OTHER, _OTHER: _ZERO}.get(values[0] or "") if predicate else None
    if name == "selp":
        if values[2] is not None:
            return values[0] if values[2] == _OTHER else values[1]
        return next((value for value, of_word in zip(values, of_words, strict=True) if of_word), None)
    if name == "and":
        if _ZERO in values:
            return _ZERO
        return _OTHER if predicate and values == [_OTHER, _OTHER] else None
    if _OTHER in values:
        return _OTHER
    return _ZERO if predicate or values == [_ZERO, _ZERO] else None


def _literal(source: str) -> str | None:
    if re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?", source):
        return _ZERO if int(source.rstrip("U"), 0) == 0 else _OTHER
    return None
