"""`kill -9` of driver, supervisor and worker at random moments of a search, then resume.

    python -m tests.agent.kills --jobs 16 --record tests/records/search/search-kills.json

Every kind of process is killed `KILLS` times in a slice with a real SIGKILL; a killed driver is started again on the
same run. Searches of `EVALS` evaluations follow each other until all kills are spent; after every kill and at every
end the journal is examined: what was acknowledged is still there, nothing was measured twice, the budgets are right.
Slices are numbered, and number is seed: a record goes on with those that it has not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from amk.agent.journal.copies import DATABASE
from amk.agent.journal.events import EVENT, AnyEvent, Decided, Faulted, LeaseReserved, Measured
from amk.agent.journal.store import read_state
from tests import long_run
from tests.agent import search_program
from tests.long_run import Run

KINDS = ("driver", "supervisor", "worker")
SLICES, KILLS = 20, 5
"""Slices of a record, and kills of each kind in one."""
EVALS = 40
LONGEST = 2.0
"""Seconds at most between the processes being there and the kill."""
PATIENCE = 60.0


def children(pid: int) -> list[int]:
    """Living children of a process."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = place.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state not in "ZX":
                found.append(int(place.parent.name))
    return found


def descendants(pid: int) -> list[int]:
    """A process and all below it."""
    return [pid, *(below for child in children(pid) for below in descendants(child))]


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def rows(folder: Path) -> list[tuple[int, float, str, str]]:
    """(seq, elapsed, body, chain) of everything that is on disk."""
    if not (folder / DATABASE).exists():
        return []
    with contextlib.closing(sqlite3.connect(f"file:{folder / DATABASE}?mode=ro", uri=True, timeout=10)) as database:
        try:
            return list(database.execute("SELECT seq, elapsed, body, chain FROM events ORDER BY seq"))
        except sqlite3.OperationalError:  # killed before the table was made
            return []


def failures(folder: Path, evals: int) -> list[str]:
    """What is wrong with the journal of a finished search."""
    state = read_state(folder)
    events: list[AnyEvent] = [EVENT.validate_json(body) for _, _, body, _ in rows(folder)]
    measured = Counter((e.index, e.phase, e.against) for e in events if isinstance(e, Measured) and e.index >= 0)
    leases = Counter((e.index, e.phase, e.attempt, e.device) for e in events if isinstance(e, LeaseReserved))
    settled = Counter(
        (e.index, e.phase, e.attempt, e.device) for e in events if isinstance(e, (Measured, Faulted)) and e.index >= 0
    )
    seconds = sum(e.seconds for e in events if isinstance(e, (Measured, Faulted)))
    decided = Counter(e.index for e in events if isinstance(e, Decided))
    keys = [t.key for t in state.trials if t.evaluated]
    elapsed = [e for _, e, _, _ in rows(folder)]
    checks = {
        "the search is finished": state.finished is not None,
        "no lease is open": not state.leases,
        "no proposal is open": not state.open_trials,
        f"{evals} evaluations were made": state.evals == evals == len(keys),
        "no program was evaluated twice": len(keys) == len(set(keys)),
        "no phase was measured twice": max(measured.values(), default=0) <= 1,
        "every lease was settled once": all(settled[place] == 1 for place in leases if place[0] >= 0)
        and max(settled.values(), default=0) <= 1,
        "every proposal was decided once": max(decided.values(), default=0) <= 1,
        "device seconds add up": abs(seconds - state.gpu_seconds) < 1e-6,
        "work time never runs back": elapsed == sorted(elapsed),
        "device time is within work time": state.gpu_seconds <= state.elapsed + 1.0,
    }
    return [what for what, good in checks.items() if not good]


