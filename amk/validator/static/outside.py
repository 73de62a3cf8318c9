"""Synchronisation outside the class that is decided: each kind with its own code, never ignored.

Property: in a schedule without findings every wait is `counter >= threshold` with a threshold that program text fixes,
every signal adds a positive amount, and no agent blocks on anything else. Only then is enabledness monotone: what may
run stays allowed until it runs, so one run decides liveness for all.

    AMK208  a wait compares by ==, != or <           AMK211  a threshold or a branch depends on data
    AMK209  a signal decrements                      AMK212  a lock: compare-and-swap
    AMK210  a counter is reset in flight             AMK213  an unsigned comparison of a counter that wraps
    AMK214  agents of several warps block on one pool (a single holder takes and gives in program order: no wait)

A finding leaves the verdict UNKNOWN, whatever else is in the schedule: what the other checks say rests on the property.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from amk.report.diagnostic import Diagnostic
from amk.report.schema import finding
from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.schedule import Schedule
from amk.validator.program.trace import Site, sites


def check_outside(schedule: Schedule) -> list[Diagnostic]:
    """All findings, in the order of the schedule."""
    found = [
        finding("AMK213", f"'{c.name}' is compared as an unsigned number", ("counters", i, "compare"),
                 "after the wrap every wait passes at once, or none")
        for i, c in enumerate(schedule.counters) if c.compare != "lag"
    ]  # fmt: skip
    holders: dict[str, set[tuple[int, str]]] = {}
    for number, program in enumerate(schedule.programs):
        for site in sites(program, number):
            found += [*_waits(site), *_signals(schedule, site)]
            if site.step.when is not None:
                message = f"{site.step.op.op} runs only if '{site.step.when}' says so"
                found.append(
                    finding("AMK211", message, (*site.path, "when"), "which signals are given depends on data")
                )
            for name in (*site.step.takes, *site.step.gives):
                holders.setdefault(name, set()).add((number, site.step.op.role))
    return [*found, *_pools(schedule, holders)]


def _waits(site: Site) -> Iterator[Diagnostic]:
    for i, wait in enumerate(site.step.waits):
        path = (*site.path, "waits", i)
        if wait.compare != ">=":
            message = f"the wait on '{wait.counter}' compares by {wait.compare}"
            yield finding("AMK208", message, (*path, "compare"), "it may be missed: it does not stay true once it is")
        if wait.data is not None:
            message = f"the threshold on '{wait.counter}' is read from '{wait.data}'"
            yield finding("AMK211", message, (*path, "data"), "what is waited for is not known before the launch")


def _signals(schedule: Schedule, site: Site) -> Iterator[Diagnostic]:
    codes = {"reset": ("AMK210", "resets"), "exchange": ("AMK212", "locks or frees")}
    for i, signal in enumerate(site.step.signals):
        path = (*site.path, "signals", i)
        if signal.action in codes:
            code, verb = codes[signal.action]
            reason = (
                "increments of others may be lost" if code == "AMK210" else "who gets it first decides what follows"
            )
            yield finding(code, f"a signal {verb} '{signal.counter}'", (*path, "action"), reason)
        elif reach(schedule, site, signal.add)[0] < 0:
            message = f"a signal decrements '{signal.counter}'"
            yield finding("AMK209", message, (*path, "add"), "a wait that held may not hold when it is looked at")


def reach(schedule: Schedule, site: Site, expr: Expr) -> tuple[int, int]:
    """Its smallest and largest value over workers, warps and layers; affine, so the ends of each range suffice."""
    if isinstance(expr, int):
        return expr, expr
    program = schedule.programs[int(site.path[1])]
    workers = np.arange(program.first, program.first + program.count)
    named = {name: np.array(column, dtype=np.int64) for name, column in schedule.tables.items() if name in expr}
    count = next(r.count for r in schedule.roles if r.name == site.step.op.role)
    ends = itertools.product({0, (site.layers or 1) - 1}, {0, count - 1})
    found = [Env(loops={"t": 0, "l": at}, worker=workers, agent=a, tables=named).eval(expr) for at, a in ends]
    return min(int(np.min(each)) for each in found), max(int(np.max(each)) for each in found)


def _pools(schedule: Schedule, holders: dict[str, set[tuple[int, str]]]) -> Iterator[Diagnostic]:
    size = {r.name: r.count for r in schedule.roles}
    for i, pool in enumerate(schedule.pools):
        users = holders.get(pool.name, set())
        warps = {(program, role) for program, role in users}
        if len({role for _, role in warps}) > 1 or any(size[role] > 1 for _, role in warps):
            message = f"warps of {', '.join(sorted({role for _, role in warps}))} share the pool '{pool.name}'"
            yield finding("AMK214", message, ("pools", i), "one may wait for what another never gives back")
