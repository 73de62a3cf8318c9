"""The run in which all workers go through one program abreast: step after step, worker after worker.

Which run a verdict is found with decides nothing, but accesses are looked at in the order of it (`in_order`). This one
knows the steps and nothing of waits and signals, so schedules that differ in those have it in common, if it is a run of
them; that is found out each time (`replayed`). Where it is none, or there are several programs, a greedy run serves.

Property: if the events of a quotient can run in the order of `events_abreast`, then `places_abreast` never puts a node
before one that it must come after.

Argument. Both sort by (step, worker, rank): rank is the warp of an event, those that leave a barrier stand behind all
that arrive, and the crew stands last. Let x, which touches memory, come before y in every execution.
  - By what their worker does alone: then the step of x is an earlier one. `LocalOrder.in_step` has looked: whatever an
    event that touches memory comes after belongs to earlier steps.
  - Through chains: there are chain nodes c and d, x inside c or c itself or locally before it, d locally before y or y
    itself, and c before d in every run of the quotient, so in this one. Steps never fall along x, c, d, y. If they are
    all equal, then d is y and c is x or its crew, so x and y are in the order of c and d: by worker, and on one worker
    by rank; a crew has the last rank of its step, so there c is x.
  - By what partial thresholds imply: the run of the quotient extends to one of everything in the order of the places,
    because barriers ask for nothing but earlier steps and the arrivals of their own. In it x is first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from amk.validator.sorting import by_key, by_keys
from amk.validator.system import I64
from amk.validator.trace import Trace
from amk.validator.words import Words

if TYPE_CHECKING:
    from amk.validator.quotient import Quotient


def ranks(trace: Trace) -> tuple[I64, I64]:
    """(step, rank within the step) of every node of a worker."""
    crews = np.arange(len(trace.items))
    rank = np.concatenate((trace.warp_of + trace.warps * trace.leave, np.full(len(crews), 2 * trace.warps)))
    return np.concatenate((trace.item, crews)), rank


def places_abreast(trace: Trace, workers: int, worker: I64, node: I64) -> I64:
    """Sort keys of nodes of workers that all run this program; worker counts from the first."""
    step, rank = ranks(trace)
    keys: I64 = (step[node] * workers + worker) * (2 * trace.warps + 1) + rank[node]
    return keys


def events_abreast(quotient: Quotient) -> I64 | None:
    """The events of the quotient by (step, worker, rank), joints behind the writes that they wait for; None if the
    workers do not all run one program, or its steps do not follow each other."""
    if len(quotient.groups) != 1 or not quotient.groups[0].order.in_step:
        return None
    group, chains = quotient.groups[0], quotient.chains[0].chains
    local = np.concatenate([*chains, np.zeros(0, np.int64)])
    every = places_abreast(
        group.order.trace, group.count, np.repeat(np.arange(group.count), len(local)), np.tile(local, group.count)
    )
    last = joint_steps(quotient.words)
    behind = (last + 1) * group.count * (2 * group.order.trace.warps + 1) - 1
    void = np.full(int(quotient.lengths.sum()) - len(every) - len(last), -1)
    return by_key(np.concatenate((every, behind, void)))


def joint_waits(words: Words) -> tuple[I64, I64, I64]:
    """(event among those of all joints, writer counter, count) of what joints wait for, by event."""
    none = np.zeros(0, np.int64)
    size, ranks = (np.array([t.shape[k] for t in words.targets], np.int64) for k in (1, 0))
    members, count = np.concatenate([none, *words.joints]), np.repeat(size, ranks)
    # of each event all members of its joint
    shift = np.repeat(np.cumsum(size) - size, ranks) - (np.cumsum(count) - count)
    counter = members[np.arange(int(count.sum())) + np.repeat(shift, count)]
    target = np.concatenate([none, *(t.reshape(-1) for t in words.targets)])
    return np.repeat(np.arange(len(count)), count), counter, target


def joint_steps(words: Words | None) -> I64:
    """The last step that each event of a joint waits for, -1 if there is none."""
    if words is None or not words.joints:
        return np.zeros(0, np.int64)
    writes = words.writes[by_keys(words.writes[:, 2], words.writes[:, 3])]
    first = np.searchsorted(writes[:, 3], np.arange(words.counters))
    event, counter, target = joint_waits(words)
    step = np.where(target > 0, writes[first[counter] + np.maximum(target, 1) - 1, 2], -1)
    last: I64 = np.maximum.reduceat(step, np.flatnonzero(np.diff(event, prepend=-1)))
    return last
