"""Whether all workers abreast finish, found without the quotient whose run that is.

Property: if `words_come` and `counters_come` say so of the only group of a schedule, its quotient of `block` has the
run of all workers abreast (`Quotient.abreast`): every agent finishes. If one of them does not, that says nothing.

Argument. The events of that quotient are sorted by (step, worker, rank), joints behind the last write that they wait
for (see `abreast`). Steps and ranks rise along a warp, steps along a chain of crews, and the last writes along a joint
(looked at). What an event waits for comes first:
  - Counters: the signals are added up in that order.
  - Chain nodes of its own worker. Let the node y come after a part of the node x. If x is an event of the crew y, the
    crew stands last in its step. Otherwise an event x' that is x, or one of the crew x, comes before an event y' that
    is y, or one of the crew y, by what the worker does alone. By `LocalOrder.in_step` x' then belongs to an earlier
    step, so x stands first; or x' arrives at a barrier that y' leaves. Steps with words have no barriers (looked at),
    so then these are x and y, and leaving ranks behind arriving.
  - The writes that a joint waits for: there are as many (looked at), and it stands behind them.
  - A joint, up to some rank: what it stands behind belongs to earlier steps (looked at).
"""

from __future__ import annotations

import numpy as np

from amk.validator.abreast import joint_steps, joint_waits, ranks
from amk.validator.counter_events import Instances
from amk.validator.liveness import values_found
from amk.validator.local_order import LocalOrder, require_order
from amk.validator.quotient import Group, written_items
from amk.validator.system import I64, MAX_AMOUNT, MAX_THRESHOLD, Bools
from amk.validator.words import Words


def words_come(order: LocalOrder, words: Words) -> bool:
    """Do words and what a worker does alone leave all workers abreast finish? `NotComposable` as of the quotient."""
    for items in written_items(words.writes):
        require_order(order, items)
    trace, needs = order.trace, words.needs
    crews = np.zeros(len(trace.items), bool)
    crews[words.writes[:, 2]] = crews[needs[:, 2]] = True
    if not order.in_step or bool(crews[trace.item[trace.leave]].any()):
        return False
    if not words.joints:
        return not len(needs)
    if not _written(words):
        return False
    last, first = joint_steps(words), np.cumsum([0, *map(len, words.targets)])
    rising = np.diff(last) >= 0
    rising[first[1:-1] - 1] = True
    return bool(rising.all() and (last[first[needs[:, 3]] + needs[:, 4]] < needs[:, 2]).all())


def _written(words: Words) -> bool:
    """Is every counter signalled as often as any joint waits for?"""
    _, counter, target = joint_waits(words)
    return bool((target <= np.bincount(words.writes[:, 3], minlength=words.counters)[counter]).all())


def counters_come(group: Group, instances: Instances) -> bool:
    """Do all waits for counters hold by their turn?"""
    waits, signals = group.waits, group.signals
    if not (_within(waits[:, 3], -MAX_THRESHOLD, MAX_THRESHOLD) and _within(signals[:, 3], 1, MAX_AMOUNT)):
        return False
    step, rank = ranks(group.order.trace)
    width = 2 * group.order.trace.warps + 1
    place = step * (group.count * width) + rank
    at = [place[rows[:, 1]] + (rows[:, 0] - group.first) * width for rows in (waits, signals)]
    found = values_found(instances.init(), (waits[:, 2], at[0]), (signals[:, 2], at[1]), signals[:, 3])
    met: Bools = found >= waits[:, 3]
    return bool(met.all())


def _within(values: I64, low: int, high: int) -> bool:
    return not len(values) or (low <= int(values.min()) and int(values.max()) < high)
