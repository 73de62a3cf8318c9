"""Clocks on hand-made systems, and every tempting wrong rule for K shown to be wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amk.adversary.system_builder import SystemBuilder
from amk.judges.explore import explore
from amk.validator.order import clocks as order
from amk.validator.order.clocks import ClocksTooLarge, Fixpoint, must_clocks, order_statistic
from amk.validator.order.greedy_run import greedy
from amk.validator.program.system import I32, I64, System
from tests.cases import cases
from tests.validator.random_systems import random_systems


def clocks_of(system: System) -> list[list[int]]:
    return must_clocks(greedy(system)).matrix().tolist()  # type: ignore[no-any-return]


def fan_in(producers: int, threshold: int, init: int = 0, amounts: tuple[int, ...] = ()) -> System:
    """One event per producer agent signals c; the last agent waits for c >= threshold."""
    build = SystemBuilder()
    counter = build.counter(init)
    for n in range(producers):
        build.signal(build.event(build.agent()), counter, amounts[n] if amounts else 1)
    build.wait(build.event(build.agent()), counter, threshold)
    return build.build()


def test_waiting_for_all_producers_is_their_join() -> None:
    assert clocks_of(fan_in(3, 3))[3] == [1, 1, 1, 0]


def test_waiting_for_some_producers_guarantees_none_of_them() -> None:
    assert clocks_of(fan_in(3, 2))[3] == [0, 0, 0, 0]


def test_the_initial_value_shifts_the_threshold() -> None:
    assert clocks_of(fan_in(3, 3, init=1))[3] == [0, 0, 0, 0]
    assert clocks_of(fan_in(3, 4, init=1))[3] == [1, 1, 1, 0]


def test_weights_make_one_producer_indispensable() -> None:
    assert clocks_of(fan_in(3, 4, amounts=(1, 3, 1)))[3] == [0, 1, 0, 0]


def test_one_owner_gives_an_exact_prefix() -> None:
    build = SystemBuilder()
    counter, owner, reader = build.counter(), build.agent(), build.agent()
    for _ in range(5):
        build.signal(build.event(owner), counter)
    for threshold in (2, 4):
        build.wait(build.event(reader), counter, threshold)
    assert clocks_of(build.build())[5:] == [[2, 0], [4, 1]]


def test_partial_threshold_by_counting_three_of_four() -> None:
    """Two agents signal twice each: three increments need at least one of each."""
    build = SystemBuilder()
    counter = build.counter()
    for agent in (build.agent(), build.agent()):
        for _ in range(2):
            build.signal(build.event(agent), counter)
    build.wait(build.event(build.agent()), counter, 3)
    assert clocks_of(build.build())[4] == [1, 1, 0]


def test_cyclic_may_graph_of_reused_counters() -> None:
    """Producers of the second epoch also signal the first epoch's counter; order in between makes them irrelevant."""
    build = SystemBuilder()
    arrive, go = build.counter(), build.counter()
    workers, leader = [build.agent(), build.agent()], build.agent()
    for epoch in range(2):
        for worker in workers:
            event = build.event(worker)
            if epoch:
                build.wait(event, go, epoch)
            build.signal(event, arrive)
        gate = build.event(leader)
        build.wait(gate, arrive, 2 * (epoch + 1))
        build.signal(gate, go)
    assert clocks_of(build.build()) == [[0, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 1], [1, 1, 0], [2, 2, 1]]


def test_events_that_never_run_are_after_everything() -> None:
    system = fan_in(2, 3)
    clocks = must_clocks(greedy(system))
    assert clocks.at(2).tolist() == [1, 1, 1]
    assert clocks.precedes(np.array([0, 1]), np.array([2, 2])).all()


def test_order_statistic_by_weight() -> None:
    values = np.array([[5, 1], [3, 9], [4, 4]], dtype=np.int32)
    assert order_statistic(values, np.array([1, 1, 1]), 2).tolist() == [4, 4]
    assert order_statistic(values, np.array([2, 1, 1]), 2).tolist() == [4, 1]
    assert order_statistic(values, np.array([2, 1, 1]), 4).tolist() == [5, 9]


@pytest.mark.parametrize("events", [2**15 - 2, 2**15 - 1, 2**15, 2**15 + 1])
def test_clocks_of_few_bits_count_all_events(events: int) -> None:
    build = SystemBuilder()
    first, second = build.agent(), build.agent()
    counter = build.counter()
    for _ in range(events):
        last = build.event(first)
    build.signal(last, counter)
    build.wait(build.event(second), counter, 1)
    clocks = must_clocks(greedy(build.build()))
    assert clocks.rows.dtype == (np.int16 if events < 2**15 else np.int32)
    assert clocks.at(events).tolist() == [events, 0] and clocks.rows.min() == 0


def test_too_many_cells_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "MAX_CELLS", 4)
    with pytest.raises(ClocksTooLarge):
        must_clocks(greedy(fan_in(3, 3)))


def test_throttled_runs_give_the_same_clocks() -> None:
    for system in random_systems(cases(120, 400), seed=12):
        run = greedy(system)
        exact, state = must_clocks(run), Fixpoint(system, run)
        state.first_pass()
        state.throttle()
        assert np.array_equal(state.rows, exact.rows)
        assert np.array_equal(state.k_rows, exact.threshold_rows)


