"""Steps of several vectors whose weights are codes: proved, and run in the emulator for every architecture.

Each sequence of a batch is, in every bit, what it is beside others. Codes are multiplied as bf16 numbers, exactly.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from amk.adversary.cases import RECIPES, base_schedule, make_case
from amk.adversary.neighbourhood.bases import PHASED, SMALLEST, TAGGED
from amk.checker.certificate import check_certificate
from amk.emulator.decode import EmulatedEngine
from amk.emulator.machine.machine import Machine
from amk.emulator.memory.global_memory import Allocation
from amk.emulator.ptx.parse import parse
from amk.emulator.ptx.program import assemble
from amk.engine.backends.request import first_state
from amk.judges.emulated_run import EmulatedKernel
from amk.judges.judge import DEVICE_TOLERANCE, judge, judged, requests
from amk.lowering.compile import compile_ptx
from amk.lowering.emit import emit
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST, Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.verify import verify
from amk.weights.bfloat import from_bf16_bits
from amk.weights.chunks import pack_quantised
from amk.weights.quantised import Quantised, dequantised
from amk.weights.weight_format import Chunk, FormatName, weight_format
from tests.engine.tiny import RandomTensors
from tests.tiny import PLAIN, RAGGED

LIVE = {"live": True, "reduce_from": 2}


def plan_of(
    gpu: str, settings: Settings, layers: FormatName, lm_head: FormatName, workers: int, **model: Any
) -> Schedule:
    block = max(4, settings.rows)
    settings = replace(settings, kv_block=block, max_tokens=12, max_ring_bytes=min(settings.max_ring_bytes, 16384))
    spec = SMALLEST.model_copy(update={"layers": 1, "max_context": 3 * block} | model)
    wanted = formats(layers, lm_head)
    return plan(spec, load_target(gpu), settings=settings, formats=wanted, workers=workers, max_context=3 * block)


CASES: dict[str, Callable[[], Schedule]] = {
    "int8 on sm_90": lambda: plan_of("h200", replace(TAGGED, batch=2, **LIVE), "int8", "int8-g64", 4),
    "scales apart, parts, sm_100": lambda: plan_of(
        "b200", replace(TAGGED, batch=3, scales_apart=True, k_parts=2, **LIVE), "int8", "fp8", 4, ffn=128
    ),
    "fp8 of six, half a block, sm_89": lambda: plan_of(
        "l4", replace(TAGGED, batch=6, handoff="mixed", live=True), "fp8", "int4-g64", 6, hidden=96
    ),
    "int4 with zeros, fenced, sm_80": lambda: plan_of(
        "a100", replace(PHASED, warps=2, batch=2, live=True), "int4-g64-zp", "int4-g128-zp", 4, hidden=64, vocab=41
    ),
    "sixteen rows, sm_120": lambda: plan_of(
        "rtx5090", replace(TAGGED, rows=16, handoff="mixed", head_sums="global"), "int4-g128-zp", "int8", 2, hidden=96
    ),
}  # fmt: skip


@cache
def schedule_of(name: str) -> Schedule:
    return CASES[name]()


@cache
def printed(name: str) -> str:
    schedule = schedule_of(name)
    return compile_ptx(emit(schedule), schedule.target.arch)


@pytest.mark.turns(24)
@pytest.mark.parametrize("name", CASES)
def test_they_are_safe_certified_and_no_run_refutes_them(name: str) -> None:
    """Not the schedule's in numpy, and not the kernel's: of all caches of junk and positions of their own."""
    schedule = schedule_of(name)
    verdict = verify(schedule)
    assert verdict.safe, verdict.diagnostics
    assert check_certificate(schedule, schedule_hash(schedule), certify_schedule(schedule, checked=False)).reason == ""
    assert judge(schedule, most=1).status == "not refuted"
    request, order = next(iter(requests(schedule)))
    ruling = judged(schedule, request, order, EmulatedKernel(lambda _: printed(name)), DEVICE_TOLERANCE)
    assert ruling.status == "not refuted", ruling


@pytest.mark.turns(24)
@pytest.mark.parametrize("name", [name for name in CASES if "rows" not in name])
def test_a_sequence_is_bitwise_the_same_beside_any_others(name: str) -> None:
    schedule = schedule_of(name)
    texts = [[5 + n, 11, 2, 30][: 2 + n % 3] for n in range(schedule.batch)]
    others = [[7, 9, 3 + n] for n in range(schedule.batch)]
    mixed = [text if n == 1 else other for n, (text, other) in enumerate(zip(texts, others, strict=True))]
    together, beside = (emulated(name, each) for each in (texts, mixed))
    for mine, same in zip(together, beside, strict=True):
        assert np.array_equal(mine[1], same[1])
        assert not np.array_equal(mine[0], same[0])


@pytest.mark.turns(16)
def test_one_text_leaves_the_same_bits_in_every_place_of_a_batch() -> None:
    """In all that sequences have a row of. The second part of a product was contracted for the first eight alone."""
    settings = replace(PHASED, warps=2, batch=16, live=True, scales_apart=True, k_parts=2)
    schedule = plan_of("h200", settings, "fp8", "fp8", 16, hidden=256, ffn=256)
    machine = run(schedule, compile_ptx(emit(schedule), schedule.target.arch), [[5, 11, 2]] * 16).machine
    for name in ("qkv", "attn", "h_mid", "act", "h_out", "logits"):
        size = next(buffer.bytes for buffer in schedule.buffers if buffer.name == name)
        rows = machine.read(name, np.uint8, size).view(np.uint8).reshape(16, -1)
        assert (rows == rows[0]).all(), name


def emulated(name: str, texts: list[list[int]]) -> tuple[Any, Any]:
    """Tokens of three steps and the bits of the last logits, by sequence."""
    engine = run(schedule_of(name), printed(name), texts)
    return engine.output(3).T, engine.logits().view(np.uint32)


def run(schedule: Schedule, ptx: str, texts: list[list[int]]) -> EmulatedEngine:
    """Three steps from an empty cache."""
    engine = EmulatedEngine(schedule, RandomTensors(schedule.model), ptx)
    engine.request_batch(texts)
    engine.fill_cache(*(np.zeros(engine.buffers[cache].shape, np.uint16) for cache in ("k_cache", "v_cache")))
    engine.set_state(**first_state(texts, (0,) * len(texts)))
    outcome = engine.launch(3)
    assert outcome.ended and not outcome.faults, outcome.faults
    return engine


PAIRS = """
#include "amk/codes/HEADER.cuh"
extern "C" __global__ void k(amk::u32* out, const uint4* codes) {
  amk::u32 w[8];
  amk::WEIGHTS::pairs(codes[threadIdx.x], BLOCK, ZERO, w);
  for (int i = 0; i < 8; ++i) out[threadIdx.x * 8 + i] = w[i];
}
"""


@pytest.mark.parametrize(
    ("name", "weights", "zero"),
    [("int8", "Int8<64>", 0), ("fp8", "Fp8<64>", 0), ("int4-g128", "Int4<128, false>", 8),
     ("int4-g128-zp", "Int4<128, true>", 16)],
)  # fmt: skip
def test_every_code_is_its_number_exactly_and_in_its_place(name: FormatName, weights: str, zero: int) -> None:
    """A tile of all codes, as the host packs it, through the device code of both halves of a pair of blocks."""
    form = weight_format(name)
    columns, zeros = form.unit, np.full((8, 1), zero, np.uint8) if form.zeros else None
    codes = np.arange(8 * columns).reshape(8, columns) % (256 if form.bits == 8 else 16)
    codes = np.where((codes % 128 == 127) & (form.codes == "fp8"), 0, codes)  # e4m3 has no number there
    stored = Quantised(codes.astype(np.uint8), np.ones((8, 1), np.float16), zeros)
    wanted = dequantised(stored, form)
    packed = pack_quantised(stored, Chunk(format=name, columns=columns))[0, :512]
    for block in range(columns // 64):
        source = (
            PAIRS.replace("HEADER", form.codes)
            .replace("WEIGHTS", weights)
            .replace("BLOCK", str(block))
            .replace("ZERO", f"{zero}u")
        )
        allocations = [
            Allocation("out", 1024, "state", np.zeros(256, np.uint32)), Allocation("codes", 512, "constant", packed),
        ]  # fmt: skip
        machine = Machine(assemble(parse(compile_ptx(source, "sm_90a")), "k"), 1, 1, 0, allocations)
        places = machine.memory.addresses
        outcome = machine.launch(b"".join(places[of].to_bytes(8, "little") for of in ("out", "codes")))
        assert outcome.ended and not outcome.faults
        found = from_bf16_bits(machine.read("out", np.uint16, 512)).reshape(8, 64)
        assert np.array_equal(found, wanted[:, 64 * block : 64 * block + 64])


@pytest.mark.parametrize("name", [recipe.name for recipe in RECIPES if recipe.base == "coded"])
def test_the_checker_refuses_wrong_layouts_and_parts_by_itself(name: str) -> None:
    good = Schedule.model_validate_json(json.dumps(base_schedule("coded")))
    certificate = certify_schedule(good)
    assert check_certificate(good, schedule_hash(good), certificate).reason == ""
    (recipe,) = (recipe for recipe in RECIPES if recipe.name == name)
    bad = Schedule.model_validate_json(json.dumps(make_case(recipe)["schedule"]))
    named = {**certificate, "schedule": schedule_hash(bad)} if isinstance(certificate, dict) else certificate
    assert "needs" in check_certificate(bad, schedule_hash(bad), named).reason


PLANS: list[tuple[FormatName, dict[str, Any], Any, str]] = [
    ("int8", {"batch": 5, "live": True}, PLAIN, "h200"),
    ("int4-g64-zp", {"batch": 12, "live": True}, RAGGED, "l4"),
    ("fp8", {"rows": 8}, PLAIN, "l4"),
]


@pytest.mark.turns(4)
@pytest.mark.parametrize(("layers", "settings", "model", "gpu"), PLANS)
def test_plans_are_safe(layers: FormatName, settings: dict[str, Any], model: Any, gpu: str) -> None:
    schedule = plan(
        model, load_target(gpu), settings=replace(FAST, **settings), formats=formats(layers), max_context=64
    )
    verdict = verify(schedule)
    assert verdict.safe, verdict.diagnostics


def test_parts_that_are_no_whole_chunks_are_refused() -> None:
    with pytest.raises(AmkError, match=r"AMK406.*2 parts of 96 columns"):
        plan_of("h200", replace(TAGGED, batch=2, k_parts=2), "int8", "int8", 2, ffn=96)
