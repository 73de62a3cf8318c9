"""Certificates of full-size schedules, in the form that `amk.checker` accepts.

Property: what `certify_schedule` returns was accepted by the checker's own code (unless checked=False).

Algorithm: item times by running whole warp groups as soon as all of them may run. Claimed vectors are the greatest
fixpoint of the rule that a wait is ordered behind those increments without which its threshold cannot be reached.
They are prefixes of warp_classes: start from the join of the producers that come first in the run and lower until
nothing changes.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from amk.checker.certificate import FORMAT, Proof
from amk.checker.core import Claims, Order
from amk.checker.counters import AMOUNT, INSTANCE, ITEM, WARP, WEAK, WORKER
from amk.checker.programs import Rejected
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.validator.export.certificate import NotSafe, run_lengths
from amk.validator.order.clocks import order_statistic
from amk.validator.program.system import I64
from amk.validator.static.obligations import position_obligations, ring_obligations

ROUNDS: Final = 64


def certify_schedule(schedule: Schedule, checked: bool = True, proof: Proof | None = None) -> dict[str, Any]:
    """The certificate as plain JSON. Raises `NotSafe` with the reason if there is none of this form.

    checked=False leaves the last word to a checker that is about to be asked anyway. proof: `Proof(schedule)`, if there
    is one already.
    """
    try:
        proof = proof or Proof(schedule)
        times = run_times(proof)
        proof.run(times)
        time = coded(claims_of(proof, "time"))
        clocks = {"time": time, "fence": time, "wait": time}  # one order unless something orders less than it blocks
        if proof.words.readings:
            clocks["fence"] = coded(claims_of(proof, "fence"))
        if proof.relaxed_waits:
            clocks["wait"] = coded(claims_of(proof, "wait"))
        if checked:
            proof.check(times, clocks)
    except Rejected as reason:
        raise NotSafe(str(reason)) from reason
    scripts = [*position_obligations(schedule), *ring_obligations()]
    obligations = [[o.name, hashlib.sha256(o.script.encode()).hexdigest()] for o in scripts]
    head = {"format": FORMAT, "schedule": schedule_hash(schedule)}
    return head | {"times": times, "clocks": clocks, "obligations": obligations}


def evidence(schedule: Schedule, checked: bool = True) -> dict[str, Any]:
    """The certificate of a schedule that `verify` calls SAFE, as the checker accepted it. AmkError AMK215 (exit 3),
    with the checker's reason, if there is none: such a schedule runs no more than one whose verdict is UNKNOWN.

    checked=False leaves the last word to a checker that is about to be asked anyway.
    """
    collecting = gc.isenabled()
    gc.disable()  # many small objects are made and few die
    try:
        return certify_schedule(schedule, checked)
    except NotSafe as error:
        raise AmkError(Diagnostic("AMK215", str(error)), Exit.UNKNOWN) from error
    finally:
        if collecting:
            gc.enable()


def coded(claims: Claims) -> list[list[Any]]:
    return [[c, t, run_lengths(row)] for (c, t), row in sorted(claims.items()) if row.any()]


class _WarpGroups:
    """Items of all CTA classes, run warp group by warp_group: an item is ready if all its warps are there and
    all its waits hold. A CTA class is a run of workers of one program that stay together."""

    def __init__(self, proof: Proof, cta_classes: list[tuple[int, range]]) -> None:
        self.proof, self.cta_classes = proof, cta_classes
        self.programs = [proof.programs[g] for g, _ in cta_classes]
        self.value = proof.counters.init.copy()
        self.times = [[-1] * len(p.items) for p in self.programs]
        self.cta_class_of = {w: n for n, (_, workers) in enumerate(cta_classes) for w in workers}
        self.queue = [
            [[j for j, role in enumerate(p.roles) if w in role] for w in range(p.warps)] for p in self.programs
        ]
        self.at = [[0] * p.warps for p in self.programs]
        self.waits = self._sorted(proof.counters.waits)
        self.signals = self._sorted(proof.counters.signals)

    def _sorted(self, table: I64) -> dict[tuple[int, int], I64]:
        """Rows by (CTA class, item)."""
        cta_class = np.array([self.cta_class_of[w] for w in table[:, WORKER].tolist()], np.int64)
        order = np.lexsort((table[:, ITEM], cta_class))
        table, key = table[order], np.stack((cta_class[order], table[order, ITEM]), axis=1)
        cuts = np.flatnonzero((np.diff(key, axis=0) != 0).any(axis=1)) + 1
        parts = zip(np.split(key, cuts), np.split(table, cuts), strict=True)
        return {(int(k[0, 0]), int(k[0, 1])): part for k, part in parts if len(part)}

    def ready(self, n: int, j: int) -> bool:
        if any(self.queue[n][w][self.at[n][w] :][:1] != [j] for w in self.programs[n].roles[j]):
            return False
        waits = self.waits.get((n, j))
        met = waits is None or bool((self.value[waits[:, INSTANCE]] >= waits[:, AMOUNT]).all())
        return met and self._written(n, j)

    def _written(self, n: int, j: int) -> bool:
        workers = self.cta_classes[n][1]
        for warp in self.programs[n].roles[j]:
            for reading in self.proof.words.readings.get((j, warp), ()):
                owners = np.flatnonzero(reading.awaited[workers.start : workers.stop].any(axis=0))
                if any(self.times[self.cta_class_of[w]][reading.writer[w]] < 0 for w in owners.tolist()):
                    return False
        return True

    def step(self, now: int) -> bool:
        """Everything that is ready at this time runs at once."""
        heads = {
            (n, q[a]) for n, at in enumerate(self.at) for q, a in zip(self.queue[n], at, strict=True) if a < len(q)
        }
        running = [(n, j) for n, j in sorted(heads) if self.ready(n, j)]
        for n, j in running:
            self.times[n][j] = now
            for w in self.programs[n].roles[j]:
                self.at[n][w] += 1
        for key in running:
            signals = self.signals.get(key)
            if signals is not None:
                np.add.at(self.value, signals[:, INSTANCE], signals[:, AMOUNT])
        return bool(running)

    def run(self) -> list[list[Any]] | None:
        """`times` of the certificate; None if the CTA classes cannot finish."""
        now = 0
        while self.step(now):
            now += 1
        if any(t < 0 for row in self.times for t in row):
            return None
        return [[len(workers), row] for (_, workers), row in zip(self.cta_classes, self.times, strict=True)]


def run_times(proof: Proof) -> list[list[Any]]:
    """When each item runs: all workers of a program together, or every worker by itself. Raises `NotSafe` if
    even warp groups of one worker cannot finish."""
    together = sorted(((g, p.workers) for g, p in enumerate(proof.programs)), key=lambda cta_class: cta_class[1].start)
    apart = [(g, range(w, w + 1)) for g, workers in together for w in workers]
    found = _WarpGroups(proof, together).run() or _WarpGroups(proof, apart).run()
    if found is None:
        raise NotSafe("the steps of some worker cannot be run warp group by warp group")
    return found


class _Guessing(dict[tuple[int, int], I64]):
    """Claims for a first pass: the join of the producers that come first in the run and suffice."""

    order: Order | None = None

    def __init__(self, proof: Proof) -> None:
        super().__init__()
        self.proof = proof

    def get(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = self._guess(*key)
        return self[key]

    def _guess(self, instance: int, threshold: int) -> I64:
        counters, order = self.proof.counters, self.order
        rows = counters.signals[counters.signals[:, INSTANCE] == instance]
        rows = rows[np.argsort(self.proof.level[rows[:, WORKER], rows[:, ITEM]], kind="stable")]
        need = threshold - int(counters.init[instance])
        enough = int(np.searchsorted(np.cumsum(rows[:, AMOUNT]), need)) + 1 if need > 0 else 0
        rows = rows[:enough]
        assert order is not None
        rows = rows[(rows[:, WEAK] == 0) | order.relaxed_waits]
        known = np.zeros(order.columns, np.int64)
        if len(rows):
            known = order.starts[rows[:, WORKER], rows[:, ITEM]].max(axis=0).astype(np.int64)
            warp_class = counters.warp_class[rows[:, WORKER], rows[:, WARP]]
            np.maximum.at(known, rows[:, WORKER] + warp_class * order.workers, rows[:, ITEM] + 1)
        return known


class _FirstPass(Order):
    """The order under guessed claims, made available to the guesses while it grows."""

    def _states(self) -> Iterator[tuple[int, I64, Any]]:
        assert isinstance(self.claims, _Guessing)
        self.claims.order = self
        return super()._states()


def claims_of(proof: Proof, edges: str) -> Claims:
    """The greatest claims that hold; none for edges that are those of `time`."""
    if (edges == "fence" and not proof.words.readings) or (edges == "wait" and not proof.relaxed_waits):
        return {}
    guessed = _Guessing(proof)
    order: Order = _FirstPass(edges, proof.programs, proof.counters, proof.words, proof.level, guessed)
    claims: Claims = dict(guessed)
    for _ in range(ROUNDS):
        lowered = {key: np.minimum(claim, _statistic(order, key, claim)) for key, claim in claims.items()}
        if all((lowered[key] == claims[key]).all() for key in claims):
            break
        claims = lowered
        order = proof.order(edges, claims)
    return claims


def _statistic(order: Order, key: tuple[int, int], claim: I64) -> I64:
    """[warp classes] the largest claim that holds, at most `claim`."""
    instance, threshold = key
    worker, item, weight, least, loose = order.counters.warp_groups(instance, order.relaxed_waits)
    need = threshold - int(order.counters.init[instance])
    if need <= 0 or need > int(weight.sum()) + loose:
        return np.zeros_like(claim)
    starts = order.starts[worker, item].astype(np.int32)
    if loose:  # signals that order nothing may come first
        starts = np.concatenate((starts, np.zeros((1, order.columns), starts.dtype)))
        weight = np.append(weight, loose)
    careful = order_statistic(starts, weight, need).astype(np.int64)
    bold = starts.copy()
    for warp_class, missing in enumerate(least.T):
        row = np.flatnonzero(missing)
        own = worker[row] + warp_class * order.workers
        bold[row, own] = np.maximum(bold[row, own], item[row] + 1)
    hoped = np.minimum(claim, order_statistic(bold, weight, need).astype(np.int64))
    return np.where(order.holds(instance, threshold, hoped), hoped, careful)
