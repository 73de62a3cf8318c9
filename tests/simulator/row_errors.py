"""How far predictions of steps of several rows were off, from records of `python -m tests.gpu.time_rows`.

    python -m tests.simulator.row_errors h200 amk/simulator/errors.json \
        "tests/records/speed/h200-divided-columns.json#third card, 8e76fe79"

Of a record with several runs `FILE#RUN` names one. A later record replaces what earlier ones have of the same step.
The errors join those of the kinds of plans that the file already has for the GPU. The plans are the planner's defaults
of today, so name runs of kernels that still are the defaults.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.settings import FAST
from amk.report.json_file import read_json
from amk.schedule_ir.schedule import Schedule
from amk.simulator.kinds import KindError, errors_of, read_errors, saved
from amk.simulator.predict import step_ms
from amk.targets.target import load_target

CONTEXT = 2560
"""Cache positions of what `tests.gpu.time_rows` plans."""
PLAN = re.compile(r"rows (\d+)( headless)?")
"""What it calls plans without settings of their own."""


@cache
def planned(model: str, gpu: str, rows: int, headless: bool = False) -> Schedule:
    settings = replace(FAST, rows=rows, headless=headless)
    return plan(load_model(model), load_target(gpu), settings=settings, max_context=CONTEXT)


def steps_of(record: str) -> list[dict[str, Any]]:
    """Measured steps of FILE, or of one run of it."""
    file, _, run = record.partition("#")
    content = read_json(Path(file), 1 << 20)
    assert isinstance(content, dict)
    found: list[dict[str, Any]] = (content["runs"][run] if run else content)["steps"]
    return found


def errors_in(records: Sequence[str], gpu: str) -> dict[str, KindError]:
    """By kind, of the records' steps of more than one row, with output head and without."""
    measured: dict[tuple[str, int, bool, int], float] = {}
    for step in (step for record in records for step in steps_of(record)):
        if (name := PLAN.fullmatch(step["plan"])) and int(name[1]) > 1:
            measured[step["model"], int(name[1]), bool(name[2]), step["pos"]] = step["ms"]
    pairs = [(planned(model, gpu, rows, headless), pos, ms) for (model, rows, headless, pos), ms in measured.items()]
    return errors_of([(schedule, pos, ms, step_ms(schedule, pos)) for schedule, pos, ms in pairs])


def main() -> int:
    gpu, errors, *records = sys.argv[1:]
    known, found = read_errors(Path(errors)), errors_in(records, gpu)
    before = known.sources[gpu].partition("; python -m tests.simulator.row_errors")[0]
    source = f"{before}; python -m tests.simulator.row_errors {' '.join(records)}"
    Path(errors).write_text(saved({gpu: dict(sorted((known.kinds[gpu] | found).items()))}, source, known))
    for kind, error in found.items():
        print(f"{kind}: {error}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
