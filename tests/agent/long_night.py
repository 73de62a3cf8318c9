"""A night of 8 hours on the simulator, a hundred times as fast: memory, journal and report stay small.

    python -m tests.agent.long_night --record tests/records/search/search-long-night.json --browser /usr/bin/chromium

The driver's clock runs --speed times too fast, so at a hundred 480 minutes are used up after 288 seconds. What a night
keeps grows with its evaluations, not with its hours. With --additive times cost nothing, so that more are made.
Schedules are gated by the rule of the tests, not proved. At the end the report is rendered in a real browser.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import zlib
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import exp
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from amk.agent.device.measure import Block, Job
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.candidate import Workshop
from amk.agent.gate.gate import Gate, Ready, not_compiled
from amk.agent.gate.isolation import resident_bytes
from amk.agent.journal.events import Limits
from amk.agent.journal.state import State
from amk.agent.journal.store import DATABASE, MIRROR, Journal
from amk.agent.run import reports, session
from amk.agent.run.loop import Loop
from amk.bench.tools.provenance import commit
from amk.models.model import load_model
from amk.planner.settings import PHASED
from amk.planner.space import Space
from amk.targets.target import load_target
from tests.agent.conftest import CONTEXT, fences_kept, start_run

SPEED = 100.0
HOURS = 8.0
SAMPLE_SECONDS = 5.0
MIB = 2**20
MOST_GROWTH = 32 * MIB
"""Between the first quarter of the run, when the caches are filling, and its end."""

LIMITS = {"journal": 200 * MIB, "report": 10 * MIB}
BROWSER_SECONDS = 120


@dataclass
class Additive(SimulatedBackend):
    """Every knob value has an effect of its own, drawn from its name: thousands of evaluations in minutes."""

    def times(self, job: Job, ready: Ready) -> Block:
        values = asdict(ready.candidate.settings).items()
        effects = [zlib.crc32(f"{name}={value}".encode()) / 2**32 for name, value in values]
        return tuple(exp(0.2 * sum(effects) / len(effects)) + p / 1e5 for p in job.positions)


def night(
    folder: Path, hours: float, proposer: str = "portfolio", additive: bool = False, speed: float = SPEED
) -> dict[str, Any]:
    """Run, then say what it took."""
    memory: list[tuple[float, int]] = []
    backend, began = (Additive if additive else SimulatedBackend)("h200", 8), time.monotonic()
    workshop = Workshop(load_model("smollm2-135m"), load_target("h200"), CONTEXT)

    def watch(state: State) -> None:
        now = time.monotonic() - began
        if not memory or now - memory[-1][0] >= SAMPLE_SECONDS:
            memory.append((round(now, 1), resident_bytes(os.getpid())))

    with Journal(folder, lambda: time.monotonic() * speed) as journal:
        start_run(journal, backend, Limits(minutes=60 * hours), 8, prior=not additive)
        gate = Gate(workshop, fences_kept, not_compiled)
        loop = Loop(
            journal, Space.around(PHASED), gate, (backend,), session.offline(proposer, prior=not additive), watch=watch
        )
        loop.run()
        state = journal.state
        report = reports.write_report(folder, state)
    quarter = [used for at, used in memory if at >= memory[-1][0] / 4]
    return {
        "hours": round(state.elapsed / 3600, 2), "wall seconds": round(time.monotonic() - began, 1),
        "finished": state.finished, "evaluations": state.evals, "proposals": len(state.trials), "events": state.events,
        "kept": len(state.curve), "memory MiB": [[at, round(used / MIB)] for at, used in memory],
        "growth MiB": round((quarter[-1] - quarter[0]) / MIB, 1),
        "journal bytes": sum((folder / name).stat().st_size for name in (DATABASE, MIRROR)),
        "report bytes": report.stat().st_size,
    }  # fmt: skip


def rendered(browser: str, report: Path) -> dict[str, Any]:
    """What the browser makes of the report: its document, and a picture."""
    picture = report.with_suffix(".png")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=20000",
        "--window-size=1200,3000",
        f"--screenshot={picture}",
    ]
    profile = f"--user-data-dir={report.parent / 'profile'}"
    words = [browser, *flags, profile, "--dump-dom", report.resolve().as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=BROWSER_SECONDS, check=True)
    version = subprocess.run([browser, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return {
        "browser": version, "rows in the document": done.stdout.count("<tr"), "svg": done.stdout.count("<svg"),
        "frames": done.stdout.count("<iframe"), "picture bytes": picture.stat().st_size,
    }  # fmt: skip


def problems(night: dict[str, Any]) -> list[str]:
    checks = {
        "the night ended by its budget": "minutes are used up" in str(night["finished"]),
        "memory is flat": night["growth MiB"] * MIB <= MOST_GROWTH,
        "the journal is small": night["journal bytes"] <= LIMITS["journal"],
        "the report is small": night["report bytes"] <= LIMITS["report"],
        "the browser shows the proposals": night["browser"] is None or night["browser"]["rows in the document"] > 20,
        "the browser shows the curve": night["browser"] is None or night["browser"]["svg"] >= 1,
    }
    return [what for what, good in checks.items() if not good]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=HOURS)
    parser.add_argument("--speed", type=float, default=SPEED, help="hours of the driver's clock in one")
    parser.add_argument("--additive", action="store_true", help="not the simulator's times but quick ones")
    parser.add_argument("--browser", help="a Chromium")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        found = night(Path(folder) / "run", options.hours, additive=options.additive, speed=options.speed)
        report = Path(folder) / "run" / reports.REPORT
        found["browser"] = rendered(options.browser, report) if options.browser else None
    found["problems"] = problems(found)
    found["run"] = {
        "command": f"python -m tests.agent.long_night --hours {options.hours:g} --speed {options.speed:g}"
        + (" --additive" if options.additive else "")
        + (" --browser chromium" if options.browser else ""),
        "commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{os.cpu_count()} cores, no GPU",
    }  # fmt: skip
    text = json.dumps({"format": 1, "name": "search-long-night"} | found, indent=1)
    print(text)
    if options.record is not None:
        options.record.write_text(text + "\n")
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
