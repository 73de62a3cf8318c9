"""Certificates: evidence for SAFE that the independent checker accepts.

Property: the certificate of a SAFE system is accepted by `checker.check`; acceptance proves SAFE whatever made it.

Content: a complete run in run-length form, the clock vector K(c, t) of every distinct (counter, threshold) waited for
(run-length coded: value, repeat, value, repeat, ...), and the claim that float sums have a fixed order.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from amk.validator.memory.flat import Judgement
from amk.validator.program.system import I32, I64

FORMAT: Final = "amk.certificate/1"


class NotSafe(ValueError):
    """Only a SAFE system has a certificate."""


def run_lengths(row: I32 | I64) -> list[int]:
    starts = np.flatnonzero(np.concatenate(([True], row[1:] != row[:-1])))
    lengths = np.diff(np.append(starts, len(row)))
    return np.stack((row[starts].astype(np.int64), lengths), axis=1).reshape(-1).tolist()


def make_certificate(judgement: Judgement) -> dict[str, Any]:
    """Certificate of a SAFE judgement as plain JSON; raises `NotSafe`."""
    if not judgement.safe:
        raise NotSafe("the system is not safe")
    clocks = judgement.clocks
    return {
        "format": FORMAT,
        "system": clocks.system.digest,
        "deterministic": judgement.races.deterministic,
        "order": judgement.run.legs[:, [0, 2]].tolist(),
        "thresholds": clocks.threshold_keys.tolist(),
        "clocks": [run_lengths(row) for row in clocks.threshold_rows],
    }
