"""How far predictions of steps of several rows were off, from a record of `python -m tests.gpu.time_rows`.

    python -m tests.simulator.row_errors tests/records/speed/h200-columns.json h200 amk/simulator/errors.json

Beside the kinds of plans that the file already has for the GPU. The plans are the planner's defaults of today.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

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


@cache
def planned(model: str, gpu: str, rows: int) -> Schedule:
    return plan(load_model(model), load_target(gpu), settings=replace(FAST, rows=rows), max_context=CONTEXT)


def errors_in(record: Path, gpu: str) -> dict[str, KindError]:
    """By kind, of the record's steps of more than one row."""
    content = read_json(record, 1 << 20)
    assert isinstance(content, dict)
    pairs = []
    for step in content["steps"]:
        what, _, count = step["plan"].partition(" ")
        if what == "rows" and int(count) > 1:
            schedule = planned(step["model"], gpu, int(count))
            pairs.append((schedule, step["pos"], step["ms"], step_ms(schedule, step["pos"])))
    return errors_of(pairs)


def main() -> int:
    record, gpu, errors = sys.argv[1:]
    known, found = read_errors(Path(errors)), errors_in(Path(record), gpu)
    source = f"{known.sources[gpu]}; python -m tests.simulator.row_errors {record}"
    Path(errors).write_text(saved({gpu: dict(sorted((known.kinds[gpu] | found).items()))}, source, known))
    for kind, error in found.items():
        print(f"{kind}: {error}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
