"""Findings of the composed check as diagnostics, with evidence from the flat system where there is some.

A race or fault names composite nodes; `confirm` looks for it in the flat system. What is confirmed nowhere stays
UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from amk.report.diagnostic import Diagnostic, Fact, Severity, Where, because, shown
from amk.report.schema import json_pointer
from amk.validator.evidence.blame import missing_barrier
from amk.validator.evidence.confirm import ConfirmedRace, Confirmer, Evidence, Place, fits, large, positions
from amk.validator.evidence.faults import confirmed_fault, evident_fault
from amk.validator.evidence.flat_system import Flat, expand
from amk.validator.evidence.witness import Witness, deadlock_witness
from amk.validator.memory.composition import Composition
from amk.validator.memory.dataflow import Fault
from amk.validator.memory.races import Race
from amk.validator.order.between_ctas import Edges, InterCtaSystem
from amk.validator.order.greedy_run import BlockedHead, Deadlock, Run, diagnose, greedy
from amk.validator.program.contents import family_name
from amk.validator.program.system import READ, System
from amk.validator.program.trace import Trace

TRIED: Final = 4
"""Findings that are looked at on the flat system; the first confirmed one decides."""
SMALL: Final = 100_000
"""Nodes up to which every finding is looked at: a composite step may race where no single warp of it does."""
Tried = tuple[Race, Place, Place]


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
    racy = _racy(result, ("word", "wait", "fence"), in_time)
    found = _first(one.quickly() for one in racy)
    if found is None and racy:
        found = _wrong_content(result, evident_fault, in_time) or _first(one.flat() for one in racy)
    return found or _wrong_content(result, confirmed_fault, in_time) or _doubt(result, racy)


def _first(findings: Iterable[Finding | None]) -> Finding | None:
    return next((finding for finding in findings if finding is not None), None)


def _racy(result: Composition, kinds: tuple[Edges, ...], in_time: Callable[[], None]) -> list[_Racy]:
    reports = {"word": result.races, "wait": result.overwritten, "fence": result.unseen}
    found = [(edges, reports[edges]) for edges in kinds]
    racy = [(edges, report) for edges, report in found if report is not None and report.racy]
    return [_Racy(result, edges, list(report.races), in_time) for edges, report in racy]


def _doubt(result: Composition, racy: list[_Racy]) -> Finding | None:
    """What was found and is confirmed nowhere."""
    if racy:
        return racy[0].doubt()
    if result.dataflow is not None and not result.dataflow.correct:
        return Finding(_fault_diagnostic(result, result.dataflow.faults[0]), None)
    return None


def place(trace: Trace, worker: int, item: int, warp: int | None) -> tuple[str, str]:
    """(who, what) of a step as run."""
    step = trace.items[item]
    loops = ", ".join(f"{'token' if v == 't' else 'layer'} {k}" for v, k in step.loops.items() if v in ("t", "l"))
    who = f"worker {worker}" + (f" warp {warp}" if warp is not None else "")
    return who, f"{step.step.op.op} at {json_pointer(step.site.path)}" + (f" ({loops})" if loops else "")


def _where(trace: Trace, item: int) -> Where:
    return Where(path=json_pointer(trace.items[item].site.path))


def _node(result: Composition, number: int) -> tuple[Trace, int, int]:
    """(trace, worker, item) of a composite node."""
    assert result.order is not None
    group, worker, node = result.order.node(number)
    trace = group.order.trace
    return trace, worker, int(trace.item[node]) if node < trace.events else node - trace.events


@dataclass(frozen=True, eq=False)
class _Stuck:
    """Where a run of the flat system ends, if not at the end."""

    flat: Flat
    run: Run
    found: Deadlock | None


def _ended(result: Composition) -> _Stuck:
    flat = expand(result.schedule, positions(result)[0], result.tokens, touching=(), brief=True)
    run = greedy(flat.system)
    return _Stuck(flat, run, diagnose(run))


def _deadlock(result: Composition) -> Finding:
    """The flat system is run unless a wait asks for more than there is, which no order of steps can change."""
    evident = None if result.strict is None or not fits(result) else _starved(result)
    stuck = None if evident else _ended(result)
    if stuck is not None and stuck.found is None:
        message = "the workers' programs may block each other; one flat run finished"
        return Finding(Diagnostic("AMK201", message, where=Where(path="/programs")), None)

    def made() -> tuple[System, Witness]:
        end = stuck or _ended(result)
        assert end.found is not None, "a wait for more than others can give is never met"
        return end.run.system, deadlock_witness(end.run, end.found)

    evidence = Evidence("deadlock", "block", positions(result)[0], made, large(result))
    return Finding(evident or _explained(result, stuck), evidence)


def _starved(result: Composition) -> Diagnostic | None:
    """The first blocked wait for more than all signals of the launch give together; None if there is no such wait."""
    inter_cta = result.block
    assert isinstance(inter_cta, InterCtaSystem)
    system, run, total = inter_cta.system, inter_cta.run, result.instances.init()
    for group in result.groups:
        np.add.at(total, group.signals[:, 2], group.signals[:, 3])
    for agent in np.flatnonzero(run.cut < system.agent_size).tolist():
        event = int(system.agent_first[agent] + run.cut[agent])
        for k in range(*system.wait_first[event : event + 2].tolist()):
            counter, threshold = int(system.wait_counter[k]), int(system.wait_threshold[k])
            if counter < len(total) and threshold > total[counter]:
                trace, worker, local = inter_cta.owner(event)
                item = int(trace.item[local])
                who, what = place(trace, worker, item, int(trace.warp_of[local]))
                name, most = result.instances.name(counter), int(total[counter])
                fact = f"{who}, {what}: waits for {name} >= {threshold}; all steps together bring it to {most}"
                facts = (shown(f"{fact}, nothing adds to it any more"),)
                return Diagnostic("AMK202", "some waits can never be met", where=_where(trace, item), facts=facts)
    return None


def _explained(result: Composition, stuck: _Stuck | None) -> Diagnostic:
    assert stuck is not None and stuck.found is not None
    flat, found = stuck.flat, stuck.found
    code = "AMK202" if found.cause == "too few producers" else "AMK201"
    head = next(
        (h for h in (*found.wait_cycle, *found.heads) if flat.system.event_tag[h.event] >= 0), found.wait_cycle[0]
    )
    facts = [shown(_blocked(flat, h)) for h in found.wait_cycle[:6]]
    never = sum(int(flat.system.event_tag[head.event]) >= 0 for head in found.heads)
    launch = result.schedule.launch
    facts.append(because(f"{never} of {launch.workers * launch.warps} warps never finish"))
    trace, _, event = flat.waiter(head.event, head.counter)
    message = "some waits can never be met" if code == "AMK202" else "agents wait for each other in a cycle"
    return Diagnostic(code, message, where=_where(trace, int(trace.item[event])), facts=tuple(facts))


def _blocked(flat: Flat, head: BlockedHead) -> str:
    counter = flat.system.counter_name(head.counter)
    if flat.system.event_tag[head.event] < 0:
        who = flat.system.event_name(head.event)
        return f"{who} are complete when {counter} >= {head.threshold}, which stays at {head.value}"
    trace, worker, event = flat.waiter(head.event, head.counter)
    who, what = place(trace, worker, int(trace.item[event]), int(trace.warp_of[event]))
    more = "; nothing adds to it any more"
    if head.missing:
        agents = ", ".join(flat.system.agent_name(agent) for agent, _ in head.missing[:3])
        rest = f" and {len(head.missing) - 3} others" if len(head.missing) > 3 else ""
        more = f"; {sum(n for _, n in head.missing)} more would come from {agents}{rest}, stuck as well"
    return f"{who}, {what}: waits for {counter} >= {head.threshold}, which stays at {head.value}{more}"


class _Racy:
    """Races of one kind of edges: the inter-CTA system is asked about all before the flat system is asked about any."""

    def __init__(self, result: Composition, edges: Edges, races: list[Race], in_time: Callable[[], None]) -> None:
        self.result, self.edges, self.races = result, edges, races
        self.confirmer = Confirmer(result, edges, in_time)

    @cached_property
    def tried(self) -> list[Tried]:
        result = self.result
        nodes = sum(g.count * g.nodes for g in result.groups)
        races = _varied(result, self.races)[: None if nodes <= SMALL else TRIED]
        return [(race, _node(result, race.first), _node(result, race.second)) for race in races]

    def quickly(self) -> Finding | None:
        return self._first(self.confirmer.quickly)

    def flat(self) -> Finding | None:
        return self._first(self.confirmer.race)

    def doubt(self) -> Finding:
        race, result = self.races[0], self.result
        first, second = _node(result, race.first), _node(result, race.second)
        facts = [_access(*first, None, race.first_kind), _access(*second, None, race.second_kind)]
        return Finding(_race_diagnostic(result, race, first, second, self.edges, facts), None)

    def _first(self, confirms: Callable[[Place, Place], ConfirmedRace | None]) -> Finding | None:
        result = self.result
        for race, a, b in self.tried:
            if confirmed := confirms(a, b):
                clash = confirmed.clash
                facts = [
                    _access(*one.place, one.warp, kind)
                    for one, kind in zip((clash.first, clash.second), clash.kinds, strict=True)
                ]
                cause = missing_barrier(result, clash)
                return Finding(_race_diagnostic(result, race, a, b, self.edges, facts), confirmed.evidence, cause)
        return None


def _access(trace: Trace, worker: int, item: int, warp: int | None, kind: int) -> Fact:
    who, what = place(trace, worker, item, warp)
    return shown(f"{who} {'reads' if kind == READ else 'writes'}: {what}")


def _varied(result: Composition, races: list[Race]) -> list[Race]:
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


def _race_diagnostic(
    result: Composition, race: Race, a: Place, b: Place, edges: Edges, accesses: list[Fact]
) -> Diagnostic:
    both = race.first_kind != READ and race.second_kind != READ
    facts = [*accesses]
    name = _buffer(result, race.buffer, race.lo)
    if edges == "fence":
        facts.append(because("they follow each other in time, but no release and acquire makes the write visible"))
    else:
        facts.append(because("no chain of signals, waits and barriers orders the two"))
    message = f"two accesses to {name} are not ordered (bytes {race.lo:,}..{race.hi - 1:,})"
    return Diagnostic("AMK301" if both else "AMK302", message, where=_where(b[0], b[2]), facts=tuple(facts))


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


def _wrong_content(
    result: Composition,
    confirms: Callable[[Composition, Fault, Place | None, Place | None], Evidence | None],
    in_time: Callable[[], None],
) -> Finding | None:
    """The first fault that is confirmed."""
    for fault in result.dataflow.faults[:TRIED] if result.dataflow is not None else ():
        in_time()
        reader = _node(result, fault.event) if fault.event >= 0 else None
        writer = _node(result, fault.writer) if fault.writer is not None and fault.writer >= 0 else None
        if evidence := confirms(result, fault, reader, writer):
            return Finding(_fault_diagnostic(result, fault), evidence)
    return None


def _fault_diagnostic(result: Composition, fault: Fault) -> Diagnostic:
    name = _buffer(result, fault.buffer, fault.lo)
    expected = family_name(fault.expected[0])
    if fault.event < 0:
        code = "AMK101" if fault.kind == "uninitialised" else "AMK104"
        message = f"bytes {fault.lo:,}..{fault.hi - 1:,} of {name} end without {expected}"
        where = json_pointer(("buffers", fault.buffer)) if fault.buffer < len(result.schedule.buffers) else "/buffers"
        return Diagnostic(code, message, where=Where(path=where))
    trace, worker, item = _node(result, fault.event)
    who, what = place(trace, worker, item, None)
    facts = [shown(f"{who} reads: {what}"), because(f"expected {expected}")]
    if fault.found is not None:
        shifted = " at another offset" if fault.found[0] == fault.expected[0] else ""
        facts.append(because(f"found {family_name(fault.found[0])}{shifted}"))
    message = f"bytes {fault.lo:,}..{fault.hi - 1:,} of {name} hold something else than the reader needs"
    if fault.kind == "uninitialised":
        message = f"bytes {fault.lo:,}..{fault.hi - 1:,} of {name} are read and were never written"
    return Diagnostic(CODES[fault.kind], message, Severity.ERROR, _where(trace, item), tuple(facts))
