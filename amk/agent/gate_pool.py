"""The gate in many processes: a device takes a second for a candidate, to prove, compile and check one takes a dozen.

A process that ends on its own (the compiler ran out of memory, say) costs the candidates that were under way one more
try each, alone; a candidate that ends its process then is uncompilable. All processes die with the driver.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from dataclasses import dataclass, field

from amk.agent import certify
from amk.agent.candidate import Candidate, Workshop
from amk.agent.events import Gated
from amk.agent.gate import Gate, Judged
from amk.agent.isolation import die_with, first_to_be_killed

AHEAD = 14
"""Proposals under judgement at once, if there are as many processes: what is proposed earlier knows less."""

SPARE = 10
"""Proposals beyond those: judged ones wait for the device, which takes them in order and in 0.6 to 1.2 s each."""
NICENESS = 5
_gates: list[Gate] = []


def jobs_of(cores: int | None) -> int:
    """Judging processes on a machine with so many cores: two are left to the driver and the worker."""
    return max(1, (cores or 2) - 2)


def _begin(workshop: Workshop, runs: bool, parent: int) -> None:
    die_with(parent)
    first_to_be_killed()
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _gates.append(Gate(workshop, certify.installed(), runs=runs))


def _judge(index: int, candidate: Candidate) -> Judged:
    return _gates[0].judge(index, candidate)


@dataclass
class GatePool(Gate):
    """`jobs` processes judge with the installed validator and compiler, whatever `certify` and `compile` say.

    Must be made and used from a thread that lives as long as it: the processes die with the thread that started them.
    """

    jobs: int = 1
    _pool: ProcessPoolExecutor | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, workshop: Workshop, jobs: int, runs: bool) -> GatePool:
        ahead = min(jobs, AHEAD) + SPARE
        return cls(workshop, certify.installed(), ahead=ahead, patience=ahead, runs=runs, jobs=jobs)

    @property
    def immediate(self) -> bool:
        return False

    def submit(self, index: int, candidate: Candidate) -> Future[Judged]:
        try:
            return self._executor().submit(_judge, index, candidate)
        except (BrokenExecutor, OSError):  # OSError: it broke, and closed its pipes, while a process was started
            self._renew()
            return self._executor().submit(_judge, index, candidate)

    def again(self, index: int, candidate: Candidate) -> Judged:
        """Judge one candidate alone, after a process ended while it was under way."""
        self._renew()
        try:
            return self._executor().submit(_judge, index, candidate).result()
        except BrokenExecutor:
            detail = "the process that compiled it ended"
            return Gated(index=index, verdict="uncompilable", key=candidate.key, detail=detail), None

    def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            processes = list((pool._processes or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.kill()

    def _renew(self) -> None:
        self.close()

    def _executor(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.jobs, multiprocessing.get_context("spawn"), _begin, (self.workshop, self.runs, os.getpid())
            )
        return self._pool
