"""Whole kernels: the PTX of small schedules gives the interpreter's tokens and, within rounding, its logits."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

from amk.emulator.decode import EmulatedEngine, run
from amk.emulator.machine.machine import Order
from amk.engine.backends.cpu_engine import CpuEngine
from amk.lowering.compile import compile_ptx
from amk.lowering.emit import emit
from amk.lowering.stamp import stamped
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import Settings
from amk.schedule_ir.sampling import GREEDY, Sampling
from amk.schedule_ir.schedule import Schedule, mode_of
from amk.targets.target import load_target
from amk.weights.weight_format import FormatName
from tests.cases import one_in_turn
from tests.engine.tiny import NEOX, RandomTensors, tiny_model
from tests.tiny import NORMED, PLAIN

ROUNDING = 2.0**-7
"""Of logits, relative to the largest: one step of bf16. It is 1e-7 where no activation rounds to another bf16, and
was at most 5e-3 where some do."""
TOKENS = 3
GPUS = "a100", "a10g", "l4", "h200", "b200", "rtx5090"
ORDERS = Order(), Order(eager=True), Order(seed=1, slice=50)

WIDE = {"chunk_bytes": 1024}
CASES: dict[str, tuple[Any, str, FormatName, int, dict[str, Any]]] = {
    "bf16 sm_90a, tagged": (tiny_model(), "h200", "bf16", 4, {}),
    "bf16 sm_100a": (tiny_model(), "b200", "bf16", 4, {}),
    "int8 sm_120a": (PLAIN, "rtx5090", "int8", 4, WIDE),
    "int8 sm_90a, refills owed through QKV": (
        PLAIN, "h200", "int8", 4, WIDE | {"carried": 0.75, "held_refills": 0.75, "first_refills": 0.0},
    ),
    "int4 with zeros sm_89": (PLAIN, "l4", "int4-g64-zp", 4, WIDE),
    "int4 sm_90a, runs of blocks with one scale": (
        tiny_model(ffn=1280), "h200", "int4-g128", 4, WIDE | {"warps": 2, "scale_blocks": 4},
    ),
    "int4 with zeros sm_80, likewise": (PLAIN, "a100", "int4-g64-zp", 4, WIDE | {"scale_blocks": 16}),
    "fp8 sm_90a, likewise": (PLAIN, "h200", "fp8", 4, WIDE | {"scale_blocks": 8, "handoff_dtype": "f32"}),
    "fp8 sm_80, by software": (PLAIN, "a100", "fp8", 4, WIDE),
    "batch of 4, sm_89": (tiny_model(), "l4", "bf16", 8, {"batch": 4}),
    "four rows across blocks, sm_90a": (
        tiny_model(layers=1), "h200", "bf16", 4, {"rows": 4, "kv_block": 5, "kv_splits": 2},
    ),
    "six nodes of a tree, sm_90a": (
        tiny_model(layers=1), "h200", "bf16", 4, {"rows": 6, "tree": True, "kv_block": 6, "kv_splits": 2},
    ),
    "eight rows, norms of heads, fenced, sm_90a": (
        tiny_model(heads=6, kv_heads=2, hidden=192, qk_norm=True), "h200", "bf16", 4, {"rows": 8, "handoff": "fenced"},
    ),
    "forty rows, all in parts, sm_90a": (
        tiny_model(ffn=256, max_context=160), "h200", "bf16", 4,
        {"rows": 40, "kv_block": 40, "kv_splits": 2, "handoff": "mixed", "x_parts": 2, "k_parts": 4},
    ),
    "forty rows, two row groups for what is read of x, sm_90a": (
        tiny_model(ffn=256, max_context=160, vocab=96), "h200", "bf16", 3,
        {"rows": 40, "kv_block": 40, "kv_splits": 1, "handoff": "mixed", "x_parts": 2, "k_parts": 4, "row_groups": 2,
         "chunk_bytes": 1024},
    ),
    "forty rows, columns of o and down among two workers, two row groups, sm_90a": (
        tiny_model(ffn=256, max_context=160, vocab=96), "h200", "bf16", 4,
        {"rows": 40, "kv_block": 40, "kv_splits": 1, "handoff": "mixed", "x_parts": 2, "k_parts": 2, "row_groups": 2,
         "chunk_bytes": 1024, "k_splits": 2},
    ),
    "four rows, columns of o and down among four workers, sm_90a": (
        tiny_model(layers=2, ffn=256), "h200", "bf16", 6,
        {"rows": 4, "kv_block": 4, "kv_splits": 2, "k_splits": 4},
    ),
    "two rows, columns of o and down among two workers, sm_80": (
        tiny_model(layers=2, ffn=128), "a100", "bf16", 4, {"rows": 2, "k_splits": 2},
    ),
    "two rows of GPT-NeoX, columns of o and down among two workers, sm_90a": (
        tiny_model(**NEOX, ffn=128), "h200", "bf16", 4, {"rows": 2, "k_splits": 2},
    ),
    "batch of 10, two row groups, sums of lm_head in global memory, sm_80": (
        tiny_model(layers=1, kv_heads=1, ffn=128, vocab=80), "a100", "bf16", 12,
        {"batch": 10, "row_groups": 2, "chunk_bytes": 1024, "head_sums": "global"},
    ),
    "batch of 11, sm_80": (tiny_model(layers=1, kv_heads=1, ffn=128), "a100", "bf16", 13, {"batch": 11, "k_parts": 2}),
    "batch of 25 in three turns, a warp left over, fp8 cache, fenced, sm_80": (
        tiny_model(layers=1, kv_heads=1, ffn=128), "a100", "bf16", 9,
        {"batch": 25, "kv_dtype": "fp8", "handoff": "fenced"},
    ),
    "batch of 18 that draws, in more turns than warps, sm_90a": (
        tiny_model(layers=1, kv_heads=1, ffn=128), "h200", "bf16", 6,
        {"batch": 18, "warps": 2, "sampling": "top-k-top-p"},
    ),
    "batch of 64 in four turns, all in parts, two row groups, columns among two workers, sm_90a": (
        tiny_model(layers=1, kv_heads=1, ffn=256, vocab=96), "h200", "bf16", 18,
        {"batch": 64, "handoff": "mixed", "x_parts": 2, "k_parts": 2, "row_groups": 2, "chunk_bytes": 1024,
         "k_splits": 2},
    ),
    "drawing sm_100a": (tiny_model(), "b200", "bf16", 4, {"sampling": "top-k-top-p"}),
    "live batch of 3 that draws, sm_90a": (
        tiny_model(layers=1), "h200", "bf16", 6, {"batch": 3, "live": True, "sampling": "top-k-top-p"},
    ),
    "fenced, two splits, fp8 cache": (
        tiny_model(), "h200", "bf16", 8, {"handoff": "fenced", "kv_splits": 2, "kv_dtype": "fp8"},
    ),
    "naive sm_80": (
        tiny_model(), "a100", "bf16", 4, {"handoff": "fenced", "run_ahead": False, "wide_epilogue": 0},
    ),
    "LayerNorm, parallel, sm_90a": (tiny_model(**NEOX), "h200", "bf16", 4, {}),
    "LayerNorm, one after the other, int8 sm_120a": (
        tiny_model(**NEOX | {"parallel": False, "activation": "gelu-tanh", "head_dim": 24}), "rtx5090", "int8", 7, WIDE,
    ),
    "LayerNorm, batch of 2, sm_80": (tiny_model(**NEOX), "a100", "bf16", 8, {"batch": 2, "handoff": "fenced"}),
    "norms of heads, 13 workers": (NORMED, "h200", "bf16", 13, {"kv_splits": 2, "warps": 8, "chunk_bytes": 2048}),
}  # fmt: skip
WISHES = [Sampling(0.9, 30, 0.9, seed=5), GREEDY, Sampling(1.4, 0, 0.7, seed=2**63)]
"""How each sequence of a schedule that draws chooses its tokens."""


def scheduled(name: str) -> Schedule:
    model, gpu, form, workers, settings = CASES[name]
    chosen = {"rows": 1, "warps": 4, "chunk_bytes": 512, "kv_block": 8, "max_tokens": 32, "slots": 4} | settings
    target = load_target(gpu)
    return plan(
        model, target, settings=Settings(**chosen), formats=formats(form), max_context=max(64, 4 * chosen["rows"]),
        workers=workers,
    )  # fmt: skip


@pytest.mark.turns(48)
@pytest.mark.parametrize("name", CASES)
def test_the_kernel_gives_the_interpreters_tokens_in_any_order(name: str) -> None:
    schedule = scheduled(name)
    source = RandomTensors(schedule.model)
    ptx = compile_ptx(stamped(emit(schedule), schedule), schedule.target.arch)
    prompts = ([[3, 17], [40], [7, 7, 21], [5]] + [[s, s + 1] for s in range(8, 68)])[: schedule.batch]
    if schedule.rows > 1:
        prompts = [[(7 * n + 3) % schedule.model.vocab for n in range(TOKENS * schedule.rows)]]
    expected = CpuEngine(schedule, source, numerics="device")
    sampling = GREEDY if mode_of(schedule) == "greedy" else (WISHES * schedule.batch)[: schedule.batch]
    expected.request_batch(prompts, sampling=sampling)
    tokens, scale = expected.step(TOKENS).tolist(), np.abs(expected.logits()).max()
    for order in one_in_turn(ORDERS, list(CASES).index(name)):
        result = run(schedule, source, ptx, prompts=prompts, tokens=TOKENS, order=order, sampling=sampling, races=True)
        assert [str(fault) for fault in result.faults] == []
        assert result.ended and all(outcome.races_checked for outcome in result.outcomes)
        assert result.tokens.tolist() == tokens
        assert np.abs(result.logits - expected.logits()).max() <= ROUNDING * scale


@cache
def tokens_of_one_model(gpu: str) -> list[int]:
    """Emulated, planned with the defaults for this GPU."""
    model = tiny_model()
    schedule = plan(model, load_target(gpu), max_context=64, workers=4)
    ptx = compile_ptx(stamped(emit(schedule), schedule), schedule.target.arch)
    assert f".target {schedule.target.arch}" in ptx
    result = run(schedule, RandomTensors(model), ptx, prompts=[[3, 17, 40]], tokens=TOKENS)
    assert result.ended and [str(fault) for fault in result.faults] == []
    found: list[int] = result.tokens.tolist()
    return found


@pytest.mark.turns(len(GPUS) - 1)
@pytest.mark.parametrize("gpu", GPUS[1:])
def test_one_model_has_the_same_tokens_on_every_gpu(gpu: str) -> None:
    """Of six architectures. NVRTC takes seconds for a kernel, so one pair is compared at a commit."""
    assert tokens_of_one_model(gpu) == tokens_of_one_model(GPUS[0])


@pytest.mark.turns(4)
def test_sequences_behind_the_thirty_second_end_in_a_word_of_their_own() -> None:
    model = tiny_model(layers=1, kv_heads=1, ffn=128)
    settings = Settings(warps=4, chunk_bytes=512, kv_block=8, max_tokens=32, slots=4, batch=34)
    schedule = plan(model, load_target("h200"), settings=settings, max_context=64, workers=12)
    source, prompts = RandomTensors(model), [[(7 * s + s * s) % model.vocab] for s in range(34)]
    free = CpuEngine(schedule, source, numerics="device")
    free.request_batch(prompts)
    first = free.step(1)[0].tolist()
    ends = (first[31], first[33])
    expected = CpuEngine(schedule, source, numerics="device")
    expected.request_batch(prompts, ends)
    tokens = expected.step(3)
    ended = [s for s in range(34) if first[s] in ends]
    assert all(len(set(tokens[:, s].tolist())) == 1 for s in ended)
    kernel = EmulatedEngine(schedule, source, compile_ptx(stamped(emit(schedule), schedule), "sm_90a"))
    kernel.request_batch(prompts, ends)
    found = []
    for count in (1, 2):  # ends are handed over between launches
        assert kernel.launch(count).ended
        found.append(kernel.output(count))
    np.testing.assert_array_equal(np.concatenate(found), tokens)
    state = kernel.state()
    assert state == expected.state()
    assert state["done"] < 0, "of sequence 31 the sign of the word"
    assert state["done.1"] >> 1 & 1 and all(state["done.1" if s > 31 else "done"] >> s % 32 & 1 for s in ended)


@pytest.mark.turns(4)
def test_an_unsafe_schedule_hangs_and_the_counter_is_named() -> None:
    """A wait for one signal more than there are: the schedule is UNSAFE, its kernel polls for ever."""
    good = scheduled("naive sm_80")
    document = good.model_dump(mode="json", by_alias=True)
    waits = [wait for wait in _found(document["programs"], "waits") if isinstance(wait["at_least"], dict)]
    waits[0]["at_least"]["1"] = waits[0]["at_least"].get("1", 0) + 1
    schedule = Schedule.model_validate_json(json.dumps(document))
    ptx = compile_ptx(stamped(emit(schedule), schedule), schedule.target.arch)
    result = run(schedule, RandomTensors(schedule.model), ptx, tokens=1)
    assert not result.ended
    assert {fault.kind for fault in result.faults} == {"deadlock"}
    assert any("counters + " in fault.message for fault in result.faults)


def _found(value: Any, key: str) -> list[Any]:
    """Every entry of every list called `key`, in order."""
    if isinstance(value, dict):
        own = value[key] if isinstance(value.get(key), list | tuple) else []
        return [*own, *(entry for part in value.values() for entry in _found(part, key))]
    return [entry for part in value for entry in _found(part, key)] if isinstance(value, list | tuple) else []


@pytest.mark.turns(24)
@pytest.mark.parametrize(
    ("written", "edited"), [("red.release.gpu", "red.relaxed.gpu"), ("ld.acquire.gpu", "ld.relaxed.gpu")]
)
def test_a_signal_or_a_wait_of_a_kernel_that_orders_nothing_is_a_race(written: str, edited: str) -> None:
    """Readers get what was there before the stores, which is undefined; without weak memory the tokens are right."""
    schedule = scheduled("naive sm_80")
    ptx = compile_ptx(stamped(emit(schedule), schedule), schedule.target.arch)
    assert written in ptx
    result = run(schedule, RandomTensors(schedule.model), ptx.replace(written, edited), tokens=2, races=True)
    kinds = {fault.kind for fault in result.faults}
    assert result.ended and "race" in kinds and kinds <= {"race", "undefined"}
