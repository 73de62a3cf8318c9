"""The unit of work: a paired comparison of a candidate with the incumbent on one device.

A round is four blocks, incumbent, candidate, candidate, incumbent (ABBA), so that a linear drift cancels. A block is
the median over `steps` steps at each position, in ms per token. The value of a round is the mean over positions of
(ln B1 + ln B2 - ln A1 - ln A2) / 2: negative is faster. In all but pilots the two halves of a round, AB and BA, are
measured in different places: both programs are loaded anew, each where the other was (`gpu_backend.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import TYPE_CHECKING, Protocol

import numpy as np

from amk.agent.journal.events import Phase

if TYPE_CHECKING:
    from amk.agent.gate.gate import Ready

POSITIONS = (1, 128, 2048, 8191)
"""Never position 0 alone: a plan that is fast only with an empty cache is not fast."""

STEPS: dict[Phase, int] = {"calibrate": 10, "pilot": 10, "paired test": 10, "confirm": 10}
"""Most steps of a block at each position. A round is the unit of the statistics, and varies no less with 20 steps: six
rounds of a pilot by 0.09% with 20, of a paired test by 0.08% with 10 (llama3.2-1b int8, H100 and H200)."""
FEWEST_STEPS = 5
BLOCK_MS: dict[Phase, float] = {"calibrate": 10.0, "pilot": 10.0, "paired test": 10.0, "confirm": 10.0}
"""A block needs no more steps than take this long at one position: long steps vary less."""
ROUNDS: dict[Phase, int] = {"calibrate": 24, "pilot": 6, "paired test": 24, "confirm": 24}
HOPELESS_ROUNDS = 2
"""A pilot ends early when its first rounds agree that the candidate has no paired test, a paired test at its half."""

ABBA = "abba"
Block = tuple[float, ...]


@dataclass(frozen=True)
class Job:
    """`seed` is drawn afresh for every attempt; inputs of the device derive from it, so no proposal can know them.
    slower: the log loss that ends a pilot when its first rounds all show more; at_once: when its first round does.
    half: the log ratio that ends a paired test when the median of its first half is above it."""

    index: int
    phase: Phase
    attempt: int
    rounds: int
    steps: int
    positions: tuple[int, ...]
    seed: int
    slower: float = inf
    at_once: float = inf
    half: float = inf

    @property
    def fresh(self) -> bool:
        """Confirmation runs in a process that has run nothing else."""
        return self.phase == "confirm"


@dataclass(frozen=True)
class Samples:
    """rounds[r][i] is block i of ABBA in round r, ms per position. seconds: device time spent."""

    rounds: tuple[tuple[Block, Block, Block, Block], ...]
    seconds: float

    @property
    def log_ratios(self) -> tuple[float, ...]:
        return tuple(round_ratio(r) for r in self.rounds)

    def median_ms(self, which: str) -> tuple[float, ...]:
        """Median ms per position of program "a" or "b" over all its blocks."""
        blocks = [r[i] for r in self.rounds for i in range(4) if ABBA[i] == which]
        return tuple(float(v) for v in np.median(np.array(blocks), axis=0))


@dataclass(frozen=True)
class Fault:
    """Why there are no samples. `suspect`: it looks like a faked result, not like a failure."""

    kind: str
    detail: str = ""
    seconds: float = 0.0
    suspect: bool = False


def steps_of(phase: Phase, step_ms: float | None) -> int:
    """Steps of a block at each position, where one takes about `step_ms`."""
    if step_ms is None:
        return STEPS[phase]
    return max(FEWEST_STEPS, min(STEPS[phase], ceil(BLOCK_MS[phase] / step_ms)))


class Backend(Protocol):
    """Something that can compare two candidates. One instance has one device."""

    @property
    def label(self) -> str:
        """What numbers of this back end are called wherever they are shown."""
        ...

    @property
    def device(self) -> str: ...

    @property
    def card(self) -> str:
        """The physical device, which tells whether its noise is known; "" if there is no telling."""
        ...

    @property
    def simulated(self) -> bool: ...

    def measure(self, job: Job, incumbent: Ready, candidate: Ready) -> Samples | Fault: ...

    def stop(self) -> None:
        """Make a running `measure` return soon; called from another thread. Nothing is measured afterwards."""
        ...

    def close(self) -> None: ...


def round_ratio(blocks: Sequence[Block]) -> float:
    """Log time of the candidate over the incumbent in one ABBA round."""
    a1, b1, b2, a2 = (np.log(np.array(b)) for b in blocks)
    return float(np.mean(b1 + b2 - a1 - a2) / 2)


def hopeless(job: Job, rounds: Sequence[tuple[Block, Block, Block, Block]]) -> bool:
    """Whether more rounds of a pilot or a paired test would be wasted. A confirmation is always whole."""
    if job.phase == "paired test" and len(rounds) == job.rounds // 2:
        return float(np.median([round_ratio(r) for r in rounds])) > job.half
    if job.phase != "pilot" or not rounds:
        return False
    first = [round_ratio(r) for r in rounds[:HOPELESS_ROUNDS]]
    return first[0] > job.at_once or (len(first) == HOPELESS_ROUNDS and min(first) > job.slower)


def positions_within(context: int) -> tuple[int, ...]:
    """The objective's positions, those beyond the cache replaced by its last one."""
    return tuple(sorted({min(p, context - 1) for p in POSITIONS}))
