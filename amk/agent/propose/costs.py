"""What a proposal cost, as a share of a mean evaluation: seconds of the GPU, or evaluations where no GPU is at work."""

from __future__ import annotations

from dataclasses import dataclass

from amk.agent.device.measure import steps_of
from amk.agent.journal.state import State, Trial

JUDGEMENT = 0.1
"""Of a proposal of which nothing was measured."""


@dataclass(frozen=True)
class Costs:
    """typical: mean seconds of an evaluation; None where evaluations are the cost."""

    typical: float | None

    @classmethod
    def of(cls, state: State) -> Costs:
        limits = state.limits
        simulated = state.session is None or state.session.simulated
        if simulated and limits.evals is not None and limits.minutes is None:
            return cls(None)
        measured = [seconds for trial in state.trials if (seconds := seconds_of(trial)) > 0]
        return cls(sum(measured) / len(measured) if measured else 1.0)

    def share(self, trial: Trial) -> float:
        used = float(trial.evaluated) if self.typical is None else seconds_of(trial) / self.typical
        return max(JUDGEMENT, used)


def seconds_of(trial: Trial) -> float:
    """What the timed steps of the measurements took, from their medians; a fault counts as nothing."""
    return sum(
        2 * len(m.log_ratios) * (sum(m.candidate_ms) + sum(m.incumbent_ms))
        * steps_of(phase, sum(m.incumbent_ms) / len(m.incumbent_ms)) / 1e3
        for phase, m in trial.measured.items()
    )  # fmt: skip
