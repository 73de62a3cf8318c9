"""The gate in processes of its own: a device takes a second for a candidate, to prove, compile and check one a dozen.

Every judgement has a deadline. A process that ends (the compiler ran out of memory, say), is stopped, or is late, is
killed and replaced, and the candidate that it had is tried again, TRIES times in all; then the candidate is refused.
The others know nothing of it. All processes die with the driver; none has its API keys, or imports from its working
directory.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from amk.agent.gate.candidate import Candidate, Workshop
from amk.agent.gate.certify import Judgement
from amk.agent.gate.gate import Gate, Judged
from amk.agent.gate.isolation import is_stopped
from amk.agent.journal.events import Gated
from amk.processes import python_module, worker_environment
from amk.schedule_ir.schedule import Schedule

AHEAD = 14
"""Proposals under judgement at once, if there are as many processes: what is proposed earlier knows less."""

SPARE = 10
"""Proposals beyond those: judged ones wait for the device, which takes them in order and in 0.6 to 1.2 s each."""

DEADLINE = 600.0
"""Seconds for one judgement: a verdict is UNKNOWN after 120, and the rest takes a tenth of this on a busy machine."""
START_SECONDS = 120.0
"""For a process to say that it is there."""
TRIES = 3
LOOK = 0.5
"""Seconds between two looks at the processes."""
KEPT_ENDING = "AMK709"
PROCESS = python_module("amk.agent.gate.process")
Task = tuple[int, Candidate, Future[Judged]]


def jobs_of(cores: int | None) -> int:
    """Judging processes on a machine with so many cores: two are left to the driver and the worker."""
    return max(1, (cores or 2) - 2)


def _elsewhere(schedule: Schedule) -> Judgement:
    raise AssertionError("judged in a process of the pool")


@dataclass
class Seat:
    """One place for a judging process. `judge` is called by one thread, which the process does not outlive."""

    start_with: tuple[Workshop, bool]
    command: Sequence[str]
    deadline: float
    _popen: subprocess.Popen[bytes] | None = None
    _channel: Connection | None = None
    _fresh: bool = True
    _until: float | None = None
    _stops: int = 0
    _why: str = ""
    _closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def judge(self, index: int, candidate: Candidate) -> Judged | None:
        """The judgement; None once the seat is closed."""
        for _ in range(TRIES):
            try:
                with self._lock:
                    channel = self._begin()
                if channel is None:
                    return None
                if self._fresh:
                    channel.recv()
                    with self._lock:
                        self._fresh, self._until = False, time.monotonic() + self.deadline
                channel.send((index, candidate))
                found: Judged = channel.recv()
            except (EOFError, OSError):
                self._reap()
            else:
                with self._lock:
                    self._until = None
                return found
        detail = f"the process that judged it {self._why or 'ended'}, {TRIES} times in a row"
        return Gated(index=index, verdict="unknown", key=candidate.key, codes=(KEPT_ENDING,), detail=detail), None

    def look(self) -> None:
        """Kill a process that is late, or that stood still at two looks in a row."""
        with self._lock:
            if self._popen is None or self._until is None:
                return
            self._stops = self._stops + 1 if is_stopped(self._popen.pid) else 0
            late = time.monotonic() > self._until
            if late or self._stops > 1:
                self._why = self._late() if late else "was stopped"
                self._popen.kill()

    def _late(self) -> str:
        return "did not start" if self._fresh else f"took longer than {self.deadline:g} s"

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._popen is not None:
                self._popen.kill()

    def _begin(self) -> Connection | None:
        if self._closed:
            return None
        if self._channel is None:
            self._start()
        self._stops, self._why = 0, ""
        self._until = time.monotonic() + (START_SECONDS if self._fresh else self.deadline)
        return self._channel

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._popen = subprocess.Popen(
                [*self.command, str(os.getpid()), str(theirs.fileno())], env=worker_environment(os.environ),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )  # fmt: skip
        self._channel, self._fresh = Connection(ours.detach()), True
        self._channel.send(self.start_with)

    def _reap(self) -> None:
        with self._lock:
            popen, self._popen, channel, self._channel = self._popen, None, self._channel, None
            self._until = None
        if popen is not None:
            popen.kill()
            popen.wait()
        if channel is not None:
            channel.close()


@dataclass
class GatePool(Gate):
    """`jobs` processes judge with the installed validator and compiler, whatever `certify` and `compile` say."""

    jobs: int = 1
    deadline: float = DEADLINE
    command: Sequence[str] = PROCESS
    _seats: list[Seat] = field(default_factory=list)
    _tasks: queue.SimpleQueue[Task | None] = field(default_factory=queue.SimpleQueue)
    _closed: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def of(cls, workshop: Workshop, jobs: int, runs: bool) -> GatePool:
        if jobs == 1:
            return cls(workshop, _elsewhere, runs=runs)
        ahead = min(jobs, AHEAD) + SPARE
        return cls(workshop, _elsewhere, ahead=ahead, patience=ahead, runs=runs, jobs=jobs)

    @property
    def immediate(self) -> bool:
        """With one process nothing is proposed before it has judged."""
        return self.jobs == 1

    def submit(self, index: int, candidate: Candidate) -> Future[Judged]:
        if not self._seats:
            self._open()
        judged: Future[Judged] = Future()
        self._tasks.put((index, candidate, judged))
        return judged

    def close(self) -> None:
        """End all processes; what was not judged is cancelled."""
        self._closed.set()
        for seat in self._seats:
            seat.close()
        with contextlib.suppress(queue.Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is not None:
                    task[2].cancel()
        for _ in self._seats:
            self._tasks.put(None)

    def _open(self) -> None:
        for _ in range(self.jobs):
            seat = Seat((self.workshop, self.runs), self.command, self.deadline)
            self._seats.append(seat)
            threading.Thread(target=self._work, args=(seat,), daemon=True).start()
        threading.Thread(target=self._look, daemon=True).start()

    def _work(self, seat: Seat) -> None:
        while (task := self._tasks.get()) is not None:
            index, candidate, judged = task
            try:
                found = seat.judge(index, candidate)
            except Exception as error:  # noqa: BLE001  such as no memory for a process: whoever waits is told
                judged.set_exception(error)
                continue
            if found is None:
                judged.cancel()
            else:
                judged.set_result(found)

    def _look(self) -> None:
        while not self._closed.wait(LOOK):
            for seat in self._seats:
                seat.look()
