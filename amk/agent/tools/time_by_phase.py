"""What a worker does or waits for in a phase, in words for whoever proposes."""

from __future__ import annotations

from amk.simulator.engine import PARTS
from amk.simulator.predict import Phase

WORTH_SAYING = 0.03
"""Share of a phase below which a part of it is left out."""


def parts_of(phase: Phase) -> str:
    shares = [part for part in PARTS if phase.parts.get(part, 0.0) > WORTH_SAYING * phase.us]
    return ", ".join(f"{part} {phase.parts[part]:.1f}" for part in shares)
