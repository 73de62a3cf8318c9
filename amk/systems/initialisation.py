"""An mbarrier that some agent initialises is there from then on.

Property: a use that may come before `init` is a race of the system. `init` writes the barrier's word; every arrival,
and every wait before it begins to poll, reads it. Bytes that a copy brings read it by the async proxy, so a proxy fence
is asked for between.
"""

from __future__ import annotations

from collections import defaultdict

from amk.systems.flat_judge import DONT_CARE, READ
from amk.systems.recorder import Recorder
from amk.systems.rules import ASYNC, COMPLETE


def use(system: Recorder) -> None:
    """Add what uses read, once all calls are written down."""
    inits = system._inits

    def read(event: int, counter: int) -> None:
        system._accesses.append((event, inits[counter], 0, 8, READ, DONT_CARE, 0))

    for (event, counter, _), rule in zip(system._signals, system._signal_rules, strict=True):
        if counter in inits:
            read(event, counter)
            if rule == COMPLETE:
                system._proxies[event] = ASYNC
    polls: dict[int | None, list[int]] = defaultdict(list)
    for event, counter, _ in system._waits:
        if counter in inits:
            with system.at(list(system._sources)[system._source[event]]):
                polls[event].append(system._event(system._agent_of[event]))
            read(polls[event][-1], counter)
    system._put_before(polls)
    inits.clear()
