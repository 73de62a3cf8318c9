"""The verdict on a system with barriers by phase, flags by value, and accesses of the async proxy.

Property: UNSAFE iff a run of the rules themselves was found that shows it (`machine`), which is the witness. SAFE iff
every count range is proved, so that the system of counters has the same runs (`phases`), that system is SAFE, and every
asynchronous access has its proxy fence (`proxies`). UNKNOWN otherwise, with what is not proved.

Runs that are looked at: one step of each agent in turn; each agent as early, and as late, as it can; some at random.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from time import perf_counter
from typing import Final

import numpy as np

from amk.report.diagnostic import Diagnostic, Fact, because, shown
from amk.systems.finding import Finding
from amk.systems.flat_judge import WRITE, ClocksTooLarge, Judgement, System, greedy, judge, must_clocks
from amk.systems.flat_system import FlatSystem, ordering
from amk.systems.machine import LARGEST, Choice, Machine, Trouble, ran
from amk.systems.phases import Grown, broken, grown
from amk.systems.proxies import unfenced
from amk.systems.rules import (
    AT_LEAST,
    EQUAL,
    MOST_BYTES,
    NEXT_PHASE,
    PARITY,
    Rules,
    arrives_again,
    crowded,
    mixed,
    never_arrived,
)
from amk.systems.wording import touches, where, who

SECONDS: Final = 3.0
AT_RANDOM: Final = 24
MOST_AGENTS: Final = 24
EARLY: Final = "let the reader wait for the write: look at the phase, the parity or the barrier that it waits for"


def judged_rules(system: FlatSystem) -> tuple[Finding | None, Judgement | None]:
    """What is wrong, and the judgement of the system of counters, where it came to that."""
    end = perf_counter() + SECONDS
    assert system.rules is not None
    reason = mixed(system.block, system.rules)
    if reason is None and system.block.events > LARGEST:
        reason = f"{system.block.events:,} events; with barriers by phase or flags at most {LARGEST:,} are decided"
    if reason is None:
        reason = crowded(system.block, system.rules, system.scope, system.place)
    if reason is None and (lone := never_arrived(system.block, system.rules)) is not None:
        reason = f"{who(system, lone)} waits for the others at a barrier where it has not arrived"
    if reason is None and (again := arrives_again(system.block, system.rules, system.scope)) is not None:
        reason = f"{who(system, again)} does not take turns of arriving and waiting at the barrier of a cluster"
    if reason is not None:
        return Finding(Diagnostic("AMK205", reason)), None
    run, trouble = ran(system)
    if trouble is not None:
        return finding_of(run, trouble), None
    if (heavy := next((c for c, most in run.expected.items() if most >= MOST_BYTES), None)) is not None:
        name = system.block.counter_name(heavy)
        message = (
            f"a phase of {name} expects {run.expected[heavy]:,} bytes; an mbarrier counts fewer than {MOST_BYTES:,}"
        )
        return Finding(Diagnostic("AMK205", message)), None
    try:
        judgement, doubt = _proved(system, run)
    except ClocksTooLarge as error:
        judgement, doubt = None, Finding(Diagnostic("AMK205", str(error)))
    if doubt is not None:
        doubt = _shown(system, end) or doubt
    return doubt, judgement


def _shown(system: FlatSystem, end: float) -> Finding | None:
    """What one of many runs shows."""
    for choice in _choices(len(system.block.agent_first) - 1):
        run, trouble = ran(system, choice)
        if trouble is not None:
            return finding_of(run, trouble)
        if perf_counter() > end:
            break
    return None


def _choices(agents: int) -> Iterator[Choice]:
    for agent in range(min(agents, MOST_AGENTS)):
        yield lambda ready, mine=agent: mine if mine in ready else ready[0]  # type: ignore[misc]
        yield lambda ready, mine=agent: ready[0] if ready[0] != mine or len(ready) == 1 else ready[1]  # type: ignore[misc]
        yield lambda ready, mine=agent: ready[-1] if ready[-1] != mine or len(ready) == 1 else ready[-2]  # type: ignore[misc]
    for number in range(AT_RANDOM):
        yield Random(number).choice


def _proved(system: FlatSystem, run: Machine) -> tuple[Judgement | None, Finding | None]:
    """Why every run is right, or what is not proved."""
    grown_to = grown(system, run)
    judgement = judge(grown_to.block)
    missing = broken(grown_to, judgement.clocks)
    if missing is not None:
        return None, _not_proved(system, missing[0].event, missing[0].counter, missing[1])
    word = _word(system, grown_to)
    ordered = judgement if word is grown_to.block else judge(word)
    if judgement.deadlock is not None or not ordered.safe:
        return None, _doubtful(system, ordered)
    clocks = ordered.clocks if word is not grown_to.block else must_clocks(greedy(word))
    assert system.rules is not None
    pair = unfenced(word, system.rules, clocks)
    if pair is not None:
        return None, Finding(_unfenced(system, pair, "AMK205"))
    return ordered, None


def _word(system: FlatSystem, grown_to: Grown) -> System:
    """What orders memory of the system of counters."""
    more = len(grown_to.block.wait_counter) - len(system.acquires)
    acquires = np.append(system.acquires, np.zeros(more, dtype=bool))
    if system.acquires.all() and system.releases.all():
        return grown_to.block
    return ordering(grown_to.block, acquires, system.releases)


def _not_proved(system: FlatSystem, event: int, counter: int, late: bool) -> Finding:
    name = system.block.counter_name(counter)
    what = "may come when a later phase has begun" if late else "may come before the phase that it means has begun"
    facts = (
        shown(f"{who(system, event)}: {event_text(system, event)}"),
        because(f"{name} may be ahead of it" if late else f"{name} may be behind it"),
        because("no run that was tried shows that this does harm"),
    )
    code = "AMK515" if late else "AMK514"
    message = f"{who(system, event)} {what} of {name}"
    return Finding(Diagnostic(code, message, where=where(system, event), facts=facts))


def _doubtful(system: FlatSystem, judgement: Judgement) -> Finding:
    message = "the accesses are not known to be ordered"
    races, faults = judgement.races.races, judgement.dataflow.faults
    events = (races[0].first, races[0].second) if races else (faults[0].event,) if faults else ()
    facts = tuple(shown(f"{who(system, e)}: {event_text(system, e)}") for e in events if 0 <= e < system.block.events)
    doubt = because("no run that was tried shows that this does harm")
    return Finding(Diagnostic("AMK205", message, facts=(*facts, doubt)))


def event_text(system: FlatSystem, event: int) -> str:
    """What the event does, in the words of its rules."""
    block, rules = system.block, system.rules or Rules.plain(system.block)
    parts = []
    for row in range(*block.wait_first[event : event + 2].tolist()):
        name, threshold = block.counter_name(int(block.wait_counter[row])), int(block.wait_threshold[row])
        parts.append(
            {
                AT_LEAST: f"waits for {name} >= {threshold}",
                PARITY: f"waits for {name} by parity {threshold}",
                EQUAL: f"waits for {name} == {threshold}",
                NEXT_PHASE: f"waits for the others at {name}",
            }[int(rules.wait[row])]
        )
    for row in range(*block.signal_first[event : event + 2].tolist()):
        name, amount = block.counter_name(int(block.signal_counter[row])), int(block.signal_amount[row])
        plain = f"arrives at {name}" + (f" {amount} times" if amount > 1 else "")
        added = plain if rules.phase[block.signal_counter[row]] else f"adds {amount} to {name}"
        kinds = (
            added, f"stores {amount - 1} to {name}", f"arrives at {name}, which then expects {amount} bytes",
            f"brings {amount} bytes to {name}", f"lets {name} expect {amount} bytes, without arriving",
        )  # fmt: skip
        parts.append(kinds[int(rules.signal[row])])
    return ", ".join([*touches(block, event), *parts]) or ("is a proxy fence" if rules.proxy[event] else "does nothing")


def finding_of(run: Machine, trouble: Trouble) -> Finding:
    """What a run shows, in words; the run is the witness."""
    system = run.system
    if trouble.kind == "deadlock":
        diagnostic = _deadlock(system, run, trouble)
    elif trouble.kind == "unfenced":
        diagnostic = _unfenced(system, (trouble.events[0], trouble.events[1]), "AMK507")
    elif trouble.kind == "race":
        diagnostic = _race(system, run, trouble)
    elif trouble.kind == "arrivals":
        diagnostic = _arrivals(system, trouble)
    else:
        diagnostic = _fault(system, run, trouble)
    return Finding(diagnostic, run=(trouble, tuple(run.order)))


def _name(system: FlatSystem, trouble: Trouble) -> str:
    assert trouble.box is not None
    buffer, lo, hi = trouble.box
    return f"{system.block.buffer_name(buffer)}[{lo}:{hi}]"


def _facts(system: FlatSystem, events: tuple[int, ...]) -> list[Fact]:
    return [shown(f"{who(system, event)}: {event_text(system, event)}") for event in events if event >= 0]


def _race(system: FlatSystem, run: Machine, trouble: Trouble) -> Diagnostic:
    facts = _facts(system, trouble.events)
    facts += _waited(run, trouble.events[1])
    facts.append(because(f"in a run of {len(run.order)} events neither happens before the other"))
    kinds = {
        int(system.block.access_kind[row])
        for event in trouble.events
        for row in range(*system.block.access_first[event : event + 2].tolist())
    }
    code = "AMK301" if kinds == {WRITE} else "AMK302"
    message = f"nothing orders two accesses to {_name(system, trouble)}"
    later = trouble.events[1]
    giver, taker = (system.block.agent_name(int(system.block.agent_of[e])) for e in trouble.events)
    help_text = (
        f"let {giver} signal behind its access, and {taker} wait for that signal, with acquire and release, before its "
        "own; if they do, look at the phase, the count or the scope that the wait asks for"
    )
    return Diagnostic(code, message, where=where(system, later), facts=tuple(facts), help=help_text)


def _unfenced(system: FlatSystem, pair: tuple[int, int], code: str) -> Diagnostic:
    facts = _facts(system, pair)
    facts.append(because("an ordinary write is seen by the async proxy (TMA, bulk copies, wgmma) behind a fence alone"))
    message = "an asynchronous access may miss an ordinary write of its bytes: no proxy fence is between"
    writer = system.block.agent_name(int(system.block.agent_of[pair[0]]))
    help_text = f"let {writer} execute `fence.proxy.async` behind its write and before it signals"
    return Diagnostic(code, message, where=where(system, pair[1]), facts=tuple(facts), help=help_text)


def _arrivals(system: FlatSystem, trouble: Trouble) -> Diagnostic:
    message = "a barrier gets more arrivals in one phase than it counts"
    facts = (*_facts(system, trouble.events), because("PTX leaves undefined what happens then"))
    help_text = "count these arrivals when the barrier is initialised, or let the agent wait for the phase to be over"
    return Diagnostic("AMK404", message, where=where(system, trouble.events[0]), facts=facts, help=help_text)


def _waited(run: Machine, event: int) -> list[Fact]:
    """The last wait of the event's agent before it, and what it found."""
    block, system = run.block, run.system
    first = int(block.agent_first[run.agent_of[event]])
    last = next((e for e in range(event, first - 1, -1) if run.waits[e] and not _issue(block, e)), None)
    if last is None:
        return [because(f"{block.agent_name(run.agent_of[event])} waits for nothing before")]
    row = run.first_row[0][last]
    counter = int(block.wait_counter[row])
    told_so = event_text(system, last)
    if run.phases[counter] is None:
        return [shown(f"{who(system, last)}: {told_so}")]
    over = run.wait_counts[row]
    return [shown(f"{who(system, last)}: {told_so}, which it found with {over} phase{'s' * (over != 1)} over")]


