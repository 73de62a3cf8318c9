"""From two tokens to all tokens.

Property: for every counter instance c that something waits for, with D = increments of c per token:
  (E1) every wait's threshold grows by D from each occurrence of that wait to its next, and lies in (-D, D] relative
       to the token's start (init counted out);
  (E2) the instance is signalled, and waited for, inside the token loop only: a threshold that is the same in every
       launch falls behind, orders nothing in later ones, and from 2^31 on the comparison says no;
  (E3) if an order rests on a wait for c: every increment of token n+1 must-happen-after all increments of token n, by
       waits of that kind: acquiring ones, or all of them where hints keep flag words from being overwritten. Tagged
       words do not separate increments that an acquire counts: a word written behind a signal may be seen before it.

Argument. Take the first increment, in some execution of n tokens, that comes before an increment of an earlier token
on the same counter. Up to there the counter's value in token n lies between nD and (n+1)D, so a wait of token n
holds iff the increments of token n (or n-1, for thresholds <= 0) suffice, exactly as in the two-token system; all
tokens have equal bodies, so the orders found between tokens 0 and 1 hold between n and n+1, E3 included: there is no
such increment. Thus dependences never lead back in the token, liveness of one token and its successor is liveness of
all, and neighbouring touches of a byte are at most one token apart, as for layers in `layers`. Launch boundaries are
full barriers and leave every counter at a multiple of D. Flag words have one owner each, so E3 is program order.

One token. If a launch P I0 I1 E of two tokens is safe and the conditions hold, one of P I0 E is safe if everything in P
comes before what it conflicts with in E. For P and E do not wait, nor signal where somebody waits (E2), and until its
E the launch of one token runs as that of two does before any event of I1: so P and I0 are ordered as before. It ends:
were it stuck, I1 would be, because counters and thresholds have both grown by D (E1). So I0 can run before all of I1,
hence I0 and E are ordered as I1 and E are, and what E reads was written by P, by E or in the last token. `one_follows`
asks for the pairs of P and E: is the one before a step of I0 that each warp of the other runs before it?

AMK203 if a condition fails: D below the growth of a threshold starves a later token; otherwise the verdict is
UNKNOWN. AMK204 if a counter starts, or one signal adds, beyond what can be compared; what the sums allow is decided
below.

Counters of 32 bits. How far a counter can be from a threshold while somebody compares the two.

Property: a wait computes (int32)(value - threshold) >= 0, which is right iff -2^31 <= value - threshold < 2^31. What
counts is the sum of all that a counter gains, however small each signal is. With D = increments per token of an awaited
instance, B = threshold relative to the token's start, N = most tokens of a launch, by the conditions above:
  (L1) value - threshold >= -B when a wait begins to look, so B <= 2^31;
  (L2) value - threshold <= D - B while the wait is pending, if it holds back all increments of the next token, and
       <= N*D - B, the whole launch, if it does not.

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
from amk.schedule_ir.expr import coefficient
from amk.schedule_ir.schedule import Schedule
from amk.validator.memory.composition import TOKENS, Composition, races_of
from amk.validator.memory.races import ByFirst
from amk.validator.order.clocks import must_clocks
from amk.validator.order.greedy_run import greedy
from amk.validator.order.intervals import Ordering, divided
from amk.validator.order.two_levels import Group
from amk.validator.program.handoffs import POISON
from amk.validator.program.system import I64, READ
from amk.validator.program.trace import Trace, all_sites
from amk.validator.static.outside import reach

LAG: Final = 2**31


@dataclass(frozen=True)
class Lags:
    """early: waits that pass before what they wait for (UNSAFE). open: not decided (UNKNOWN)."""

    early: tuple[Diagnostic, ...]
    open: tuple[Diagnostic, ...]


def check_lags(result: Composition, waits: I64, signals: I64) -> Lags:
    """Rows are (worker, event, instance, threshold or amount, weak, token)."""
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
            found.append(_lag_finding(result, instance, f"gains {gains:,} per token, a wait is for {most:,} of them"))
        elif gains - least >= LAG or not _holds_back(result, asked[mine], own):
            safe = max(0, LAG - 1 + least) // gains
            message = f"gains {gains:,} per token, {launch:,} tokens a launch; {safe:,} tokens are safe"
            open_.append(_lag_finding(result, instance, message))
    return Lags(tuple(early[:8]), tuple(open_[:8]))


def _holds_back(result: Composition, waits: I64, signals: I64) -> bool:
    """Do all these waits of token 0 precede all increments of token 1?"""
    order = result.relaxed_waits or result.order
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


def _lag_finding(result: Composition, instance: int, message: str) -> Diagnostic:
    counter, _ = result.instances.family(instance)
    number = next(i for i, c in enumerate(result.schedule.counters) if c.name == counter.name)
    reason = "32 bits are compared by the sign of the difference, which is wrong from a distance of 2^31 on"
    return finding("AMK204", f"{result.instances.name(instance)} {message}", ("counters", number), reason)


WORD: Final = 2**32


def with_room(schedule: Schedule) -> Schedule:
    """The schedule for launches of `TOKENS` tokens, if its own are shorter: `output` gets room for the others. What
    holds of all launches up to that length holds of the schedule's own."""
    if schedule.launch.max_tokens >= TOKENS:
        return schedule
    launch = schedule.launch.model_copy(update={"max_tokens": TOKENS})
    buffers = tuple(
        b.model_copy(update={"shape": (TOKENS, *b.shape[1:])}) if b.name == "output" else b for b in schedule.buffers
    )
    return schedule.model_copy(update={"launch": launch, "buffers": buffers})


