"""The journal of a run: an append-only table in SQLite, mirrored as JSON lines.

Property: once `append` has returned, the event survives `kill -9` and power loss (WAL, synchronous=FULL); an event that
was being written is either there in full or not at all. One process writes, under a file lock that dies with it.
Every row carries the hash of its content and of its predecessor's, so that an edited or missing row is noticed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Self

from pydantic import ValidationError

from amk.agent.events import EVENT, AnyEvent
from amk.agent.state import State
from amk.report.diagnostic import AmkError, Diagnostic, Exit, Where, because

DATABASE = "journal.sqlite3"
MIRROR = "journal.jsonl"
LOCK = "driver.lock"
_TABLE = """CREATE TABLE IF NOT EXISTS events (
  seq INTEGER PRIMARY KEY, wall REAL NOT NULL, elapsed REAL NOT NULL, body TEXT NOT NULL, chain TEXT NOT NULL) STRICT"""
GENESIS = "0" * 64


def link(previous: str, elapsed: float, body: str) -> str:
    """Hash that chains a row to its predecessor."""
    return hashlib.sha256(f"{previous}\n{elapsed!r}\n{body}".encode()).hexdigest()


class Journal:
    """Opened for writing by one driver. Thread safe: the thread that talks to a language model writes money here too.

    Raises AMK702 when it cannot be written, AMK704 when it is damaged, AMK705 when another process has it.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self._clock = folder, clock
        self._mutex = threading.RLock()
        self._failed: AmkError | None = None
        self._lock = _lock(folder)
        try:
            self._db = _connect(folder / DATABASE)
            self._db.execute(_TABLE)
            self.state = State()
            self._chain, self._seq = GENESIS, 0
            for seq, elapsed, body, chain in _rows(self._db):
                self._chain = _checked(folder, self._seq, self._chain, seq, elapsed, body, chain)
                self._seq = seq
                _apply(folder, self.state, elapsed, body)
            self._mirror = _open_mirror(folder, self._db, self._seq)
        except (sqlite3.Error, OSError) as error:
            self._lock.close()
            raise _unwritable(folder, error) from error
        except AmkError:
            self._lock.close()
            raise
        self._origin = self.state.elapsed - clock()

    @property
    def elapsed(self) -> float:
        """Seconds of work so far: those of earlier sessions plus the monotonic clock of this one."""
        return max(self._origin + self._clock(), self.state.elapsed)

    def append(self, event: AnyEvent) -> None:
        """Write one event and take it into the state; when this returns it is on disk."""
        with self._mutex:
            if self._failed is not None:
                raise self._failed
            body, elapsed = event.model_dump_json(), round(self.elapsed, 6)
            chain, seq, wall = link(self._chain, elapsed, body), self._seq + 1, time.time()
            try:
                with self._db:
                    self._db.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", (seq, wall, elapsed, body, chain))
                _write_line(self._mirror, seq, elapsed, body, chain)
            except (sqlite3.Error, OSError) as error:
                self._failed = _unwritable(self.folder, error)
                raise self._failed from error
            self._chain, self._seq = chain, seq
            self.state.apply(event, elapsed)

    def locked(self) -> threading.RLock:
        """Held around a decision and the append that depends on it, such as a reservation."""
        return self._mutex

    def close(self) -> None:
        with self._mutex:
            self._mirror.close()
            self._db.close()
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_state(folder: Path) -> State:
    """The state of a run that may be in use: read only, chain checked."""
    state, previous, last = State(), GENESIS, 0
    try:
        database = sqlite3.connect(f"{(folder / DATABASE).absolute().as_uri()}?mode=ro", uri=True, timeout=10)
        try:
            for seq, elapsed, body, chain in _rows(database):
                previous = _checked(folder, last, previous, seq, elapsed, body, chain)
                last = seq
                _apply(folder, state, elapsed, body)
        finally:
            database.close()
    except sqlite3.Error as error:
        raise _damaged(folder, str(error)) from error
    return state


def is_busy(folder: Path) -> bool:
    """Whether a live driver has the run."""
    try:
        with open(folder / LOCK, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=10, check_same_thread=False)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    return database


def _rows(database: sqlite3.Connection) -> Iterator[tuple[int, float, str, str]]:
    yield from database.execute("SELECT seq, elapsed, body, chain FROM events ORDER BY seq")


def _checked(folder: Path, last: int, previous: str, seq: int, elapsed: float, body: str, chain: str) -> str:
    if seq != last + 1:
        raise _damaged(folder, f"event {last + 1} is missing")
    if link(previous, elapsed, body) != chain:
        raise _damaged(folder, f"event {seq} does not match its hash: it was changed after it was written")
    return chain


def _apply(folder: Path, state: State, elapsed: float, body: str) -> None:
    try:
        state.apply(EVENT.validate_json(body), elapsed)
    except (ValidationError, KeyError, IndexError) as error:
        raise _damaged(folder, f"event {state.events + 1} cannot be read: {type(error).__name__}") from error


def _lock(folder: Path) -> IO[bytes]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / LOCK, "ab")  # noqa: SIM115  held for the life of the journal
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        message = f"run {folder.name} is in use by another process"
        raise AmkError(Diagnostic("AMK705", message, where=Where(file=str(folder)))) from error
    return file


def _open_mirror(folder: Path, database: sqlite3.Connection, last: int) -> IO[str]:
    """The mirror, brought up to the table: a torn last line is cut, missing lines are written."""
    path = folder / MIRROR
    count, good = 0, 0
    if path.exists():
        with open(path, "rb") as file:
            for line in file:
                if not line.endswith(b"\n") or count == last:
                    break
                count, good = count + 1, good + len(line)
        os.truncate(path, good)
    mirror = open(path, "a", encoding="utf-8")  # noqa: SIM115  held for the life of the journal
    for seq, elapsed, body, chain in _rows(database):
        if seq > count:
            _write_line(mirror, seq, elapsed, body, chain)
    return mirror


def _write_line(mirror: IO[str], seq: int, elapsed: float, body: str, chain: str) -> None:
    record = {"seq": seq, "elapsed": elapsed, "event": json.loads(body), "chain": chain}
    mirror.write(json.dumps(record, separators=(",", ":")) + "\n")
    mirror.flush()


def _unwritable(folder: Path, error: Exception) -> AmkError:
    text = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    facts = (because("a run that cannot be written down stops; what was written before is intact"),)
    diagnostic = Diagnostic(
        "AMK702", f"the journal cannot be written: {text}", where=Where(file=str(folder)), facts=facts,
        help="make room or make the directory writable, then continue with --resume",
    )  # fmt: skip
    return AmkError(diagnostic, Exit.INPUT)


def _damaged(folder: Path, what: str) -> AmkError:
    return AmkError(Diagnostic("AMK704", f"the journal is damaged: {what}", where=Where(file=str(folder / DATABASE))))
