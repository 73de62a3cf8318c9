"""What a search on a simulator can bring, said before it begins, and what to measure when it has ended.

Headroom is what is left between the best plan and the floor, the bytes of a step over the memory's bandwidth. The
simulator does not rank plans that differ by less than ERROR, its largest median error on kernels that it was not fitted
to, on the chip that it was fitted to. So a simulated search whose best is nearer to the floor stops once it has
CANDIDATES plans. Its result is a list to be measured, by expected value: the mean of max(gain, 0), where the gain is
normal around the simulated one with ERROR as its spread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import erf, exp, pi, sqrt

from amk.agent.decide.feedback import fate
from amk.agent.decide.keep import least_gain, percent
from amk.agent.decide.rulings import promised
from amk.agent.journal.events import RunStarted
from amk.agent.journal.state import START, State, Trial
from amk.simulator.constants import REFERENCE
from amk.simulator.kinds import error_of_kind, named_kind
from amk.weights.weight_format import weight_format

LEAST_ERROR, ERROR = 0.023, 0.050
"""Least and largest median error of a set of kernels that no constant was fitted to, one sequence in bf16 on the chip
of the fit (amk/simulator/README.md)."""
CANDIDATES = 8
MOST_LISTED = 16


@dataclass(frozen=True)
class Worth:
    """A candidate to be measured: simulated log gain over the start, and the expected value of measuring it (log)."""

    trial: Trial
    gain: float
    value: float


def speed_of_light(floors: Sequence[float], ms: Sequence[float]) -> float | None:
    """Floor over time, the mean over positions; None where either is not known."""
    if not floors or len(floors) != len(ms) or min(ms) <= 0:
        return None
    return sum(floor / each for floor, each in zip(floors, ms, strict=True)) / len(ms)


def share_above_floor(state: State) -> float | None:
    """Share of the best plan's time that is above the floor, as last seen beside it; None if that is not known."""
    ms = fate(state, state.trials[state.best]).ms if state.best != START else ()
    if state.best == START and state.calibrations:
        ms = state.calibrations[-1].incumbent_ms
    score = speed_of_light(state.run.floor_ms if state.run is not None else (), ms)
    return None if score is None else max(0.0, 1.0 - score)


def nothing_to_rank(state: State) -> str | None:
    """Why a simulated search goes no further, or None."""
    share = share_above_floor(state) if state.run is not None and state.run.simulated else None
    if share is None or share >= ERROR or len(candidates(state)) < CANDIDATES:
        return None
    return (
        f"{100 * share:.1f}% above the floor is left, less than the simulator's error of {100 * ERROR:.1f}%: "
        f"{CANDIDATES} candidates are to be measured on the card"
    )


def candidates(state: State) -> list[Worth]:
    """Proposals that passed the gate and were simulated, best expected value first."""
    found = []
    for trial in state.trials:
        score = trial.score if trial.closed else promised(state, trial)
        if score is not None and trial.gated is not None and trial.gated.verdict == "passed":
            found.append(Worth(trial, -score, expected(-score)))
    return sorted(found, key=lambda worth: -worth.value)[:MOST_LISTED]


def expected(gain: float) -> float:
    """E[max(g, 0)] for g normal around `gain` with spread ERROR."""
    z = gain / ERROR
    return gain * (1 + erf(z / sqrt(2))) / 2 + ERROR * exp(-z * z / 2) / sqrt(2 * pi)


def foretold(state: State) -> list[str]:
    """What the reader should know before a simulated night; nothing where a card measures."""
    run, share = state.run, share_above_floor(state)
    if run is None or not run.simulated or share is None:
        return []
    lines = [
        f"headroom: {100 * share:.1f}% of the simulated time is above the floor, bytes over bandwidth; "
        f"a keep needs {percent(least_gain(state.noise))}",
        f"the simulator errs by {100 * LEAST_ERROR:.1f}% to {100 * ERROR:.1f}% (medians of sets of plans that no "
        f"constant was fitted to, one sequence in bf16 on an {REFERENCE}): it ranks plans that differ by more, not "
        f"those that differ by less; here: {known_error_of(run)}",
    ]
    if share < ERROR:
        lines.append(
            f"so nothing that is found here is certain: the search stops at {CANDIDATES} candidates, which `--resume` "
            f"on a machine with the card measures first. What helps: {'; '.join(_helps(run))}"
        )
    return lines


def known_error_of(run: RunStarted) -> str:
    """How far predictions of such plans were off, for each kind that the run's positions are of."""
    kinds = dict.fromkeys(named_kind(run.dtype == "bf16", run.batch, pos) for pos in run.positions)
    return "; ".join(error_of_kind(run.target, kind, constants=run.constants) for kind in kinds)


def _helps(run: RunStarted) -> Iterator[str]:
    """What brings more than a search near the floor on a simulator."""
    yield "the card"
    if run.constants is None:
        yield f"constants learned on it (`amk bench --gpu {run.target} --share` there, `amk calibrate --learn` here)"
    bits = weight_format(run.dtype).bits
    if fewer := [name for name in ("int8", "int4-g128") if weight_format(name).bits < bits]:
        yield f"fewer bytes (--dtype {', '.join(fewer)})"
