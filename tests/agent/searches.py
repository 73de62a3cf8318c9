"""Sums up finished searches: what was found, the plan it was compared with, and where the device's time went.

    python -m tests.agent.searches RUN_FOLDER... --record tests/records/h200-searches.json

A run folder is `$AMK_RUNS/NAME` or `NAME` in the user's data directory; nothing but its journal is read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import UTC, datetime
from math import exp
from pathlib import Path
from typing import Any

import numpy as np

from amk.agent import decide
from amk.agent.events import Measured
from amk.agent.journal import read_state
from amk.agent.state import START, State
from amk.bench.provenance import commit
from amk.planner.settings import STARTS
from amk.planner.space import Space


def summed_up(state: State, reference: str = "fast") -> dict[str, Any]:
    """One run. ValueError if it was never begun."""
    run = state.run
    if run is None:
        raise ValueError("the run was never begun")
    words = f"amk autoresearch --model {run.model} --dtype {run.dtype} --gpu {run.target} --start {run.start}"
    words += "" if run.prior else " --no-prior"
    words += f" --minutes {state.limits.minutes:g}" if state.limits.minutes is not None else ""
    found = {
        "command": f"{words} --compare {reference}" if state.references else words,
        "model": run.model, "dtype": run.dtype, "back_end": run.backend, "seed": run.seed, "proposer": run.proposer,
        "sessions": state.session.session if state.session is not None else 0,
        "devices": sorted({c.device for c in state.calibrations}), "minutes": round(state.elapsed / 60, 2),
        "finished": state.finished, "evaluations": state.evals, "proposals": len(state.trials),
        "kept": [{"after_evaluations": m.evals, "times_faster_than_start": round(exp(-m.score), 4)}
                 for m in state.curve],
        "times_faster_than_start": round(exp(-state.best_score), 4), "device_seconds": device_seconds(state),
        "positions": list(run.positions),
    }  # fmt: skip
    found |= differences(state, reference)
    return found | (against(state.references[-1]) if state.references else {})


def device_seconds(state: State) -> dict[str, float]:
    """By phase, those of trials; `other` is calibrations, comparisons and faults."""
    found: dict[str, float] = {}
    for trial in state.trials:
        for phase, measured in trial.measured.items():
            found[phase] = found.get(phase, 0.0) + measured.seconds
    found["other"] = state.gpu_seconds - sum(found.values())
    return {name: round(seconds, 1) for name, seconds in found.items()}


def differences(state: State, reference: str) -> dict[str, Any]:
    """The knobs in which the best differs from the start and from the plan that it is compared with."""
    run = state.run
    assert run is not None
    space = Space.around(STARTS[run.start])
    best = space.start if state.best == START else space.parse(state.trials[state.best].proposed.settings)
    other = STARTS[reference]
    return {
        "changed_from_start": space.changes(best, space.start),
        f"unlike_{reference}": {
            name: {"best": value, reference: getattr(other, name)}
            for name, value in space.changes(best, other).items()
        },
    }  # fmt: skip


def against(reference: Measured) -> dict[str, Any]:
    """The comparison at the end: ms per token, and log ratios as shares of the reference's speed."""
    median = float(np.median(reference.log_ratios))
    return {
        "best_found_ms": [round(ms, 4) for ms in reference.incumbent_ms],
        "hand_tuned_ms": [round(ms, 4) for ms in reference.candidate_ms],
        "reached_hand_tuned": median >= 0,
        "best_found_faster_by": round(exp(median) - 1, 4),
        "hand_tuned_faster_by_at_least_99": round(exp(-decide.upper_bound(reference.log_ratios, 0)) - 1, 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--hardware", help="what the searches ran on, e.g. GPUs and cores of the machine")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    content = {
        "format": 1,
        "run": {
            "command": "python -m tests.agent.searches " + " ".join(folder.name for folder in options.runs),
            "commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "hardware": options.hardware or f"{os.cpu_count()} cores where it was summed up",
        },
        "runs": [summed_up(read_state(folder)) for folder in options.runs],
    }  # fmt: skip
    text = json.dumps(content, indent=1)
    print(text)
    if options.record is not None:
        options.record.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
