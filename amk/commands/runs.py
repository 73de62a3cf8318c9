"""`amk runs [RUN]`: the stored searches, or how the proposers of one stand."""

import argparse
from dataclasses import asdict
from math import exp
from typing import Any

from amk.agent.journal.store import read_state
from amk.agent.report.standing import HEADER, doing, standings
from amk.agent.run.runs import all_runs, find, status
from amk.commands.output import add_format, print_json, print_table
from amk.report.diagnostic import AmkError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", help="name of a run, or the start of it: how its proposers stand")
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    chosen = None if arguments.run is None else find(arguments.run)
    rows: list[dict[str, Any]] = []
    for folder, state in [(chosen, read_state(chosen))] if chosen is not None else all_runs():
        if isinstance(state, AmkError) or state.run is None:
            rows.append({"run": folder.name, "state": "damaged" if isinstance(state, AmkError) else "empty"})
            continue
        rows.append(
            {
                "run": folder.name, "state": status(folder, state), "model": state.run.model, "gpu": state.run.target,
                "evaluations": state.evals, "proposals": len(state.trials),
                "best": round(exp(-state.best_score), 4), "back_end": state.run.backend,
                "simulated": state.run.simulated, "dollars": round(state.dollars, 4),
                "language_model": doing(state) if state.conversations else "",
                "proposers": [asdict(each) | {"passed": each.accepted} for each in standings(state)],
            }
        )  # fmt: skip
    if arguments.format == "json":
        print_json({"runs": rows})
        return 0
    header = ("run", "state", "evaluations", "best", "back_end", "language_model")
    print_table(header, [tuple(str(row.get(name, "")) for name in header) for row in rows])
    if chosen is not None:
        print()
        print_table(HEADER, [each.cells for each in standings(read_state(chosen))])
    return 0
