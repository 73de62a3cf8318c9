"""The head of the report: what came of the run, and which of the changes that the best consists of matter.

A change is taken out of the best by itself and the rest is simulated: a change is worth what the best loses without
it, in the mean over positions, as a gain is counted. That costs a plan and a few simulations each, the edits first, and
ends once it took as long as a reader may wait.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from math import exp, inf, log

from amk.agent.decide.headroom import speed_of_light
from amk.agent.decide.keep import compared, percent
from amk.agent.gate.candidate import Candidate, Workshop
from amk.agent.gate.design import Design, in_words
from amk.agent.journal.state import START, State
from amk.agent.report.survey_table import table
from amk.planner.space import Space
from amk.report.diagnostic import AmkError
from amk.schedule_ir.edits.apply import edit_text
from amk.schedule_ir.edits.difference import difference

MOST_CHANGES = 24
"""Changes in the table of what each is worth."""
CHANGES = 200
LINE = 200


@dataclass(frozen=True)
class Ablated:
    """A change, and the simulated log gain that the best loses without it; None: without it there is no schedule, or
    one that gets stuck."""

    change: str
    worth: float | None


def result(state: State) -> str:
    """Before, after, distance to the speed of light, confidence."""
    run = state.run
    assert run is not None
    label = ", simulated" if run.simulated else ""
    before = state.calibrations[0].incumbent_ms if state.calibrations else ()
    trial = state.trials[state.best] if state.best != START else None
    confirm = trial.measured.get("confirm") if trial is not None else None
    after = confirm.candidate_ms if confirm is not None else before
    beside = f"<p>{escape(compared(state.references[-1]))}</p>" if state.references else ""
    if trial is None or trial.decided is None:
        words = "Nothing was found that is faster than the start."
    else:
        step, bound = trial.decided.log_gain or 0.0, trial.decided.bound
        sure = "" if bound is None else f", at least {percent(-bound)} with 99% confidence"
        words = (
            f"{exp(-state.best_score):.3f} times as fast as the start{label}: proposal {trial.index}, whose own step "
            f"is {percent(step)}{sure}, in a fresh process on fresh inputs."
        )
    light = [speed_of_light(run.floor_ms, ms) for ms in (before, after)]
    shares = " -> ".join(f"{100 * share:.1f}%" for share in light if share is not None)
    spent = f"{state.evals} evaluations, {state.elapsed / 60:.1f} minutes, ${state.dollars:.2f} for a language model"
    lines = f'<p class="result">{escape(words)}</p>{beside}<p>{escape(spent)}.'
    lines += f" Of the speed of light (floor over time): {escape(shares)}.</p>" if shares else "</p>"
    if not before or len(before) != len(after):
        return lines
    floors = run.floor_ms or (0.0,) * len(before)
    rows = [
        ("", (str(pos), f"{a:.4f}", f"{b:.4f}", percent(log(a / b)), f"{floor:.4f}" if floor else ""))
        for pos, a, b, floor in zip(run.positions, before, after, floors, strict=True)
    ]
    return lines + table(("position", f"ms before{label}", f"ms after{label}", "faster", "floor, ms"), rows)


def ablated(
    space: Space, workshop: Workshop, best: Design, whole: Mapping[int, float], until: float = inf
) -> list[Ablated]:
    """The changes of the best, each removed in turn, the worthiest first; whole: simulated ms of the best by position;
    until: the processor time of this process at which no further one is."""
    found: list[Ablated] = []
    for change, rest in _without(space, best):
        if found and time.process_time() > until:
            break
        found.append(Ablated(change, _worth(workshop, rest, whole)))
    return sorted(found, key=lambda each: -(9.0 if each.worth is None else each.worth))


def _without(space: Space, best: Design) -> Iterator[tuple[str, Design]]:
    for number, words in enumerate(in_words(best.edits)):
        yield words, Design(best.settings, best.edits[:number] + best.edits[number + 1 :])
    for name, value in space.changes(best.settings, space.start).items():
        rest = replace(best.settings, **{name: getattr(space.start, name)})
        yield f"{name} = {value}", Design(rest, best.edits)


def _worth(workshop: Workshop, rest: Design, whole: Mapping[int, float]) -> float | None:
    candidate = workshop.make(rest)
    if not isinstance(candidate, Candidate):
        return None
    try:
        ms = workshop.simulator.steps_ms(candidate.schedule, tuple(whole))
    except AmkError:
        return None
    return sum(log(each / best) for each, best in zip(ms, whole.values(), strict=True)) / len(whole)


def what_matters(changes: Sequence[Ablated], every: int, where: str) -> str:
    """A section; every: how many changes there are; where: at which positions they were simulated, in words."""
    if not changes:
        return ""
    rows = [
        ("", (each.change[:LINE], "nothing runs" if each.worth is None else percent(each.worth)))
        for each in changes[:MOST_CHANGES]
    ]
    more = f" Taken out: {len(changes)} of {every} changes." if every > len(changes) else ""
    more += f" The {MOST_CHANGES} worthiest of {len(changes)} are shown." if len(changes) > MOST_CHANGES else ""
    words = f"Each change taken out of the best by itself: what it is worth there, simulated {where}.{more}"
    return f"<h2>What matters</h2><p>{escape(words)}</p>{table(('change', 'worth'), rows)}"


def moved(start: Candidate | None, best: Candidate | None) -> str:
    """How the best schedule differs from the start, in words, by the names of the timeline."""
    if start is None or best is None or start.key == best.key:
        return ""
    try:
        edits = [edit for edit in difference(start.schedule, best.schedule) if getattr(edit, "of", "") != "schedule"]
    except AmkError:  # of another model, which no run has
        return ""
    lines = [edit_text(edit)[:LINE] for edit in edits[:CHANGES]]
    lines += [f"... {len(edits) - CHANGES} more"] if len(edits) > CHANGES else []
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    summary = f"<summary>{len(edits)} changes of steps, hand-offs, tables and rings</summary>"
    return f"<h2>Schedule: from the start to the best</h2><details>{summary}<ul>{items}</ul></details>"
