"""The measurements in a file of `amk bench --share`, each with the schedule that was measured.

Who wrote the file is not known. Refused are: a broken seal, a missing signature where signers are named, another format
of the file; a schedule that is too long, none, of another version of the IR, or not of the hash that names it; one that
is not SAFE on the target as it is known here, whose limits and rates replace the file's; a row that says otherwise than
its schedule, has wrong logits, or a time below the speed of light. Whether it was measured only its signer vouches for.
"""

from __future__ import annotations

from pathlib import Path

from amk.bench.table.shared import MOST_BYTES, Key, Measured, read, schedules_of
from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.report.json_file import read_json
from amk.schedule_ir.schedule import Schedule
from amk.simulator.calibrate import Run
from amk.simulator.floor import floor_ms
from amk.targets.target import load_target
from amk.validator.verify import Verdict, verify


def is_shared(path: Path) -> bool:
    """Whether a file of JSON says that it is one, of whatever format."""
    if path.stat().st_size > MOST_BYTES:
        return False
    content = read_json(path, MOST_BYTES)
    return isinstance(content, dict) and "seal" in content


def shared_runs(path: Path, signers: Path | None = None) -> list[Run]:
    """The runs of a file. AMK005, and others of `read` and of a schedule's file, if one is not believed."""
    content = read(path, signers)
    schedules = {digest: _on_known_target(schedule) for digest, schedule in schedules_of(path, content).items()}
    verdicts = {digest: verify(schedule) for digest, schedule in schedules.items()}
    runs = []
    for row in (entry.row for entry in content.rows):
        schedule, name = schedules[row.schedule], f"{_name(row.key)} at {row.key.pos}"
        if doubt := _doubt(row, schedule, verdicts[row.schedule]):
            raise AmkError(Diagnostic("AMK005", f"{name}: {doubt}", where=Where(file=str(path))))
        runs.append(Run(name, schedule, row.key.pos, row.times.ms))
    return runs


def kernel_name(model: str, dtype: str, plan: str, batch: int) -> str:
    """How a measured kernel of a plan is called."""
    return f"{model} {dtype} {plan}" + (f", batch {batch}" if batch > 1 else "")


def _on_known_target(schedule: Schedule) -> Schedule:
    """The schedule on the target of that name as this version knows it. AMK010 if it does not."""
    return schedule.model_copy(update={"target": load_target(schedule.target.name)})


def _doubt(row: Measured, schedule: Schedule, verdict: Verdict) -> str:
    """Why nobody can have measured what a row says, if so."""
    if not verdict.safe:
        codes = ", ".join(dict.fromkeys(each.code for each in verdict.diagnostics))
        return f"its schedule is {verdict.status} ({codes}), and such a kernel is not run"
    if wrong := _contradictions(row, schedule):
        return f"its schedule has {', '.join(wrong)}"
    if row.times.ms < floor_ms(schedule, row.key.pos):
        return f"{row.times.ms:.4f} ms is faster than its bytes can be read"
    return ""


def _contradictions(row: Measured, schedule: Schedule) -> list[str]:
    """What a schedule that is SAFE has, and its row says otherwise."""
    key, context = row.key, schedule.kv.context
    facts = {"model": schedule.model.name, "gpu": schedule.target.name, "plan": schedule.plan, "batch": schedule.batch}
    try:
        facts["dtype"] = schedule.weights_label
    except (IndexError, KeyError):
        return ["no stream of all weights"]
    wrong = [f"{name} {value}" for name, value in facts.items() if getattr(key, name) != value]
    return wrong + ([f"{context} cache positions"] if row.context != context or key.pos >= context else [])


def _name(key: Key) -> str:
    return kernel_name(key.model, key.dtype, key.plan, key.batch)
