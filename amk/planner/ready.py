"""Makes the shipped decisions: `python -m amk.planner.ready [--expansions N] [--only MODEL ...] [--gpus TARGET ...]`.

One search per model and target that fits, with the default context; every result is verified SAFE. Entries that a call
does not make again stay as they are, and the file is written after every search.
"""

from __future__ import annotations

import argparse
import json
from importlib.resources import files
from pathlib import Path

from amk.planner.decisions import Decisions, decisions_of, shipped
from amk.planner.search import Problem, search
from amk.report.diagnostic import AmkError
from amk.schedule_ir.model import load_model, shipped_models
from amk.schedule_ir.target import load_target, targets

SEED = 0


def main() -> int:
    parser = argparse.ArgumentParser(description="search a plan for every model and target, and store the decisions")
    parser.add_argument("--expansions", type=int, default=60, help="simulated plans of each search (default: 60)")
    parser.add_argument("--only", nargs="+", metavar="MODEL", help="these models only")
    parser.add_argument("--gpus", nargs="+", metavar="TARGET", help="these targets only")
    arguments = parser.parse_args()
    path = Path(str(files("amk.planner") / "decisions.json"))
    made = {(d.model, d.target, d.dtype): d for d in shipped()}
    for gpu in arguments.gpus or [t.name for t in targets()]:
        for model in arguments.only or shipped_models():
            found = searched(model, gpu, arguments.expansions)
            if found is None:
                continue
            made[found.model, found.target, found.dtype] = found
            entries = [json.dumps(made[k].model_dump(mode="json"), sort_keys=True) for k in sorted(made)]
            path.write_text("[\n" + ",\n".join(entries) + "\n]\n", encoding="utf-8")
            gain = found.default_ms[0] / found.ms[0] if found.default_ms else 1.0
            print(f"{model} on {gpu}: {found.ms[0]:.4f} ms simulated, {gain:.3f}x the default plan", flush=True)
    return 0


def searched(model: str, gpu: str, expansions: int) -> Decisions | None:
    """None where nothing fits."""
    problem = Problem(load_model(model), load_target(gpu))
    try:
        return decisions_of(problem, search(problem, seed=SEED, expansions=expansions), SEED)
    except AmkError as error:
        print(f"{model} on {gpu}: {error.diagnostics[0].message}", flush=True)
        return None


if __name__ == "__main__":
    raise SystemExit(main())
