"""The file `amk.loops/1`: agents as programs over named loops, with counts that may be open (README.md here).

Reading is bounded and total: anything that is no such file is an `AmkError` with AMK00x at its line and column. The
canonical text is what `canonical` gives: sorted keys, no spaces, no defaults left out.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, model_validator

from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.report.json_file import Positions, parse_json, read_bytes
from amk.report.schema import schema_error
from amk.schedule_ir.codec import located
from amk.systems.affine import MAX_PERIOD
from amk.systems.loop_numbers import MAX_TEXT

FORMAT: Final = "amk.loops/1"
MAX_LOOP_FILE: Final = 16 * 2**20
HELP: Final = "`amk schema --loops` prints the JSON Schema of such a file"
"""Bytes that a file may have."""
MAX_PARTS: Final = 16
_NAME: Final = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$", "maxLength": 64}
_TABLE: Final = {
    "type": "object",
    "description": "step * (index // P) + table[index % P], for a table of P entries",
    "properties": {
        "index": _NAME,
        "step": {"type": "integer"},
        "table": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": MAX_PERIOD},
    },
    "required": ["index", "step", "table"],
    "additionalProperties": False,
}
_NUMBER: Final = {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": MAX_TEXT}, _TABLE]}
_PART: Final = {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "object", "properties": {"number": _NUMBER},
    "required": ["number"], "additionalProperties": False}]}  # fmt: skip
_VALUE: Final = {"anyOf": [*_PART["anyOf"], {"type": "array", "items": _PART, "maxItems": MAX_PARTS}, {"type": "null"}]}


def _identifier(name: str) -> str:
    if not name.isidentifier() or not name.isascii() or iskeyword(name) or len(name) > 64:
        raise ValueError("a loop or parameter is called by letters, digits and _, 64 at most, a letter first")
    return name


def _is_table(value: object) -> bool:
    if not isinstance(value, dict) or set(value) != {"index", "step", "table"}:
        return False
    table = value["table"]
    whole = isinstance(table, list | tuple) and all(type(entry) is int for entry in table)
    return type(value["step"]) is int and isinstance(value["index"], str) and whole and 0 < len(table) <= MAX_PERIOD


def _number(value: Any) -> Any:
    if type(value) is int or isinstance(value, str) or _is_table(value):
        return value
    raise ValueError("a number is an integer, a text such as 'k % 3 * 1024', or an object of index, step and table")


def _value(value: Any) -> Any:
    parts = value if isinstance(value, list | tuple) else [value]
    for part in parts[: MAX_PARTS + 1]:
        if isinstance(part, dict) and set(part) == {"number"}:
            _number(part["number"])
        elif type(part) is not int and not isinstance(part, str) and not (part is None and part is value):
            raise ValueError('a value is null, a text, an integer, {"number": ...}, or a list of such')
    if len(parts) > MAX_PARTS:
        raise ValueError(f"a value of {len(parts)} parts; at most {MAX_PARTS}")
    return value


Identifier = Annotated[str, AfterValidator(_identifier), WithJsonSchema(_NAME)]
Number = Annotated[Any, AfterValidator(_number), WithJsonSchema(_NUMBER)]
Value = Annotated[Any, AfterValidator(_value), WithJsonSchema(_VALUE)]
Source = Annotated[str, Field(pattern=r"^.+:[0-9]{1,9}$", max_length=1024, description="FILE:LINE of the kernel")]
Name = Annotated[str, Field(max_length=256)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Parameter(_Frozen):
    """A number of which the system must be safe for every value. As the count of loops it may be open."""

    at_least: int = Field(0, ge=0)
    at_most: int | None = Field(None, ge=0, description="null: any number")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.at_most is not None and self.at_most < self.at_least:
            raise ValueError(f"no number is at least {self.at_least} and at most {self.at_most}")
        return self


class DeclaredCounter(_Frozen):
    name: Name
    scope: Literal["cta", "cluster", "gpu", "sys"] = "gpu"
    init: Number = 0
    size: Number | None = Field(None, description="so many alike, each chosen by a number; null: one")
    arrivals: Number | None = Field(None, description="of a phase, if it is a barrier; null: it is none")


class DeclaredBuffer(_Frozen):
    name: Name
    size: Number = Field(description="bytes")


class Content(_Frozen):
    """What bytes lo to hi - 1 of a buffer hold before the launch."""

    buffer: Name
    lo: Number
    hi: Number
    value: Value = None


class Wait(_Frozen):
    do: Literal["wait"]
    counter: Name
    number: Number | None = Field(None, description="which of the counters of this name")
    at_least: Number
    order: Literal["acquire", "relaxed"] = "acquire"
    source: Source | None = None


class Signal(_Frozen):
    do: Literal["signal"]
    counter: Name
    number: Number | None = Field(None, description="which of the counters of this name")
    amount: Number = 1
    order: Literal["release", "relaxed"] = "release"
    source: Source | None = None


class Arrive(_Frozen):
    """Arrivals at a barrier."""

    do: Literal["arrive"]
    counter: Name
    number: Number | None = None
    count: Number = 1
    order: Literal["release", "relaxed"] = "release"
    source: Source | None = None


class Expect(_Frozen):
    """The phase also waits for bytes; with `arrives` this is an arrival."""

    do: Literal["expect"]
    counter: Name
    number: Number | None = None
    bytes: Number
    arrives: bool = True
    source: Source | None = None


class WaitParity(_Frozen):
    """The phase of this parity is over."""

    do: Literal["wait_parity"]
    counter: Name
    number: Number | None = None
    parity: Number
    order: Literal["acquire", "relaxed"] = "acquire"
    source: Source | None = None


class Meet(_Frozen):
    """sync: arrive at a barrier, then wait for the others; wait_others: only wait."""

    do: Literal["sync", "wait_others"]
    counter: Name
    number: Number | None = None
    source: Source | None = None


class Box(_Frozen):
    buffer: Name
    lo: Number
    hi: Number


class Load(_Frozen):
    """A bulk or TMA load of bytes lo to hi - 1, which come to the barrier; `origin` null: memory that nobody writes."""

    do: Literal["load"]
    counter: Name
    number: Number | None = None
    buffer: Name
    lo: Number
    hi: Number
    origin: Box | None = None
    value: Value = None
    source: Source | None = None


class Store(_Frozen):
    """A bulk or TMA store that reads bytes lo to hi - 1; `target` null: memory that nobody else touches."""

    do: Literal["store"]
    buffer: Name
    lo: Number
    hi: Number
    target: Box | None = None
    value: Value = None
    source: Source | None = None


class Group(_Frozen):
    """commit: the stores since the last one are a group; wait_group: all groups but the last `most` are done."""

    do: Literal["commit", "wait_group"]
    most: int = Field(0, ge=0, le=64)
    read: bool = Field(False, description="done means: have read what they store")
    source: Source | None = None


class Fence(_Frozen):
    """`fence.proxy.async`"""

    do: Literal["fence_async"]
    source: Source | None = None


class Access(_Frozen):
    """Bytes lo to hi - 1 are touched."""

    do: Literal["read", "write", "add"]
    buffer: Name
    lo: Number
    hi: Number
    value: Value = Field(None, description="what the bytes mean; a read must find what was written under it")
    proxy: Literal["generic", "async"] = "generic"
    source: Source | None = None


class Loop(_Frozen):
    """Its code, for index 0 to count - 1."""

    do: Literal["loop"]
    index: Identifier
    count: Number
    code: tuple[Statement, ...]


Plain = Wait | Signal | Access | Arrive | Expect | WaitParity | Meet | Load | Store | Group | Fence
Statement = Annotated[Plain | Loop, Field(discriminator="do")]


class DeclaredAgent(_Frozen):
    """One stream in program order."""

    name: Name
    cta: Number = 0
    cluster: Number = 0
    gpu: Number = 0
    code: tuple[Statement, ...]


class LoopDocument(_Frozen):
    """A system with loops as a file."""

    format: Literal["amk.loops/1"]
    name: Name = "system"
    parameters: dict[Identifier, Parameter] = Field(default_factory=dict)
    counters: tuple[DeclaredCounter, ...] = ()
    buffers: tuple[DeclaredBuffer, ...] = ()
    initial: tuple[Content, ...] = ()
    agents: tuple[DeclaredAgent, ...]


class Read:
    """A document with the places of what is in it."""

    def __init__(self, document: LoopDocument, file: str, positions: Positions) -> None:
        self.document, self.file, self.positions = document, file, positions

    def wrong(self, code: str, message: str, pointer: str) -> AmkError:
        """A complaint about what is at the pointer."""
        found = Diagnostic(
            code, message, where=Where(path=pointer), help=HELP if code in ("AMK005", "AMK009") else None
        )
        return AmkError(located(found, self.file, self.positions))

    def source(self, statement: Plain, pointer: str) -> tuple[str, int]:
        """Where it comes from: its own word for it, else its place in the file."""
        if statement.source is None:
            return self.file, self.positions.nearest(pointer) or 1
        file, _, line = statement.source.rpartition(":")
        return file, int(line)


def load_loops(path: Path) -> Read:
    """AMK0xx as an AmkError (exit 2) for anything that is no system with loops."""
    return parse_loops(read_bytes(path, MAX_LOOP_FILE), str(path))


def parse_loops(content: bytes, file: str) -> Read:
    """The document in `content`; `file` names the place in diagnostics."""
    value, positions = parse_json(content, file), Positions(content)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        message = f"the file says another format; this program reads {FORMAT}"
        raise AmkError(located(Diagnostic("AMK004", message, where=Where(path="/format")), file, positions))
    try:
        document = LoopDocument.model_validate_json(json.dumps(value))
    except ValidationError as error:
        found = [_untagged(replace(diagnostic, help=HELP)) for diagnostic in schema_error(error, file).diagnostics]
        raise AmkError([located(diagnostic, file, positions) for diagnostic in found]) from error
    return Read(document, file, positions)


def _untagged(diagnostic: Diagnostic) -> Diagnostic:
    """Without the kinds of statements that pydantic puts into the pointer."""
    where = diagnostic.where
    if where is None or where.path is None:
        return diagnostic
    path = re.sub(r"(/code/\d+)/[a-z_]+(?=/|$)", r"\1", where.path)
    return replace(diagnostic, where=replace(where, path=path))


def canonical(document: LoopDocument) -> str:
    """The one text of a document."""
    return json.dumps(document.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))


def schema() -> dict[str, Any]:
    """JSON Schema of the file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **LoopDocument.model_json_schema()}
