"""A schedule planned again with other settings: the edit of a schedule that turns the planner's knobs."""

from __future__ import annotations

from dataclasses import replace

from amk.models.matrices import MATRICES
from amk.planner.decode import plan
from amk.planner.formats import Layered, runs_of
from amk.planner.settings import PRESETS
from amk.planner.space import OutsideSpaceError, Space
from amk.planner.tuned import tuned
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.edits.kinds import Knobs
from amk.schedule_ir.schedule import Schedule, mode_of


def replanned(schedule: Schedule, knobs: Knobs) -> Schedule:
    """The plan of the schedule's problem (model, target, formats, context, batch, sampling) with those settings.

    It has as many workers as the schedule, unless the settings say how many. AMK018 for what is no knob or no value of
    one, AMK011 and others of the planner where there is no such plan.
    """
    wanted = formats_of(schedule)
    workers, context = schedule.launch.workers, schedule.kv.context
    base = replace(
        PRESETS[knobs.start], batch=schedule.batch, live=schedule.live, rows=schedule.rows, accepts=schedule.accepts,
        tree=schedule.tree, headless=schedule.headless,
        sampling=mode_of(schedule), kv_dtype=schedule.kv.dtype,
        max_tokens=schedule.launch.max_tokens,
    )  # fmt: skip
    base = tuned(base, schedule.model, schedule.target, wanted, workers, context)
    try:
        settings = Space.around(base).parse(knobs.settings)
    except OutsideSpaceError as error:
        raise AmkError(Diagnostic("AMK018", str(error)[:500])) from error
    same = None if {"workers", "ctas_per_sm"} & knobs.settings.keys() else workers
    return plan(schedule.model, schedule.target, settings=settings, formats=wanted, max_context=context, workers=same)


def formats_of(schedule: Schedule) -> Layered:
    """The format of every matrix, by runs of layers."""
    stream = schedule.streams[0]
    return runs_of([{m: stream.chunk(m, layer).format for m in MATRICES} for layer in range(schedule.model.layers)])
