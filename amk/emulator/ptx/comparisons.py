"""Which instructions compare what a strong load of global memory found: targets of counters, tags of flag words.

Assumes: a register that such a comparison depends on holds nothing else. Which of its operands comes from the load, and
whether it grows or falls with what was loaded, is known of moves, sums and differences; of words of 64 bits the upper
half is followed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from amk.emulator.ptx import isa
from amk.emulator.ptx.program import Program

UPPER = 32
"""Bits of the lower half of a flag word."""
STRONG = (isa.RELAXED, isa.ACQUIRE)
Load = tuple[int, int]
"""Number of the instruction, and which of its results."""


@dataclass(frozen=True)
class Comparison:
    """side: the operand that comes from the load, 0 or 1. sign: 1 if it grows with the content, -1 if it falls.

    loads: of the flag words whose tag it is; none for a counter.
    """

    side: int
    sign: int
    loads: frozenset[Load] = frozenset()


def comparisons(program: Program) -> dict[int, Comparison]:
    """By instruction."""
    reader = _Reader(program)
    while reader.further():
        pass
    return reader.comparisons


class _Reader:
    """words, halves: by register that holds a flag word, or its upper half, its loads. signs: of what depends on
    counters."""

    def __init__(self, program: Program) -> None:
        self.code = program.code.tolist()
        self.constants = dict(program.constants)
        self.words: dict[int, set[Load]] = defaultdict(set)
        self.halves: dict[int, set[Load]] = defaultdict(set)
        self.signs: dict[int, int] = {}
        self.comparisons: dict[int, Comparison] = {}
        for pc, row in enumerate(self.code):
            if row[0] == isa.LD and row[2] & 15 in (isa.GLOBAL, isa.GENERIC) and row[2] >> 4 & 15 in STRONG:
                self._load(pc, row)

    def _load(self, pc: int, row: list[int]) -> None:
        size, count, scope = row[2] >> 12 & 15, row[2] >> 16 & 15, row[2] >> 8 & 15
        if size == 8:
            for part in range(count):
                self.words[row[3 + part]].add((pc, part))
        elif size == 4 and scope == isa.GPU:
            self.signs |= dict.fromkeys(row[3 : 3 + count], 1)

    def further(self) -> bool:
        """Whether one more pass over the text found more."""
        before = self._size()
        for pc, row in enumerate(self.code):
            self._of_words(pc, row)
            self._of_counters(pc, row)
        return self._size() > before

    def _size(self) -> int:
        words = sum(map(len, (*self.words.values(), *self.halves.values())))
        return words + len(self.signs) + len(self.comparisons)

    def _of_words(self, pc: int, row: list[int]) -> None:
        operation, into, (a, b) = row[0], row[3], row[4:6]
        if operation == isa.UNPACK and a in self.words and row[2] >> 8 == 2:
            self.halves[row[11]] |= self.words[a]
        elif operation == isa.SHR and a in self.words and self.constants.get(b) == UPPER:
            self.halves[into] |= self.words[a]
        elif operation in (isa.MOV, isa.CVT_II):
            if a in self.words and operation == isa.MOV:
                self.words[into] |= self.words[a]
            if a in self.halves:
                self.halves[into] |= self.halves[a]
        elif operation in (isa.SETP, isa.XOR) and (a in self.halves) != (b in self.halves):
            side = int(b in self.halves)
            self.comparisons[pc] = Comparison(side, 1, frozenset(self.halves[b if side else a]))

    def _of_counters(self, pc: int, row: list[int]) -> None:
        operation, into, (a, b) = row[0], row[3], row[4:6]
        if operation == isa.MOV and a in self.signs:
            self.signs[into] = self.signs[a]
        elif operation == isa.NEG and a in self.signs:
            self.signs[into] = -self.signs[a]
        elif operation in (isa.ADD, isa.SUB) and (a in self.signs) != (b in self.signs):
            turned = -1 if operation == isa.SUB and b in self.signs else 1
            self.signs[into] = turned * self.signs[a if a in self.signs else b]
        elif operation == isa.SETP and (a in self.signs) != (b in self.signs):
            side = int(b in self.signs)
            self.comparisons[pc] = Comparison(side, self.signs[b if side else a])
