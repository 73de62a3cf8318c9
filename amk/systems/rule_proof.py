"""The check of evidence for systems with barriers by phase, flags and proxies; shares nothing with the judge.

Evidence says, per wait, how many phases were over or stores done when it was met in some run (`met`). It says the same
before each signal (`sent`), and which events come before which (`before`). From the file and these numbers alone
`extended` makes a system of counters. It refuses if the numbers leave a condition of `phases.py` open:

* A parity is that of the phases said. A flag holds the value after the stores said.
* Phases are made of the arrivals said, as many as they count, and of the bytes that they expect.
* While a wait or an arrival in count ranges is pending, the count is between its ends. Signals that come before keep it
  above the lower end. The event comes before a watcher of the upper end.
* A call that only expects bytes comes before an arrival of its phase.
* An ordinary write and an asynchronous access of common bytes are in order: the access first, or a fence between.

What comes before what is itself proved. The system gets a byte per event. The owner of the event writes it. Everyone
who is said to come behind reads it, with the value that was written. The flat checker accepts this only if the write is
before the read in every run. So accepting the extended system proves the file SAFE.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from amk.systems.rule_numbers import (
    ADD,
    ASYNC,
    EQUAL,
    EXPECT,
    FENCE,
    GENERIC,
    NEXT_PHASE,
    ONLY_EXPECT,
    PARITY,
)
from amk.systems.rule_reading import Json, Pair, Reading, need, owners

MOST: Final = 1 << 20
"""Pairs of events in evidence, and accesses that are compared."""
WITHIN_CTA, WITHIN_CLUSTER = 0, 1
"""Of `orders.scope`."""
BARRIERS: Final = 16
"""That a CTA has, by number."""


CountRange = tuple[int, int, int, int | None, bool]
"""event, counter, low, high, whether it is of a wait"""


@dataclass
class Skeleton:
    """The system of counters with watchers, and what must be in order in it."""

    reading: Reading
    columns: Json
    count_ranges: list[CountRange]
    watchers: dict[Pair, int]


def skeleton(block: Json, orders: Json, claims: Any) -> Skeleton:
    """From the file and what is said of its waits and signals."""
    reading = Reading(block, orders, claims)
    _few_named(reading, orders)
    thresholds, count_ranges = _waits(reading)
    count_ranges += _signals(reading)
    watchers = _watchers(reading, count_ranges)
    init = [0 if reading.stored(c) else n for c, n in enumerate(block["counter_init"])]
    columns = {**block, "wait_threshold": thresholds, "signal_amount": reading.amount, "counter_init": init}
    return Skeleton(reading, _with_watchers(columns, watchers), count_ranges, watchers)


def extended(block: Json, orders: Json, claims: Any) -> Json:
    """The system of counters that is SAFE only if the file is."""
    weak = 0 in (orders.get("wait") or ()) or 0 in (orders.get("signal") or ())
    need(not weak, "barriers by phase, flags and proxies with relaxed operations have no certificate")
    found = skeleton(block, orders, claims)
    in_turns(found.reading, orders.get("scope") or [0] * found.reading.counters)
    pairs = _pairs(found.reading, claims)
    _check_ranges(found.reading, found.count_ranges, found.watchers)
    _expected_in_time(found.reading)
    _fenced(found.reading)
    return with_order(found.columns, pairs)


def in_turns(reading: Reading, scope: list[int]) -> None:
    """At the barrier of a cluster an agent arrives, waits, arrives, and so on."""
    barriers = set[int]()
    waited: dict[Pair, list[int]] = defaultdict(list)
    for row, counter in enumerate(reading.block["wait_counter"]):
        if reading.wait_rule[row] == NEXT_PHASE and scope[counter] == WITHIN_CLUSTER:
            barriers.add(counter)
            waited[reading.agent_of[reading.wait_event[row]], counter].append(reading.wait_event[row])
    for counter in barriers:
        arrived: dict[int, list[int]] = defaultdict(list)
        for row in reading.rows_of[counter]:
            arrived[reading.agent_of[reading.signal_event[row]]].append(reading.signal_event[row])
        for agent, events in arrived.items():
            waits = waited[agent, counter]
            between = [sum(low < wait <= high for wait in waits) for low, high in pairwise(events)]
            behind = sum(wait > events[-1] for wait in waits)
            need(set(between) <= {1} and behind <= 1, "an agent arrives again at the barrier of a cluster")


def _few_named(reading: Reading, orders: Json) -> None:
    """In no CTA are there more barriers at which agents meet than it has."""
    scope = orders.get("scope") or [WITHIN_CLUSTER] * reading.counters
    agents = len(reading.block["agent_first"]) - 1
    columns = [orders.get(name) or [0] * agents for name in ("gpu", "cluster", "cta")]
    named: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for row, counter in enumerate(reading.block["wait_counter"]):
        if reading.wait_rule[row] == NEXT_PHASE and scope[counter] == WITHIN_CTA:
            agent = reading.agent_of[reading.wait_event[row]]
            named[tuple(column[agent] for column in columns)].add(counter)
    need(all(len(those) <= BARRIERS for those in named.values()), "a CTA has more named barriers than there are")


def _values(reading: Reading, counter: int) -> list[int]:
    """What the flag holds after each number of stores."""
    rows = sorted(reading.rows_of[counter], key=lambda row: reading.sent[row])
    need([reading.sent[row] for row in rows] == list(range(len(rows))), "the stores of a flag are not in turn")
    return [reading.block["counter_init"][counter], *(reading.block["signal_amount"][row] - 1 for row in rows)]


def _waits(reading: Reading) -> tuple[list[int], list[CountRange]]:
    block, count_ranges = reading.block, []
    thresholds = list(block["wait_threshold"])
    for row, rule in enumerate(reading.wait_rule):
        counter, event, met = block["wait_counter"][row], reading.wait_event[row], reading.wait_counts[row]
        if rule == PARITY:
            totals = reading.totals[counter]
            need(met < len(totals) and met % 2 != thresholds[row], "a wait is met by a phase of another parity")
            thresholds[row] = totals[met]
            high = totals[met + 1] if met + 1 < len(totals) else None
            count_ranges.append((event, counter, totals[max(0, met - 1)], high, True))
        elif rule == EQUAL:
            values = _values(reading, counter)
            wanted = block["wait_threshold"][row]
            need(met < len(values) and values[met] == wanted, "a wait is met by another value")
            low = next((k + 1 for k in range(met - 1, -1, -1) if values[k] == wanted), 0)
            high = next((k for k in range(met + 1, len(values)) if values[k] != wanted), None)
            thresholds[row] = met
            count_ranges.append((event, counter, low, high, True))
        elif rule == NEXT_PHASE:
            thresholds[row] = _next(reading, event, counter)
    return thresholds, count_ranges


def _next(reading: Reading, event: int, counter: int) -> int:
    """The count at the end of the phase in which the agent arrived last before the event."""
    agent = reading.agent_of[event]
    rows = [r for r in reading.rows_of[counter] if reading.signal_event[r] < event]
    mine = [r for r in rows if reading.agent_of[reading.signal_event[r]] == agent]
    need(bool(mine), "an agent waits for the others where it has not arrived")
    ended = reading.sent[max(mine)] + 1
    need(ended < len(reading.totals[counter]), "a phase that is waited for does not end")
    return reading.totals[counter][ended]


def _signals(reading: Reading) -> list[CountRange]:
    count_ranges: list[CountRange] = []
    for counter, rows in reading.rows_of.items():
        if reading.phase[counter] and not reading.whole(counter):
            continue
        stored = reading.stored(counter)
        if not reading.phase[counter] and not stored:
            continue
        if stored:
            _values(reading, counter)
        for row in rows:
            sent, event = reading.sent[row], reading.signal_event[row]
            if stored:
                count_ranges.append((event, counter, sent, sent + 1, False))
                continue
            totals = reading.totals[counter]
            need(sent < len(totals), "an arrival is of a phase that does not begin")
            count_ranges.append(
                (event, counter, totals[sent], totals[sent + 1] if sent + 1 < len(totals) else None, False)
            )
    return count_ranges


def _watchers(reading: Reading, count_ranges: list[CountRange]) -> dict[Pair, int]:
    """Event of each (counter, upper end) that the count can reach, in turn."""
    wanted: set[Pair] = set()
    for _, counter, _, high, _ in count_ranges:
        most = sum(reading.amount[row] for row in reading.rows_of[counter])
        if not reading.stored(counter):
            most += reading.block["counter_init"][counter]
        if high is not None and high <= most:
            wanted.add((counter, high))
    # those of one counter are one agent
    agents = len(reading.block["agent_first"]) - 1
    of = {counter: agents + n for n, counter in enumerate(dict.fromkeys(counter for counter, _ in sorted(wanted)))}
    reading.agent_of += [of[counter] for counter, _ in sorted(wanted)]
    return {pair: reading.events + n for n, pair in enumerate(sorted(wanted))}


def _pairs(reading: Reading, claims: Json) -> list[Pair]:
    """What comes before what, by agents."""
    raw = claims.get("before")
    need(isinstance(raw, list) and len(raw) <= MOST, "rules: malformed")
    assert isinstance(raw, list)
    pairs = []
    for pair in raw:
        good = isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair)
        need(good and 0 <= pair[0] < reading.events and 0 <= pair[1] < len(reading.agent_of), "rules: malformed")
        x, y = pair
        reading.before[reading.agent_of[x], reading.agent_of[y]].append((x, y))
        pairs.append((x, y))
    return pairs


def _check_ranges(reading: Reading, count_ranges: list[CountRange], watchers: dict[Pair, int]) -> None:
    for event, counter, low, high, waits in count_ranges:
        agent = reading.agent_of[event]
        # a wait is no evidence for itself: what comes before it comes before the event before it, or is that
        target = event - 1 if waits else event
        count = 0 if reading.stored(counter) else reading.block["counter_init"][counter]
        for row in reading.rows_of[counter]:
            other = reading.signal_event[row]
            own = reading.agent_of[other] == agent and other < event
            begins = waits and event == reading.block["agent_first"][agent]
            if own or (not begins and reading.is_over(other, target, agent)):
                count += reading.amount[row]
        need(count >= low, "a count may be below what a wait or an arrival means")
        watcher = watchers.get((counter, high)) if high is not None else None
        if watcher is not None:
            need(reading.is_over(event, watcher, reading.agent_of[watcher]), "a count may be above what a wait means")


def _expected_in_time(reading: Reading) -> None:
    for row, rule in enumerate(reading.signal_rule):
        if rule != ONLY_EXPECT:
            continue
        counter, event = reading.block["signal_counter"][row], reading.signal_event[row]
        alike = (r for r in reading.rows_of[counter] if reading.signal_rule[r] in (ADD, EXPECT))
        later = (reading.signal_event[r] for r in alike if reading.sent[r] == reading.sent[row])
        need(any(reading.is_over(event, e, reading.agent_of[e]) for e in later), "bytes may be expected too late")


def _fenced(reading: Reading) -> None:
    """Ordinary writes and asynchronous accesses of common bytes are in order, by a fence."""
    block = reading.block
    touch = owners(block["access_first"])
    columns = zip(touch, *(block[f"access_{n}"] for n in ("buffer", "lo", "hi", "kind")), strict=True)
    rows = [row for row in columns if reading.proxy[row[0]] != FENCE]
    writes: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for event, buffer, lo, hi, kind in rows:
        if kind and reading.proxy[event] == GENERIC:
            writes[buffer].append((event, lo, hi))
    fences: dict[int, list[int]] = defaultdict(list)
    for event, proxy in enumerate(reading.proxy):
        if proxy == FENCE:
            fences[reading.agent_of[event]].append(event)
    compared = 0
    for event, buffer, lo, hi, _ in rows:
        if reading.proxy[event] != ASYNC:
            continue
        compared += len(writes[buffer])
        need(compared <= MOST, "too many pairs of writes and asynchronous accesses")
        for other in {w for w, first, end in writes[buffer] if first < hi and lo < end}:
            need(_in_order(reading, other, event, fences), "a write and an asynchronous access lack a proxy fence")


def _in_order(reading: Reading, write: int, access: int, fences: dict[int, list[int]]) -> bool:
    agent = reading.agent_of[access]
    if reading.is_over(access, write, reading.agent_of[write]):
        return True
    for mine, events in fences.items():
        for fence in events:
            if reading.is_over(write, fence, mine) and reading.is_over(fence, access, agent):
                return True
    return False


def _with_watchers(columns: Json, watchers: dict[Pair, int]) -> Json:
    first, waits = list(columns["agent_first"]), list(columns["wait_first"])
    last = None
    for counter, _ in watchers:
        if counter == last:
            first[-1] += 1
        else:
            first.append(first[-1] + 1)
        last = counter
        waits.append(waits[-1] + 1)
    more = len(watchers)
    extension = {
        "agent_first": first,
        "wait_first": waits,
        "wait_counter": columns["wait_counter"] + [counter for counter, _ in watchers],
        "wait_threshold": columns["wait_threshold"] + [high for _, high in watchers],
    }
    for table in ("signal", "access"):
        extension[f"{table}_first"] = columns[f"{table}_first"] + [columns[f"{table}_first"][-1]] * more
    return {**columns, **extension}


def with_order(columns: Json, pairs: list[Pair]) -> Json:
    """The system in which every event of a pair's beginning writes its byte and every one of its end reads that."""
    buffer = 1 + max(
        (max(columns[f"{table}_buffer"], default=-1) for table in ("access", "initial", "final")), default=-1
    )
    value = 1 + max(
        (max(columns[f"{table}_value"], default=-1) for table in ("access", "initial", "final")), default=-1
    )
    more: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for x, y in pairs:
        more[x].add((x, 1))
        more[y].add((x, 0))
    names = ("buffer", "lo", "hi", "kind", "value", "delta")
    rows = list(zip(*(columns[f"access_{name}"] for name in names), strict=True))
    first, accesses = [0], []
    for event, (start, end) in enumerate(pairwise(columns["access_first"])):
        accesses += rows[start:end]
        accesses += [(buffer, byte, byte + 1, kind, value, 0) for byte, kind in sorted(more.get(event, ()))]
        first.append(len(accesses))
    split = {f"access_{name}": [row[place] for row in accesses] for place, name in enumerate(names)}
    return {**columns, "access_first": first, **split}
