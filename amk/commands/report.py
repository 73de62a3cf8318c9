"""`amk report RUN`: one self-contained HTML file about a search, or what it tried as text."""

import argparse
from pathlib import Path

from amk.agent.journal.inbox import write_whole
from amk.agent.journal.state import State
from amk.agent.journal.store import read_state
from amk.agent.report.stored_report import REPORT, kept_report
from amk.agent.run.runs import find
from amk.commands.output import print_table
from amk.report.diagnostic import AmkError, Diagnostic


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="name of a run, or the start of it")
    parser.add_argument("-o", "--output", type=Path, help="file to write (default: report.html beside the journal)")
    parser.add_argument("--text", action="store_true", help="print what was tried near the best, and what was not")
    parser.add_argument(
        "--bounds", type=Path, nargs="+", default=(), metavar="FILE",
        help="records of `amk bench --ablate --record FILE`: how far the best is from the copies alone",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    folder = find(arguments.run)
    state = read_state(folder)
    if state.run is None:
        raise AmkError(Diagnostic("AMK701", f"run {folder.name} was never started"))
    if arguments.text:
        return _as_text(state, arguments.bounds)
    path = arguments.output or folder / REPORT
    kept = None if arguments.bounds else kept_report(folder, state)
    write_whole(path, kept or _made_again(state, arguments.bounds))
    print(path)
    return 0


def _made_again(state: State, records: list[Path]) -> str:
    """Of a session that was killed, or has not ended; or with bounds that it had not."""
    from amk.agent.report.bounds import bounds
    from amk.agent.run.reports import HURRY, report_of

    return report_of(state, until=HURRY, bounds=bounds(state, records))


def _as_text(state: State, records: list[Path]) -> int:
    from amk.agent.decide.neighbourhood import sentence
    from amk.agent.report import edits_table
    from amk.agent.report.bounds import bounds
    from amk.agent.run.reports import context_of, left_of

    left = left_of(state, context_of(state), bounds(state, records))
    rows = edits_table.kinds_of(state, left.near, left.unseen)
    knobs = f"knobs: {sentence(left.survey)}." if left.survey is not None else ""
    said = (*left.verdict(state), left.headroom(state), knobs, edits_table.never(rows), edits_table.NOT_COUNTED)
    print(*filter(None, said), sep="\n")
    print()
    print_table(edits_table.kinds_header(state), [row.cells for row in rows])
    print()
    print_table(edits_table.SPOTS, [spot.cells for spot in edits_table.spots_of(state, left.near)])
    return 0
