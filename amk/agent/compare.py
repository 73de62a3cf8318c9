"""Proposers at an equal budget of evaluations, on simulated machines that differ by the seed.

Each seed perturbs the constants of the simulator, so that a proposer which plans on that model (the beam) does not
plan on the truth. The result of a run is the noise-free time of what it kept, relative to the start.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path

import numpy as np

from amk.agent.candidate import Candidate, Workshop
from amk.agent.certify import Certifier, Judgement
from amk.agent.events import Limits, RunStarted, SessionStarted
from amk.agent.gate import Gate, Ready, not_compiled
from amk.agent.journal import Journal
from amk.agent.loop import Loop
from amk.agent.measure import Job, positions_within
from amk.agent.noise import Noise
from amk.agent.propose.base import Proposer
from amk.agent.simulated import SimulatedBackend
from amk.planner.settings import Settings
from amk.planner.space import Space
from amk.simulator.constants import constants_for
from amk.simulator.predict import Simulator

PERTURBATION = 0.35


@dataclass(frozen=True)
class Result:
    """curve[n]: noise-free log time of the incumbent relative to the start after n evaluations."""

    proposer: str
    seed: int
    curve: tuple[float, ...]


def run_one(
    make: Callable[[], Proposer], workshop: Workshop, start: Settings, certify: Certifier, seed: int, evals: int
) -> Result:
    """One run in a folder of its own, which is deleted."""
    proposer = make()
    space = Space.around(start)
    model = Simulator(constants_for(workshop.target).perturbed(np.random.default_rng(seed), PERTURBATION))
    backend = SimulatedBackend(workshop.target.name, seed, model, Noise("gaussian"))
    context = workshop.context or 8192
    limits = Limits(evals=evals)
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder)) as journal:
        journal.append(
            RunStarted(
                run="compare",
                model=workshop.model.name,
                target=workshop.target.name,
                dtype="bf16",
                context=context,
                positions=positions_within(context),
                start=start.plan,
                settings=space.point(start),
                seed=seed,
                proposer=proposer.name,
                backend=backend.label,
                simulated=True,
                limits=limits,
                manifest="",
                version="",
            )
        )
        journal.append(
            SessionStarted(session=1, device=backend.device, backend=backend.label, simulated=True, limits=limits)
        )
        loop = Loop(journal, space, Gate(workshop, certify, not_compiled), (backend,), proposer)
        loop.run()
        return Result(proposer.name, seed, true_curve(loop, backend, evals))


def true_curve(loop: Loop, backend: SimulatedBackend, evals: int) -> tuple[float, ...]:
    state = loop.state
    assert state.run is not None
    job = Job(0, "screen", 1, 0, 0, state.run.positions, 0)

    def cost(index: int) -> float:
        made = loop.gate.workshop.make(loop.settings_of(index))
        assert isinstance(made, Candidate)
        ready = Ready(made, b"", Judgement("SAFE"))
        return float(np.mean([log(ms) for ms in backend.times(job, ready)]))

    base, at, curve = cost(-1), 0.0, []
    marks = {m.evals: m.index for m in state.curve}
    for n in range(evals + 1):
        if n in marks:
            at = cost(marks[n]) - base
        curve.append(at)
    return tuple(curve)


def table(results: Sequence[Result], at: Sequence[int]) -> list[tuple[str, ...]]:
    """Rows (proposer, mean speedup after n evaluations...), best last column first."""
    names = sorted({r.proposer for r in results})
    rows = []
    for name in names:
        own = [r for r in results if r.proposer == name]
        means = [float(np.exp(-np.mean([r.curve[min(n, len(r.curve) - 1)] for r in own]))) for n in at]
        rows.append((means[-1], (name, *(f"{m:.4f}" for m in means))))
    return [row for _, row in sorted(rows, reverse=True)]
