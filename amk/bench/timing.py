"""Times of several contestants in one process, taken in turn so that clocks and neighbours treat them alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from amk.bench.times import Times, summary

WARM_UP = 5
HEAD_START = 400_000
"""Clock cycles (0.2 ms), more than a busy host needs to enqueue a launch. Its time differs by host and load; decoding
hides it, since the next launch is enqueued while one runs."""


class WrongBaseline(RuntimeError):
    """A baseline whose logits are not those of the model: it is not timed."""


@dataclass(frozen=True)
class Contestant:
    """`run` enqueues the work of `tokens` tokens on `stream`; `prepare` runs before it, outside the measured time.

    free: gives back what it holds.
    """

    name: str
    tokens: int
    stream: torch.cuda.Stream
    run: Callable[[], None]
    prepare: Callable[[], None] = lambda: None
    free: Callable[[], None] = lambda: None


def race(contestants: Sequence[Contestant], rounds: int) -> dict[str, Times]:
    """`rounds` measurements of each contestant in turn, after `WARM_UP` that do not count."""
    found: dict[str, list[float]] = {c.name: [] for c in contestants}
    for i in range(rounds + WARM_UP):
        for contestant in contestants:
            contestant.prepare()
            elapsed = timed(contestant.stream, contestant.run, HEAD_START) / contestant.tokens
            if i >= WARM_UP:
                found[contestant.name].append(elapsed)
    return {name: summary(times) for name, times in found.items()}


def timed(stream: torch.cuda.Stream, work: Callable[[], None], head_start: int = 0) -> float:
    """Milliseconds of device time between two events around `work`.

    head_start: clock cycles that the stream is kept busy before the first event. While the host enqueues an idle stream
    waits, and that wait counts; with a head start longer than it nothing but the work does.
    """
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    if head_start:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(head_start)
    start.record(stream)
    work()
    end.record(stream)
    end.synchronize()
    return float(start.elapsed_time(end))
