"""Runs too long for CI: numbered slices spread over processes, resumed where the record ends.

    python -m tests.validator.evidence --jobs 60 --seconds 560 --records tests/records

Slice k of a run is always the same cases, so a record that says `done: 1000` says what was looked at: slices 0 to 999,
and those listed in `ahead`. A record keeps command, commit, date and hardware of its last slice, the seconds of all of
them (`seconds` by the clock, `cpu_seconds`, both summed over slices), sums of what each slice counted, and every
difference found (there should be none). It is written, at once or not at all, after every slice.

Each process may take `MEMORY` bytes of addresses. A slice that runs out of them, or whose process dies when it is alone
too, is a difference of its own; the slices that went down with it are run again one at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shlex
import sys
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from amk.bench.provenance import commit as commit_now

commit = cache(commit_now)
Slice = Callable[[int], dict[str, Any]]
"""Number of the slice -> counts, nested by name, and `differences`: a list of strings."""
MARGIN = 1.3
"""A slice is not begun if this many times what its run's slices take on average is more than the time left."""
LEAST = 1e-3
"""Seconds that a slice is taken to need, however short its kind: sums are rounded."""
MEMORY = 6 << 30
"""Bytes of addresses of one process."""
Found = tuple[dict[str, Any], float, float]
"""What a slice found, seconds by the clock, seconds of processor time."""
Going = dict[Future[Found], tuple["Run", int]]


@dataclass
class Run:
    """One record that grows. slices: how many there are; cpu_seconds: ends after this much work instead; guess: seconds
    of a slice before any was seen."""

    name: str
    slice_: Slice
    path: Path
    slices: int
    cpu_seconds: float | None = None
    guess: float = 10.0
    record: dict[str, Any] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        head = {"format": 1, "name": self.name, "done": 0, "ahead": [], "seconds": 0.0, "cpu_seconds": 0.0}
        known = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.record = head | {"counts": {}, "differences": []} | known

    @property
    def finished(self) -> int:
        return int(self.record["done"]) + len(self.record["ahead"])

    @property
    def each(self) -> float:
        """Seconds of a slice."""
        return max(float(self.record["seconds"]) / self.finished, LEAST) if self.finished else self.guess

    @property
    def left(self) -> float:
        """Seconds of work that nobody has begun."""
        if self.cpu_seconds is not None:
            return max(0.0, self.cpu_seconds - float(self.record["cpu_seconds"]) - len(self.open) * self.each)
        return (self.slices - self.finished - len(self.open)) * self.each

    def begin(self) -> int:
        """The least slice that is neither done nor begun."""
        taken = self.open | set(self.record["ahead"])
        number = int(self.record["done"])
        while number in taken:
            number += 1
        self.open.add(number)
        return number

    def end(self, number: int, found: dict[str, Any], seconds: float, cpu_seconds: float) -> None:
        record = self.record
        self.open.remove(number)
        ahead = {*record["ahead"], number}
        while record["done"] in ahead:
            ahead.remove(record["done"])
            record["done"] += 1
        record["ahead"] = sorted(ahead)
        record["differences"] += found.pop("differences", [])
        record["seconds"] = round(record["seconds"] + seconds, 1)
        record["cpu_seconds"] = round(record["cpu_seconds"] + cpu_seconds, 1)
        add(record["counts"], found)
        record["run"] = provenance(self.path)
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        temporary.write_text(json.dumps(record, indent=1) + "\n")
        os.replace(temporary, self.path)


def add(total: dict[str, Any], found: dict[str, Any]) -> None:
    """Sum numbers, name by name; what is not a number is kept from the first."""
    for key, value in found.items():
        if isinstance(value, dict):
            add(total.setdefault(key, {}), value)
        elif isinstance(value, str):
            total.setdefault(key, value)
        else:
            total[key] = total.get(key, 0) + value


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after this time (default: 600)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")


def go(runs: list[Run], options: argparse.Namespace) -> int:
    """Continue the records until time or slices are used up, the run with most left to do first; 1 if one holds a
    difference."""
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    until = time.monotonic() + options.seconds
    while lost := _together(runs, options.jobs, until):
        for run, number in lost:
            run.end(number, *_alone(run.slice_, number))
    for run in runs:
        found = {key: run.record[key] for key in ("name", "done", "ahead", "seconds", "differences")}
        print(json.dumps(found | {"counts": {k: v for k, v in run.record["counts"].items() if k != "classes"}}))
    return 1 if any(run.record["differences"] for run in runs) else 0


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_limited, initargs=(MEMORY,))


def _limited(size: int) -> None:
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (size if most == resource.RLIM_INFINITY else min(size, most), most))


def _together(runs: list[Run], jobs: int, until: float) -> list[tuple[Run, int]]:
    """Slices until nothing is left or a process dies; those that went down with it."""
    going: Going = {}
    lost: list[tuple[Run, int]] = []
    with _pool(jobs) as pool:
        while True:
            while not lost and len(going) < jobs and (run := _next(runs, until - time.monotonic())) is not None:
                number = run.begin()
                try:
                    going[pool.submit(measured, run.slice_, number)] = run, number
                except BrokenProcessPool:
                    lost.append((run, number))
            if not going:
                return lost
            for future in wait(going, return_when=FIRST_COMPLETED).done:
                run, number = going.pop(future)
                try:
                    run.end(number, *future.result())
                except BrokenProcessPool:
                    lost.append((run, number))


def _alone(slice_: Slice, number: int) -> Found:
    """A slice whose process died in company; if it dies again, that is what was found."""
    began = time.monotonic()
    with _pool(1) as pool:
        try:
            return pool.submit(measured, slice_, number).result()
        except BrokenProcessPool:
            told = f"slice {number}: killed: its process died twice"
            return {"differences": [told]}, time.monotonic() - began, 0.0


def _next(runs: list[Run], remaining: float) -> Run | None:
    fitting = [run for run in runs if run.left > 0 and run.each * MARGIN <= remaining]
    return max(fitting, key=lambda run: run.left, default=None)


def measured(slice_: Slice, number: int) -> Found:
    """What the slice found; processor time includes children."""
    began, used = time.monotonic(), sum(os.times()[:4])
    try:
        found = slice_(number)
    except MemoryError as error:
        found = {"differences": [f"slice {number}: MemoryError: {error}"]}
    return found, time.monotonic() - began, sum(os.times()[:4]) - used


def provenance(path: Path) -> dict[str, str]:
    words = [w for w in sys.argv[1:] if w not in (str(path), str(path.parent), "--record", "--records")]
    main = sys.modules["__main__"].__spec__
    return {
        "command": shlex.join(["python", "-m", main.name if main else "tests", *words]),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{os.cpu_count()} cores, {platform.machine()}, no GPU used",
    }
