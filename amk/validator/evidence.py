"""From a finding of the composed check to evidence on the flat system.

A race or fault names composite nodes. Here the flat system of the same schedule is built at a few positions, the pair
is withheld from a greedy run, and if both are enabled where it stops the race is real: that is the definition,
no clocks involved. What is confirmed comes with a witness that `replay` checks; what is not confirmed
anywhere stays UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from amk.report.diagnostic import Diagnostic, Fact, Severity, Where, because, shown
from amk.report.schema import json_pointer
from amk.validator.atoms import blocks, touches_of
from amk.validator.compose import Composition
from amk.validator.dataflow import Fault, find_faults
from amk.validator.expand import Flat, expand
from amk.validator.footprint import family_name
from amk.validator.liveness import BlockedHead, Run, diagnose, greedy
from amk.validator.local_order import NotComposable
from amk.validator.quotient import Edges
from amk.validator.races import Race, RaceReport
from amk.validator.system import READ, WRITE, System
from amk.validator.trace import TooLarge, Trace
from amk.validator.witness import Witness, deadlock_witness, fault_witness, race_witness

FORMAT: Final = "amk.evidence/1"
TRIED: Final = 4
"""Findings that are looked at on the flat system; the first confirmed one decides."""
SMALL: Final = 100_000
"""Nodes up to which every finding is looked at: a composite step may race where no single warp of it does."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """A witness and the system it is about."""

    system: System
    witness: Witness
    edges: Edges
    pos: int

    def to_json(self, schedule: str) -> dict[str, Any]:
        """schedule: hash of the schedule that the system was made from."""
        return {
            "format": FORMAT,
            "schedule": schedule,
            "edges": self.edges,
            "pos": self.pos,
            "system": self.system.to_json(),
            "witness": self.witness.to_json(),
        }


@dataclass(frozen=True, eq=False)
class Finding:
    """A diagnostic; evidence None means that no flat run confirmed it."""

    diagnostic: Diagnostic
    evidence: Evidence | None


def explain(result: Composition) -> Finding | None:
    """The first thing wrong with a composition, with evidence where there is some; None if nothing is."""
    if result.never:
        return Finding(result.never[0], None)
    if not result.live:
        return _deadlock(result)
    reports: tuple[tuple[Edges, RaceReport | None], ...] = (
        ("word", result.races), ("wait", result.overwritten), ("fence", result.unseen)
    )  # fmt: skip
    doubts = []
    for edges, report in reports:
        if report is not None and report.racy:
            finding = _race(result, edges, list(report.races))
            if finding.evidence is not None:
                return finding
            doubts.append(finding)
    if doubts:
        return doubts[0]
    if result.dataflow is not None and not result.dataflow.correct:
        return _fault(result, list(result.dataflow.faults))
    return None


def positions(result: Composition, workers: set[int]) -> list[int]:
    """First positions of launches worth trying: late, where every split works, and where a worker's split appends."""
    kv, tokens = result.schedule.kv, result.tokens
    if result.at is not None:
        return [result.at]
    split = result.schedule.tables["attn.split"]
    found = [kv.context - tokens, *(split[w] * kv.block for w in sorted(workers)), 0, kv.block - 1]
    return [p for p in dict.fromkeys(found) if 0 <= p <= kv.context - tokens] or [0]


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


def _flat_events(flat: Flat, trace: Trace, worker: int, item: int) -> list[int]:
    number = next(i for i, t in enumerate(flat.traces) if t.program.first == trace.program.first)
    members = trace.event_of[item]
    return [int(flat.event_id[number][worker - trace.program.first, e]) for e in members[members >= 0]]


