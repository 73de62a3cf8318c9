"""Processor time of starts with a schedule: the path that a GPU takes, without weights, driver and launch.

python -m tests.engine.second_start llama3-8b --gpu h200 [--runs 5] [--record FILE]

Each start is a process of its own: imports, plan, admission, the code for the driver and its resources. `first` finds
no cache. `checked` finds compilation and certificate, but no sealed admission. `second` finds that, too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.recording import provenance

START = """
import sys, time
import amk.api.loading
from amk.engine.backends.cuda_engine import check_loaded
from amk.engine.admission.admission import started
from amk.api.schedules import plan
kernel = started(plan(sys.argv[1], sys.argv[2], dtype=sys.argv[3]))
kernel.loadable()
assert kernel.resources.registers > 0
print(time.process_time())
"""


def start(arguments: argparse.Namespace, home: Path) -> float:
    """Seconds of processor time from the start of the process on."""
    environment = os.environ | {"HOME": str(home), "AMK_CACHE": str(home / "amk")}
    environment |= {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CACHE", "DATA")}
    environment |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(home.parent / "bytecode")}
    command = [sys.executable, "-c", START, arguments.model, arguments.gpu, arguments.dtype]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def measured(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each kind of start; modules were compiled to bytecode by a start that is not counted."""
    found: dict[str, list[float]] = {"first": [], "checked": [], "second": []}
    with tempfile.TemporaryDirectory() as folder:
        start(arguments, Path(folder) / "warm")
        for run in range(arguments.runs):
            home = Path(folder) / str(run)
            found["first"].append(start(arguments, home))
            found["second"].append(start(arguments, home))
            shutil.rmtree(home / "amk" / "admitted")
            found["checked"].append(start(arguments, home))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    rows: dict[str, Any] = {}
    for kind, seconds in measured(arguments).items():
        rows[kind] = {"median_s": statistics.median(seconds), "least_s": min(seconds), "most_s": max(seconds)}
        print(f"{kind:8} {rows[kind]['median_s']:6.2f} s ({min(seconds):.2f} to {max(seconds):.2f})")
    if arguments.record:
        command = f"python -m tests.engine.second_start {arguments.model} --gpu {arguments.gpu} --runs {arguments.runs}"
        run = provenance([]) | {"command": f"{command} --dtype {arguments.dtype}"}
        record = {"format": 1, "run": run, "model": arguments.model, "gpu": arguments.gpu}
        arguments.record.write_text(json.dumps(record | {"dtype": arguments.dtype, "starts": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
