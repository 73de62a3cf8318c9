"""Where the values of a JSON text stand: JSON pointer -> line, column and extent.

The text is scanned when first asked: most files are never complained of. Lines and columns count from 1, columns in
code points; ends are exclusive.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from amk.report.printable import printable

_TOKEN = re.compile(rb'\s*("(?:[^"\\]|\\.)*+"|[\[\]{},:]|[^\s\[\]{},:"]+)', re.DOTALL)

SHOWN = 120
"""Characters of a value that a diagnostic quotes."""


class Extent(NamedTuple):
    """A value: the line it starts in, and its first and one past its last byte."""

    line: int
    first: int
    last: int


class Region(NamedTuple):
    """A value in lines and columns, with its key and text on one line, cut at `SHOWN` characters."""

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
        text = printable(" ".join((_label(pointer, quoted) + quoted[: 4 * SHOWN]).split()))
        text = text if len(text) <= SHOWN and len(quoted) <= 4 * SHOWN else text[: SHOWN - 3] + "..."
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
