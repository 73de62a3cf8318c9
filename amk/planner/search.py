"""Offline search for a faster plan: a beam over prefixes of decisions, on the simulator.

A *prefix* is a set of decided knobs. The others keep the values of the state that it was grown from, so every prefix is
a plan. Knobs that claim workers, registers and shared memory come first, which cuts what cannot fit early. Each *round*
decides one more knob for all states of the beam:

* It prunes a child whose bound (see `bound`) is not below the best time so far.
* It drops a child that cannot be planned, or whose schedule is that of a known state.
* It drops a state that another one beats in time with no more shared memory and registers.
* The `width` fastest of the rest survive.

The opening tries every knob on the best plan alone and keeps what helps: first the switches (order of steps, who
attends, which hand-off), then numbers that claim nothing, then those that claim memory and workers. When all knobs are
decided, the beam starts again from the best states with the knobs in another order. When a whole cycle finds nothing,
or the beam is empty, the search draws mutations of the best states, or random plans.

The result is the best state that is SAFE and that the caller accepts, who alone knows what compiles. Plans of as many
warps and as wide chunks as `PATIENCE` refused ones come last. The plans that the search began with keep their place, so
the result is never slower than an accepted one of them. Seed and number of expansions decide everything; an expansion
is one simulated schedule.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log

import numpy as np

from amk.models.model_spec import ModelSpec
from amk.planner.bound import decided, drain_ms
from amk.planner.decode import choose_workers, plan
from amk.planner.formats import BF16, Formats, Layered, layered
from amk.planner.settings import FAST, NAIVE, PHASED, Settings
from amk.planner.space import FIXED, Knob, Space, moved
from amk.planner.tuned import tuned
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.simulator.constants import Constants, constants_for
from amk.simulator.predict import steps_ms
from amk.targets.target import Target
from amk.validator.verify import verify

WIDTH = 6
DRAWS = 16
SILENT_CYCLES = 3
PATIENCE = 2
TIGHT = ("ctas_per_sm", "workers", "warps", "chunk_bytes", "refill_fence", "max_ring_bytes", "slots")
"""Knobs that claim SMs, registers or shared memory, or that the bound knows; decided first, in this order."""


@dataclass(frozen=True)
class Problem:
    """What is planned, and at which positions its time counts."""

    model: ModelSpec
    target: Target
    formats: Formats | Layered = field(default_factory=lambda: BF16)
    context: int | None = None
    positions: tuple[int, ...] = (128, 2047)
    constants: Constants | None = None

    @property
    def runs(self) -> Layered:
        return layered(self.model, self.formats)

    def preset(self, settings: Settings, request: Settings) -> Settings:
        """A preset as a point of the search: the plan that it makes, with its numbers for the model.

        request: says what is no choice of the search (batch, sampling, cache).
        """
        wanted = replace(settings, **{name: getattr(request, name) for name in FIXED if name != "plan"})
        count = choose_workers(self.model, self.target, request.batch)
        numbers = tuned(wanted, self.model, self.target, self.runs, count, self.context)
        return replace(numbers, plan="search")

    def schedule(self, settings: Settings) -> Schedule:
        """AmkError where there is none."""
        labelled = replace(settings, plan="search")
        return plan(self.model, self.target, settings=labelled, formats=self.formats, max_context=self.context)

    def races(self, settings: Settings) -> bool:
        """Whether no plan with these settings is SAFE: bulk copies overwrite what was read, with no fence between."""
        return self.target.has("bulk_copy") and not settings.refill_fence

    def times(self, schedule: Schedule) -> tuple[float, ...]:
        """Simulated ms per token at each position that the cache has."""
        return steps_ms(schedule, self.places(schedule), self.constants)

    def places(self, schedule: Schedule) -> list[int]:
        """The positions, the last of the cache for those that it has not."""
        return [min(p, schedule.kv.context - 1) for p in self.positions]


@dataclass(frozen=True)
class State:
    """A plan: score is the mean log of its times, the rest is what it claims."""

    settings: Settings
    key: str
    ms: tuple[float, ...]
    shared: int
    warps: int

    @property
    def score(self) -> float:
        return sum(log(t) for t in self.ms) / len(self.ms)

    def dominates(self, other: State) -> bool:
        """Faster everywhere with no more memory and registers."""
        no_more = self.shared <= other.shared and self.warps <= other.warps
        return no_more and all(a < b for a, b in zip(self.ms, other.ms, strict=True))

    def slower_somewhere(self, other: State) -> bool:
        """Slower at one position at least."""
        return any(a > b for a, b in zip(self.ms, other.ms, strict=True))


@dataclass(frozen=True)
class SearchResult:
    """The result: states best first; `expansions` and `seed` reproduce it."""

    best: State
    schedule: Schedule
    default: State | None
    naive: State | None
    expansions: int
    rounds: int
    pruned: int
    refused: tuple[str, ...]

    def gain(self, other: State | None) -> float | None:
        """How many times faster than `other`, by the simulator."""
        return None if other is None else exp(other.score - self.best.score)


class Search:
    """One search. `rounds()` does the work; `states` holds every state that was simulated."""

    def __init__(
        self, problem: Problem, start: Settings = FAST, seed: int = 0, width: int = WIDTH,
        presets: tuple[Settings, ...] = (FAST, PHASED, NAIVE), space: Space | None = None, tight_first: bool = True,
    ) -> None:  # fmt: skip
        """presets: plans to begin with beside `start`. space: the one around `start` unless given.
        tight_first: a short search begins with the knobs of fewest values instead, so that it gets to all switches.
        """
        self.tight_first = tight_first
        self.problem, self.seed, self.width, self.begin = problem, seed, width, presets
        self.space = replace(space, start=start) if space is not None else Space.around(start)
        self.rng = np.random.default_rng(seed)
        self.states: dict[Settings, State | None] = {}
        self.keys: dict[str, State] = {}
        self.expansions = self.pruned = 0
        self.limit: int | None = None
        self.times: Callable[[Schedule], tuple[float, ...]] = problem.times
        self.avoid: Callable[[Settings], bool] = lambda _: False
        self.constants = problem.constants or constants_for(problem.target)

    @property
    def best(self) -> State | None:
        return min(self.keys.values(), key=lambda s: (s.score, s.key), default=None)

    def ranked(self) -> list[State]:
        """Everything that was simulated, best first."""
        return sorted(self.keys.values(), key=lambda s: (s.score, s.key))

    @property
    def spent(self) -> bool:
        return self.limit is not None and self.expansions >= self.limit

    def look(self, settings: Settings) -> State | None:
        """The state of `settings`, simulated unless it is known; None if there is no such plan or nothing is left."""
        if settings in self.states:
            return self.states[settings]
        if self.spent:
            return None
        self.states[settings] = None
        if self.avoid(settings) or self.problem.races(settings):
            return None
        try:
            schedule = self.problem.schedule(settings)
            key = schedule_hash(schedule)
            times = None if key in self.keys else self.times(schedule)
        except AmkError:  # there is no such plan, or the simulator says that it gets stuck
            return None
        if times is not None:
            self.expansions += 1
            self.keys[key] = State(settings, key, times, schedule.launch.shared_bytes, schedule.launch.warps)
        self.states[settings] = self.keys[key]
        return self.states[settings]

    def hopeless(self, settings: Settings, names: Sequence[str]) -> bool:
        """Whether no completion of the prefix can beat the best."""
        best = self.best
        if best is None:
            return False
        problem = self.problem
        known = decided(settings, names)
        bound = drain_ms(problem.model, problem.target, problem.runs, self.constants, known, settings.batch)
        return bound >= max(best.ms)

    def rounds(self) -> Iterator[int]:
        """Does one round after the other, yielding the number of expansions so far; ends when nothing is left."""
        beam = [s for s in (self.look(self.space.start), *self.presets()) if s is not None]
        yield self.expansions
        if self.tight_first:
            best = beam
            for knob in sorted(self.space.knobs, key=self._opening):
                best = self._alone(best, knob)
                yield self.expansions
            beam = [*best, *(s for s in beam if s not in best)]
        silent = cycle = 0
        while silent < SILENT_CYCLES:
            before, known = self.best, len(self.keys)
            names: list[str] = []
            for knob in self._order(cycle):
                names.append(knob.name)
                beam = self._round(beam, knob, names)
                yield self.expansions
            if not beam or self.best == before:
                beam = self._fallback()
                yield self.expansions
            beam = beam[: max(1, self.width // 2)]
            silent = silent + 1 if len(self.keys) == known else 0
            cycle += 1

    def presets(self) -> list[State | None]:
        return [self.look(self.problem.preset(s, self.space.start)) for s in self.begin]

    @staticmethod
    def _opening(knob: Knob) -> tuple[int, bool]:
        """Its place in the order of the opening."""
        return TIGHT.index(knob.name) if knob.name in TIGHT else -1, not knob.switch

    def _alone(self, beam: list[State], knob: Knob) -> list[State]:
        """The best state, or what another value of `knob` makes of it if that is better. Nothing is left open, so the
        bound is that of the whole plan.
        """
        best = sorted(beam, key=lambda s: (s.score, s.key))[:1]
        return self._round(best, knob, [k.name for k in self.space.knobs])[:1]

    def _order(self, cycle: int) -> list[Knob]:
        if cycle == 0 and not self.tight_first:
            return sorted(self.space.knobs, key=lambda k: len(k.values))
        knobs = sorted(self.space.knobs, key=lambda k: TIGHT.index(k.name) if k.name in TIGHT else len(TIGHT))
        return knobs if cycle == 0 else [knobs[int(i)] for i in self.rng.permutation(len(knobs))]

    def _round(self, beam: list[State], knob: Knob, names: Sequence[str]) -> list[State]:
        """All values of `knob` for every state of the beam."""
        grown = {s.key: s for s in beam}
        for state in beam:
            for value in knob.values:
                child = moved(state.settings, {knob.name: value})
                if self.hopeless(child, names):
                    self.pruned += 1
                    continue
                found = self.look(child)
                if found is not None:
                    grown.setdefault(found.key, replace(found, settings=child))
        ranked = sorted(grown.values(), key=lambda s: (s.score, s.key))
        kept: list[State] = []
        for state in ranked:
            if not any(k.dominates(state) for k in kept):
                kept.append(state)
        return kept[: self.width]

    def _fallback(self) -> list[State]:
        """Mutations of the best states; random plans while there is none."""
        ranked = self.ranked()[: self.width]
        drawn = []
        for number in range(DRAWS):
            if ranked:
                parent = ranked[number % len(ranked)].settings
                drawn.append(self.look(self.space.mutate(parent, self.rng, 1 + number % 3)))
            else:
                drawn.append(self.look(self.space.random(self.rng)))
        unique = {s.key: s for s in [*ranked, *(d for d in drawn if d is not None)]}
        return sorted(unique.values(), key=lambda s: (s.score, s.key))[: self.width]


def search(
    problem: Problem,
    *,
    start: Settings = FAST,
    seed: int = 0,
    expansions: int | None = None,
    budget_s: float | None = None,
    progress: Callable[[Search], None] = lambda _: None,
    why_not: Callable[[Schedule], str | None] = lambda _: None,
    times: Callable[[Schedule], tuple[float, ...]] | None = None,
) -> SearchResult:
    """Search until `expansions` schedules were simulated, `budget_s` seconds have passed, or nothing is left.

    A budget counts whole rounds only, and no round begins that may not end in time, so that `expansions` of the result
    reproduces it on any machine. The result is verified SAFE and `why_not` says None of it; plans of which that
    is not so are passed over. times: what gives the same as `problem.times`. AMK011 if nothing can be planned.
    """
    searcher = Search(problem, start, seed)
    searcher.times = times or problem.times
    searcher.limit = expansions
    began = last = time.monotonic()
    rounds, longest = 0, 0.0
    for _ in searcher.rounds():
        rounds += 1
        progress(searcher)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
        if searcher.spent or (budget_s is not None and now - began + longest >= budget_s):
            break
    return _verified(searcher, rounds, why_not)


def _verified(searcher: Search, rounds: int, why_not: Callable[[Schedule], str | None]) -> SearchResult:
    refused: list[str] = []
    begun = frozenset(s.key for s in (searcher.look(searcher.space.start), *searcher.presets()) if s is not None)
    default, naive = (searcher.states.get(searcher.problem.preset(s, searcher.space.start)) for s in (FAST, NAIVE))
    ranked = sorted(searcher.ranked(), key=lambda state: default is not None and state.slower_somewhere(default))
    for state in _likely_first(ranked, refused, begun):
        schedule = searcher.problem.schedule(state.settings)
        verdict = verify(schedule)
        reason = why_not(schedule) if verdict.safe else verdict.status
        if reason is None:
            return SearchResult(
                state, schedule, default, naive, searcher.expansions, rounds, searcher.pruned, tuple(refused)
            )
        refused.append(f"{state.key[:12]} {reason}")
    model, target = searcher.problem.model.name, searcher.problem.target.name
    message = f"no plan of {model} on {target} was found that is SAFE and compiles"
    raise AmkError(Diagnostic("AMK011", message))


def _likely_first(states: list[State], refused: list[str], begun: frozenset[str]) -> Iterator[State]:
    """Best first; those with as many warps and as wide chunks as PATIENCE refused ones after all others.

    begun: keys of the plans that are never put last.
    """
    later: list[State] = []
    kinds: Counter[tuple[int, int | None]] = Counter()
    for state in states:
        kind = (state.warps, state.settings.chunk_bytes)
        if kinds[kind] >= PATIENCE and state.key not in begun:
            later.append(state)
            continue
        before = len(refused)
        yield state
        if len(refused) > before:
            kinds[kind] += 1
    yield from later
