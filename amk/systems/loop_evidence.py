"""Claims for the checker of systems with loops: guessed from the clocks of a few periods, and weeded out.

Nothing here is believed: what it makes proves something only if `loop_proof` accepts it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from math import inf
from typing import Any

import numpy as np

from amk.systems.document import parse_system
from amk.systems.flat_judge import System, greedy, must_clocks
from amk.systems.loop_proof.knowledge import Key, Knowledge, OverCount, Row
from amk.systems.loop_proof.numbers import Refused, need
from amk.systems.loop_proof.order import Order
from amk.systems.loop_proof.periods import Cut, Line, Spelled, cut, spelled
from amk.systems.loop_proof.phases import Plain, plain, ruled
from amk.systems.loop_proof.program import Program
from amk.systems.machine import ran

Json = dict[str, Any]


def attempt(program: Program, laps: int, peeled: int, rest: int, periods: int, weed: bool = True) -> Json:
    """Evidence for one rest, from so many periods on; `Refused` where there is nothing to claim.

    weed: leave out claims that do not follow from the others.
    """
    program_cut = cut(program, laps, peeled, rest)
    lines = _lines(program_cut, periods) if ruled(program_cut) else {}
    found = plain(program_cut, periods, lines)
    system = _system(spelled(found.cut, periods))
    claims, loose = _guess(found.cut, system, periods), list[int]()
    claims = _settled(found, claims, periods) if weed else claims
    order = Order(found, Knowledge(found.cut, claims, periods))
    if any(order.lag(last, issue) > 1 for issue, last in found.cut.late):
        loose = [last.agent for _, last in found.cut.late]
        strict = {key: {w: known for w, known in row.items() if w not in loose} for key, row in claims.items()}
        claims = _settled(found, strict, periods)
    return {
        "rest": rest, "peeled": peeled, "periods": periods,
        "lines": [[*key, *line] for key, line in lines.items()],
        "claims": [[*key, _row(row)] for key, row in claims.items() if row],
        "loose": loose,
        "runs": _runs(found.cut, system, periods),
    }  # fmt: skip


def _row(row: Row) -> list[list[int | None]]:
    return [[w, k.count, None if k.offset == -inf else int(k.offset)] for w, k in row.items()]


def _system(flat: Spelled) -> System:
    """Without what bytes mean: claims are about order alone."""
    return parse_system(json.dumps(flat.document()).encode(), "evidence").block


def _lines(program_cut: Cut, periods: int) -> dict[Key, Line]:
    """The phase of each wait and arrival in a run, by lines through the last periods."""
    some: dict[Key, dict[int, int]] = defaultdict(dict)
    ends: dict[Key, dict[int, int]] = defaultdict(dict)
    for number, into in ((periods, ends), (periods + 1, some)):
        out = spelled(program_cut, number)
        run, trouble = ran(parse_system(json.dumps(out.document()).encode(), "evidence"))
        need(trouble is None, f"in a run of {number} periods: {'' if trouble is None else trouble.kind}")
        for table, known in (("wait", run.wait_counts), ("signal", run.sent)):
            for row, event_number in enumerate(getattr(run.block, f"{table}_event").tolist()):
                event, q = out.index[event_number]
                if program_cut.counters[event.of][1]:
                    into[event.key][q] = known[row]
    found: dict[Key, Line] = {}
    for key, values in some.items():
        if key[1] == "before":
            found[key] = (values[0], 0)
        elif key[1] == "behind":
            slope = values[periods + 1] - ends[key][periods]
            found[key] = (ends[key][periods] - periods * slope, slope)
        else:
            slope = values[periods] - values[periods - 1]
            found[key] = (values[periods] - periods * slope, slope)
    return found


def _guess(program_cut: Cut, system: System, periods: int) -> dict[Key, Row]:
    """What each wait in the middle has behind it."""
    clocks = must_clocks(greedy(system))
    matrix, first, middle = clocks.matrix(), system.agent_first.tolist(), max(1, periods // 2)
    claims: dict[Key, Row] = {}
    weak = {event.of for event in program_cut.events() if event.does == "signal" and not event.strong}
    for event in program_cut.events():
        if event.does != "wait" or not event.strong or event.of in weak:
            continue
        w = event.agent
        ahead, length = program_cut.ahead(w), program_cut.length(w)
        base = {"before": 0, "lap": ahead, "behind": ahead + periods * length}[event.part] + event.place
        rows = [matrix[first[w] + base + (q * length if event.part == "lap" else 0)].tolist() for q in (0, middle)]
        at = {"before": 0, "lap": middle, "behind": periods}[event.part]
        row: Row = {}
        for v in range(len(program_cut.agents)):
            if v == w:
                continue
            moving = program_cut.length(v) > 0 and event.part != "before" and rows[1][v] > 0
            offset = rows[1][v] - program_cut.ahead(v) - at * program_cut.length(v) if moving else -inf
            if rows[0][v] or offset > -inf:
                counted = event.part != "behind" or not program_cut.length(v) or not length
                row[v] = OverCount(int(rows[0][v]) if counted else 0, offset)
        claims[event.key] = row
    return claims


def _settled(plain: Plain, claims: dict[Key, Row], periods: int) -> dict[Key, Row]:
    """Without claims that do not follow from the others."""
    waits = {event.key: event for event in plain.cut.events() if event.does == "wait"}
    while True:
        knowledge, kept, dropped = Knowledge(plain.cut, claims, periods), dict[Key, Row](), False
        for key, row in claims.items():
            kept[key] = {}
            for w, known in row.items():
                left = _proved(knowledge, waits[key], w, known)
                dropped |= left != known
                if left != OverCount():
                    kept[key][w] = left
        if not dropped:
            return claims
        claims = kept


def _proved(knowledge: Knowledge, wait: Any, w: int, claim: OverCount) -> OverCount:
    """The halves of a claim that follow."""
    counted = claim.count and knowledge.proved(wait, w, OverCount(claim.count))
    moving = claim.offset > -inf and knowledge.proved(wait, w, OverCount(0, claim.offset))
    return OverCount(claim.count if counted else 0, claim.offset if moving else -inf)


def _runs(program_cut: Cut, system: System, periods: int) -> Json:
    """The furthest cuts before a period, until one is a period behind the one before it."""
    length = np.array([program_cut.length(w) for w in range(len(program_cut.agents))])
    ahead = np.array([program_cut.ahead(w) for w in range(len(program_cut.agents))])
    held = _first_waits(program_cut)
    whole = greedy(system)
    need(whole.complete, "a run does not end")
    for m in range(1, periods):
        stops = [_stop(system, ahead + n * length, length, held) for n in (m - 1, m)]
        one, two = (greedy(system, stop) for stop in stops)
        if ((one.cut >= ahead) | (length == 0)).all() and (two.cut - one.cut == length).all():
            order = two.legs.tolist()
            head = one.legs[:, [0, 2]].tolist()
            return {"head": head, "period": _rest_of(order, one.cut), "tail": _rest_of(whole.legs.tolist(), two.cut)}
    raise Refused("no period leads from where the one before it ended")


def _first_waits(program_cut: Cut) -> dict[int, int]:
    """Where agents without a loop first wait for what grows with the number of periods."""
    held: dict[int, int] = {}
    for event in program_cut.events():
        if event.part == "behind" and not program_cut.length(event.agent) and event.does == "wait" and event.line[1]:
            held.setdefault(event.agent, event.place)
    return held


def _stop(system: System, upto: Any, length: Any, stops: dict[int, int]) -> list[int]:
    looped = np.flatnonzero((length > 0) & (upto < system.agent_size))
    first = system.agent_first
    return [*(int(first[w] + upto[w]) for w in looped), *(int(first[w]) + place for w, place in stops.items())]


def _rest_of(legs: list[list[int]], starts: Any) -> list[list[int]]:
    """A run without the first events of each agent that are done already."""
    left, found = starts.tolist(), []
    for agent, _, count in legs:
        skipped = min(left[agent], count)
        left[agent] -= skipped
        if count > skipped:
            found.append([agent, count - skipped])
    return found
