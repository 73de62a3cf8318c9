"""The two copies of a journal, a table in SQLite and a file of JSON lines: read, compared by hash chain, made equal.

Property: what `agreed` returns holds every event that either copy holds, or AMK704 says what differs. `make_equal`
overwrites nothing that it has not copied to the folder `damaged` before. Cost: one sha256 an event and copy.

A copy may end early: a lost write-ahead log, an emptied or truncated file, a line cut short. Then the longer valid one
wins, with later events of the other where they continue its chain. A crash leaves neither a changed record nor two
copies that tell different stories, so nobody guesses there. Events missing from the end of both copies cannot be
noticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from amk.report.diagnostic import AmkError, Diagnostic, Where, because

DATABASE = "journal.sqlite3"
MIRROR = "journal.jsonl"
DAMAGED = "damaged"
WAL, SHM = f"{DATABASE}-wal", f"{DATABASE}-shm"
GENESIS = "0" * 64
TABLE = """CREATE TABLE IF NOT EXISTS events (
  seq INTEGER PRIMARY KEY, wall REAL NOT NULL, elapsed REAL NOT NULL, body TEXT NOT NULL, chain TEXT NOT NULL) STRICT"""
INSERT = "INSERT INTO events VALUES (?, ?, ?, ?, ?)"
_BODY = b',"event":'
"""The event comes last in a line, as it was hashed; no field before it can hold this text."""


@dataclass(frozen=True)
class Row:
    """wall: seconds since 1970; elapsed: seconds of work; body: the event as JSON; chain: see `link`."""

    seq: int
    wall: float
    elapsed: float
    body: str
    chain: str

    @property
    def line(self) -> bytes:
        head = json.dumps(
            {"seq": self.seq, "wall": self.wall, "elapsed": self.elapsed, "chain": self.chain}, separators=(",", ":")
        )
        return head[:-1].encode() + _BODY + self.body.encode() + b"}\n"

    @property
    def values(self) -> tuple[int, float, float, str, str]:
        return self.seq, self.wall, self.elapsed, self.body, self.chain


@dataclass(frozen=True)
class Copy:
    """rows: the events up to the first that is not valid. records: all that can be read. lines: complete lines of the
    mirror. damage: what is wrong with the first record that is not valid, or with the file. good: bytes of the valid
    lines of the mirror. torn: its last line is cut short. there: False where there is no file, or an empty one."""

    rows: tuple[Row, ...] = ()
    records: tuple[Row, ...] = ()
    lines: int = 0
    damage: str = ""
    good: int = 0
    torn: bool = False
    there: bool = True


def link(previous: str, elapsed: float, body: str) -> str:
    """Hash that chains a row to its predecessor."""
    return hashlib.sha256(f"{previous}\n{elapsed!r}\n{body}".encode()).hexdigest()


def read_table(folder: Path) -> Copy:
    """The table, without a change to it. sqlite3.OperationalError if it cannot be opened or is locked."""
    path = folder / DATABASE
    if not path.is_file() or not path.stat().st_size:
        return Copy(there=False)  # SQLite would delete the write-ahead log of an empty file
    found: list[Row] = []
    damage = ""
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)) as database:
        try:
            if database.execute("SELECT name FROM sqlite_master WHERE name = 'events'").fetchone():
                for values in database.execute("SELECT seq, wall, elapsed, body, chain FROM events ORDER BY seq"):
                    if None in values or "\0" in values[3] + values[4]:  # what a page of zeros reads as
                        damage = f"event {values[0]} cannot be read"
                    else:
                        found.append(Row(*values))
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            damage = str(error)
    valid, wrong = _valid(found)
    return Copy(valid, tuple(found), damage=wrong or damage)


def read_mirror(folder: Path) -> Copy:
    """The file of lines."""
    try:
        data = (folder / MIRROR).read_bytes()
    except FileNotFoundError:
        return Copy()
    *lines, rest = data.split(b"\n")
    found = list(_complete(lines))
    valid, wrong = _valid(found)
    if not wrong and len(found) < len(lines):
        wrong = f"line {len(found) + 1} cannot be read"
    return Copy(valid, tuple(found), len(lines), wrong, sum(len(line) + 1 for line in lines[: len(valid)]), bool(rest))


def _complete(lines: Iterable[bytes]) -> Iterator[Row]:
    for line in lines:
        head, separator, body = line.partition(_BODY)
        try:
            fields = json.loads(head + b"}")
            row = Row(fields["seq"], fields["wall"], fields["elapsed"], body[:-1].decode(), fields["chain"])
        except (ValueError, KeyError, TypeError):
            return
        if not separator or not body.endswith(b"}"):
            return
        yield row


def _valid(rows: Sequence[Row]) -> tuple[tuple[Row, ...], str]:
    """The rows up to the first that breaks the chain, and how it does."""
    previous = GENESIS
    for number, row in enumerate(rows):
        if row.seq != number + 1:
            return tuple(rows[:number]), f"event {number + 1} is missing"
        if link(previous, row.elapsed, row.body) != row.chain:
            return tuple(rows[:number]), f"event {row.seq} does not match its hash: it was changed after it was written"
        previous = row.chain
    return tuple(rows), ""


def agreed(folder: Path, table: Copy, mirror: Copy) -> tuple[Row, ...]:
    """The events of the longer copy, and those of the table that follow on the mirror's where a part of the table
    before them is lost. AMK704 where an event might be lost or was changed."""
    longer = max(table.rows, mirror.rows, key=len)
    bridged = len(mirror.rows) > len(table.rows)
    if bridged:
        longer = _followed(longer, table.records)
    for row in table.records:
        same = mirror.rows[row.seq - 1 : row.seq]
        known = same or (bridged and row.seq <= len(longer))
        if (same and same[0] != row) or (table.damage and not known):
            raise damaged(
                folder, table.damage or f"table and mirror differ from event {row.seq} on",
                f"event {row.seq} of the table is {row.body[:200]}",
                f"that of the mirror is {same[0].body[:200]}" if same else f"the mirror ends at {len(mirror.rows)}",
                f"`amk report` shows a run as one copy has it when the other, {DATABASE} or {MIRROR}, is moved away",
            )  # fmt: skip
    if mirror.lines > len(longer):
        what = f"the mirror has {mirror.lines} lines, and {mirror.damage}"
        raise damaged(folder, what, f"the table ends at event {len(table.rows)}")
    if mirror.torn and len(longer) == len(mirror.rows) and (table.damage or table.rows != mirror.rows):
        what = f"the table ends at event {len(table.rows)}, the mirror within event {len(mirror.rows) + 1}"
        raise damaged(folder, what, f"to go on without later events, delete the last line of {MIRROR}")
    return longer


def _followed(rows: tuple[Row, ...], records: Iterable[Row]) -> tuple[Row, ...]:
    """`rows` and the records that continue their chain."""
    found, later = list(rows), {row.seq: row for row in records}
    while (row := later.get(len(found) + 1)) is not None and link(found[-1].chain, row.elapsed, row.body) == row.chain:
        found.append(row)
    return tuple(found)


def make_equal(folder: Path, table: Copy, mirror: Copy, rows: Sequence[Row]) -> list[str]:
    """Bring both copies to `rows`, which extend either; what was done beyond completing a mirror that ends early.
    Killed at any moment, it leaves one copy whole, and can be repeated. OSError or sqlite3.Error if it cannot."""
    did: list[str] = []
    missing = len(rows) - len(table.rows)
    if missing or table.damage:
        did.append(f"{max(0, len(mirror.rows) - len(table.rows))} events were read back from {MIRROR}")
        _rebuild(folder, rows, did)
    wanted = b"".join(row.line for row in rows[len(mirror.rows) :])
    path = folder / MIRROR
    tail = b""
    if path.exists():
        with open(path, "rb") as file:
            file.seek(mirror.good)
            tail = file.read()
    if wanted.startswith(tail):
        with open(path, "ab") as file:
            file.write(wanted[len(tail) :])
        return did
    did.append(f"{MIRROR} was written anew, the old one is {set_aside(folder, (MIRROR,))}")
    fresh = path.with_suffix(".new")
    with open(fresh, "wb") as file:
        file.write(b"".join(row.line for row in rows))
        os.fsync(file.fileno())
    os.replace(fresh, path)
    return did


def _rebuild(folder: Path, rows: Sequence[Row], did: list[str]) -> None:
    """The table made anew from `rows`, the old one set aside."""
    old = [name for name in (DATABASE, WAL, SHM) if (folder / name).is_file() and (folder / name).stat().st_size]
    if old:
        did.append(f"what was left of the table is {set_aside(folder, old)}")
    fresh = folder / f"{DATABASE}.new"
    fresh.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(fresh)) as database, database:
        database.execute("PRAGMA synchronous=FULL")
        database.execute(TABLE)
        database.executemany(INSERT, [row.values for row in rows])
    for name in (WAL, SHM):  # of the old table: they would be read into the new one
        (folder / name).unlink(missing_ok=True)
    os.replace(fresh, folder / DATABASE)


def set_aside(folder: Path, names: Iterable[str]) -> Path:
    """Copies of files of the run, on disk before anything replaces them; the folder they are in."""
    place = folder / DAMAGED / f"{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**9:09d}"
    place.mkdir(parents=True)
    for name in names:
        shutil.copy2(folder / name, place / name)
        with open(place / name, "rb") as file:
            os.fsync(file.fileno())
    return place


def damaged(folder: Path, what: str, *facts: str) -> AmkError:
    where = Where(file=str(folder / DATABASE))
    reasons = tuple(because(fact) for fact in facts)
    return AmkError(Diagnostic("AMK704", f"the journal is damaged: {what}", where=where, facts=reasons))
