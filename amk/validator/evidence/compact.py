"""A large flat system without the events that nobody can notice.

Property: the compact system has the runs of the system that it was made from, up to events without effect. An event
that neither waits, signals nor touches a listed byte is left out; one that only waits becomes one with the next event
of its agent that is not left out, which then has the waits of both.

Argument. Neither sort of event changes counters or bytes, so a state of the whole system and the one with such events
run or not run differ in nothing but where one agent stands. Waits that hold hold for good, as counters only grow, so
"first the waits of the one, then those of the other" is "both at once": an event of the compact system can be enabled
by a set of others iff it can in the whole system. Hence deadlocks, pairs that are enabled together and what a read
finds are the same; an interleaving of the compact system becomes one of the whole system by running each event that
was left out as soon as its turn comes, and each that was joined when the join node one runs.

Cost: a sort of the events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from amk.validator.program.system import I64

GONE: Final = -1


@dataclass(frozen=True, eq=False)
class Compact:
    """into [events]: number of the event that each has become, `GONE` if none; events: those that are left, by their
    number before. Both in the order of listing."""

    into: I64
    events: I64

    def rows(self, rows: I64) -> I64:
        """Rows that begin with an event, renumbered; their events must not be gone."""
        return np.column_stack((self.into[rows[:, 0]], rows[:, 1:]))


def compact(agent: I64, waits: I64, signals: I64, accesses: I64) -> Compact:
    """agent [events]: that of each event, in program order; the others begin with the event."""
    events = len(agent)
    heavy, waiting = np.zeros(events, bool), np.zeros(events, bool)
    heavy[signals[:, 0]] = heavy[accesses[:, 0]] = True
    waiting[waits[:, 0]] = True
    order = np.argsort(agent, kind="stable")
    # from the end: is there an event of the same agent that this one can become one with?
    place = np.where((heavy | waiting)[order], np.arange(events), events)
    following = np.append(np.minimum.accumulate(place[::-1])[::-1], events)[1:]
    owner = np.append(agent[order], GONE)
    alone = owner[following] != owner[:-1]
    del place, following, owner  # millions of numbers each
    stays = heavy[order] | (waiting[order] & alone)
    home = np.where(stays, np.arange(events), events)
    home = np.minimum.accumulate(home[::-1])[::-1] if events else home
    kept = np.zeros(events, bool)
    kept[order] = stays
    number = np.append(np.cumsum(kept) - 1, GONE)
    counted = heavy[order] | waiting[order]
    into = np.empty(events, np.int64)
    into[order] = np.where(counted, number[np.append(order, events)[home]], GONE)
    return Compact(into, np.flatnonzero(kept))
