"""A recorded run, checked by happens-before: what ran in some order only by luck.

One JSON object a line, in the order in which things happened:

    {"agent": "sm0/producer", "do": "write", "in": "smem 0", "lo": 0, "hi": 1024, "at": "ring.cu:31"}
    {"agent": "sm0/producer", "do": "release", "on": "full[0]", "at": "ring.cu:33"}
    {"agent": "sm0/consumer", "do": "acquire", "on": "full[0]", "at": "ring.cu:40"}

`do` is read, write or add with bytes, or release, acquire or both (`acq_rel`) with the word that they are on. `at` is
optional. A release orders what is before it ahead of what is behind a later acquire of the same word. Relaxed
operations are left out of the file.

Property: every pair that is told has common bytes, and at least one writes (sums do not clash with sums). No chain of
program order and release-acquire leads from one to the other in this run. Other runs are not looked at: silence is no
proof. Cost: per access, the accesses of its 256-byte pages that no later one of their agent hides.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from amk.report.diagnostic import AmkError, Diagnostic, Where, because, shown
from amk.report.schema import schema_error

PAGE: Final = 256
MOST: Final = 64
"""Pairs that are told."""
LONGEST: Final = 1 << 24
Clock = dict[str, int]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", populate_by_name=True)
    agent: str = Field(min_length=1, max_length=256)
    at: str = Field("", max_length=512)


class Access(_Line):
    do: Literal["read", "write", "add"]
    buffer: str = Field(alias="in", max_length=256)
    lo: int = Field(ge=0, lt=1 << 48)
    hi: int = Field(gt=0, le=1 << 48)


class Sync(_Line):
    do: Literal["release", "acquire", "acq_rel"]
    on: str = Field(max_length=256)


Line = Annotated[Access | Sync, Field(discriminator="do")]
_LINE: Final[TypeAdapter[Access | Sync]] = TypeAdapter(Line)


@dataclass(frozen=True)
class PastAccess:
    """An access that happened: its line in the file, and how far its agent was."""

    number: int
    count: int
    access: Access

    def what(self) -> str:
        a = self.access
        verb = {"read": "reads", "write": "writes", "add": "adds to"}[a.do]
        return f"{a.agent}{f' at {a.at}' if a.at else ''} (line {self.number}): {verb} {a.buffer}[{a.lo}:{a.hi}]"


def recorded(lines: Iterable[str], file: str) -> list[Diagnostic]:
    """Unordered pairs, one per pair of places, as AMK301 and AMK302; AMK005 as an AmkError at the first bad line."""
    diagnostics: dict[tuple[str, str, str], Diagnostic] = {}
    for first, second in _unordered(_read(lines, file)):
        one, two = first.access, second.access
        key = (one.at or one.agent, two.at or two.agent, one.buffer)
        if key not in diagnostics and len(diagnostics) < MOST:
            diagnostics[key] = _diagnostic(first, second, file)
    return list(diagnostics.values())


def _read(lines: Iterable[str], file: str) -> Iterator[tuple[int, Access | Sync]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = _LINE.validate_json(line)
        except ValidationError as error:
            raise schema_error(error, f"{file}:{number}") from error
        if isinstance(found, Access) and not found.lo < found.hi <= found.lo + LONGEST:
            message = f"bytes {found.lo} to {found.hi} (exclusive): a box has 1 to {LONGEST} bytes"
            raise AmkError(Diagnostic("AMK005", message, where=Where(file=file, line=number)))
        yield number, found


def _unordered(events: Iterable[tuple[int, Access | Sync]]) -> Iterator[tuple[PastAccess, PastAccess]]:
    clocks: dict[str, Clock] = defaultdict(dict)
    words: dict[str, Clock] = defaultdict(dict)
    pages: dict[tuple[str, int], list[PastAccess]] = defaultdict(list)
    for number, event in events:
        mine = clocks[event.agent]
        mine[event.agent] = mine.get(event.agent, 0) + 1
        if isinstance(event, Sync):
            if event.do != "release":
                _join(mine, words[event.on])
            if event.do != "acquire":
                _join(words[event.on], mine)
            continue
        done, met = PastAccess(number, mine[event.agent], event), set[int]()
        for page in range(event.lo // PAGE, (event.hi - 1) // PAGE + 1):
            here = pages[event.buffer, page]
            for other in here:
                if other.number not in met and _clash(other, event) and mine.get(other.access.agent, 0) < other.count:
                    met.add(other.number)
                    yield other, done
            # an older access of this agent within this one orders nothing that this one does not
            here[:] = [other for other in here if not _hidden(other.access, event)] + [done]


def _clash(other: PastAccess, event: Access) -> bool:
    a = other.access
    alike = a.do == event.do and a.do in ("read", "add")
    return a.agent != event.agent and not alike and a.lo < event.hi and event.lo < a.hi


def _hidden(old: Access, new: Access) -> bool:
    return old.agent == new.agent and old.do == new.do and new.lo <= old.lo and old.hi <= new.hi


def _join(into: Clock, other: Clock) -> None:
    for agent, count in other.items():
        if into.get(agent, 0) < count:
            into[agent] = count


def _diagnostic(first: PastAccess, second: PastAccess, file: str) -> Diagnostic:
    one, two = first.access, second.access
    lo, hi = max(one.lo, two.lo), min(one.hi, two.hi)
    code = "AMK301" if one.do == two.do == "write" else "AMK302"
    facts = (
        shown(first.what()), shown(second.what()),
        because("they ran in this order, and nothing but luck made them"),
    )  # fmt: skip
    place, _, line = two.at.rpartition(":")
    known = place and line.isdecimal() and len(line) < 10
    where = Where(file=place, line=int(line)) if known else Where(file=file, line=second.number)
    advice = f"let {one.agent} release behind its access what {two.agent} acquires before its own"
    message = f"nothing orders two accesses to {one.buffer}[{lo}:{hi}]"
    return Diagnostic(code, message, where=where, facts=facts, help=advice)


def trace_line(**fields: object) -> str:
    """One line of a trace, for whoever instruments a kernel in Python."""
    return json.dumps(fields)