def one_follows(result: Composition) -> bool:
    """Of a composition of two tokens that is safe, whose epochs hold: is a launch of one token safe too?"""
    assert result.order is not None
    early, late = [result.rows[:0]], [result.rows[:0]]
    for group in result.groups:
        trace, end = group.order.trace, group.node_base + group.count * group.nodes
        token = np.array([item.token for item in trace.items], np.int64)
        own = result.rows[(result.rows[:, 0] >= group.node_base) & (result.rows[:, 0] < end)]
        inside = np.flatnonzero(token >= 0)
        if not len(inside) or bool((np.diff(token[inside[0] : inside[-1] + 1]) < 0).any()):
            return False  # not one token loop
        node = divided(own[:, 0] - group.node_base, group.nodes)[1]
        item = np.append(trace.item, np.arange(len(token)))[node]
        early.append(own[item < inside[0]])
        for number in np.unique(item[item > inside[-1]]).tolist():
            before = [n for n in np.flatnonzero(token == 0).tolist() if _covers(trace, n, number)]
            if not before:
                return False
            mine = own[item == number]
            mine[:, 0] += trace.events + before[-1] - node[item == number]
            late.append(mine)
    rows, fence = np.concatenate((*early, *late)), result.fence or result.order
    writes = rows[rows[:, 2] != READ]
    return not (races_of(rows, ByFirst(result.order, fence)).racy or races_of(writes, ByFirst(fence, fence)).racy)


def _covers(trace: Trace, one: int, other: int) -> bool:
    """Do all warps that run one item run the other one?"""
    wide, narrow = (trace.roles[trace.items[n].step.op.role] for n in (one, other))
    return wide.start <= narrow.start and narrow.stop <= wide.stop


@dataclass(frozen=True)
class Epochs:
    """wrong: thresholds outgrow the increments, or comparisons their words (UNSAFE). open: not separated, or not known
    to be close enough (UNKNOWN). wrap: tokens until 2^32.
    """

    wrong: tuple[Diagnostic, ...]
    open: tuple[Diagnostic, ...]
    wrap: int


