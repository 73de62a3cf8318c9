"""Certificates of schedules: accepted only if they prove the schedule SAFE. Depends on numpy and on the data of the
schedule (its objects and the footprints of its ops), on nothing that judges or plans.

Accepts if, for two tokens and three layers (why that is enough: `programs.short`, (6)):
(1) the certificate's item times are a complete legal run: they grow along every warp, every wait is met by signals of
    earlier items, and every word read was written by an earlier item;
(2) the claimed vectors are a post-fixpoint (`order`);
(3) neighbouring accesses of each byte that conflict are ordered: in `fence` if the first is a write, in `time` if it is
    a read, in `wait` if it is a read of tagged words; a word that is read waits for its own writer;
(4) along the run each byte read holds the value (family, index, token, displacement, tag) that the reading step
    means, and the final content is what the model wants;
(5) rings are private: nothing else lies in their bytes, their source is constant, and refills are fenced;
(6) epochs: each awaited counter gains per token what its thresholds grow by, thresholds reach at most one token back,
    signals of one token are all given before any of the next, and values stay within the wrapping comparison;
(7) at every position exactly one (split, warp) reads each row, and the split that appends a row reads it;
(8) all workers are resident at once; (9) numbers that repeat others agree; (10) registers hold the token that is meant.

Total: any input yields a verdict. What it takes on trust: README.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from amk.checker.counters import AMOUNT, INSTANCE, ITEM, WEAK, WORKER, Counters
from amk.checker.facts import (
    check_launch,
    check_numbers,
    check_obligations,
    check_positions,
    check_registers,
    check_rings,
)
from amk.checker.footprints import DONT_CARE, READ, WRITE, Footprints, crewed
from amk.checker.order import Claims, Order
from amk.checker.programs import CREW, TOKENS, Rejected, programs_of, require, short
from amk.checker.words import Words
from amk.schedule_ir.schedule import Schedule

I64 = npt.NDArray[np.int64]
FORMAT: Final = "amk.certificate/2"
EDGES: Final = ("time", "fence", "wait")
INCIDENCES: Final = 1 << 27
OUTSIDE: Final = -1
LAG: Final = 1 << 31


@dataclass(frozen=True)
class Verdict:
    accepted: bool
    reason: str = ""


def check_certificate(schedule: Schedule, digest: str, certificate: object) -> Verdict:
    """digest: the hash of the schedule's canonical text, which the certificate must name."""
    try:
        require(isinstance(certificate, Mapping) and certificate.get("format") == FORMAT, "certificate: malformed")
        assert isinstance(certificate, Mapping)
        require(certificate.get("schedule") == digest, "certificate: made for another schedule")
        check_obligations(schedule, certificate.get("obligations"))
        Proof(schedule).check(certificate.get("times"), certificate.get("clocks"))
    except Rejected as reason:
        return Verdict(False, str(reason))
    except (KeyError, IndexError, ValueError, OverflowError, MemoryError) as error:
        return Verdict(False, f"schedule: outside what the checker reads ({type(error).__name__}: {error})")
    return Verdict(True)


