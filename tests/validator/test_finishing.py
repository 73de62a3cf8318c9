"""What is said to finish with all workers abreast is a run of the quotient of `block`."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from amk.adversary.edits import apply
from amk.schedule_ir.schedule import Schedule
from amk.validator.abreast import joint_steps
from amk.validator.compose import _Composer, compose, groups_of
from amk.validator.counter_events import Instances
from amk.validator.finishing import counters_come, words_come
from amk.validator.local_order import NotComposable
from amk.validator.memo import Memo
from amk.validator.quotient import Group, Quotient
from amk.validator.system import I64
from amk.validator.words import Words, words
from tests.validator.one_edits import mutants
from tests.validator.plans import MODELS, SMALL, small_plan
from tests.validator.test_abreast import _one_program
from tests.validator.test_incremental import _valid

TRIES = 400


def _changed(rng: np.random.Generator, rows: I64, column: int, most: int) -> I64:
    """Some rows with other numbers, near by or anywhere below `most`."""
    rows = rows.copy()
    if len(rows):
        at = rng.integers(0, len(rows), rng.integers(1, 4))
        near = np.clip(rows[at, column] + rng.integers(-2, 3, len(at)), 0, most - 1)
        rows[at, column] = np.where(rng.integers(0, 2, len(at)) > 0, near, rng.integers(0, most, len(at)))
    return rows


def _other_words(rng: np.random.Generator, found: Words, group: Group) -> Words:
    kind, items = rng.integers(0, 6), len(group.order.trace.items)
    if kind == 5:
        # steps that signal, of which some are barriers
        needs, trace = found.needs.copy(), group.order.trace
        needs[rng.integers(0, len(needs)), 2] = trace.item[rng.choice(group.signals[:, 1])]
        return replace(found, needs=needs)
    if kind == 0:
        return replace(found, writes=_changed(rng, found.writes, 2, items))
    if kind == 1:
        return replace(found, needs=_changed(rng, found.needs, 2, items))
    if kind == 2:
        needs = _changed(rng, found.needs, 4, 1 << 20)
        most = np.array([len(t) for t in found.targets])[needs[:, 3]]
        return replace(found, needs=np.column_stack((needs[:, :4], np.minimum(needs[:, 4], most - 1))))
    joint = int(rng.integers(0, len(found.joints)))
    target = found.targets[joint]
    other = rng.permutation(target) if kind == 3 else _changed(rng, target, 0, int(target.max()) + 2)
    return replace(found, targets=[*found.targets[:joint], other, *found.targets[joint + 1 :]])


def _other_group(rng: np.random.Generator, group: Group) -> Group:
    events, kind = group.order.trace.events, rng.integers(0, 4)
    if kind == 0:
        return replace(group, waits=_changed(rng, group.waits, 1, events))
    if kind == 1:
        return replace(group, signals=_changed(rng, group.signals, 1, events))
    if kind == 2:
        return replace(group, waits=_changed(rng, group.waits, 3, 1 + 2 * int(group.waits[:, 3].max(initial=0))))
    return replace(group, signals=np.delete(group.signals, rng.integers(0, max(len(group.signals), 1)), axis=0))


def _said(group: Group, found: Words, instances: Instances) -> bool | None:
    try:
        return words_come(group.order, found) and counters_come(group, instances)
    except NotComposable:
        return None


def _is_run(group: Group, found: Words, instances: Instances) -> bool | None:
    try:
        return Quotient([group], instances, found, "block").abreast is not None
    except NotComposable:
        return None
    except IndexError:
        return False  # more words than there are


def _words_at_barriers(group: Group, found: Words) -> bool:
    items = group.order.trace.item[group.order.trace.leave]
    return bool(np.isin(np.append(found.writes[:, 2], found.needs[:, 2]), items).any())


@pytest.mark.parametrize("name", ["fast", "heads"])
def test_what_is_said_to_finish_is_a_run_of_the_quotient(name: str) -> None:
    rng = np.random.default_rng(3)
    composer = _Composer(small_plan(SMALL[name], MODELS["deep"]), 2, Memo())
    result = composer.run()
    (group,), found, instances = result.groups, composer.words["most"].value, result.instances
    assert _said(group, found, instances) is True and result.abreast
    said = []
    for _ in range(TRIES):
        one, other = group, found
        if len(found.needs) and rng.integers(0, 2):
            other = _other_words(rng, found, group)
        else:
            one = _other_group(rng, group)
        there = _said(one, other, instances), _is_run(one, other, instances)
        # barriers with words are left to the quotient
        said.append(there if there != (False, True) or not _words_at_barriers(group, other) else None)
    assert {(True, False), (True, None), (False, True), (False, None)}.isdisjoint(said)
    assert said.count((True, True)) > 20 and said.count((False, False)) > 20


def _fast() -> tuple[Group, Words, Instances]:
    composer = _Composer(small_plan(), 2, Memo())
    result = composer.run()
    found = composer.words["most"].value
    assert _said(result.groups[0], found, result.instances) is True
    return result.groups[0], found, result.instances


def _refused(group: Group, found: Words, instances: Instances) -> bool:
    return (_said(group, found, instances), _is_run(group, found, instances)) == (False, False)


def test_a_barrier_that_somebody_reads_words_at_is_left_before_the_crew_is_there() -> None:
    group, found, instances = _fast()
    leave = int(np.flatnonzero(group.order.trace.leave)[-1])
    needs, signals = found.needs.copy(), np.append(group.signals, group.signals[-1:], axis=0)
    needs[-1, 2], signals[-1, 1] = group.order.trace.item[leave], leave
    assert _refused(replace(group, signals=signals), replace(found, needs=needs), instances)


def test_nobody_leaves_a_barrier_after_others_do() -> None:
    order = _fast()[0].order
    trace, past = order.trace, order.past.copy()
    one = int(np.flatnonzero(trace.leave)[0])
    (other,) = np.flatnonzero(trace.leave & (trace.item == trace.item[one]) & (trace.warp_of == trace.warps - 1))
    past[one, -1] = trace.index_of[other]
    assert replace(order, past=past).in_step
    past[one, -1] += 1
    assert not replace(order, past=past).in_step


def test_words_are_read_in_later_steps() -> None:
    group, found, instances = _fast()
    needs, first = found.needs.copy(), np.cumsum([0, *map(len, found.targets)])
    needs[-1, 2] = joint_steps(found)[first[needs[-1, 3]] + needs[-1, 4]]
    assert _refused(group, replace(found, needs=needs), instances)


def test_the_ranks_of_a_joint_stand_in_their_order() -> None:
    group, found, instances = _fast()
    joint = next(n for n, t in enumerate(found.targets) if len(t) > 1)
    targets, needs = found.targets.copy(), found.needs.copy()
    targets[joint] = targets[joint][[1, 0, *range(2, len(targets[joint]))]]
    some = np.flatnonzero((needs[:, 3] == joint) & (needs[:, 4] < 2))
    needs[some, 4] = 1 - needs[some, 4]
    assert _refused(group, replace(found, targets=targets, needs=needs), instances)


def test_a_worker_that_comes_after_later_steps_is_not_abreast() -> None:
    group, found, instances = _fast()
    past = group.order.past.copy()
    past[: group.order.trace.events // 8, -1] += 5
    assert _refused(replace(group, order=replace(group.order, past=past)), found, instances)


def test_steps_that_write_a_buffer_are_in_turn() -> None:
    group, found, instances = _fast()
    order = replace(group.order, past=np.zeros_like(group.order.past), chains={}, brackets={})
    assert _said(replace(group, order=order), found, instances) is None


def test_of_random_programs_that_several_workers_run_too() -> None:
    random, rng, said = Random(6), np.random.default_rng(6), []
    for _ in range(300):
        schedule = _one_program(random)
        instances = Instances(schedule.counters)
        (group,) = groups_of(schedule, 2, instances)
        if group.order.complete:
            none = words(schedule, [group.order.trace.items], np.zeros((0, 7), np.int64))
            for one in (group, *(_other_group(rng, group) for _ in range(3) if len(group.signals))):
                said.append((_said(one, none, instances), _is_run(one, none, instances)))
    assert (True, False) not in said and said.count((True, True)) > 100 and said.count((False, False)) > 20
    assert said.count((False, True)) == 0


@pytest.mark.parametrize("name", ["fast", "heads"])
def test_every_edit_of_a_plan_is_composed_as_its_quotient_says(name: str) -> None:
    document, seen = json.loads(small_plan(SMALL[name]).model_dump_json()), []
    for _, edits in mutants(document, 31, 4):
        text = _valid(apply(document, edits)[0])
        if text is None:
            continue
        try:
            result = compose(Schedule.model_validate_json(text))
        except (RuntimeError, IndexError, KeyError):
            continue  # not well-formed, or outside the class
        if isinstance(block := result.block, Quotient):
            assert (result.abreast, result.complete) == (block.abreast is not None, block.run.complete)
            seen.append(result.abreast)
    assert len(seen) > 30 and not all(seen)
