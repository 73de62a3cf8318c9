"""`results.tsv` and METRIC lines: a run in the form that scripts around autoresearch loops read.

A row is a closed proposal: id (of its kernel, as the commit elsewhere), score (floor over time, so 1 is the speed of
light), ms per token, status (keep, discard, crash, checks_failed) and a description. The first row is the start's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path

from amk.agent.decide.feedback import fate
from amk.agent.decide.headroom import speed_of_light
from amk.agent.decide.ranking import ranking
from amk.agent.journal.state import State, Trial
from amk.report.diagnostic import printable

FILE = "results.tsv"
HEADER = "id\tscore\tms\tstatus\tdescription\n"
STATUS = {
    "kept": "keep", "rejected": "discard", "duplicate": "discard", "failed": "crash", "quarantined": "checks_failed",
}  # fmt: skip
ID = 12
EDIT = 200
"""Characters of what was changed, and of why: what became of it is behind them."""


def row(state: State, trial: Trial) -> str:
    ending = fate(state, trial)
    floors = state.run.floor_ms if state.run is not None else ()
    score = speed_of_light(floors, ending.ms)
    edit = printable(", ".join(f"{k}={v}" for k, v in ending.edit.items()), EDIT)
    reason = " ".join((*ending.codes, ending.reason))
    words = f"#{trial.index} {trial.proposed.proposer}: {edit or 'no change'}; {ending.why[:EDIT]}; {reason}"
    return "\t".join((
        (trial.key or "-")[:ID], "" if score is None else f"{score:.4f}", _times(ending.ms),
        STATUS.get(ending.outcome, "checks_failed"), printable(words, 3 * EDIT),
    )) + "\n"  # fmt: skip


def first_row(state: State) -> str:
    """What the search starts from, as it was measured first."""
    run, ms = state.run, state.calibrations[0].incumbent_ms
    assert run is not None
    score = speed_of_light(run.floor_ms, ms)
    words = printable(f"the start: plan {run.start} of {run.model} on {run.target}", 400)
    return "\t".join(("start", "" if score is None else f"{score:.4f}", _times(ms), "keep", words)) + "\n"


def _times(ms: Sequence[float]) -> str:
    return " ".join(f"{each:.4f}" for each in ms)


@dataclass
class Results:
    """Writes rows as proposals are closed, in their order, once the start was measured; a new session writes those
    before anew."""

    path: Path
    _rows: int = 0

    def show(self, state: State) -> None:
        if not state.calibrations:
            return
        first = self._rows
        lines = [] if first else [HEADER, first_row(state)]
        for trial in state.trials[first:]:
            if not trial.closed:
                break
            self._rows += 1
            lines.append(row(state, trial))
        if self._rows > first:
            with contextlib.suppress(OSError), open(self.path, "w" if not first else "a", encoding="utf-8") as file:
                file.writelines(lines)


def metrics(state: State) -> list[str]:
    """What was reached, one `METRIC name=value` a line. `simulated` is there where nothing was measured."""
    best = state.trials[state.best] if state.best >= 0 else None
    measured = fate(state, best).ms if best is not None else ()
    if best is None and state.calibrations:
        measured = state.calibrations[-1].incumbent_ms
    found = {"speedup": f"{exp(-state.best_score):.4f}", "evaluations": str(state.evals)}
    if state.run is not None and state.run.simulated:
        found["simulated"] = "1"
    score = speed_of_light(state.run.floor_ms if state.run is not None else (), measured)
    if measured:
        found["ms_per_token"] = f"{sum(measured) / len(measured):.4f}"
    if score is not None:
        found["speed_of_light"] = f"{score:.4f}"
    if (ranked := ranking(state)) is not None:
        found["simulator_rank_correlation"] = f"{ranked:.3f}"
    return [f"METRIC {name}={value}" for name, value in found.items()]
