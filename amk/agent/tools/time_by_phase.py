"""Where a token of a plan goes, in words for whoever proposes: time by phase, and what a worker does or waits for."""

from __future__ import annotations

from collections.abc import Sequence

from amk.schedule_ir.schedule import Schedule
from amk.simulator.engine import PARTS
from amk.simulator.predict import Phase, predict

WORTH_SAYING = 0.03
"""Share of a phase below which a part of it is left out."""


def time_by_phase(schedule: Schedule, positions: Sequence[int]) -> str:
    """The simulator's trace, summed up at the first and the last of `positions`; microseconds, mean of the workers."""
    lines = []
    for pos in sorted({positions[0], positions[-1]}):
        found = predict(schedule, pos)
        lines.append(
            f"A token of the incumbent at position {pos}, predicted by the simulator: {1e3 * found.ms:.1f} us, "
            f"floor {1e3 * found.floor_ms:.1f} us; us by phase, and in it:"
        )
        lines += [f"{phase.name}: {phase.us:.1f} ({parts_of(phase)})" for phase in found.phases]
    return "\n".join(lines)


def parts_of(phase: Phase) -> str:
    told = [part for part in PARTS if phase.parts.get(part, 0.0) > WORTH_SAYING * phase.us]
    return ", ".join(f"{part} {phase.parts[part]:.1f}" for part in told)
