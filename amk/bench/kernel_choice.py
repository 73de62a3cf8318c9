"""Which kernels of a model are measured, and their machine code, made by several processes without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np

from amk.engine.admission import AdmittedKernel, admitted
from amk.lowering.kernel import build
from amk.planner.search import Problem, Search, State
from amk.planner.settings import Settings
from amk.report.diagnostic import AmkError

NEAR = 1.15
SPARE = 1.6
"""Plans chosen per kernel wanted: some are not SAFE or do not compile within their registers."""

VARIETY = 4
"""Plans simulated per plan chosen."""


@dataclass(frozen=True)
class Kernel:
    """A plan that may run. `number` is its place in the deterministic choice."""

    number: int
    settings: Settings
    admitted: AdmittedKernel


def chosen(problem: Problem, count: int, seed: int) -> list[State]:
    """Plans with different schedules: half predicted within 15% of the best of them, half of any speed."""
    made, wanted = Search(problem, seed=seed), int(count * SPARE)
    looked = (made.look(made.space.start), *made.presets())
    presets = list({s.key: s for s in looked if s is not None}.values())
    draws = 0
    while len(made.keys) < VARIETY * wanted and draws < 40 * wanted:
        draws += 1
        parent = presets[0].settings if draws % 2 else made.ranked()[draws % min(8, len(made.keys))].settings
        made.look(made.space.mutate(parent, made.rng, 1 + draws % 5))
    ranked = made.ranked()
    limit = ranked[0].ms[0] * NEAR
    near = [s for s in ranked if s.ms[0] <= limit]
    far = [s for s in ranked if s.ms[0] > limit]
    half = wanted // 2
    picked = [*_spread(near, half), *_spread(far, wanted - half)]
    return [*presets, *(s for s in picked if s.key not in {p.key for p in presets})]


def _spread(states: Sequence[State], count: int) -> list[State]:
    """At most `count` of the states, evenly over their ranks."""
    places = np.linspace(0, len(states) - 1, count).astype(int).tolist() if states else []
    return [states[i] for i in sorted(set(places))]


def kernels(problem: Problem, count: int, seed: int, workers: int) -> Iterator[Kernel]:
    """The first `count` of the chosen plans that are SAFE and compile, built by `workers` processes."""
    states = chosen(problem, count, seed)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(_built, problem, s.settings) for s in states]
        found = 0
        for number, (state, future) in enumerate(zip(states, futures, strict=True)):
            made = future.result()
            if made is not None:
                found += 1
                yield Kernel(number, state.settings, made)
            if found == count:
                pool.shutdown(wait=False, cancel_futures=True)
                return


def _built(problem: Problem, settings: Settings) -> AdmittedKernel | None:
    """None for a plan that is not SAFE or does not compile within its registers."""
    schedule = problem.schedule(settings)
    try:
        return admitted(schedule, build(schedule).compiled.cubin)
    except AmkError:
        return None
