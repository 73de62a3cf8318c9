"""Which bytes of a register are undefined: halves that are packed and taken apart, and what spreads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amk.adversary.neighbourhood.bases import SMALLEST
from amk.emulator.decode import run
from amk.judges.weights import RandomWeights
from amk.lowering.compile import compile_cuda
from amk.lowering.emit import emit
from amk.planner.decode import plan
from amk.planner.settings import FAST
from amk.targets.target import load_target
from tests.emulator.test_small_kernels import clean, ran

HALVES = "mov.b64 %rd4, {%r2, %r30};\n"  # nobody has written %r30
DEFINED = {
    "unpacked": HALVES + "mov.b64 {%r3, %r31}, %rd4;",
    "converted": HALVES + "cvt.u32.u64 %r3, %rd4;",
    "stored": HALVES
    + "mov.u32 %r4, s;\nmad.lo.s32 %r4, %r2, 8, %r4;\nst.shared.b64 [%r4], %rd4;\nld.shared.u32 %r3, [%r4];",
    "moved": HALVES + "mov.b64 %rd5, %rd4;\nmov.b64 {%r3, _}, %rd5;",
    "masked": HALVES + "and.b64 %rd5, %rd4, 4294967295;\nmov.b64 {%r3, %r5}, %rd5;\nadd.s32 %r3, %r3, %r5;",
    "set to ones": HALVES
    + "or.b64 %rd5, %rd4, -4294967296;\nmov.b64 {%r3, %r5}, %rd5;\nadd.s32 %r5, %r5, 1;\nadd.s32 %r3, %r3, %r5;",
    "shifted up and down": HALVES + "shl.b64 %rd5, %rd4, 32;\nshr.u64 %rd6, %rd5, 32;\ncvt.u32.u64 %r3, %rd6;",
    "the upper half": "mov.b64 %rd4, {%r30, %r2};\nshr.u64 %rd5, %rd4, 32;\ncvt.u32.u64 %r3, %rd5;",
    "chosen": HALVES + "setp.lt.u32 %p1, %r2, 99;\nselp.b64 %rd5, %rd4, %rd19, %p1;\nmov.b64 {%r3, %r5}, %rd5;",
    "bytes in another order": "shl.b32 %r4, %r2, 8;\nprmt.b32 %r5, %r4, %r30, 0x4321;\nand.b32 %r3, %r5, 255;",
    "from another lane": HALVES
    + "mov.b64 {%r4, %r5}, %rd4;\nshfl.sync.bfly.b32 %r6|%p2, %r4, 0, 31, -1;\nmov.b32 %r3, %r6;",
}
"""Each ends with the lane's number in %r3."""
SPREAD = {
    "the other half": HALVES + "mov.b64 {%r31, %r3}, %rd4;",
    "a sum": HALVES + "add.s64 %rd5, %rd4, 0;\ncvt.u32.u64 %r3, %rd5;",
    "a shift by bits": "mov.b64 %rd4, {%r30, %r2};\nshr.u64 %rd5, %rd4, 31;\ncvt.u32.u64 %r3, %rd5;",
    "a sign": "prmt.b32 %r4, %r2, %r30, 0x4100;\nshr.s32 %r3, %r4, 24;",
    "an unknown choice": "setp.lt.u32 %p1, %r30, 1;\nselp.b32 %r3, %r1, %r2, %p1;",
    "logic with what is known": HALVES + "xor.b64 %rd5, %rd4, -1;\nmov.b64 {_, %r3}, %rd5;",
    "half of a mask": "and.b32 %r3, %r30, 255;",
}


@pytest.mark.parametrize("body", DEFINED.values(), ids=DEFINED)
def test_a_byte_stays_defined_beside_one_that_is_not(body: str) -> None:
    assert clean(body + "\nst.global.u32 [%rd3], %r3;\n") == list(range(32))


@pytest.mark.parametrize("body", SPREAD.values(), ids=SPREAD)
def test_what_is_made_of_an_undefined_byte_is_told(body: str) -> None:
    _, outcome = ran(body + "\nst.global.u32 [%rd3], %r3;\n")
    assert {fault.kind for fault in outcome.faults} == {"undefined"}


def test_an_undefined_half_that_decides_is_told() -> None:
    _, outcome = ran(HALVES + "setp.eq.u64 %p1, %rd4, 0;\n@%p1 bra L1;\nL1:\n")
    assert {fault.kind for fault in outcome.faults} == {"undefined"}


@pytest.mark.turns(12)
def test_a_kernel_that_packs_a_half_which_nobody_reads_is_clean() -> None:
    """With blocks of one position the compiler packs a tagged word of a register that no path has set."""
    model = SMALLEST.model_copy(
        update={"hidden": 96, "ffn": 320, "heads": 1, "vocab": 17, "max_context": 7, "tied_embeddings": True}
        | {"qkv_bias": True}
    )
    settings = replace(FAST, warps=2, kv_block=1, kv_splits=1, max_tokens=3)
    schedule = plan(model, load_target("h200"), settings=settings, workers=2, max_context=7)
    ptx = compile_cuda(emit(schedule), schedule.target.arch).ptx
    result = run(schedule, RandomWeights(model), ptx, prompts=[[3, 7]], tokens=3)
    assert result.ended and result.faults == []