@pytest.mark.parametrize("at_once", [0, 12, order.AT_ONCE])
def test_rows_made_together_are_those_made_one_by_one(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(order, "AT_ONCE", at_once)
    together = 0
    for system in random_systems(cases(60, 200), seed=14):
        state = Fixpoint(system, greedy(system))
        state.first_pass()
        assert np.array_equal(state.evaluated(np.arange(1, len(state.heads) + 1)), state.rows[1:-1])
        together += len(state.heads)
    assert together > cases(60, 200)


def test_impatience_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared counters, partial thresholds, no separation of epochs: the lowering gives up and the runs take over."""
    systems = list(random_systems(cases(15, 40), seed=13, max_agents=8, max_events=30))
    patient = []
    for patience in (2, 10**6):
        monkeypatch.setattr(order, "PATIENCE", patience)
        patient.append([must_clocks(greedy(system)).rows.tolist() for system in systems])
    assert patient[0] == patient[1]


class JoinOfAll(Fixpoint):
    """max for min: every producer is taken as needed."""

    def leading(self, key: int) -> I64:
        counter = self.keys[key, 0]
        return np.arange(self.table.first[counter], self.table.first[counter + 1])

    def threshold_clock(self, key: int) -> I32:
        return self.finished(self.leading(key)).max(axis=0)  # type: ignore[no-any-return]


class MeetOfAll(JoinOfAll):
    """min for max: only what every single producer guarantees."""

    def threshold_clock(self, key: int) -> I32:
        return self.finished(self.leading(key)).min(axis=0)  # type: ignore[no-any-return]


class JoinOfFirst(Fixpoint):
    """The first t producers of the run are taken as the ones waited for."""

    def threshold_clock(self, key: int) -> I32:
        return self.finished(self.leading(key)).max(axis=0)  # type: ignore[no-any-return]


class OneLess(Fixpoint):
    """t - 1 for t."""

    def threshold_clock(self, key: int) -> I32:
        self.need[key] -= 1
        try:
            return super().threshold_clock(key) if self.need[key] else np.zeros_like(self.k_rows[key])
        finally:
            self.need[key] += 1


class IgnoresInit(Fixpoint):
    """t for t - init (as far as the producers go)."""

    def _number_thresholds(self) -> None:
        super()._number_thresholds()
        for key, (counter, threshold) in enumerate(self.keys.tolist()):
            start, end = self.table.first[counter], self.table.first[counter + 1]
            total = np.cumsum(self.table.amount[start:end])
            self.need[key] = min(threshold, int(total[-1]))
            at = int(np.searchsorted(total, self.need[key]))
            self.upto[key], self.prefix_weight[key] = start + at, total[at]


class IgnoresTrailing(Fixpoint):
    """The shortcut without its side condition on later producers."""

    def threshold_clock(self, key: int) -> I32:
        leading = self.leading(key)
        if int(self.prefix_weight[key]) - int(self.table.amount[leading].min()) < self.need[key]:
            return self.finished(leading).max(axis=0)  # type: ignore[no-any-return]
        return super().threshold_clock(key)


class IgnoresWeight(Fixpoint):
    """Every increment counts as one."""

    def threshold_clock(self, key: int) -> I32:
        counter, need = self.keys[key, 0], int(self.need[key])
        members = np.arange(self.table.first[counter], self.table.first[counter + 1])
        return order_statistic(self.finished(members), np.ones(len(members), dtype=np.int64), min(need, len(members)))


class OnePass(Fixpoint):
    """Stops after the first pass in run order."""

    def lower(self) -> None:
        return


def _mutant_differs(mutant: type[Fixpoint], system: System) -> bool:
    run = greedy(system)
    if not len(run.order):
        return False
    state = mutant(system, run)
    state.first_pass()
    state.lower()
    found = order.Clocks(run, state.rows, state.row_of, state.keys, state.k_rows).matrix().tolist()
    return bool(found != clocks_of(system))


MINIMAL: list[tuple[Any, System]] = [
    (JoinOfAll, fan_in(3, 2)),
    (MeetOfAll, fan_in(2, 2)),
    (JoinOfFirst, fan_in(3, 2)),
    (OneLess, fan_in(2, 2)),
    (IgnoresInit, fan_in(2, 2, init=1)),
    (IgnoresTrailing, fan_in(2, 1)),
    (IgnoresWeight, fan_in(3, 4, amounts=(1, 3, 1))),
    (OnePass, fan_in(2, 1)),
]


@pytest.mark.parametrize(("mutant", "system"), MINIMAL, ids=[mutant.__name__ for mutant, _ in MINIMAL])
def test_a_wrong_rule_is_caught(mutant: type[Fixpoint], system: System) -> None:
    truth = explore(system)
    top = system.agent_size.tolist()
    assert clocks_of(system) == [list(truth.earliest.get(event, top)) for event in range(system.events)]
    assert _mutant_differs(mutant, system)
    assert any(_mutant_differs(mutant, other) for other in random_systems(300, seed=11))
