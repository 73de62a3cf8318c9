"""The frozen part of a run: the code that judges. A run whose judges changed is not the same run.

Frozen: validator, checker, oracle (op references and the interpreter), harness (measurement, audit, decision, worker,
and the simulator, which measures where there is no device), the table of the space, and all that these import. The
hash is taken over file contents by package-relative name.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from amk.report.diagnostic import AmkError, Diagnostic, because

FROZEN = (
    "validator", "checker", "models", "weights", "targets", "schedule_ir", "interpreter", "planner", "lowering",
    "simulator", "bench", "engine/admission", "engine/backends", "prefill/views.py", "report/diagnostic.py",
    "report/json_file.py", "report/schema.py", "processes.py", "version.py", "agent",
)  # fmt: skip
SUFFIXES = (".py", ".cuh", ".json", ".cu")
OPEN = ("agent/propose", "agent/tools", "agent/remote", "agent/report", "agent/README.md")
"""Proposers, tools and reports do not judge, so they may change between sessions."""


def frozen_files(root: Path) -> list[Path]:
    found: list[Path] = []
    for name in FROZEN:
        path = root / name
        found += [path] if path.is_file() else [p for p in path.rglob("*") if p.suffix in SUFFIXES]
    kept = [p for p in found if not p.relative_to(root).as_posix().startswith(OPEN)]
    return sorted(kept, key=lambda p: p.relative_to(root).as_posix())


def freeze(root: Path | None = None) -> dict[str, str]:
    """sha256 of every frozen file, by name relative to the package."""
    base = root or Path(__file__).parents[2]
    return {p.relative_to(base).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in frozen_files(base)}


def digest(files: dict[str, str]) -> str:
    """One hash over a manifest."""
    text = "".join(f"{name} {value}\n" for name, value in sorted(files.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def check(frozen: dict[str, str], now: dict[str, str]) -> None:
    """AMK703 naming the files if the judges differ from those the run was started with."""
    if frozen == now:
        return
    changed = sorted(n for n in frozen.keys() | now.keys() if frozen.get(n) != now.get(n))
    shown = ", ".join(changed[:8]) + (f" and {len(changed) - 8} more" if len(changed) > 8 else "")
    facts = (because("measurements and verdicts of different judges cannot be compared"),)
    message = f"validator, oracle or harness changed since the run was started: {shown}"
    raise AmkError(Diagnostic("AMK703", message, facts=facts, help="start a new run, or install the run's version"))
