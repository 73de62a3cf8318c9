"""Every edit that a rule makes of the device headers and of the text that the emitter prints.

A rule is a pattern and what stands in its place: it applies wherever the pattern occurs, so headers that grow get more
edits. Comments, `static_assert`s and the watchdog's records are left out: none of them changes what a kernel computes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Change = Callable[[re.Match[str]], str]
SOURCE = "the emitted text"


@dataclass(frozen=True)
class Rule:
    """files: a pattern over the names of headers, or `SOURCE`."""

    kind: str
    name: str
    files: str
    pattern: str
    change: Change


@dataclass(frozen=True)
class Edit:
    """`length` characters at `at` of a file become `new`. name: the rule, the file, the line and its words."""

    kind: str
    name: str
    file: str
    at: int
    length: int
    new: str

    @property
    def place(self) -> str:
        """The name without the number of the line, which moves with every change above it."""
        return re.sub(r"(?<=\w):\d+(?=:\d+: )", "", self.name)

    def of(self, text: str) -> str:
        return text[: self.at] + self.new + text[self.at + self.length :]


def _to(text: str) -> Change:
    return lambda match: match.expand(text)


def _negated(match: re.Match[str]) -> str:
    return f"{match[1]}(!({match[2]})){match[3]}"


OPCODE, OPERAND = "synchronisation: opcode", "synchronisation: operand"
PREDICATE, PLACE = "synchronisation: predicate", "synchronisation: place"
SYNC, RING = r"amk/sync\.cuh", r"amk/ring\.cuh"
WAITING = r"amk/(?:watchdog|ring|cells)\.cuh"
OPS = r"amk/(?!(?:sync|ring|cells|watchdog|ablation)\.cuh)[\w/]+\.cuh"
"""Every header but those of synchronisation, which have rules of their own, and of what is measured without a part."""
CONDITION = r"\b(if (?:constexpr )?|while )\(((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))+)\)( |$)"
OPEN = (
    '[](float a, float b, float c) { asm("{.reg .f32 p; mul.f32 p, %0, %1; add.f32 %0, p, %2;}"'
    ' : "+f"(a) : "f"(b), "f"(c)); return a; }('
)
"""A product and a sum that the assembler may contract."""
_PARENTHESES = r"\((?:[^()\n]|\((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*\))*\)"
ARM = rf"((?:[^()?:;,{{}}\[\]\n]|::|{_PARENTHESES}|\[[^\]\n]*\])+)"
BODIES = r"amk/(?!(?:sync|watchdog|ablation)\.cuh)[\w/]+\.cuh"

RULES = (
    Rule(OPCODE, "acquire made relaxed", SYNC, r"\.acquire(?=\.)", _to(".relaxed")),
    Rule(OPCODE, "release made relaxed", SYNC, r"\.release(?=\.)", _to(".relaxed")),
    Rule(OPCODE, "scope of the block", SYNC, r"\.gpu(?=[.;])", _to(".cta")),
    Rule(OPCODE, "strength left out", SYNC, r"\.relaxed\.gpu(?=\.global)", _to("")),
    Rule(OPCODE, "non-coherent load", SYNC, r"\bld\.global\.(?=L1)", _to("ld.global.nc.")),
    Rule(OPCODE, "instruction left out", SYNC, r'(?<= )asm volatile\((?="(?:fence|bar|red|st|cp|mbarrier))'
         r'(?:[^;"]|"[^"]*")*\);', _to("")),
    Rule(OPCODE, "half the lanes", r"amk/.*\.cuh", r"0xffffffffu?", _to("0x0000ffff")),
    Rule(OPERAND, "address 4 bytes on", SYNC, r'"[lr]"\((global_address|shared_address)\((\w+)\)\)',
         lambda m: m[0][:-1] + " + 4)"),
    Rule(OPERAND, "value one more", SYNC, r'"[rn]"\((amount|arrivals|bytes|parity|kId|kPending|tag)\)',
         lambda m: m[0][:-1] + " + 1)"),
    Rule(OPERAND, "half as much", SYNC + "|" + RING, r'(?<=[( ])(bytes|kBytes)(?=\)(?: :|,|;))', _to(r"\1 / 2")),
    Rule(OPERAND, "next slot", RING, r"(?<=[+ ])(s|slot) \* (8|kBytes)", _to(r"(\1 + 1) % kSlots * \2")),
    Rule(OPERAND, "one more slot", RING, r"(?<=[=<] )kSlots(?=[;) ])", _to("kSlots - 1")),
    Rule(PREDICATE, "condition negated", WAITING, CONDITION, _negated),
    Rule(PREDICATE, "loop of one pass", WAITING + "|" + SYNC, r"while \(true\)",
         _to("for (int once = 0; once < 1; ++once)")),
    Rule(PREDICATE, "comparison off by one", WAITING + "|" + SYNC, r"(>=|<=)(?= \d)", lambda m: m[1][0]),
    Rule(PLACE, "statement left out", WAITING, r"(?<=\n)( *)(sync::\w+(?:<[^>]*>)?\([^;]*;)", _to(r"\1;")),
    Rule(PLACE, "statement behind the next", WAITING,
         r"(?<=\n)( *sync::\w+(?:<[^>]*>)?\([^;]*;\n)( *(?!for|if|\}|#)[^\n;{}]*;\n)", _to(r"\2\1")),
    Rule("order", "barrier left out", SOURCE, r"amk::sync::(?:cta|warp)_barrier(?:<[^>]*>)?\(\);", _to(";")),
    Rule("order", "step before the barrier ahead of it", SOURCE,
         r"( *amk::sync::cta_barrier<[^>]*>\(\);\n)((?: *c\.enter_step\(\);\n)? *amk::ops::\w+<\w+>\(c\);\n)",
         _to(r"\2\1")),
    Rule("order", "step left out", SOURCE, r"amk::ops::\w+<\w+>\(c\);", _to(";")),
    Rule("order", "signals before the step", SOURCE,
         r"( *amk::ops::\w+<\w+>\(c\);\n)((?: *amk::sync::warp_barrier\(\);\n)?"
         r"(?: *if \(c\.lane == \d+[^\n]*signal_\w+[^\n]*\n)+)", _to(r"\2\1")),
    Rule("order", "wait left out", SOURCE, r"if \(c\.lane == 0\) amk::sync::wait_\w+[^\n]*?;", _to(";")),
    Rule(OPERAND, "next counter", SOURCE, r"globals\.counters \+ \(", _to("globals.counters + (1 + ")),
    Rule(OPERAND, "threshold one less", SOURCE, r"(wait_\w+\([^;]*)\); (?=amk)", _to(r"\1 - 1); ")),
    Rule(OPERAND, "amount one more", SOURCE, r"(signal_\w+\([^;]*)\);", _to(r"\1 + 1);")),
    Rule(PREDICATE, "another lane, or all", SOURCE, r"c\.lane == \d+", _to("c.lane >= 0")),
    Rule(PREDICATE, "loop over parts one shorter", SOURCE, r"(c\.p < )(\d+)", _to(r"\g<1>\2 - 1")),
    Rule(PREDICATE, "role off by one", SOURCE, r"(c\.warp < )(\d+)", _to(r"\g<1>\2 - 1")),
    Rule("data", "buffer one element on", SOURCE, r"(?<=return \{c\.globals\.)(b_\w+)", _to(r"\1 + 1")),
    Rule("data", "shared memory 4 bytes on", SOURCE, r"(?<=c\.shared \+ )(\d+)", _to(r"\1 + 4")),
    Rule("data", "another layer", SOURCE, r"(?<=return )(1 \* c\.l|c\.l)(?=[ ;])", _to(r"\1 + 1")),
    Rule("data", "another part", SOURCE, r"(?<=return kKPart \+ )c\.p(?=;)", _to("c.p + 1")),
    Rule("data", "another share of columns", SOURCE, r"c\.shares\.k_split_index", _to("(c.shares.k_split_index ^ 1)")),
    Rule("data", "operands exchanged", OPS, r'"r"\((\w\w)\), "r"\((\w\w)\)', _to(r'"r"(\2), "r"(\1)')),
    Rule("arithmetic", "word 16 more", OPS, r"(?<=[ (])0x(?!ffffffff)([0-9a-fA-F]+)u(?=[),])",
         lambda m: f"0x{int(m[1], 16) + 16:x}u"),
    Rule("footprint", "loop one shorter", OPS, r"(for \([^;\n]*;[^;<\n]*< )([^;\n]+)(;)", _to(r"\1(\2) - 1\3")),
    Rule("footprint", "condition negated", OPS, CONDITION, _negated),
    Rule("arithmetic", "constant one more", OPS, r"(?<=[\w)\]] [-+*/%] )(\d+)(?=[^\w.])", lambda m: str(int(m[1]) + 1)),
    Rule("arithmetic", "rounding left open", OPS, r"\bfmaf\(", lambda _: OPEN),
    Rule("footprint", "relation", BODIES, r"(?<= )([<>])(=?)(?= )", lambda m: m[1] + "=" * (not m[2])),
    Rule("footprint", "equality turned", BODIES, r"(?<= )[=!]=(?= )", lambda m: "!=" if m[0] == "==" else "=="),
    Rule("arithmetic", "literal one more", BODIES, r"(?<![\w.\"%])(?<![-+*/%] )(?<!(?:<<|>>) )(\d+)(?=[^\w.\"])",
         lambda m: str(int(m[1]) + 1)),
    Rule("arithmetic", "shift one more", BODIES, r"(?<=(?:<<|>>) )(\d+)", lambda m: str(int(m[1]) + 1)),
    Rule("arithmetic", "arms exchanged", BODIES, rf"(?<=\? ){ARM} : {ARM}(?=[,;)\]}}])", _to(r"\2 : \1")),
    Rule("arithmetic", "number of 32 bits", BODIES + "|" + SOURCE, r"\b(?:unsigned )?long long\b", _to("int")),
    Rule("arithmetic", "sum for difference", OPS, r"(?<=[\w)\]]) - (?=[\w(])", _to(" + ")),
    Rule("arithmetic", "difference for sum", OPS, r"(?<=[\w)\]]) \+ (?=[\w(])", _to(" - ")),
)  # fmt: skip

_LEFT_OUT = re.compile(
    r"//[^\n]*|static_assert\([^;]*;|BlockedRecord\{[^;]*;|#pragma[^\n]*|#include[^\n]*|struct BlockedRecord \{.*?\};",
    re.S,
)


def edits(texts: dict[str, str]) -> Iterator[Edit]:
    """All edits of the given files (headers by name, and `SOURCE`), rule by rule."""
    for rule in RULES:
        for file, text in texts.items():
            if not re.fullmatch(rule.files, file):
                continue
            skipped = [match.span() for match in _LEFT_OUT.finditer(text)]
            for match in re.finditer(rule.pattern, text):
                new = rule.change(match)
                if new != match[0] and not any(lo <= match.start() < hi for lo, hi in skipped):
                    yield Edit(rule.kind, _name(rule, file, text, match), file, match.start(), len(match[0]), new)


def _name(rule: Rule, file: str, text: str, match: re.Match[str]) -> str:
    line = text.count("\n", 0, match.start()) + 1
    start = text.rfind("\n", 0, match.start()) + 1
    words = " ".join(text[start : text.find("\n", match.end())].split())
    return f"{rule.name}: {file}:{line}:{match.start() - start + 1}: {words[:100]}"
