"""Counters of 32 bits: how far a counter can be from a threshold while somebody compares the two.

Property: a wait computes (int32)(value - threshold) >= 0, which is right iff -2^31 <= value - threshold < 2^31. What
counts is the sum of all that a counter gains, however small each signal is. With D = increments per token of an awaited
instance, b = threshold relative to the token's start, N = most tokens of a launch, by the conditions of `tokens`:
  (L1) value - threshold >= -b when a wait begins to look, so b <= 2^31;
  (L2) value - threshold <= D - b while the wait is pending, if it holds back all increments of the next token, and
       <= N*D - b, the whole launch, if it does not.

AMK204, UNSAFE if (L1) fails and less than the missing 2^31 is there when the wait begins in some execution: it then
passes at once. UNKNOWN if nothing but these bounds is known.

Cost: none beyond sums as long as a whole launch stays below 2^31; otherwise a flat system.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from amk.report.diagnostic import Diagnostic
from amk.report.schema import finding
from amk.validator.memory.composition import Composition
from amk.validator.order.clocks import must_clocks
from amk.validator.order.greedy_run import greedy
from amk.validator.program.system import I64

LAG: Final = 2**31


@dataclass(frozen=True)
class Lags:
    """early: waits that pass before what they wait for (UNSAFE). open: not decided (UNKNOWN)."""

    early: tuple[Diagnostic, ...]
    open: tuple[Diagnostic, ...]


def check_lags(result: Composition, waits: I64, signals: I64) -> Lags:
    """Rows as in `tokens`: (worker, event, instance, threshold or amount, weak, token)."""
    instances = result.instances
    init, total = instances.init(), instances.total
    first = signals[signals[:, 5] == 0]
    gain = np.bincount(first[:, 2], first[:, 3], minlength=total).astype(np.int64)
    asked = waits[waits[:, 5] == 0]
    base = asked[:, 3] - init[asked[:, 2]]
    launch = result.schedule.launch.max_tokens
    early: list[Diagnostic] = []
    open_: list[Diagnostic] = []
    for instance in np.unique(asked[gain[asked[:, 2]] * launch - base >= LAG, 2]).tolist():
        mine = asked[:, 2] == instance
        most, least, gains = int(base[mine].max()), int(base[mine].min()), int(gain[instance])
        behind, own = asked[mine & (base > LAG)], signals[signals[:, 2] == instance]
        if len(behind):
            found = early if _passes_early(result, behind, init[instance]) else open_
            found.append(_finding(result, instance, f"gains {gains:,} per token, a wait is for {most:,} of them"))
        elif gains - least >= LAG or not _holds_back(result, asked[mine], own):
            safe = max(0, LAG - 1 + least) // gains
            message = f"gains {gains:,} per token, {launch:,} tokens a launch; {safe:,} tokens are safe"
            open_.append(_finding(result, instance, message))
    return Lags(tuple(early[:8]), tuple(open_[:8]))


def _holds_back(result: Composition, waits: I64, signals: I64) -> bool:
    """Do all these waits of token 0 precede all increments of token 1?"""
    order = result.hints or result.order
    assert order is not None
    late = signals[signals[:, 5] == 1]
    before, after = (order.numbers(rows[:, 0], rows[:, 1]) for rows in (waits, late))
    return bool(order.precedes(np.repeat(before, len(after)), np.tile(after, len(before))).all())


def _passes_early(result: Composition, waits: I64, init: int) -> bool:
    """Whether one of the waits may begin to look while more than 2^31 are missing."""
    from amk.validator.evidence.flat_system import expand  # counters are mostly far from that

    flat = expand(result.schedule, 0, result.tokens, "block", set())
    system, clocks = flat.system, must_clocks(greedy(flat.system))
    owner = np.repeat(np.arange(system.events), np.diff(system.signal_first))
    for worker, event, instance, threshold, *_ in waits.tolist():
        group = next(g for g in result.groups if g.first <= worker < g.first + g.count)
        wait = int(flat.event_id[group.number][worker - group.first, event])
        giving = system.signal_counter == instance
        there = np.zeros(int(giving.sum()), bool)
        if system.index_of[wait]:
            there = (owner[giving] == wait - 1) | clocks.precedes(owner[giving], np.full(len(there), wait - 1))
        if threshold - init - int(system.signal_amount[giving][there].sum()) > LAG:
            return True
    return False


def _finding(result: Composition, instance: int, message: str) -> Diagnostic:
    counter, _ = result.instances.family(instance)
    number = next(i for i, c in enumerate(result.schedule.counters) if c.name == counter.name)
    reason = "32 bits are compared by the sign of the difference, which is wrong from a distance of 2^31 on"
    return finding("AMK204", f"{result.instances.name(instance)} {message}", ("counters", number), reason)
