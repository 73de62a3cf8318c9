"""Orders of a worker's agents, and intervals of its nodes among them, are what the clocks of its events say."""

from __future__ import annotations

from random import Random

import numpy as np

from amk.validator.order.two_levels import agent_orders, local_order, starts, warp_group_orders, warp_orders
from amk.validator.program.trace import trace
from tests.validator.two_level import random_two_level


def test_warp_groups_of_an_agent_are_each_wholly_before_the_next() -> None:
    rng, several, one = Random(5), 0, 0
    for _ in range(60):
        schedule = random_two_level(rng)
        for number in range(len(schedule.programs)):
            order = local_order(trace(schedule, number, 2))
            role = [item.step.op.role for item in order.trace.items]
            for items in (np.arange(len(role)), np.array([i for i, name in enumerate(role) if name == role[0]], int)):
                begun = items[rng.randrange(3) :: 3]
                agents = warp_group_orders(order, items[::-1], begun)
                nodes = np.concatenate((order.trace.events + items, starts(order.trace, begun)))
                assert sorted(np.concatenate([items[:0], *agents]).tolist()) == nodes.tolist()
                for agent in agents:
                    for before, after in zip(agent[:-1].tolist(), agent[1:].tolist(), strict=True):
                        assert (order.past[after] >= order.need[before]).all()
                several, one = several + (len(agents) > 1), one + (len(agents) == 1)
    assert several > 20 and one > 20


def test_the_start_of_a_step_is_over_when_all_is_that_every_warp_has_behind_it() -> None:
    """And it comes before the step, but for the events of other steps that the step itself comes before."""
    rng, behind = Random(7), 0
    for _ in range(20):
        order = local_order(trace(random_two_level(rng), 0, 2))
        events, items = np.arange(order.trace.events), np.arange(len(order.trace.items))
        for start, group in zip(
            starts(order.trace, items).tolist(), (order.trace.events + items).tolist(), strict=True
        ):
            before = order.wholly(events, np.full(len(events), start))
            assert before.tolist() == order.wholly(events, np.full(len(events), group)).tolist()
            for after in np.flatnonzero(order.wholly(np.full(len(events), start), events)).tolist():
                assert order.wholly(events[before], np.full(int(before.sum()), after)).all()
                behind += 1
            assert order.wholly(np.array([start]), np.array([group])).all()
    assert behind > 1000


def test_intervals_count_the_nodes_of_an_agent_that_come_before() -> None:
    rng, mixed = Random(6), 0
    for _ in range(40):
        schedule = random_two_level(rng)
        for number in range(len(schedule.programs)):
            order = local_order(trace(schedule, number, 2))
            items, events = np.arange(len(order.trace.items)), np.arange(order.trace.events)
            found = agent_orders(order, warp_orders(order, events)[:2] + warp_group_orders(order, items, items[:0])[:6])
            for k, agent in enumerate(found.agents):
                need = order.need[agent][None]
                wholly = (order.past[:, None] >= need).all(axis=2)
                some = ((need > 0) & (order.late[:, None] >= need)).any(axis=2)
                assert found.lo[:, k].tolist() == wholly.sum(axis=1).tolist()
                assert found.pre[:, k].tolist() == (some * np.arange(1, len(agent) + 1)).max(axis=1).tolist()
                mixed += bool(((need[0] > 0) != (need[0, :1] > 0)).any())
            begun = agent_orders(order, warp_group_orders(order, items[::3], items[1::3])[:6])
            for k, agent in enumerate(begun.agents):
                wholly = (order.past[:, None] >= order.need[agent]).all(axis=2)
                inside = (order.past[agent] >= order.need[:, None]).all(axis=2)
                assert begun.lo[:, k].tolist() == wholly.sum(axis=1).tolist()
                first = np.where(inside.any(axis=1), inside.argmax(axis=1), len(agent))
                apart = events[~np.isin(events, order.trace.event_of[items[::3]])]
                assert begun.hi[apart, k].tolist() == first[apart].tolist()
    assert mixed > 20