def _deadlock(result: Composition) -> Finding:
    pos = positions(result, set())[0]
    flat = expand(result.schedule, pos, result.tokens, evaluations=result.memo.evaluations)
    run = greedy(flat.system)
    found = diagnose(run)
    if found is None:
        message = "the workers' programs may block each other; one flat run finished"
        return Finding(Diagnostic("AMK201", message, where=Where(path="/programs")), None)
    code = "AMK202" if found.cause == "too few producers" else "AMK201"
    head = next((h for h in (*found.knot, *found.heads) if flat.system.event_tag[h.event] >= 0), found.knot[0])
    facts = [shown(_blocked(flat, h)) for h in found.knot[:6]]
    stuck = sum(int(flat.system.event_tag[head.event]) >= 0 for head in found.heads)
    launch = result.schedule.launch
    facts.append(because(f"{stuck} of {launch.workers * launch.warps} warps never finish"))
    trace, _, event = flat.owner(head.event)
    message = "some waits can never be met" if code == "AMK202" else "agents wait for each other in a cycle"
    diagnostic = Diagnostic(code, message, where=_where(trace, int(trace.item[event])), facts=tuple(facts))
    return Finding(diagnostic, Evidence(flat.system, deadlock_witness(run, found), "block", pos))


def _blocked(flat: Flat, head: BlockedHead) -> str:
    counter = flat.system.counter_name(head.counter)
    if flat.system.event_tag[head.event] < 0:
        who = flat.system.event_name(head.event)
        return f"{who} are complete when {counter} >= {head.threshold}, which stays at {head.value}"
    trace, worker, event = flat.owner(head.event)
    who, what = place(trace, worker, int(trace.item[event]), int(trace.warp_of[event]))
    more = "; nothing adds to it any more"
    if head.missing:
        agents = ", ".join(flat.system.agent_name(agent) for agent, _ in head.missing[:3])
        rest = f" and {len(head.missing) - 3} others" if len(head.missing) > 3 else ""
        more = f"; {sum(n for _, n in head.missing)} more would come from {agents}{rest}, stuck as well"
    return f"{who}, {what}: waits for {counter} >= {head.threshold}, which stays at {head.value}{more}"


def _race(result: Composition, edges: Edges, races: list[Race]) -> Finding:
    nodes = sum(g.count * g.nodes for g in result.groups)
    for race in _varied(result, races)[: None if nodes <= SMALL else TRIED]:
        a, b = _node(result, race.first), _node(result, race.second)
        if evidence := _confirmed_race(result, edges, a, b):
            return Finding(_race_diagnostic(result, race, a, b, edges, _pair(result, evidence)), evidence)
    first, second = _node(result, races[0].first), _node(result, races[0].second)
    facts = [_access(*first, None, races[0].first_kind), _access(*second, None, races[0].second_kind)]
    return Finding(_race_diagnostic(result, races[0], first, second, edges, facts), None)


def _access(trace: Trace, worker: int, item: int, warp: int | None, kind: int) -> Fact:
    who, what = place(trace, worker, item, warp)
    return shown(f"{who} {'reads' if kind == READ else 'writes'}: {what}")


def _pair(result: Composition, evidence: Evidence) -> list[Fact]:
    """The two accesses of the witness, with their warps."""
    system, witness, facts = evidence.system, evidence.witness, []
    assert witness.byte is not None, "a race has a byte"
    for event in witness.events:
        worker, warp = divmod(int(system.agent_of[event]), result.schedule.launch.warps)
        group = next(g for g in result.groups if g.first <= worker < g.first + g.count)
        trace = group.order.trace
        span = slice(*system.access_first[event : event + 2].tolist())
        here = (system.access_buffer[span] == witness.buffer) & (system.access_lo[span] <= witness.byte)
        here &= system.access_hi[span] > witness.byte
        kind = int(system.access_kind[span][here].max())
        facts.append(_access(trace, worker, int(trace.item[int(system.event_tag[event])]), warp, kind))
    return facts


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


Place = tuple[Trace, int, int]


def _confirmed_race(result: Composition, edges: Edges, a: Place, b: Place) -> Evidence | None:
    workers = {a[1], b[1]}
    for pos in positions(result, workers):
        try:
            flat = expand(result.schedule, pos, result.tokens, edges, workers, None, True, result.memo.evaluations)
        except (TooLarge, NotComposable):
            return None
        for race in _conflicts(flat.system, _flat_events(flat, *a), _flat_events(flat, *b)):
            if _both_enabled(flat.system, race) and not (edges == "fence" and _over_in_time(result, flat, pos, race)):
                return Evidence(flat.system, race_witness(flat.system, race), edges, pos)
    return None


