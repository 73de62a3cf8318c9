"""Where the simulator sees the time of a token go, step by step: what edits are aimed at."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from amk.schedule_ir.edits.tree import Leaf, tree, walk
from amk.simulator.engine import Part
from amk.simulator.predict import Prediction
from amk.simulator.runs import runs

STREAMED: tuple[Part, ...] = ("memory",)
"""Time in which the memory is what a step waits for: no change of the order makes it shorter."""


@dataclass(frozen=True)
class StepTimes:
    """us: by name of the step, mean microseconds of a worker in the simulated layers, but for time in which memory is
    at work; bottleneck: the phase that loses most so, and to what; ms: of the token."""

    us: dict[str, float]
    bottleneck: str
    ms: float


def step_times(found: Prediction) -> StepTimes:
    return StepTimes(by_step(found), bottleneck(found), found.ms)


def bottleneck(found: Prediction) -> str:
    """The phase that loses most while no memory is at work, and to what: `down: drain`."""
    lost = [(us, phase.name, part) for phase in found.phases for part, us in phase.parts.items()
            if part not in STREAMED]  # fmt: skip
    _, phase, part = max(lost, default=(0.0, "none", "memory"))
    return f"{phase}: {part}"


def by_step(found: Prediction) -> dict[str, float]:
    """Empty for several loops of layers, of which only one is in the prediction."""
    if len(runs(found.schedule)) > 1:
        return {}
    names = [
        [leaf.name for _, leaf in walk(tree(program)) if isinstance(leaf, Leaf)] for program in found.schedule.programs
    ]
    workers = sum(len(group.workers) for group in found.window.groups)
    us: dict[str, float] = defaultdict(float)
    for span in found.spans:
        if span.part in STREAMED:
            continue
        group = found.window.groups[span.group]
        site = found.window.items[group.program][span.item].site
        us[names[group.program][site.number]] += (span.end - span.start) * len(group.workers) / workers
    return dict(us)
