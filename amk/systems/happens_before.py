"""Whether relaxed operations leave two events unordered in a run that there is.

`word` counts what a relaxed signal adds from the start, so a race there may need an increment earlier than any run has
it: one that comes behind a release on the same counter, say. Such a race is no evidence. A race is confirmed by a run
of `block` in which neither event happens before the other. An acquiring wait comes after all releasing signals that
were added to its counter: each increment is a read-modify-write, so it continues their release sequences.

Algorithm: some runs, cut down to what the two events need; vector clocks along each. Finding no run proves nothing.
Cost: `RUNS` runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Final

import numpy as np

from amk.systems.flat_judge import Race, Run, Slice, System, greedy
from amk.systems.flat_system import FlatSystem
from amk.systems.replayed_run import replayed

RUNS: Final = 6
LARGEST: Final = 20_000
"""Events up to which other runs than the greedy one are tried."""
Clock = dict[int, int]


def unordered_somewhere(system: FlatSystem, race: Race) -> bool:
    """A run was found in which nothing orders the two events."""
    return any(unordered(system, order, race) for order in _orders(system.block, race))


def _orders(block: System, race: Race) -> Iterable[list[int]]:
    """Runs that contain both events and little else, as events in order."""
    for number in range(RUNS):
        run = greedy(block) if number == 0 else _random_run(block, Random(number))
        if run is None:
            return
        for pair in ((race.first, race.second), (race.second, race.first)):
            part = Slice(run)
            for event in pair:
                part.execute(event)
            yield _events(block, part.legs(pair))


def _events(block: System, legs: Iterable[tuple[int, int]]) -> list[int]:
    at = block.agent_first[:-1].tolist()
    found: list[int] = []
    for agent, count in legs:
        found += range(at[agent], at[agent] + count)
        at[agent] += count
    return found


def _random_run(block: System, rng: Random) -> Run | None:
    """A complete run that takes a random agent at every step; None for large systems."""
    if block.events > LARGEST:
        return None
    at, ends, value = block.agent_first[:-1].tolist(), block.agent_first[1:].tolist(), block.counter_init.tolist()
    order: list[int] = []
    ready, parked = list(range(block.agents)), dict[int, list[int]]()
    while ready:
        k = rng.randrange(len(ready))
        agent = ready[k]
        event = at[agent]
        short = None if event == ends[agent] else _short(block, event, value)
        if event == ends[agent] or short is not None:
            ready[k] = ready[-1]
            ready.pop()
            if short is not None:
                parked.setdefault(short, []).append(agent)
            continue
        order.append(event)
        at[agent] += 1
        for row in range(*block.signal_first[event : event + 2].tolist()):
            counter = int(block.signal_counter[row])
            value[counter] += int(block.signal_amount[row])
            ready += parked.pop(counter, [])
    return replayed(block, np.array(order, dtype=np.int64))


def _short(block: System, event: int, value: list[int]) -> int | None:
    """A counter that does not let the event start."""
    rows = range(*block.wait_first[event : event + 2].tolist())
    return next((c for c in (int(block.wait_counter[k]) for k in rows if _unmet(block, k, value))), None)


def _unmet(block: System, row: int, value: list[int]) -> bool:
    return value[int(block.wait_counter[row])] < int(block.wait_threshold[row])


def unordered(system: FlatSystem, order: list[int], race: Race) -> bool:
    """Neither event of the race happens before the other in this run, which executes both."""
    block = system.block
    clocks: dict[int, Clock] = {}
    released: dict[int, Clock] = {}
    at: dict[int, Clock] = {}
    for event in order:
        agent = int(block.agent_of[event])
        mine = clocks.setdefault(agent, {})
        for row in range(*block.wait_first[event : event + 2].tolist()):
            if system.acquires[row]:
                _join(mine, released.get(int(block.wait_counter[row]), {}))
        mine[agent] = int(block.index_of[event]) + 1
        if event in (race.first, race.second):
            at[event] = dict(mine)
        for row in range(*block.signal_first[event : event + 2].tolist()):
            if system.releases[row]:
                _join(released.setdefault(int(block.signal_counter[row]), {}), mine)
    return not any(
        at[two].get(int(block.agent_of[one]), 0) > int(block.index_of[one])
        for one, two in ((race.first, race.second), (race.second, race.first))
    )


def _join(into: Clock, other: Clock) -> None:
    for agent, count in other.items():
        if into.get(agent, 0) < count:
            into[agent] = count