def _over_in_time(result: Composition, flat: Flat, pos: int, race: Race) -> bool:
    """Whether one of the two is a read that is over before the other starts: no fence has to make it visible.

    By definition: the write does not run as long as the read is withheld. What confirmed the pair has fewer edges than
    `word`, so the question is put to a system of its own.
    """
    if READ not in (race.first_kind, race.second_kind):
        return False
    read, write = (race.first, race.second) if race.first_kind == READ else (race.second, race.first)
    timed = expand(result.schedule, pos, result.tokens, "word", set(), None, True, result.memo.evaluations)
    read, write = (_same(flat, timed, event) for event in (read, write))
    run = greedy(timed.system, (read,))
    return int(run.cut[timed.system.agent_of[write]]) <= int(timed.system.index_of[write])


def _same(flat: Flat, other: Flat, event: int) -> int:
    """The event of the other flat system that stands for the same step."""
    trace, worker, local = flat.owner(event)
    number = next(i for i, t in enumerate(other.traces) if t.program.first == trace.program.first)
    return int(other.event_id[number][worker - trace.program.first, local])


def _conflicts(system: System, first: list[int], second: list[int]) -> Iterator[Race]:
    """Pairs of events of different agents that touch a common byte, one writing."""
    for x in first:
        for y in second:
            if system.agent_of[x] != system.agent_of[y] and (race := _conflict(system, min(x, y), max(x, y))):
                yield race


def _conflict(system: System, x: int, y: int) -> Race | None:
    one = range(int(system.access_first[x]), int(system.access_first[x + 1]))
    two = slice(int(system.access_first[y]), int(system.access_first[y + 1]))
    for i in one:
        lo = np.maximum(system.access_lo[two], system.access_lo[i])
        hi = np.minimum(system.access_hi[two], system.access_hi[i])
        same = (system.access_buffer[two] == system.access_buffer[i]) & (lo < hi)
        same &= (system.access_kind[two] == WRITE) | (system.access_kind[i] == WRITE)
        if same.any():
            j = int(np.flatnonzero(same)[0])
            kinds = int(system.access_kind[i]), int(system.access_kind[two][j])
            return Race(x, y, int(system.access_buffer[i]), int(lo[j]), int(hi[j]), *kinds)
    return None


def _both_enabled(system: System, race: Race) -> bool:
    run = greedy(system, (race.first, race.second))
    return all(_enabled(system, run, event) for event in (race.first, race.second))


def _enabled(system: System, run: Run, event: int) -> bool:
    span = slice(int(system.wait_first[event]), int(system.wait_first[event + 1]))
    met = bool((run.values[system.wait_counter[span]] >= system.wait_threshold[span]).all())
    return met and int(run.cut[system.agent_of[event]]) == int(system.index_of[event])


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


def _fault(result: Composition, faults: list[Fault]) -> Finding:
    for fault in faults[:TRIED]:
        if evidence := _confirmed_fault(result, fault):
            return Finding(_fault_diagnostic(result, fault), evidence)
    return Finding(_fault_diagnostic(result, faults[0]), None)


def _confirmed_fault(result: Composition, fault: Fault) -> Evidence | None:
    reader = _node(result, fault.event) if fault.event >= 0 else None
    writer = _node(result, fault.writer) if fault.writer is not None and fault.writer >= 0 else None
    workers = {node[1] for node in (reader, writer) if node}
    touching = workers if reader and fault.kind != "uninitialised" else None
    for pos in positions(result, workers):
        try:
            flat = expand(result.schedule, pos, result.tokens, "word", touching, evaluations=result.memo.evaluations)
        except (TooLarge, NotComposable):
            return None
        run = greedy(flat.system)
        wanted = set(_flat_events(flat, *reader)) if reader else {-1}
        for found in find_faults(blocks(touches_of(run)), None).faults:
            if found.event in wanted and found.kind == fault.kind:
                return Evidence(flat.system, fault_witness(run, found), "word", pos)
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
