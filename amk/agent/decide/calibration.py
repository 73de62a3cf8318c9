"""The noise of a card, measured on the incumbent against itself, and how long it holds."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from amk.agent.decide import keep as decide
from amk.agent.device.measure import Backend
from amk.agent.journal.events import Calibrated, Measured
from amk.agent.journal.state import State

HOLDS = 3600.0
"""Seconds that a calibration is young: a run that is resumed on the same card within them keeps it."""


def calibrated(state: State, backend: Backend, measured: Measured, log_ratios: tuple[float, ...]) -> Calibrated:
    """What was just measured."""
    assert state.session is not None
    return Calibrated(
        session=state.session.session, device=backend.device, card=backend.card, at=time.time(),
        mad=decide.spread(log_ratios), incumbent_ms=measured.incumbent_ms,
    )  # fmt: skip


def uneven(log_ratios: Sequence[float]) -> str:
    """Why a card whose two sides were the same program is not to be used: "" if their median is near enough to zero. It
    is as far off as a pilot asks for: of what such a card showed faster, nobody could say that it is."""
    off, most = float(np.median(log_ratios)), decide.PILOT_SHARE * decide.least_gain(decide.spread(log_ratios))
    if abs(off) <= most:
        return ""
    return f"the same program beside itself differs by {decide.percent(-off)}, more than {decide.percent(most)}"


def recent_calibration(state: State, backend: Backend) -> Calibrated | None:
    """The latest calibration of this very card, if it is young; nothing is known of a card without a name, and a clock
    that went back makes no calibration young."""
    assert state.session is not None
    for known in reversed(state.calibrations):
        if backend.card and known.card == backend.card:
            young = 0 <= time.time() - known.at <= HOLDS
            return (
                known.model_copy(update={"session": state.session.session, "device": backend.device}) if young else None
            )
    return None
