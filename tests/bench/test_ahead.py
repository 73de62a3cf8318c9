"""Kernels made by other processes are those that this one would make, and refusals arrive with what they say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amk.bench.tools.ahead import Ahead, kernel_of
from amk.planner.decode import plan
from amk.planner.settings import FAST
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Launch, Schedule
from amk.targets.target import load_target
from tests.tiny import PLAIN


def small() -> Schedule:
    return plan(PLAIN, load_target("h200"), settings=replace(FAST, kv_block=64), max_context=64, workers=2)


def few_registers() -> Schedule:
    schedule = small()
    return schedule.model_copy(update={"launch": Launch(**schedule.launch.model_dump() | {"registers": 40})})


@pytest.mark.turns(24)
def test_a_kernel_made_ahead_is_the_same_and_a_refusal_arrives_whole() -> None:
    one, refused = small(), few_registers()
    with Ahead((one, refused)) as ahead:
        assert ahead.pool is not None
        with pytest.raises(AmkError) as there:
            ahead.kernel(refused)
        found = ahead.kernel(one)
    assert found.schedule == one and found.code == kernel_of(one).code
    with pytest.raises(AmkError) as here:
        kernel_of(refused)
    assert there.value.diagnostics == here.value.diagnostics and there.value.exit_code == here.value.exit_code


@pytest.mark.turns(4)
def test_a_single_kernel_needs_no_other_process() -> None:
    schedule = small()
    with Ahead((schedule,)) as ahead:
        assert ahead.pool is None and ahead.kernel(schedule).schedule == schedule
