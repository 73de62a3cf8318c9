"""Several sequences decoded together are the sequences decoded alone.

The interpreter multiplies each sequence by itself and sums in the same order, so with the same workers and splits the
logits are equal bit for bit; with other shares they differ by the order of additions only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amk.checker.certificate import check_certificate
from amk.engine.backends.cpu_engine import CpuEngine
from amk.engine.backends.session import Session
from amk.interpreter.interpret import Copies
from amk.interpreter.order import named_order
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST, Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.verify import verify
from tests.cases import cases
from tests.engine.tiny import RandomTensors, tiny_model, tiny_plan
from tests.tiny import PLAIN, VARIANTS

PROMPTS = [[17, 72, 8], [32, 15], [7, 7, 21, 30], [5], *([n, 3 * n] for n in range(9, 21))]
TOKENS = 4  # with the longest prompt, past two blocks of 2 positions

CASES: dict[str, tuple[ModelSpec, int, dict[str, Any]]] = {
    "tagged words": (tiny_model(), 4, {"workers": 8, "kv_splits": 1}),
    "fenced counters, two splits": (tiny_model(), 2, {"workers": 8, "kv_splits": 2, "handoff": "fenced"}),
    "bias, a group of three": (
        tiny_model(heads=3, kv_heads=1, hidden=96, qkv_bias=True), 3, {"workers": 7, "kv_splits": 2, "warps": 2},
    ),
    "head norms, idle agents": (
        tiny_model(qk_norm=True), 2, {"workers": 13, "warps": 8, "chunk_bytes": 1024, "kv_splits": 2},
    ),
    "naive": (tiny_model(), 3, {"workers": 6, "handoff": "fenced", "run_ahead": False, "wide_epilogue": 0}),
    "down in parts": (tiny_model(ffn=128), 2, {"workers": 5, "k_parts": 4}),
    "fp8 cache": (tiny_model(), 2, {"workers": 4, "kv_dtype": "fp8"}),
    "sums of lm_head in global memory": (tiny_model(), 2, {"workers": 5, "head_sums": "global"}),
    "nine sequences": (tiny_model(layers=1, kv_heads=1), 9, {"workers": 10, "warps": 2}),
    "two turns, the last of fewer heads": (tiny_model(), 3, {"workers": 5}),
    "more turns than warps": (tiny_model(layers=1), 5, {"workers": 4, "warps": 2, "handoff": "fenced"}),
    "turns of which a warp is left over": (tiny_model(layers=1, kv_heads=1), 8, {"workers": 3}),
}  # fmt: skip


RUNS: list[tuple[str, Copies]] = [("round-robin", "events"), ("random:1", "events"), ("random:1", "whole")]
RUNS += [("round-robin", "whole")][: cases(0, 1)]


def planned(model: ModelSpec, **settings: Any) -> Schedule:
    return tiny_plan(model, **({"kv_block": 2} | settings))


def texts(engine: CpuEngine, prompts: list[list[int]], eos: tuple[int, ...] = ()) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in prompts]
    for sequence, token in Session(engine, slice=5).generate_batch(prompts, TOKENS, eos):
        found[sequence].append(token)
    return found


@pytest.mark.turns(48)
@pytest.mark.parametrize("name", CASES)
def test_a_batch_is_its_sequences(name: str) -> None:
    model, batch, settings = CASES[name]
    source = RandomTensors(model)
    together = planned(model, batch=batch, **settings)
    assert verify(together).safe
    prompts = PROMPTS[:batch]
    # two orders, which must agree in every bit, and with every other case whole copies beside them
    tried = RUNS if cases(0, 1) else RUNS[: 2 + list(CASES).index(name) % 2]
    runs = [
        CpuEngine(together, source, copies=copies, order=lambda order=order: named_order(order))  # type: ignore[misc]
        for order, copies in tried
    ]
    found = [texts(run, prompts) for run in runs]
    alone = planned(model, **(settings | {"reduce_from": 1}))
    for sequence, prompt in enumerate(prompts):
        expected = list(Session(CpuEngine(alone, source, copies="whole")).generate(prompt, TOKENS))
        assert len(set(expected)) > 1, "the example must not repeat itself"
        assert all(texts[sequence] == expected for texts in found)
    for copies in {of for _, of in tried}:
        logits = {run.logits().tobytes() for run, (_, of) in zip(runs, tried, strict=True) if of == copies}
        assert len(logits) == 1, "timing changed the result"


@pytest.mark.turns(16)
@pytest.mark.parametrize("splits", [1, 2])
def test_logits_of_a_batch_are_bitwise_those_of_its_sequences(splits: int) -> None:
    model, settings = tiny_model(), {"workers": 8, "kv_splits": splits, "reduce_from": 1}
    source, prompts = RandomTensors(model), [p[:3] for p in (PROMPTS[0], PROMPTS[2])]
    together = CpuEngine(tiny_plan(model, batch=2, **settings), source)
    together.request_batch(prompts)
    chosen = together.step(12)
    assert together.schedule.kv.splits == splits
    for sequence, prompt in enumerate(prompts):
        alone = CpuEngine(tiny_plan(model, **settings), source)
        alone.request(prompt)
        np.testing.assert_array_equal(alone.step(12), chosen[:, sequence])
        assert alone.logits().tobytes() == together.logits()[sequence].tobytes()


@pytest.mark.turns(4)
def test_a_sequence_that_ends_repeats_its_end_and_the_others_go_on() -> None:
    model = tiny_model()
    source, schedule = RandomTensors(model), planned(model, batch=2, workers=4)
    prompts = [[3, 17, 5, 60, 2, 9, 11], [40, 1, 8]]
    free = texts(CpuEngine(schedule, source), prompts)
    stop = free[0][2]
    assert stop not in free[0][:2]
    stopped = texts(CpuEngine(schedule, source), prompts, (stop,))
    assert stopped[0] == free[0][:3]
    end = free[1].index(stop) + 1 if stop in free[1] else TOKENS
    assert stopped[1] == free[1][:end]


@pytest.mark.turns(12)
def test_launches_of_any_length_agree() -> None:
    model = tiny_model()
    source, schedule = RandomTensors(model), tiny_plan(model, batch=3, workers=6)
    one, many = CpuEngine(schedule, source), CpuEngine(schedule, source)
    for engine in (one, many):
        engine.request_batch(PROMPTS[:3])
    together = one.step(15)
    apart = np.concatenate([many.step(n) for n in (1, 4, 1, 9)])
    np.testing.assert_array_equal(together, apart)
    assert one.logits().tobytes() == many.logits().tobytes()
    assert one.state() == many.state()


PAIRS = [("h200", 64), ("l4", 1024)]
LARGE = [(5, "l4", 1024), (8, "h200", 64)]
"""Each model has a batch of two on one target, and a large one on the other."""
PLANS = [
    *((model, 2, *PAIRS[number % 2]) for number, model in enumerate(VARIANTS)),
    *((model, *LARGE[number % 2]) for number, model in enumerate(VARIANTS)),
]


@pytest.mark.turns(12)
@pytest.mark.parametrize(("model", "batch", "gpu", "context"), PLANS, ids=lambda value: getattr(value, "name", value))
def test_plans_of_a_batch_are_safe(model: ModelSpec, batch: int, gpu: str, context: int) -> None:
    schedule = plan(model, load_target(gpu), settings=Settings(batch=batch), max_context=context)
    verdict = verify(schedule)
    assert verdict.safe, [diagnostic.message for diagnostic in verdict.diagnostics]
    certificate = certify_schedule(schedule, checked=False)
    assert check_certificate(schedule, schedule_hash(schedule), certificate).reason == ""


@pytest.mark.parametrize(
    ("settings", "format_name", "reason"),
    [
        ({"batch": 65}, "bf16", "1 to 64"),
        ({"batch": 0}, "bf16", "1 to 64"),
        ({"batch": 17, "live": True}, "bf16", "1 to 16"),
        ({"batch": 2, "head_handoff": True}, "bf16", "rows of its head"),
    ],
)
def test_what_a_batch_cannot_do_is_refused(settings: dict[str, Any], format_name: Any, reason: str) -> None:
    with pytest.raises(AmkError) as caught:
        plan(PLAIN, load_target("h200"), settings=Settings(**settings), formats=formats(format_name), max_context=64)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "AMK016"
    assert reason in diagnostic.message


def test_a_schedule_takes_as_many_prompts_as_it_has_sequences() -> None:
    model = tiny_model()
    engine = CpuEngine(tiny_plan(model, batch=2, workers=4), RandomTensors(model))
    with pytest.raises(AmkError) as caught:
        engine.request([1, 2, 3])
    assert caught.value.diagnostics[0].code == "AMK016"


def test_damage_in_a_batch_is_noticed() -> None:
    """Two sequences on one cache, a missing row of a hand-off, and an op that serves one sequence only."""
    schedule = plan(PLAIN, load_target("h200"), settings=FAST, max_context=64)
    batch = plan(PLAIN, load_target("h200"), settings=Settings(batch=2), max_context=64)
    assert verify(batch).safe
    heads = [min(head, schedule.model.kv_heads - 1) for head in batch.tables["attn.head"]]
    shared = batch.model_copy(update={"tables": batch.tables | {"attn.head": tuple(heads)}})
    flat = tuple(b.model_copy(update={"shape": (b.elements,)}) if b.name == "act" else b for b in batch.buffers)
    assert "AMK102" in {d.code for d in verify(shared).diagnostics}
    assert "AMK103" in {d.code for d in verify(batch.model_copy(update={"buffers": flat})).diagnostics}
    single = schedule.model_copy(update={"batch": 2})
    assert {d.code for d in verify(single).diagnostics} >= {"AMK103", "AMK106"}
