"""What other processes leave for a running search: suggestions and notes, one file each.

A file is removed once what it says is journaled. Whoever writes files here need not be asked by any server, so what is
unreadable, too large, said twice, or more than may wait or be submitted is removed when it is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from amk.agent.journal.events import NOTE_CHARACTERS
from amk.report.diagnostic import AmkError, Diagnostic

INBOX: Final = "inbox"
INBOX_BYTES = 256 * 1024
MCP, MODEL, SIMULATED = SOURCES = ("mcp", "llm", "simulated")
MOST_WAITING = 32
"""Suggestions of a source."""
MOST_SUBMITTED = 2000
"""Suggestions of a source, in all sessions of a run."""
MOST_NOTES = 200
"""Notes of a source, in a run."""
_JOURNALED: TypeAdapter[Any] = TypeAdapter(Any)


@dataclass(frozen=True)
class Suggestion:
    """`settings` are untrusted values by knob name, `edits` untrusted edits of their plan. `handle` names a suggestion
    from outside. `parent` is the proposal that they change (None: the incumbent of the moment), `other` a second one,
    whose edits were merged. `operator` is the way that the proposer took."""

    proposer: str
    settings: dict[str, Any]
    why: str = ""
    handle: str | None = None
    parent: int | None = None
    edits: tuple[Any, ...] = ()
    other: int | None = None
    operator: str = ""

    def asks_the_same(self, other: Suggestion) -> bool:
        return (self.settings, self.edits) == (other.settings, other.edits)


@dataclass(frozen=True)
class Letter:
    """A note from outside."""

    author: str
    text: str
    handle: str


@dataclass(frozen=True)
class Inbox:
    folder: Path

    def put(
        self, changes: dict[str, Any], why: str, source: str = MCP, edits: Sequence[Any] = (), parent: int | None = None
    ) -> str:
        """Leave a suggestion; returns its handle."""
        record = {"settings": changes, "edits": list(edits), "why": why[:1000], "from": source, "parent": parent}
        return self._leave(record, ".json")

    def put_note(self, text: str, source: str = MCP) -> str:
        """Leave a note; returns its handle."""
        return self._leave({"note": text[:NOTE_CHARACTERS], "from": source}, ".note")

    def _leave(self, record: dict[str, Any], suffix: str) -> str:
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
        write_whole(self.folder / f"{handle}{suffix}", json.dumps(record))
        return handle

    def waiting(self, handles: Collection[str]) -> list[Suggestion]:
        """Suggestions that were not journaled yet, oldest first."""
        return [
            s for path in self._files("*.json") if path.stem not in handles and (s := _suggestion(path)) is not None
        ]

    def take(self, sources: Mapping[str, str]) -> list[Suggestion]:
        """The suggestions that wait, oldest first; others, and those in `sources` (source by handle), are removed."""
        found: list[Suggestion] = []
        waiting, submitted = Counter[str](), Counter(sources.values())
        for path in self._files("*.json"):
            suggestion = None if path.stem in sources else _suggestion(path)
            same = suggestion is not None and any(s.asks_the_same(suggestion) for s in found)
            source = "" if suggestion is None else suggestion.proposer
            room = waiting[source] < MOST_WAITING and waiting[source] + submitted[source] < MOST_SUBMITTED
            if suggestion is None or same or not room:
                _remove(path)
            else:
                found.append(suggestion)
                waiting[source] += 1
        return found

    def notes(self, sources: Mapping[str, str]) -> list[Letter]:
        """The notes that wait, oldest first; others, and those in `sources` (source by handle), are removed."""
        found: list[Letter] = []
        count = Counter(sources.values())
        for path in self._files("*.note"):
            letter = None if path.stem in sources else _letter(path)
            if letter is None or count[letter.author] >= MOST_NOTES:
                _remove(path)
            else:
                found.append(letter)
                count[letter.author] += 1
        return found

    def _files(self, pattern: str) -> list[Path]:
        return sorted(self.folder.glob(pattern)) if self.folder.is_dir() else []


def _record(path: Path) -> dict[str, Any]:
    """{} if there is none to be read, or one that the journal cannot hold. Who reads a pipe waits for ever."""
    try:
        small = path.is_file() and path.stat().st_size <= INBOX_BYTES
        record = json.loads(path.read_text(encoding="utf-8")) if small else {}
        _JOURNALED.dump_json([path.stem, [[[[record]]]]])
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _suggestion(path: Path) -> Suggestion | None:
    record = _record(path)
    settings, why, edits, parent = (record.get(name) for name in ("settings", "why", "edits", "parent"))
    edits = [] if edits is None else edits
    if not isinstance(settings, dict) or not isinstance(why, str) or not isinstance(edits, list):
        return None
    if parent is not None and (not isinstance(parent, int) or isinstance(parent, bool)):
        return None
    return Suggestion(_source(record), settings, why, path.stem, parent, tuple(edits))


def _letter(path: Path) -> Letter | None:
    record = _record(path)
    text = record.get("note")
    return Letter(_source(record), text[:NOTE_CHARACTERS], path.stem) if isinstance(text, str) and text else None


def _source(record: dict[str, Any]) -> str:
    source = record.get("from")
    return source if source in SOURCES else MCP


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def write_whole(path: Path, text: str) -> None:
    """Whole or not at all."""
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise AmkError(Diagnostic("AMK702", f"{path} cannot be written: {error.strerror or error}")) from error
