"""The report of a stored run, made from its journal: needs neither a gate nor a device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

from amk.agent.decide.history import History
from amk.agent.gate.candidate import Candidate, Impossible, Workshop
from amk.agent.gate.candidate import workshop_of as made_of
from amk.agent.gate.design import Design
from amk.agent.journal.events import Ablation
from amk.agent.journal.inbox import write_whole
from amk.agent.journal.state import START, State
from amk.agent.propose.base import Context
from amk.agent.propose.singles import Singles
from amk.agent.propose.together import combined, gained
from amk.agent.report.edits_table import Remaining, what_is_left
from amk.agent.report.html import middle, render
from amk.agent.report.result import LINE, Ablated, ablated
from amk.agent.report.stored_report import REPORT
from amk.planner.space import OutsideSpaceError

Note = Callable[[Ablation], None]
HURRY = 1.0
"""Seconds of a processor since the process began after which no further change is taken out of the best, where somebody
waits for the report: at one position, and few, if the session did not write down what all are worth."""
PATIENCE = 15.0
"""Seconds of a processor that the session's own report may take for it."""


def workshop_of(state: State) -> Workshop:
    assert state.run is not None
    return made_of(state.run)


def candidate_of(state: State, index: int) -> Candidate | None:
    """The candidate of a trial (or of the start) planned again; None if the planner no longer makes it."""
    run = state.run
    assert run is not None
    workshop = workshop_of(state)
    space = workshop.space(run.start)
    design = Design(space.start)
    if index != START:
        proposed = state.trials[index].proposed
        try:
            design = Design(space.parse(proposed.settings), proposed.edits)
        except OutsideSpaceError:  # a value that is no choice any more
            return None
    candidate = workshop.make(design)
    return None if isinstance(candidate, Impossible) else candidate


def write_report(
    folder: Path, state: State, whole: bool = True, workshop: Workshop | None = None, note: Note | None = None
) -> Path:
    """The report of a run beside its journal; `whole`, `workshop` and `note` as in `report_of`."""
    path = folder / REPORT
    write_whole(path, report_of(state, whole, workshop, note=note))
    return path


def context_of(state: State, workshop: Workshop | None = None) -> Context:
    """What a proposer would know of the run now; workshop: as of `report_of`."""
    run = state.run
    assert run is not None
    history = History(made_of(run).space(run.start))
    history.update(state)
    workshop = workshop or workshop_of(state)
    workshop.remember({history.settings[t.index]: t.key for t in state.trials if t.key is not None and not t.edited})
    return Context(history.space, state, history, workshop, run.seed)


def left_of(state: State, context: Context, bounds: Sequence[str] = ()) -> Remaining:
    """What was tried near the best, and what was not; bounds: as of `Left`."""
    alone, singles = gained(context), Singles()
    near = list(singles.survey(context, decided=True)) if candidate_of(state, state.best) is not None else []
    survey = state.surveyed or context.neighbourhood.survey(context, plans=0).event()
    return Remaining(near, alone, list(combined(context, alone)), survey, singles.unseen, bounds)


def takes_changes_out(state: State) -> bool:
    """Whether a report of the session takes changes out of the best, which may take as long as PATIENCE."""
    return state.best != START and state.ablation is None


def report_of(
    state: State, whole: bool = True, workshop: Workshop | None = None, until: float = inf, bounds: Sequence[str] = (),
    note: Note | None = None,
) -> str:  # fmt: skip
    """The report of a run that was begun, as HTML. Without `whole` nothing is planned for it, which takes seconds: no
    timeline, no difference of the schedules, nothing of what is left near the best. workshop: the run's own, if there
    is one that remembers programs. until: processor time of this process, for taking changes out of the best, which is
    read where it was written down. note: writes it down, once for every best. bounds: as of `Left`."""
    if not whole:
        return render(state, None, None)
    assert state.run is not None
    context = context_of(state, workshop)
    survey = context.neighbourhood.survey(context, plans=0)
    best, start = candidate_of(state, state.best), candidate_of(state, START)
    edits = what_is_left(state, left_of(state, context, bounds))
    predict, pos = context.workshop.simulator.predict, middle(state)
    foreseen, before = (None if each is None else predict(each.schedule, pos) for each in (best, start))
    found, where = state.ablation, "over all positions"
    if found is None and best is not None and foreseen is not None and takes_changes_out(state):
        if until < inf:
            whole_ms, where = {pos: foreseen.ms}, f"at position {pos}"
        else:
            positions = state.run.positions
            whole_ms = dict(zip(positions, context.workshop.simulator.steps_ms(best.schedule, positions), strict=True))
        space, end = context.space, min(until, time.process_time() + PATIENCE)
        every = len(best.design.edits) + len(space.changes(best.settings, space.start))
        taken = ablated(space, context.workshop, best.design, whole_ms, end)
        found = Ablation(best=state.best, worth=tuple((each.change[:LINE], each.worth) for each in taken), every=every)
        if note is not None:
            note(found)
    changes = ([Ablated(*each) for each in found.worth], found.every, where) if found is not None else ([], 0, "")
    return render(state, best, start, survey, changes, edits, foreseen, before)