class Proof:
    """What the schedule does, for two tokens and few layers."""

    def __init__(self, schedule: Schedule) -> None:
        self.full, self.schedule = schedule, short(schedule)
        self.programs = programs_of(self.schedule)
        self.longest = max(len(p.items) for p in self.programs)
        self.counters = Counters(self.schedule, self.programs)
        self.footprints = Footprints(self.schedule, self.programs)
        self.rows = self.footprints.rows()
        self.words = Words(self.schedule, schedule.model.layers, self.rows)
        self.group = np.zeros(self.schedule.launch.workers, np.int64)
        for g, program in enumerate(self.programs):
            self.group[program.workers.start : program.workers.stop] = g

    def check(self, times: object, clocks: object) -> None:
        """Rejected, or the schedule is SAFE."""
        self.run(times)
        require(isinstance(clocks, Mapping) and set(clocks) == set(EDGES), "clocks: malformed")
        assert isinstance(clocks, Mapping)
        claims = {edges: self._claims(clocks.get(edges)) for edges in EDGES}
        self.time = self.order("time", claims["time"])
        self.fence = self.order("fence", claims["fence"]) if self.words.readings else self.time
        self.wait = self.order("wait", claims["wait"]) if self.hints else self.time
        for order in {id(order): order for order in (self.time, self.fence, self.wait)}.values():
            order.check()
        self.memory()
        check_rings(self.schedule)
        check_epochs(self)
        check_positions(self.full, self.programs)
        check_launch(self.full)
        check_numbers(self.schedule, self.programs)
        check_registers(self.schedule, self.programs)

    def _claims(self, raw: object) -> Claims:
        return read_claims(raw, self.schedule.launch.workers, len(self.counters.init))

    def order(self, edges: str, claims: Claims) -> Order:
        return Order(edges, self.programs, self.counters, self.words, self.level, claims)

    @property
    def hints(self) -> bool:
        """Is there anything that blocks and orders no memory?"""
        return bool(self.counters.waits[:, WEAK].any())

    def run(self, times: object) -> None:
        """(1)"""
        self.level = self._levels(times)
        self.words.check_run(self.level)
        signals, waits = self.counters.signals, self.counters.waits
        last = int(self.level.max()) + 2
        given = signals[:, INSTANCE] * last + self.level[signals[:, WORKER], signals[:, ITEM]]
        order = np.argsort(given, kind="stable")
        total = np.concatenate(([0], np.cumsum(signals[order, AMOUNT])))
        start = np.searchsorted(given[order], waits[:, INSTANCE] * last)
        now = waits[:, INSTANCE] * last + self.level[waits[:, WORKER], waits[:, ITEM]]
        value = total[np.searchsorted(given[order], now)] - total[start] + self.counters.init[waits[:, INSTANCE]]
        require((value >= waits[:, AMOUNT]).all(), "order: a wait is not met")

    def _levels(self, times: object) -> I64:
        """[workers, items]."""
        require(isinstance(times, list) and len(times) == len(self.programs), "times: malformed")
        assert isinstance(times, list)
        level = np.zeros((self.schedule.launch.workers, self.longest), np.int64)
        for program, row in zip(self.programs, times, strict=True):
            row = integers(row, "times", len(program.items))
            for warp in range(program.warps):
                mine = [j for j, role in enumerate(program.roles) if warp in role]
                require((np.diff(row[mine]) > 0).all(), "times: a warp does not run in program order")
            level[program.workers.start : program.workers.stop, : len(row)] = row
        return level

    def memory(self) -> None:
        """(3), (4), buffer by buffer."""
        rows = np.concatenate((crewed(self.rows, len(self.schedule.buffers)), self._boundary()))
        rows = rows[np.argsort(rows[:, 3], kind="stable")]
        tagged = {n for n, b in enumerate(self.schedule.buffers) if b.tagged}
        for part in np.split(rows, np.flatnonzero(np.diff(rows[:, 3])) + 1):
            if len(part):
                self._bytes(part, int(part[0, 3]) in tagged)

    def _boundary(self) -> I64:
        """Launch state before; outputs, state and the last logits after."""
        size = {b.name: b.bytes for b in self.schedule.buffers}
        number, code = self.footprints.number, self.footprints.code
        found = [(OUTSIDE, 0, 0, number["state"], 0, size["state"], WRITE, code("state", 0), 0, 15, 0)]
        wanted = [("state", 0, size["state"], code("state", 1))]
        one = 4 * self.schedule.batch
        wanted += [("output", one * n, one * (n + 1), code("output", 0) + n + 1) for n in range(TOKENS)]
        wanted += [("logits", 0, self.schedule.model.vocab * one, code("logits", 0) + TOKENS)]
        found += [(OUTSIDE, 1, 0, number[b], lo, hi, READ, value, 0, 15, 0) for b, lo, hi, value in wanted]
        return np.array(found, np.int64)

    def _bytes(self, rows: I64, tagged: bool) -> None:
        bounds = np.unique(rows[:, 4:6])
        first, last = np.searchsorted(bounds, rows[:, 4]), np.searchsorted(bounds, rows[:, 5])
        count = last - first
        require(int(count.sum()) <= INCIDENCES, "schedule: too large")
        row = np.repeat(np.arange(len(rows)), count)
        atom = np.arange(len(row)) - np.repeat(np.cumsum(count) - count - first, count)
        when = np.where(
            rows[:, 0] == OUTSIDE, np.where(rows[:, 1] == 0, -1, 1 << 40), self.level[rows[:, 0], rows[:, 1]]
        )
        place = np.empty(len(rows), np.int64)
        place[np.lexsort((rows[:, 6], rows[:, 2], rows[:, 0], when))] = np.arange(len(rows))
        by_atom = np.argsort(atom * len(rows) + place[row], kind="stable")
        row, atom = row[by_atom], atom[by_atom]
        self._ordered(rows, row, atom, tagged)
        self._values(rows, row, atom)

    def _ordered(self, rows: I64, row: I64, atom: I64, tagged: bool) -> None:
        """Every pair from neighbouring groups; a group is one write, or the reads between two. A read of words follows
        the write that it waits for, so there only writes need to come after something."""
        kind = rows[row, 6]
        fresh = np.concatenate(([True], atom[1:] != atom[:-1]))
        starts = np.flatnonzero(fresh | (kind == WRITE) | np.concatenate(([True], kind[1:] != kind[:-1])))
        size = np.diff(np.append(starts, len(row)))
        previous = np.where(fresh[starts] | (tagged & (kind[starts] == READ)), 0, np.concatenate(([0], size[:-1])))
        count = np.repeat(previous, size)
        require(int(count.sum()) <= INCIDENCES, "schedule: too large")
        later = np.repeat(np.arange(len(row)), count)
        base = np.repeat(starts - previous, size) - (np.cumsum(count) - count)
        p, q = row[np.repeat(base, count) + np.arange(len(later))], row[later]
        read = rows[:, 6][p] == READ
        for order, at in ((self.wait if tagged else self.time, read), (self.fence, ~read)):
            require(self._before(order, rows, p[at], q[at]), f"race: in {self._name(int(rows[0, 3]))}")

    def _before(self, order: Order, rows: I64, p: I64, q: I64) -> bool:
        worker, item, warp = (np.ascontiguousarray(rows[:, i]) for i in range(3))
        open_ = np.flatnonzero((worker[p] != OUTSIDE) & (worker[q] != OUTSIDE))
        open_ = open_[~order.before(worker[p[open_]], item[p[open_]], worker[q[open_]], item[q[open_]])]
        p, q = p[open_], q[open_]
        over = (worker[p] == worker[q]) & (item[p] == item[q]) & (warp[p] == warp[q]) & (warp[p] != CREW)
        for g, program in enumerate(self.programs):
            at = np.flatnonzero((worker[p] == worker[q]) & (self.group[worker[p]] == g))
            over[at] |= program.ahead[item[q[at]], warp[q[at]], warp[p[at]]] > item[p[at]]
        return bool(over.all())

    def _values(self, rows: I64, row: I64, atom: I64) -> None:
        kind = rows[row, 6]
        place = np.arange(len(row))
        last = np.concatenate(([-1], np.maximum.accumulate(np.where(kind == WRITE, place, -1))[:-1]))
        meant = rows[row, 7] != DONT_CARE
        content = rows[row][:, [7, 8, 10]]
        same = (last >= 0) & (atom[last] == atom) & (content[last] == content).all(axis=1)
        final = rows[row, 0] == OUTSIDE
        same |= final & (last >= 0) & (atom[last] == atom) & (content[last, :2] == content[:, :2]).all(axis=1)
        require((same | (kind == WRITE) | ~meant).all(), f"dataflow: in {self._name(int(rows[0, 3]))}")

    def _name(self, buffer: int) -> str:
        names = [b.name for b in self.schedule.buffers]
        return f"'{names[buffer]}'" if buffer < len(names) else "private memory of a worker"


