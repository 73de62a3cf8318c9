"""What the trials of a run say of edits: which were proposed, which made the gate refuse a design, which paid."""

from __future__ import annotations

from amk.agent.decide.feedback import fate
from amk.agent.journal.state import State, Trial
from amk.agent.propose.base import Context

PAYS = 0.001
"""Measured log gain of an edit over its parent that is worth merging."""
WITH = " + "
"""Between the ways in which a child was made, where there was more than one."""


def beside_the_best(state: State, trial: Trial) -> float | None:
    """Log gain of a trial over its parent, less what that was behind the best of the time: a plan that is far behind is
    easily improved, and by what the best has already. None where nothing is known."""
    gain, parent = fate(state, trial).gain, trial.proposed.parent
    if gain is None or not trial.measured:
        return gain
    best = next(iter(trial.measured.values())).against
    return gain - max(0.0, state.score_of(parent) - state.score_of(best))


def had(context: Context) -> set[str]:
    """The edits of all proposals."""
    return {text for trial in context.state.trials for text in trial.proposed.edits}


def refused(context: Context) -> set[str]:
    """Edits whose coming made the gate refuse a design, and that no design that passed has. Of several that came in one
    way each, one is known to be at fault if all others passed elsewhere."""
    judged = [(trial, trial.gated.verdict) for trial in context.state.trials if trial.gated is not None]
    passed = {text for trial, verdict in judged if verdict == "passed" for text in trial.proposed.edits}
    found: set[str] = set()
    for trial, verdict in judged:
        if verdict in ("unsafe", "unknown", "uncompilable"):
            before = context.design(trial.proposed.parent).edits
            came = {text for text in trial.proposed.edits if text not in before} - passed
            found |= came if len(came) < (2 if WITH in trial.proposed.operator else 3) else set()
    return found


def paying(context: Context) -> list[tuple[float, int, tuple[str, ...]]]:
    """(log gain over its parent, trial, edits that came) of everything that was measured to pay, most first."""
    found = []
    for trial in context.state.trials:
        gain = fate(context.state, trial).gain if trial.edited else None
        if gain is not None and gain > PAYS:
            before = context.design(trial.proposed.parent).edits
            came = tuple(text for text in trial.proposed.edits if text not in before)
            found += [(gain, trial.index, came)] if came else []
    return sorted(found, key=lambda each: -each[0])
