"""`amk calibrate --learn FILE...`: constants of the simulator from measurements that somebody with the card sent."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from math import expm1
from pathlib import Path

from amk.commands.shared_runs import shared_runs
from amk.report.diagnostic import AmkError, Diagnostic, Where, printable
from amk.simulator.calibrate import Run, fit_few
from amk.simulator.constants import LEARNED, constants_for, save_constants
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
    """The runs of a file; AMK005 if it is of another target."""
    runs = shared_runs(path, signers)
    if others := sorted({run.schedule.target.name for run in runs} - {target.name}):
        message = f"it is of {', '.join(others)}, not {target.name}"
        raise AmkError(Diagnostic("AMK005", message, where=Where(file=str(path))))
    return runs
