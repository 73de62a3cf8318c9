"""Steps without output head read a prompt as steps with one do: the same caches, and nothing chosen.

The validator, the checker and the judges know of them, each by its own code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk.adversary.edits import Edit, apply, find
from amk.adversary.neighbourhood.bases import TAGGED
from amk.checker.certificate import check_certificate
from amk.cli import main
from amk.emulator.decode import EmulatedEngine
from amk.engine.backends.cpu_engine import CpuEngine
from amk.engine.load import check_chooses
from amk.interpreter.interpret import Machine
from amk.interpreter.packing import packed_array
from amk.judges.emulated_run import EmulatedKernel
from amk.judges.judge import DEVICE_TOLERANCE, judge, judged, requests
from amk.judges.numpy_run import run
from amk.judges.oracle.judge import rule
from amk.lowering.kernel import build
from amk.models.model_spec import ModelSpec
from amk.planner.formats import formats
from amk.planner.settings import PHASED, Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import canonical_json, schedule_hash
from amk.schedule_ir.layout import stream_layout
from amk.schedule_ir.schedule import Schedule
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.together import apart, one_packing
from amk.validator.verify import verify
from tests.cases import cases
from tests.engine.guesses import small_plan
from tests.engine.tiny import NEOX, RandomTensors, tiny_model, tiny_plan
from tests.validator.plans import from_document

PARTS: dict[str, Any] = {"handoff": "mixed", "x_parts": 2, "k_parts": 2, "warps": 2}
CASES: dict[str, tuple[ModelSpec, dict[str, Any]]] = {
    "tagged words": (tiny_model(), {"rows": 5, "handoff": "tagged"}),
    "fenced counters": (tiny_model(), {"rows": 5, "handoff": "fenced", "kv_splits": 2}),
    "workers without rows of some matrix": (tiny_model(), {"rows": 4, "workers": 11, "handoff": "tagged"}),
    "all in parts": (tiny_model(ffn=128), {"rows": 8, **PARTS}),
    "all in parts, copies held back": (tiny_model(ffn=256), {"rows": 8, **PARTS, "held_refills": 1.0}),
    "owed through QKV": (tiny_model(layers=3), {"rows": 3, "carried": 0.5, "held_refills": 0.5, "warps": 2}),
    "LayerNorm": (tiny_model(**NEOX), {"rows": 4}),
    "codes": (tiny_model(layers=1), {"rows": 4, "weights": formats("int8", "bf16"), "chunk_bytes": 1024}),
    "fp8 cache": (tiny_model(layers=1), {"rows": 4, "kv_dtype": "fp8"}),
    "a lane for each row": (tiny_model(layers=1), {"rows": 12, "kv_block": 12}),
    "more than 32 rows": (tiny_model(layers=1, max_context=128), {"rows": 40, "kv_block": 40, "context": 128}),
}  # fmt: skip


def planned(name: str, **changes: Any) -> Schedule:
    model, settings = CASES[name]
    return tiny_plan(model, **({"headless": True} | settings | changes))


def refused_by_both(wrong: Schedule, certificate: dict[str, Any]) -> bool:
    """By the validator, and by the checker under a certificate that is right for another schedule."""
    digest = schedule_hash(wrong)
    codes = {diagnostic.code for diagnostic in verify(wrong).diagnostics}
    return bool(codes) and check_certificate(wrong, digest, certificate | {"schedule": digest}).reason != ""


@pytest.mark.turns(24)
@pytest.mark.parametrize("name", CASES)
def test_plans_are_safe_certified_and_read_what_the_model_reads(name: str) -> None:
    schedule = planned(name)
    assert verify(schedule).safe
    certificate = certify_schedule(schedule, checked=False)
    assert check_certificate(schedule, schedule_hash(schedule), certificate).reason == ""
    ruling = judge(schedule, most=4)
    assert ruling.status == "not refuted", ruling


@pytest.mark.turns(24)
@pytest.mark.parametrize("name", CASES)
def test_caches_are_those_of_steps_with_output_head(name: str) -> None:
    """Byte for byte, over two launches; and so are tokens and state, where the text goes on."""
    schedule, whole = planned(name), planned(name, headless=False)
    source, rows = RandomTensors(schedule.model), schedule.rows
    prompt = [(7 * n + 3) % schedule.model.vocab for n in range(schedule.kv.context)]
    engines = [CpuEngine(each, source, numerics="device") for each in (schedule, whole)]
    for engine in engines:
        engine.request(prompt)
    for count in (2, 1):
        first, second = (engine.step(count) for engine in engines)
        np.testing.assert_array_equal(first, second)
    for cache in ("k_cache", "v_cache"):
        first, second = (engine._machine.get(cache).view(np.uint32) for engine in engines)
        np.testing.assert_array_equal(first, second)
        assert len(set(first.tolist())) > rows
    assert engines[0].state() == engines[1].state() and engines[0].state()["pos"] == 3 * rows


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", ["tagged words", "all in parts", "codes"])
def test_packed_weights_of_both_are_the_same(name: str) -> None:
    """The steps without output head read a packing that was made for those with it, copy by copy."""
    schedule, whole = planned(name), planned(name, headless=False)
    assert apart(schedule, whole) == [] and one_packing(schedule, whole) and one_packing(whole, schedule)
    source, (stream,) = RandomTensors(schedule.model), schedule.streams
    packed = packed_array(whole, source)
    np.testing.assert_array_equal(packed, packed_array(schedule, source))
    layout = stream_layout(schedule, stream)
    assert (layout.totals < layout.places).any() and int(layout.places.sum()) == len(packed)
    engine = CpuEngine(schedule, source, copies="events")
    engine._machine = Machine(schedule, source, copies="events", packed=packed)
    other = CpuEngine(whole, source, copies="events")
    for each in (engine, other):
        each._set_state(dict.fromkeys(each.schedule.state_words, 0))
        each.request([(5 * n + 1) % schedule.model.vocab for n in range(2 * schedule.rows)])
        each.step(2)
    for cache in ("k_cache", "v_cache"):
        np.testing.assert_array_equal(*(each._machine.get(cache).view(np.uint32) for each in (engine, other)))


@pytest.mark.turns(12)
@pytest.mark.parametrize("settings", [PHASED, TAGGED], ids=["fenced", "tagged"])
def test_its_kernel_reads_the_same(settings: Settings) -> None:
    """The compiled kernel in the emulator, with races, up to the last position."""
    pytest.importorskip("numba")
    schedule, kernel = small_plan(settings, rows=4, headless=True), EmulatedKernel(lambda s: build(s).compiled.ptx)
    assert rule(schedule).status == "SAFE"
    for request, order in list(requests(schedule))[: cases(4, 8)]:
        ruling = judged(schedule, request, order, kernel, DEVICE_TOLERANCE)
        assert ruling.status == "not refuted", (request, order, ruling)


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", ["all in parts", "more than 32 rows"])
def test_kernels_of_both_leave_the_same_bits(name: str) -> None:
    pytest.importorskip("numba")
    schedules = planned(name), planned(name, headless=False)
    source = RandomTensors(schedules[0].model)
    prompt = [(3 + 5 * n) % schedules[0].model.vocab for n in range(2 * schedules[0].rows)]
    found = []
    for schedule in schedules:
        engine = EmulatedEngine(schedule, source, build(schedule).compiled.ptx, races=True)
        engine.request_batch([prompt])
        outcome = engine.launch(2)
        assert outcome.ended and outcome.faults == []
        found.append((engine.caches(), engine.output(2)[:, :-1], engine.state()["pos"]))
    np.testing.assert_array_equal(found[0][0].view(np.uint32), found[1][0].view(np.uint32))
    np.testing.assert_array_equal(found[0][1][0], found[1][1][0])
    assert found[0][2] == found[1][2] == len(prompt)


BROKEN: dict[str, Callable[[dict[str, Any]], list[Edit]]] = {
    "rows never move on": lambda s: [Edit("remove", find(s, "advance"))],
    "a product is left out": lambda s: [Edit("remove", find(s, "gemv", matrix="down"))],
    "attention is left out": lambda s: [Edit("remove", find(s, "attend"))],
    "rows move on twice": lambda s: [Edit("insert", find(s, "advance"), {"op": {
        "op": "advance", "role": "all", "prompt": "prompt", "output": "output"}})],
    "one warp moves on": lambda s: [Edit("replace", (*find(s, "advance"), "op", "role"), "w0")],
    "keys are attended early": lambda s: [Edit("remove", (*find(s, "attend")[:-1], find(s, "attend")[-1] - 1))],
}  # fmt: skip


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", BROKEN)
def test_steps_that_leave_something_out_are_refused(name: str) -> None:
    schedule = planned("fenced counters")
    document = json.loads(canonical_json(schedule))
    wrong = from_document(apply(document, BROKEN[name](document))[0])
    assert refused_by_both(wrong, certify_schedule(schedule))


@pytest.mark.turns(4)
@pytest.mark.parametrize("case", ["tagged words", "all in parts", "LayerNorm"])
def test_the_header_says_whether_there_is_an_output_head(case: str) -> None:
    """A head that the header denies, or none where it says nothing, by the validator and by the checker."""
    schedule, whole = planned(case), planned(case, headless=False)
    for right, wrong in (
        (whole, whole.model_copy(update={"headless": True})),
        (schedule, schedule.model_copy(update={"headless": False, "buffers": (*schedule.buffers, logits_of(whole))})),
    ):
        assert verify(right).safe and refused_by_both(wrong, certify_schedule(right))


def logits_of(schedule: Schedule) -> Any:
    return next(b for b in schedule.buffers if b.name == "logits")


@pytest.mark.parametrize(
    "changes", [{"rows": 1}, {"accepts": True}, {"tree": True}, {"sampling": "temperature"}, {"batch": 2, "rows": 1}],
    ids=str,
)  # fmt: skip
def test_rows_are_given_where_nothing_is_chosen(changes: dict[str, Any]) -> None:
    with pytest.raises(AmkError, match="AMK016"):
        planned("tagged words", **changes)
    plain = planned("tagged words", headless=False, **changes)
    marked = plain.model_copy(update={"headless": True})
    assert "AMK106" in {diagnostic.code for diagnostic in verify(marked).diagnostics}
    assert refused_by_both(marked, certify_schedule(plain))


def test_the_judge_notices_another_token_and_another_cache() -> None:
    schedule = planned("tagged words")
    (request, order), *_ = requests(schedule)

    def spoilt(what: str) -> Any:
        def machine(*arguments: Any) -> Any:
            shown = run(*arguments)
            if what == "tokens":
                shown.tokens[-1][0, 0] += 1
            elif what == "state":
                shown.state[-1]["token"] += 1
            else:
                assert shown.caches is not None
                shown.caches[1][0, 0, 0, request.start] += 1
            return shown

        return machine

    for kind in ("tokens", "state", "cache"):
        assert judged(schedule, request, order, spoilt(kind)).kind == kind


def test_a_schedule_with_output_head_does_not_say_so() -> None:
    """The text, and so the name, of every schedule from before is what it was."""
    assert b"headless" not in canonical_json(planned("tagged words", headless=False))
    assert json.loads(canonical_json(planned("tagged words")))["headless"] is True
    with pytest.raises(AmkError, match="AMK016"):
        check_chooses(planned("tagged words"))


@pytest.mark.turns(4)
def test_commands_plan_verify_and_emulate_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("numba")
    ours, one = tmp_path / "rows.json", tmp_path / "one.json"
    ours.write_bytes(canonical_json(small_plan(TAGGED, rows=4, headless=True)))
    one.write_bytes(canonical_json(small_plan(TAGGED)))
    assert main(["verify", str(ours), str(one)]) == 0
    assert main(["emulate", str(ours), "--tokens", "2"]) == 0
    assert "keys and values differ from the interpreter's by" in capsys.readouterr().out
    command = ["plan", "--model", "smollm2-135m", "--gpu", "h200", "--rows", "16", "--headless", "-o", str(ours)]
    assert main(command) == 0 and "no output head" in capsys.readouterr().out
