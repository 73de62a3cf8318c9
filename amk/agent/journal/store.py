"""The journal of a run: an append-only table in SQLite, mirrored as JSON lines.

Property: once `append` has returned, the event survives `kill -9` and power loss (WAL, synchronous=FULL); an event that
was being written is either there in full or not at all. One process writes, under a file lock that dies with it.
Every record of both copies carries the hash of its content and of its predecessor's. Opening compares the copies
(`copies.py`): what one lost is read back from the other, and an edited or missing record is noticed. The write-ahead
log is moved into the table every CHECKPOINT events and at the end, so that little depends on it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Self

from pydantic import ValidationError

from amk.agent.journal import copies
from amk.agent.journal.copies import DATABASE, GENESIS, MIRROR, Row, link
from amk.agent.journal.events import EVENT, AnyEvent, Repaired
from amk.agent.journal.state import State
from amk.report.diagnostic import AmkError, Diagnostic, Exit, Where, because

LOCK = "driver.lock"
CHECKPOINT = 64
"""Events between two checkpoints, of a second or less each on a GPU."""


class Journal:
    """Opened for writing by one driver. Thread safe: the thread that talks to a language model writes money here too.

    Raises AMK702 when it cannot be written, AMK704 when it is damaged, AMK705 when another process has it.
    `repairs` says what was wrong with one of the copies and is now mended.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self._clock = folder, clock
        self._mutex = threading.RLock()
        self._failed: AmkError | None = None
        self._lock = _lock(folder)
        try:
            rows, self.repairs = _opened(folder)
            self._db = _connect(folder / DATABASE)
            self._db.execute(copies.TABLE)
            self.state = folded(folder, rows)
            self._chain, self._seq = (rows[-1].chain, rows[-1].seq) if rows else (GENESIS, 0)
            self._mirror = open(folder / MIRROR, "ab")  # noqa: SIM115  held for the life of the journal
        except (sqlite3.Error, OSError) as error:
            self._lock.close()
            raise _unwritable(folder, error) from error
        except AmkError:
            self._lock.close()
            raise
        self._origin = self.state.elapsed - clock()
        if self.repairs:
            self.append(Repaired(what="; ".join(self.repairs)[:4000]))

    @property
    def elapsed(self) -> float:
        """Seconds of work so far: those of earlier sessions plus the monotonic clock of this one."""
        return max(self._origin + self._clock(), self.state.elapsed)

    def append(self, event: AnyEvent) -> None:
        """Write one event and take it into the state; when this returns it is on disk. What interrupts it ends the
        journal: nobody knows whether the event was written before it is opened again."""
        with self._mutex:
            if self._failed is not None:
                raise self._failed
            body, elapsed = event.model_dump_json(), round(self.elapsed, 6)
            row = Row(self._seq + 1, time.time(), elapsed, body, link(self._chain, elapsed, body))
            try:
                with self._db:
                    self._db.execute(copies.INSERT, row.values)
                self._mirror.write(row.line)
                self._mirror.flush()
                if not row.seq % CHECKPOINT:
                    self._checkpoint("PASSIVE")
            except BaseException as error:
                known = isinstance(error, (sqlite3.Error, OSError))
                self._failed = _unwritable(self.folder, error if known else OSError("it was interrupted"))
                if known:
                    raise self._failed from error
                raise
            self._chain, self._seq = row.chain, row.seq
            self.state.apply(event, elapsed)

    def _checkpoint(self, mode: str) -> None:
        os.fsync(self._mirror.fileno())
        self._db.execute(f"PRAGMA wal_checkpoint({mode})")

    def locked(self) -> threading.RLock:
        """Held around a decision and the append that depends on it, such as a reservation."""
        return self._mutex

    def close(self) -> None:
        with self._mutex:
            with contextlib.suppress(sqlite3.Error, OSError):  # what was acknowledged is on disk already
                self._checkpoint("TRUNCATE")
            with contextlib.suppress(OSError):  # bytes of an event that failed
                self._mirror.close()
            self._db.close()
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _opened(folder: Path) -> tuple[tuple[Row, ...], list[str]]:
    """The events of both copies, made equal, and what had to be mended."""
    table, mirror = copies.read_table(folder), copies.read_mirror(folder)
    rows = copies.agreed(folder, table, mirror)
    log = folder / copies.WAL
    if not rows and (table.damage or (log.is_file() and log.stat().st_size and not table.there)):
        raise copies.damaged(folder, f"no event can be read: {table.damage or 'the table is gone'}")
    return rows, copies.make_equal(folder, table, mirror, rows)


def read_state(folder: Path) -> State:
    """The state of a run that may be in use: read only, both copies compared. AMK704 if they are damaged."""
    try:
        table, mirror = copies.read_table(folder), copies.read_mirror(folder)
    except (sqlite3.Error, OSError) as error:
        raise copies.damaged(folder, str(error)) from error
    return folded(folder, copies.agreed(folder, table, mirror))


def exists(folder: Path) -> bool:
    """Whether a run was begun there: either copy of its journal is enough."""
    return (folder / DATABASE).is_file() or (folder / MIRROR).is_file()


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


def folded(folder: Path, rows: Iterable[Row]) -> State:
    """The state that the rows add up to."""
    state = State()
    for row in rows:
        _apply(folder, state, row.elapsed, row.body)
    return state


def _apply(folder: Path, state: State, elapsed: float, body: str) -> None:
    try:
        state.apply(EVENT.validate_json(body), elapsed)
    except (ValidationError, KeyError, IndexError) as error:
        raise copies.damaged(folder, f"event {state.events + 1} cannot be read: {type(error).__name__}") from error


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


def _unwritable(folder: Path, error: BaseException) -> AmkError:
    text = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    facts = (because("a run that cannot be written down stops; what was written before is intact"),)
    diagnostic = Diagnostic(
        "AMK702", f"the journal cannot be written: {text}", where=Where(file=str(folder)), facts=facts,
        help="make room or make the directory writable, then continue with --resume",
    )  # fmt: skip
    return AmkError(diagnostic, Exit.INPUT)
