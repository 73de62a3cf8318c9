"""Which kernels of a model are measured, and their machine code, made by several processes without a GPU."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import log
from pathlib import Path

from amk.engine.admission.admission import AdmittedKernel, admitted
from amk.lowering.kernel import build
from amk.planner.search import Problem, Search, State
from amk.planner.settings import FAST, Settings
from amk.planner.space import OutsideSpaceError, Space
from amk.processes import process_pool
from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.report.json_file import read_json

NEAR, BEYOND, FAR = 1.14, 1.22, 2.5
"""Predicted times relative to the best: up to NEAR is near it, from BEYOND on it is not, up to FAR is measured at all.
They keep away from the 15% that the judgement speaks of, because predictions err."""

SHARE = 0.5
"""Of the plans, near the best."""

STRATA = 6
"""Intervals of equal width, in the logarithm of predicted time, from each of which equally many are taken."""

APART = 1.003
"""Between the predicted times of any two: kernels that are predicted to be equally fast say nothing about ranks."""

SPARE = 1.5
"""Plans chosen per kernel wanted: some are not SAFE or do not compile within their registers."""

VARIETY = 5
"""Plans simulated per plan chosen."""

MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Kernel:
    """A plan that may run. `number` is its place in the deterministic choice."""

    number: int
    settings: Settings
    admitted: AdmittedKernel


def chosen(problem: Problem, count: int, seed: int, others: Collection[Settings] = ()) -> list[State]:
    """Plans with different schedules: the presets, then half of them near the best by prediction and half not.

    others: plans that are not chosen, nor any that make the same schedule.

    Candidates differ from the default in one knob, or are mutations of it, of the best and of slow ones. They are
    taken evenly over predicted time, among those of one interval the ones whose knob values were taken least so far.
    """
    search, wanted = Search(problem, seed=seed), int(count * SPARE)
    looked = (search.look(search.space.start), *search.presets())
    known = {s.key for s in (search.look(settings) for settings in others) if s is not None}
    presets = list({s.key: s for s in looked if s is not None}.values())
    for settings in search.space.neighbours(search.space.start):
        search.look(settings)
    draws = 0
    while draws < 40 * wanted and (
        len(search.keys) < VARIETY * wanted + len(known) or _near(search) < SHARE * wanted + len(known)
    ):
        draws += 1
        search.look(search.space.mutate(_parent(search, presets, draws), search.rng, 1 + draws % 5))
    ranked = [s for s in search.ranked() if s.key not in {p.key for p in presets} | known]
    best = search.ranked()[0].ms[0]
    taken: Counter[tuple[str, object]] = Counter()
    presets = [s for s in presets if s.key not in known]
    times = [s.ms[0] for s in presets]
    near = _spread(search.space, [s for s in ranked if s.ms[0] <= NEAR * best], taken, times)
    far = _spread(search.space, [s for s in ranked if BEYOND * best <= s.ms[0] <= FAR * best], taken, times)
    near_presets = sum(s.ms[0] <= NEAR * best for s in presets)
    return [*presets, *islice(_mixed(near, far, near_presets, len(presets)), max(0, wanted - len(presets)))]


def _near(search: Search) -> int:
    """How many plans so far are near the best and APART."""
    times = [state.ms[0] for state in search.ranked()]
    least, count = 0.0, 0
    for time in times:
        if least <= time <= NEAR * times[0]:
            least, count = time * APART, count + 1
    return count


def _parent(search: Search, presets: Sequence[State], draw: int) -> Settings:
    """Of the plan number `draw`: the default, one of the best so far, or one far from it, where mutations are rarer."""
    ranked = search.ranked()
    far = [s for s in ranked if BEYOND * ranked[0].ms[0] <= s.ms[0] <= FAR * ranked[0].ms[0]] or presets[-1:]
    sources = presets[0], ranked[draw % min(8, len(ranked))], far[draw % len(far)]
    return sources[draw % len(sources)].settings


def _mixed(near: Iterator[State], far: Iterator[State], from_near: int, total: int) -> Iterator[State]:
    """States that make SHARE of all near, of which there are `from_near` among `total` already; where one runs out, the
    rest of the other."""
    while True:
        first = from_near <= SHARE * total
        state = next(near if first else far, None)
        if state is None:
            yield from far if first else near
            return
        total, from_near = total + 1, from_near + first
        yield state


def _spread(
    space: Space, states: Sequence[State], uses: Counter[tuple[str, object]], times: list[float]
) -> Iterator[State]:
    """In turn from each interval of predicted time the state with the rarest changes, but none that is not APART from
    all `times`, to which those that are taken are added."""
    if not states:
        return
    low, high = log(states[0].ms[0]), log(states[-1].ms[0])
    width = (high - low) / STRATA or 1.0
    strata: list[list[State]] = [[] for _ in range(STRATA)]
    for state in states:
        strata[min(STRATA - 1, int((log(state.ms[0]) - low) / width))].append(state)
    while any(strata):
        for stratum in strata:
            stratum[:] = (s for s in stratum if all(abs(log(s.ms[0] / t)) >= log(APART) for t in times))
            if stratum:
                state = min(stratum, key=lambda s: _familiar(space, s, uses))
                uses.update(space.changes(state.settings, FAST).items())
                times.append(state.ms[0])
                yield state


def _familiar(space: Space, state: State, uses: Counter[tuple[str, object]]) -> float:
    """Mean number of times that the state's changes were taken before."""
    changes = space.changes(state.settings, FAST)
    return sum(uses[item] for item in changes.items()) / max(1, len(changes))


