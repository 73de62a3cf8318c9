"""Where the simulator sees the time of a token go, step by step: what edits are aimed at."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from amk.schedule_ir.edits.tree import Leaf, tree, walk
from amk.simulator.predict import STREAMED, Prediction
from amk.simulator.runs import runs


@dataclass(frozen=True)
class StepTimes:
    """us: by name of the step, mean microseconds of a worker in the simulated layers, but for time in which memory is
    at work; bottleneck: the phase that loses most so, and to what; ms: of the token."""

    us: dict[str, float]
    bottleneck: str
    ms: float


def step_times(prediction: Prediction) -> StepTimes:
    return StepTimes(by_step(prediction), prediction.bottleneck, prediction.ms)


def by_step(prediction: Prediction) -> dict[str, float]:
    """Empty for several loops of layers, of which only one is in the prediction."""
    if len(runs(prediction.schedule)) > 1:
        return {}
    names = [
        [leaf.name for _, leaf in walk(tree(program)) if isinstance(leaf, Leaf)]
        for program in prediction.schedule.programs
    ]
    workers = sum(len(group.workers) for group in prediction.window.groups)
    us: dict[str, float] = defaultdict(float)
    for span in prediction.spans:
        if span.part in STREAMED:
            continue
        group = prediction.window.groups[span.group]
        site = prediction.window.items[group.program][span.item].site
        us[names[group.program][site.number]] += (span.end - span.start) * len(group.workers) / workers
    return dict(us)
