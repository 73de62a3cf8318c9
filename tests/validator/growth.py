"""How time and memory of the flat check grow with the number of events: one process per size.

The decode-shaped systems of `scale` with more and more phases: 16 workers, so that clocks of a million events fit.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from math import log
from typing import Any

from amk.validator.memory.flat import judge
from tests.validator.scale import decode_shaped

WORKERS = 16
PRIVATE = 4
PHASES = (10, 33, 104, 330, 1042, 3300, 10417)
"""1,000 to 1,000,000 events: each worker has PRIVATE + 2 events per phase."""


def point(phases: int) -> dict[str, Any]:
    """CPU seconds of the judgement (not of building the system) and of all; peak memory of the process in MiB."""
    system = decode_shaped(WORKERS, phases, 1, PRIVATE)
    start = time.process_time()
    judged = judge(system)
    seconds = time.process_time() - start
    assert judged.deadlock is None and not judged.races.racy and judged.dataflow.correct
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"events": system.events, "waits": len(system.wait_counter), "cpu_s": round(seconds, 4), "mib": round(peak)}


def points(phases: tuple[int, ...], times: int) -> list[dict[str, Any]]:
    """The best of some processes for each size, and the spread of their CPU times."""
    found = []
    for size in phases:
        runs = []
        for _ in range(times):
            command = [sys.executable, "-m", "tests.validator.growth", str(size)]
            runs.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        runs.sort(key=lambda run: run["cpu_s"])
        found.append(runs[0] | {"cpu_s_worst": runs[-1]["cpu_s"]})
    return found


def slope(first: dict[str, Any], last: dict[str, Any], what: str = "cpu_s") -> float:
    """Exponent between two points: 1 is linear."""
    return log(last[what] / first[what]) / log(last["events"] / first["events"])


if __name__ == "__main__":
    print(json.dumps(point(int(sys.argv[1]))))