def write_plans(path: Path, problem: Problem, states: Sequence[State]) -> None:
    """The choice as data, so that a GPU's time is not spent on choosing. AMK001 if it cannot be written."""
    space = Space.around(FAST)
    entries = [{"settings": space.changes(s.settings, FAST), "ms": [round(t, 5) for t in s.ms]} for s in states]
    head = json.dumps({"model": problem.model.name, "target": problem.target.name, "context": problem.context})
    lines = ",\n".join(json.dumps(e) for e in entries)
    try:
        path.write_text(f'{head[:-1]}, "plans": [\n{lines}\n]}}\n', encoding="utf-8")
    except OSError as error:
        raise AmkError(Diagnostic("AMK001", f"cannot write: {error}", where=Where(file=str(path)))) from error


def read_plans(path: Path, problem: Problem) -> list[Settings]:
    """What `write_plans` wrote for this problem; AMK005 otherwise. The file is untrusted."""
    content = read_json(path, MOST_BYTES)
    space = Space.around(FAST)
    try:
        if not isinstance(content, dict):
            raise TypeError("no object")
        about = content["model"], content["target"], content["context"]
        wanted = problem.model.name, problem.target.name, problem.context
        if about != wanted:
            raise ValueError(f"plans of {about}, not of {wanted}")
        return [space.parse(dict(entry["settings"])) for entry in content["plans"]]
    except (KeyError, TypeError, ValueError, OutsideSpaceError) as error:
        message = f"no choice of plans: {error}"
        raise AmkError(Diagnostic("AMK005", message, where=Where(file=str(path)))) from error


def kernels(problem: Problem, plans: Sequence[Settings], count: int, workers: int) -> Iterator[Kernel]:
    """The first `count` of the plans that are SAFE and compile, built by `workers` processes."""
    with process_pool(workers) as pool:
        futures = [pool.submit(_built, problem, s) for s in plans]
        found = 0
        try:
            for number, (settings, future) in enumerate(zip(plans, futures, strict=True)):
                kernel = future.result()
                if kernel is not None:
                    found += 1
                    yield Kernel(number, settings, kernel)
                if found == count:
                    break
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _built(problem: Problem, settings: Settings) -> AdmittedKernel | None:
    """None for a plan that is not SAFE or does not compile within its registers."""
    schedule = problem.schedule(settings)
    try:
        return admitted(schedule, build(schedule).compiled.cubin)
    except AmkError:
        return None
