"""`amk export RUN`: the best schedule of a search, certified again before it is written, with its certificate; or what
paid in it, for other searches."""

import argparse
import sys
from pathlib import Path

from amk.agent.journal.state import START
from amk.agent.journal.store import read_state
from amk.agent.run.export import export, export_lessons
from amk.agent.run.runs import find
from amk.report.diagnostic import AmkError, Diagnostic


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="name of a run, or the start of it")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the best, such as best.schedule.json")
    transfer = "write what paid, knobs and edits, for `amk autoresearch --transfer`"
    parser.add_argument("--transfer", type=Path, metavar="FILE", help=transfer)


def run(arguments: argparse.Namespace) -> int:
    if arguments.output is None and arguments.transfer is None:
        raise AmkError(Diagnostic("AMK005", "give -o FILE, --transfer FILE or both"))
    state = read_state(find(arguments.run))
    if state.run is None:
        raise AmkError(Diagnostic("AMK701", f"run {arguments.run} was never started"))
    if arguments.transfer is not None:
        print(f"{arguments.transfer}: {export_lessons(state, arguments.transfer)} lessons")
    if arguments.output is not None:
        output, certificate = export(state, arguments.output)
        if state.best == START:
            print("nothing was kept: this is the schedule that the run started from", file=sys.stderr)
        print(output)
        print(f"check: amk check-certificate {output} {certificate}")
    return 0