def check_epochs(result: Composition) -> Epochs:
    """The conditions on a composition that is live and has an order."""
    instances = result.instances
    init = instances.init()
    signals = [_with_token(g, g.signals) for g in result.groups]
    waits = [_with_token(g, g.waits) for g in result.groups]
    every = np.concatenate(signals)
    first = every[every[:, 5] == 0]
    delta = np.bincount(first[:, 2], first[:, 3], minlength=instances.total).astype(np.int64)
    starving, loose = _thresholds(result, waits, every, delta, init)
    assert result.order is not None
    every_wait = np.concatenate(waits)
    acquired = np.unique(every_wait[every_wait[:, 4] == 0, 2])
    loose += _separation(result, every, acquired, result.fence or result.order)
    if result.relaxed_waits is not None:
        loose += _separation(result, every, np.setdiff1d(every_wait[:, 2], acquired), result.relaxed_waits)
    wrap = [(WORD - int(init[i])) // int(d) for i, d in enumerate(delta.tolist()) if d]
    # a buffer that no step uses may have any tag; a token's tags end before the next one's begin (`check_tags`)
    tags = (b.tag for b in result.schedule.buffers if b.tag is not None)
    wrap += [(POISON - coefficient(tag, "1")) // coefficient(tag, "t") for tag in tags if coefficient(tag, "t") > 0]
    lags = check_lags(result, every_wait, every)
    return Epochs((*starving[:8], *lags.early), (*loose[:8], *lags.open), min(wrap, default=WORD))


def _thresholds(
    result: Composition, waits: list[I64], signals: I64, delta: I64, init: I64
) -> tuple[list[Diagnostic], list[Diagnostic]]:
    """E1 and E2, wait by wait: (starving, loose) findings. Rows as in `check_epochs`."""
    starving, loose = list[Diagnostic](), list[Diagnostic]()
    zero, one = (np.concatenate(each) for each in zip(*map(_occurrences, waits), strict=True))
    gain, grown, base = delta[zero[:, 2]], one[:, 3] - zero[:, 3], zero[:, 3] - init[zero[:, 2]]
    same = zero[:, 2] == one[:, 2]
    far = (base <= -gain) | (base > gain)
    outside = [np.unique(rows[rows[:, 5] < 0, 2]) for rows in (np.concatenate(waits), signals)]
    waited = np.unique(np.concatenate(waits)[:, 2])
    doubtful = np.concatenate((zero[~same | (grown != gain) | far, 2], outside[0], np.intersect1d(outside[1], waited)))
    for instance in np.unique(doubtful).tolist():
        mine = zero[:, 2] == instance
        name, gains, counter = result.instances.name(instance), int(delta[instance]), _family(result, instance)
        growth = set(grown[mine & same].tolist())
        if max(growth, default=gains) > gains:
            message = f"{name} gains {gains} per token, a threshold grows by {max(growth)}"
            why = "a later token waits for increments that never come"
            starving.append(_finding(result.schedule, counter, message, why))
        elif growth - {gains} or not same[mine].all():
            message = f"{name} gains {gains} per token, thresholds grow by {_either(growth)}"
            why = "the wait falls further behind with every token, so two tokens do not speak for all"
            loose.append(_finding(result.schedule, counter, message, why))
        if far[mine].any():
            message = f"a threshold of {name} reaches beyond the tokens next to its own"
            loose.append(_finding(result.schedule, counter, message))
        for what, where in zip(("waited for", "signalled"), outside, strict=True):
            if instance in where:
                loose.append(_finding(result.schedule, counter, f"{name} is {what} outside the token loop"))
    return starving, loose


def _occurrences(rows: I64) -> tuple[I64, I64]:
    """The rows of tokens 0 and 1 of one program, each of token 0 at the place of its own next occurrence.

    Both tokens are unrolled from one body, so a wait has the same place among the rows of each: rows stand step by step
    as they run, warp by warp, entry by entry, worker by worker. ValueError if they do not.
    """
    zero, one = (rows[rows[:, 5] == token] for token in (0, 1))
    if zero.shape != one.shape or (zero[:, [0, 4]] != one[:, [0, 4]]).any():
        raise ValueError("the waits of two tokens do not correspond")
    return zero, one


def _family(result: Composition, instance: int) -> str:
    return result.instances.family(instance)[0].name


def _either(numbers: set[int]) -> str:
    return " or ".join(map(str, sorted(numbers))) or "numbers that differ between its waits"


def check_wrap(schedule: Schedule) -> list[Diagnostic]:
    """AMK204 for counters that start, and signals that add, beyond what the wrapping comparison can tell apart."""
    found = []
    for i, counter in enumerate(schedule.counters):
        if counter.init >= LAG:
            found.append(finding("AMK204", f"'{counter.name}' starts at {counter.init:,}", ("counters", i, "init")))
    for site in all_sites(schedule):
        for i, signal in enumerate(site.step.signals):
            most = reach(schedule, site, signal.add)[1]
            if most >= LAG:
                message = f"a signal adds {most:,} to '{signal.counter}'"
                found.append(finding("AMK204", message, (*site.path, "signals", i, "add")))
    return found


def _with_token(group: Group, rows: I64) -> I64:
    """Rows with the token of their event as sixth column."""
    trace = group.order.trace
    token = np.array([item.token for item in trace.items], np.int64)
    return np.concatenate((rows, token[trace.item[rows[:, 1]]][:, None]), axis=1)


def _finding(schedule: Schedule, counter: str, message: str, *reasons: str) -> Diagnostic:
    number = next(i for i, c in enumerate(schedule.counters) if c.name == counter)
    return finding("AMK203", message, ("counters", number), *reasons)


def _separation(result: Composition, every: I64, instances: I64, order: Ordering) -> list[Diagnostic]:
    """E3: every signal of token 0 precedes every signal of token 1 on the same instance."""
    node = order.numbers(every[:, 0], every[:, 1])
    found = []
    for instance in instances.tolist():
        mine = every[:, 2] == instance
        before, after = node[mine & (every[:, 5] == 0)], node[mine & (every[:, 5] == 1)]
        bad = np.flatnonzero(~order.precedes(np.repeat(before, len(after)), np.tile(after, len(before))))
        if len(bad):
            a, b = divmod(int(bad[0]), len(after))
            early, late = order.node(int(after[b])), order.node(int(before[a]))
            counter = result.instances.family(instance)[0].name
            name = result.instances.name(instance)
            message = f"worker {early[1]} may signal {name} for token 1 before worker {late[1]} does for token 0"
            found.append(
                _finding(
                    result.schedule, counter, message, "the total then does not tell which increments have happened"
                )
            )
    return found
