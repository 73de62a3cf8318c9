"""Deadlocks that local orders and counters show by themselves, whatever words and positions do.

Property: an event of `wait_cycle` runs in no interleaving of the flat system, at no position.

Argument. Every event of the cycle waits for some counter to reach a threshold. Let X be these events and all that come
after one of them on their worker by what the worker does alone (`LocalOrder.past`, which takes every wait for others
as granted, so it holds with them too). The signals that are not in X never bring any of the counters to its
threshold. So no event of X is the first of X to run: one of the cycle would need signals of X, and all others come
after one.

Algorithm: begin with the events that block the stuck run of the inter-CTA system and wait for counters; leave out
those whose threshold can be reached without X, until there are none. What is left may be nothing: then words or
barriers have a part in it, and the flat system is asked.

Cost: signals times warps, once per round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amk.validator.memory.composition import Composition
from amk.validator.order.between_ctas import Group, InterCtaSystem
from amk.validator.program.system import I64, Bools


@dataclass(frozen=True)
class Blocked:
    """An event of a worker that waits for counter >= threshold; reached: what signals outside the cycle bring it to."""

    group: int
    worker: int
    event: int
    counter: int
    threshold: int
    reached: int


def wait_cycle(result: Composition) -> list[Blocked]:
    """The events found blocked for good by their counters alone; the run of `result` is stuck."""
    heads, total = _heads(result), result.instances.init()
    for group in result.groups:
        np.add.at(total, group.signals[:, 2], group.signals[:, 3])
    while len(heads):
        reached = total - _inside(result, heads)
        counter, threshold = heads[:, 3], heads[:, 4]
        held = reached[counter] < threshold
        if held.all():
            return [Blocked(*row) for row in np.column_stack((heads, reached[counter])).tolist()]
        heads = heads[held]
    return []


def _heads(result: Composition) -> I64:
    """(group, worker, event, counter, threshold) of the waits for counters that do not hold where the run ends."""
    inter_cta = result.block
    assert isinstance(inter_cta, InterCtaSystem)
    system, run, found = inter_cta.system, inter_cta.run, []
    number = {group.order.trace.program.first: group.number for group in result.groups}
    for agent in np.flatnonzero(run.cut < system.agent_size).tolist():
        event = int(system.agent_first[agent] + run.cut[agent])
        span = slice(*system.wait_first[event : event + 2].tolist())
        for counter, threshold in zip(
            system.wait_counter[span].tolist(), system.wait_threshold[span].tolist(), strict=True
        ):
            if counter < result.instances.total and run.values[counter] < threshold:
                trace, worker, local = inter_cta.owner(event)
                found.append((number[trace.program.first], worker, local, counter, threshold))
    return np.array(found, np.int64).reshape(-1, 5)


def _inside(result: Composition, heads: I64) -> I64:
    """[counters] what the signals add that come after one of the heads, or are its own."""
    amount = np.zeros(result.instances.total, np.int64)
    for group in result.groups:
        signals = group.signals
        after = _after(group, heads[heads[:, 0] == group.number], signals[:, 0], signals[:, 1])
        np.add.at(amount, signals[after, 2], signals[after, 3])
    return amount


def _after(group: Group, heads: I64, worker: I64, event: I64) -> Bools:
    """Elementwise: is this event of the worker one of the heads, or after one by what the worker does alone?"""
    order, trace = group.order, group.order.trace
    first = np.full((group.count, trace.warps), trace.events)
    np.minimum.at(first, (heads[:, 1] - group.first, trace.warp_of[heads[:, 2]]), trace.index_of[heads[:, 2]])
    mine = first[worker - group.first]
    itself: Bools = trace.index_of[event] >= mine[np.arange(len(event)), trace.warp_of[event]]
    after: Bools = itself | (order.past[event] > mine).any(axis=1)
    return after
