"""Certificates of full-size schedules, in the form that `amk.checker` accepts.

Property: what `certify_schedule` returns was accepted by the checker's own code (unless checked=False).

Algorithm: item times by running whole crews as soon as all of them may run; claimed vectors as the greatest fixpoint of
the order statistic (section 3 of the theory), taken on prefixes of whole workers: start from the join of the producers
that come first in the run and lower until nothing changes.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np

from amk.checker.certificate import EDGES, FORMAT, Proof
from amk.checker.counters import AMOUNT, INSTANCE, ITEM, WEAK, WORKER
from amk.checker.order import Claims, Order, holds
from amk.checker.programs import Program, Rejected
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.validator.certificate import NotSafe, run_lengths
from amk.validator.order import order_statistic
from amk.validator.position import position_obligations
from amk.validator.rings import ring_obligations
from amk.validator.system import I64

ROUNDS: Final = 64


def certify_schedule(schedule: Schedule, checked: bool = True) -> dict[str, Any]:
    """The certificate as plain JSON. Raises `NotSafe` with the reason if there is none of this form.

    checked=False leaves the last word to a checker that is about to be asked anyway.
    """
    try:
        proof = Proof(schedule)
        times = run_times(proof)
        proof.run(times)
        clocks = {edges: coded(claims_of(proof, edges)) for edges in EDGES}
        if checked:
            proof.check(times, clocks)
    except Rejected as reason:
        raise NotSafe(str(reason)) from reason
    scripts = [*position_obligations(schedule), *ring_obligations()]
    obligations = [[o.name, hashlib.sha256(o.script.encode()).hexdigest()] for o in scripts]
    head = {"format": FORMAT, "schedule": schedule_hash(schedule)}
    return head | {"times": times, "clocks": clocks, "obligations": obligations}


def coded(claims: Claims) -> list[list[Any]]:
    return [[c, t, run_lengths(row)] for (c, t), row in sorted(claims.items()) if row.any()]


class _Crews:
    """Items of all programs, run crew by crew: an item is ready if all its warps are there and all its waits hold."""

    def __init__(self, proof: Proof) -> None:
        self.proof, self.programs = proof, proof.programs
        self.value = proof.counters.init.copy()
        self.times = [[-1] * len(p.items) for p in self.programs]
        self.queue = [
            [[j for j, role in enumerate(p.roles) if w in role] for w in range(p.warps)] for p in self.programs
        ]
        self.at = [[0] * p.warps for p in self.programs]

    def rows(self, table: I64, g: int, j: int) -> I64:
        workers = self.programs[g].workers
        mine: I64 = table[
            (table[:, ITEM] == j) & (table[:, WORKER] >= workers.start) & (table[:, WORKER] < workers.stop)
        ]
        return mine

    def ready(self, g: int, j: int) -> bool:
        program = self.programs[g]
        if any(self.queue[g][w][self.at[g][w] :][:1] != [j] for w in program.roles[j]):
            return False
        waits = self.rows(self.proof.counters.waits, g, j)
        return bool((self.value[waits[:, INSTANCE]] >= waits[:, AMOUNT]).all()) and self._written(program, j)

    def _written(self, program: Program, j: int) -> bool:
        for warp in program.roles[j]:
            for reading in self.proof.words.readings.get((j, warp), ()):
                mine = (reading.workers >= program.workers.start) & (reading.workers < program.workers.stop)
                owners = np.flatnonzero(reading.awaited[mine].any(axis=0))
                if any(self.times[self.proof.group[w]][reading.writer[w]] < 0 for w in owners.tolist()):
                    return False
        return True

    def step(self, now: int) -> bool:
        """Everything that is ready at this time runs at once."""
        heads = {
            (g, q[a]) for g, at in enumerate(self.at) for q, a in zip(self.queue[g], at, strict=True) if a < len(q)
        }
        running = [(g, j) for g, j in sorted(heads) if self.ready(g, j)]
        for g, j in running:
            self.times[g][j] = now
            for w in self.programs[g].roles[j]:
                self.at[g][w] += 1
        for g, j in running:
            given = self.rows(self.proof.counters.signals, g, j)
            np.add.at(self.value, given[:, INSTANCE], given[:, AMOUNT])
        return bool(running)


def run_times(proof: Proof) -> list[list[int]]:
    """Per program the time of each item. Raises `NotSafe` if crews that run as one cannot finish."""
    crews = _Crews(proof)
    now = 0
    while crews.step(now):
        now += 1
    if any(t < 0 for row in crews.times for t in row):
        raise NotSafe("the steps of all workers of a program cannot be run together")
    return crews.times


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
        rows = rows[(rows[:, WEAK] == 0) | order.hints]
        known = np.zeros(order.workers, np.int64)
        if len(rows):
            known = order.starts[rows[:, WORKER], rows[:, ITEM]].max(axis=0).astype(np.int64)
            np.maximum.at(known, rows[:, WORKER], rows[:, ITEM] + 1)
        return known


class _FirstPass(Order):
    """The order under guessed claims, made available to the guesses while it grows."""

    def _run(self, g: int, j: int, state: Any) -> None:
        assert isinstance(self.claims, _Guessing)
        self.claims.order = self
        super()._run(g, j, state)


def claims_of(proof: Proof, edges: str) -> Claims:
    """The greatest claims that hold; none for edges that are those of `time`."""
    if (edges == "fence" and not proof.words.readings) or (edges == "wait" and not proof.hints):
        return {}
    guessed = _Guessing(proof)
    _FirstPass(edges, proof.programs, proof.counters, proof.words, proof.level, guessed)
    claims: Claims = dict(guessed)
    for _ in range(ROUNDS):
        order = proof.order(edges, claims)
        lowered = {key: np.minimum(claim, _statistic(order, key, claim)) for key, claim in claims.items()}
        if all((lowered[key] == claims[key]).all() for key in claims):
            break
        claims = lowered
    return claims


def _statistic(order: Order, key: tuple[int, int], claim: I64) -> I64:
    """[workers] the largest claim that holds, at most `claim`."""
    instance, threshold = key
    found = order.producers(instance)
    crews, starts, weight, _ = found
    need = threshold - int(order.counters.init[instance])
    if need <= 0 or need > int(weight.sum()):
        return np.zeros_like(claim)
    heavy = weight > 0  # without weak signals the row that stands for them weighs nothing
    careful = order_statistic(starts[heavy], weight[heavy], need).astype(np.int64)
    bold = starts.copy()
    row, (worker, item) = np.arange(len(crews) - 1), crews[:-1].T
    done = bold[row, worker] >= item
    bold[row[done], worker[done]] = np.maximum(bold[row[done], worker[done]], item[done] + 1)
    hoped = np.minimum(claim, order_statistic(bold[heavy], weight[heavy], need).astype(np.int64))
    one = np.zeros_like(claim)
    for x in np.flatnonzero(hoped > careful).tolist():
        one[x] = hoped[x]
        if not holds(one, found, need):
            hoped[x] = careful[x]
        one[x] = 0
    return hoped
