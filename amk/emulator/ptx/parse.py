"""PTX text -> functions, variables, instructions with their lines.

Property: every statement of a function is either an instruction of the result, a label, or a directive without effect
on what is computed (`.loc`, `.pragma`, `.file`, `.section`); anything else is refused with its line.
Source: PTX ISA 9.0, chapters 4 (syntax), 5 (state spaces and variables), 6 (operands).
Cost: linear in the text; 20,000 lines take about 0.1 s.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from amk.emulator.refusal import bad_ptx

TYPE_BYTES = {
    "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "b32": 4, "u32": 4, "s32": 4,
    "f32": 4, "f16x2": 4, "bf16x2": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "pred": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Address:
    """[base + offset]; base is a register or a variable, or empty for an absolute address."""

    base: str
    offset: int


@dataclass(frozen=True)
class Bits:
    """An immediate of floating point, by its bits (0f3F800000, 0d...): a NaN keeps its payload."""

    value: int


Operand = str | int | Bits | Address | tuple["Operand", ...]
"""A name (register, label, variable, `_`), an immediate, an address, a vector."""


Position = tuple[int, int, int]
"""File, line and column of a source."""
DEEPEST = 64
"""Calls inside each other that are followed, and braces that may be open."""
MOST_REGISTERS, MOST_BYTES = 1_000_000, 1 << 30
"""Of a function, and of a variable with a content: many times what a kernel has."""


@dataclass(frozen=True)
class Place:
    """A line of the source (0: none is known), and the lines of the calls that it was inlined at, outermost last.

    file: number of the file of the outermost one.
    """

    lines: tuple[int, ...]
    file: int


@dataclass(frozen=True)
class Instruction:
    """predicate: the guard's register, negated: it has to be false. line: of the PTX, from 1. place: of the source."""

    opcode: str
    operands: tuple[Operand, ...]
    predicate: str
    negated: bool
    line: int
    place: Place | None = None


@dataclass(frozen=True)
class Variable:
    """A variable of a state space: `data` is its initial content, None where the kernel finds it undefined."""

    name: str
    space: str
    align: int
    size: int
    data: bytes | None
    dynamic: bool = False


@dataclass
class Function:
    """One entry. registers: type by name (scoped names are made unique); labels: index of the instruction they
    precede."""

    name: str
    parameters: tuple[Variable, ...]
    max_threads: int | None
    line: int
    registers: dict[str, str] = field(default_factory=dict)
    shared: list[Variable] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    code: list[Instruction] = field(default_factory=list)


@dataclass(frozen=True)
class Module:
    """One translation unit."""

    version: str
    target: str
    variables: tuple[Variable, ...]
    functions: dict[str, Function]


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_SPACE = re.compile(r"\s*")
_STOP = re.compile(r"[;{}]")
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_LINE_DIRECTIVE = re.compile(r"\.(?:loc|file|pragma)\b[^\n;]*[\n;]")
_SECTION = re.compile(r"\.section\s+[.\w]+\s*\{[^}]*\}")
_VERSION = re.compile(r"\.version\s+(\d+\.\d+)")
_TARGET = re.compile(r"\.target\s+(\w+)")
_VARIABLE = re.compile(
    r"(?P<linkage>(?:\.(?:extern|visible|weak|common)\s+)*)\.(?P<space>global|const|shared|param|local)\s+"
    r"(?:\.attribute\([^)]*\)\s*)?(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+(?P<name>[\w$%]+)"
    r"(?P<array>(?:\[\d*\])*)\s*(?:=\s*(?P<value>.*))?$",
    re.DOTALL,
)
_ENTRY = re.compile(r"(?:\.(?:visible|weak|extern)\s+)*\.entry\s+(?P<name>[\w$]+)\s*(?:\((?P<params>[^)]*)\))?")
_REGISTER = re.compile(r"\.reg\s+\.(?P<type>\w+)\s+(?P<names>.*)$", re.DOTALL)
_STATEMENT = re.compile(
    r"(?:@(?P<not>!)?(?P<guard>[\w$%]+)\s+)?(?P<opcode>[a-z][\w.:]*)\s*(?P<operands>.*)$", re.DOTALL
)
_LOC = re.compile(
    r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)"
    r"(?:\s*,\s*function_name\s+[^,]+,\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?"
)


