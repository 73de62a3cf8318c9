"""`amk calibrate --learn FILE...`: constants of the simulator from measurements that somebody with the card sent."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from math import expm1
from pathlib import Path

from amk.bench.table.shared import Shared, read
from amk.commands.measured_runs import measured_runs
from amk.report.diagnostic import AmkError, Diagnostic, Where, printable
from amk.schedule_ir.codec import schedule_hash
from amk.simulator.calibrate import Run, fit_few
from amk.simulator.constants import LEARNED, constants_for, save_constants
from amk.simulator.floor import floor_ms
from amk.targets.target import Target


def learn(arguments: argparse.Namespace, target: Target, say: Callable[[str], None]) -> None:
    """Fit the constants of `target` to the files and write them. AMK005 for a file, or a row, that is not believed."""
    runs = [run for path in arguments.learn for run in believed(path, target, arguments.signers)]
    for path in arguments.learn if arguments.signers is None else ():
        name = printable(path.name, 80)
        say(f"warning: {name}: who sent it was not checked, and a seal is no signature; --signers FILE asks for one")
    if arguments.output is None:
        raise AmkError(Diagnostic("AMK005", "--learn needs -o FILE, where the constants are written"))
    fitted = fit_few(runs, constants_for(target), progress=say)
    before, after = (sum(map(abs, errors)) / len(errors) for errors in (fitted.before, fitted.after))
    errors = f"mean error {100 * expm1(before):.1f}% before, {100 * expm1(after):.1f}% after"
    names = printable(", ".join(path.name for path in arguments.learn), 80)
    sources = fitted.constants.sources | {LEARNED: f"{len(fitted.after)} measurements of {names}; {errors}"}
    save_constants(fitted.constants.model_copy(update={"sources": sources}), arguments.output)
    say(f"{len(runs)} measurements; {errors}")
    say(f"used by --constants {arguments.output} of amk autoresearch, amk plan --search and amk simulate")


def believed(path: Path, target: Target, signers: Path | None) -> list[Run]:
    """The runs of a file, each planned again here. AMK005 if one is of another target, is not the kernel that was
    measured, or is faster than light."""
    content: Shared = read(path, signers)
    runs = []
    for entry, run in zip(content.rows, measured_runs([str(path)]), strict=True):
        why = ""
        if run.schedule.target.name != target.name:
            why = f"it is of {run.schedule.target.name}, not {target.name}"
        elif schedule_hash(run.schedule) != entry.row.schedule:
            why = "this version plans another kernel: install the version that measured it"
        elif run.ms < floor_ms(run.schedule, run.pos):
            why = f"{run.ms:.4f} ms is faster than its bytes can be read"
        if why:
            raise AmkError(Diagnostic("AMK005", f"{run.name}: {why}", where=Where(file=str(path))))
        runs.append(run)
    return runs
