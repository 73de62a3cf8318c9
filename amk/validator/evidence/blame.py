"""Which barrier a race is for want of: rules M1 and M4 of the memory model.

A signal speaks for its whole worker, a wait is polled by one warp for all. So a race between workers has a cause that
can be named where the hand-off itself is there:
  M1  the first access comes before a signal in its program, the signal comes before the second access in every
      execution, but the warp of the first access need not be done when another warp signals (AMK501)
  M4  the second access comes behind a wait in its program, the first access comes before the end of that wait in every
      execution, but the warp of the second access need not wait for the warp that polls (AMK504)

This only explains: the race has been confirmed before, and stays a finding of its own.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from amk.report.diagnostic import Diagnostic, Where, because
from amk.report.schema import json_pointer
from amk.schedule_ir.schedule import steps_of
from amk.validator.evidence.confirm import Clash, Touching
from amk.validator.memory.composition import Composition
from amk.validator.order.intervals import Ordering
from amk.validator.program.system import I64


def missing_barrier(result: Composition, clash: Clash) -> Diagnostic | None:
    """AMK501 or AMK504 if one of them is why the two accesses are not ordered."""
    order = result.fence or result.order
    if order is None or clash.first.event.worker == clash.second.event.worker:
        return None
    for one, two in ((clash.first, clash.second), (clash.second, clash.first)):
        found = _hand_off(result, order, one, two, "signals") or _hand_off(result, order, two, one, "waits")
        if found is not None:
            return found
    return None


def _hand_off(
    result: Composition, order: Ordering, mine: Touching, other: Touching, kind: Literal["signals", "waits"]
) -> Diagnostic | None:
    """The nearest hand-off of the worker of `mine` that orders `other` and should order `mine`."""
    group = next(g for g in result.groups if g.number == mine.event.group)
    trace = group.order.trace
    table = group.signals if kind == "signals" else group.waits
    rows = table[(table[:, 0] == mine.event.worker) & (table[:, 4] == 0)]
    behind = trace.item[rows[:, 1]] > trace.item[mine.event.number]
    rows = rows[behind if kind == "signals" else trace.item[rows[:, 1]] < trace.item[mine.event.number]]
    if not len(rows):
        return None
    place = order.numbers(rows[:, 0], rows[:, 1])
    own, far = (np.full(len(rows), _number(order, t)) for t in (mine, other))
    # the hand-off orders the other one, then those of them that mine need not keep to
    ordered = order.precedes(place, far) if kind == "signals" else order.precedes(far, place)
    at = np.flatnonzero(ordered)
    sides = (own[at], place[at]) if kind == "signals" else (place[at], own[at])
    at = at[~order.precedes(*sides)]
    if not len(at):
        return None
    found = rows[at[0 if kind == "signals" else -1]]
    return _finding(result, found, mine, kind)


def _number(order: Ordering, touching: Touching) -> int:
    return int(order.numbers(np.array([touching.event.worker]), np.array([touching.event.number]))[0])


def _finding(result: Composition, row: I64, mine: Touching, kind: Literal["signals", "waits"]) -> Diagnostic:
    group = next(g for g in result.groups if g.number == mine.event.group)
    trace = group.order.trace
    worker, event, instance = row[:3].tolist()
    item = int(trace.item[event])
    number = next(
        (i for i, use in enumerate(_uses(result, mine.event.group, trace.items[item].site.number, kind))
         if use == result.instances.family(instance)[0].name),
        0,
    )  # fmt: skip
    name, warp = result.instances.name(instance), int(trace.warp_of[event])
    step = trace.items[int(trace.item[mine.event.number])].step.op.op
    code, message = "AMK501", f"warp {warp} signals {name} while warp {mine.warp} may still be in {step}"
    reason = f"no barrier of worker {worker} lies between {step} and the signal, which others take for its end"
    if kind == "waits":
        code, message = "AMK504", f"warp {warp} waits for {name}, warp {mine.warp} goes on to {step} without it"
        reason = f"no barrier of worker {worker} lies between the wait and {step}"
    where = Where(path=json_pointer((*trace.items[item].site.path, kind, number)))
    return Diagnostic(code, message, where=where, facts=(because(reason),))


def _uses(result: Composition, group: int, number: int, kind: Literal["signals", "waits"]) -> list[str]:
    """Counters of the step's waits or signals, which traces are made without."""
    step = list(steps_of(result.schedule.programs[group].body))[number]
    return [use.counter for use in (step.waits if kind == "waits" else step.signals)]
