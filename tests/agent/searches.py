"""Sums up finished searches: what was found, the plan it was compared with, and where the device's time went.

    python -m tests.agent.searches RUN_FOLDER... --record tests/records/search/h200-searches.json

A run folder is `$AMK_RUNS/NAME` or `NAME` in the user's data directory; nothing but its journal is read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from datetime import UTC, datetime
from math import exp
from pathlib import Path
from typing import Any

import numpy as np

from amk.agent.decide import keep as decide
from amk.agent.decide.neighbourhood import sentence
from amk.agent.gate.design import in_words
from amk.agent.journal.events import Measured
from amk.agent.journal.state import START, State, Trial
from amk.agent.journal.store import read_state
from amk.agent.propose.singles import Singles
from amk.agent.propose.together import combined, gained
from amk.agent.propose.transfer import learned
from amk.agent.report.edits_table import kinds_of, spots_of
from amk.agent.run.reports import candidate_of, context_of, workshop_of
from amk.bench.tools.provenance import commit
from amk.planner.settings import STARTS


def summed_up(state: State, reference: str = "fast") -> dict[str, Any]:
    """One run. ValueError if it was never begun."""
    run = state.run
    if run is None:
        raise ValueError("the run was never begun")
    found = {
        "commands": commands(state, reference),
        "model": run.model, "dtype": run.weights, "back_end": run.backend, "seed": run.seed, "proposer": run.proposer,
        "prior": run.prior, "live_model_calls": sum(settled.live for settled in state.llm_settled),
        "dollars": round(state.dollars, 4), "sessions": len(state.sessions),
        "devices": sorted({c.device for c in state.calibrations}), "minutes": round(state.elapsed / 60, 2),
        "finished": state.finished, "evaluations": state.evals, "proposals": len(state.trials),
        "faults": Counter(f"{fault.fault}: {fault.detail}" for trial in state.trials for fault in trial.faults),
        "kept": [{"after_evaluations": m.evals, "times_faster_than_start": round(exp(-m.score), 4)}
                 for m in state.curve],
        "near_the_best": sentence(state.surveyed) if state.surveyed is not None else None,
        "exhausted": [{"after_evaluations": evals, **event.model_dump(exclude={"kind"})}
                      for evals, event in state.exhaustions],
        "times_faster_than_start": round(exp(-state.best_score), 4), "device_seconds": device_seconds(state),
        "positions": list(run.positions), "edits": what_was_tried(state), "transferred": transferred(state),
        "lessons": json.loads(learned(state, workshop_of(state).space(run.start)).model_dump_json())["lessons"],
    }  # fmt: skip
    found |= differences(state, reference)
    if state.references:
        found["compared_before"] = [against(earlier) for earlier in state.references[:-1]]
        found |= against(state.references[-1])
    return found


def what_was_tried(state: State) -> dict[str, Any]:
    """Edits of the best in words; by kind, how many distinct ones can be drawn at the best, how many of these were
    tried, and what came of the proposals; changes that gained without being kept, and their combinations."""
    best = candidate_of(state, state.best)
    context = context_of(state)
    sums = list(combined(context))
    singles = Singles()
    near = list(singles.survey(context, decided=True)) if best is not None else []
    return {
        "of_the_best": in_words(best.edits) if best is not None else [],
        "single_changes": dict(Counter(each.outcome for each in near)),
        "by_kind": {row.name: {"single_changes": dict(row.singles), "a_draw_is_new": row.unseen,
                               "proposals": row.proposals, "refused": dict(row.refused), "measured": row.measured,
                               "most_gained": None if row.best is None else row.best.gain_text}
                    for row in kinds_of(state, near, singles.unseen)},
        "by_place": {spot.name: dict(spot.singles) for spot in spots_of(state, near)},
        "measured": sum(t.edited and bool(t.measured) for t in state.trials),
        "gained_without_a_keep": {change.text[:200]: round(gain, 5) for gain, change, _ in gained(context)},
        "combinations": {"proposed": sum(each.proposed for each in sums), "open": sum(not s.proposed for s in sums)},
    }  # fmt: skip


def commands(state: State, reference: str) -> list[str]:
    """One a session, as far as the journal tells: how many processes judged stands nowhere."""
    run = state.run
    assert run is not None
    words = f"amk autoresearch --model {run.model} --dtype {run.dtype} --gpu {run.target}"
    batch = f" --batch {run.batch}" if run.batch > 1 else ""
    head = f" --lm-head-dtype {run.lm_head_dtype}" if run.lm_head_dtype else ""
    first = f"{head}{batch} --start {run.start}" + ("" if run.prior else " --no-prior")
    first += " --transfer FILE" if transferred(state) else ""
    compared = f" --compare {reference}" if state.references else ""
    found = []
    for number, session in enumerate(state.sessions):
        minutes = f" --minutes {session.limits.minutes:g}" if session.limits.minutes is not None else ""
        found.append(words + (" --resume" if number else first) + minutes + compared)
    return found


def transferred(state: State) -> dict[str, int]:
    """Lessons of other runs that were tried here, and what became of them; empty if there were none."""
    return dict(Counter(standing(trial) for trial in state.trials if trial.proposed.proposer == "transfer"))


def standing(trial: Trial) -> str:
    if trial.decided is not None:
        return trial.decided.outcome
    return "open" if trial.gated is None or trial.gated.verdict == "passed" else trial.gated.verdict


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
    workshop = workshop_of(state)
    space = workshop.space(run.start)
    best = space.start if state.best == START else space.parse(state.trials[state.best].proposed.settings)
    other = workshop.numbers(STARTS[reference])
    return {
        "changed_from_start": space.changes(best, space.start),
        f"unlike_{reference}": {
            name: {"best": value, reference: getattr(other, name)}
            for name, value in space.changes(best, other).items()
        },
    }  # fmt: skip


def against(reference: Measured) -> dict[str, Any]:
    """The comparison at the end: ms per token, and either side's gain with its one-sided 99% bound. Both bounds are
    negative where chance alone may have decided."""
    ratios = reference.log_ratios
    median = float(np.median(ratios))
    best_bound = -decide.upper_bound([-ratio for ratio in ratios], 0)
    return {
        "best_found_ms": [round(ms, 4) for ms in reference.incumbent_ms],
        "hand_tuned_ms": [round(ms, 4) for ms in reference.candidate_ms],
        "reached_hand_tuned": median >= 0,
        "best_found_faster_by": round(exp(median) - 1, 4),
        "best_found_faster_by_at_least_99": round(exp(best_bound) - 1, 4),
        "hand_tuned_faster_by_at_least_99": round(exp(-decide.upper_bound(ratios, 0)) - 1, 4),
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
