"""The back end of a real device: the measurement protocol, spoken to a supervised worker."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from amk.agent.device import audit
from amk.agent.device.measure import ABBA, Block, Fault, Job, Samples, hopeless
from amk.agent.device.supervisor import Supervisor, nonce
from amk.agent.device.wire import Answer, Check, Load, Slot
from amk.agent.device.wire import Block as BlockQuestion
from amk.agent.gate.gate import Ready

LOAD_SECONDS = 180.0
CHECK_SECONDS = 120.0
BLOCK_FACTOR = 20.0
BLOCK_SECONDS = 10.0
"""A block may take this long, plus BLOCK_FACTOR times what the incumbent needed."""

ROUNDS_IN_PLACE = 12
"""Rounds in one pair of places. Where a program and its data came to lie makes up to 0.7% of a small model's step."""

Four = tuple[Block, Block, Block, Block]


@dataclass
class GpuBackend:
    """`name` is the device as the system calls it, `card` which one it is. `drawn` draws secret seeds; tests fix it."""

    supervisor: Supervisor
    name: str
    load_seconds: float = LOAD_SECONDS
    check_seconds: float = CHECK_SECONDS
    block_seconds: float = BLOCK_SECONDS
    drawn: Callable[[], int] = nonce
    simulated: bool = False
    card: str = ""
    _starts: int = 0
    _loaded: dict[Slot, str] = field(default_factory=dict)
    _order: tuple[Slot, Slot] = ("a", "b")
    _calibrated: dict[str, Block] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.name

    @property
    def device(self) -> str:
        return f"{self.name} #{self.supervisor.device}"

    def measure(self, job: Job, incumbent: Ready, candidate: Ready) -> Samples | Fault:
        began = time.monotonic()
        result = self._measure(job, incumbent, candidate, began)
        if isinstance(result, Fault):
            self._loaded.clear()
            lost = self.supervisor.recover()
            return lost or Fault(result.kind, result.detail, time.monotonic() - began, result.suspect)
        return result

    def stop(self) -> None:
        self.supervisor.stopping.set()

    def close(self) -> None:
        self.supervisor.kill()

    def _measure(self, job: Job, incumbent: Ready, candidate: Ready, began: float) -> Samples | Fault:
        fault = self._prepare(job, incumbent, candidate) or self._check(job, "before")
        if fault:
            return fault
        pilot = job.phase == "pilot"
        rounds = self._pilot(job, incumbent, candidate) if pilot else self._seated(job, incumbent, candidate)
        if isinstance(rounds, Fault):
            return rounds
        samples = Samples(tuple(rounds), time.monotonic() - began)
        if hopeless(job, rounds):
            return samples
        return self._check(job, "after") or self._steady(job, incumbent, samples) or samples

    def _pilot(self, job: Job, incumbent: Ready, candidate: Ready) -> list[Four] | Fault:
        """Rounds until there are enough, or no hope."""
        rounds: list[Four] = []
        while len(rounds) < job.rounds and not hopeless(job, rounds):
            found = self._blocks(job, incumbent, candidate, ABBA)
            if isinstance(found, Fault):
                return found
            rounds += halves(found[:2], found[2:])
        return rounds

    def _seated(self, job: Job, incumbent: Ready, candidate: Ready) -> list[Four] | Fault:
        """Rounds whose two halves were measured in exchanged places, until there are enough, or no hope."""
        rounds: list[Four] = []
        while len(rounds) < job.rounds and not hopeless(job, rounds):
            if rounds and (fault := self._exchange(incumbent, candidate)):
                return fault
            count = min(ROUNDS_IN_PLACE, job.rounds - len(rounds))
            first = self._blocks(job, incumbent, candidate, ABBA[:2] * count)
            if isinstance(first, Fault):
                return first
            if fault := self._exchange(incumbent, candidate):
                return fault
            second = self._blocks(job, incumbent, candidate, ABBA[2:] * count)
            if isinstance(second, Fault):
                return second
            rounds += halves(first, second)
        return rounds

    def _exchange(self, incumbent: Ready, candidate: Ready) -> Fault | None:
        """Both programs are loaded anew, each into the other's slot."""
        self._order = (self._order[1], self._order[0])
        pairs = zip(self._order, (incumbent, candidate), strict=True)
        return next((fault for slot, ready in pairs if (fault := self._load(slot, ready))), None)

    def _prepare(self, job: Job, incumbent: Ready, candidate: Ready) -> Fault | None:
        """Both programs in their slots; what a new incumbent was as a candidate stays where it is."""
        fault = self.supervisor.fresh() if job.fresh else self.supervisor.ready()
        if fault:
            return fault
        if self.supervisor.starts != self._starts:
            self._loaded, self._starts, self._order = {}, self.supervisor.starts, ("a", "b")
        if self._loaded.get(self._order[1]) == incumbent.candidate.key != self._loaded.get(self._order[0]):
            self._order = (self._order[1], self._order[0])
        pairs = [(s, r) for s, r in zip(self._order, (incumbent, candidate), strict=True) if not self._holds(s, r)]
        return next((fault for slot, ready in pairs if (fault := self._load(slot, ready))), None)

    def _holds(self, slot: Slot, ready: Ready) -> bool:
        return self._loaded.get(slot) == ready.candidate.key

    def _load(self, slot: Slot, ready: Ready) -> Fault | None:
        program, key = ready.candidate.schedule.model_dump_json(), ready.candidate.key
        kernel = base64.b64encode(ready.kernel).decode()
        question = Load(nonce=nonce(), slot=slot, seed=self.drawn(), schedule=program, kernel=kernel, key=key)
        answered = self.supervisor.ask(question, self.load_seconds)
        fault = answered if isinstance(answered, Fault) else audit.loaded(answered, key)
        if fault is None:
            self._loaded[slot] = key
        return fault

    def _check(self, job: Job, when: str) -> Fault | None:
        """Both programs on the same secret inputs, which no earlier check has used."""
        seed = self.drawn()
        for slot in self._order:
            question = Check(nonce=nonce(), slot=slot, positions=job.positions, seed=seed)
            answered = self.supervisor.ask(question, self.check_seconds)
            fault = answered if isinstance(answered, Fault) else audit.correct(answered, job.positions, when)
            if fault:
                return self._blame(fault, slot)
        return None

    def _blocks(self, job: Job, incumbent: Ready, candidate: Ready, letters: str) -> list[Block] | Fault:
        """One block for each of `letters`."""
        blocks: list[Block] = []
        for letter in letters:
            slot, ready = self._order["ab".index(letter)], incumbent if letter == "a" else candidate
            found = self._block(job, slot, ready)
            if isinstance(found, Fault):
                return self._blame(found, slot)
            blocks.append(found)
        return blocks

    def _block(self, job: Job, slot: Slot, ready: Ready) -> Block | Fault:
        question = BlockQuestion(nonce=nonce(), slot=slot, positions=job.positions, steps=job.steps)
        known = max(self._calibrated.values(), key=sum, default=())
        seconds = self.block_seconds + BLOCK_FACTOR * sum(known) * job.steps / 1e3
        began = time.monotonic()
        answered = self.supervisor.ask(question, seconds)
        if isinstance(answered, Fault):
            return answered
        wall = time.monotonic() - began
        schedule = ready.candidate.schedule
        if fault := audit.timed(answered, schedule, job.positions, job.steps, wall):
            return fault
        return medians(answered)

    def _blame(self, fault: Fault, slot: Slot) -> Fault:
        """What the incumbent does wrong is not held against the candidate."""
        if slot == self._order[0] and fault.suspect:
            return Fault(f"incumbent_{fault.kind}", fault.detail, fault.seconds)
        return fault

    def _steady(self, job: Job, incumbent: Ready, samples: Samples) -> Fault | None:
        now = samples.median_ms("a")
        known = self._calibrated.setdefault(incumbent.candidate.key, now)
        return audit.steady(now, known) if job.phase != "calibrate" else None


def halves(first: Sequence[Block], second: Sequence[Block]) -> list[Four]:
    """Rounds of blocks a, b of one half and b, a of the other."""
    pairs = (zip(half[::2], half[1::2], strict=True) for half in (first, second))
    return [(a1, b1, b2, a2) for (a1, b1), (b2, a2) in zip(*pairs, strict=True)]


def medians(answer: Answer) -> Block:
    return tuple(float(np.median(series)) for series in answer.times)
