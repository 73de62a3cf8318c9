"""What a file with barriers by phase, flags and proxies says, and what the evidence for it claims, read for its check.

`met` and `sent` say how many phases were over or stores done when a wait was met, and before a signal, in some run;
`before` which events come before which. Nothing is taken for granted: numbers that do not fit the file are refused.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any, Final

from amk.systems.rule_numbers import (
    ADD,
    COMPLETE,
    EXPECT,
    FENCE,
    NEXT_PHASE,
    ONLY_EXPECT,
    PARITY,
    STORE,
)

TX_COUNTS: Final = 1 << 20
"""The pending bytes of an mbarrier are fewer."""
Json = dict[str, Any]
Pair = tuple[int, int]


class Refused(Exception):
    """The evidence leaves something open."""


def need(holds: bool, reason: str) -> None:
    if not holds:
        raise Refused(reason)


class Reading:
    """The file's rows and the evidence's numbers, and what is derived of them."""

    def __init__(self, block: Json, orders: Json, claims: Any) -> None:
        need(isinstance(claims, dict), "rules: malformed")
        self.block = block
        waits, signals = len(block["wait_counter"]), len(block["signal_counter"])
        self.counters, self.events = len(block["counter_init"]), block["agent_first"][-1]
        self.wait_rule = orders.get("wait_rule") or [0] * waits
        self.signal_rule = orders.get("signal_rule") or [0] * signals
        self.phase = orders.get("phase") or [0] * self.counters
        self.proxy = orders.get("proxy") or [0] * self.events
        parities = zip(self.wait_rule, block["wait_threshold"], strict=True)
        need(all(parity in (0, 1) for rule, parity in parities if rule == PARITY), "a parity is neither 0 nor 1")
        touched = zip(self.proxy, pairwise(block["access_first"]), strict=True)
        need(all(a == b for proxy, (a, b) in touched if proxy == FENCE), "a proxy fence touches memory")
        self.wait_counts, self.sent = numbers(claims.get("met"), waits), numbers(claims.get("sent"), signals)
        firsts = block["agent_first"]
        self.agent_of = [w for w in range(len(firsts) - 1) for _ in range(firsts[w], firsts[w + 1])]
        self.wait_event, self.signal_event = owners(block["wait_first"]), owners(block["signal_first"])
        self.rows_of: dict[int, list[int]] = defaultdict(list)
        for row, counter in enumerate(block["signal_counter"]):
            self.rows_of[counter].append(row)
        self.before: dict[Pair, list[Pair]] = defaultdict(list)
        self.highs: dict[int, set[int]] = defaultdict(set)
        self.totals = {c: self.phases(c) for c in range(self.counters) if self.phase[c]}
        self.amount = [self.weight(row) for row in range(signals)]

    def stored(self, counter: int) -> bool:
        """It is a flag."""
        return any(self.signal_rule[row] == STORE for row in self.rows_of[counter])

    def weight(self, row: int) -> int:
        """What a signal adds to the count."""
        one = self.signal_rule[row] in (STORE, EXPECT, ONLY_EXPECT)
        return 1 if one else int(self.block["signal_amount"][row])

    def whole(self, counter: int) -> bool:
        """Every signal of the barrier is said to be of one phase, and must be."""
        rows, amount = self.rows_of[counter], self.block["signal_amount"]
        several = any(self.signal_rule[r] != ADD or amount[r] > 1 for r in rows)
        next_phase = (self.wait_rule[k] == NEXT_PHASE for k, c in enumerate(self.block["wait_counter"]) if c == counter)
        return several or any(next_phase)

    def phases(self, counter: int) -> list[int]:
        """The count at the end of each phase that can end, from 0 on."""
        size, rows, amount = self.phase[counter], self.rows_of[counter], self.block["signal_amount"]
        if not self.whole(counter):
            return [size * n for n in range(len(rows) // size + 1)]
        by: dict[int, list[int]] = defaultdict(list)
        for row in rows:
            by[self.sent[row]].append(row)
        totals = [0]
        for number in range(len(by)):
            need(number in by, "the phases of a barrier are not numbered in turn")
            mine = by[number]
            arrivals = sum({ADD: amount[r], EXPECT: 1}.get(self.signal_rule[r], 0) for r in mine)
            expected = sum(amount[r] for r in mine if self.signal_rule[r] in (EXPECT, ONLY_EXPECT))
            come = sum(amount[r] for r in mine if self.signal_rule[r] == COMPLETE)
            calls = sum(self.signal_rule[r] == ONLY_EXPECT for r in mine)
            need(max(expected, come) < TX_COUNTS, "a phase is of more bytes than an mbarrier counts")
            if number == len(by) - 1 and (arrivals < size or (arrivals == size and come < expected)):
                break
            need(arrivals == size and expected == come, "a phase is not made of what it counts")
            totals.append(totals[-1] + size + expected + calls)
        return totals

    def is_over(self, event: int, target: int, agent: int) -> bool:
        """The event is said to come before the target, which is of the agent, or is of it and before."""
        mine = self.agent_of[event]
        if mine == agent:
            return event < target
        return any(event <= x and y <= target for x, y in self.before[mine, agent])


def numbers(column: Any, length: int) -> list[int]:
    good = isinstance(column, list) and len(column) == length and all(type(n) is int and n >= 0 for n in column)
    need(good, "rules: malformed")
    return list(column)


def owners(first: list[int]) -> list[int]:
    """The event of each row."""
    return [event for event in range(len(first) - 1) for _ in range(first[event], first[event + 1])]
