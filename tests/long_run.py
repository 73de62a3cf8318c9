"""Runs too long for CI: numbered slices spread over processes, resumed where the record ends.

    python -m tests.validator.evidence --jobs 60 --seconds 560 --records tests/records/proof

Slice k of a run is always the same cases, so a record that says `done: 1000` says what was looked at: slices 0 to 999,
and those listed in `ahead`. A record keeps command, commit, date and hardware of its last slice, the seconds of all of
them (`seconds` by the clock, `cpu_seconds`, both summed over slices), which slices were made at which of the `commits`
(`"0-99 103"`), sums of what each slice counted, and every difference found (there should be none). It is written, at
once or not at all, after every slice. Records of one run that two machines made are merged, if no slice is in both:

    python -m tests.long_run A.json B.json MERGED.json
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import os
import platform
import shlex
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from amk.bench.tools.provenance import commit as commit_now
from tests import run_folder
from tests.slice_workers import Measured, Slice, SliceWorkers

commit = cache(commit_now)
EVERY = 15.0
"""Seconds between two lines of progress."""
MARGIN, LONG = 1.3, 3.0
"""A slice is not begun if less is left than this many times what its run's slices take on average, or than the longest
of them took (but no more than so many times the average)."""
LEAST = 0.001
"""Seconds that a slice takes at least: sums are rounded."""


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
        times = {"seconds": 0.0, "cpu_seconds": 0.0, "longest": 0.0}
        head = {"format": 1, "name": self.name, "done": 0, "ahead": [], **times, "commits": {}}
        known = json.loads(self.path.read_text()) if self.path.exists() else {}
        known = known if "commits" in known else {}  # a record of another kind of run is made anew
        self.record = head | {"counts": {}, "differences": []} | known

    @property
    def finished(self) -> int:
        return int(self.record["done"]) + len(self.record["ahead"])

    @property
    def each(self) -> float:
        """Seconds of a slice."""
        return max(float(self.record["seconds"]) / self.finished, LEAST) if self.finished else self.guess

    @property
    def room(self) -> float:
        """Seconds that must be left for a slice to be begun."""
        return max(MARGIN * self.each, min(float(self.record["longest"]), LONG * self.each))

    @property
    def progress(self) -> str:
        of = f"{self.cpu_seconds / 60:.0f} min" if self.cpu_seconds is not None else str(self.slices)
        done = f"{self.record['cpu_seconds'] / 60:.0f}" if self.cpu_seconds is not None else str(self.finished)
        return f"{self.name} {done}/{of}{' DIFFERENCES' if self.record['differences'] else ''}"

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

    def end(self, number: int, result: Measured) -> None:
        record, found = self.record, result.found
        self.open.remove(number)
        ahead = {*record["ahead"], number}
        while record["done"] in ahead:
            ahead.remove(record["done"])
            record["done"] += 1
        record["ahead"] = sorted(ahead)
        record["differences"] += found.pop("differences", [])
        record["seconds"] = round(record["seconds"] + result.seconds, 1)
        record["cpu_seconds"] = round(record["cpu_seconds"] + result.cpu_seconds, 1)
        record["longest"] = round(max(record["longest"], result.seconds), 1)
        add(record["counts"], found)
        record["commits"][commit()] = ranges({*numbers(record["commits"].get(commit(), "")), number})
        record["run"] = provenance(self.path)
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        temporary.write_text(json.dumps(record, indent=1) + "\n")
        os.replace(temporary, self.path)


def ranges(slices: set[int]) -> str:
    """`0-99 103`"""
    firsts = sorted(n for n in slices if n - 1 not in slices)
    lasts = sorted(n for n in slices if n + 1 not in slices)
    return " ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(firsts, lasts, strict=True))


def numbers(text: str) -> set[int]:
    """What `ranges` wrote."""
    spans = [part.split("-") for part in text.split()]
    return {n for span in spans for n in range(int(span[0]), int(span[-1]) + 1)}


def add(total: dict[str, Any], counts: dict[str, Any]) -> None:
    """Sum numbers, name by name; what is not a number is kept from the first."""
    for key, value in counts.items():
        if isinstance(value, dict):
            add(total.setdefault(key, {}), value)
        elif isinstance(value, str):
            total.setdefault(key, value)
        else:
            total[key] = total.get(key, 0) + value


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Both records of a run as one; ValueError if a slice is in both."""
    slices = [{n for text in record["commits"].values() for n in numbers(text)} for record in (one, other)]
    if one["name"] != other["name"] or slices[0] & slices[1]:
        raise ValueError(f"{one['name']} and {other['name']} share {len(slices[0] & slices[1])} slices")
    result = copy.deepcopy(one)
    for commit_, text in other["commits"].items():
        result["commits"][commit_] = ranges({*numbers(result["commits"].get(commit_, "")), *numbers(text)})
    result["differences"] += other["differences"]
    for key in ("seconds", "cpu_seconds"):
        result[key] = round(result[key] + other[key], 1)
    result["longest"] = max(result["longest"], other["longest"])
    add(result["counts"], other["counts"])
    done = slices[0] | slices[1]
    result["done"] = next(n for n in itertools.count() if n not in done)
    result["ahead"] = sorted(n for n in done if n > result["done"])
    return result