def parse(text: str) -> Module:
    """The module; AMK801 with the line where the text is no PTX of the kind described above."""
    clean = _COMMENT.sub(lambda m: "\n" * m[0].count("\n"), text)
    version, target = _VERSION.search(clean), _TARGET.search(clean)
    if version is None or target is None:
        raise bad_ptx(1, "no .version and .target: this is no PTX")
    return _Reader(clean).module(version[1], target[1])


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._counted = (0, 1)

    def line(self, at: int | None = None) -> int:
        """Line of a position; positions are asked for in ascending order, nearly."""
        at = self.at if at is None else at
        before, line = self._counted
        line += self.text.count("\n", before, at) if at >= before else -self.text.count("\n", at, before)
        self._counted = (at, line)
        return line

    def skip(self) -> str:
        """The next character that is no space; empty at the end."""
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.text[self.at : self.at + 1]

    def statement(self) -> str:
        """The text up to the next semicolon outside braces, which is consumed."""
        depth, start = 0, self.at
        for match in _STOP.finditer(self.text, start):
            if match[0] == ";" and depth == 0:
                self.at = match.end()
                return self.text[start : match.start()].strip()
            depth += (match[0] == "{") - (match[0] == "}")
        raise bad_ptx(self.line(start), "the text ends inside a statement")

    def module(self, version: str, target: str) -> Module:
        variables: list[Variable] = []
        functions: dict[str, Function] = {}
        while self.skip():
            rest = self.text[self.at : self.at + 400]
            if match := re.match(r"\.(?:version|target|address_size)[^\n]*", rest):
                self.at += match.end()
            elif (match := _SECTION.match(self.text, self.at)) or (match := _LINE_DIRECTIVE.match(self.text, self.at)):
                self.at = match.end()
            elif match := _ENTRY.match(self.text, self.at):
                function = self.entry(match)
                functions[function.name] = function
            elif match := re.match(r"(?:\.(?:visible|weak|extern)\s+)*\.func\b", rest):
                raise bad_ptx(self.line(), "functions that are called are not supported, everything must be inlined")
            else:
                line = self.line()
                variables.append(_variable(self.statement(), line))
        return Module(version, target, tuple(variables), functions)

    def entry(self, match: re.Match[str]) -> Function:
        line = self.line()
        parameters = tuple(_variable(part.strip(), line) for part in (match["params"] or "").split(",") if part.strip())
        self.at = match.end()
        head_start = self.at
        self.at = self.text.find("{", self.at)
        if self.at < 0:
            raise bad_ptx(line, f"{match['name']} has no body")
        head = self.text[head_start : self.at]
        most = re.search(r"\.maxntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", head)
        threads = None
        if most:
            threads = int(most[1]) * int(most[2] or 1) * int(most[3] or 1)
        function = Function(match["name"], parameters, threads, line)
        self.at += 1
        _Body(self, function).read()
        return function


class _Body:
    """Reads one function; names declared in braces get a suffix that makes them unique."""

    def __init__(self, reader: _Reader, function: Function) -> None:
        self.reader, self.function = reader, function
        self.scopes: list[dict[str, str]] = [{}]
        self.scope_number = 0
        self.place: Place | None = None
        self.calls: dict[Position, Position | None] = {}

    def read(self) -> None:
        reader = self.reader
        while (char := reader.skip()) != "":
            if char == "{":
                if len(self.scopes) > DEEPEST:
                    raise bad_ptx(reader.line(), f"more than {DEEPEST} braces inside each other")
                self.scopes.append({})
                self.scope_number += 1
                reader.at += 1
            elif char == "}":
                self.scopes.pop()
                reader.at += 1
                if not self.scopes:
                    return
            elif char == ";":
                reader.at += 1
            elif label := _LABEL.match(reader.text, reader.at):
                reader.at = label.end()
                self.function.labels[self.declared(label[1])] = len(self.function.code)
            elif directive := _LINE_DIRECTIVE.match(reader.text, reader.at):
                reader.at = directive.end()
                self.locate(directive[0])
            else:
                line = reader.line()
                self.statement(reader.statement(), line)
        raise bad_ptx(reader.line(), f"the text ends inside {self.function.name}")

    def declared(self, label: str) -> str:
        """The unique name of a label: those of an inner scope belong to it."""
        if len(self.scopes) == 1:
            return label
        unique = f"{label}#{self.scope_number}"
        self.scopes[-1][label] = unique
        return unique

    def locate(self, directive: str) -> None:
        """A directive names the call next to it; those before it say where that call stands."""
        if match := _LOC.match(directive):
            file, line, column, *call = (int(part) for part in match.groups() if part)
            at: Position | None = (file, line, column)
            self.calls[file, line, column] = (call[0], call[1], call[2]) if call else None
            lines: list[int] = []
            while at is not None and len(lines) < DEEPEST:
                lines.append(at[1])
                file, at = at[0], self.calls.get(at)
            self.place = Place(tuple(lines), file)

    def statement(self, words: str, line: int) -> None:
        if words.startswith(".reg"):
            self.registers(words, line)
        elif words.startswith((".shared", ".local", ".param", ".const", ".global")):
            variable = _variable(words, line)
            if variable.space != "shared":
                raise bad_ptx(line, f"a variable of .{variable.space} inside a function is not supported")
            self.function.shared.append(variable)
        else:
            self.instruction(words, line)

    def registers(self, words: str, line: int) -> None:
        match = _REGISTER.match(words)
        if match is None or match["type"] not in TYPE_BYTES:
            raise bad_ptx(line, f"cannot read: {words}")
        for name in match["names"].split(","):
            name = name.strip()
            many = re.fullmatch(r"([\w$%]+)<(\d{1,9})>", name)
            if not many and "<" in name:
                raise bad_ptx(line, f"cannot read: {words[:80]}")
            if len(self.function.registers) + (int(many[2]) if many else 1) > MOST_REGISTERS:
                raise bad_ptx(line, f"more than {MOST_REGISTERS:,} registers")
            each = [f"{many[1]}{n}" for n in range(int(many[2]))] if many else [name]
            for one in each:
                unique = one if len(self.scopes) == 1 else f"{one}#{self.scope_number}"
                self.scopes[-1][one] = unique
                self.function.registers[unique] = match["type"]

    def instruction(self, words: str, line: int) -> None:
        match = _STATEMENT.match(words)
        if match is None:
            raise bad_ptx(line, f"cannot read: {words[:80]}")
        operands = tuple(self.operand(part, line) for part in _split(match["operands"]))
        guard = self.resolve(match["guard"]) if match["guard"] else ""
        self.function.code.append(Instruction(match["opcode"], operands, guard, bool(match["not"]), line, self.place))

    def resolve(self, name: str) -> str:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return name

    def operand(self, text: str, line: int) -> Operand:
        if text.startswith("{"):
            return tuple(self.operand(part, line) for part in _split(text[1:-1]))
        if text.startswith("["):
            return self.address(text[1:-1].strip(), line)
        if (value := _number(text)) is not None:
            return value
        if "|" in text:
            return tuple(self.operand(part.strip(), line) for part in text.split("|"))
        if text.startswith("!"):
            return ("!", self.resolve(text[1:]))
        return self.resolve(text)

    def address(self, text: str, line: int) -> Address:
        match = re.fullmatch(r"([\w$%.]+?)\s*(?:\+\s*(-?\w+))?", text)
        if match is None:
            raise bad_ptx(line, f"cannot read the address [{text}]")
        offset = _number(match[2] or "0")
        if not isinstance(offset, int):
            raise bad_ptx(line, f"cannot read the address [{text}]")
        if (absolute := _number(match[1])) is not None and isinstance(absolute, int):
            return Address("", absolute + offset)
        return Address(self.resolve(match[1]), offset)


