"""Findings of the composed check as diagnostics, with evidence from the flat system where there is some.

A race or fault names composite nodes; `confirm` looks for it in the flat system. What is confirmed nowhere stays
UNKNOWN. A deadlock is where a run of the flat system ends.

A confirmed race between workers may have a cause that can be named: a barrier that rule M1 or M4 of the memory model
wants. A signal speaks for its whole worker, a wait is polled by one warp for all:
  M1  the first access comes before a signal in its program, the signal comes before the second access in every
      execution, but the warp of the first access need not be done when another warp signals (AMK501)
  M4  the second access comes behind a wait in its program, the first access comes before the end of that wait in every
      execution, but the warp of the second access need not wait for the warp that polls (AMK504)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Final, Literal

import numpy as np

from amk.report.diagnostic import Diagnostic, Fact, because, shown
from amk.report.schema import finding, json_pointer
from amk.schedule_ir.schedule import Signal, Wait
from amk.validator.evidence.confirm import SMALL, Clash, Confirmer, Evidence, Place, confirmed_fault, nodes, starts
from amk.validator.evidence.flat_system import Flat, expand
from amk.validator.evidence.witness import deadlock_witness
from amk.validator.memory.composition import Composition
from amk.validator.memory.races import Fault, Race, RaceReport
from amk.validator.order.greedy_run import BlockedHead, Deadlock, diagnose, greedy
from amk.validator.order.intervals import Ordering
from amk.validator.order.two_levels import Edges
from amk.validator.program.footprint import family_name
from amk.validator.program.system import I64, READ
from amk.validator.program.trace import Trace

TRIED: Final = 4
"""Findings that are looked at on the flat system; the first confirmed one decides."""


@dataclass(frozen=True, eq=False)
class Finding:
    """A diagnostic; evidence None means that no flat run confirmed it. cause: the rule that a race is for want of."""

    diagnostic: Diagnostic
    evidence: Evidence | None
    cause: Diagnostic | None = None


def explain(result: Composition, in_time: Callable[[], None] = lambda: None) -> Finding | None:
    """The first thing wrong with a composition, with evidence where there is some; None if nothing is. in_time: raises
    where the time is over; asked before each look at a flat system."""
    if result.never:
        return Finding(result.never[0], None)
    if not result.live:
        return _deadlock(result)
    return next(chain(_races(result, in_time), _faults(result, in_time)), None) or _doubt(result)


def _racing(result: Composition) -> list[tuple[Edges, tuple[Race, ...]]]:
    """What races, by the edges that leave it unordered."""
    reports: dict[Edges, RaceReport | None] = {
        "word": result.races, "wait": result.overwritten, "fence": result.unseen
    }  # fmt: skip
    return [(edges, report.races) for edges, report in reports.items() if report is not None and report.racy]


def _doubt(result: Composition) -> Finding | None:
    """What was found and is confirmed nowhere."""
    for edges, (race, *_) in _racing(result):
        a, b = _node(result, race.first), _node(result, race.second)
        facts = [_access(*a, None, race.first_kind), _access(*b, None, race.second_kind)]
        return Finding(_race_diagnostic(result, race, b, edges, facts), None)
    if result.dataflow is not None and not result.dataflow.correct:
        return Finding(_fault_diagnostic(result, result.dataflow.faults[0]), None)
    return None


def place(trace: Trace, worker: int, item: int, warp: int | None) -> tuple[str, str]:
    """(who, what) of a step as run."""
    step = trace.items[item]
    loops = ", ".join(f"{'token' if v == 't' else 'layer'} {k}" for v, k in step.loops.items() if v in ("t", "l"))
    who = f"worker {worker}" + (f" warp {warp}" if warp is not None else "")
    return who, f"{step.step.op.op} at {json_pointer(step.site.path)}" + (f" ({loops})" if loops else "")


def _node(result: Composition, number: int) -> Place:
    """The step that a composite node is of."""
    assert result.order is not None
    group, worker, node = result.order.node(number)
    trace = group.order.trace
    return trace, worker, int(trace.item[node]) if node < trace.events else node - trace.events


def _deadlock(result: Composition) -> Finding:
    pos, advance = starts(result)[0]
    flat = expand(result.schedule, pos, result.tokens, touching=(), brief=True, advance=advance)
    run = greedy(flat.system)
    found = diagnose(run)
    if found is None:
        message = "the workers' programs may block each other; one flat run finished"
        return Finding(finding("AMK201", message, ("programs",)), None)
    evidence = Evidence("deadlock", "block", (pos, advance), flat.system, partial(deadlock_witness, run, found))
    return Finding(_stuck(result, flat, found), evidence)


def _stuck(result: Composition, flat: Flat, deadlock: Deadlock) -> Diagnostic:
    code = "AMK202" if deadlock.cause == "too few producers" else "AMK201"
    head = next(
        (h for h in (*deadlock.wait_cycle, *deadlock.heads) if flat.system.event_tag[h.event] >= 0),
        deadlock.wait_cycle[0],
    )
    facts = [shown(_blocked(flat, h)) for h in deadlock.wait_cycle[:6]]
    never = sum(int(flat.system.event_tag[head.event]) >= 0 for head in deadlock.heads)
    launch = result.schedule.launch
    facts.append(because(f"{never} of {launch.workers * launch.warps} warps never finish"))
    trace, _, event = flat.waiter(head.event, head.counter)
    message = "some waits can never be met" if code == "AMK202" else "agents wait for each other in a cycle"
    return replace(finding(code, message, trace.items[int(trace.item[event])].site.path), facts=tuple(facts))


def _blocked(flat: Flat, head: BlockedHead) -> str:
    counter = flat.system.counter_name(head.counter)
    if flat.system.event_tag[head.event] < 0:
        who = flat.system.event_name(head.event)
        return f"{who} are complete when {counter} >= {head.threshold}, which stays at {head.value}"
    trace, worker, event = flat.waiter(head.event, head.counter)
    who, what = place(trace, worker, int(trace.item[event]), int(trace.warp_of[event]))
    if head.attainable < head.threshold:
        most = f"all steps together bring it to {head.attainable}, nothing adds to it any more"
        return f"{who}, {what}: waits for {counter} >= {head.threshold}; {most}"
    more = "; nothing adds to it any more"
    if head.missing:
        agents = ", ".join(flat.system.agent_name(agent) for agent, _ in head.missing[:3])
        rest = f" and {len(head.missing) - 3} others" if len(head.missing) > 3 else ""
        more = f"; {sum(n for _, n in head.missing)} more would come from {agents}{rest}, stuck as well"
    return f"{who}, {what}: waits for {counter} >= {head.threshold}, which stays at {head.value}{more}"


def _races(result: Composition, in_time: Callable[[], None]) -> Iterator[Finding]:
    """Those that a run of the flat system shows."""
    small = nodes(result) <= SMALL
    for edges, races in _racing(result):
        confirmer = Confirmer(result, edges, in_time)
        for race in _varied(result, races)[: None if small else TRIED]:
            a, b = _node(result, race.first), _node(result, race.second)
            if (confirmed := confirmer.race(a, b)) is None:
                continue
            clash, evidence = confirmed
            facts = []
            for event, (trace, worker, item), kind in clash.sides:
                warp = int(trace.warp_of[clash.flat.owner(event)[2]])
                facts.append(_access(trace, worker, item, warp, kind))
            diagnostic = _race_diagnostic(result, race, b, edges, facts)
            yield Finding(diagnostic, evidence, missing_barrier(result, clash))


def _access(trace: Trace, worker: int, item: int, warp: int | None, kind: int) -> Fact:
    who, what = place(trace, worker, item, warp)
    return shown(f"{who} {'reads' if kind == READ else 'writes'}: {what}")


def _varied(result: Composition, races: Sequence[Race]) -> list[Race]:
    """The races with one of each sort (which two steps, which of them writes) first, then the second of each."""
    seen: dict[tuple[int, ...], int] = {}
    ranked = []
    for number, race in enumerate(races):
        (one, _, i), (two, _, j) = _node(result, race.first), _node(result, race.second)
        sites = one.items[i].site.number, two.items[j].site.number
        sort = (*sites, race.first_kind, race.second_kind)
        seen[sort] = seen.get(sort, 0) + 1
        ranked.append((seen[sort], number, race))
    return [race for _, _, race in sorted(ranked, key=lambda entry: entry[:2])]


def _race_diagnostic(result: Composition, race: Race, later: Place, edges: Edges, accesses: list[Fact]) -> Diagnostic:
    code = "AMK302" if READ in (race.first_kind, race.second_kind) else "AMK301"
    why = "no chain of signals, waits and barriers orders the two"
    if edges == "fence":
        why = "they follow each other in time, but no release and acquire makes the write visible"
    name = _buffer(result, race.buffer, race.lo)
    message = f"two accesses to {name} are not ordered (bytes {race.lo:,}..{race.hi - 1:,})"
    return replace(finding(code, message, later[0].items[later[2]].site.path), facts=(*accesses, because(why)))


def _buffer(result: Composition, number: int, lo: int) -> str:
    """The buffer by name; of shared memory, the buffers that lie at the byte."""
    buffers = result.schedule.buffers
    if number < len(buffers):
        return f"'{buffers[number].name}'"
    private = result.private[(number - len(buffers)) % len(result.private)]
    if private != "shared memory":
        return private
    there = [b.name for b in buffers if b.space == "shared" and (b.offset or 0) <= lo < (b.offset or 0) + b.bytes]
    return f"{private} ({' and '.join(repr(name) for name in there)})" if there else private


CODES: Final = {"uninitialised": "AMK105", "stale": "AMK104", "partial": "AMK104"}


def _faults(result: Composition, in_time: Callable[[], None]) -> Iterator[Finding]:
    """Wrong content that a run of the flat system finds too."""
    for fault in result.dataflow.faults[:TRIED] if result.dataflow is not None else ():
        in_time()
        reader = _node(result, fault.event) if fault.event >= 0 else None
        writer = _node(result, fault.writer) if fault.writer is not None and fault.writer >= 0 else None
        if evidence := confirmed_fault(result, fault, reader, writer):
            yield Finding(_fault_diagnostic(result, fault), evidence)


def _fault_diagnostic(result: Composition, fault: Fault) -> Diagnostic:
    name = _buffer(result, fault.buffer, fault.lo)
    bytes_, expected = f"bytes {fault.lo:,}..{fault.hi - 1:,} of {name}", family_name(fault.expected[0])
    if fault.event < 0:
        code = "AMK101" if fault.kind == "uninitialised" else "AMK104"
        path = ("buffers", fault.buffer) if fault.buffer < len(result.schedule.buffers) else ("buffers",)
        return finding(code, f"{bytes_} end without {expected}", path)
    trace, worker, item = _node(result, fault.event)
    who, what = place(trace, worker, item, None)
    facts = [shown(f"{who} reads: {what}"), because(f"expected {expected}")]
    if fault.actual is not None:
        shifted = " at another offset" if fault.actual[0] == fault.expected[0] else ""
        facts.append(because(f"found {family_name(fault.actual[0])}{shifted}"))
    message = f"{bytes_} hold something else than the reader needs"
    if fault.kind == "uninitialised":
        message = f"{bytes_} are read and were never written"
    return replace(finding(CODES[fault.kind], message, trace.items[item].site.path), facts=tuple(facts))


Owned = tuple[Trace, int, int]
"""(trace, worker, local event)."""
Kind = Literal["signals", "waits"]


def missing_barrier(result: Composition, clash: Clash) -> Diagnostic | None:
    """AMK501 or AMK504 if one of them is why the two accesses are not ordered."""
    order = result.fence or result.order
    first, second = (clash.flat.owner(event) for event, *_ in clash.sides)
    if order is None or first[1] == second[1]:
        return None
    for one, two in ((first, second), (second, first)):
        found = _hand_off(result, order, one, two, "signals") or _hand_off(result, order, two, one, "waits")
        if found is not None:
            return found
    return None


def _hand_off(result: Composition, order: Ordering, mine: Owned, other: Owned, kind: Kind) -> Diagnostic | None:
    """The nearest hand-off of the worker of `mine` that orders `other` and should order `mine`."""
    trace, worker, local = mine
    group = next(g for g in result.groups if g.first == trace.program.first)
    table = group.signals if kind == "signals" else group.waits
    rows = table[(table[:, 0] == worker) & (table[:, 4] == 0)]
    item = trace.item[rows[:, 1]]
    rows = rows[item > trace.item[local] if kind == "signals" else item < trace.item[local]]
    if not len(rows):
        return None
    place = order.numbers(rows[:, 0], rows[:, 1])
    own, far = (order.numbers(np.full(len(rows), w), np.full(len(rows), e)) for _, w, e in (mine, other))
    # the hand-off orders the other one, then those of them that mine need not keep to
    ordered = order.precedes(place, far) if kind == "signals" else order.precedes(far, place)
    at = np.flatnonzero(ordered)
    sides = (own[at], place[at]) if kind == "signals" else (place[at], own[at])
    at = at[~order.precedes(*sides)]
    return _finding(result, rows[at[0 if kind == "signals" else -1]], mine, kind) if len(at) else None


def _finding(result: Composition, row: I64, mine: Owned, kind: Kind) -> Diagnostic:
    trace, worker, local = mine
    event, instance = row[1:3].tolist()
    item, counter = trace.items[int(trace.item[event])], result.instances.family(instance)[0].name
    uses: list[Wait | Signal] = [*item.step.signals] if kind == "signals" else [*item.step.waits]
    number = next((i for i, use in enumerate(uses) if use.counter == counter), 0)
    name, warp, own = result.instances.name(instance), int(trace.warp_of[event]), int(trace.warp_of[local])
    step = trace.items[int(trace.item[local])].step.op.op
    code, message = "AMK501", f"warp {warp} signals {name} while warp {own} may still be in {step}"
    reason = f"no barrier of worker {worker} lies between {step} and the signal, which others take for its end"
    if kind == "waits":
        code, message = "AMK504", f"warp {warp} waits for {name}, warp {own} goes on to {step} without it"
        reason = f"no barrier of worker {worker} lies between the wait and {step}"
    return finding(code, message, (*item.site.path, kind, number), reason)
