"""Compiled kernels are held to the schedule's own words about registers, shared memory and co-residency."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amk.lowering.emit import MOST_POSITIONS, emit
from amk.lowering.kernel import build, check_compiled
from amk.planner.decode import plan
from amk.report.diagnostic import AmkError, Exit
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import STATIC_SMEM_PER_BLOCK, load_target
from amk.validator.verify import verify
from tests.tiny import PLAIN


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return plan(PLAIN, load_target("l4"), max_context=256)


def launched(schedule: Schedule, **changes: int) -> Schedule:
    return schedule.model_copy(update={"launch": schedule.launch.model_copy(update=changes)})


@pytest.mark.turns(4)
def test_a_plan_is_within_its_budget(schedule: Schedule) -> None:
    built = build(schedule)
    assert 0 < built.resources.registers <= schedule.launch.registers
    assert built.shared_bytes <= schedule.target.smem_per_block
    assert built.synchronisation


@pytest.mark.turns(48)
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"registers": 32}, "AMK403"),
        ({"shared_bytes": 101_376}, "AMK401"),
        ({"sms": 1}, "AMK402"),
    ],
    ids=["registers", "shared memory", "more workers than SMs"],
)
def test_over_budget(schedule: Schedule, changes: dict[str, int], code: str) -> None:
    sms = changes.get("sms", schedule.target.sms)
    changed = launched(schedule, **{k: v for k, v in changes.items() if k != "sms"})
    changed = changed.model_copy(update={"target": schedule.target.model_copy(update={"sms": sms})})
    with pytest.raises(AmkError, match=code) as caught:
        build(changed)
    assert caught.value.exit_code is Exit.UNSAFE


@pytest.mark.turns(12)
def test_shared_memory_that_fits_for_the_verdict_fits_for_the_build(schedule: Schedule) -> None:
    """The kernel's own, the watchdog's, is beside what the launch asks for."""
    most = schedule.target.smem_per_block - STATIC_SMEM_PER_BLOCK
    fits, too_much = (launched(schedule, shared_bytes=most + more) for more in (0, 1))
    assert verify(fits).safe and build(fits).shared_bytes == schedule.target.smem_per_block
    assert verify(too_much).diagnostics[0].code == "AMK401"
    with pytest.raises(AmkError, match="AMK401"):
        build(too_much)


@pytest.mark.turns(4)
def test_two_workers_that_do_not_fit_one_sm(schedule: Schedule) -> None:
    """Compiled for one worker a SM, the kernel may use what two of them would have to share."""
    built = replace(build(schedule), schedule=launched(schedule, ctas_per_sm=2))
    with pytest.raises(AmkError, match="AMK402"):
        check_compiled(built)


def test_a_block_that_no_compiler_unrolls_is_refused_at_once(schedule: Schedule) -> None:
    """SAFE, and no kernel: a compiler would unroll the scores of 2^20 positions for longer than anybody waits."""
    lanes = 32 * schedule.launch.warps
    for block, refused in ((MOST_POSITIONS * lanes, False), (MOST_POSITIONS * lanes + 1, True), (1 << 20, True)):
        changed = schedule.model_copy(update={"kv": schedule.kv.model_copy(update={"block": block})})
        if not refused:
            assert emit(changed)
            continue
        assert verify(changed).safe
        for printing in (emit, build):
            with pytest.raises(AmkError, match=r"AMK601.*positions of a block") as caught:
                printing(changed)
            assert caught.value.exit_code is Exit.INPUT