def _split(text: str) -> Iterator[str]:
    """Operands at the commas outside braces and brackets."""
    depth, start = 0, 0
    for at, char in enumerate(text):
        if char in "{[(":
            depth += 1
        elif char in "}])":
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:at].strip()
            start = at + 1
    if text[start:].strip():
        yield text[start:].strip()


_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9]\d*)U?")


def _number(text: str) -> int | Bits | None:
    """An integer, the bits of a floating point number, None for a name."""
    if _INTEGER.fullmatch(text):
        digits = text.rstrip("U")
        sign = -1 if digits.startswith("-") else 1
        digits = digits.lstrip("-")
        octal = len(digits) > 1 and digits[0] == "0" and digits.isdigit()
        return sign * int(digits, 8 if octal else 0)
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}", text):
        return Bits(int(text[2:], 16))
    if re.fullmatch(r"-?\d+\.\d*(?:[eE][+-]?\d+)?", text):
        return Bits(int.from_bytes(struct.pack("<d", float(text)), "little"))
    return None


def _variable(words: str, line: int) -> Variable:
    match = _VARIABLE.match(words)
    if match is None or match["type"] not in TYPE_BYTES:
        raise bad_ptx(line, f"cannot read: {words[:80]}")
    each = TYPE_BYTES[match["type"]]
    sizes = [int(size) if size else 0 for size in re.findall(r"\[(\d*)\]", match["array"])]
    count = 1
    for each_size in sizes:
        count *= each_size
    align = int(match["align"] or each)
    filled = match["space"] in ("const", "global")
    if align < 1 or (filled and each * count > MOST_BYTES):
        raise bad_ptx(line, f"alignment {align}, {each * count:,} bytes: {words[:80]}")
    data = _initial(match["value"], match["type"], count, line) if match["value"] else None
    if data is None and filled:
        data = bytes(each * count)
    dynamic = ".extern" in match["linkage"]
    return Variable(match["name"], match["space"], align, each * count, data, dynamic)


def _initial(text: str, kind: str, count: int, line: int) -> bytes:
    each, parts = TYPE_BYTES[kind], []
    for part in _split(text.strip().strip("{}")):
        number = _number(part)
        if number is None:
            raise bad_ptx(line, "an initial value that is no number is not supported")
        word = number.value if isinstance(number, Bits) else number
        parts.append((word & ((1 << 8 * each) - 1)).to_bytes(each, "little"))
    return b"".join(parts).ljust(each * count, b"\0")
