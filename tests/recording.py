"""`--record FILE`: what a test run showed, as small JSON, for runs that are too long for or out of reach of CI.

One entry per test file: counts by outcome, the numbers that tests gave to `record_property`, and where it ran. Entries
of files that were not run stay, so a long run can be made in slices.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from amk.bench.tools.hardware import gpu_state
from amk.bench.tools.provenance import commit
from amk.lowering.launch import Device
from amk.report.diagnostic import AmkError

FORMAT = 1


class Recorder:
    """Collects the reports of a run, from every worker of pytest-xdist, and writes them when it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: dict[str, Counter[str]] = {}
        self.numbers: dict[str, dict[str, dict[str, Any]]] = {}
        self.failed: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return  # a set-up or tear-down counts only where it decides
        file, _, test = report.nodeid.partition("::")
        self.outcomes.setdefault(file, Counter())[report.outcome] += 1
        if report.outcome == "failed":
            self.failed.setdefault(file, []).append(test)
        if report.user_properties:
            self.numbers.setdefault(file, {})[test] = dict(report.user_properties)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        entries = json.loads(self.path.read_text())["files"] if self.path.exists() else {}
        run = provenance([str(word) for word in session.config.invocation_params.args])
        for file, counts in self.outcomes.items():
            entries[file] = {
                "outcomes": dict(counts),
                "failed": self.failed.get(file, []),
                "numbers": self.numbers.get(file, {}),
                "run": run,
            }
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        temporary.write_text(json.dumps({"format": FORMAT, "files": dict(sorted(entries.items()))}, indent=1) + "\n")
        os.replace(temporary, self.path)


def provenance(arguments: list[str]) -> dict[str, Any]:
    """Command without the place of the record, commit, date, versions, hardware."""
    kept = list(arguments)
    if "--record" in kept:
        at = kept.index("--record")
        del kept[at : at + 2]
    return {
        "command": shlex.join(["python", "-m", "pytest", *kept]),
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "hardware": hardware(),
    }


def hardware() -> dict[str, str]:
    try:
        device = Device.open()
    except AmkError:
        return {"cpus": str(os.cpu_count()), "machine": platform.machine(), "gpu": "none"}
    try:
        return gpu_state(device)
    finally:
        device.close()
