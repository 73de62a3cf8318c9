"""Proposers at an equal budget of evaluations, on a problem whose true times are known.

The result of a run is the noise-free time of what it kept, relative to the start, after each evaluation.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Protocol

import numpy as np

from amk.agent.device.measure import Job
from amk.agent.device.noise import Noise
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.candidate import Candidate, Workshop
from amk.agent.gate.certify import Certifier, Judgement
from amk.agent.gate.gate import Gate, Ready, not_compiled
from amk.agent.journal.events import Limits, RunStarted, SessionStarted
from amk.agent.journal.state import State
from amk.agent.journal.store import Journal
from amk.agent.propose.base import Proposer
from amk.agent.run.loop import Loop
from amk.planner.space import Space
from amk.simulator.constants import constants_for
from amk.simulator.predict import Simulator

PERTURBATION = 0.35


class Problem(Protocol):
    """What is searched: `positions` are those of the objective, `certify` decides what may run."""

    @property
    def workshop(self) -> Workshop: ...
    @property
    def space(self) -> Space: ...
    @property
    def positions(self) -> tuple[int, ...]: ...
    @property
    def certify(self) -> Certifier: ...
    def backend(self, seed: int) -> SimulatedBackend: ...


@dataclass(frozen=True)
class Perturbed:
    """Simulated machines that differ by the seed: the constants of the simulator are perturbed, so that a proposer that
    plans on that model (the beam) does not plan on the truth.
    """

    workshop: Workshop
    space: Space
    certify: Certifier
    positions: tuple[int, ...]

    def backend(self, seed: int) -> SimulatedBackend:
        target = self.workshop.target
        model = Simulator(constants_for(target).perturbed(np.random.default_rng(seed), PERTURBATION))
        return SimulatedBackend(target.name, seed, model, Noise("gaussian"))


@dataclass(frozen=True)
class Result:
    """curve[n]: noise-free log time of the incumbent relative to the start after n evaluations."""

    proposer: str
    seed: int
    curve: tuple[float, ...]


def run_one(make: Callable[[], Proposer], problem: Problem, seed: int, evals: int) -> Result:
    """One run in a folder of its own, which is deleted."""
    backend = problem.backend(seed)
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder)) as journal:
        loop = begun(journal, make(), problem, backend, seed, evals)
        loop.run()
        return Result(loop.proposer.name, seed, true_curve(loop, backend, evals))


def begun(
    journal: Journal,
    proposer: Proposer,
    problem: Problem,
    backend: SimulatedBackend,
    seed: int,
    evals: int,
    start: str | None = None,
    simulated: bool = True,
) -> Loop:
    """The loop of a new run on a simulated machine; start: the name of the plan that it starts from, if it has one;
    simulated: what the run believes of its machine."""
    workshop, limits = problem.workshop, Limits(evals=evals)
    journal.append(
        RunStarted(
            run="compare", model=workshop.model.name, target=workshop.target.name, dtype="bf16",
            context=workshop.context or workshop.model.max_context, positions=problem.positions,
            start=start or problem.space.start.plan, settings=problem.space.point(problem.space.start), seed=seed,
            proposer=proposer.name, backend=backend.label, simulated=simulated, limits=limits, manifest="",
            version="",
        )
    )  # fmt: skip
    journal.append(
        SessionStarted(session=1, device=backend.device, backend=backend.label, simulated=simulated, limits=limits)
    )
    return Loop(journal, problem.space, Gate(workshop, problem.certify, not_compiled), (backend,), proposer)


def spent(state: State) -> dict[int, int]:
    """Evaluations that had been paid for when each proposal was decided; one that was proposed before costs one too,
    which only a proposer without a memory has to pay."""
    paid, after = 0, {}
    for trial in state.trials:
        paid += trial.evaluated or (trial.gated is not None and trial.gated.verdict == "duplicate")
        after[trial.index] = paid
    return after


def true_curve(loop: Loop, backend: SimulatedBackend, evals: int) -> tuple[float, ...]:
    state = loop.state
    assert state.run is not None
    job = Job(0, "pilot", 1, 0, 0, state.run.positions, 0)

    def cost(index: int) -> float:
        candidate = loop.gate.workshop.make(loop.design_of(index))
        assert isinstance(candidate, Candidate)
        ready = Ready(candidate, b"", Judgement("SAFE"))
        return float(np.mean([log(ms) for ms in backend.times(job, ready)]))

    base, at, curve, after = cost(-1), 0.0, [], spent(state)
    marks = {after[m.index]: m.index for m in state.curve}
    for n in range(evals + 1):
        if n in marks:
            at = cost(marks[n]) - base
        curve.append(at)
    return tuple(curve)


def speedups(results: Sequence[Result], evals: int) -> dict[str, float]:
    """Mean speed relative to the start (geometric, over seeds) after `evals` evaluations, by proposer."""
    names = sorted({r.proposer for r in results})
    return {
        name: float(np.exp(-np.mean([r.curve[min(evals, len(r.curve) - 1)] for r in results if r.proposer == name])))
        for name in names
    }


def table(results: Sequence[Result], at: Sequence[int]) -> list[tuple[str, ...]]:
    """Rows (proposer, mean speedup after n evaluations...), best last column first."""
    columns = [speedups(results, n) for n in at]
    names = sorted(columns[-1], key=lambda name: -columns[-1][name])
    return [(name, *(f"{column[name]:.4f}" for column in columns)) for name in names]
