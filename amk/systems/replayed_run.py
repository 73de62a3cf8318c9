"""A run of a flat system from the order of its events, all at once: what each wait finds follows from sums in order."""

from __future__ import annotations

import numpy as np

from amk.systems.flat_judge import I64, Run, System


def replayed(system: System, order: I64) -> Run | None:
    """The complete run that executes the events one by one in this order; None if that is no run of the system."""
    if len(order) != system.events:
        return None
    position = np.empty(system.events, np.int64)
    position[order] = np.arange(system.events)
    rising = np.diff(position) > 0
    starts = system.agent_first[(system.agent_first > 0) & (system.agent_first < system.events)]
    rising[starts - 1] = True
    if not rising.all():
        return None
    waits, signals = system.wait_counter, system.signal_counter
    value = values_found(
        system.counter_init, (waits, position[system.wait_event]), (signals, position[system.signal_event]),
        system.signal_amount,
    )  # fmt: skip
    if bool((value < system.wait_threshold).any()):
        return None
    totals = np.zeros(system.counters, np.int64)
    np.add.at(totals, signals, system.signal_amount)
    legs = np.stack((system.agent_of[order], order, np.ones_like(order)), axis=1)
    return Run(system, legs, system.agent_size, system.counter_init + totals)


def values_found(init: I64, waits: tuple[I64, I64], signals: tuple[I64, I64], amount: I64) -> I64:
    """What each wait finds its counter at, if all run by their places; both are (counter, place), none negative."""
    counter, place = (np.concatenate(both) for both in zip(waits, signals, strict=True))
    # an event waits before it signals
    by_place = np.lexsort((place, counter))
    addends = np.concatenate((np.zeros(len(waits[0]), np.int64), amount))[by_place]
    total = np.cumsum(addends)
    fresh = np.flatnonzero(np.diff(counter[by_place], prepend=-1))
    before = np.repeat(total[fresh] - addends[fresh], np.diff(fresh, append=len(counter)))
    value = np.empty_like(total)
    value[by_place] = total - before
    found: I64 = value[: len(waits[0])] + init[waits[0]]
    return found
