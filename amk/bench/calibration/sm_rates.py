"""How fast each SM reads while all of them do: what shares of rows by speed could gain at most.

Every SM streams bytes of its own for the same time. What it read is counted under its number (`%smid`). With equal
shares a product ends when the slowest SM has read its share; with shares by rate all end together. The difference is an
upper bound of the gain: SMs share the memory, so slow ones get what a fast one leaves when it is done.

Shares by SM are not part of plans. A worker is a block, and its SM changes from launch to launch. PTX promises neither
that `%smid` stays nor that it is below the number of SMs. So a kernel would have to claim its worker in memory, and end
where two claim one. amk/lowering/LADDER.md has what shares gained.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from amk.report.diagnostic import AmkError, Diagnostic, Where

Rate = Annotated[float, Field(gt=0, lt=1e5, allow_inf_nan=False)]


class SmRates(BaseModel):
    """gbps[round][i]: 10^9 bytes per second of SM `smid[i]`, all reading at once. run: command, commit, hardware."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    gpu: str
    uuid: str
    smid: tuple[int, ...] = Field(min_length=2, strict=False)
    gbps: tuple[tuple[Rate, ...], ...] = Field(min_length=2, strict=False)
    run: dict[str, object]

    def mean(self) -> NDArray[np.float64]:
        """[SMs] the rate of each SM over the rounds."""
        rates: NDArray[np.float64] = np.asarray(self.gbps, np.float64).mean(axis=0)
        return rates

    def weights(self) -> tuple[float, ...]:
        """The share of each SM by its rate; 1 is an equal share."""
        rates = self.mean()
        return tuple((rates / rates.mean()).tolist())

    def gain(self) -> float:
        """At most this part of the time of a product is saved by shares by rate: 1 - slowest / mean."""
        rates = self.mean()
        return float(1 - rates.min() / rates.mean())

    def repeatable(self) -> float:
        """Correlation of the rates of SMs between the even and the odd rounds: 1 is the SM's own, 0 is noise."""
        rounds = np.asarray(self.gbps, np.float64)
        even, odd = rounds[0::2].mean(axis=0), rounds[1::2].mean(axis=0)
        if even.std() == 0 or odd.std() == 0:
            return 0.0
        return float(np.corrcoef(even, odd)[0, 1])


def of_counts(counts: Sequence[Sequence[tuple[int, int]]], seconds: float) -> tuple[tuple[int, ...], list[list[float]]]:
    """(SM numbers, rates by round) of (SM, bytes) a block and round. AMK603 if two blocks of a round share an SM."""
    numbers = sorted({sm for sm, _ in counts[0]})
    out = []
    for row in counts:
        by_sm = dict(row)
        if len(by_sm) != len(row) or sorted(by_sm) != numbers:
            raise AmkError(Diagnostic("AMK603", "two blocks ran on one SM: shares of the others were not measured"))
        out.append([by_sm[sm] / seconds / 1e9 for sm in numbers])
    return tuple(numbers), out


def lines(rates: SmRates) -> list[str]:
    """For people."""
    weights = rates.weights()
    order = sorted(range(len(weights)), key=lambda i: weights[i])
    slow = ", ".join(f"{rates.smid[i]}: {weights[i]:.3f}" for i in order[:4])
    fast = ", ".join(f"{rates.smid[i]}: {weights[i]:.3f}" for i in order[:-5:-1])
    return [
        f"{rates.gpu} {rates.uuid}: {len(weights)} SMs, {rates.mean().sum():.0f} GB/s together",
        f"slowest SMs {slow}; fastest {fast}",
        f"rates repeat with a correlation of {rates.repeatable():.2f}; shares by rate save at most {rates.gain():.1%}",
    ]


def save(rates: SmRates, path: Path) -> None:
    """AMK001 if it cannot be written."""
    try:
        path.write_text(json.dumps(rates.model_dump(mode="json"), indent=1, sort_keys=True) + "\n")
    except OSError as error:
        raise AmkError(Diagnostic("AMK001", f"cannot write: {error}", where=Where(file=str(path)))) from error