@dataclass
class Search:
    """One search under fire."""

    folder: Path
    evals: int
    rng: random.Random
    driver: subprocess.Popen[bytes] | None = None
    known: list[tuple[int, float, str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    stops: int = 0
    moments: Counter[str] = field(default_factory=Counter)

    def start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
        words = [sys.executable, search_program.__file__, str(self.folder), str(self.evals), "server"]
        self.driver = subprocess.Popen(words, env=environment, start_new_session=True)

    def kill(self, kind: str) -> bool:
        """Kill one process of `kind` at a random moment; False if the search ended first."""
        if self.driver is not None and self.driver.poll() not in (None, 0):
            self.stopped()
        if self.driver is None:
            self.start()
        assert self.driver is not None
        family = self._family(kind)
        if family is None:
            return False
        time.sleep(self.rng.random() * LONGEST)
        if self.driver.poll() is not None:
            return False
        doomed = descendants(family[-1])
        try:
            os.kill(family[-1], signal.SIGKILL)
        except ProcessLookupError:  # it ended by itself
            return False
        if kind == "driver":
            self.driver.wait()
            self.driver = None
        self._nobody_left(doomed, kind)
        self._acknowledged()
        return True

    @property
    def ended(self) -> bool:
        """Whether the search came to its end, which leaves nothing to be killed."""
        return self.driver is not None and self.driver.poll() == 0

    def stopped(self) -> None:
        """A driver whose worker is killed again and again before anything was measured gives the device up, says so
        and ends; it is started again like a killed one."""
        assert self.driver is not None
        if not read_state(self.folder).quarantined:
            self.problems.append(f"the driver ended with status {self.driver.returncode} and no reason")
        self.stops, self.driver = self.stops + 1, None

    def finish(self) -> None:
        """Let it end in peace and look at the whole."""
        for _ in range(2):
            if self.driver is None:
                self.start()
            assert self.driver is not None
            if self.driver.wait(timeout=600) == 0:
                break
            self.stopped()
        self._acknowledged()
        self.problems += failures(self.folder, self.evals)

    def _family(self, kind: str) -> list[int] | None:
        """Pids from the driver down to one of `kind`, waited for; None when the search has ended."""
        assert self.driver is not None
        until = time.monotonic() + PATIENCE
        depth = KINDS.index(kind)
        while time.monotonic() < until and self.driver.poll() is None:
            line = [self.driver.pid]
            while len(line) <= depth and (below := children(line[-1])):
                line.append(below[0])
            if len(line) > depth:
                return line
            time.sleep(0.005)
        return None

    def _nobody_left(self, doomed: list[int], kind: str) -> None:
        """What stands below a killed process ends with it."""
        until = time.monotonic() + 10
        while any(map(alive, doomed)) and time.monotonic() < until:
            time.sleep(0.01)
        if any(map(alive, doomed)):
            self.problems.append(f"a process outlived the kill of its {kind}")

    def _acknowledged(self) -> None:
        """Everything that was on disk is on disk."""
        last = json.loads(self.known[-1][2])["kind"] if self.known else "nothing"
        now = rows(self.folder)
        if now[: len(self.known)] != self.known:
            self.problems.append(f"acknowledged events are gone (after {last})")
        self.known = now
        self.moments[json.loads(now[-1][2])["kind"] if now else "nothing"] += 1


def orders(kills: int, rng: random.Random) -> Iterator[str]:
    kinds = [kind for kind in KINDS for _ in range(kills)]
    rng.shuffle(kinds)
    yield from kinds


def campaign(kills: int, seed: int, evals: int = EVALS) -> dict[str, Any]:
    """All kills of all kinds; `differences` is empty if the searches stood it."""
    rng = random.Random(seed)
    done: Counter[str] = Counter()
    moments: Counter[str] = Counter()
    differences: list[str] = []
    searches = stops = 0
    with tempfile.TemporaryDirectory() as root:
        search: Search | None = None
        for kind in orders(kills, rng):
            while True:
                search = search or Search(Path(root) / str(searches), evals, rng)
                if search.kill(kind):
                    break
                if not search.ended:
                    continue
                searches, stops = searches + 1, stops + _close(search, moments, differences)
                search = None
            done[kind] += 1
        if search is not None:
            searches, stops = searches + 1, stops + _close(search, moments, differences)
    return {
        "kills": dict(done), "searches": searches, "devices given up": stops, "evaluations": searches * evals,
        "last event at a kill": dict(moments), "differences": [f"seed {seed}: {each}" for each in differences],
    }  # fmt: skip


def _close(search: Search, moments: Counter[str], problems: list[str]) -> int:
    search.finish()
    moments.update(search.moments)
    problems += [f"search {search.folder.name}: {problem}" for problem in search.problems]
    return search.stops


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slices", type=int, default=SLICES)
    parser.add_argument("--record", type=Path, required=True)
    long_run.arguments(parser)
    options = parser.parse_args()
    run = Run("search-kills", partial(campaign, KILLS), options.record, options.slices, guess=60.0)
    return long_run.go([run], options)


if __name__ == "__main__":
    sys.exit(main())
