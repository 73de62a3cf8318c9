"""Lanes of one warp in whole kernels: those of the bases are clean, one without its barriers of the warp is not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from amk.adversary.neighbourhood.bases import SMALL_BASES, base
from amk.emulator.decode import EmulatedEngine
from amk.emulator.machine.machine import Order
from amk.emulator.machine.report import Fault
from amk.judges.request import hidden_state
from amk.judges.weights import RandomWeights
from amk.lowering import headers, lanes
from amk.lowering.compile import compile_ptx
from amk.lowering.emit import emit
from amk.planner.decode import plan
from amk.planner.settings import NAIVE
from amk.schedule_ir.ops import SignalOp, WaitOp
from amk.schedule_ir.schedule import Schedule, Step
from amk.targets.target import load_target
from tests.cases import one_in_turn
from tests.emulator.test_decode import scheduled
from tests.lowering.edits.emulated import difference
from tests.lowering.edits.judge import built, compiled, original, subject, texts
from tests.lowering.edits.rules import SOURCE, Edit
from tests.tiny import tiny

ORDERS = (Order(), Order(seed=1, slice=50), Order(eager=True))
MEETING = re.compile(r"(?:amk::)?sync::warp_barrier\(\);")


def faults(schedule: Schedule, ptx: str, order: Order = ORDERS[0], tokens: int = 3) -> list[Fault]:
    """Of a launch of so many steps, races looked for to the end."""
    engine = EmulatedEngine(schedule, RandomWeights(schedule.model), ptx, races=True)
    if schedule.model.slice is not None:
        tokens = 1
        engine.machine.write("hidden_in", hidden_state(schedule.model.hidden, 0))
        if schedule.model.layers:
            engine.machine.write("position", np.zeros(1, np.int32))
    else:
        engine.request_batch([[3, 17, 5, 9, 2, 4, 6, 8, 1, 7, 5, 3][: 3 * schedule.rows]] * schedule.batch)
    outcome = engine.launch(tokens, order)
    assert outcome.races_checked and (outcome.ended or outcome.faults)
    return outcome.faults


@pytest.mark.turns(48)
@pytest.mark.parametrize("name", SMALL_BASES)
def test_every_base_is_clean(name: str) -> None:
    schedule = Schedule.model_validate_json(json.dumps(base(name)))
    ptx = compile_ptx(emit(schedule), schedule.target.arch)
    for order in one_in_turn(ORDERS, list(SMALL_BASES).index(name)):
        assert [str(fault) for fault in faults(schedule, ptx, order)] == []


MEETINGS = (
    ("tagged", "amk/ring.cuh", "the ring starts", 0),
    ("fenced", "amk/ring.cuh", "a slot is refilled", 1),
    ("copies", "amk/ring.cuh", "a group has landed", 2),
    ("copies", "amk/ring.cuh", "a slot is copied into again", 3),
    ("fenced", "amk/ops/combine.cuh", "weights are used", 1),
    ("drawing", "amk/staged.cuh", "sums of blocks read what was staged", 0),
    ("drawing", "amk/ops/narrow.cuh", "what is read is replaced", 0),
)
"""(kernel, header, what meets there, number of the barrier in the header). Every barrier of the warp of every subject's
kernel is decided in tests/lowering/edits/lane_barriers.py."""


@pytest.mark.turns(24)
@pytest.mark.parametrize(("name", "header", "what", "number"), MEETINGS, ids=[m[2] for m in MEETINGS])
def test_a_header_without_one_barrier_of_the_warp_races(name: str, header: str, what: str, number: int) -> None:
    ptx, whole = compiled(name, _without(texts(name)[header], header, number)), original(name)
    assert ptx is not None and whole is not None and ptx != whole
    assert difference(name, subject(name), whole, ptx) in ("race", "proxy"), what


@cache
def _two_splits() -> tuple[Schedule, str, dict[str, str], str]:
    """Schedule, text, headers and PTX of a kernel whose attention is split in two from its ninth token on."""
    schedule = scheduled("fenced, two splits, fp8 cache")
    source = emit(schedule)
    files = headers.closure(source)
    whole = built(source, files, schedule.target.arch)
    assert whole is not None and faults(schedule, whole, tokens=10) == []
    return schedule, source, files, whole


@pytest.mark.turns(24)
@pytest.mark.parametrize("number", range(3))
def test_weights_of_two_splits_pass_between_lanes_only_where_they_meet(number: int) -> None:
    (schedule, source, files, whole), header = _two_splits(), "amk/ops/combine.cuh"
    edit = _without(files[header], header, number)
    ptx = built(source, files | {header: edit.of(files[header])}, schedule.target.arch)
    assert ptx is not None and ptx != whole
    assert "race" in {fault.kind for fault in faults(schedule, ptx, tokens=10)}


@pytest.mark.turns(16)
def test_a_kernel_whose_lanes_do_not_meet_before_a_signal_races() -> None:
    """The signal of every round in which candidates are narrowed; before others a barrier of the block stands."""
    found = _without(texts("drawing")[SOURCE], SOURCE, 13)
    ptx = compiled("drawing", found)
    assert ptx is not None and ptx != original("drawing")
    assert "race" in {fault.kind for fault in faults(subject("drawing"), ptx)}


def _without(text: str, file: str, number: int) -> Edit:
    """The edit that leaves out one of the barriers of the warp."""
    found = list(MEETING.finditer(text))[number]
    return Edit("synchronisation: place", f"barrier {number}", file, found.start(), len(found[0]), ";")


@cache
def _empty_steps(op: str) -> Schedule:
    """One warp a worker, whose barriers became waits for nothing, or signals of nothing."""
    settings = replace(NAIVE, plan="custom", warps=1)
    schedule = plan(tiny(layers=1), load_target("h200"), settings=settings, max_context=128, workers=2)
    text = schedule.model_dump_json().replace('"op":"barrier","id":1,"agents":1', f'"op":"{op}"')
    assert text != schedule.model_dump_json()
    return Schedule.model_validate_json(text)


@pytest.mark.turns(24)
@pytest.mark.parametrize("op", ["wait", "signal"])
def test_an_empty_step_that_counts_as_a_meeting_races(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the lowering once had it: it took a step that prints nothing for a meeting of the lanes, and printed none."""
    schedule = _empty_steps(op)
    ptx = compile_ptx(emit(schedule), schedule.target.arch)
    assert faults(schedule, ptx) == []
    step = lanes._Walk.step

    def once(walk: lanes._Walk, one: Step, number: int) -> None:
        if isinstance(one.op, WaitOp | SignalOp):
            walk._meet(walk.memory.warps[one.op.role])
        step(walk, one, number)

    monkeypatch.setattr(lanes._Walk, "step", once)
    wrong = compile_ptx(emit(schedule), schedule.target.arch)
    assert wrong != ptx
    found = faults(schedule, wrong)
    assert {fault.kind for fault in found} == {"race"}
    assert all("worker" in fault.message and "lane" in fault.message for fault in found)
