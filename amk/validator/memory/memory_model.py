"""Rules of the memory model that attributes of the schedule decide.

    M2/M3  on a fenced counter a signal releases and a wait acquires; weaker ones are reported here and order
           nothing in the race check, so they are only harmful where that finds something (AMK502, AMK503)
    M5     a counter that several workers touch has gpu or sys scope (AMK505)
    M6     every operation on a counter is strong and of 32 bits (AMK506)
    M8, M10, M11, M12  results by bulk stores that are not waited for, mixed reductions, a barrier that is
           only arrived at, changed tensor maps: a schedule can say so, to be refused by name (AMK508, AMK510, AMK511,
           AMK512)
    M9     nothing writes a buffer that is declared constant, because it is read by non-coherent loads (AMK509)
    M13    flag words: see `handoffs`
M1 and M4 (all writers before the release, all readers after the acquire) follow from the clocks over warps and
barriers, and `explanation` names them; M7 is in `obligations`.

What relaxed operations order. A hint is a relaxed reduction and a relaxed poll (`signal_relaxed`, `wait_hint`), a
flag word a relaxed store and a relaxed load: neither makes a synchronizes-with edge, so in the causality order of PTX
nothing else is ordered by them. Three questions remain, one per pair of accesses to the same bytes:

  write first. Whoever comes next must see it, or must not be overtaken by it in coherence order. Only causality order
      says so (PTX ISA 8.10), hence `fence` edges: releases, acquires, barriers, program order. This holds for plain
      and shared memory and for two writes of one flag word; a read of a flag word is the exception, because it looks
      at the tag of the very word.
  a tagged read, then a write. The reader must find its tag before the word is overwritten; it re-reads, and all that
      it does afterwards exists only if it has. Let S be the reader's next signal on hint c, P a poll of c that ends
      at a threshold which needs S, and W the overwriting store behind P in program order (through barriers of the
      CTA, which complete only if all have arrived). If W is in the execution, P has ended, so S was read, so S is in
      the execution, so the reader's loop has ended, so it has read its tag. If the loop never ended, S and hence W
      would not be in the execution, the word would keep its tag, and progress of the loads ends the loop. No order
      in time between the read and W is used, only that W does not exist without it: that is what the clocks over all
      blocking edges compute (`wait` edges). So hints do hold back who overwrites a flag word, and a plan whose idle
      workers pass on nothing but hints is safe; without these hints, or one increment short, it is not
      (`adversarial/hint-one-short.json`).
  a plain read, then a write. The argument does not carry over: a plain load is not re-read until it is right, and the
      model has no order between it and a later relaxed operation (load buffering). It is allowed behind fences, and
      behind flag words (`word` edges) if the load was made in a step before the one that stores the words, and the
      write is in a step behind the one that found them. Between such steps the lanes of a warp meet
      (`lowering/lanes.py`): a load behind which a barrier has ended is performed, so has its value, before a word is
      stored, and who has found the word stores later. Within the two steps each lane is by itself: others of its warp
      may still load what it is done with, or store before they have looked. A hint carries no data; it orders no plain
      read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from amk.report.diagnostic import Diagnostic, Severity
from amk.report.schema import finding
from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.schedule import Schedule, Wait
from amk.validator.order.two_levels import Group
from amk.validator.program.handoffs import Instances
from amk.validator.program.trace import all_sites

UNEQUAL = "accesses that are not both strong and of one size are a data race: any value"


def weak_orders(schedule: Schedule) -> Iterator[Diagnostic]:
    """Relaxed operations on fenced counters, as warnings."""
    fenced = {c.name for c in schedule.counters if c.handoff == "fenced"}
    for site in all_sites(schedule):
        for path, use in site.uses:
            if use.counter in fenced and use.order == "relaxed":
                code, what = ("AMK503", "wait") if isinstance(use, Wait) else ("AMK502", "signal")
                why = "it blocks or counts, but what was written before is not visible after"
                relaxed = finding(code, f"the {what} on '{use.counter}' is relaxed", (*path, "order"), why)
                yield replace(relaxed, severity=Severity.WARNING)


def check_strong(schedule: Schedule) -> list[Diagnostic]:
    """M6."""
    found = []
    for site in all_sites(schedule):
        for path, use in site.uses:
            if use.touch != "strong":
                what = "a weak access" if use.touch == "weak" else "an access of 64 bits"
                message = f"{what} to '{use.counter}', whose other users make strong ones of 32 bits"
                found.append(finding("AMK506", message, (*path, "touch"), UNEQUAL))
    return found


def check_said(schedule: Schedule) -> list[Diagnostic]:
    """M8, M10, M11, M12: amk lowers nothing of the kind, so a schedule that says so has broken the rule."""
    found = []
    for site in all_sites(schedule):
        op = site.step.op
        if site.step.stores == "bulk":
            message = f"{op.op} hands on what bulk stores may not have written yet"
            why = "`wait_group.read` says that the source was read, not that the result is in memory"
            found.append(finding("AMK508", message, (*site.path, "stores"), why))
        elif site.step.stores == "mixed":
            message = f"{op.op} adds to cells by reductions that differ in size or scope, or beside plain stores"
            found.append(finding("AMK510", message, (*site.path, "stores"), UNEQUAL))
        if isinstance(op, BarrierOp) and op.kind == "arrive":
            message = f"warps of '{op.role}' arrive at barrier {op.id} and go on"
            found.append(
                finding("AMK511", message, (*site.path, "op", "kind"), "who only arrives has acquired nothing")
            )
    for i, stream in enumerate(schedule.streams):
        if stream.descriptor == "modified":
            message = f"copies of '{stream.name}' go by a tensor map that the kernel changes"
            why = "without `fence.proxy.tensormap` the copy engine may use the map as it was"
            found.append(finding("AMK512", message, ("streams", i, "descriptor"), why))
    return found


def check_scopes(schedule: Schedule, groups: list[Group], instances: Instances) -> Iterator[Diagnostic]:
    """M5."""
    rows = np.concatenate([part[:, [2, 0]] for g in groups for part in (g.waits, g.signals)])
    pairs = np.unique(rows[:, 0] << 32 | rows[:, 1])
    shared, times = np.unique(pairs >> 32, return_counts=True)
    reported = set()
    for instance in shared[times > 1].tolist():
        counter, _ = instances.family(instance)
        if counter.scope == "cta" and counter.name not in reported:
            reported.add(counter.name)
            message = f"{instances.name(instance)} has scope cta, several workers touch it"
            yield finding("AMK505", message, ("counters", schedule.counters.index(counter), "scope"))


def check_constants(schedule: Schedule, written: frozenset[str]) -> Iterator[Diagnostic]:
    """M9; `written`: names of the constant buffers that some footprint writes."""
    for i, buffer in enumerate(schedule.buffers):
        if buffer.name in written:
            message = f"'{buffer.name}' is declared constant and written in the launch"
            why = "constants are read by non-coherent loads and ahead of every wait"
            yield finding("AMK509", message, ("buffers", i, "role"), why)