def _issue(block: System, event: int) -> bool:
    """It is the start of an asynchronous operation, which only waits to be issued."""
    return " issues " in block.counter_name(int(block.wait_counter[int(block.wait_first[event])]))


def _fault(system: FlatSystem, run: Machine, trouble: Trouble) -> Diagnostic:
    event, name = trouble.events[0], _name(system, trouble)
    if event < 0:
        return Diagnostic("AMK104", f"{name} does not hold at the end what it should")
    said = "nothing has written it" if trouble.kind == "uninitialised" else "it holds something else than is meant"
    code = "AMK105" if trouble.kind == "uninitialised" else "AMK104"
    facts = (*_facts(system, trouble.events), *_waited(run, event))
    return Diagnostic(code, f"{name} is read, and {said}", where=where(system, event), facts=facts, help=EARLY)


def _deadlock(system: FlatSystem, run: Machine, trouble: Trouble) -> Diagnostic:
    block = system.block
    waits = {run.agent_of[event]: (event, row) for event in trouble.events if (row := _unmet(run, event)) is not None}
    owners = {agent: _owners(run, row) for agent, (_, row) in waits.items()}
    wait_cycle = _cycle(owners) or [agent for agent, owing in owners.items() if not owing]
    names = " and ".join(block.agent_name(agent) for agent in wait_cycle[:4])
    facts: list[Fact] = []
    for event, row in (waits[agent] for agent in wait_cycle[:6]):
        facts.append(shown(f"{who(system, event)}: {event_text(system, event)}; {_state(run, row)}"))
    facts.append(because(f"{len(trouble.events)} of {block.agents} agents never finish in this run"))
    first = waits[wait_cycle[0]]
    counter = block.counter_name(int(block.wait_counter[first[1]]))
    owed = bool(owners[wait_cycle[0]])
    message = f"{names} wait{'s' * (len(wait_cycle) == 1)} for ever"
    code = "AMK201" if owed else "AMK202"
    help_ = _unblocked(run, int(block.wait_counter[first[1]]), counter, owed)
    return Diagnostic(code, message, where=where(system, first[0]), facts=tuple(facts), help=help_)


