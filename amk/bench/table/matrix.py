"""Every shipped model on every target: planned, verified, compiled, or the reason why not. Needs no GPU.

One row per (model, target, weights). A row depends on the schedule, the device headers and the compiler alone, so one
that was recorded for the same three is kept by a resumed run.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from amk.lowering import headers
from amk.lowering.compile import compiler_build
from amk.lowering.emit import emit
from amk.lowering.kernel import build
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.report.json_file import read_json
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.validator.verify import verify
from amk.weights.weight_format import FormatName

FORMAT = 1
LIMIT = 4 << 20
Outcome = Literal["runs", "does not fit", "refused"]
"""runs: SAFE for all positions and compiled within registers, spills and shared memory; refused: anything else."""


@dataclass(frozen=True)
class Cell:
    """One model on one target. Sizes in bytes, times in seconds; None where it did not come to that."""

    model: str
    gpu: str
    arch: str
    weights: str
    outcome: Outcome
    reason: str | None = None
    context: int | None = None
    workers: int | None = None
    plan_s: float | None = None
    verdict: str | None = None
    verify_s: float | None = None
    registers: int | None = None
    register_budget: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    shared_limit: int | None = None
    cubin_bytes: int | None = None
    compile_s: float | None = None
    schedule_sha256: str | None = None
    code_sha256: str | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.model, self.gpu, self.weights


def examine(model: str, gpu: str, weights: FormatName, before: Cell | None = None, *, use_cache: bool = False) -> Cell:
    """The cell of a model and a target; `before` if that is of the same schedule and code.

    use_cache: take machine code that was compiled before, which makes compile_s meaningless.
    """
    target = load_target(gpu)
    began = time.monotonic()
    start: dict[str, Any] = {"model": model, "gpu": gpu, "arch": target.arch, "weights": weights}
    try:
        schedule = plan(load_model(model), target, formats=formats(weights))
    except AmkError as error:
        code, message = error.diagnostics[0].code, error.diagnostics[0].message
        outcome: Outcome = "does not fit" if code in ("AMK011", "AMK401") else "refused"
        return Cell(**start, outcome=outcome, reason=f"{code}: {message}{_shortfall(error)}")
    start |= {
        "context": schedule.kv.context, "workers": schedule.launch.workers, "plan_s": _since(began),
        "register_budget": schedule.launch.registers, "shared_limit": target.smem_per_block,
        "schedule_sha256": schedule_hash(schedule), "code_sha256": code_hash(schedule),
    }  # fmt: skip
    if before is not None and (before.schedule_sha256, before.code_sha256) == (
        start["schedule_sha256"],
        start["code_sha256"],
    ):
        return before
    return _proved_and_compiled(schedule, start, use_cache)


def _proved_and_compiled(schedule: Schedule, start: dict[str, Any], use_cache: bool) -> Cell:
    began = time.monotonic()
    verdict = verify(schedule)
    start |= {"verdict": verdict.status, "verify_s": _since(began)}
    if not verdict.safe:
        first = verdict.diagnostics[0]
        return Cell(**start, outcome="refused", reason=f"{first.code}: {first.message}")
    began = time.monotonic()
    try:
        built = build(schedule, use_cache=use_cache)
    except AmkError as error:
        first = error.diagnostics[0]
        return Cell(**start, outcome="refused", reason=f"{first.code}: {first.message}", compile_s=_since(began))
    used = built.resources
    return Cell(
        **start, outcome="runs", registers=used.registers, spill_bytes=used.spill_stores + used.spill_loads,
        shared_bytes=built.shared_bytes, cubin_bytes=len(built.compiled.cubin), compile_s=_since(began),
    )  # fmt: skip


def code_hash(schedule: Schedule) -> str:
    """What is compiled and by what."""
    source = emit(schedule)
    parts = [source, *(f"{name}\n{text}" for name, text in headers.closure(source).items()), compiler_build()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _since(began: float) -> float:
    return round(time.monotonic() - began, 2)


def _shortfall(error: AmkError) -> str:
    """`; short of N bytes`, from the budget that the planner shows."""
    lines = [fact.text for fact in error.diagnostics[0].facts if "shortfall" in fact.text]
    return f"; short of {lines[0].removeprefix('shortfall').strip()}" if lines else ""


@dataclass
class Matrix:
    """A record file of cells, each with the run it came from; written after every cell."""

    path: Path
    entries: dict[tuple[str, str, str], tuple[Cell, dict[str, object]]]

    @classmethod
    def open(cls, path: Path) -> Matrix:
        """An absent file is an empty matrix; AMK005 for a file that is none of this format."""
        if not path.exists():
            return cls(path, {})
        content = read_json(path, LIMIT)
        try:
            if content["format"] != FORMAT:
                raise KeyError("format")
            cells = [(Cell(**entry["cell"]), dict(entry["run"])) for entry in content["cells"]]
        except (KeyError, TypeError, ValueError) as error:
            message = f"not a matrix in format {FORMAT}: {error}"
            raise AmkError(Diagnostic("AMK005", message, where=Where(file=str(path)))) from error
        return cls(path, {cell.key: (cell, run) for cell, run in cells})

    def find(self, model: str, gpu: str, weights: str) -> Cell | None:
        entry = self.entries.get((model, gpu, weights))
        return entry[0] if entry else None

    def add(self, cell: Cell, run: dict[str, object]) -> None:
        """Enter the cell and replace the file at once."""
        self.entries[cell.key] = cell, run
        cells = [
            {"cell": {name: value for name, value in asdict(entry).items() if value is not None}, "run": provenance}
            for _, (entry, provenance) in sorted(self.entries.items())
        ]
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps({"format": FORMAT, "cells": cells}, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, self.path)

    def cells(self) -> Iterator[Cell]:
        yield from (cell for _, (cell, _) in sorted(self.entries.items()))


LEGEND = """# Models and targets

