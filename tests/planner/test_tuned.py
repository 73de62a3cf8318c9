"""Which models get which numbers, and that a setting chosen by hand is left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from amk.models.model import load_model
from amk.planner.decode import choose_workers, plan
from amk.planner.formats import BF16, Formats, formats, layered
from amk.planner.settings import FAST, NAIVE, PHASED, SMALL_COPY, UNTUNED, Settings, chunk_bytes_of
from amk.planner.tuned import batched, rings_drained, tuned
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.reduce_splits import ReduceSplitsOp
from amk.schedule_ir.schedule import steps_of
from amk.targets.target import load_target
from amk.validator.verify import verify
from amk.weights.weight_format import FormatName
from tests.engine.tiny import tiny_model

H200 = load_target("h200")
LONG, SHORT = 8192, 256


def of(name: str, weights: Formats = BF16, context: int | None = LONG, gpu: str = "h200", **changes: Any) -> Settings:
    model, target = load_model(name), load_target(gpu)
    settings = replace(FAST, **changes)
    workers = choose_workers(model, target, settings.batch)
    return tuned(settings, model, target, layered(model, weights), workers, context)


@pytest.mark.parametrize(
    ("name", "weights", "context", "expected"),
    [
        ("llama3.2-1b", BF16, LONG, (8, 4096, 2, 1 / 3)),
        ("llama3.2-1b", BF16, None, (8, 4096, 2, 1 / 3)),
        ("llama3.2-1b", BF16, SHORT, (8, None, 4, 2 / 3)),
        ("llama3.2-1b", formats("int8"), LONG, (8, 2048, 2, 1 / 2)),
        ("qwen2.5-1.5b", BF16, LONG, (8, None, 4, 2 / 3)),
        ("llama3-8b", BF16, LONG, (8, None, 4, 2 / 3)),
        ("llama3-8b", formats("int8"), LONG, (8, None, 2, 2 / 3)),
        ("llama3-8b", formats("int4-g128"), LONG, (8, 4096, 2, 1 / 3)),
        ("llama3-8b", formats("int4-g128-zp", "bf16"), LONG, (8, 4096, 2, 1 / 3)),
        ("llama3-8b", formats("int4-g128"), SHORT, (8, 4096, 2, 1 / 3)),
        ("llama3-8b", formats("fp8"), LONG, (8, None, 2, 2 / 3)),
        ("smollm2-135m", BF16, LONG, (8, 4096, 4, 2 / 3)),
    ],
)
def test_kinds_of_models(
    name: str, weights: Formats, context: int | None, expected: tuple[int, int | None, int, float]
) -> None:
    found = of(name, weights, context)
    assert (found.warps, found.chunk_bytes, found.hint_slack, found.held_refills) == expected
    layers = {form for matrix, form in weights.items() if matrix != "lm_head"}
    four_bits = any(form.startswith("int4") for form in layers)
    assert found.hint_at == ("drained" if four_bits or layers == {"bf16"} else "published")
    assert found.handoff == ("tagged" if name == "smollm2-135m" else None)
    assert found.kv_block == (64 if name == "llama3.2-1b" and context != SHORT else None)
    assert found.carried == (2 / 3 if four_bits else 1 / 3 if (name, layers) == ("llama3.2-1b", {"int8"}) else None)
    assert found.scale_blocks == (1 if layers == {"bf16"} else 16)


@pytest.mark.parametrize(
    ("name", "context", "splits"),
    [
        ("smollm2-135m", LONG, 12), ("smollm2-135m", 2048, 12), ("smollm2-135m", SHORT, None),
        ("smollm2-360m", LONG, 12), ("qwen2.5-0.5b", LONG, 14), ("qwen2.5-0.5b", 4 * LONG, 56),
        ("qwen2.5-1.5b", LONG, 48), ("qwen2.5-1.5b", 2048, 24), ("qwen2.5-7b", LONG, 28), ("qwen3-14b", 4 * LONG, 10),
        ("llama3.2-3b", LONG, 12), ("llama2-7b", 2048, None), ("qwen3-0.6b", LONG, None), ("llama3.2-1b", LONG, None),
    ],
)  # fmt: skip
def test_few_kv_heads_get_splits_that_their_workers_reduce(name: str, context: int, splits: int | None) -> None:
    assert of(name, context=context).kv_splits == splits
    if splits is not None:
        schedule = plan(load_model(name), H200, max_context=context)
        assert schedule.kv.splits == splits
        assert any(isinstance(step.op, ReduceSplitsOp) for step in steps_of(schedule.programs[0].body))


@pytest.mark.parametrize("settings", [NAIVE, PHASED, UNTUNED, replace(FAST, warps=4)])
def test_hints_stay_behind_results_where_early_ones_were_not_measured(settings: Settings) -> None:
    model = load_model("llama3-8b")
    assert tuned(settings, model, H200, layered(model, BF16), 132, LONG).hint_at == "published"


@pytest.mark.parametrize(
    ("batch", "parts", "copy", "ring"), [(2, 1, 4096, 160), (3, 1, 4096, 128), (4, 2, 4096, 160), (5, 2, 4096, 128),
                                         (6, 2, 4096, 128), (7, 4, 4096, 128), (8, 4, 2048, 128), (16, 1, 2048, 96)]
)  # fmt: skip
def test_batches_of_a_large_model_have_long_rings(batch: int, parts: int, copy: int, ring: int) -> None:
    """parts: of down; copy in bytes; ring in KB."""
    schedule = plan(load_model("llama3-8b"), H200, settings=replace(FAST, batch=batch), max_context=SHORT)
    stream = schedule.streams[0]
    assert (stream.chunk_bytes, stream.slots * stream.chunk_bytes * schedule.launch.warps // 1024) == (copy, ring)
    ops = [step.op for step in steps_of(schedule.programs[0].body)]
    assert {op.k_parts for op in ops if isinstance(op, GemvOp) and op.matrix == "down"} == {parts}


@pytest.mark.parametrize(
    ("settings", "divided"),
    [({"batch": 8}, True), ({"rows": 8, "accepts": True}, True), ({"rows": 8, "tree": True}, True),
     ({"rows": 8}, False), ({"batch": 4}, False), ({"rows": 5, "accepts": True}, False)],
)  # fmt: skip
def test_eight_tokens_of_a_small_model_divide_columns_unless_they_read_a_prompt(
    settings: dict[str, Any], divided: bool
) -> None:
    assert of("llama3.2-1b", **settings).k_splits == (4 if divided else 1)
    assert of("llama3.2-1b", formats("int8"), **settings).k_splits == of("llama3-8b", **settings).k_splits == 1
    assert of("pythia-1.4b", **settings).k_splits == 1
    early = divided and "rows" in settings
    assert of("llama3.2-1b", **settings).hint_slack == (2 if early else FAST.hint_slack)
    if divided:
        assert verify(plan(load_model("llama3.2-1b"), H200, settings=replace(FAST, **settings))).status == "SAFE"


@pytest.mark.parametrize(
    ("name", "context", "ahead"),
    [("llama3-8b", LONG, True), ("llama3-8b", 32_768, False), ("llama3-70b", LONG, False), ("qwen2.5-7b", LONG, True)],
)  # fmt: skip
def test_four_bits_carry_refills_where_few_rings_are_drained(name: str, context: int, ahead: bool) -> None:
    found = of(name, formats("int4-g128"), context)
    assert found.prefetch_cache == ahead
    assert found.carried == (None if name == "llama3-70b" else 2 / 3)


@pytest.mark.parametrize(
    ("name", "form", "apart"),
    [("llama3-8b", "int8", True), ("llama3-8b", "fp8", True), ("llama3-8b", "int4-g128", False),
     ("llama3-8b", "bf16", False), ("llama3.2-1b", "int8", True), ("llama3.2-1b", "fp8", False)],
)  # fmt: skip
def test_codes_of_eight_bits_stand_alone_in_long_products(name: str, form: FormatName, apart: bool) -> None:
    found = of(name, formats(form))
    assert (found.scales_apart, found.prefetch_cache) == (apart, not apart or name == "llama3.2-1b")
    schedule = plan(load_model(name), H200, formats=formats(form), max_context=SHORT)
    assert all(chunk.apart == apart for chunk in schedule.streams[0].chunks.values())
    if apart:
        copies = (2048, 12) if name == "llama3.2-1b" else (4096, 6)
        assert (schedule.streams[0].chunk_bytes, schedule.streams[0].slots) == copies


@pytest.mark.parametrize(
    ("name", "used", "expected"),
    [
        ("llama3-8b", {"int4-g128"}, 2 * SMALL_COPY),
        ("llama3-8b", {"int4-g128-zp", "bf16"}, SMALL_COPY),
        ("llama3-8b", {"bf16"}, 2 * SMALL_COPY),
        ("llama3.2-1b", {"int4-g128"}, 2 * SMALL_COPY),
        ("llama3.2-1b", {"bf16"}, SMALL_COPY),
    ],
)
def test_copies_of_codes_alone_and_of_long_products_in_bf16_are_large(
    name: str, used: set[FormatName], expected: int
) -> None:
    assert chunk_bytes_of(FAST, load_model(name), H200, used, 132) == expected


def test_parts_that_are_no_whole_copies_are_left_to_the_planner() -> None:
    model = load_model("llama3-8b").model_copy(update={"ffn": 14336 + 256})
    assert (
        "k_parts" not in batched(8, model, 132, True) and batched(8, load_model("llama3-8b"), 132, True)["k_parts"] == 4
    )


def test_a_large_batch_is_handed_off_in_words_where_every_worker_has_rows() -> None:
    model = load_model("llama3-8b")
    assert [batched(batch, model, 132, True)["handoff"] for batch in (2, 3, 4, 8)] == [
        "tagged",
        "tagged",
        "narrow",
        "narrow",
    ]
    assert ["pollers" in batched(batch, model, 132, True) for batch in (3, 4, 5, 7, 8)] == [
        False,
        False,
        True,
        True,
        True,
    ]
    assert batched(8, model, 600, True)["handoff"] == "mixed" and "pollers" not in batched(8, model, 600, True)


def test_a_batch_of_a_large_model_is_handed_off_in_words_of_plain_bf16() -> None:
    found = of("llama3-8b", batch=3)
    assert (found.handoff, found.handoff_dtype, found.prefetch_cache) == ("tagged", "bf16", False)
    assert found.hint_at == "drained"
    assert of("llama3.2-1b", batch=4) == replace(FAST, batch=4)
    every = {"attn", "h_mid", "act", "h_out", "best"}
    for batch, words in ((3, every), (4, every - {"act"}), (8, every - {"act"})):
        schedule = plan(load_model("llama3-8b"), H200, settings=replace(FAST, batch=batch), max_context=SHORT)
        assert {b.dtype for b in schedule.buffers if b.name in ("h_mid", "h_out", "act")} == {"bf16"}
        assert {c.name for c in schedule.counters if c.handoff == "hint"} == words


@pytest.mark.parametrize("name", ["smollm2-135m", "qwen3-0.6b"])
def test_a_small_model_has_no_fence_but_behind_its_candidates(name: str) -> None:
    """Also where a worker has no rows of some matrix."""
    schedule = plan(load_model(name), H200, max_context=SHORT)
    assert 0 in schedule.tables["hidden.count"]
    assert {c.name for c in schedule.counters if c.handoff == "fenced"} <= {"best"}


@pytest.mark.parametrize("gpu", ["a100-80gb", "l40s"])
def test_words_need_no_bulk_copies(gpu: str) -> None:
    schedule = plan(load_model("smollm2-135m"), load_target(gpu), max_context=SHORT)
    assert {c.name for c in schedule.counters if c.handoff == "fenced"} <= {"best"}
    assert verify(schedule).status == "SAFE"


@pytest.mark.parametrize("changes", [{"warps": 4}, {"kv_splits": 7}, {"plan": "custom"}, {"workers": 64}])
def test_what_was_chosen_by_hand_stays(changes: dict[str, Any]) -> None:
    assert of("llama3.2-1b", **changes) == replace(FAST, **changes)


def test_splits_are_reduced_on_every_gpu() -> None:
    """Where all are summed up by every SM instead, each reads the partial results of all heads and splits."""
    assert of("llama3-8b", gpu="a100-40gb") == of("llama3.2-1b", gpu="a100-40gb") == replace(FAST, kv_splits=8)
    assert of("llama3-8b", gpu="b200").kv_splits == 16
    assert of("qwen2.5-7b", gpu="rtx4090").kv_splits == 28


def test_nothing_is_assumed_where_nothing_was_measured() -> None:
    assert of("llama3-8b", gpu="l4") == of("llama3.2-1b", gpu="l4") == FAST
    model, codes = tiny_model(), formats("int8")
    assert rings_drained(model, 4) < 1 and tuned(FAST, model, H200, layered(model, codes), 4, LONG) == FAST
    assert of("smollm2-135m", batch=2) == replace(FAST, batch=2)
    large = load_model("llama3-8b")
    assert tuned(NAIVE, large, H200, layered(large, BF16), 132, LONG) == NAIVE
    assert tuned(PHASED, large, H200, layered(large, BF16), 132, LONG) == PHASED
    mixed = ((16, formats("int8")), (16, formats("int4-g128", "int8")))
    assert tuned(FAST, large, H200, mixed, 132, LONG).warps == FAST.warps


def test_the_plan_has_the_numbers() -> None:
    schedule = plan(load_model("llama3.2-1b"), H200, max_context=LONG)
    stream = schedule.streams[0]
    assert (schedule.launch.warps, stream.chunk_bytes, stream.slots, schedule.plan) == (8, 4096, 6, "fast")


@pytest.mark.parametrize(("context", "prefetch"), [(LONG, True), (LONG + 1, False), (None, False)])
def test_short_products_are_refilled_early_and_the_cache_is_asked_for_in_short_contexts(
    context: int | None, prefetch: bool
) -> None:
    found = of("llama3.2-1b", context=context)
    assert found.refill_first and found.refill_early and (found.prefetch_at, found.kv_block) == ("layer", 64)
    assert found.prefetch_cache == prefetch
    assert not of("llama3-8b", context=context).refill_early and of("llama3-8b", context=context).prefetch_cache


def test_a_hint_of_a_large_bf16_plan_stands_before_the_barrier_and_the_sums() -> None:
    ops = [step.op for step in steps_of(plan(load_model("llama3-8b"), H200, max_context=LONG).programs[0].body)]
    products = [at for at, op in enumerate(ops) if isinstance(op, GemvOp)]
    assert len(products) == 5
    for at in products:
        assert [op.op for op in ops[at + 1 : at + 3]] == ["signal", "barrier"], ops[at].matrix


def test_which_default_plans_look_for_words_without_hints() -> None:
    """Long products of codes of four bits and batches: what few workers hand on; short ones of int8: all but
    activations, and these once one is there."""
    few = {"qkv"}
    for name, form, batch, without in (
        ("llama3-8b", "int4-g128", 1, few), ("llama3-8b", "bf16", 8, few), ("llama3-8b", "int8", 1, set()),
        ("llama3.2-1b", "bf16", 1, set()), ("llama3.2-1b", "int8", 1, {*few, "attn", "h_mid", "h_out"}),
    ):  # fmt: skip
        used = formats(form)
        schedule = plan(load_model(name), H200, settings=replace(FAST, batch=batch), formats=used, max_context=SHORT)
        steps = list(steps_of(schedule.programs[0].body))
        waits = {wait.counter: wait.at_least for step in steps for wait in step.waits}
        assert waits.keys() - {"split"} == {"qkv", "attn", "h_mid", "act", "h_out", "best"} - without
        assert (waits["act"] == {"t": 132, "1": 1}) == (name == "llama3.2-1b" and form == "int8")
