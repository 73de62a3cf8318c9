"""How far predictions of steps of several rows were off, from records of `python -m tests.gpu.time_rows`.

    python -m tests.simulator.row_errors h200 amk/simulator/errors.json tests/records/speed/h200-columns.json \
        tests/records/speed/h200-row-groups.json

A later record replaces what earlier ones have of the same step. The errors join those of the kinds of plans that the
file already has for the GPU. The plans are the planner's defaults of today.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
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


def errors_in(records: Sequence[Path], gpu: str) -> dict[str, KindError]:
    """By kind, of the records' steps of more than one row."""
    measured: dict[tuple[str, int, int], float] = {}
    for record in records:
        content = read_json(record, 1 << 20)
        assert isinstance(content, dict)
        for step in content["steps"]:
            what, _, count = step["plan"].partition(" ")
            if what == "rows" and count.isdigit() and int(count) > 1:
                measured[step["model"], int(count), step["pos"]] = step["ms"]
    schedules = {key: planned(key[0], gpu, key[1]) for key in measured}
    return errors_of([(schedules[key], key[2], ms, step_ms(schedules[key], key[2])) for key, ms in measured.items()])


def main() -> int:
    gpu, errors, *records = sys.argv[1:]
    known, found = read_errors(Path(errors)), errors_in([Path(record) for record in records], gpu)
    before = known.sources[gpu].partition("; python -m tests.simulator.row_errors")[0]
    source = f"{before}; python -m tests.simulator.row_errors {' '.join(records)}"
    Path(errors).write_text(saved({gpu: dict(sorted((known.kinds[gpu] | found).items()))}, source, known))
    for kind, error in found.items():
        print(f"{kind}: {error}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
