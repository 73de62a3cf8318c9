"""What is not settled near the best is on its way, or the sweep proposes it next, whatever others propose meanwhile.

Searches of a world whose gate and times are drawn, without planner and devices: only the events of a search are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle, product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amk.agent.decide import keep as decide
from amk.agent.decide.couples import REFUSALS
from amk.agent.decide.history import History
from amk.agent.decide.neighbourhood import TOGETHER, Neighbourhood, fate
from amk.agent.gate.candidate import Workshop
from amk.agent.journal.events import Decided, Faulted, Gated, LeaseReserved, Measured, Proposed
from amk.agent.journal.state import State, Trial
from amk.agent.propose.base import Context
from amk.agent.propose.sweep import Sweep
from amk.models.model import load_model
from amk.planner.settings import PHASED, Settings
from amk.planner.space import Knob, Space, Value, moved
from amk.targets.target import load_target

Item = tuple[str, Value]
Refused = dict[Item, tuple[str, Item]]

START = replace(PHASED, plan="search", warps=8, kv_splits=4, overlay=True, run_ahead=False, hint_slack=4)
VALUES: dict[str, tuple[Value, ...]] = {
    "warps": (4, 8, 12), "kv_splits": (2, 4, 8), "hint_slack": (4, 8), "overlay": (False, True),
    "run_ahead": (False, True),
}  # fmt: skip
SPACE = Space(START, tuple(Knob(name, values) for name, values in VALUES.items()))
CHANGES = tuple((n, v) for n, values in VALUES.items() for v in values if v != getattr(START, n))
POINTS = tuple(moved(START, dict(zip(VALUES, point, strict=True))) for point in product(*VALUES.values()))
NOT_RUN = {"attempt": 1, "seconds": 1.0, "device": "none"}


@dataclass(frozen=True)
class World:
    """refused: by value the codes, and the change beside which the gate lets it pass all the same. same: values that
    make no difference. faulty: values that the device fails at. helping: two changes that gain 3% together."""

    impossible: frozenset[Item] = frozenset()
    same: frozenset[Item] = frozenset()
    faulty: frozenset[Item] = frozenset()
    refused: Refused = field(default_factory=dict)
    worth: dict[Item, float] = field(default_factory=dict)
    helping: frozenset[Item] = frozenset()

    def time(self, changed: set[Item]) -> float:
        return sum(self.worth.get(item, 0.004) for item in changed) - 0.03 * (self.helping <= changed)

    def refusal(self, changed: set[Item]) -> str | None:
        """The code of the first refusal."""
        return next(
            (code for item, (code, but) in self.refused.items() if item in changed and but not in changed), None
        )


@dataclass
class Keys(Workshop):
    """Tells kernels apart by the values that make a difference."""

    world: World

    def __post_init__(self) -> None:
        super().__init__(load_model("smollm2-135m"), load_target("h200"), 2048)

    def key(self, settings: Settings) -> str | None:
        impossible = self.world.impossible & set(SPACE.changes(settings, START).items())
        return None if impossible else repr(sorted(self.telling(settings), key=str))

    def telling(self, settings: Settings) -> set[Item]:
        """Changes of the start that make a difference."""
        return set(SPACE.changes(settings, START).items()) - self.world.same

    def apart(self, one: Settings, other: Settings) -> int:
        """Knobs in which two kernels differ."""
        return len({name for name, _ in self.telling(one) ^ self.telling(other)})


class Search:
    """The sweep, and others that fill up to `ahead` with plans whose kernels differ from the best's in three knobs and
    more, so that they settle nothing near it."""

    def __init__(self, world: World, ahead: int, order: tuple[int, ...]) -> None:
        self.world, self.ahead, self.order = world, ahead, cycle(order)
        self.state, self.history, self.neighbourhood = State(), History(SPACE), Neighbourhood()
        self.workshop, self.others = Keys(world), 0

    def context(self) -> Context:
        self.history.update(self.state)
        return Context(SPACE, self.state, self.history, self.workshop, 0, neighbourhood=self.neighbourhood)

    def run(self) -> Iterator[Context]:
        """What a proposer sees before every proposal and after every step, until all is decided."""
        while True:
            yield self.context()
            if len(self.state.open_trials) <= self.ahead and (proposed := self._next()) is not None:
                self.state.apply(proposed, 0.0)
            elif open_trials := self.state.open_trials:
                self._step(open_trials)
            else:
                return

    def _next(self) -> Proposed | None:
        context = self.context()
        if asked := Sweep().ask(context):
            return self.proposed("sweep", SPACE.parse(asked[0].settings))
        best = context.incumbent()
        left = [p for p in POINTS if p not in self.history.first_trials and self.workshop.apart(p, best) >= 3]
        if not left:
            return None
        self.others += 1
        return self.proposed("other", left[next(self.order) % len(left)])

    def proposed(self, proposer: str, point: Settings) -> Proposed:
        key = self.workshop.key(point)
        return Proposed(index=len(self.state.trials), proposer=proposer, settings=SPACE.point(point), key=key)

    def _step(self, open_trials: list[Trial]) -> None:
        """The gate judges in the order of proposals; devices measure and decide in any."""
        waiting = [trial for trial in open_trials if trial.gated is None]
        judged = [trial for trial in open_trials if trial.gated is not None]
        if waiting and (not judged or next(self.order) % 2):
            self.state.apply(self._gated(waiting[0]), 0.0)
        else:
            self._measure(judged[next(self.order) % len(judged)])

    def _changed(self, trial: Trial) -> set[Item]:
        return set(SPACE.changes(self.history.settings[trial.index], START).items())

    def _gated(self, trial: Trial) -> Gated:
        index, key, changed = trial.index, trial.key, self._changed(trial)
        if key is None:
            return Gated(index=index, verdict="impossible", codes=("AMK201",))
        if self.state.by_key[key] != index or key == self.workshop.key(START):
            return Gated(index=index, verdict="duplicate", key=key)
        if (code := self.world.refusal(changed)) is not None:
            return Gated(index=index, verdict="unsafe", key=key, codes=(code,))
        return Gated(index=index, verdict="passed", key=key)

    def _measure(self, trial: Trial) -> None:
        """First the pilot, or a fault; then the decision."""
        index, changed, best = trial.index, self._changed(trial), self.state.best
        score = self.world.time(changed)
        if changed & self.world.faulty:
            lease = LeaseReserved.model_validate({**NOT_RUN, "index": index, "phase": "pilot"})
            self.state.apply(lease, 0.0)
            self.state.apply(Faulted.model_validate({**lease_of(lease), "fault": "timeout"}), 0.0)
            self.state.apply(Decided(index=index, outcome="quarantined", reason="timeout"), 0.0)
        elif not trial.measured:
            lease = LeaseReserved.model_validate({**NOT_RUN, "index": index, "phase": "pilot"})
            self.state.apply(lease, 0.0)
            ratio = score - self.state.best_score
            seen = {"log_ratios": (ratio,) * 4, "candidate_ms": (1.0,), "incumbent_ms": (1.0,), "against": best}
            self.state.apply(Measured.model_validate({**lease_of(lease), **seen}), 0.0)
        else:
            gain = self.state.best_score - score
            outcome = "kept" if gain > decide.least_gain(0.0) else "rejected"
            decided = {"index": index, "outcome": outcome, "reason": "", "log_gain": gain, "score": score}
            self.state.apply(Decided.model_validate(decided), 0.0)


def lease_of(lease: LeaseReserved) -> dict[str, object]:
    return lease.model_dump(exclude={"kind"})


some = st.frozensets(st.sampled_from(CHANGES), max_size=2)
worlds = st.builds(
    World, some, some, some,
    st.dictionaries(st.sampled_from(CHANGES),
                    st.tuples(st.sampled_from(("AMK403", "AMK507")), st.sampled_from(CHANGES)), max_size=3),
    st.dictionaries(st.sampled_from(CHANGES), st.sampled_from((-0.012, -0.006, 0.0, 0.02, 0.2))),
    st.frozensets(st.sampled_from(CHANGES), min_size=2, max_size=2),
)  # fmt: skip
orders = st.lists(st.integers(0, 997), min_size=1, max_size=40).map(tuple)


@pytest.mark.turns(24)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds, st.integers(0, 8), orders)
def test_what_is_unsettled_is_on_its_way_or_proposed_next(world: World, ahead: int, order: tuple[int, ...]) -> None:
    """When the sweep has nothing to propose, all that it waits for is under way at that time: once that is decided it
    proposes again or is at its end, however much others have proposed since."""
    search = Search(world, ahead, order)
    waits_for: set[int] | None = None
    best, still_open = search.state.best, 1
    for context in search.run():
        under_way = {trial.index for trial in search.state.open_trials}
        if (following := search.neighbourhood.following(context)) is not None:
            assert fate(context, following[1]) == "open"
            waits_for = None
            continue
        survey = search.neighbourhood.survey(context)
        still_open = survey.event().open
        assert not survey.open and (under_way or not still_open)
        if search.state.best != best or not still_open:
            waits_for, best = None, search.state.best
        if still_open:
            waits_for = under_way if waits_for is None else waits_for & under_way
            assert waits_for
    assert still_open == 0


def test_a_value_that_has_passed_elsewhere_holds_up_nothing() -> None:
    """Nothing can be learned by trying its pairs one at a time, while others fill up what is under way."""
    value: Item = ("warps", 12)
    world = World(refused={value: ("AMK403", ("overlay", False))}, worth=dict.fromkeys(CHANGES, 0.02))
    search = Search(world, 8, (0,))
    search.state.apply(search.proposed("other", moved(START, {"warps": 12, "overlay": False, "run_ahead": True})), 0.0)
    for context in search.run():
        if not (event := search.neighbourhood.survey(context).event()).open:
            break
    assert not event.open and value in search.history.passed and not search.history.blocked
    tried = {p for p in search.history.first_trials if len(SPACE.changes(p, START)) == 2 and p.warps == 12}
    assert len(tried) == 5 and search.others <= 2 * search.ahead


def test_a_pair_that_explains_refusals_binds_proposers_and_not_the_sweep() -> None:
    """Twelve warps pass only without `overlay`: others avoid both together, and what is left near the best is open."""
    search = Search(World(refused={("warps", 12): ("AMK403", ("overlay", False))}), 0, (0,))
    changes: list[dict[str, Value]] = [{"overlay": False}, {"kv_splits": 2}, {"kv_splits": 8}, {"run_ahead": True}]
    for change in changes:
        search.state.apply(search.proposed("other", moved(START, {"warps": 12} | change)), 0.0)
        search.history.update(search.state)
        search.state.apply(search._gated(search.state.trials[-1]), 0.0)
    context, alone = search.context(), moved(START, {"warps": 12})
    assert not search.history.hopeless(alone) and fate(context, alone) == "open"
    assert not context.is_new(alone) and not context.is_new(moved(alone, {"hint_slack": 8}))
    assert context.is_new(moved(START, {"warps": 12, "overlay": False, "kv_splits": 8}))


def test_a_value_never_let_pass_is_tried_until_it_is_avoided() -> None:
    refused: Refused = {("warps", 12): ("AMK403", ("warps", 8))}
    search = Search(World(refused=refused, worth=dict.fromkeys(CHANGES, 0.02)), 0, (1, 3, 5, 7))
    assert all(True for _ in search.run())
    tried = [t for t in search.state.trials if t.proposed.settings["warps"] == 12 and t.proposed.proposer == "sweep"]
    assert len(tried) == REFUSALS == 1 + TOGETHER
    assert {("warps", 12)} in search.history.blocked


def test_the_world_is_as_large_as_it_says() -> None:
    assert len(list(SPACE.neighbours(START))) == len(CHANGES) == 7 and len(POINTS) == 72


def test_a_sweep_settles_once_what_comes_next_is_expected_to_lose() -> None:
    """Single changes first, whatever they will show; then pairs, of which the first may gain and the last only lose."""
    worth = dict.fromkeys(CHANGES, 0.02) | {("warps", 12): -0.015, ("run_ahead", True): 0.012}
    search, settles = Search(World(worth=worth), 0, (0,)), list[bool]()
    for context in search.run():
        settles.append(Sweep().settles(context))
    first = settles.index(True)
    assert first > len(CHANGES) and not any(settles[: len(CHANGES)])
    assert not settles[-1], "nothing is left to settle"