def without(record: dict[str, Any], counted: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """The record as if these slices were still to be made; counted: what each of them counted and told. The seconds
    that they took stay."""
    result, slices = copy.deepcopy(record), set(counted)
    for found in counted.values():
        for line in found.get("differences", []):
            result["differences"].remove(line)
        _subtract(result["counts"], {key: value for key, value in found.items() if key != "differences"})
    for commit_, text in record["commits"].items():
        result["commits"][commit_] = ranges(numbers(text) - slices)
    done = {n for text in result["commits"].values() for n in numbers(text)}
    result["done"] = next(n for n in itertools.count() if n not in done)
    result["ahead"] = sorted(n for n in done if n > result["done"])
    return result


def _subtract(total: dict[str, Any], counts: dict[str, Any]) -> None:
    """Undo `add` of numbers; what becomes zero goes, words stay."""
    for key, value in counts.items():
        if isinstance(value, dict):
            _subtract(total[key], value)
        elif not isinstance(value, str):
            total[key] -= value
            if total[key] == 0:
                del total[key]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after this time (default: 600)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")


def go(runs: list[Run], options: argparse.Namespace) -> int:
    """Continue the records until time or slices are used up, one run after the other; 1 if one holds a difference.

    Slices under way when the time is over are lost; one whose process dies is begun once more, and is a difference if
    that dies too."""
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with run_folder.shared():
        return _gone(runs, options)


def _gone(runs: list[Run], options: argparse.Namespace) -> int:
    began = last = time.monotonic()
    workers = SliceWorkers(options.jobs)
    died: set[tuple[str, int]] = set()
    try:
        while (remaining := began + options.seconds - time.monotonic()) > 0:
            while workers.idle and (run := _next(runs, remaining)) is not None:
                number = run.begin()
                workers.submit((run, number), run.slice_, number)
            if workers.idle == options.jobs:
                break
            for (run, number), result in workers.results(min(EVERY, remaining)):
                if result is not None:
                    run.end(number, result)
                elif (run.name, number) in died:
                    killed = f"slice {number}: killed: its process died twice"
                    run.end(number, Measured({"differences": [killed]}, 0, 0))
                else:
                    print(f"{run.name}: the process of slice {number} died", flush=True)
                    died.add((run.name, number))
                    workers.submit((run, number), run.slice_, number)
            if time.monotonic() - last > EVERY:
                last = time.monotonic()
                print(f"{last - began:4.0f} s  {'  '.join(run.progress for run in runs)}", flush=True)
    finally:
        workers.stop()
    for run in runs:
        found = {key: run.record[key] for key in ("name", "done", "ahead", "seconds", "differences")}
        print(json.dumps(found | {k: v for k, v in run.record["counts"].items() if isinstance(v, int | float)}))
    return 1 if any(run.record["differences"] for run in runs) else 0


def _next(runs: list[Run], remaining: float) -> Run | None:
    return next((run for run in runs if run.left > 0 and run.room <= remaining), None)


def provenance(path: Path) -> dict[str, str]:
    words = [w for w in sys.argv[1:] if w not in (str(path), str(path.parent), "--record", "--records")]
    main = sys.modules["__main__"].__spec__
    return {
        "command": shlex.join(["python", "-m", main.name if main else "tests", *words]),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{os.cpu_count()} cores, {platform.machine()}, no GPU used",
    }


if __name__ == "__main__":
    first, second, target = (Path(word) for word in sys.argv[1:4])
    both = merged(json.loads(first.read_text()), json.loads(second.read_text()))
    target.write_text(json.dumps(both, indent=1) + "\n")
