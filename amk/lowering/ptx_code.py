"""A kernel's PTX as a list of instructions with labels, successors and definitions.

Property: every statement of the body is an instruction of the result, a label, a declaration or a directive; names
    declared in inner braces are told from others of the same name. Of spellings that mean the same, as compilers of
    different versions have them, one is in the result. Source: PTX ISA 9.0, chapters 4 and 5.
Cost: linear in the text.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from amk.lowering import refusal
from amk.report.diagnostic import shown

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TOKEN = re.compile(r"\s*(?:(?P<brace>[{}])|(?P<label>[\w$%]+)\s*:(?!:)|(?P<statement>[^;]*);)", re.DOTALL)
_INSTRUCTION = re.compile(r"(?:@(?P<guard>!?[\w$%]+)\s+)?(?P<opcode>[a-z][\w.:]*)\s*(?P<operands>.*)", re.DOTALL)
_REGISTERS = re.compile(r"\.reg\s+\.\w+\s+(.*)", re.DOTALL)
_EQUAL_BITS = re.compile(r"(setp\.(?:eq|ne))\.b(32|64)")
"""Compares what the same with .s compares."""
_SINK = re.compile(r"(?<=\{)\s*_\s*(?=,)|(?<=,)\s*_\s*(?=\})")
"""The half of a word that an unpacking mov leaves out; it is a register that nothing reads."""
_NAME = re.compile(r"[%\w$#]+")
_NO_RESULT = re.compile(
    r"(?:st|red|bar|barrier|fence|membar|bra|brx|ret|exit|trap|prefetch|prefetchu|griddepcontrol|"
    r"mbarrier\.(?:init|arrive)|cp|discard|applypriority|nanosleep|brkpt|call)\b"
)


@dataclass(frozen=True)
class Code:
    """One instruction, number `at` of its kernel. guard: a predicate register, "!" before one that has to be false."""

    opcode: str
    operands: tuple[str, ...]
    guard: str
    line: int
    at: int

    @cached_property
    def results(self) -> tuple[str, ...]:
        """The registers that it writes."""
        if not self.operands or _NO_RESULT.match(self.opcode):
            return ()
        return tuple(name for name in _NAME.findall(self.operands[0]) if name != "_")

    @property
    def sources(self) -> tuple[str, ...]:
        """Operands that are not the result."""
        return self.operands if not self.results else self.operands[1:]

    @cached_property
    def address(self) -> tuple[str, int]:
        """(register or variable, offset) of the first memory operand; ("", 0) without one."""
        return next((self.memory(n) for n, text in enumerate(self.operands) if text.startswith("[")), ("", 0))

    def memory(self, number: int) -> tuple[str, int]:
        """The same of the operand of that number."""
        base, _, offset = self.operands[number].strip("[] ").partition("+")
        return base.strip(), int(offset or 0)


@dataclass
class Kernel:
    """The body of one entry in textual order. threads: most of a block."""

    code: list[Code] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    threads: int = 1024
    _reachable: dict[tuple[str, int], frozenset[int]] = field(default_factory=dict)
    _last: dict[str, dict[int, list[int]]] = field(default_factory=dict)

    @cached_property
    def definitions(self) -> dict[str, list[int]]:
        """Where every register is written."""
        found: dict[str, list[int]] = {}
        for at, one in enumerate(self.code):
            for register in one.results:
                found.setdefault(register, []).append(at)
        return found

    @cached_property
    def by_line(self) -> dict[int, int]:
        """Index of the instruction that stands in a line of the text."""
        return {one.line: at for at, one in enumerate(self.code)}

    def successors(self, at: int) -> list[int]:
        """Indices that may follow: of a branch the target, then what stands behind it if it may go on."""
        return self._successors[at]

    @cached_property
    def _successors(self) -> list[list[int]]:
        return [self._following(at) for at in range(len(self.code))]

    def _following(self, at: int) -> list[int]:
        one = self.code[at]
        following = [at + 1] if at + 1 < len(self.code) else []
        if self.ends(at):
            return following if one.guard else []
        if one.opcode.split(".")[0] != "bra":
            return following
        target = [self.labels[one.operands[0]]]
        return target + following if one.guard else target

    def ends(self, at: int) -> bool:
        """May the kernel end with the instruction?"""
        return self.code[at].opcode in ("ret", "exit", "trap")

    @cached_property
    def blocks(self) -> list[int]:
        """The first instruction of every block, ascending."""
        starts = {0} | {at for at in self.labels.values() if at < len(self.code)}
        starts |= {at + 1 for at in range(len(self.code) - 1) if self.ends(at) or self.successors(at) != [at + 1]}
        return sorted(starts)

    def block(self, at: int) -> int:
        """The first instruction of the block around an instruction."""
        return self.blocks[bisect_right(self.blocks, at) - 1]

    def last(self, at: int) -> int:
        """The last instruction of the block around an instruction."""
        number = bisect_right(self.blocks, at)
        return (self.blocks[number] if number < len(self.blocks) else len(self.code)) - 1

    def reaching(self, register: str, at: int) -> tuple[int, ...]:
        """The definitions of a register that may have written what an instruction reads there, ascending."""
        places = self.definitions[register]
        if len(places) == 1:
            return tuple(places)
        start = self.block(at)
        within = places[bisect_left(places, start) : bisect_left(places, at)]
        firm = next((n for n in range(len(within) - 1, -1, -1) if not self.code[within[n]].guard), None)
        if firm is not None:
            return tuple(within[firm:])
        return tuple(sorted({*within, *self._entering(register, start)}))

    def _entering(self, register: str, start: int) -> frozenset[int]:
        """The definitions that reach the beginning of a block."""
        if (register, start) in self._reachable:
            return self._reachable[register, start]
        found: set[int] = set()
        last, before = self._last_of_blocks(register), self.blocks_before
        seen = set(before[start])
        stack = list(seen)
        while stack:
            block = stack.pop()
            if places := last.get(block):
                found.update(places)
                if not self.code[places[0]].guard:
                    continue
            for earlier in before[block]:
                if earlier not in seen:
                    seen.add(earlier)
                    stack.append(earlier)
        self._reachable[register, start] = frozenset(found)
        return self._reachable[register, start]

    def _last_of_blocks(self, register: str) -> dict[int, list[int]]:
        """Per block the definitions that are left at its end: the last one that no guard may skip, and those behind."""
        if register not in self._last:
            left: dict[int, list[int]] = {}
            for place in self.definitions[register]:
                block = self.block(place)
                left[block] = [*(left.get(block, ()) if self.code[place].guard else ()), place]
            self._last[register] = left
        return self._last[register]

    @cached_property
    def blocks_before(self) -> dict[int, list[int]]:
        """The blocks from whose end a block is reached."""
        return {start: [self.block(last) for last in self.predecessors[start]] for start in self.blocks}

    @cached_property
    def predecessors(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in self.code]
        for at in range(len(self.code)):
            for following in self.successors(at):
                found[following].append(at)
        return found


def read_kernel(ptx: str, name: str) -> Kernel:
    """The kernel of that name. Raises AMK901 where the text is no PTX of one."""
    text = _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), ptx)
    entry = re.search(rf"\.entry\s+{re.escape(name)}\b[^{{]*\{{", text)
    if entry is None:
        raise refusal.internal(f"the PTX has no kernel {name}")
    kernel = _Reader(text, entry.end()).kernel()
    if most := re.search(r"\.maxntid\s+(\d+)(?:,\s*1)*\s", entry[0]):
        kernel.threads = int(most[1])
    return kernel


class _Reader:
    def __init__(self, text: str, at: int) -> None:
        self.text, self.at = text, at
        self.line = text.count("\n", 0, at) + 1
        self.scopes: list[dict[str, str]] = [{}]
        self.opened = 0

    def kernel(self) -> Kernel:
        kernel = Kernel()
        for brace, label, statement, line in self.tokens():
            if brace == "{":
                self.opened += 1
                self.scopes.append({})
            elif brace == "}":
                self.scopes.pop()
                if not self.scopes:
                    return kernel
            elif label:
                kernel.labels[label] = len(kernel.code)
            else:
                kernel.code += self.statement(statement, line, len(kernel.code))
        raise refusal.internal("the PTX ends inside a function")

    def tokens(self) -> Iterator[tuple[str, str, str, int]]:
        """(brace, label, statement, line of it). A brace inside a statement is a vector's."""
        while match := _TOKEN.match(self.text, self.at):
            self.at = match.end()
            start = match.start(match.lastgroup or 0)
            line = self.line + self.text.count("\n", match.start(), start)
            self.line += match[0].count("\n")
            yield match["brace"] or "", match["label"] or "", (match["statement"] or "").strip(), line

    def statement(self, words: str, line: int, at: int) -> Iterator[Code]:
        if declared := _REGISTERS.match(words):
            if len(self.scopes) > 1:
                self.scopes[-1] |= {n.strip(): f"{n.strip()}#{self.opened}" for n in declared[1].split(",")}
            return
        if not words or words.startswith("."):
            return
        match = _INSTRUCTION.fullmatch(words)
        if match is None:
            raise refusal.internal(
                "the PTX has a statement that is no instruction", shown(f"line {line}: {words[:80]}")
            )
        opcode, operands = _EQUAL_BITS.sub(r"\1.s\2", match["opcode"]), match["operands"]
        if opcode == "mov.b64":
            operands = _SINK.sub(f"%sink{at}", operands)
        yield Code(
            opcode, tuple(self.renamed(part) for part in _split(operands)),
            self.renamed(match["guard"] or ""), line, at,
        )  # fmt: skip

    def renamed(self, operand: str) -> str:
        for scope in self.scopes[1:]:
            for name, unique in scope.items():
                operand = re.sub(rf"(?<![\w$%.]){re.escape(name)}(?![\w$%#])", unique, operand)
        return operand


def _split(text: str) -> list[str]:
    """Operands at the commas outside braces and brackets."""
    return [part.strip() for part in re.split(r",(?![^{\[]*[}\]])", text) if part.strip()]
