"""`amk report RUN`: one self-contained HTML file about a search."""

import argparse
from pathlib import Path

from amk.agent.journal.inbox import write_whole
from amk.agent.journal.state import State
from amk.agent.journal.store import read_state
from amk.agent.report.kept import REPORT, kept_report
from amk.agent.run.runs import find
from amk.report.diagnostic import AmkError, Diagnostic


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="name of a run, or the start of it")
    parser.add_argument("-o", "--output", type=Path, help="file to write (default: report.html beside the journal)")


def run(arguments: argparse.Namespace) -> int:
    folder = find(arguments.run)
    state = read_state(folder)
    if state.run is None:
        raise AmkError(Diagnostic("AMK701", f"run {folder.name} was never started"))
    path = arguments.output or folder / REPORT
    write_whole(path, kept_report(folder, state) or _made_again(state))
    print(path)
    return 0


def _made_again(state: State) -> str:
    """Of a session that was killed, or has not ended."""
    from amk.agent.run.reports import HURRY, report_of

    return report_of(state, until=HURRY)
