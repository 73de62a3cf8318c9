"""A search under everything that can happen to it at night, through the command itself; seeded and resumable.

    python -m tests.agent.hazards --jobs 16 --record tests/records/search/hazards.json

At a random moment the driver is killed, told to end, or finds the disk full; its write-ahead log, table or mirror is
lost or cut while it is dead; the process of its gate is killed or stopped. Then the search goes on with `--resume`.
After each hazard everything that was acknowledged, which is what both copies of the journal held, has to be there, in
its order; at the end of each search nothing was done twice, EVALS evaluations were made and the limits are the given.

Slices are numbered, ten of them have `SHARES`, and a record goes on with those that it has not. Every session is forked
from the process of its slice, which has imported everything, so a hazard costs seconds and no more.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from amk import cli
from amk.agent.gate.gate import Gate, not_compiled
from amk.agent.gate.pool import GatePool
from amk.agent.journal import copies
from amk.agent.journal.copies import DATABASE, MIRROR, SHM, WAL, Row
from amk.agent.journal.events import Limits
from amk.agent.journal.store import read_state
from amk.agent.run import reports, runs, session
from amk.agent.run.loop import Loop
from amk.agent.run.runs import Plan
from tests import long_run
from tests.agent.kills import children, failures
from tests.agent.rules import fences_kept
from tests.long_run import Run

EVALS = 30
LIMITS = Limits(evals=EVALS, calls=7, dollars=0.5)
WORDS = [
    "autoresearch", "--model", "smollm2-135m", "--gpu", "h200", "--start", "naive", "--max-context", "1024",
    "--proposer", "random", "--no-prior",
]  # fmt: skip
LIMIT_OPTIONS = ["--evals", str(EVALS), "--max-calls", "7", "--max-dollars", "0.5"]
SHARES = {
    "driver killed": 40, "told to end": 25, "log lost": 25, "table truncated": 25, "table emptied": 10,
    "mirror cut": 20, "mirror lost": 5, "disk full": 20, "gate killed": 15, "gate stopped": 15,
}  # fmt: skip
SIMULATED_TIME = "device time is within work time"
"""Not of a simulated device: its seconds are not those of the clock."""
PATIENCE = 120.0
QUICK = (sys.executable, str(Path(__file__).with_name("quick_gate.py")))
SLICES, HAZARDS = 10, 20
"""Slices of a record, and hazards in one."""


@dataclass
class Search:
    """One search; `pid` is the session under way, 0 if there is none."""

    root: Path
    rng: random.Random
    pid: int = 0
    status: int | None = None
    known: tuple[Row, ...] = ()
    problems: list[str] = field(default_factory=list)
    ended: bool = False

    @property
    def folder(self) -> Path | None:
        return next((p for p in self.root.glob("*-smollm2-*") if p.is_dir()), None)

    def start(self, pool: bool = False, room: int | None = None) -> None:
        """Begin a session: with the gate in a process of its own, or with `room` bytes left for its files."""
        self.status = None
        self.pid = os.fork()
        if not self.pid:
            try:
                os._exit(_session(self.root, self.folder, pool, room))
            finally:  # nothing of this process runs in the forked one
                os._exit(98)

    def wait(self, seconds: float = PATIENCE) -> int | None:
        """The exit status of the session, None if it goes on; -9 after a kill."""
        until = time.monotonic() + seconds
        while self.pid:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.pid, self.status = 0, os.waitstatus_to_exitcode(status)
                self.ended |= self.status == 0
            elif time.monotonic() > until:
                return None
            else:
                time.sleep(0.002)
        return self.status

    def reach(self, more: int) -> bool:
        """Wait for so many further events; False if the session ended before."""
        target, until = self.lines() + more, time.monotonic() + PATIENCE
        while self.lines() < target:
            if self.wait(0) is not None:
                return False
            if time.monotonic() > until:
                self.problems.append("the search stands still")
                return False
            time.sleep(0.002)
        time.sleep(self.rng.random() * 0.004)
        return True

    def lines(self) -> int:
        folder = self.folder
        with contextlib.suppress(OSError):
            return (folder / MIRROR).read_bytes().count(b"\n") if folder is not None else 0
        return 0

    def end(self, signum: int) -> int | None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signum)
        return self.wait()

    def acknowledged(self) -> None:
        """All that was on disk is on disk."""
        folder = self.folder
        if folder is None:
            return
        table, mirror = copies.read_table(folder), copies.read_mirror(folder)
        now = copies.agreed(folder, table, mirror)
        if now[: len(self.known)] != self.known:
            self.problems.append(f"acknowledged events are gone: {len(self.known)} were there, now {len(now)}")
        self.known = now[: min(len(table.rows), len(mirror.rows))]

    def finish(self) -> None:
        """Let it end in peace and look at the whole."""
        for _ in range(3):
            if not self.pid and not self.ended:
                self.start()
            if self.wait(600) == 0:
                break
        self.acknowledged()
        folder = self.folder
        if not self.ended or folder is None:
            self.problems.append(f"the search does not end: status {self.status}")
            return
        self.problems += [each for each in failures(folder, EVALS) if each != SIMULATED_TIME]
        state = read_state(folder)
        if any(each.limits != LIMITS for each in state.sessions) or state.limits != LIMITS:
            self.problems.append(f"limits are not those that were given: {state.limits}")
        if not (folder / reports.REPORT).is_file():
            self.problems.append("there is no report")


def _session(root: Path, folder: Path | None, pool: bool, room: int | None) -> int:
    """The command, in the forked process; its exit status."""
    os.setsid()
    gc.enable()  # a slice runs without
    os.environ["AMK_RUNS"], os.environ["ANTHROPIC_API_KEY"] = str(root), "sk-secret"
    with open(root / "log", "a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    if room is not None:
        sizes = [p.stat().st_size for p in folder.glob("journal*")] if folder is not None else []
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(sizes, default=0) + room,) * 2)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    session.gate_of = _pool if pool else _gate
    reports.write_report = partial(reports.write_report, whole=False)
    words = [*WORDS, *(LIMIT_OPTIONS if folder is None else ["--resume", folder.name])]
    if folder is not None and not read_state(folder).run:
        words += LIMIT_OPTIONS  # it died before it had written what was asked for
    try:
        return cli.main(words)
    except BaseException as error:  # noqa: BLE001
        print(repr(error), file=sys.stderr)
        return 99


def _gate(workshop: Any, jobs: int, runs: bool) -> Gate:
    return Gate(workshop, fences_kept, not_compiled)


def _pool(workshop: Any, jobs: int, runs: bool) -> Gate:
    return GatePool(workshop, fences_kept, runs=runs, command=QUICK)


def _cut(path: Path, rng: random.Random) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.truncate(path, rng.randrange(path.stat().st_size + 1))


def _damage(kind: str, folder: Path, rng: random.Random) -> None:
    """What happens to one copy of the journal while nobody has it."""
    if kind == "log lost":
        for name in (WAL, SHM):
            (folder / name).unlink(missing_ok=True)
    elif kind == "table truncated":
        _cut(folder / DATABASE, rng)
    elif kind == "table emptied":
        (folder / DATABASE).write_bytes(b"")
    elif kind == "mirror cut":
        _cut(folder / MIRROR, rng)
    elif kind == "mirror lost":
        (folder / MIRROR).unlink(missing_ok=True)


def strike(kind: str, search: Search) -> bool:
    """One hazard of `kind`; False if the search ended before it could happen."""
    gate, full = kind.startswith("gate"), kind == "disk full"
    if search.pid and (gate or full):
        search.end(signal.SIGKILL)
        search.acknowledged()
    if not search.pid:
        search.start(gate, search.rng.randrange(200, 60_000) if full else None)
    if full:
        return _full(search)
    if not search.reach(search.rng.randint(1, 8)):
        if search.status:
            search.problems.append(f"a session that nobody ended ended with {search.status}")
        return False
    if gate:
        return _gate_struck(kind, search)
    by_sigterm = kind == "told to end"
    status = search.end(signal.SIGTERM if by_sigterm else signal.SIGKILL)
    if status == 0:
        return False
    folder = search.folder
    assert folder is not None
    if by_sigterm and (status != 143 or (read_state(folder).run and not (folder / reports.REPORT).is_file())):
        search.problems.append(f"SIGTERM ended it with {status} or without a report")
    search.acknowledged()
    _damage(kind, folder, search.rng)
    return True


def _full(search: Search) -> bool:
    status = search.wait()
    search.acknowledged()
    if status != 2 and status != 0:
        search.problems.append(f"a full disk ended it with {status}")
    return status != 0


def _gate_struck(kind: str, search: Search) -> bool:
    found = children(search.pid)
    if not found:
        return False
    os.kill(found[0], signal.SIGKILL if kind == "gate killed" else signal.SIGSTOP)
    search.reach(3)  # it goes on by itself
    search.acknowledged()
    return True


@cache
def warm() -> None:
    """One search in this process, so that those that are forked from it have imported and planned before: they propose
    the same. What is left near the best is not looked at, which is written down and decides nothing."""
    workshop = runs.workshop_of(Plan("smollm2-135m", "h200", 1024, "naive", 0, "random", None, LIMITS))
    runs.workshop_of = lambda problem: workshop
    Loop._look_around = lambda self, last=False: None  # type: ignore[method-assign]
    session.gate_of = _gate
    with tempfile.TemporaryDirectory() as root, open(os.devnull, "w") as gone, contextlib.redirect_stdout(gone):
        os.environ["AMK_RUNS"] = root
        cli.main([*WORDS, *LIMIT_OPTIONS])


def orders(number: int, count: int) -> list[str]:
    """The hazards of slice `number`: ten slices of twenty have all shares."""
    kinds = [kind for kind, share in SHARES.items() for _ in range(share)]
    random.Random(number * count // len(kinds)).shuffle(kinds)
    begin = number * count % len(kinds)
    return (kinds + kinds)[begin : begin + count]


def campaign(number: int, count: int = HAZARDS) -> dict[str, Any]:
    """A slice: `count` hazards, in as many searches as they take."""
    warm()
    left = orders(number, count)[::-1]
    hazards: Counter[str] = Counter()
    searches, differences = 0, []
    while left:
        with tempfile.TemporaryDirectory() as root:
            search = Search(Path(root), random.Random(f"{number} {len(left)}"))
            while left and not search.ended and not search.problems:
                if strike(left[-1], search):
                    hazards[left.pop()] += 1
            search.finish()
            log = (Path(root) / "log").read_text(errors="replace")[-300:] if search.problems else ""
            differences += [f"slice {number}, search {searches}: {p} {log}" for p in search.problems]
        searches += 1
    return {"hazards": dict(hazards), "searches": searches, "evaluations": searches * EVALS, "differences": differences}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slices", type=int, default=SLICES)
    parser.add_argument("--record", type=Path, required=True)
    long_run.arguments(parser)
    options = parser.parse_args()
    return long_run.go([Run("search-hazards", campaign, options.record, options.slices, guess=60.0)], options)


if __name__ == "__main__":
    sys.exit(main())
