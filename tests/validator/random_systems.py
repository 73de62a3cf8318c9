"""Seeded random small systems: partial thresholds, weights, initial values, overlapping accesses, dataflow values.

A random interleaving is drawn first; thresholds and expected values are taken mostly from it, so that the verdicts are
close calls: most systems run to completion, many are race free, and a changed threshold or value changes the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import numpy as np

from amk.adversary.system_builder import SystemBuilder
from amk.validator.program.system import ACCUMULATE_FLOAT, ACCUMULATE_INT, DONT_CARE, READ, WRITE, System
from tests.validator.batches import Batch

KINDS = (READ, READ, READ, WRITE, WRITE, WRITE, ACCUMULATE_INT, ACCUMULATE_FLOAT)
SUMS = (READ, WRITE, ACCUMULATE_INT, *(ACCUMULATE_FLOAT,) * 5)
BYTES = 4
Content = tuple[int, int]


@dataclass
class Draw:
    """One system being drawn along its interleaving; `buffer` and `first` (its first counter) tell systems apart."""

    rng: Random
    build: SystemBuilder = field(default_factory=SystemBuilder)
    value: list[int] = field(default_factory=list)
    memory: dict[int, Content] = field(default_factory=dict)
    buffer: int = 0
    first: int = 0

    def counters(self) -> None:
        for number in range(self.rng.randint(1, 4)):
            init = self.rng.choice((0, 0, 0, 1, 2))
            counter = self.build.counter(init)
            self.first = counter if number == 0 else self.first
            self.value.append(init)

    def contents(self) -> None:
        for byte in range(BYTES):
            if self.rng.random() < 0.9:
                self.memory[byte] = (self.rng.randint(0, 1), 0)
                self.build.initial(self.buffer, byte, byte + 1, *self.memory[byte])

    def waits(self, event: int) -> None:
        rng = self.rng
        for _ in range(rng.choice((0, 0, 1, 1, 1, 2))):
            counter = rng.randrange(len(self.value))
            now = self.value[counter]
            threshold = max(0, now - rng.choice((0, 0, 0, 0, 1, 1, 2, 3)))
            self.build.wait(event, self.first + counter, threshold + (rng.randint(1, 3) if rng.random() < 0.04 else 0))

    def accesses(self, event: int, much: float, kinds: tuple[int, ...]) -> None:
        rng = self.rng
        for _ in range(rng.choice((1, 1, 2)) if rng.random() < much else 0):
            kind, lo = rng.choice(kinds), rng.randrange(BYTES)
            hi = lo + 1 if rng.random() < 0.7 else rng.randint(lo + 1, BYTES)
            now = self.memory.get(lo, (0, 0))
            value, delta = (now if kind != WRITE else (rng.randint(0, 2), 0)) if rng.random() < 0.9 else (1, 4)
            value = DONT_CARE if rng.random() < 0.05 else value
            self.build.access(event, kind, self.buffer, lo, hi, value, delta)
            if kind != READ:
                self.memory |= {byte: (value, delta) for byte in range(lo, hi)}

    def signals(self, event: int) -> None:
        for _ in range(self.rng.choice((0, 1, 1, 1, 2))):
            counter, amount = self.rng.randrange(len(self.value)), self.rng.choice((1, 1, 1, 1, 2, 3))
            self.build.signal(event, self.first + counter, amount)
            self.value[counter] += amount


def random_system(rng: Random, max_agents: int = 4, max_events: int = 4) -> System:
    draw = Draw(rng)
    draw_system(draw, max_agents, max_events)
    return draw.build.build()


def draw_system(draw: Draw, max_agents: int = 4, max_events: int = 4) -> int:
    """Add one system to the draw's builder; returns its number of agents."""
    rng = draw.rng
    draw.counters()
    draw.contents()
    agents = rng.randint(2, max_agents)
    size = max_events if agents < 4 else max_events - 1
    plan = [agent for agent in range(agents) for _ in range(rng.randint(1, size))]
    rng.shuffle(plan)
    much, kinds = rng.choice((0.2, 0.4, 0.8)), rng.choice((KINDS, KINDS, KINDS, SUMS))
    numbers = [draw.build.agent() for _ in range(agents)]
    for agent in plan:
        event = draw.build.event(numbers[agent])
        draw.waits(event)
        draw.accesses(event, much, kinds)
        draw.signals(event)
    for byte, content in draw.memory.items() if rng.random() < 0.4 else ():
        draw.build.final(draw.buffer, byte, byte + 1, *content)
    return agents


def random_batch(rng: Random, count: int) -> Batch:
    """`count` independent systems as one."""
    build, first = SystemBuilder(), [0]
    for number in range(count):
        first.append(first[-1] + draw_system(Draw(rng, build, buffer=number)))
    return Batch(build.build(), np.array(first))


def random_systems(count: int, seed: int, **shape: int) -> Iterator[System]:
    rng = Random(seed)
    for _ in range(count):
        yield random_system(rng, **shape)
