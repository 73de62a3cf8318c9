"""A slice of layers as a schedule: it is proved like any other, and slices in a row are the whole model, bit by bit."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from amk.checker.certificate import check_certificate
from amk.emulator.decode import EmulatedEngine
from amk.emulator.machine.machine import Order
from amk.engine.backends.cpu_engine import CpuEngine
from amk.engine.checkpoints.layer_source import layer_source
from amk.interpreter.interpret import Machine
from amk.lowering.compile import compile_ptx
from amk.lowering.emit import emit
from amk.lowering.kernel import read_back
from amk.lowering.stamp import stamped
from amk.models.model_spec import ModelSpec
from amk.planner.formats import formats
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Loop, Schedule, Step
from amk.validator.export.of_schedule import evidence
from amk.validator.verify import verify
from tests.cases import cases
from tests.engine.tiny import NEOX, RandomTensors, tiny_model, tiny_plan

MODEL = tiny_model(layers=5, qk_norm=True)
TOKENS = (3, 17, 40, 7)
PARTS = {"first": MODEL.sliced(0, 1), "last": MODEL.sliced(2, 5), "last and head": MODEL.sliced(3, 5, head=True),
         "head": MODEL.sliced(5, 5, head=True)}  # fmt: skip
PLANS: dict[str, dict[str, Any]] = {
    "tagged": {},
    "hints when drained": {"handoff": "narrow", "hint_at": "drained", "workers": 2},
    "fenced": {"handoff": "fenced"},
    "naive": {"handoff": "fenced", "run_ahead": False, "wide_epilogue": 0},
    "workers without rows": {"workers": 9, "handoff": "tagged"},
    "heads as they come": {"head_handoff": True},
    "codes": {"weights": formats("int8"), "chunk_bytes": 1024},
    "scales apart": {"weights": formats("int8"), "chunk_bytes": 1024, "scales_apart": True},
}
Floats = NDArray[np.float32]


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("part", PARTS)
def test_slices_are_safe_and_the_checker_takes_their_certificates(name: str, part: str) -> None:
    schedule = tiny_plan(PARTS[part], **PLANS[name])
    verdict = verify(schedule)
    assert verdict.status == "SAFE", verdict.diagnostics
    assert check_certificate(schedule, schedule_hash(schedule), evidence(schedule)).accepted


class Interpreted:
    """A slice on the interpreter."""

    def __init__(self, model: ModelSpec, source: RandomTensors, **settings: Any) -> None:
        self.schedule = tiny_plan(model, **settings)
        self.machine = Machine(self.schedule, layer_source(model, source), numerics="exact")
        self.machine.set("state", np.zeros(4, np.int32))

    def __call__(self, hidden: Floats, position: int) -> Floats:
        self.machine.set("hidden_in", hidden)
        self.machine.set("position", np.array([position], np.int32))
        self.machine.launch(1)
        return self.machine.get("hidden_out")


def head_of(source: RandomTensors, hidden: Floats, **settings: Any) -> Floats:
    """What the output head makes of a hidden state."""
    head = Interpreted(MODEL.sliced(5, 5, head=True), source, **settings).machine
    head.set("hidden_in", hidden)
    head.launch(1)
    return head.get("logits")


def one_after_the_other(model: ModelSpec, cuts: tuple[int, ...], source: RandomTensors, **settings: Any) -> Any:
    """The slices between the cuts, and the last hidden state of every token."""
    parts = [Interpreted(model.sliced(a, b), source, **settings) for a, b in pairwise(cuts)]
    states = []
    for position, token in enumerate(TOKENS):
        hidden = source.arrays["embed"][token]
        for part in parts:
            hidden = part(hidden, position)
        states.append(hidden)
    return parts, np.array(states)


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", ["tagged", "fenced", "codes", "scales apart"])
def test_slices_in_a_row_are_the_whole_model(name: str) -> None:
    source, settings = RandomTensors(MODEL), PLANS[name]
    whole = CpuEngine(tiny_plan(MODEL, **settings), source, numerics="exact")
    whole.request_batch([TOKENS])
    whole.step(len(TOKENS))
    parts, states = one_after_the_other(MODEL, (0, 1, 3, 5), source, **settings)
    for cache in ("k_cache", "v_cache"):
        kept = np.concatenate([part.machine.get(cache) for part in parts])
        np.testing.assert_array_equal(kept, whole._machine.get(cache))
    np.testing.assert_array_equal(states, one_after_the_other(MODEL, (0, 5), source, **settings)[1])
    np.testing.assert_array_equal(head_of(source, states[-1], **settings), whole.logits())
    if name not in ("codes", "scales apart"):  # whose head is multiplied in codes, too
        last = states[-1] / np.sqrt(np.mean(states[-1] ** 2) + MODEL.rms_eps) * source.arrays["final_norm"]
        np.testing.assert_allclose(source.arrays["lm_head"] @ last, whole.logits(), atol=1e-4)


def test_a_position_outside_the_context_is_the_nearest_inside() -> None:
    source = RandomTensors(MODEL)
    hidden, found = source.arrays["embed"][3], []
    for position in (47, 1000, 0, -5):
        call = Interpreted(MODEL.sliced(1, 2), source)
        for name in ("k_cache", "v_cache"):
            call.machine.set(name, np.zeros_like(call.machine.get(name)))
        found.append(call(hidden, position))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[2], found[3])
    assert (found[0] != found[2]).any()


@pytest.mark.turns(48)
@pytest.mark.parametrize("part", [MODEL.sliced(2, 4), PARTS["last and head"], PARTS["head"]], ids=lambda p: p.layers)
@pytest.mark.parametrize("name", ["tagged", "codes", "fenced", "scales apart"])
def test_the_kernel_of_a_slice_gives_the_interpreters_results_in_any_order(name: str, part: ModelSpec) -> None:
    """One launch a token, with nothing but the position and the hidden state written between them, as in a graph."""
    source, model = RandomTensors(MODEL), part
    result, count = ("logits", model.vocab) if model.has_head else ("hidden_out", model.hidden)
    schedule = tiny_plan(model, **PLANS[name])
    ptx = compile_ptx(stamped(emit(schedule), schedule), schedule.target.arch)
    read_back(schedule, ptx)
    expected = Machine(schedule, layer_source(model, source), numerics="device")
    expected.set("state", np.zeros(4, np.int32))
    orders = (Order(), Order(eager=True), Order(seed=1, slice=50))[: cases(2, 3)]
    engines = [EmulatedEngine(schedule, layer_source(model, source), ptx, races=True) for _ in orders]
    for position, token in enumerate(TOKENS[:3]):
        hidden, states = source.arrays["embed"][token], []
        for engine, order in zip(engines, orders, strict=True):
            engine.machine.write("hidden_in", hidden)
            if model.layers:
                engine.machine.write("position", np.array([position], np.int32))
            outcome = engine.launch(1, order)
            assert outcome.ended and not outcome.faults, outcome.faults
            states.append(engine.machine.read(result, np.float32, count))
        expected.set("hidden_in", hidden)
        if model.layers:
            expected.set("position", np.array([position], np.int32))
        expected.launch(1)
        for state in states[1:]:
            np.testing.assert_array_equal(states[0], state)
        wanted = expected.get(result)
        assert np.abs(states[0] - wanted).max() <= 2.0**-7 * np.abs(wanted).max()


def with_body(schedule: Schedule, change: Any) -> Schedule:
    """The schedule with another token loop in its one program."""
    (program,) = schedule.programs
    body = tuple(change(node) if isinstance(node, Loop) else node for node in program.body)
    return schedule.model_copy(update={"programs": (program.model_copy(update={"body": body}),)})


def fewer_layers(token: Loop) -> Loop:
    body = [n.model_copy(update={"count": n.count - 1}) if isinstance(n, Loop) and n.count else n for n in token.body]
    return token.model_copy(update={"body": tuple(body)})


def without(op: str) -> Any:
    def change(token: Loop) -> Loop:
        body = [n for n in token.body if not (isinstance(n, Step) and n.op.op == op)]
        assert len(body) < len(token.body)
        return token.model_copy(update={"body": tuple(body)})

    return change


SMALLER = [
    (part, change)
    for part in (MODEL.sliced(1, 3), MODEL.sliced(0, 5), PARTS["last and head"])
    for change in (fewer_layers, without("take_hidden"), without("give_logits" if part.has_head else "give_hidden"))
]
SMALLER += [(PARTS["head"], without(op)) for op in ("take_hidden", "give_logits", "gemv", "wait", "signal")]


@pytest.mark.turns(4)
@pytest.mark.parametrize(("part", "change"), SMALLER)
def test_a_slice_that_leaves_something_out_is_refused_by_either(change: Any, part: ModelSpec) -> None:
    schedule = tiny_plan(part)
    wrong = with_body(schedule, change)
    assert verify(wrong).status == "UNSAFE"
    assert not check_certificate(wrong, schedule_hash(wrong), claimed(schedule, wrong)).accepted


def claimed(schedule: Schedule, wrong: Schedule) -> Any:
    """The right one's certificate under the wrong one's name."""
    return {**evidence(schedule), "schedule": schedule_hash(wrong)}


def test_a_certificate_made_for_fewer_layers_does_not_prove_more() -> None:
    """A true proof of two layers, for a schedule that runs two, claims three and has the buffers of three."""
    two, three = (tiny_plan(MODEL.sliced(1, stop), handoff="fenced") for stop in (3, 4))
    wanted = two.model_copy(update={"model": three.model, "buffers": three.buffers})
    verdict = check_certificate(wanted, schedule_hash(wanted), claimed(two, wanted))
    assert not verdict.accepted
    assert verdict.reason.startswith("dataflow"), verdict.reason
    assert verify(wanted).status == "UNSAFE"


def test_whole_models_take_no_position_and_slices_need_one() -> None:
    schedule = tiny_plan(MODEL.sliced(0, 2))
    (program,) = schedule.programs
    begin = program.body[0]
    assert isinstance(begin, Step)
    body = (begin.model_copy(update={"op": begin.op.model_copy(update={"position": None})}), *program.body[1:])
    wrong = schedule.model_copy(update={"programs": (program.model_copy(update={"body": body}),)})
    assert verify(wrong).status == "UNSAFE"
    verdict = check_certificate(wrong, schedule_hash(wrong), claimed(schedule, wrong))
    assert (verdict.accepted, verdict.reason) == (False, "needs: begin.position")


def test_what_is_no_slice_is_refused() -> None:
    with pytest.raises(ValueError, match="no slice"):
        MODEL.sliced(3, 6)
    with pytest.raises(ValueError, match="no slice"):
        MODEL.sliced(1, 3).sliced(0, 1)
    with pytest.raises(ValueError, match="no slice"):
        MODEL.sliced(5, 5)
    with pytest.raises(ValueError, match="with the output head"):
        MODEL.sliced(1, 4, head=True)
    with pytest.raises(ValueError, match="layers must be 1 or more"):
        tiny_model(layers=0)
    with pytest.raises(ValueError, match="behind layer 4"):
        ModelSpec(**MODEL.model_dump() | {"layers": 2, "slice": {"first": 1, "of": 5, "head": True}})
    for model, settings in (
        (tiny_model(**NEOX), {}),
        (MODEL, {"batch": 2, "workers": 8}),
        (MODEL, {"sampling": "top-k"}),
    ):
        with pytest.raises(AmkError) as refused:
            tiny_plan(model.sliced(0, 1), **settings)
        assert refused.value.diagnostics[0].code == "AMK016"
