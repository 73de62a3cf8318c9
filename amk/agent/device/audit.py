"""What a worker reports is evidence to be examined, not a result.

Every way to look fast without being fast that is known ends in a named fault. `suspect` faults quarantine the
candidate: they cannot happen to an honest kernel on a working device.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np

from amk.agent.device.measure import Fault
from amk.agent.device.wire import Answer, PositionCheck
from amk.schedule_ir.schedule import Schedule
from amk.simulator.floor import floor_ms

MARGIN = 1.1
"""A kernel's error may be this many times that of a bf16 reference implementation on the same inputs."""

DRIFT = 1.25
"""The incumbent may be this many times slower than its own calibration before its rounds are void."""

FLOOR_SLACK = 0.98
MOST_IDLE = 200.0
"""Wall time of a block may exceed the reported device time by this factor plus IDLE_SECONDS, no more."""
IDLE_SECONDS = 1.0


def loaded(answer: Answer, key: str) -> Fault | None:
    """The program that was loaded is the one that was asked for."""
    if answer.error:
        return Fault("load_failed", f"{answer.kind}: {answer.error}")
    if answer.key != key:
        return Fault("wrong_program", "another program than the certified one was loaded", suspect=True)
    return None


def correct(answer: Answer, positions: Sequence[int], when: str) -> Fault | None:
    """Outputs agree with the oracle at every position; the comparison fails for anything that is not a number."""
    if answer.error:
        return Fault("check_failed", f"{when}: {answer.kind}: {answer.error}")
    if tuple(c.pos for c in answer.checks) != tuple(positions):
        return Fault("missing_checks", f"{when}: not every position was checked", suspect=True)
    for check in answer.checks:
        if fault := _wrong(check, when):
            return fault
    return None


def _wrong(check: PositionCheck, when: str) -> Fault | None:
    place = f"{when}, position {check.pos}"
    if not check.finite or not isfinite(check.error):
        return Fault("not_a_number", f"{place}: the output holds values that are no numbers", suspect=True)
    if not check.repeated:
        return Fault("not_reproducible", f"{place}: two runs on the same inputs differ", suspect=True)
    if not (0 <= check.error <= MARGIN * check.oracle_error):
        detail = f"{place}: error {check.error:.3g}, bf16 reference {check.oracle_error:.3g}"
        return Fault(f"incorrect_{when}", detail, suspect=True)
    return None


def timed(answer: Answer, schedule: Schedule, positions: Sequence[int], steps: int, wall: float) -> Fault | None:
    """The block did the work that it reports, in a time that light and the driver's own clock allow."""
    if answer.error:
        return Fault("block_failed", f"{answer.kind}: {answer.error}")
    times = answer.times
    if len(times) != len(positions) or any(len(t) != steps for t in times):
        return Fault("missing_samples", "fewer samples than steps", suspect=True)
    if any(not isfinite(ms) or ms <= 0 for t in times for ms in t):
        return Fault("bad_time", "a time that is zero, negative or no number", suspect=True)
    if answer.tokens != steps * len(positions):
        detail = f"the device's epoch advanced by {answer.tokens}, not {steps * len(positions)}"
        return Fault("work_missing", detail, suspect=True)
    total = sum(sum(t) for t in times) / 1e3
    if total > wall * 1.05 + 0.001:
        return Fault("time_exceeds_wall", f"{total:.3f} s reported within {wall:.3f} s", suspect=True)
    if wall > total * MOST_IDLE + IDLE_SECONDS:
        return Fault("time_unexplained", f"{total:.6f} s reported, the block took {wall:.3f} s", suspect=True)
    for pos, series in zip(positions, times, strict=True):
        floor, median = floor_ms(schedule, pos), float(np.median(series))
        if median < FLOOR_SLACK * floor:
            detail = f"{median:.4f} ms at position {pos}; reading the weights alone takes {floor:.4f}"
            return Fault("below_floor", detail, suspect=True)
    return None


def steady(now: Sequence[float], calibrated: Sequence[float]) -> Fault | None:
    """The incumbent runs as it did when it was calibrated; a slowed incumbent would make any candidate look fast."""
    if len(now) != len(calibrated):
        return Fault("incumbent_drift", "the incumbent was calibrated at other positions", suspect=True)
    worst = max(n / c for n, c in zip(now, calibrated, strict=True))
    if worst > DRIFT:
        return Fault("incumbent_drift", f"the incumbent takes {worst:.2f} times as long as when it was calibrated")
    return None
