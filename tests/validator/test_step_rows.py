"""What all warps of a step touch, remembered from where shared buffers lay before, is what each warp touches here."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from amk.schedule_ir.expr import Env
from amk.schedule_ir.schedule import Schedule
from amk.validator.memory.position_abstraction import NO_DATA
from amk.validator.program.aliases import Clash, clash_of, meet, united
from amk.validator.program.evaluator import SHARED, Evaluations
from amk.validator.program.footprint import Footprints
from amk.validator.program.private_memory import ABSENT, in_order, private
from amk.validator.program.slopes import FAMILY_SHIFT
from amk.validator.program.step_evaluation import Asked
from amk.validator.program.step_rows import StepRows
from amk.validator.program.system import I64
from amk.validator.program.trace import Item, unroll
from tests.validator.plans import MODELS, SMALL, small_plan
from tests.validator.test_footprints import _elsewhere, _meeting


def _rows(schedule: Schedule, item: Item, agents: int, pos: int) -> tuple[I64, I64, I64]:
    """(rows, agent, worker), each warp asked alone."""
    alone, workers = Footprints(schedule), range(schedule.launch.workers)
    found = [(alone.of(item, w, agent, pos), agent, w) for agent in range(agents) for w in workers]
    sizes = [len(rows) for rows, *_ in found]
    agent, worker = (np.repeat([one[n] for one in found], sizes) for n in (1, 2))
    return np.concatenate([rows for rows, *_ in found]), agent, worker


def _clash(schedule: Schedule, item: Item, agents: int, pos: int, repeats: bool) -> Clash | None:
    """The first that there is; where layers follow from each other, slopes are measured first, on the ends."""
    geometry, count, meeting = schedule.geometry(), schedule.launch.workers, _meeting(schedule, item)
    tables, loops = {n: np.array(c) for n, c in schedule.tables.items()}, item.loops
    then = loops | {"l": loops.get("l", 0) + 1}
    asked = [(a, w, at) for a in range(agents) for w in dict.fromkeys((0, count - 1)) for at in (loops, then)]
    asked = (asked if repeats else []) + [(a, w, loops) for a in range(agents) for w in range(count)]
    envs = (Env(loops=at, worker=w, agent=a, pos=pos, tables=tables) for a, w, at in asked)
    each = (clash_of(item.step.op.accesses(env, geometry), meeting) for env in envs)
    return next((clash for clash in each if clash is not None), None)


def _alike(rows: I64, agent: I64, worker: I64, workers: int) -> list[object]:
    """What workers that are alike have in common: rows but for one displacement per family."""
    found: list[object] = []
    for one in range(workers):
        first: dict[int, int] = {}
        at = np.flatnonzero(worker == one)
        told = zip(rows[at].tolist(), agent[at].tolist(), strict=True)
        found.append([(*row[:5], row[5] - first.setdefault(row[4] >> FAMILY_SHIFT, row[5]), a) for row, a in told])
    return found


def _check_private(warp_group: StepRows, expected: tuple[I64, I64, I64], workers: int) -> None:
    """Of warp groups whose families are those of `FAMILY_SHIFT`, unnamed content included."""
    rows, agent, worker = expected
    at = np.flatnonzero(rows[:, 0] == SHARED)
    found, alike = warp_group.private(workers, ()), _alike(rows[at], agent[at], worker[at], workers)
    np.testing.assert_array_equal(found.rows, rows[at])
    np.testing.assert_array_equal((found.agent, found.worker), (agent[at], worker[at]))
    assert [[a == b for b in found.label] for a in found.label] == [[a == b for b in alike] for a in alike]
    for family, delta in zip(found.families, found.delta.T, strict=True):
        of = at[rows[at, 4] >> FAMILY_SHIFT == family]
        first = [next((int(rows[n, 5]) for n in of if worker[n] == w), ABSENT) for w in range(workers)]
        assert delta.tolist() == first


@pytest.mark.parametrize("name", ["fast", "heads"])
def test_crews_of_moved_buffers_are_those_of_a_first_look_and_of_each_warp(name: str) -> None:
    rng, plain, evaluations = Random(7), small_plan(SMALL[name], MODELS["qk-norm"]), Evaluations()
    clashing = quiet = 0
    for schedule in (plain, *(_elsewhere(plain, rng) for _ in range(6)), plain):
        workers = range(schedule.launch.workers)
        data = [i for i in unroll(schedule.programs[0], 0, 2) if not isinstance(i.step.op, NO_DATA)]
        # what a token selects is written where the token says
        for item in (*rng.sample(data, 12), *(i for i in data if i.step.op.op == "select")):
            agents, pos = schedule.geometry().role_size[item.step.op.role], schedule.kv.context - 1
            repeats = "l" in item.loops
            asked = Asked(workers, (pos,) * len(workers), (pos,) * len(workers), repeats)
            remembered, fresh = Footprints(schedule, evaluations), Footprints(schedule)
            warp_group, first = (one.warp_group(item, agents, asked) for one in (remembered, fresh))
            assert warp_group.regular and warp_group.clash == first.clash == _clash(
                schedule, item, agents, pos, repeats
            )
            assert remembered.outside == fresh.outside and remembered.clashes == fresh.clashes
            expected = _rows(schedule, item, agents, pos)
            _check_private(warp_group, expected, len(workers))
            # of global memory nothing is moved
            mine = warp_group.joined(((), (), True))
            np.testing.assert_array_equal(mine.rows, first.joined(((), (), True)).rows)
            assert set(map(tuple, mine.rows[:, [0, 1, 4, 5]].tolist())) == {
                (b, kind, value, delta) for b, kind, _, _, value, delta in expected[0].tolist() if b >= 0
            }
            clashing += warp_group.clash is not None
            quiet += bool(_meeting(schedule, item)) and warp_group.clash is None
    assert clashing > 5 and quiet > 5
    warp_groups = [one for evaluator in evaluations.evaluators.values() for one in evaluator.warp_groups.results()]
    assert 2 * len({id(warp_group.joins) for warp_group in warp_groups}) < len(warp_groups)


def test_rows_of_different_buffers_that_fall_on_the_same_bytes_are_alike() -> None:
    """One worker has all of its value in one buffer, the other the first half in another buffer that lies there."""
    family = 1 << FAMILY_SHIFT
    one, other = (-1, 1, 0, 8, family, 64), (-2, 1, -16, -8, family, 80)
    rest = -1, 0, 8, 16, family, 64
    rows, worker, agent = np.array([one, rest, other, rest], np.int64), np.array([0, 0, 1, 1]), np.zeros(4, np.int64)
    found = in_order(rows, np.zeros((4, 2), np.int64), agent, worker, 2, ())
    upon = private(found, np.array([0, 48, 32]))
    assert upon.label.tolist() == [0, 0] and upon.delta.tolist() == [[32], [32]]
    assert upon.rows[:, 2].tolist() == [32, 40, 32, 40] and (upon.rows[:, 5] == 32).all()
    apart = private(found, np.array([0, 64, 32]))
    assert apart.label.tolist() == [0, 1] and apart.delta.tolist() == [[32], [16]]
    assert apart.rows[:, 2].tolist() == [32, 40, 48, 40]


def test_spans_meet_where_a_byte_is_in_both() -> None:
    rng = np.random.default_rng(3)
    met = 0
    for _ in range(300):
        one, other = (np.stack((lo, lo + rng.integers(1, 5, len(lo))), axis=1) for lo in rng.integers(0, 60, (2, 4)))
        apart = united(other)
        mine, theirs, same = ({b for lo, hi in spans.tolist() for b in range(lo, hi)} for spans in (one, other, apart))
        assert theirs == same and (apart[1:, 0] > apart[:-1, 1]).all()
        assert meet(one, apart) == bool(mine & theirs) and not meet(one[:0], apart) and not meet(one, apart[:0])
        met += bool(mine & theirs)
    assert 50 < met < 250
