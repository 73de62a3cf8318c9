"""Two events that the strict inter-CTA system enables together are enabled together in the flat system."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

from amk.adversary.edits import apply
from amk.report.diagnostic import AmkError
from amk.schedule_ir.references import check_references
from amk.schedule_ir.schedule import Schedule
from amk.validator.evidence.confirm import order_of
from amk.validator.evidence.flat_system import Flat, expand
from amk.validator.evidence.maximal_runs import Event, MaximalRuns
from amk.validator.induction.layers import reduce_layers
from amk.validator.memory.composition import compose, groups_of
from amk.validator.order.between_ctas import Edges, InterCtaSystem
from amk.validator.order.greedy_run import greedy
from amk.validator.order.intervals import IntervalOrder
from amk.validator.order.within_cta import NotComposable
from amk.validator.program.counter_events import Instances
from amk.validator.program.flag_words import words
from amk.validator.program.system import System
from tests.validator.one_edits import KINDS
from tests.validator.plans import MODELS, SMALL, small_plan
from tests.validator.two_level import random_two_level

EDGES: tuple[Edges, ...] = ("word", "fence", "wait")
NEAR = (12, 60, 300)
SYNC = ("threshold", "amount", "no wait", "no signal", "relaxed", "no barrier", "moved step")


def enabled(system: System, pair: tuple[int, int]) -> bool:
    """The definition: where a greedy run that leaves both out stops, both could run."""
    run = greedy(system, pair)
    for event in pair:
        span = slice(*system.wait_first[event : event + 2].tolist())
        met = (run.values[system.wait_counter[span]] >= system.wait_threshold[span]).all()
        if not met or run.cut[system.agent_of[event]] != system.index_of[event]:
            return False
    return True


def runs_without(system: System, x: int, y: int) -> bool:
    """Does y run although x never does?"""
    return bool(greedy(system, (x,)).cut[system.agent_of[y]] > system.index_of[y])


def pairs(flat: Flat, rng: Random, count: int) -> Iterator[tuple[Event, Event, tuple[int, int]]]:
    """Events of different warps that run at about the same time, none of a barrier, with their numbers in it."""
    events = np.concatenate([ids.reshape(-1) for ids in flat.event_id])
    number = events[np.argsort(greedy(flat.system).position[events])].tolist()
    barriers = {e for t in flat.traces for e in (*t.barrier_waits[:, 0].tolist(), *t.barrier_signals[:, 0].tolist())}
    for _ in range(count):
        near = rng.choice(NEAR)
        first = rng.randrange(max(1, len(number) - near))
        a, b = rng.sample(number[first : first + near], 2)
        if flat.system.agent_of[a] != flat.system.agent_of[b]:
            places = [flat.owner(event) for event in (a, b)]
            if not any(local in barriers for _, _, local in places):
                group = {t.program.first: g for g, t in enumerate(flat.traces)}
                x, y = (Event(group[t.program.first], worker, local) for t, worker, local in places)
                yield x, y, (a, b)


@pytest.mark.turns(2)
def test_without_tagged_words_both_systems_agree() -> None:
    rng, seen = Random(5), Counter[bool]()
    for _ in range(300):
        schedule = random_two_level(rng)
        instances = Instances(schedule.counters)
        groups = groups_of(schedule, 1, instances)
        if not all(g.order.complete for g in groups):
            continue
        nothing = words(schedule, [g.order.trace.items for g in groups], np.zeros((0, 7), np.int64))
        withheld = MaximalRuns(InterCtaSystem(groups, instances, nothing, "wait", strict=True))
        flat = expand(schedule, 0, 1, "wait")
        for x, y, events in pairs(flat, rng, 60):
            truth = enabled(flat.system, events)
            assert withheld.both_enabled(x, y) == truth
            assert withheld.enabled_without(y, x) == runs_without(flat.system, *events)
            seen[truth] += 1
    assert min(seen[True], seen[False]) > 100, seen


def edited(name: str, rng: Random) -> Schedule | None:
    """A small plan with one edit of its synchronisation; None if it is not well-formed."""
    document = json.loads(small_plan(SMALL[name], MODELS["qk-norm"]).model_dump_json())
    try:
        schedule = Schedule.model_validate_json(json.dumps(apply(document, KINDS[rng.choice(SYNC)](document, rng))[0]))
        return None if check_references(schedule) else schedule
    except (AmkError, IndexError, ValueError):
        return None


@pytest.mark.turns(2)
@pytest.mark.parametrize("name", ["fast", "two-warps", "naive"])
def test_what_the_strict_quotient_enables_is_enabled_at_every_position(name: str) -> None:
    rng, seen, used = Random(f"withheld {name}"), Counter[tuple[bool, bool]](), Counter[str]()
    for _ in range(24):
        schedule = edited(name, rng)
        if schedule is None:
            continue
        try:
            result = compose(reduce_layers(schedule), 2)
        except NotComposable:
            continue
        if result.strict is None or not result.live:
            continue
        edges = rng.choice(EDGES)
        strict, block = result.strict(edges), result.block
        assert isinstance(block, InterCtaSystem)
        withheld, near = MaximalRuns(strict), MaximalRuns(block)
        order = order_of(result, edges)
        assert order is not None
        flat = expand(result.schedule, rng.randrange(schedule.kv.context - 2), 2, edges, sure=True)
        for x, y, events in pairs(flat, rng, 50):
            claimed, truth = withheld.both_enabled(x, y), enabled(flat.system, events)
            assert truth or not claimed, (name, edges, x, y)
            assert not withheld.enabled_without(y, x) or runs_without(flat.system, *events), (name, edges, x, y)
            assert claimed or not near.both_enabled(x, y), (name, edges, x, y)
            assert withheld.enabled_without(y, x) or not near.enabled_without(y, x), (name, edges, x, y)
            one, two = (order.numbers(np.array([e.worker]), np.array([e.number])) for e in (x, y))
            ordered = bool(order.precedes_plainly(one, two)[0] or order.precedes_plainly(two, one)[0])
            assert not (ordered and truth), (name, edges, x, y)
            seen[claimed, truth] += 1
            used["block shows it"] += near.both_enabled(x, y)
            used["ordered"] += ordered
    assert used["block shows it"] > 5 and used["ordered"] > 5, used
    assert seen[True, True] > 10 and seen[False, False] > 10, seen


def test_only_a_strict_quotient_is_asked() -> None:
    result = compose(reduce_layers(small_plan(SMALL["fast"], MODELS["qk-norm"])), 2)
    assert isinstance(result.order, IntervalOrder) and result.order.inter_cta.edges == "word"
    with pytest.raises(ValueError, match="strict"):
        MaximalRuns(result.order.inter_cta)
