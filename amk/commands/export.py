"""`amk export RUN -o FILE`: the best schedule of a search, certified again before it is written; its certificate."""

import argparse
from pathlib import Path

from amk.agent.journal.store import read_state
from amk.agent.run.export import export
from amk.agent.run.runs import find
from amk.report.diagnostic import AmkError, Diagnostic


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="name of a run, or the start of it")
    parser.add_argument("-o", "--output", type=Path, required=True, help="file to write, such as best.schedule.json")


def run(arguments: argparse.Namespace) -> int:
    state = read_state(find(arguments.run))
    if state.run is None:
        raise AmkError(Diagnostic("AMK701", f"run {arguments.run} was never started"))
    output, certificate = export(state, arguments.output)
    print(output)
    print(f"check: amk check-certificate {output} {certificate}")
    return 0
