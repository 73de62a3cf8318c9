"""Long columns of a JSON text, read as arrays before the rest of the text is looked at.

Property: `lifted` gives a text that parses to the same value but for lists that hold one number which is nowhere in the
original; each stands for an array with exactly the integers that JSON says are there. Lists that are no plain JSON
integers within 64 bits stay in the text, so that whoever reads it complains of them at their place.

Cost: a few passes of numpy over the bytes, some 40 ns for each number.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np

from amk.systems.flat_judge import I64

LONG: Final = 4096
"""Bytes of the shortest list that is lifted."""
_LIST: Final = re.compile(rb"\[([-0-9,\s]{%d,}+)\]" % LONG)
_SPACED: Final = re.compile(rb"[-0-9]\s++[-0-9]")
_SPACE: Final = b" \t\n\r"
_COMMA, _MINUS, _ZERO, _NINE = b",-09"
DIGITS: Final = 18
"""So many digits fit in 64 bits for sure."""
Lifted = dict[int, I64]


def lifted(content: bytes) -> tuple[bytes, Lifted]:
    """The text without its long columns, and these by the number that stands for each."""
    base = _unused(content)
    found: Lifted = {}

    def replaced(match: re.Match[bytes]) -> bytes:
        column = integers(match.group(1))
        if column is None:
            return match.group()
        found[base + len(found)] = column
        return b"[%d]" % (base + len(found) - 1)

    return _LIST.sub(replaced, content), found


def _unused(content: bytes) -> int:
    """Numbers from here on begin with digits that are nowhere in the text."""
    base = 7 * 10**24
    while str(base)[:12].encode() in content:
        base += 10**13
    return base


def integers(text: bytes) -> I64 | None:
    """The numbers between the brackets of a JSON list; None if they are not plain integers within 64 bits."""
    if any(space in text for space in (b" ", b"\n", b"\t", b"\r")):
        if _SPACED.search(text):
            return None
        text = text.translate(None, _SPACE)
    digits = np.frombuffer(text, dtype=np.uint8)
    if not len(digits) or not _plain(digits):
        return None
    return np.fromstring(text, dtype=np.int64, sep=",")


def _plain(text: Any) -> bool:
    """Every number is `0` or up to 18 digits that do not begin with 0, with a minus at most."""
    ends = np.append(np.flatnonzero(text == _COMMA), len(text))
    first = np.append(0, ends[:-1] + 1)
    if first[-1] >= len(text):
        return False
    negative = text[first] == _MINUS
    digit = first + negative
    size = ends - digit
    if int(size.min()) < 1 or int(size.max()) > DIGITS:
        return False
    signs = len(ends) - 1 + int(np.count_nonzero(negative))
    if int(np.count_nonzero((text >= _ZERO) & (text <= _NINE))) + signs != len(text):
        return False
    # JSON knows neither 00 nor 07
    return not bool(((text[digit] == _ZERO) & (size > 1)).any())


def stand_ins(value: Any) -> int:
    """How many lists of one such number are in a parsed value, at most the lists of one integer."""
    count, stack = 0, [value]
    while stack:
        at = stack.pop()
        if isinstance(at, dict):
            stack += at.values()
        elif isinstance(at, list):
            if len(at) == 1 and type(at[0]) is int:
                count += at[0] >= 7 * 10**24
            elif at and isinstance(at[0], list | dict):
                stack += at
    return count
