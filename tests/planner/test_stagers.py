"""Some warps of a worker stage the next part of an input while the others multiply the part before: the same sums."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from amk.checker.certificate import check_certificate
from amk.engine.backends.cpu_engine import CpuEngine
from amk.judges.emulated_run import EmulatedKernel
from amk.judges.judge import DEVICE_TOLERANCE, judge, judged, requests
from amk.judges.oracle.judge import rule
from amk.lowering.kernel import build
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.staging import Staging
from amk.schedule_ir.schedule import Loop, Schedule, Step, steps_of
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.verify import verify
from tests.engine.tiny import RandomTensors, tiny_model, tiny_plan

MODEL = tiny_model(layers=2, hidden=192, ffn=384, heads=6, kv_heads=2)
PARTS: dict[str, Any] = {"rows": 8, "x_parts": 6, "k_parts": 12, "handoff": "mixed", "warps": 4}
CASES: dict[str, dict[str, Any]] = {
    "one": {"stagers": 1},
    "two": {"stagers": 2},
    "without output head": {"stagers": 1, "headless": True},
    "refills held back": {"stagers": 1, "held_refills": 1.0},
    "fenced": {"stagers": 2, "handoff": "fenced"},
    "a lane for each row": {"stagers": 1, "rows": 12, "kv_block": 12},
    "a batch": {"stagers": 1, "rows": 1, "batch": 3, "x_parts": 3, "k_parts": 3, "workers": 6},
}


def planned(name: str, **changes: Any) -> Schedule:
    return tiny_plan(MODEL, **PARTS | CASES[name] | changes)


@pytest.mark.turns(2)
@pytest.mark.parametrize("name", CASES)
def test_plans_are_safe_certified_and_right(name: str) -> None:
    schedule = planned(name)
    assert verify(schedule).safe
    certificate = certify_schedule(schedule, checked=False)
    assert check_certificate(schedule, schedule_hash(schedule), certificate).reason == ""
    ruling = judge(schedule, most=4)
    assert ruling.status == "not refuted", ruling


def test_one_part_is_staged_while_the_one_before_is_multiplied() -> None:
    """Between two barriers of a product: a part is staged in one array, the part before is read from the other."""
    schedule = planned("one", headless=True)
    (program,) = schedule.programs
    sizes = {role.name: (role.first, role.count) for role in schedule.roles}
    assert (sizes["multiply"], sizes["stage"]) == ((0, 3), (3, 1))
    (layers,) = (n for t in program.body if isinstance(t, Loop) for n in t.body if isinstance(n, Loop))
    staged: list[Staging] = []
    pairs = 0
    for step in (n for n in layers.body if isinstance(n, Step)):
        op = step.op
        if isinstance(op, Staging):
            staged.append(op)
        elif isinstance(op, GemvOp):
            assert op.role == "multiply"
            for ahead in staged:
                pairs += 1
                assert ahead.role == "stage" and ahead.x != op.x
                assert vars(ahead)["k_part"] == op.k_part + 1
        elif isinstance(op, BarrierOp):
            staged.clear()
    assert pairs == 3 * 5 + 11


@pytest.mark.turns(2)
@pytest.mark.parametrize("name", ["one", "two", "fenced"])
def test_logits_are_those_of_plans_in_which_all_warps_do_both(name: str) -> None:
    source = RandomTensors(MODEL)
    engines = [CpuEngine(planned(name, **changes), source) for changes in ({}, {"stagers": 0})]
    prompt = [(7 * n + 3) % MODEL.vocab for n in range(16)]
    for engine in engines:
        engine.request(prompt)
    first, second = (engine.step(2) for engine in engines)
    np.testing.assert_array_equal(first, second)
    ours, theirs = (engine.logits() for engine in engines)
    assert np.abs(ours - theirs).max() < 1e-4 * np.abs(theirs).max()


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", ["one", "two"])
def test_its_kernel_computes_the_same(name: str) -> None:
    """The compiled kernel in the emulator, with races; and the oracle on every byte of one layer."""
    pytest.importorskip("numba")
    model = tiny_model(layers=1, hidden=192, ffn=192, heads=6, kv_heads=2, head_dim=32, vocab=40)
    schedule = tiny_plan(
        model, **PARTS | CASES[name] | {"k_parts": 6, "workers": 2, "kv_block": 8, "context": 24, "max_tokens": 3}
    )
    assert rule(schedule).status == "SAFE"
    kernel = EmulatedKernel(lambda made: build(made).compiled.ptx)
    for request, order in list(requests(schedule))[:3]:
        ruling = judged(schedule, request, order, kernel, DEVICE_TOLERANCE)
        assert ruling.status == "not refuted", (request, order, ruling)


@pytest.mark.turns(2)
@pytest.mark.parametrize("behind", ["stage_norm", "gemv"])
def test_without_the_barrier_of_a_part_it_is_unsafe(behind: str) -> None:
    """Each barrier between parts is needed: what is staged is read, or overwritten, by other warps."""
    schedule = planned("one", headless=True)
    document = schedule.model_dump(mode="json")
    body = document["programs"][0]["body"][1]["body"]
    layers = next(node["body"] for node in body if node.get("var") == "l")
    places = [
        n for n, node in enumerate(layers) if node["op"]["op"] == behind and layers[n + 1]["op"]["op"] == "barrier"
    ]
    assert places
    for place in places[:3]:
        shorter = [*layers[: place + 1], *layers[place + 2 :]]
        loops = [node | {"body": shorter} if node.get("var") == "l" else node for node in body]
        (program,) = document["programs"]
        (begin, tokens, finish) = program["body"]
        changed = document | {"programs": [program | {"body": [begin, tokens | {"body": loops}, finish]}]}
        assert verify(Schedule.model_validate_json(json.dumps(changed))).status == "UNSAFE", place


@pytest.mark.parametrize("changes", [{"x_parts": 1}, {"warps": 1, "stagers": 1}], ids=str)
def test_there_are_parts_to_stage_and_warps_left_to_multiply(changes: dict[str, Any]) -> None:
    with pytest.raises(AmkError, match="AMK016"):
        planned("one", **changes)


def test_plans_without_them_are_what_they_were() -> None:
    schedule = planned("one", stagers=0)
    assert {role.name for role in schedule.roles} == {"all", "w0"}
    assert not any(b.name.endswith("_odd") for b in schedule.buffers)
    assert all(step.op.role in ("all", "w0") for program in schedule.programs for step in steps_of(program.body))