def integers(raw: object, name: str, count: int | None = None) -> I64:
    require(isinstance(raw, list) and all(type(x) is int and 0 <= x < 1 << 30 for x in raw), f"{name}: malformed")
    assert isinstance(raw, list)
    require(count is None or len(raw) == count, f"{name}: malformed")
    return np.array(raw, np.int64)


def read_claims(raw: object, workers: int, instances: int) -> Claims:
    """[[instance, threshold, [value, repeat, value, repeat, ...]], ...]"""
    require(isinstance(raw, list) and len(raw) * workers <= 1 << 26, "clocks: malformed")
    assert isinstance(raw, list)
    claims: Claims = {}
    for entry in raw:
        require(isinstance(entry, list) and len(entry) == 3, "clocks: malformed")
        instance, threshold = integers(entry[:2], "clocks", 2).tolist()
        coded = integers(entry[2], "clocks")
        require(instance < instances, "clocks: no such counter")
        require(len(coded) % 2 == 0 and int(coded[1::2].sum()) == workers, "clocks: malformed")
        claims[instance, threshold] = np.repeat(coded[::2], coded[1::2])
    return claims


def check_epochs(proof: Proof) -> None:
    """(6)"""
    counters, programs = proof.counters, proof.programs
    token = np.full((len(programs), proof.longest), -1, np.int64)
    for g, program in enumerate(programs):
        token[g, : len(program.items)] = [item.token for item in program.items]
    signals, waits = counters.signals, counters.waits
    signal_token = token[proof.group[signals[:, WORKER]], signals[:, ITEM]]
    wait_token = token[proof.group[waits[:, WORKER]], waits[:, ITEM]]
    require((counters.init < LAG).all(), "epochs: a counter starts beyond the wrap")
    for instance in np.unique(waits[:, INSTANCE]).tolist():
        mine = signals[:, INSTANCE] == instance
        rows, tokens = signals[mine], signal_token[mine]
        require((tokens >= 0).all(), "epochs: signalled outside the token loop")
        gain = int(rows[tokens == 0, AMOUNT].sum())
        asked = [np.sort(waits[(waits[:, INSTANCE] == instance) & (wait_token == n), AMOUNT]) for n in (-1, 0, 1)]
        require(len(asked[0]) == 0 and len(asked[1]) == len(asked[2]), "epochs: waits differ between tokens")
        base = asked[1] - counters.init[instance]
        require((asked[2] - asked[1] == gain).all() and (base > -gain).all() and (base <= gain).all(), "epochs: growth")
        require(gain < LAG // 2, "epochs: a token goes beyond the wrap")
        strong = (waits[waits[:, INSTANCE] == instance, WEAK] == 0).any()
        early, late = rows[tokens == 0], rows[tokens == 1]
        one, two = np.repeat(np.arange(len(early)), len(late)), np.tile(np.arange(len(late)), len(early))
        p, q = early[one], late[two]
        apart = (proof.time if strong else proof.wait).before(p[:, WORKER], p[:, ITEM], q[:, WORKER], q[:, ITEM])
        near = np.flatnonzero((p[:, WORKER] == q[:, WORKER]) & ~apart)
        for g, program in enumerate(programs):
            at = near[proof.group[p[near, WORKER]] == g]
            apart[at] = program.ahead[q[at, ITEM], q[at, 2], p[at, 2]] > p[at, ITEM]
        require(apart.all(), "epochs: not separated")
