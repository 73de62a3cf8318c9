"""JSON that nobody vouches for: reading it, and where its values stand.

Reading: bounded size, bounded depth, no NaN, no repeated keys, no blocking files.

Positions: JSON pointer -> line, column and extent. The text is scanned when first asked, because most files are never
complained of. Lines and columns count from 1, columns in code points; ends are exclusive.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from amk.report.diagnostic import AmkError, Diagnostic, Where, because, printable

MAX_DEPTH = 32
MAX_DIGITS = 40  # of one number; longer ones make integer conversion quadratic

# Possessive, so that no text (unterminated strings and runs of backslashes included) costs more than linear time.
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)


def read_bytes(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes; AMK001 if it cannot be read, AMK002 if it is larger."""
    try:
        # A FIFO blocks in open() and a device never ends, so both are excluded before anything is read.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise _unreadable(path, "it is not a regular file")
            content = file.read(limit + 1) if status.st_size <= limit else b""
            if status.st_size > limit or len(content) > limit:
                size = max(status.st_size, len(content))
                raise AmkError(
                    Diagnostic("AMK002", f"{size:,} bytes, the limit is {limit:,}", where=Where(file=str(path)))
                )
            return content
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        raise _unreadable(path, error.strerror or str(error) if isinstance(error, OSError) else str(error)) from error


def read_json(path: Path, limit: int) -> Any:
    """The JSON value in `path`; AMK001, 002, 003, 005, 006 or 007 as an AmkError otherwise."""
    return parse_json(read_bytes(path, limit), str(path))


def parse_json(content: bytes, file: str) -> Any:
    """The JSON value of `content`; `file` only names the place in diagnostics."""
    _check_depth(content, file)
    try:
        return json.loads(
            content.decode("utf-8-sig"),
            parse_int=lambda text: _integer(text, file),
            parse_float=lambda text: _finite(text, file),
            parse_constant=lambda text: _finite(text, file),
            object_pairs_hook=lambda pairs: _unique(pairs, file),
        )
    except UnicodeDecodeError as error:
        place = f"not UTF-8 text at byte {error.start}"
        raise AmkError(Diagnostic("AMK001", place, where=Where(file=file))) from error
    except json.JSONDecodeError as error:
        where = Where(file=file, line=error.lineno, column=error.colno)
        raise AmkError(Diagnostic("AMK001", f"not JSON: {error.msg}", where=where)) from error


def _unreadable(path: Path, reason: str) -> AmkError:
    return AmkError(Diagnostic("AMK001", f"cannot read the file: {reason}", where=Where(file=str(path))))


def _check_depth(content: bytes, file: str) -> None:
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(content):
        token = match.group()
        if token in (b"[", b"{"):
            depth += 1
            if depth > MAX_DEPTH:
                line = content.count(b"\n", 0, match.start()) + 1
                message = f"nested more than {MAX_DEPTH} levels deep"
                raise AmkError(Diagnostic("AMK003", message, where=Where(file=file, line=line)))
        elif token in (b"]", b"}"):
            depth -= 1


def _integer(text: str, file: str) -> int:
    if len(text) > MAX_DIGITS:
        raise AmkError(Diagnostic("AMK005", f"a number of {len(text):,} digits", where=Where(file=file)))
    return int(text)


