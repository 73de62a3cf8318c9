"""How far a counter can be from what it is compared with: the last number that is right, the first that is not."""

from __future__ import annotations

import json

import numpy as np
import pytest

from amk.adversary.subjects import subject
from amk.schedule_ir.schedule import Schedule
from amk.validator.induction.layers import reduce_layers
from amk.validator.induction.tokens import LAG, check_lags
from amk.validator.memory.composition import Composition, compose
from amk.validator.program.handoffs import POISON
from amk.validator.program.system import I64
from amk.validator.verify import verify
from tests.validator.plans import small_plan

WORKERS = 2


def composition(tokens: int) -> Composition:
    """A plan of one layer whose launches have so many tokens."""
    schedule = Schedule.model_validate_json(json.dumps(subject("fenced", WORKERS, 2, 1).document))
    launch = schedule.launch.model_copy(update={"max_tokens": tokens})
    return compose(reduce_layers(schedule.model_copy(update={"launch": launch})))


def rows(result: Composition, amount: int) -> tuple[I64, I64, int]:
    """Waits and signals of one counter, with this amount in each signal; the last event of a worker."""
    (group,) = result.groups
    trace = group.order.trace
    token = np.array([item.token for item in trace.items])[trace.item]
    found = []
    for table, scale in ((group.waits, amount), (group.signals, amount)):
        mine = table[table[:, 2] == result.instances.base["act"]]
        found.append(np.column_stack((mine[:, :3], mine[:, 3] * scale, mine[:, 4], token[mine[:, 1]])))
    return found[0], found[1], trace.events - 1


@pytest.mark.parametrize(("gain", "tokens", "is_decided"), [(2048, 2**20, True), (2048, 2**20 + 1, False)])
def test_a_wait_that_holds_nobody_back_sees_the_whole_launch(gain: int, tokens: int, is_decided: bool) -> None:
    """The wait of the first token, put behind all steps of its worker, for all of that token's increments: (N - 1) * D
    is what the counter may be ahead.
    """
    result = composition(tokens)
    waits, signals, last = rows(result, gain // WORKERS)
    assert not check_lags(result, waits, signals).open, "where the plan waits, others wait for the waiter"
    free = waits[waits[:, 5] == 0][:1].copy()
    free[0, 1] = last
    assert ((tokens - 1) * gain < LAG) == is_decided
    lags = check_lags(result, free, signals)
    assert not lags.early and [d.code for d in lags.open] == ([] if is_decided else ["AMK204"])
    assert is_decided or f"{2**20:,} tokens are safe" in lags.open[0].message


def test_a_wait_for_the_token_before_leaves_room_for_less() -> None:
    """Relative thresholds lie in (-D, D]: the counter may be 2D - 1 ahead of the lowest."""
    result = composition(4)
    for gain, known in ((2**30, True), (2**30 + 2, False)):
        waits, signals, _ = rows(result, gain // WORKERS)
        waits[:, 3] -= 2 * gain - 1
        assert (not check_lags(result, waits, signals).open) == known


def test_tokens_to_wrap_are_those_whose_tags_fit() -> None:
    """The last tag of a token is one below the first of the next, and a token's first one would be 2^32 exactly."""
    schedule = small_plan()
    slope, layers = 500, schedule.model.layers
    period = slope * (layers - 1) + 1
    tag = {"t": period, "l": slope, "1": 2**32 % period}
    buffers = tuple(
        b.model_copy(update={"tag": tag}) if isinstance(b.tag, dict) and "l" in b.tag else b for b in schedule.buffers
    )
    verdict = verify(schedule.model_copy(update={"buffers": buffers}))
    assert verdict.status == "SAFE" and verdict.tokens_to_wrap is not None
    last = period * (verdict.tokens_to_wrap - 1) + slope * (layers - 1) + tag["1"]
    assert last < POISON <= last + period
