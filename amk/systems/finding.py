"""What is wrong with a flat system, in the system's own names, with the run that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from amk.report.diagnostic import Diagnostic, Fact, because, shown
from amk.systems.flat_judge import (
    BOXES,
    CSR,
    READ,
    WRITE,
    Deadlock,
    Fault,
    Judgement,
    Race,
    Run,
    System,
    Witness,
    blocks,
    deadlock_witness,
    diagnose,
    fault_witness,
    find_races,
    greedy,
    must_clocks,
    race_witness,
    touches_of,
)
from amk.systems.flat_system import SCOPES, EdgeSystems, FlatSystem, too_narrow
from amk.systems.happens_before import unordered_somewhere
from amk.systems.machine import Trouble
from amk.systems.wording import blocked, does, legs, where, who

FAULT_CODES: Final = {"uninitialised": "AMK105", "stale": "AMK104", "partial": "AMK104"}


@dataclass(frozen=True, eq=False)
class Finding:
    """What is wrong; the system and witness that show it, and the events it is about, if a run does."""

    diagnostic: Diagnostic
    system: System | None = None
    witness: Witness | None = None
    deadlock: Deadlock | None = None
    race: Race | None = None
    run: tuple[Trouble, tuple[int, ...]] | None = None
    """What a run of a system with rules shows, and its events in order."""


def too_narrow_scopes(system: FlatSystem) -> Iterator[Finding]:
    """Counters that are used beyond their scope."""
    block = system.block
    for found in too_narrow(system):
        name, scope = block.counter_name(found.counter), SCOPES[int(system.scope[found.counter])]
        facts = [
            shown(f"{who(system, e)}: {does(block, e)}; gpu, cluster, cta {_place(system, e)}") for e in found.events
        ]
        reach = {"cta": "one CTA", "cluster": "one cluster", "gpu": "one GPU"}[scope]
        facts.append(because(f"scope {scope} orders memory within {reach}, and these two are not in the same"))
        message = f"{name} has scope {scope}, and agents beyond that use it"
        yield Finding(Diagnostic("AMK505", message, where=where(system, found.events[1]), facts=tuple(facts)))


def _place(system: FlatSystem, event: int) -> str:
    return ", ".join(map(str, system.place[system.block.agent_of[event]].tolist()))


def found_in(system: FlatSystem, edges: System, judgement: Judgement) -> Finding | None:
    """What a judgement of `block` or `word` finds first: a deadlock, a race, wrong content."""
    if judgement.deadlock is not None:
        return deadlock_finding(system, judgement.run)
    if judgement.races.racy:
        return _race(system, edges, judgement.races.races)
    return None if judgement.dataflow.correct else _fault(system, edges, judgement)


def _race(system: FlatSystem, edges: System, races: tuple[Race, ...]) -> Finding:
    """A race of `block` shows itself; one that only relaxed operations leave is looked for in a run."""
    if edges is system.block or system.edge_systems is not None:
        return race_finding(system, edges, races[0])
    confirmed = next((race for race in races if unordered_somewhere(system, race)), None)
    if confirmed is not None:
        return race_finding(system, edges, confirmed)
    found = race_finding(system, edges, races[0]).diagnostic
    doubt = because("some relaxed operation may leave them unordered; no run was found in which it does")
    message = f"{found.message} by acquire and release alone"
    return Finding(Diagnostic("AMK205", message, where=found.where, facts=(*found.facts[:2], doubt)))


def deadlock_finding(system: FlatSystem, run: Run) -> Finding | None:
    """Who waits for ever after a greedy run, if anybody does."""
    found = diagnose(run)
    if found is None:
        return None
    starved = found.cause == "too few producers"
    wait_cycle, head = found.wait_cycle, found.wait_cycle[0]
    names = " and ".join(system.block.agent_name(head.agent) for head in wait_cycle[:4])
    counter = system.block.counter_name(head.counter)
    message = f"{names} wait{'s' * (len(wait_cycle) == 1)} for ever" + (
        f": all signals together bring {counter} to {head.attainable}, and {head.threshold} is asked for"
        if starved
        else ": each waits for signals that others of them send only later"
    )
    never = len(found.heads)
    facts: list[Fact] = [shown(blocked(system, head)) for head in wait_cycle[:6]]
    facts.append(because(f"{never} of {system.block.agents} agents never finish, in every interleaving"))
    code = "AMK202" if starved else "AMK201"
    diagnostic = Diagnostic(code, message, where=where(system, wait_cycle[0].event), facts=tuple(facts))
    return Finding(diagnostic, run.system, deadlock_witness(run, found), found)


def race_finding(system: FlatSystem, edges: System, race: Race) -> Finding:
    """A race with its witness on the system whose edges do not order it."""
    witness = race_witness(edges, race)
    pair = (race.first, race.second)
    both = race.first_kind == race.second_kind == WRITE
    name = edges.buffer_name(race.buffer)
    message = f"nothing orders two accesses to {name}[{race.lo}:{race.hi}]"
    facts = [shown(f"{who(system, event, edges)}: {does(edges, event)}") for event in pair]
    if witness.order:
        facts.append(because(f"one run to where both can go on: {legs(edges, witness.order)}"))
    else:
        facts.append(because("both can start at once"))
    later = max(pair, key=lambda event: int(edges.index_of[event]))
    diagnostic = Diagnostic("AMK301" if both else "AMK302", message, where=where(system, later), facts=tuple(facts))
    return Finding(diagnostic, edges, witness, race=race)


def _fault(system: FlatSystem, edges: System, judgement: Judgement) -> Finding:
    fault = judgement.dataflow.faults[0]
    witness = fault_witness(judgement.run, fault)
    name = f"{edges.buffer_name(fault.buffer)}[{fault.lo}:{fault.hi}]"
    facts = [] if fault.event < 0 else [shown(f"{who(system, fault.event, edges)}: {does(edges, fault.event)}")]
    if fault.writer is not None and fault.writer >= 0:
        facts.append(shown(f"{who(system, fault.writer, edges)}: {does(edges, fault.writer)}"))
    message, code = _fault_text(fault, name), FAULT_CODES[fault.kind]
    if fault.event < 0:
        code = "AMK101" if fault.kind == "uninitialised" else "AMK104"
    place = where(system, fault.event) if fault.event >= 0 else None
    return Finding(Diagnostic(code, message, where=place, facts=tuple(facts)), edges, witness)


def _fault_text(fault: Fault, name: str) -> str:
    if fault.event < 0:
        return f"{name} does not hold at the end what it should"
    return {
        "uninitialised": f"{name} is read, and nothing has written it",
        "stale": f"{name} is read, and holds something else than the reader means",
        "partial": f"{name} is read as a complete sum, and added to afterwards",
    }[fault.kind]


def unfenced(system: FlatSystem, edges: EdgeSystems, run: Run) -> Finding | None:
    """The first pair whose first event writes plain memory that the second touches, unordered under `fence`."""
    fence = without(edges.fence, edges.unfenced)
    ran = greedy(fence)
    report = find_races(blocks(touches_of(ran)), must_clocks(ran), None)
    position = np.append(run.position, np.arange(fence.events) + len(run.position))
    for race in report.races:
        first, second = sorted((race.first, race.second), key=lambda event: int(position[event]))
        if _written_then_touched(fence, first, second):
            return race_finding(system, fence, race)
    return None


def without(system: System, buffers: tuple[int, ...]) -> System:
    """The system without these buffers."""
    unseen = np.array(buffers, dtype=np.int64)
    kept = {table: ~np.isin(getattr(system, f"{table}_buffer"), unseen) for table in ("access", "initial", "final")}
    first = np.concatenate(([0], np.cumsum(kept["access"])))[system.access_first]
    columns = {
        f"{table}_{name}": getattr(system, f"{table}_{name}")[rows]
        for table, rows in kept.items()
        for name in (CSR["access"] if table == "access" else BOXES)
    }
    return replace(system, access_first=first, **columns)


def _written_then_touched(system: System, first: int, second: int) -> bool:
    one, two = (slice(*system.access_first[e : e + 2].tolist()) for e in (first, second))
    writes = system.access_kind[one] != READ
    alike = system.access_buffer[one][:, None] == system.access_buffer[two]
    meets = (system.access_lo[one][:, None] < system.access_hi[two]) & (
        system.access_lo[two] < system.access_hi[one][:, None]
    )
    return bool((alike & meets & writes[:, None]).any())