def _finite(text: str, file: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        message = f"{text[:MAX_DIGITS]} is not a finite 64-bit number"
        raise AmkError(Diagnostic("AMK006", message, where=Where(file=file)))
    return value


def _unique(pairs: list[tuple[str, Any]], file: str) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        facts = (because("parsers disagree about which of two equal keys counts"),)
        raise AmkError(
            Diagnostic("AMK007", f"key '{twice[:80]}' appears twice in one object", where=Where(file=file), facts=facts)
        )
    return fields


_TOKEN = re.compile(rb'\s*("(?:[^"\\]|\\.)*+"|[\[\]{},:]|[^\s\[\]{},:"]+)', re.DOTALL)

MOST_CHARACTERS = 120
"""Characters of a value that a diagnostic quotes."""


class Extent(NamedTuple):
    """A value: the line it starts in, and its first and one past its last byte."""

    line: int
    first: int
    last: int


class Region(NamedTuple):
    """A value in lines and columns, with its key and text on one line, cut at `MOST_CHARACTERS` characters."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str


class Positions(Mapping[str, int]):
    """JSON pointer -> line of the value in `content`, which is known to be JSON.

    within: pointer of the value that pointers start from.
    """

    def __init__(self, content: bytes, within: str = "") -> None:
        self._content, self._within = content, within
        self._extents: dict[str, Extent] | None = None

    @property
    def extents(self) -> dict[str, Extent]:
        if self._extents is None:
            found, start = _scan(self._content), len(self._within)
            inside = (self._within, self._within + "/")
            self._extents = {p[start:]: e for p, e in found.items() if p == inside[0] or p.startswith(inside[1])}
        return self._extents

    def __getitem__(self, pointer: str) -> int:
        return self.extents[pointer].line

    def __iter__(self) -> Iterator[str]:
        return iter(self.extents)

    def __len__(self) -> int:
        return len(self.extents)

    def enclosing(self, pointer: str) -> str:
        """The pointer itself, or the closest one around it that is in the text."""
        while pointer and pointer not in self.extents:
            pointer = pointer.rpartition("/")[0]
        return pointer

    def nearest(self, pointer: str) -> int | None:
        """The line of the value, or of the closest enclosing one."""
        found = self.extents.get(self.enclosing(pointer))
        return None if found is None else found.line

    def place(self, byte: int) -> tuple[int, int]:
        """(line, column) of a byte."""
        start = self._content.rfind(b"\n", 0, byte) + 1
        line = self._content.count(b"\n", 0, byte) + 1
        return line, len(self._content[start:byte].decode("utf-8", "replace")) + 1

    def region(self, pointer: str) -> Region | None:
        """The value, or the closest enclosing one."""
        pointer = self.enclosing(pointer)
        extent = self.extents.get(pointer)
        if extent is None:
            return None
        quoted = self._content[extent.first : extent.last].decode("utf-8", "replace")
        text = printable(" ".join((_label(pointer, quoted) + quoted[: 4 * MOST_CHARACTERS]).split()))
        text = (
            text
            if len(text) <= MOST_CHARACTERS and len(quoted) <= 4 * MOST_CHARACTERS
            else text[: MOST_CHARACTERS - 3] + "..."
        )
        return Region(*self.place(extent.first), *self.place(extent.last), text)

    @property
    def text(self) -> str:
        """The whole text."""
        return self._content.decode("utf-8")


def _label(pointer: str, quoted: str) -> str:
    """The key of a value, or the list and index of a scalar; an object in a list speaks for itself."""
    *_, around, key = ("", *pointer.split("/"))
    if not key.isdigit():
        return f'"{key}": ' if key else ""
    return "" if quoted[0] in "{[" or not around else f'"{around}"[{key}]: '


def _scan(content: bytes) -> dict[str, Extent]:
    """Extents of all values of a text that is known to be JSON."""
    extents: dict[str, Extent] = {}
    stack: list[list[str | int]] = []  # per open bracket: the current key, or the index
    opened: list[str] = []
    line, at, expects_key = 1, 0, False
    for match in _TOKEN.finditer(content):
        token, first, last = match.group(1), match.start(1), match.end(1)
        line += content.count(b"\n", at, first)
        at = first
        if token in (b"}", b"]"):
            stack.pop()
            pointer = opened.pop()
            extents[pointer] = extents[pointer]._replace(last=last)
            expects_key = False
        elif token == b",":
            top = stack[-1]
            expects_key = isinstance(top[0], str)
            top[0] = top[0] if isinstance(top[0], str) else top[0] + 1
        elif token == b":":
            expects_key = False
        elif expects_key:
            stack[-1][0] = str(json.loads(token))
        else:
            pointer = "".join("/" + str(frame[0]).replace("~", "~0").replace("/", "~1") for frame in stack)
            extents[pointer] = Extent(line, first, last)
            if token in (b"{", b"["):
                stack.append(["" if token == b"{" else 0])
                opened.append(pointer)
                expects_key = token == b"{"
    return extents


MAX_FILE: Final = 512 * 2**20
"""Bytes that a file of a flat system may have."""
_SAYS_SO: Final = re.compile(rb'"format"\s*:\s*"amk\.(flat|loops)/')


def format_of(path: Path) -> str | None:
    """`flat` or `loops`, of this or another version, as the file says; None for others and unreadable files."""
    try:
        found = _SAYS_SO.search(read_bytes(path, MAX_FILE))
    except AmkError:
        return None
    return None if found is None else found.group(1).decode()
