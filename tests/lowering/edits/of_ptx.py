"""Single edits of a kernel's PTX, by rule, at every instruction that synchronises and at what decides or surrounds it.

A *place* is a synchronising instruction; a branch that decides whether one is executed or whether a wait goes on, and
the comparison behind it; or the access of memory next to one in the text. Every rule is tried at every place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from amk.lowering.emit import KERNEL
from amk.lowering.ptx_code import Code, read_kernel
from amk.lowering.readback import Kind, read_ptx

_AROUND = 40
"""Instructions on each side of one that synchronises among which its branches and accesses are looked for."""
_LINE = re.compile(r"\s*(?:@!?%?\w+\s+)?[a-z][\w.:]*[^;{}]*(?:\{[^{};]*\}[^;{}]*)*;\s*(?://.*)?")
_REGISTER = re.compile(r"%(?:p|rs?|rd|fd?)\d+\b")
_NUMBER = re.compile(r"(?<![\w%.$#])-?\d+\b(?![\w.#])")
_ADDRESS = re.compile(r"\[%\w+\]")
_ACCESS = re.compile(r"(?:ld|st)\.(?:global|shared|[busf]\d)")
_QUALIFIERS = (
    (r"\.release", ".relaxed"), (r"\.acquire", ".relaxed"), (r"(?<=ld)\.relaxed", ".acquire"),
    (r"(?<=red)\.relaxed", ".release"), (r"\.gpu", ".cta"), (r"\.gpu", ".sys"), (r"\.cta(?=\.)", ".gpu"),
    (r"\.relaxed\.gpu", ""), (r"\.(?:relaxed|acquire)\.gpu", ".volatile"), (r"(?<=ld)\.global", ".global.nc"),
    (r"(?<=ld)\.(?=global|shared)", ".volatile."), (r"(?<=st)\.(?=global|shared)", ".volatile."),
    (r"(?<=bar)\.sync", ".arrive"), (r"\.acq_rel", ".sc"), (r"\.shared::cta$", ".global"),
    (r"(?<=setp)\.eq", ".ne"), (r"(?<=setp)\.ne", ".eq"), (r"(?<=setp)\.lt", ".le"), (r"(?<=setp)\.le", ".lt"),
    (r"(?<=setp)\.ge", ".gt"), (r"(?<=setp)\.gt", ".ge"), (r"(?<=\.)s(?=32|64)", "u"),
)  # fmt: skip


@dataclass(frozen=True)
class PtxEdit:
    """`count` lines from index `at` on become `new`. kind: what stands there. rule: what was done to it."""

    rule: str
    kind: str
    at: int
    count: int
    new: tuple[str, ...]

    def of(self, lines: list[str]) -> str:
        return "\n".join([*lines[: self.at], *self.new, *lines[self.at + self.count :]]) + "\n"

    def probed(self, lines: list[str]) -> str:
        """The text unedited, with an instruction before the place that no run gets past."""
        trap = "{ .reg .b64 nowhere; .reg .b32 nothing;", "ld.global.u32 nothing, [nowhere];", "}"
        return "\n".join([*lines[: self.at], *trap, *lines[self.at :]]) + "\n"

    def name(self, lines: list[str]) -> str:
        return f"{self.rule}: {self.kind}: line {self.at + 1}: {' '.join(lines[self.at].split())} -> {self.replacement}"

    @property
    def replacement(self) -> str:
        return " | ".join(" ".join(line.split()) for line in self.new) or "nothing"


class Places:
    """The places of a text, and the edits there."""

    def __init__(self, ptx: str) -> None:
        self.lines = ptx.splitlines()
        self.kernel = read_kernel(ptx, KERNEL)
        synchronising = [one for one in read_ptx(ptx)[KERNEL] if one.kind is not Kind.LOAD_CONSTANT]
        self.kinds = {self.kernel.by_line[one.line]: one.kind.value for one in synchronising}
        self.labels = [line.rstrip().rstrip(":") for line in self.lines if re.fullmatch(r"\$L\w+:\s*", line)]

    @cached_property
    def found(self) -> dict[int, str]:
        """Indices of instructions, with what they are; the first reason counts."""
        found, code = dict(self.kinds), self.kernel.code
        for at, kind in self.kinds.items():
            for step in (-1, 1):
                self._beside(at, step, kind, found)
        for at in [at for at, kind in found.items() if kind.startswith("branch") and code[at].guard]:
            for test in self.kernel.definitions.get(code[at].guard.lstrip("!"), []):
                found.setdefault(test, found[at].replace("branch", "comparison"))
        return found

    def _beside(self, at: int, step: int, kind: str, kinds: dict[int, str]) -> None:
        """Branches and accesses from an instruction on, up to the next one that synchronises; two and one of them."""
        side, wanted = "before" if step < 0 else "behind", {"branch": 2, "load": 1, "store": 1}
        places = range(at + step, at + step * _AROUND, step)
        for place in (p for p in places if 0 <= p < len(self.kernel.code)):
            opcode = self.kernel.code[place].opcode
            if place in self.kinds:
                return
            what = {"bra": "branch", "ld": "load", "st": "store"}.get(opcode.split(".")[0], "")
            if wanted.get(what, 0) and not opcode.startswith(("ld.param", "ld.const")):
                wanted[what] -= 1
                kinds.setdefault(place, f"{what} {side} {kind}")

    def edits(self) -> Iterator[PtxEdit]:
        for at, kind in sorted(self.found.items()):
            one = self.kernel.code[at]
            line = one.line - 1
            if _LINE.fullmatch(self.lines[line]) is None:
                continue
            text = self.lines[line].strip()
            plain = kind.startswith(("load", "store"))  # what is computed and where it goes is no synchronisation
            for rule, new in self._qualified(one, text) if plain else self._replaced(one, text):
                if new != (text,):
                    yield PtxEdit(rule, kind, line, 1, new)
            yield from self._moved(one, kind)

    def _replaced(self, one: Code, text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        yield from self._left_out(one, text)
        yield from self._qualified(one, text)
        yield from self._operands(one, text)

    def _left_out(self, one: Code, text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        yield "left out", ()
        if not one.opcode.startswith("bra"):
            yield "twice", (text, text)
        if one.guard:
            bare = text.partition(" ")[2].strip() if " " in text.split("\t")[0] else text.partition("\t")[2].strip()
            yield "predicate dropped", (bare,)
            turned = text.replace("@!", "@", 1) if text.startswith("@!") else text.replace("@", "@!", 1)
            yield "predicate negated", (turned,)
            for other in self._others(one.guard.lstrip("!"), one):
                yield "another predicate", (text.replace(one.guard.lstrip("!"), other, 1),)
        elif "#" not in one.guard:
            for other in self._others("%p0", one)[:1]:
                yield "under a predicate", (f"@{other} {text}",)

    def _qualified(self, one: Code, text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        for pattern, new in _QUALIFIERS:
            opcode = re.sub(pattern, new, one.opcode, count=1)
            if opcode != one.opcode:
                yield f"opcode {pattern} {new}".replace("\\", ""), (text.replace(one.opcode, opcode, 1),)

    def _operands(self, one: Code, text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        if one.opcode.startswith("bra"):
            yield from self._targets(one, text)
            return
        start = text.index(one.opcode) + len(one.opcode)
        for match in _REGISTER.finditer(text, start):
            for other in self._others(match[0], one):
                yield "another register", (text[: match.start()] + other + text[match.end() :],)
        for match in _NUMBER.finditer(text, start):
            for what, value in (("+1", int(match[0]) + 1), ("-1", int(match[0]) - 1), ("*2", int(match[0]) * 2)):
                yield f"number {what}", (f"{text[: match.start()]}{value}{text[match.end() :]}",)
        for match in _ADDRESS.finditer(text, start):
            yield "address on", (f"{text[: match.end() - 1]}+8{text[match.end() - 1 :]}",)

    def _targets(self, one: Code, text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        place = self.labels.index(one.operands[0])
        for rule, to in (("label before", place - 1), ("label behind", place + 1)):
            if 0 <= to < len(self.labels):
                yield rule, (text.replace(one.operands[0], self.labels[to]),)

    def _moved(self, one: Code, kind: str) -> Iterator[PtxEdit]:
        """Exchanged with the instruction behind it, and with the nearest access of memory on each side."""
        block = [at for at in self._block(one.at) if "#" not in "".join(self.kernel.code[at].operands)]
        if one.at not in block or one.opcode.startswith("bra"):
            return
        if one.at + 1 in block and not self.kernel.code[one.at + 1].opcode.startswith("bra"):
            yield self._exchanged("exchanged with the next", kind, one.at, one.at + 1)
        if one.at not in self.kinds:
            return
        for rule, places in (("behind the access", [a for a in block if a > one.at][:20]),
                             ("before the access", [a for a in block if a < one.at][:-20:-1])):  # fmt: skip
            memory = next(
                (a for a in places if re.match(r"(?:ld|st)\.(?:global|shared|[busf]\d)", self.opcode(a))), None
            )
            if memory is not None:
                yield self._past(rule, kind, one.at, memory)

    def opcode(self, at: int) -> str:
        return self.kernel.code[at].opcode

    def _exchanged(self, rule: str, kind: str, one: int, other: int) -> PtxEdit:
        first, last = (self.kernel.code[at].line - 1 for at in (one, other))
        new = (self.lines[last], *self.lines[first + 1 : last], self.lines[first])
        return PtxEdit(rule, kind, first, last - first + 1, new)

    def _past(self, rule: str, kind: str, one: int, memory: int) -> PtxEdit:
        """The instruction moved to the other side of an access."""
        place, to = (self.kernel.code[at].line - 1 for at in (one, memory))
        if to > place:
            return PtxEdit(rule, kind, place, to - place + 1, (*self.lines[place + 1 : to + 1], self.lines[place]))
        return PtxEdit(rule, kind, to, place - to + 1, (self.lines[place], *self.lines[to:place]))

    def _block(self, at: int) -> range:
        start = self.kernel.block(at)
        blocks = self.kernel.blocks
        number = blocks.index(start) + 1
        return range(start, blocks[number] if number < len(blocks) else len(self.kernel.code))

    def _others(self, register: str, one: Code) -> list[str]:
        """The last register of the same type that was written before the instruction in the text."""
        kind = register.rstrip("0123456789")
        for at in range(one.at - 1, max(-1, one.at - 400), -1):
            for name in self.kernel.code[at].results:
                if re.fullmatch(re.escape(kind) + r"\d+", name) and name != register:
                    return [name]
        return []
