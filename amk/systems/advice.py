"""What to change: edits that were tried and are SAFE; where none is, what the finding itself says to change.

Property: a change that is called verified makes the system SAFE by the same judge. Nothing else is promised: several
changes may do, and which one the kernel means only its author knows.

Cost: bounded by `SECONDS` and `LARGEST`; a verdict per edit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Final

import numpy as np

from amk.report.diagnostic import Diagnostic, because
from amk.systems.edits import Edit, against_deadlock, against_race
from amk.systems.finding import Finding
from amk.systems.flat_judge import READ, Deadlock, MalformedSystem, Race, System, greedy
from amk.systems.flat_system import FlatSystem
from amk.systems.rule_edits import against
from amk.systems.wording import at

SECONDS: Final = 2.0
LARGEST: Final = 20_000
"""Events of the largest system that edits are tried on."""
MOST_SLOTS: Final = 64


def advised(
    system: FlatSystem,
    finding: Finding,
    safe: Callable[[FlatSystem], bool],
    wider: tuple[FlatSystem, Finding] | None = None,
) -> Diagnostic:
    """The finding with what to change; safe: the judge that decides whether a change does. wider: the same kernel with
    more laps, on which changes are tried instead."""
    tried, found = wider or (system, finding)
    edit = None if tried.edge_systems is not None or tried.block.events > LARGEST else _verified(tried, found, safe)
    if edit is not None:
        return _with_edit(finding.diagnostic, tried, edit, "the system" if wider is None else f"`{tried.name}`")
    if finding.deadlock is not None:
        starved = finding.deadlock.cause == "too few producers"
        help_ = (_missing if starved else _room)(system, finding.deadlock)
        return replace(finding.diagnostic, help=help_)
    if finding.race is not None:
        return replace(finding.diagnostic, help=_order(system, finding.race))
    return finding.diagnostic


def _verified(system: FlatSystem, finding: Finding, safe: Callable[[FlatSystem], bool]) -> Edit | None:
    if finding.deadlock is not None:
        edits = against_deadlock(system, finding.deadlock.wait_cycle)
    elif finding.race is not None:
        edits = against_race(system, finding.race)
    elif finding.run is not None:
        edits = against(system, finding.run[0])
    else:
        return None
    end = perf_counter() + SECONDS
    try:
        for edit in edits:
            if safe(edit.system):
                return edit
            if perf_counter() > end:
                return None
    except MalformedSystem:  # an edit went beyond the bounds of the format
        pass
    return None


def _with_edit(diagnostic: Diagnostic, system: FlatSystem, edit: Edit, what: str) -> Diagnostic:
    result = replace(diagnostic, help=f"{edit.change}: with this change {what} is SAFE")
    if edit.code is None or edit.event is None:
        return result
    weak = "wait does not acquire" if edit.code == "AMK503" else "signal does not release"
    reason = because(f"the {weak}{at(system, edit.event)}, so it orders no memory")
    return replace(result, facts=(*result.facts, reason))


def _missing(system: FlatSystem, deadlock: Deadlock) -> str:
    """How many signals of which counter are missing, and behind whose access they belong."""
    block, head = system.block, deadlock.wait_cycle[0]
    name, waiter = block.counter_name(head.counter), block.agent_name(head.agent)
    wanted = int(block.wait_threshold[block.wait_counter == head.counter].max())
    advice = f"{name} gets {wanted - head.attainable} too few: add signals of it"
    giver = _touched_next(block, head.event)
    if giver is not None:
        advice += f" to {block.agent_name(int(block.agent_of[giver]))} behind its access{at(system, giver)}"
    if head.attainable == int(block.counter_init[head.counter]):
        return advice
    return f"{advice}, or let {waiter} wait for {head.attainable} at most{at(system, head.event)}"


def _touched_next(block: System, event: int) -> int | None:
    """The last event of another agent that touches the bytes which the waiting agent touches next."""
    agent = int(block.agent_of[event])
    end = int(block.agent_first[agent + 1])
    rows = slice(*block.access_first[[event, end]].tolist())
    if rows.start == rows.stop:
        return None
    buffer, lo, hi = (int(column[rows][0]) for column in (block.access_buffer, block.access_lo, block.access_hi))
    meets = (block.access_buffer == buffer) & (block.access_lo < hi) & (lo < block.access_hi)
    others = block.access_event[meets & (block.agent_of[block.access_event] != agent)]
    return int(others[-1]) if len(others) else None


def _room(system: FlatSystem, deadlock: Deadlock) -> str:
    """How much more of which counter lets everything finish: if it counts free slots, that many are missing."""
    block, wait_cycle = system.block, deadlock.wait_cycle
    for head in wait_cycle:
        for more in range(1, MOST_SLOTS + 1):
            init = block.counter_init.copy()
            init[head.counter] += more
            if greedy(replace(block, counter_init=init)).complete:
                name, least = block.counter_name(head.counter), int(init[head.counter])
                return (
                    f"with {name} at {least} instead of {least - more} at the start everything finishes, but then "
                    f"bytes are used twice: if {name} counts free slots, give the ring {more} more, with bytes of "
                    "their own; otherwise send one of the signals before the wait that holds it up"
                )
    return "send one of the signals that are waited for before the wait that holds it up"


def _reads_what(block: System, reader: int, writer: int) -> bool:
    """The reader means to find something that the writer writes."""
    one, two = (slice(*block.access_first[e : e + 2].tolist()) for e in (reader, writer))
    wanted = block.access_value[one][(block.access_kind[one] == READ) & (block.access_value[one] >= 0)]
    values = block.access_value[two][block.access_kind[two] != READ]
    return bool(np.isin(wanted, values).any())


def _order(system: FlatSystem, race: Race) -> str:
    """Which signal whose agent sends after its access the other could wait for."""
    block = system.block
    first, second = race.first, race.second
    reads_first = _reads_what(block, first, second)
    if reads_first or (
        int(block.index_of[second]) < int(block.index_of[first]) and not _reads_what(block, second, first)
    ):
        first, second = second, first
    agent = int(block.agent_of[first])
    sent = np.flatnonzero((block.agent_of[block.signal_event] == agent) & (block.signal_event >= first))
    giver, taker = block.agent_name(agent), block.agent_name(int(block.agent_of[second]))
    if not len(sent):
        return (
            f"let {giver} signal a counter behind its access{at(system, first)}, and {taker} wait for it before its own"
        )
    row = int(sent[0])
    event, counter = int(block.signal_event[row]), int(block.signal_counter[row])
    upto = (block.signal_counter == counter) & (block.agent_of[block.signal_event] == agent)
    least = int(block.counter_init[counter]) + int(block.signal_amount[upto & (block.signal_event <= event)].sum())
    name = block.counter_name(counter)
    return (
        f"let {taker} wait for {name} >= {least} before its access{at(system, second)}: {giver} brings it there"
        f"{at(system, event)}, behind its own access (more, if others add to {name} too)"
    )
