"""How often the keep rule keeps a candidate of a true gain, under noise of several kinds: its power, and its errors.

    python -m tests.agent.power --record tests/records/search/keep-power.json

A candidate has pilot, paired test and confirmation as on a GPU: a pilot is ABBA after ABBA, a paired test twelve times
AB, then twelve times BA in exchanged places, and again if this half shows half of what is needed. Noise is drawn in the
order of measurement, so that what is locked to the blocks (`period`) meets the order that they really have. Every
candidate has a calibration of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import UTC, datetime
from math import exp, log1p
from pathlib import Path
from typing import Any, get_args

import numpy as np

from amk.agent.decide import calibration
from amk.agent.decide import keep as decide
from amk.agent.device.gpu_backend import ROUNDS_IN_PLACE, halves
from amk.agent.device.measure import ABBA, ROUNDS, round_ratio
from amk.agent.device.noise import Kind, Noise
from amk.bench.tools.provenance import commit

KINDS: tuple[Kind, ...] = tuple(kind for kind in get_args(Kind) if kind != "quiet")
SIGMAS = (0.001, 0.004)
GAINS = (0.0, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03)
CANDIDATES = 500


def pilot(noise: Noise, seed: int, where: int, gain: float = 0.0) -> list[float]:
    """Log ratios of a pilot."""
    count = ROUNDS["pilot"]
    blocks = _blocks(noise, seed, where, ABBA * count, gain)
    return [round_ratio((a1, b1, b2, a2)) for a1, b1, b2, a2 in zip(*(blocks[i::4] for i in range(4)), strict=True)]


def paired_test(noise: Noise, seed: int, where: int, gain: float = 0.0) -> list[float]:
    """Log ratios of a paired test, a confirmation or a calibration."""
    count = ROUNDS["paired test"]
    order = "".join(ABBA[:2] * ROUNDS_IN_PLACE + ABBA[2:] * ROUNDS_IN_PLACE for _ in range(count // ROUNDS_IN_PLACE))
    blocks, found = _blocks(noise, seed, where, order, gain), []
    for at in range(0, len(blocks), 4 * ROUNDS_IN_PLACE):
        middle = at + 2 * ROUNDS_IN_PLACE
        found += halves(blocks[at:middle], blocks[middle : middle + 2 * ROUNDS_IN_PLACE])
    return [round_ratio(four) for four in found]


def _blocks(noise: Noise, seed: int, where: int, order: str, gain: float) -> list[tuple[float, ...]]:
    factors = noise.factors(seed, (where, len(order)), len(order))
    return [(f * exp(-gain) if letter == "b" else f,) for f, letter in zip(factors, order, strict=True)]


def kept(noise: Noise, seed: int, where: int, gain: float, mad: float) -> bool:
    if not decide.pilot(pilot(noise, seed, 3 * where, gain), mad).passed:
        return False
    first, again = (paired_test(noise, seed, 3 * where + i, gain) for i in (1, 2))
    if np.median(first[: len(first) // 2]) > decide.at_half(mad):
        return False
    return all(decide.paired_test(ratios, mad, ROUNDS["paired test"], where).passed for ratios in (first, again))


def power(kind: Kind, sigma: float, candidates: int) -> dict[str, Any]:
    """Share of the candidates that are kept, by true gain; a card that calibration refuses keeps none."""
    noise, counts, uneven = Noise(kind, sigma), dict.fromkeys(GAINS, 0), 0
    for number in range(1, candidates + 1):
        card = paired_test(noise, number, 0)
        if calibration.uneven(card):
            uneven += 1
            continue
        for gain in GAINS:
            counts[gain] += kept(noise, number, 1 + GAINS.index(gain), log1p(gain), decide.spread(card))
    shares = {f"{100 * gain:g}%": round(count / candidates, 3) for gain, count in counts.items()}
    return {"noise": kind, "sigma": sigma, "cards refused": uneven, "kept": shares}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=CANDIDATES)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    rows = [power(kind, sigma, options.candidates) for sigma in SIGMAS for kind in KINDS]
    for row in rows:
        print(row["noise"], row["sigma"], row["cards refused"], *row["kept"].values())
    run = {
        "command": f"python -m tests.agent.power --candidates {options.candidates}", "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "hardware": f"{os.cpu_count()} cores, no GPU",
    }  # fmt: skip
    if options.record is not None:
        text = {"format": 1, "name": "keep-power", "candidates": options.candidates, "rows": rows, "run": run}
        options.record.write_text(json.dumps(text, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
