"""How long `amk verify` takes for a million events of rings, as processes.

    python -m tests.systems.time_rings --record tests/records/proof/system-speed.json

`cpu_seconds` are of the whole process, median and range of three; `seconds` by the clock depend on who else computes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from amk.systems import System
from tests.long_run import provenance

EVENTS, RUNS, TILE = 1_000_000, 3, 1024


def rings(number: int) -> System:
    """So many rings of three slots, and a million events of them."""
    sys_ = System(f"{number} rings")
    for n in range(number):
        slots = sys_.buffer(f"slots {n}", 3 * TILE)
        full, empty = sys_.counter(f"full {n}", "cta"), sys_.counter(f"empty {n}", "cta", init=3)
        producer, consumer = sys_.agent(f"producer {n}"), sys_.agent(f"consumer {n}")
        for k in range(-(-EVENTS // (6 * number))):
            lo = k % 3 * TILE
            producer.wait(empty, k + 1)
            producer.write(slots, lo, lo + TILE, ("tile", k))
            producer.signal(full)
            consumer.wait(full, k + 1)
            consumer.read(slots, lo, lo + TILE, ("tile", k))
            consumer.signal(empty)
    return sys_


def timed(path: Path) -> dict[str, float]:
    """One run of `amk verify` that says SAFE."""
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, "-m", "amk", "verify", str(path)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        output = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = status
    assert output.startswith(b"SAFE"), output
    cpu = used.ru_utime + used.ru_stime
    return {"cpu_seconds": cpu, "seconds": time.perf_counter() - start, "mib": used.ru_maxrss / 1024}


def measured(number: int, folder: Path) -> dict[str, Any]:
    path = folder / f"{number}.json"
    rings(number).save(path)
    runs = [timed(path) for _ in range(RUNS)]
    found: dict[str, Any] = {"rings": number, "events": EVENTS}
    for name in runs[0]:
        values = [run[name] for run in runs]
        found[name] = [round(n, 2) for n in (statistics.median(values), min(values), max(values))]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, default=Path("tests/records/proof/system-speed.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [measured(number, Path(folder)) for number in (16, 64)]
    record = {
        "name": "a million events of rings",
        "run": provenance(options.record),
        "cases": found,
    }
    options.record.write_text(json.dumps(record, indent=1) + "\n")
    for case in found:
        print(case)
    return 0


if __name__ == "__main__":
    sys.exit(main())
