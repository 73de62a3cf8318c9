"""The run in which all workers go through one program lockstep: step after step, worker after worker.

Which run a verdict is found with decides nothing, but accesses are looked at in the order of it (`in_order`). This
one knows the steps and nothing of waits and signals, so schedules that differ in those have it in common, if it is a
run of them; that is found out each time (`replayed`). Where it is none, or there are several programs, a greedy run
serves.

Property: if the events of an inter-CTA system can run in the order of `lockstep_events`, then `lockstep_places` never
puts a node before one that it must come after.

Argument. Both sort by (step, worker, rank): rank is the warp of an event, those that leave a barrier stand behind all
that arrive, and the warp group stands last. Let x, which touches memory, come before y in every execution.
  - By what their worker does alone: then the step of x is an earlier one. `LocalOrder.in_step` has looked: whatever
  an
    event that touches memory comes after belongs to earlier steps.
  - Through chains: there are chain nodes c and d, x inside c or c itself or locally before it, d locally before y or
  y
    itself, and c before d in every run of the inter-CTA system, so in this one. Steps never fall along x, c, d, y.
    If they are all equal, then d is y and c is x or its warp group, so x and y are in the order of c and d: by
    worker, and on one worker by rank; a warp group has the last rank of its step, so there c is x.
  - By what partial thresholds imply: the run of the inter-CTA system extends to one of everything in the order of
  the places,
    because barriers ask for nothing but earlier steps and the arrivals of their own. In it x is first.
"""

from __future__ import annotations

import numpy as np

from amk.validator.program.flag_words import FlagWords
from amk.validator.program.system import I64
from amk.validator.program.trace import Trace


def ranks(trace: Trace) -> tuple[I64, I64]:
    """(step, rank within the step) of every node of a worker."""
    warp_groups = np.arange(len(trace.items))
    rank = np.concatenate((trace.warp_of + trace.warps * trace.leave, np.full(len(warp_groups), 2 * trace.warps)))
    return np.concatenate((trace.item, warp_groups)), rank


def lockstep_places(trace: Trace, workers: int, worker: I64, node: I64) -> I64:
    """Sort keys of nodes of workers that all run this program; worker counts from the first."""
    step, rank = ranks(trace)
    keys: I64 = (step[node] * workers + worker) * (2 * trace.warps + 1) + rank[node]
    return keys


def join_waits(words: FlagWords) -> tuple[I64, I64, I64]:
    """(event among those of all join nodes, writer counter, count) of what join nodes wait for, by event."""
    none = np.zeros(0, np.int64)
    size, ranks = (np.array([t.shape[k] for t in words.targets], np.int64) for k in (1, 0))
    members, count = np.concatenate([none, *words.join_nodes]), np.repeat(size, ranks)
    # of each event all members of its join node
    shift = np.repeat(np.cumsum(size) - size, ranks) - (np.cumsum(count) - count)
    counter = members[np.arange(int(count.sum())) + np.repeat(shift, count)]
    target = np.concatenate([none, *(t.reshape(-1) for t in words.targets)])
    return np.repeat(np.arange(len(count)), count), counter, target


def join_steps(words: FlagWords | None) -> I64:
    """The last step that each event of a join node waits for, -1 if there is none."""
    if words is None or not words.join_nodes:
        return np.zeros(0, np.int64)
    writes = words.writes[np.lexsort((words.writes[:, 2], words.writes[:, 3]))]
    first = np.searchsorted(writes[:, 3], np.arange(words.counters))
    event, counter, target = join_waits(words)
    step = np.where(target > 0, writes[first[counter] + np.maximum(target, 1) - 1, 2], -1)
    last: I64 = np.maximum.reduceat(step, np.flatnonzero(np.diff(event, prepend=-1)))
    return last
