"""Clocks of a worker alone, made from its barriers only, are those of all its events."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pytest

from amk.adversary.edits import apply
from amk.schedule_ir.schedule import Schedule
from amk.validator.order.clocks import must_clocks
from amk.validator.order.greedy_run import greedy
from amk.validator.order.within_cta import chains_of, group_chains, local_order, warp_chains
from amk.validator.program.trace import Trace, trace
from tests.validator.one_edits import mutants, valid
from tests.validator.plans import MODELS, SMALL, small_plan
from tests.validator.two_level import random_two_level, schedule_of, step


def _agrees(own: Trace) -> bool:
    """Whether the worker alone runs to completion; its order is that of all events."""
    run, found = greedy(own.local_system), local_order(own)
    assert found.complete == run.complete
    np.testing.assert_array_equal(found.past[: own.events], must_clocks(run).matrix())
    return run.complete


@pytest.mark.turns(2)
def test_random_programs_have_the_clocks_of_all_their_events() -> None:
    rng, live = Random(3), []
    for _ in range(150):
        schedule = random_two_level(rng)
        for number in range(len(schedule.programs)):
            live += [_agrees(trace(schedule, number, tokens)) for tokens in (1, 2)]
    assert sum(live) > 200


def test_crews_of_a_chain_are_each_wholly_before_the_next() -> None:
    rng, several, one = Random(5), 0, 0
    for _ in range(60):
        schedule = random_two_level(rng)
        for number in range(len(schedule.programs)):
            order = local_order(trace(schedule, number, 2))
            role = [item.step.op.role for item in order.trace.items]
            for items in (np.arange(len(role)), np.array([i for i, name in enumerate(role) if name == role[0]], int)):
                chains = group_chains(order, items[::-1])
                assert sorted(np.concatenate([items[:0], *chains]).tolist()) == (order.trace.events + items).tolist()
                for chain in chains:
                    for before, after in zip(chain[:-1].tolist(), chain[1:].tolist(), strict=True):
                        assert before < after and (order.past[after] >= order.need[before]).all()
                several, one = several + (len(chains) > 1), one + (len(chains) == 1)
    assert several > 20 and one > 20


def test_barriers_that_some_of_the_warps_complete_are_right_too() -> None:
    """Outside C2: partial thresholds, and rounds that never end."""
    rng, live = Random(8), []
    for _ in range(300):
        body = [
            step({"op": "barrier", "role": "all", "id": rng.randint(1, 2), "agents": rng.choice((1, 2, 3, 3, 3, 4))})
            if rng.random() < 0.5
            else step({"op": "signal", "role": f"w{rng.randrange(3)}"})
            for _ in range(rng.randint(1, 7))
        ]
        live.append(_agrees(trace(schedule_of([body, []]), 0, 2)))
    assert 50 < sum(live) < 290


@pytest.mark.parametrize("name", ["fast", "naive"])
def test_edited_plans_have_the_clocks_of_all_their_events(name: str) -> None:
    document = json.loads(small_plan(SMALL[name], MODELS["qk-norm"]).model_dump_json())
    live = []
    for kind, edits in mutants(document, 5, 4):
        text = valid(apply(document, edits)[0])
        if kind in ("no step", "no barrier", "moved step") and text is not None:
            live += [_agrees(trace(Schedule.model_validate_json(text), 0, tokens)) for tokens in (1, 2)]
    assert all(live) and live


def test_brackets_count_the_nodes_of_a_chain_that_come_before() -> None:
    rng, mixed = Random(6), 0
    for _ in range(40):
        schedule = random_two_level(rng)
        for number in range(len(schedule.programs)):
            order = local_order(trace(schedule, number, 2))
            items, events = np.arange(len(order.trace.items)), np.arange(order.trace.events)
            found = chains_of(order, warp_chains(order, events)[:2] + group_chains(order, items)[:6])
            for k, chain in enumerate(found.chains):
                need = order.need[chain][None]
                wholly = (order.past[:, None] >= need).all(axis=2)
                some = ((need > 0) & (order.late[:, None] >= need)).any(axis=2)
                assert found.lo[:, k].tolist() == wholly.sum(axis=1).tolist()
                assert found.pre[:, k].tolist() == (some * np.arange(1, len(chain) + 1)).max(axis=1).tolist()
                mixed += bool(((need[0] > 0) != (need[0, :1] > 0)).any())
    assert mixed > 20
