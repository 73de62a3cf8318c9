"""Times of several contestants in one process, taken in turn so that clocks and neighbours treat them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from amk.bench.tools.times import Times, summary

WARM_UP = 5
HEAD_START = 400_000
"""Clock cycles (0.2 ms), more than a busy host needs to enqueue a launch. Its time differs by host and load; decoding
hides it, since the next launch is enqueued while one runs."""
STALL = 1e-3
"""Seconds that enqueuing takes only where the host is held up, by other work on its processor or in the driver: the
device may have waited between the two events."""
TRIES = 10


class WrongBaseline(RuntimeError):
    """A baseline whose logits are not those of the model: it is not timed."""


@dataclass(frozen=True)
class Contestant:
    """`run` enqueues the work of `tokens` tokens on `stream`; `prepare` runs before it, outside the measured time.

    free: gives back what it holds. variants: ms of each way that was tried, of which it is the fastest.
    repeats: `run` may follow itself without `prepare`. error: relative 2-norm of its logits, where that was told.
    """

    name: str
    tokens: int
    stream: torch.cuda.Stream
    run: Callable[[], None]
    prepare: Callable[[], None] = lambda: None
    free: Callable[[], None] = lambda: None
    variants: Mapping[str, float] = field(default_factory=dict)
    repeats: bool = True
    error: float | None = None


def take_turns(contestants: Sequence[Contestant], rounds: int) -> dict[str, Times]:
    """`rounds` measurements of each contestant in turn, after `WARM_UP` that do not count."""
    found, stalls = laps(contestants, rounds)
    return {name: summary(times, stalls[name]) for name, times in found.items()}


def laps(contestants: Sequence[Contestant], rounds: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """By name: ms per token of each round, and measurements that the host held up."""
    found: dict[str, list[float]] = {c.name: [] for c in contestants}
    stalls = dict.fromkeys(found, 0)
    for i in range(rounds + WARM_UP):
        for contestant in contestants:
            elapsed, more = undisturbed(lambda c=contestant: _measured(c))  # type: ignore[misc]
            if i >= WARM_UP:
                found[contestant.name].append(elapsed / contestant.tokens)
                stalls[contestant.name] += more
    return found, stalls


def undisturbed(measure: Callable[[], tuple[float, float]]) -> tuple[float, int]:
    """The first of at most `TRIES` measurements during which the host did not stall, and how many were before it.

    measure: (ms of the device, s of the host).
    """
    stalls = 0
    while (measurement := measure())[1] >= STALL and stalls < TRIES - 1:
        stalls += 1
    return measurement[0], stalls


def _measured(contestant: Contestant) -> tuple[float, float]:
    contestant.prepare()
    return _clocked(contestant.stream, contestant.run, HEAD_START)


def timed(stream: torch.cuda.Stream, work: Callable[[], None], head_start: int = 0) -> float:
    """Milliseconds of device time between two events around `work`.

    head_start: clock cycles that the stream is kept busy before the first event. While the host enqueues an idle stream
    waits, and that wait counts; with a head start longer than it nothing but the work does.
    """
    return _clocked(stream, work, head_start)[0]


def _clocked(stream: torch.cuda.Stream, work: Callable[[], None], head_start: int) -> tuple[float, float]:
    """The same, and the seconds that the host took to enqueue all of it."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    began = time.perf_counter()
    if head_start:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(head_start)
    start.record(stream)
    work()
    end.record(stream)
    host = time.perf_counter() - began
    end.synchronize()
    return float(start.elapsed_time(end)), host