Every shipped model on every known target, planned with the defaults, proved SAFE for all positions, and compiled within
the target's registers and shared memory without a spill. A cell says: cache positions; registers a thread; shared
memory a worker; seconds to verify + to compile, on a machine shared with other work. AMK011: weights, cache and reserve
do not fit the device memory; the record says by how many bytes. Written by `amk matrix --record FILE.json --render
FILE.md`, which needs no GPU; `--resume` does again only what has changed since.
"""


def render(matrix: Matrix) -> str:
    """The record as Markdown: models down, targets across."""
    cells = list(matrix.cells())
    runs = sorted({f"{str(run['date'])[:10]} at commit {run['commit']}" for _, run in matrix.entries.values()})
    parts = [LEGEND.strip(), f"Recorded {', '.join(runs)}."]
    for weights in sorted({cell.weights for cell in cells}):
        mine = {(cell.model, cell.gpu): cell for cell in cells if cell.weights == weights}
        gpus = sorted({gpu for _, gpu in mine}, key=lambda name: (load_target(name).capability, name))
        lines = [f"| {weights} | " + " | ".join(gpus) + " |", "|---" * (len(gpus) + 1) + "|"]
        for model in sorted({model for model, _ in mine}, key=lambda name: (load_model(name).params, name)):
            shown = [_short(mine.get((model, gpu))) for gpu in gpus]
            lines.append(f"| {model} | " + " | ".join(shown) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _short(cell: Cell | None) -> str:
    if cell is None:
        return ""
    if cell.outcome != "runs":
        return f"{cell.outcome} ({(cell.reason or '').split(':')[0]})"
    assert cell.context and cell.shared_bytes and cell.verify_s is not None and cell.compile_s is not None
    seconds = f"{cell.verify_s:.1f} + {cell.compile_s:.1f} s"
    return f"{cell.context:,}; {cell.registers}; {cell.shared_bytes / 1024:.0f} KiB; {seconds}"
