"""Reading JSON that nobody vouches for: bounded size, bounded depth, no NaN, no repeated keys, no blocking files."""

import json
import math
import os
import re
import stat
from pathlib import Path
from typing import Any

from amk.report.diagnostic import AmkError, Diagnostic, Where, because

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
