"""The order of accesses is that of a run: nothing stands before what it must come after."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pytest

from amk.adversary.edits import apply
from amk.schedule_ir.schedule import Schedule
from amk.validator.memory.composition import compose, groups_of
from amk.validator.order.intervals import IntervalOrder
from amk.validator.order.two_levels import Group, InterCtaSystem
from amk.validator.program.handoffs import Instances, words
from amk.validator.program.system import I64
from tests.validator.one_edits import mutants, valid
from tests.validator.plans import MODELS, SMALL, small_plan
from tests.validator.two_level import _Draw, schedule_of

PAIRS = 20_000


def _with_data(group: Group) -> I64:
    """Nodes of one worker that may touch memory: those of barriers do not."""
    items = group.order.trace.items
    data = [i for i, item in enumerate(items) if item.step.op.op != "barrier"]
    return np.flatnonzero(np.isin(np.append(group.order.trace.item, np.arange(len(items))), data))


def _out_of_order(order: IntervalOrder, rng: np.random.Generator) -> int:
    """Pairs of nodes that the run has the wrong way round, among random ones and neighbours in the run."""
    groups = order.inter_cta.groups
    nodes = _with_data(groups[0])
    worker = rng.integers(0, groups[0].count, (2, PAIRS))
    before, after = worker * groups[0].nodes + rng.choice(nodes, (2, PAIRS)) + groups[0].node_base
    placed = order.placed(before), order.placed(after)
    late = placed[0] >= placed[1]
    assert late.any() and not late.all()
    different = late & (before != after)
    return int(order.precedes(before[different], after[different]).sum())


@pytest.mark.parametrize("name", sorted(SMALL))
def test_no_plan_has_a_node_before_one_that_it_must_come_after(name: str) -> None:
    rng = np.random.default_rng(1)
    result = compose(small_plan(SMALL[name], MODELS["deep"]))
    for order in (result.order, result.fence, result.relaxed_waits):
        if order is not None:
            assert isinstance(order, IntervalOrder)
            assert _out_of_order(order, rng) == 0


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", ["fast", "heads"])
def test_no_edit_of_a_plan_has_either(name: str) -> None:
    rng, document = np.random.default_rng(2), json.loads(small_plan(SMALL[name]).model_dump_json())
    seen = 0
    for _, edits in mutants(document, 21, 3):
        text = valid(apply(document, edits)[0])
        if text is None:
            continue
        try:
            order = compose(Schedule.model_validate_json(text)).order
        except (RuntimeError, IndexError, KeyError):
            continue  # not well-formed, or outside the class
        if isinstance(order, IntervalOrder):
            seen += 1
            assert _out_of_order(order, rng) == 0
    assert seen > 15


def _one_program(rng: Random) -> Schedule:
    """Random steps that two or three workers all run; thresholds ask for about what the steps before have given."""
    draw, workers = _Draw(rng, 1), rng.choice((2, 3))
    body = []
    for _ in range(rng.randint(4, 9)):
        body.append(one := draw.step())
        for wait in one["waits"]:
            most = workers * draw.value[int(wait["counter"][1:])]
            wait["at_least"] = max(0, most - rng.choice((0, 0, 1, 2, 3)))
    several = schedule_of([body] * workers)
    return several.model_copy(update={"programs": (several.programs[0].model_copy(update={"count": workers}),)})


@pytest.mark.turns(4)
def test_random_programs_that_several_workers_run_agree() -> None:
    """Every two nodes, with partial thresholds and the orders that only these imply."""
    random, runs, partial = Random(5), 0, 0
    for _ in range(300):
        schedule = _one_program(random)
        instances = Instances(schedule.counters)
        groups = groups_of(schedule, 2, instances)
        if not groups[0].order.complete:
            continue
        items = [g.order.trace.items for g in groups]
        inter_cta = InterCtaSystem(groups, instances, words(schedule, items, np.zeros((0, 7), np.int64)), "block")
        if not inter_cta.run.complete:
            continue
        order, local, trace = IntervalOrder(inter_cta), _with_data(groups[0]), groups[0].order.trace
        one = np.append(trace.item, np.arange(len(trace.items)))[local] * groups[0].count
        step = (one + np.arange(groups[0].count)[:, None]).reshape(-1)
        nodes = np.concatenate([w * groups[0].nodes + local for w in range(groups[0].count)])
        before, after = (m.reshape(-1) for m in np.meshgrid(nodes, nodes, indexing="ij"))
        placed = order.placed(nodes)
        # a warp group and its own events are one and the same
        late = ((placed[:, None] > placed[None, :]) & (step[:, None] != step[None, :])).reshape(-1)
        assert not order.precedes(before[late], after[late]).any()
        runs, partial = runs + 1, partial + order.implied.is_needed
    assert runs > 100 and partial > 20


def _worker(inter_cta: InterCtaSystem, event: int) -> int:
    """Whose event of the inter-CTA system it is: every worker of a group has as many agents."""
    agent = int(inter_cta.system.agent_of[event])
    g = int(np.searchsorted(inter_cta.base, agent, side="right")) - 1
    return inter_cta.groups[g].first + (agent - int(inter_cta.base[g])) // len(inter_cta.orders[g])


@pytest.mark.parametrize("name", ["naive", "drawing"])
def test_where_a_worker_stands_is_read_from_its_own_events(name: str) -> None:
    result = compose(small_plan(SMALL[name]))
    (group,), order = result.groups, result.order
    assert isinstance(order, IntervalOrder)
    for worker in range(group.count):
        view = order.places(worker * group.nodes + np.arange(group.nodes)).view
        events = np.unique(view[view >= 0] >> 1).tolist()
        assert events and {_worker(order.inter_cta, event) for event in events} == {worker}
