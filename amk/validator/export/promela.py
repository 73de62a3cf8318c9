"""The flat system as a Promela model, so that spin can judge it.

Property, for the model: no invalid end state iff no interleaving of the system gets stuck; no assertion is violated iff
no two conflicting events are ever enabled together.

Every agent is a process. An event that conflicts with none is one atomic step: its waits hold, its signals land. One
that does is two: it enters when its waits hold, and leaves with its signals. Entering changes no counter, so two events
are inside at once in some run iff both are enabled in some reachable cut; each asserts on entering that none of those
it conflicts with is inside. Two accumulations of one sort do not conflict.

Run it: `spin -a x.pml && cc -DSAFETY -o pan pan.c`, then `./pan -A` (stuck?) and `./pan -E` (races?).
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from amk.validator.program.system import ACCUMULATE_FLOAT, ACCUMULATE_INT, READ, System

ALIKE = frozenset({READ, ACCUMULATE_INT, ACCUMULATE_FLOAT})
"""Kinds of access that do not conflict with their own kind."""


def promela(system: System) -> str:
    """The model's text; meant for small systems."""
    conflicting = conflicts(system)
    lines = [f"int c{k} = {init};" for k, init in enumerate(system.counter_init.tolist())]
    lines += [f"bool inside{e};" for e in sorted(conflicting)]
    for agent in range(system.agents):
        first, stop = system.agent_first[agent : agent + 2].tolist()
        body = [line for event in range(first, stop) for line in _event(system, event, conflicting)]
        lines += [f"active proctype agent{agent}() {{", *(body or ["  skip"]), "}"]
    return "\n".join(lines) + "\n"


def conflicts(system: System) -> dict[int, list[int]]:
    """Events of other agents that touch a common byte, not both in a harmless way, by event."""
    found: dict[int, set[int]] = defaultdict(set)
    for i in range(len(system.access_kind)):
        a = int(system.access_event[i])
        met = (system.access_buffer == system.access_buffer[i]) & (system.access_lo < system.access_hi[i])
        met &= (system.access_lo[i] < system.access_hi) & (system.agent_of[system.access_event] != system.agent_of[a])
        if int(system.access_kind[i]) in ALIKE:
            met &= system.access_kind != system.access_kind[i]
        found[a] |= set(system.access_event[np.flatnonzero(met)].tolist())
    return {event: sorted(others) for event, others in found.items() if others}


def _event(system: System, event: int, conflicting: dict[int, list[int]]) -> list[str]:
    waits = slice(*system.wait_first[event : event + 2].tolist())
    signals = slice(*system.signal_first[event : event + 2].tolist())
    held = zip(system.wait_counter[waits].tolist(), system.wait_threshold[waits].tolist(), strict=True)
    increments = zip(system.signal_counter[signals].tolist(), system.signal_amount[signals].tolist(), strict=True)
    guard = " && ".join(f"c{c} >= {t}" for c, t in held) or "true"
    adds = " ".join(f"c{c} = c{c} + {n};" for c, n in increments)
    name = f"  /* {event} */ "
    if event not in conflicting:
        return [f"{name}atomic {{ {guard} -> {adds or 'skip;'} }}"]
    alone = " ".join(f"assert(!inside{other});" for other in conflicting[event])
    return [
        f"{name}atomic {{ {guard} -> {alone} inside{event} = true; }}",
        f"  atomic {{ {adds} inside{event} = false; }}",
    ]