def _unblocked(run: Machine, counter: int, name: str, signal_exists: bool) -> str:
    """What to look at; signal_exists: somebody would signal, if they went on."""
    phase = run.phases[counter]
    if signal_exists:
        return (
            "send one of the signals that are waited for before the wait that holds its agent up; if a barrier is in "
            "another phase than you mean, look at the parity of the wait, or at how many arrivals the barrier counts"
        )
    if phase is not None and phase.pending > 0 > phase.bytes:
        return (
            f"let whoever issues the load `expect` its {-phase.bytes} bytes at {name}: that arrival is the one that "
            "is missing"
        )
    return (
        f"nobody signals {name} any more: look at how often each agent does, at the parity that is waited for, and at "
        "how many arrivals the barrier counts"
    )


def _arrived(run: Machine, counter: int) -> list[int]:
    """Agents that have arrived in the phase that the barrier is in."""
    rows = np.flatnonzero(run.block.signal_counter == counter).tolist()
    phase = run.phases[counter]
    here = [row for row in rows if phase is not None and run.sent.get(row) == phase.number]
    return list(dict.fromkeys(run.agent_of[int(run.block.signal_event[row])] for row in here))


def _owners(run: Machine, row: int) -> list[int]:
    """Agents that would signal what this wait waits for, if they went on."""
    block = run.block
    signals = block.signal_event[block.signal_counter == block.wait_counter[row]].tolist()
    return list(dict.fromkeys(run.agent_of[e] for e in signals if e >= run.at[run.agent_of[e]]))


