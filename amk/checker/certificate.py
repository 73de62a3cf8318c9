"""Certificates of schedules: accepted only if they prove the schedule SAFE. Depends on numpy and on the data of the
schedule (its objects and the footprints of its ops), on nothing that judges or plans.

Accepts if, for two tokens and three layers (why that is enough: `programs.short`, (6)):
(1) to (4), `core`: the certificate's times are a complete run, its vectors follow from each other, all conflicting
    accesses are ordered by them, and every byte read holds what is meant; the final content is what the model wants;
(5) rings are private: nothing else lies in their bytes, their source is constant, refills are fenced, and no agent
    waits for a copy that it has not issued;
(6) epochs: each awaited counter gains per token what its thresholds grow by, thresholds reach at most one token back,
    signals of one token are all given before any of the next, and values stay within the wrapping comparison;
(7) at every position exactly one (split, warp) reads each row, and the split that appends a row reads it;
(8) all fits the device, at once; (9) numbers that repeat others agree; (10) registers hold the token that is meant.

Total: any input yields a verdict. What it takes on trust: README.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from amk.checker.core import EDGES, OUTSIDE, Bytes, Claims, Order, check_run
from amk.checker.counters import MOST, WEAK, Counters
from amk.checker.epochs import check_epochs
from amk.checker.facts import (
    check_kinds,
    check_launch,
    check_numbers,
    check_obligations,
    check_positions,
    check_refills,
    check_registers,
    check_rings,
)
from amk.checker.footprints import READ, WRITE, Footprints
from amk.checker.programs import TOKENS, Rejected, programs_of, require, short
from amk.checker.words import Words
from amk.schedule_ir.schedule import Schedule

I64 = npt.NDArray[np.int64]
FORMAT: Final = "amk.certificate/3"


@dataclass(frozen=True)
class Verdict:
    accepted: bool
    reason: str = ""


def check_certificate(schedule: Schedule, digest: str, certificate: object, proof: Proof | None = None) -> Verdict:
    """digest: the hash of the schedule's canonical text, which the certificate must name. proof: `Proof(schedule)`, if
    there is one already; nothing of it depends on certificates."""
    try:
        require(isinstance(certificate, Mapping) and certificate.get("format") == FORMAT, "certificate: malformed")
        assert isinstance(certificate, Mapping)
        require(certificate.get("schedule") == digest, "certificate: made for another schedule")
        check_obligations(schedule, certificate.get("obligations"))
        (proof or Proof(schedule)).check(certificate.get("times"), certificate.get("clocks"))
    except Rejected as reason:
        return Verdict(False, str(reason))
    except (KeyError, IndexError, ValueError, OverflowError, MemoryError) as error:
        return Verdict(False, f"schedule: outside what the checker reads ({type(error).__name__}: {error})")
    return Verdict(True)


class Proof:
    """What the schedule does, for two tokens and few layers, and what a certificate says about it."""

    def __init__(self, schedule: Schedule) -> None:
        self.full, self.schedule = schedule, short(schedule)
        self.programs = programs_of(self.schedule)
        self.counters = Counters(self.schedule, self.programs)
        self.footprints = Footprints(self.schedule, self.programs)
        self.rows = self.footprints.rows()
        self.words = Words(self.schedule, schedule.model.layers, self.rows, self.footprints.rows_of_splits)

    def check(self, times: object, clocks: object) -> None:
        """Rejected, or the schedule is SAFE."""
        self.run(times)
        require(isinstance(clocks, Mapping) and set(clocks) == set(EDGES), "clocks: malformed")
        assert isinstance(clocks, Mapping)
        claims = {
            edges: read_claims(clocks.get(edges), self.schedule.launch.workers, len(self.counters.init))
            for edges in EDGES
        }
        time = self.order("time", claims["time"])
        fence = self.order("fence", claims["fence"]) if self.words.readings else time
        wait = self.order("wait", claims["wait"]) if self.hints else time
        for order in {id(order): order for order in (time, fence, wait)}.values():
            order.check()
        self.memory(time, fence, wait)
        check_rings(self.schedule)
        check_refills(self.schedule, self.programs)
        check_epochs(self.programs, self.counters, fence, wait, self.full.launch.max_tokens)
        check_positions(self.full, self.programs)
        check_launch(self.full)
        check_numbers(self.schedule, self.programs)
        check_kinds(self.full)
        check_registers(self.schedule, self.programs)

    def run(self, times: object) -> None:
        """(1)"""
        self.level = read_times(times, [(p.workers, len(p.items)) for p in self.programs])
        check_run(self.programs, self.counters, self.words, self.level)

    def order(self, edges: str, claims: Claims) -> Order:
        """(2)"""
        return Order(edges, self.programs, self.counters, self.words, self.level, claims)

    @property
    def hints(self) -> bool:
        """Is there anything that blocks and orders no memory?"""
        return bool(self.counters.waits[:, WEAK].any())

    def memory(self, time: Order, fence: Order, wait: Order) -> None:
        """(3), (4), buffer by buffer."""
        rows = np.concatenate((self.rows, self._boundary()))
        rows = rows[np.argsort(rows[:, 3], kind="stable")]
        for part in np.split(rows, np.flatnonzero(np.diff(rows[:, 3])) + 1):
            if len(part):
                number = int(part[0, 3])
                shown = self.schedule.buffers[number] if number < len(self.schedule.buffers) else None
                name = f"'{shown.name}'" if shown else "private memory of a worker"
                tagged = shown is not None and shown.tagged
                found = Bytes(part, self.level)
                found.check_races(wait if tagged else time, fence, tagged, name)
                found.check_values(name)

    def _boundary(self) -> I64:
        """Launch state before; outputs, state and the last logits after."""
        size = {b.name: b.bytes for b in self.schedule.buffers}
        number, code = self.footprints.number, self.footprints.code
        found = [(OUTSIDE, 0, 0, number["state"], 0, size["state"], WRITE, code("state", 0), 0, 15, 0, 0)]
        wanted = [("state", 0, size["state"], code("state", 1))]
        one = 4 * self.schedule.batch
        wanted += [("output", one * n, one * (n + 1), code("output", 0) + n + 1) for n in range(TOKENS)]
        wanted += [("logits", 0, self.schedule.model.vocab * one, code("logits", 0) + TOKENS)]
        found += [(OUTSIDE, 1, 0, number[b], lo, hi, READ, value, 0, 15, 0, 0) for b, lo, hi, value in wanted]
        return np.array(found, np.int64)


def integers(raw: object, name: str, count: int | None = None, below: int = 1 << 30) -> I64:
    require(isinstance(raw, list) and all(type(x) is int and 0 <= x < below for x in raw), f"{name}: malformed")
    assert isinstance(raw, list)
    require(count is None or len(raw) == count, f"{name}: malformed")
    return np.array(raw, np.int64)


def read_times(raw: object, programs: list[tuple[range, int]]) -> I64:
    """[workers, items] from [[workers, [time of each item]], ...]: runs of workers, each within one program."""
    require(isinstance(raw, list) and all(isinstance(e, list) and len(e) == 2 for e in raw), "times: malformed")
    assert isinstance(raw, list)
    level = np.zeros((max(w.stop for w, _ in programs), max(items for _, items in programs)), np.int64)
    worker = 0
    for count, row in raw:
        workers, items = next(((w, n) for w, n in programs if worker in w), (range(0), 0))
        require(type(count) is int and 0 < count <= workers.stop - worker, "times: malformed")
        level[worker : worker + count, :items] = integers(row, "times", items)
        worker += count
    require(worker == len(level), "times: malformed")
    return level


def read_claims(raw: object, workers: int, instances: int) -> Claims:
    """[[instance, threshold, [value, repeat, value, repeat, ...]], ...]"""
    require(isinstance(raw, list) and len(raw) * workers <= 1 << 26, "clocks: malformed")
    assert isinstance(raw, list)
    claims: Claims = {}
    for entry in raw:
        require(isinstance(entry, list) and len(entry) == 3, "clocks: malformed")
        instance, threshold = integers(entry[:2], "clocks", 2, MOST).tolist()
        coded = integers(entry[2], "clocks")
        require(instance < instances, "clocks: no such counter")
        require(len(coded) % 2 == 0 and int(coded[1::2].sum()) == workers, "clocks: malformed")
        claims[instance, threshold] = np.repeat(coded[::2], coded[1::2])
    return claims
