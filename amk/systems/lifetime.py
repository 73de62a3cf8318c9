"""Shared memory of a CTA, its mbarriers included, is there from the start of the CTA to its end.

Property: an access that may come before the start or behind the end is a race of the system. An event behind all
agents of the CTA writes its buffers. If other CTAs reach into it, an event before all of its agents writes one more
byte, so does the one behind them, and each of these accesses and arrivals reads it.

An mbarrier lies in the CTA whose agents wait for it by parity, since PTX lets no other wait.
"""

from __future__ import annotations

from collections import defaultdict

from amk.systems.agent import Agent
from amk.systems.flat_judge import DONT_CARE, READ
from amk.systems.names import Buffer
from amk.systems.recorder import Recorder, Site
from amk.systems.rules import PARITY


def close(system: Recorder) -> None:
    """Add the starts and ends of CTAs, once all calls are written down."""
    shared = {buffer.number: site for buffer, site in system._shared}
    reached = _reached(system, shared, _homes(system))
    firsts: list[int] = []
    for site in dict.fromkeys((*shared.values(), *reached)):
        mine = [agent for agent in system._ending if system._site(agent) == site]
        buffers = [buffer for buffer, where in system._shared if where == site]
        if reached[site]:
            exists = system.buffer(f"shared memory of {_named(site)}", 1)
            firsts += _start(system, site, mine, exists)
            for event in reached[site]:
                system._accesses.append((event, exists.number, 0, 1, READ, DONT_CARE, 0))
            buffers.append(exists)
        _end(system, site, mine, buffers)
    system._put_before({None: firsts})
    system._shared.clear()
    system._mbarriers.clear()


def _homes(system: Recorder) -> dict[int, Site]:
    """The CTA of each mbarrier that agents of one CTA alone wait for."""
    found: dict[int, set[Site]] = defaultdict(set)
    for (event, counter, _), rule in zip(system._waits, system._wait_rules, strict=True):
        if rule == PARITY and counter in system._mbarriers:
            found[counter].add(system._site(system._agent_of[event]))
    return {counter: next(iter(sites)) for counter, sites in found.items() if len(sites) == 1}


def _reached(system: Recorder, shared: dict[int, Site], homes: dict[int, Site]) -> dict[Site, list[int]]:
    """By CTA, the events of agents of others that touch its shared memory or arrive at its mbarriers."""
    touched = [(row[0], shared.get(row[1])) for row in system._accesses]
    touched += [(event, homes.get(counter)) for event, counter, _ in system._signals]
    found: dict[Site, list[int]] = defaultdict(list)
    for event, site in touched:
        if site is not None and system._site(system._agent_of[event]) != site:
            found[site].append(event)
    return found


def _start(system: Recorder, site: Site, agents: list[int], exists: Buffer) -> list[int]:
    """The events with which `agents` begin: their CTA has started. An async write asks for no fence before others."""
    started = system.counter(f"{_named(site)} starts", "sys")
    first = Agent.of(system, f"start of {_named(site)}", site, exits=False)
    first.write(exists, 0, 1, proxy="async")
    first.signal(started)
    begun = len(system._agent_of)
    for agent in agents:
        Agent(system, agent, system._agents[agent]).wait(started, 1)
    return list(range(begun, len(system._agent_of)))


def _end(system: Recorder, site: Site, agents: list[int], buffers: list[Buffer]) -> None:
    ended = system.counter(f"{_named(site)} ends", "sys")
    for agent in agents:
        Agent(system, agent, system._agents[agent]).signal(ended)
    last = Agent.of(system, f"end of {_named(site)}", site, exits=False)
    last.wait(ended, len(agents))
    for buffer in buffers:
        last.write(buffer, 0, buffer.size)


def _named(site: Site) -> str:
    grid, (gpu, cluster, cta) = site
    return f"CTA {cta} of cluster {cluster}" + f" of GPU {gpu}" * bool(gpu) + f" of kernel {grid}" * bool(grid)
