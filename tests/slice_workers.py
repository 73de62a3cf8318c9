"""Processes that compute numbered slices; one that dies takes only its own slice with it."""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

Slice = Callable[[int], dict[str, Any]]
"""Number of the slice -> counts, nested by name, and `differences`: a list of strings."""


@dataclass(frozen=True)
class Measured:
    """found: what the slice counted. seconds: by the clock; cpu_seconds: of processor time, children included."""

    found: dict[str, Any]
    seconds: float
    cpu_seconds: float


def measured(slice_: Slice, number: int) -> Measured:
    """A slice that raises is a difference like any other: nobody has looked at its cases."""
    began, used = time.monotonic(), sum(os.times()[:4])
    try:
        found = slice_(number)
    except Exception as error:  # noqa: BLE001  whatever it is, it is recorded and the other slices go on
        found = {"differences": [f"slice {number}: {type(error).__name__}: {error}"]}
    return Measured(found, time.monotonic() - began, sum(os.times()[:4]) - used)


MOST_MEMORY = 24 << 30
"""Bytes of address space a process may take: a slice that asks for more raises, and the machine goes on."""


def _serve(pipe: Connection) -> None:
    """The cyclic collector takes a seventh of the time and finds little, so it runs between slices only."""
    gc.disable()
    gc.freeze()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    while True:
        try:
            slice_, number = pipe.recv()
        except EOFError:
            return
        pipe.send(measured(slice_, number))
        gc.collect()


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    busy: bool = False


class SliceWorkers:
    """`jobs` processes. `key` is whatever the caller wants back with a result; None as a result: the process died."""

    def __init__(self, jobs: int) -> None:
        self.workers = [self._new() for _ in range(jobs)]
        self.keys: dict[int, Any] = {}

    def _new(self) -> _Worker:
        context = get_context("spawn")
        mine, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,), daemon=False)
        process.start()
        theirs.close()
        return _Worker(process, mine)

    @property
    def idle(self) -> int:
        return sum(not worker.busy for worker in self.workers)

    def submit(self, key: Any, slice_: Slice, number: int) -> None:
        place = next(i for i, worker in enumerate(self.workers) if not worker.busy)
        if not self.workers[place].process.is_alive():
            self._replace(place)
        self.workers[place].pipe.send((slice_, number))
        self.workers[place].busy, self.keys[place] = True, key

    def results(self, timeout: float) -> list[tuple[Any, Measured | None]]:
        """Those that ended within this time, at least one unless it passes."""
        busy = {worker.pipe: i for i, worker in enumerate(self.workers) if worker.busy}
        found: list[tuple[Any, Measured | None]] = []
        for pipe in wait(list(busy), timeout):
            place = busy[pipe]  # type: ignore[index]
            try:
                result = self.workers[place].pipe.recv()
            except (EOFError, ConnectionResetError):
                result = None
                self._replace(place)
            self.workers[place].busy = False
            found.append((self.keys.pop(place), result))
        return found

    def _replace(self, place: int) -> None:
        self.workers[place].pipe.close()
        self.workers[place].process.join()
        self.workers[place] = self._new()

    def stop(self) -> None:
        """End all of them, whatever they are doing."""
        for worker in self.workers:
            worker.pipe.close()
            if worker.busy:
                worker.process.terminate()
        for worker in self.workers:
            worker.process.join()
