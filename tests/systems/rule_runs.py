"""What barriers by phase, flags and proxies mean, by definition: every interleaving of a small system as a file.

Written from `amk/systems/constructs.md` alone; shares nothing with `amk.systems` but the keys of the file. A state is
where every agent is, what counters and barriers hold, and what has happened before what. Wrong is: a state in which
nobody can go on and somebody has not ended; two conflicting accesses of which neither happened before the other; an
ordinary write before an asynchronous access without a proxy fence between; more arrivals than a phase counts; a read of
another value than it names.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

State = tuple[Any, ...]


class TooMany(Exception):
    """More states than were allowed."""


class Rules:
    def __init__(self, document: dict[str, Any], limit: int) -> None:
        block, orders = document["systems"]["block"], document["orders"]
        self.limit, self.states = limit, 0
        self.first = block["agent_first"]
        self.agents = len(self.first) - 1
        self.init = block["counter_init"]
        events = self.first[-1]
        self.phase = orders.get("phase") or [0] * len(self.init)
        self.proxy = orders.get("proxy") or [0] * events
        wait_rule = orders.get("wait_rule") or [0] * len(block["wait_counter"])
        signal_rule = orders.get("signal_rule") or [0] * len(block["signal_counter"])

        def cut(table: str, *columns: list[int]) -> list[list[tuple[int, ...]]]:
            rows = list(zip(*columns, strict=True))
            return [rows[a:b] for a, b in pairwise(block[f"{table}_first"])]

        self.waits = cut("wait", block["wait_counter"], block["wait_threshold"], wait_rule, orders["wait"])
        self.signals = cut("signal", block["signal_counter"], block["signal_amount"], signal_rule, orders["signal"])
        value = block.get("access_value") or [-1] * len(block["access_lo"])
        names = ("buffer", "lo", "hi", "kind")
        self.accesses = cut("access", *(block[f"access_{name}"] for name in names), value)
        columns = [block.get(f"initial_{name}") or [] for name in ("buffer", "lo", "hi", "value")]
        self.initial: dict[int, dict[int, int]] = {}
        for buffer, lo, hi, content in zip(*columns, strict=True):
            self.initial.setdefault(buffer, {}).update(dict.fromkeys(range(lo, hi), content))
        self.agent_of = [w for w in range(self.agents) for _ in range(self.first[w], self.first[w + 1])]

    def wrong(self, all_of_it: bool = True) -> set[str]:
        """Everything that some interleaving shows; or something of it, if there is something."""
        nothing: frozenset[int] = frozenset()
        counters = tuple((0, size, 0, nothing, nothing) if size else (v, 0, 0, nothing, nothing)
                         for v, size in zip(self.init, self.phase, strict=True))  # fmt: skip
        nobody = tuple((nothing, nothing) for _ in range(self.agents))
        start = ((0,) * self.agents, counters, nobody, (), ())
        stack, seen, found = [start], {start}, set[str]()
        while stack and (all_of_it or not found):
            state = stack.pop()
            moved = False
            for agent in range(self.agents):
                after = self.step(state, agent, found)
                if after is None:
                    continue
                moved = True
                if after not in seen:
                    seen.add(after)
                    stack.append(after)
            if len(seen) > self.limit:
                raise TooMany
            if not moved and any(self.first[w] + at < self.first[w + 1] for w, at in enumerate(state[0])):
                found.add("deadlock")
        self.states = len(seen)
        return found

    def step(self, state: State, agent: int, faults: set[str]) -> State | None:
        at, counters, known, joined, memory = state
        event = self.first[agent] + at[agent]
        if event == self.first[agent + 1]:
            return None
        arrived = dict(joined)
        if not all(
            self.holds(counters[c], rule, t, arrived.get((agent, c), -1)) for c, t, rule, _ in self.waits[event]
        ):
            return None
        past, fenced = known[agent]
        for c, _, rule, acquires in self.waits[event]:
            if acquires:
                # what a phase released is seen by waits for it; what a counter was given, by waits for it
                events = counters[c][4] if rule in (1, 3) else counters[c][3]
                past, fenced = past | {e for e in events if e >= 0}, fenced | {-e - 1 for e in events if e < 0}
        memory = self.touch(event, past, fenced, memory, faults)
        past = past | {event}
        if self.proxy[event] == 2:
            fenced = fenced | past
        counters = list(counters)
        for c, amount, rule, releases in self.signals[event]:
            if self.phase[c]:
                arrived[agent, c] = counters[c][0]
            mine = past | {-e - 1 for e in fenced} if releases else frozenset()
            counters[c] = self.signalled(c, counters[c], amount, rule, mine, faults)
        at = (*at[:agent], at[agent] + 1, *at[agent + 1 :])
        known = (*known[:agent], (past, fenced), *known[agent + 1 :])
        return at, tuple(counters), known, tuple(sorted(arrived.items())), memory

    @staticmethod
    def holds(counter: State, rule: int, threshold: int, mine: int) -> bool:
        value = counter[0]
        return bool((value >= threshold, value % 2 != threshold, value == threshold, value > mine)[rule])

    def signalled(
        self, number: int, counter: State, amount: int, rule: int, mine: frozenset[int], faults: set[str]
    ) -> State:
        value, pending, missing, events, over = counter
        if not self.phase[number]:
            return (amount - 1, 0, 0, mine, over) if rule == 1 else (value + amount, 0, 0, events | mine, over)
        pending -= {0: amount, 2: 1, 3: 0, 4: 0}[rule]
        missing += {0: 0, 2: amount, 3: -amount, 4: amount}[rule]
        events = events | mine
        if pending < 0:
            faults.add("arrivals")
        if pending == 0 == missing:
            return value + 1, self.phase[number], 0, events, events
        return value, pending, missing, events, over

    def touch(self, event: int, past: frozenset[int], fenced: frozenset[int], memory: State, faults: set[str]) -> State:
        """memory: (event, row) of the accesses that happened, in order."""
        for row, (buffer, lo, hi, kind, value) in enumerate(self.accesses[event]):
            held = dict(self.initial.get(buffer, {}))
            for other, k in memory:
                b, first, end, what, content = self.accesses[other][k]
                if b != buffer or first >= hi or lo >= end:
                    continue
                alike = kind == what != 1
                if self.agent_of[other] != self.agent_of[event] and not alike and other not in past:
                    faults.add("race")
                elif what != 0 and self.proxy[other] == 0 and self.proxy[event] == 1 and other not in fenced:
                    faults.add("unfenced")
                if what != 0:
                    held |= dict.fromkeys(range(first, end), content)
            if kind == 0 and value >= 0 and any(held.get(byte) != value for byte in range(lo, hi)):
                faults.add("value")
            memory = (*memory, (event, row))
        return memory
