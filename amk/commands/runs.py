"""`amk runs`: the stored searches."""

import argparse
from math import exp
from typing import Any

from amk.agent.runs import all_runs, status
from amk.commands.output import add_format, print_json, print_table
from amk.report.diagnostic import AmkError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    rows: list[dict[str, Any]] = []
    for folder, state in all_runs():
        if isinstance(state, AmkError) or state.run is None:
            rows.append({"run": folder.name, "state": "damaged" if isinstance(state, AmkError) else "empty"})
            continue
        rows.append(
            {
                "run": folder.name, "state": status(folder, state), "model": state.run.model, "gpu": state.run.target,
                "evaluations": state.evals, "proposals": len(state.trials),
                "best": round(exp(-state.best_score), 4), "back_end": state.run.backend,
                "simulated": state.run.simulated, "dollars": round(state.dollars, 4),
            }
        )  # fmt: skip
    if arguments.format == "json":
        print_json({"runs": rows})
        return 0
    header = ("run", "state", "evaluations", "best", "back_end")
    print_table(header, [tuple(str(row.get(name, "")) for name in header) for row in rows])
    return 0
