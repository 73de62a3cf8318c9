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

from amk.report.diagnostic import Diagnostic
from amk.report.schema import finding
from amk.schedule_ir.schedule import Signal, Wait
from amk.validator.evidence.confirm import Clash
from amk.validator.memory.composition import Composition
from amk.validator.order.intervals import Ordering
from amk.validator.program.system import I64
from amk.validator.program.trace import Trace

Owned = tuple[Trace, int, int]
"""(trace, worker, local event)."""
Kind = Literal["signals", "waits"]


def missing_barrier(result: Composition, clash: Clash) -> Diagnostic | None:
    """AMK501 or AMK504 if one of them is why the two accesses are not ordered."""
    order = result.fence or result.order
    first, second = (clash.flat.owner(event) for event, *_ in clash.sides)
    if order is None or first[1] == second[1]:
        return None
    for one, two in ((first, second), (second, first)):
        found = _hand_off(result, order, one, two, "signals") or _hand_off(result, order, two, one, "waits")
        if found is not None:
            return found
    return None


def _hand_off(result: Composition, order: Ordering, mine: Owned, other: Owned, kind: Kind) -> Diagnostic | None:
    """The nearest hand-off of the worker of `mine` that orders `other` and should order `mine`."""
    trace, worker, local = mine
    group = next(g for g in result.groups if g.first == trace.program.first)
    table = group.signals if kind == "signals" else group.waits
    rows = table[(table[:, 0] == worker) & (table[:, 4] == 0)]
    item = trace.item[rows[:, 1]]
    rows = rows[item > trace.item[local] if kind == "signals" else item < trace.item[local]]
    if not len(rows):
        return None
    place = order.numbers(rows[:, 0], rows[:, 1])
    own, far = (order.numbers(np.full(len(rows), w), np.full(len(rows), e)) for _, w, e in (mine, other))
    # the hand-off orders the other one, then those of them that mine need not keep to
    ordered = order.precedes(place, far) if kind == "signals" else order.precedes(far, place)
    at = np.flatnonzero(ordered)
    sides = (own[at], place[at]) if kind == "signals" else (place[at], own[at])
    at = at[~order.precedes(*sides)]
    return _finding(result, rows[at[0 if kind == "signals" else -1]], mine, kind) if len(at) else None


def _finding(result: Composition, row: I64, mine: Owned, kind: Kind) -> Diagnostic:
    trace, worker, local = mine
    event, instance = row[1:3].tolist()
    item, counter = trace.items[int(trace.item[event])], result.instances.family(instance)[0].name
    uses: list[Wait | Signal] = [*item.step.signals] if kind == "signals" else [*item.step.waits]
    number = next((i for i, use in enumerate(uses) if use.counter == counter), 0)
    name, warp, own = result.instances.name(instance), int(trace.warp_of[event]), int(trace.warp_of[local])
    step = trace.items[int(trace.item[local])].step.op.op
    code, message = "AMK501", f"warp {warp} signals {name} while warp {own} may still be in {step}"
    reason = f"no barrier of worker {worker} lies between {step} and the signal, which others take for its end"
    if kind == "waits":
        code, message = "AMK504", f"warp {warp} waits for {name}, warp {own} goes on to {step} without it"
        reason = f"no barrier of worker {worker} lies between the wait and {step}"
    return finding(code, message, (*item.site.path, kind, number), reason)
