"""How a request chooses its tokens, which choices a schedule can make, and what the buffers of a draw hold.

Semantics, in this order: logits / temperature; top-k keeps the k most probable rows; top-p keeps the smallest set of
the most probable of them whose probabilities, renormalised, reach p; a row is drawn from the softmax of what is left.
Rows that tie with the last one kept are kept as well; between equal scores the lowest row wins. These are the filters
of transformers' `generate`, where top-k keeps ties too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from amk.report.diagnostic import AmkError, Diagnostic, because

Mode = Literal["greedy", "temperature", "top-k", "top-p", "top-k-top-p"]
"""What a schedule can do: take the largest logit; draw from all rows; from those that one or both filters leave."""
MODES: tuple[Mode, ...] = get_args(Mode)

PARAMETERS = ("inverse_temperature", "top_k", "top_p", "seed_low", "seed_high")
"""i32 words of the `sampling` buffer: float32 bits of 1 / T (0: take the largest logit), k (0: no top-k),
p * 2^32 (0: no top-p), and the seed."""

PICK = ("keep", "cut", "goal_low", "goal_high", "peak")
"""i32 words of an agent's place in `pick`: rows with key >= keep are in; the search stands at `cut` and looks for
`goal` (two 30-bit halves); bits of the largest logit."""
GOAL, PEAK = PICK.index("goal_low"), PICK.index("peak")
"""A round leaves the words before `PEAK` to the next one; the interval is in those before `GOAL`."""

PIVOTS = 32
SHIFTS = (27, 22, 17, 12, 7, 2, 0)
"""Round r of a search looks at keys cut + (j << SHIFTS[r]); the last one has 2 bits left."""
ROUNDS = len(SHIFTS)
LAST = 2 * ROUNDS
"""Rounds [0, ROUNDS) search the cut of top-k, [ROUNDS, LAST) that of top-p."""

TALLY = 2 * PIVOTS
"""i32 words of 32 sums: the low and the high 30 bits of each."""

SEARCHES: dict[Mode, range] = {
    "temperature": range(LAST, LAST),
    "top-k": range(ROUNDS),
    "top-p": range(ROUNDS, LAST),
    "top-k-top-p": range(LAST),
}
"""Rounds of counting that find the cuts of a mode; greedy has none and draws nothing."""

COLDEST, HOTTEST = 1e-3, 1e3
MOST_ROWS = 1 << 24


@dataclass(frozen=True)
class Sampling:
    """temperature 0 takes the largest logit. top_k 0 and top_p 1 filter nothing. seed: 64 bits."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """AMK015 (exit 2) for a value outside its range."""
        t, p = self.temperature, self.top_p
        if not (t == 0 or (math.isfinite(t) and COLDEST <= t <= HOTTEST)):
            raise _outside("temperature", t, f"0 (always the most probable token) or {COLDEST:g} to {HOTTEST:g}")
        if not 0 <= self.top_k <= MOST_ROWS:
            raise _outside("top-k", self.top_k, f"0 (no filter) to {MOST_ROWS:,}")
        if not 0 < p <= 1:
            raise _outside("top-p", p, "above 0, and at most 1 (no filter)")
        if not 0 <= self.seed < 1 << 64:
            raise _outside("seed", self.seed, "0 to 2^64 - 1")

    @property
    def mode(self) -> Mode:
        """The least that a schedule must be able to do for this request."""
        if self.temperature == 0:
            return "greedy"
        if self.top_p < 1:
            return "top-k-top-p" if self.top_k else "top-p"
        return "top-k" if self.top_k else "temperature"

    def words(self) -> NDArray[np.int32]:
        """Content of the `sampling` buffer."""
        inverse = word_of(1 / self.temperature) if self.temperature else 0
        p = max(1, round(self.top_p * 2**32)) if self.top_p < 1 else 0
        p = min(p, 2**32 - 1)
        values = (inverse, self.top_k, signed(p), signed(self.seed), signed(self.seed >> 32))
        assert len(values) == len(PARAMETERS)
        return np.array(values, np.int32)


GREEDY = Sampling()


def serves(mode: Mode, sampling: Sampling) -> bool:
    """Whether a schedule of mode `mode` can choose tokens so."""
    wanted = sampling.mode
    return wanted == "greedy" or (mode != "greedy" and set(SEARCHES[wanted]) <= set(SEARCHES[mode]))


def require(mode: Mode, sampling: Sampling) -> None:
    """AMK015 (exit 2) unless a schedule of mode `mode` can serve the request."""
    wanted = sampling.mode
    if serves(mode, sampling):
        return
    does = "takes the most probable token" if mode == "greedy" else f"was planned for {mode} sampling"
    message = f"the schedule {does}, the request needs {wanted} sampling"
    facts = (because("the steps that draw and filter are part of the schedule that was proved"),)
    raise AmkError(Diagnostic("AMK015", message, facts=facts, help=f"plan with --sampling {wanted}"))


def _outside(name: str, value: float, bounds: str) -> AmkError:
    return AmkError(Diagnostic("AMK015", f"{name} is {value}, it must be {bounds}"))


def word_of(value: float) -> int:
    """The bits of a float32, as the signed number that an i32 buffer holds."""
    return int(np.float32(value).reshape(1).view(np.int32)[0])


def signed(word: int) -> int:
    """An unsigned 32-bit number as the signed one with the same bits."""
    return (word & 0xFFFFFFFF) - (1 << 32 if word & 0x80000000 else 0)
