"""A launch of one token, from the composition of two.

Property: if `one_token_follows(result)`, the schedule of a safe composition of two tokens is safe for one token too.

Let P be what stands before the token loop, T and U the two tokens, E what stands behind the loop. A launch of one token
runs P T E. What is asked of it that P T U E does not show is what E meets, and what is left at the end.

Assumption: the only token loop is at the top level of its program (`check_references`).

Conditions: one program; the run of all workers abreast is one (see `abreast`); E waits for nothing, signals nothing,
has no barriers and touches no tagged words and no private memory.

Argument.
  - All of P T comes before U E in the run of all workers abreast, so its beginning is a run of P T, and E waits for
    nothing: every step finishes. Every execution of P T is the beginning of one of P T U E, so what must happen before
    something in P T does so here too, and what is visible there is visible here.
  - Accesses of P and T are thus ordered, and read what they are meant to: these are questions about the past.
  - Let x be an access of P or T that conflicts with one of a step e of E on some warp, and u the first event of that
    warp in U. If u waits for nothing itself, it may begin wherever e may begin. So if x comes before u in all
    executions, x comes before e; the order is that of kind of x (see `compose`). No two steps of E may conflict.
  - What E reads, and what is there at the end, is read off the run of P T E, on all buffers that E touches or that have
    a content at the end.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from amk.validator.brackets import divided, placed_abreast
from amk.validator.compose import TOKENS, Composition
from amk.validator.in_order import InOrder, parts_of
from amk.validator.memory_check import Accesses, boundary_content
from amk.validator.quotient import Group
from amk.validator.system import I64, READ, Bools

FEW: Final = 64
"""Accesses behind the loop; with more the launch is composed."""


def one_token_follows(result: Composition) -> bool:
    """Is a launch of one token safe, as this composition of two is? False: that has to be composed."""
    accesses = result.accesses
    if accesses is None or not (result.safe and result.abreast and result.tokens == TOKENS):
        return False
    (group,) = result.groups
    trace = group.order.trace
    second = [i for i, item in enumerate(trace.items) if item.token == TOKENS - 1]
    if not second:
        return False
    item = _items(group, accesses)
    before, behind = item < second[0], item > second[-1]
    last = accesses.some(np.flatnonzero(behind))
    if not _quiet(result, group, second[-1], accesses, last):
        return False
    meeting = accesses.some(np.flatnonzero(before & np.isin(accesses.still[:, 1], last[:, 1])))
    begins = _begins(group, accesses, item, second[0])
    return all(_comes_first(result, group, meeting, row, begins) for row in last) and _content(
        result, accesses, before | behind, last
    )


def _items(group: Group, accesses: Accesses) -> I64:
    """The item of every access, in the numbers of the program."""
    ((base, size, *_),), (nodes,) = accesses.names.bases, accesses.names.nodes
    trace = group.order.trace
    of_node = np.append(trace.item, np.arange(len(trace.items)))[nodes]
    return of_node.take(divided(accesses.still[:, 0] - base, size)[1])


def _quiet(result: Composition, group: Group, end: int, accesses: Accesses, last: I64) -> bool:
    """Do the steps behind item `end`, whose rows are `last`, keep to the conditions?"""
    trace = group.order.trace
    loud = np.concatenate((group.waits[:, 1], group.signals[:, 1], np.flatnonzero(trace.leave)))
    if len(last) > FEW or bool((trace.item[loud] > end).any()):
        return False
    private = last[:, 1] >= len(result.schedule.buffers)
    if bool((private | np.isin(last[:, 1], accesses.tagged)).any()):
        return False
    return not any(bool((_meets(last, row) & (last[:, 0] != row[0])).any()) for row in last)


def _meets(rows: I64, row: I64) -> Bools:
    """Which rows touch a byte that this one touches, where one of the two writes?"""
    near: Bools = (rows[:, 1] == row[1]) & (rows[:, 3] < row[4]) & (row[3] < rows[:, 4])
    return near if row[2] != READ else near & (rows[:, 2] != READ)


def _begins(group: Group, accesses: Accesses, item: I64, second: int) -> list[int]:
    """By warp its first event of the second token, which begins with item `second`; -1 if it may wait itself."""
    trace = group.order.trace
    found = []
    tagged = np.isin(accesses.still[:, 1], accesses.tagged) & (accesses.still[:, 2] == READ)
    waiting = np.zeros(len(trace.items), bool)
    waiting[item[tagged]] = True
    waiting[trace.item[group.waits[:, 1]]] = True
    for start, end in zip(trace.first.tolist(), trace.first[1:].tolist(), strict=False):
        event = start + int(np.searchsorted(trace.item[start:end], second))
        there = event < end and not trace.leave[event] and not waiting[trace.item[event]]
        found.append(event if there and trace.items[int(trace.item[event])].token == TOKENS - 1 else -1)
    return found


def _comes_first(result: Composition, group: Group, meeting: I64, row: I64, begins: list[int]) -> bool:
    """Does everything that this access behind the loop meets come before it? meeting: rows of a launch of one token."""
    trace = group.order.trace
    worker, node = divmod(int(row[0]) - group.node_base, group.nodes)
    if node < trace.events:
        warps = [int(trace.warp_of[node])]
    else:
        warps = np.flatnonzero(trace.event_of[node - trace.events] >= 0).tolist()
    events = [begins[warp] for warp in warps]
    met = meeting[_meets(meeting, row)]
    if not len(met):
        return True
    if -1 in events or result.order is None:
        return False
    number = group.node_base + worker * group.nodes
    for rows, order in ((met[met[:, 2] == READ], result.order), (met[met[:, 2] != READ], result.fence or result.order)):
        before = np.repeat(rows[:, 0], len(events))
        after = np.tile(number + np.array(events, np.int64), len(rows))
        if not order.precedes(before, after).all():
            return False
    return True


def _content(result: Composition, accesses: Accesses, some: Bools, last: I64) -> bool:
    """Do the steps behind the loop read, and does everything end with, what is meant? some: rows of one token."""
    initial, final = boundary_content(result.schedule, 1)
    buffers = np.unique(np.concatenate((final[:, 0], last[:, 1])))
    rows = accesses.some(np.flatnonzero(some & np.isin(accesses.still[:, 1], buffers)))
    parts = parts_of(rows, placed_abreast(result.groups, rows[:, 0]))
    initial = initial[np.isin(initial[:, 0], buffers)]
    return InOrder(parts, result.memo).faults(initial, final).report.correct
