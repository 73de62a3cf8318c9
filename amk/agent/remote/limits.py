"""What one client of the MCP server may have done for it: searches that it started, and designs that it looks at.

A search is a process of its own, in a session of its own, so it outlives the server. It is given an end in evaluations
and minutes, no API key, and no money. A client stops only what it started. A client that connects anew is another one,
so what runs at once is also limited over all clients.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from amk.agent.journal.store import is_busy
from amk.agent.run.runs import runs_directory
from amk.processes import python_module, worker_environment
from amk.simulator.constants import FILE_BYTES, Constants, as_text, save_constants

RUNNING: Final = 1
"""Searches of a client at once."""
RUNNING_OF_ALL: Final = 4
"""Searches that clients started, at once, over all clients whose runs lie in one folder."""
MOST_SEARCHES: Final = 16
"""Searches of a client in all."""
EVALUATIONS: Final = 1000
MINUTES: Final = 240.0
LOOKING: Final = 2
"""Designs that are looked at, simulated or exported at once; more wait."""
LOOKS: Final = 2000
BEGIN_SECONDS: Final = 120.0
"""For a search to say its name."""
STOP_SECONDS: Final = 90.0
EXIT_SECONDS: Final = 10.0
"""From the end of a run to that of its process."""
STOP_REASON: Final = "stopped by stop_run; it can be resumed"
RUN_LINE: Final = re.compile(r"^run (\S+) on ", re.MULTILINE)
COMMAND: Final = python_module("amk")


class LimitError(ValueError):
    """More than a client may have, or what is not its own."""


@dataclass
class Searches:
    command: Sequence[str] = COMMAND
    _started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _logs: dict[str, Path] = field(default_factory=dict)
    _stopped: set[str] = field(default_factory=set)
    _count: int = 0
    _looks: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _room: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(LOOKING))

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Room for one look at a design."""
        with self._lock:
            if self._looks >= LOOKS:
                raise LimitError(
                    f"{LOOKS} designs were looked at, simulated or exported, which is the limit of a client"
                )
            self._looks += 1
        with self._room:
            yield

    def start(
        self, words: Sequence[str], evaluations: int, minutes: float, constants: Constants | None = None
    ) -> str:  # fmt: skip
        """Begin a search, which simulates by these constants; returns its name once it is there."""
        if not 1 <= evaluations <= EVALUATIONS or not 0 < minutes <= MINUTES:
            raise LimitError(f"a search has 1 to {EVALUATIONS} evaluations and up to {MINUTES:g} minutes")
        if constants is not None and len(as_text(constants).encode()) > FILE_BYTES:
            raise LimitError(f"constants have up to {FILE_BYTES} bytes")
        with self._lock:
            self._let_end()
            if sum(each.poll() is None for each in self._started.values()) >= RUNNING:
                raise LimitError(f"{RUNNING} search of this client runs already: stop_run, or wait for it")
            if self._count >= MOST_SEARCHES:
                raise LimitError(f"{MOST_SEARCHES} searches were started, which is the limit of a client")
            base = runs_directory()
            base.mkdir(parents=True, exist_ok=True)
            with _slot(base) as held:
                self._count += 1
                log = base / f"started-{os.getpid()}-{self._count}.log"
                file, limits = log.with_suffix(".json"), ["--evals", str(evaluations), "--minutes", f"{minutes:g}"]
                if constants is not None:
                    save_constants(constants, file)
                    limits += ["--constants", str(file)]
                with open(log, "wb") as output:
                    process = subprocess.Popen(
                        [*self.command, "autoresearch", *words, *limits], stdin=subprocess.DEVNULL, stdout=output,
                        stderr=output, env=environment(), start_new_session=True, pass_fds=(held,),
                    )  # fmt: skip
                try:
                    name = _name_of(process, log)
                finally:
                    file.unlink(missing_ok=True)  # the run has what was in it
            self._started[name], self._logs[name] = process, log
            return name

    def _let_end(self) -> None:
        """Wait for the processes of runs that are over: who followed one to its end may begin the next."""
        for run, process in self._started.items():
            if process.poll() is None and not is_busy(runs_directory() / run):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(EXIT_SECONDS)

    def last_words(self, run: str) -> str | None:
        """What a search of this client, which has let go of its run, said last, if its process does not end well; of
        one that the client stopped, that."""
        if run in self._stopped:
            return STOP_REASON
        process = self._started.get(run)
        if process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_SECONDS)
        return None if process.returncode in (None, 0) else _last_words(self._logs[run])

    def stop(self, run: str) -> None:
        """End a search by SIGTERM, which nobody inherits as ignored, and wait until it is over."""
        process = self._started.get(run)
        if process is None:
            raise LimitError(f"run {run[:80]!r} was not started by this client")
        if process.poll() is None:
            self._stopped.add(run)
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)


@contextmanager
def _slot(folder: Path) -> Iterator[int]:
    """A locked file for a search to inherit, which so holds it until it ends. LimitError if all are held."""
    for number in range(RUNNING_OF_ALL):
        held = os.open(folder / f"started-{number}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            continue
        try:
            yield held
        finally:
            os.close(held)  # not unlocked: whoever inherited it goes on holding it
        return
    raise LimitError(f"{RUNNING_OF_ALL} searches that clients started run already: wait for one of them")


def environment() -> dict[str, str]:
    """As that of a worker, and where runs lie."""
    return worker_environment(os.environ) | {"AMK_RUNS": str(runs_directory())}


def _name_of(process: subprocess.Popen[bytes], log: Path) -> str:
    """The name that the search gives itself. LimitError, with its last words, if it ends or is silent."""
    until = time.monotonic() + BEGIN_SECONDS
    while time.monotonic() < until:
        text = log.read_text(encoding="utf-8", errors="replace")
        if said := RUN_LINE.search(text):
            return said.group(1)
        if process.poll() is not None:
            raise LimitError(f"the search ended at once: {_last_words(log)}")
        time.sleep(0.1)
    process.kill()
    raise LimitError("the search did not begin")


def _last_words(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace").strip()[-400:]
