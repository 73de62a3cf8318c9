"""Runs too long for CI: numbered slices, resumed where the record ends.

    python -m tests.validator.long_checks random --record tests/records/random-systems.json --seconds 600

Slice k of a run is always the same cases, so a record that says `done: 1000` says what was looked at. A record keeps
command, commit, date and hardware of its last slice, the seconds of all of them, sums of what each slice counted, and
every difference found (there should be none).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from amk.bench.provenance import commit

Slice = Callable[[int], dict[str, Any]]
"""Number of the slice -> counts, and `differences`: a list of strings."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--record", type=Path, required=True, help="JSON file to continue")
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after this time (default: 600)")
    parser.add_argument("--slices", type=int, default=1_000_000, help="stop after this many slices in all")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")


def run(name: str, slice_: Slice, options: argparse.Namespace) -> int:
    """Continue the record until time or slices are used up; 1 if it holds a difference."""
    record = _load(options.record, name)
    until = time.monotonic() + options.seconds
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        while time.monotonic() < until and record["done"] < options.slices:
            began = time.monotonic()
            count = min(options.jobs, options.slices - record["done"])
            for found in pool.map(slice_, range(record["done"], record["done"] + count)):
                _add(record, found)
            record["seconds"] = round(record["seconds"] + time.monotonic() - began, 1)
            _save(options.record, record)
    print(json.dumps(record, indent=1))
    return 1 if record["differences"] else 0


def _load(path: Path, name: str) -> dict[str, Any]:
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    return {"format": 1, "name": name, "done": 0, "seconds": 0.0, "counts": {}, "differences": []}


def _add(record: dict[str, Any], found: dict[str, Any]) -> None:
    record["done"] += 1
    record["differences"] += found.pop("differences", [])
    for key, value in found.items():
        record["counts"][key] = record["counts"].get(key, 0) + value


def _save(path: Path, record: dict[str, Any]) -> None:
    words = [w for w in sys.argv[1:] if w != str(path) and w != "--record"]
    record["run"] = {
        "command": shlex.join(["python", "-m", sys.modules["__main__"].__spec__.name, *words]),  # type: ignore[union-attr]
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{os.cpu_count()} cores, {platform.machine()}, no GPU",
    }
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    os.replace(temporary, path)
