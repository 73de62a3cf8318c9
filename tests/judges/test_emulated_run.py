"""The judge on the compiled kernel: PTX in the emulator against the plain forward pass."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path

import pytest

from amk.adversary.cases import repaired
from amk.adversary.neighbourhood.bases import base
from amk.emulator.decode import EmulatedEngine
from amk.emulator.machine.machine import Order, Outcome
from amk.judges import sliced
from amk.judges.emulated_run import EmulatedKernel
from amk.judges.judge import DEVICE_TOLERANCE, judged, requests
from amk.judges.request import Request
from amk.lowering.compile import compile_ptx
from amk.lowering.emit import emit
from amk.schedule_ir.schedule import Schedule

ADVERSARIAL = Path(__file__).parents[2] / "adversarial"


def printed(schedule: Schedule) -> str:
    """Compiled without the checks of `amk compile`: the only way to run a schedule that these refuse."""
    return compile_ptx(emit(schedule), schedule.target.arch)


@cache
def kernel() -> EmulatedKernel:
    return EmulatedKernel(printed)


def edited(name: str, **fields: object) -> Schedule:
    return Schedule.model_validate_json(json.dumps(base(name) | fields))


SHORT = Request(((7, 20),), (3, 1))
LATER = Request(((7, 20, 33, 6, 19, 32),), (1, 2), 4)


@pytest.mark.turns(32)
@pytest.mark.parametrize("name", ["tagged", "fenced, heads apart"])
@pytest.mark.parametrize(("request_", "order"), [(SHORT, "round-robin"), (LATER, "priorities:1")])
def test_a_right_kernel_is_not_refuted(name: str, request_: Request, order: str) -> None:
    ruling = judged(edited(name), request_, order, kernel(), DEVICE_TOLERANCE)
    assert ruling.status == "not refuted", ruling


@pytest.mark.turns(4)
@pytest.mark.parametrize(("positions", "order"), [((0, 1, 2), "round-robin"), ((10, 11, 19, 1), "priorities:1")])
def test_a_right_slice_of_layers_is_not_refuted(positions: tuple[int, ...], order: str) -> None:
    ruling = judged(edited("slice of layers"), sliced.called(positions), order, kernel(), DEVICE_TOLERANCE)
    assert ruling.status == "not refuted", ruling


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", ["output head", "last layer and output head"])
def test_a_right_output_head_is_not_refuted_and_a_wrong_one_is(name: str) -> None:
    """As long as nothing is changed, in any order; then where the norm is another table."""
    schedule = edited(name)
    for request_, order in islice(sliced.requests(schedule), 3):
        ruling = judged(schedule, request_, order, kernel(), DEVICE_TOLERANCE)
        assert ruling.status == "not refuted", ruling
    wrong = json.loads(json.dumps(base(name)).replace('"norm": "norm"', '"norm": "hidden_in"'))
    assert wrong != base(name)
    ruling = judged(
        Schedule.model_validate_json(json.dumps(wrong)),
        sliced.called((0, 1)),
        "round-robin",
        kernel(),
        DEVICE_TOLERANCE,
    )
    assert ruling.status == "refuted" and ruling.kind in ("logits", "out of bounds"), ruling


@pytest.mark.turns(4)
def test_a_slice_that_gives_the_wrong_vector_is_refuted() -> None:
    wrong = json.loads(json.dumps(base("slice of layers")).replace('"h": "h_mid", "norm"', '"h": "attn", "norm"'))
    assert wrong != base("slice of layers")
    schedule = Schedule.model_validate_json(json.dumps(wrong))
    ruling = judged(schedule, sliced.called((0, 1)), "round-robin", kernel(), DEVICE_TOLERANCE)
    assert ruling.status == "refuted", ruling


@pytest.mark.turns(4)
def test_a_kernel_that_reads_a_constant_in_place_of_an_activation_is_refuted() -> None:
    text = json.dumps(base("fenced, heads apart"))
    wrong = json.loads(text.replace('"h": "h_mid"', '"h": "embedding"'))
    assert wrong != base("fenced, heads apart")
    ruling = judged(Schedule.model_validate_json(json.dumps(wrong)), SHORT, "round-robin", kernel(), DEVICE_TOLERANCE)
    assert ruling.status == "refuted", ruling


@pytest.mark.turns(4)
def test_a_run_whose_races_were_not_looked_for_to_the_end_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = EmulatedEngine.launch

    def unchecked(engine: EmulatedEngine, count: int, order: Order) -> Outcome:
        return replace(launch(engine, count, order), races_checked=False)

    monkeypatch.setattr(EmulatedEngine, "launch", unchecked)
    ruling = judged(edited("fenced"), SHORT, "round-robin", EmulatedKernel(printed), DEVICE_TOLERANCE)
    assert ruling.status == "unrun" and "races" in ruling.why


def test_a_kernel_whose_wait_never_holds_hangs() -> None:
    document = json.loads(json.dumps(base("fenced, heads apart")))
    waits = [w for w in _waits(document["programs"][0]["body"]) if w["counter"] == "best"]
    waits[0]["at_least"]["1"] += 1
    ruling = judged(
        Schedule.model_validate_json(json.dumps(document)), Request(((7, 20),), (2,)), "round-robin", kernel()
    )
    assert ruling.status == "refuted", ruling
    assert ruling.kind not in ("tokens", "logits"), ruling


def _waits(body: list[dict[str, object]]) -> list[dict[str, object]]:
    out: list[dict[str, object]] = []
    for node in body:
        out += _waits(node["body"]) if "body" in node else node["waits"]  # type: ignore[arg-type, operator]
    return out


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", ["hint-one-short", "order-at-some-positions"])
def test_a_word_that_is_overwritten_before_it_is_read_hangs_its_reader_where_that_is_delayed(name: str) -> None:
    """Nothing orders the two, and where the reader is in time nothing shows that: words are strong, so no race."""
    case = json.loads((ADVERSARIAL / f"{name}.json").read_text())
    broken = Schedule.model_validate_json(json.dumps(case["schedule"]))
    right = Schedule.model_validate_json(json.dumps(repaired(case)))
    request, in_turn = next(requests(broken))[0], "round-robin"
    last = f"delay:{broken.launch.workers - 1}"
    found = [judged(s, request, o, kernel(), DEVICE_TOLERANCE).kind for s in (broken, right) for o in (in_turn, last)]
    assert found == ["", "deadlock", "", ""]
