"""Partial sums of lm_head in global memory: a slice for each worker, the same in model, proof and kernel."""

from dataclasses import replace

import pytest

from amk.checker.certificate import check_certificate
from amk.judges.oracle.judge import rule
from amk.lowering.emit import emit
from amk.models.model import load_model
from amk.planner.buffers import HEAD_SUMS
from amk.planner.decode import plan
from amk.planner.settings import FAST
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.memory import Buffer
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.verify import verify
from tests.engine.tiny import tiny_model, tiny_plan

BATCH = 2


def planned() -> Schedule:
    return tiny_plan(tiny_model(), workers=4, warps=2, batch=BATCH, head_sums="global")


def shaped(schedule: Schedule, *shape: int) -> Schedule:
    """With other slices of the sums."""
    buffers = tuple(b.model_copy(update={"shape": shape}) if b.name == HEAD_SUMS else b for b in schedule.buffers)
    return schedule.model_copy(update={"buffers": buffers})


def sums(schedule: Schedule) -> Buffer:
    return next(b for b in schedule.buffers if b.name == HEAD_SUMS)


def test_every_worker_has_a_slice_and_the_plan_is_safe() -> None:
    schedule = planned()
    slots = max(schedule.tables["lm_head.count"]) + schedule.launch.warps
    assert sums(schedule).shape == (4, slots, BATCH, 8)
    assert verify(schedule).safe and rule(schedule).status == "SAFE"
    assert check_certificate(schedule, schedule_hash(schedule), certify_schedule(schedule, checked=False)).reason == ""


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_slices_that_overlap_race(workers: int) -> None:
    """Room for fewer workers than there are: some write where others have not read yet, or beyond the buffer."""
    schedule = planned()
    _, slots, *rest = sums(schedule).shape
    overlapping = shaped(schedule, workers, slots, *rest)
    verdict = verify(overlapping)
    assert verdict.status == "UNSAFE" and rule(overlapping).status == "UNSAFE"
    assert {d.code for d in verdict.diagnostics} <= {"AMK103", "AMK301", "AMK302"}, verdict.diagnostics


def test_kernel_and_model_cut_the_same_slices() -> None:
    """Also where the first dimension is not the number of workers."""
    schedule = planned()
    _, slots, *rest = sums(schedule).shape
    source = emit(shaped(schedule, 8, slots, *rest))
    assert source.count(f"c.globals.b_{HEAD_SUMS} + c.worker * {2 * slots * BATCH * 8}") == 2
    assert verify(shaped(schedule, 8, slots, *rest)).safe


@pytest.mark.turns(12)
@pytest.mark.parametrize(("name", "gpu"), [("qwen2.5-1.5b", "l4"), ("llama3-8b", "a10g"), ("qwen3-8b", "rtx4090")])
def test_what_shared_memory_does_not_hold_lies_in_global_memory(name: str, gpu: str) -> None:
    model, target = load_model(name), load_target(gpu)
    shared, several = (plan(model, target, settings=replace(FAST, batch=b), max_context=1024) for b in (2, 8))
    assert HEAD_SUMS not in {b.name for b in shared.buffers} and sums(several).shape[0] == several.launch.workers
    assert verify(several).safe


def test_the_rings_of_a_batch_of_eight_get_the_bytes() -> None:
    model, target = load_model("llama3-8b"), load_target("h200")
    deep, shallow = (
        plan(model, target, settings=replace(FAST, batch=8, warps=8, chunk_bytes=2048, k_parts=4, head_sums=where))
        for where in ("global", "shared")
    )
    assert deep.streams[0].slots == shallow.streams[0].slots + 1