def _cycle(owners: dict[int, list[int]]) -> list[int]:
    """Agents of which each waits for the next, and the last for the first: few; none where there is no such cycle."""
    best: list[int] = []
    for start in owners:
        paths, seen = [[start]], {start}
        while paths and not (best and len(paths[0]) >= len(best)):
            path = paths.pop(0)
            for owner in owners.get(path[-1], ()):
                if owner == start:
                    best, paths = path, []
                    break
                if owner not in seen:
                    seen.add(owner)
                    paths.append([*path, owner])
    return best


def _unmet(run: Machine, event: int) -> int | None:
    agent = run.agent_of[event]
    rows = enumerate(run.waits[event], run.first_row[0][event])
    return next((row for row, found in rows if not run.met_now(agent, *found[:3])), None)


def _state(run: Machine, row: int) -> str:
    """What the counter holds, and who would still signal it."""
    block = run.block
    counter = int(block.wait_counter[row])
    phase, name = run.phases[counter], block.counter_name(counter)
    if phase is None:
        text = f"{name} is {run.value[counter]}"
    else:
        needs = [f"{phase.pending} of {phase.size} arrivals"]
        if phase.bytes:
            needs.append(f"{phase.bytes} bytes" if phase.bytes > 0 else f"to expect {-phase.bytes} bytes that came")
        text = f"{name} is in phase {phase.number}, which still needs {' and '.join(needs)}"
        arrived = [block.agent_name(agent) for agent in _arrived(run, counter)]
        text += f" ({', '.join(arrived[:4])} arrived)" if arrived and phase.pending else ""
    owners = [block.agent_name(agent) for agent in _owners(run, row)]
    return text + (
        f"; still to come, if they went on: from {', '.join(owners[:4])}" if owners else "; nobody adds to it"
    )
