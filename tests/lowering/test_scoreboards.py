"""Cache loads of a pass of attention are all in flight before any of them is waited for.

The kernels of 1412663 and 6597763 waited for the first of eight in every pass, with source, steps and registers as
before, and lost 13% at position 131,071.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from amk.lowering.compile import compile_cuda
from amk.lowering.emit import KERNEL
from amk.lowering.kernel import build
from amk.lowering.sass import disassemble
from amk.lowering.scoreboards import Issued, exposed, loops
from amk.models.model import load_model
from amk.planner.decode import choose_workers, plan
from amk.planner.formats import formats, layered
from amk.planner.settings import FAST
from amk.planner.tuned import tuned
from amk.schedule_ir.in_flight import blocks_together
from amk.schedule_ir.schedule import CacheDtype, Schedule
from amk.targets.target import load_target
from tests.cases import cases

CONTEXT = 131_072
CACHE_LOAD = "LDG.E.NA"


def long_plan(name: str, kv: CacheDtype = "bf16") -> Schedule:
    model, target = load_model(name), load_target("h200")
    wanted, settings = formats("bf16"), replace(FAST, kv_dtype=kv)
    workers = choose_workers(model, target, 1)
    settings = tuned(settings, model, target, layered(model, wanted), workers, CONTEXT)
    return plan(model, target, settings=settings, formats=wanted, max_context=CONTEXT)


def bodies(cubin: bytes, kernel: str) -> list[list[Issued]]:
    listing = disassemble(cubin)
    if listing is None:
        pytest.skip("needs nvdisasm")
    return loops(listing, cubin, kernel)


@pytest.mark.turns(32)
@pytest.mark.parametrize(
    ("name", "kv", "in_flight"),
    [("llama3.1-8b", "bf16", {8, 16}), ("llama3.1-8b", "fp8", {8, 16}), ("llama3.2-1b", "bf16", {4, 8})][cases(1, 0) :],
)
def test_no_cache_load_is_waited_for_before_the_last_is_begun(name: str, kv: CacheDtype, in_flight: set[int]) -> None:
    built = build(long_plan(name, kv))
    found = set()
    for body in bodies(built.compiled.cubin, KERNEL):
        loads = sum(CACHE_LOAD in one.text for one in body)
        attends = all(any(name in one.text for one in body) for name in ("HMMA", "MUFU.EX2"))
        if attends and 0 < loads <= max(in_flight):  # not the loop over layers
            found.add(loads)
            assert exposed(body, CACHE_LOAD) == []
    assert found == in_flight


CHASE = """extern "C" __global__ void chase(const long long* data, long long* out, int n) {
  long long at = threadIdx.x, other = 0;
#pragma unroll 1
  for (int i = 0; i < n; ++i) {
    const long long next = data[at];
    other += data[%s + 512];
    at = next;
  }
  out[threadIdx.x] = at + other;
}
"""


@pytest.mark.parametrize(("second", "waits"), [("next", True), ("at", False)])
def test_a_load_whose_address_is_loaded_exposes_the_first(second: str, waits: bool) -> None:
    compiled = compile_cuda(CHASE % second, "sm_90a")
    (body,) = [b for b in bodies(compiled.cubin, "chase") if sum("LDG" in one.text for one in b) == 2]
    assert bool(exposed(body, "LDG")) == waits


def test_a_shared_scoreboard_exposes_a_load() -> None:
    """As in the kernels that lost: a constant takes the scoreboard of the first load, and is used before the second."""
    load, constant = Issued("LDG R0", 2, frozenset()), Issued("LDC R4", 2, frozenset())
    use, last = Issued("IADD R5", 7, frozenset({2})), Issued("LDG R8", 5, frozenset({0}))
    assert exposed([load, constant, use, last], "LDG") == [(load, use)]
    assert exposed([load, last, constant, use], "LDG") == []
    assert exposed([load, constant, replace(use, waits=frozenset({3})), last], "LDG") == []


def test_two_blocks_are_held_where_a_quarter_of_the_registers_holds_their_rows() -> None:
    large = long_plan("llama3.1-8b")
    many = replace(FAST, warps=16, chunk_bytes=1024)
    small = plan(load_model("llama3.2-1b"), load_target("h200"), settings=many, max_context=CONTEXT)
    assert (large.launch.registers, small.launch.registers) == (255, 128)
    assert blocks_together(large, 8) == blocks_together(small, 16) == 2
    few = large.model_copy(update={"launch": large.launch.model_copy(update={"registers": 128})})
    assert blocks_together(few, 8) == 1


def test_a_block_that_rows_take_in_pieces_is_held_alone() -> None:
    """16 positions of fp8 rows leave room for another block, and so do 32, of which a warp takes half at a time."""
    model, target = load_model("llama3.2-1b"), load_target("h200")
    settings = replace(FAST, rows=32, kv_dtype="fp8")
    rows = plan(model, target, settings=settings, max_context=CONTEXT)
    one = rows.model_copy(update={"rows": 1})
    assert rows.kv.block == 32
    assert [blocks_together(schedule, 1) for schedule in (rows, one)] == [1, 2]
    assert [blocks_together(schedule, 2) for schedule in (rows, one)] == [2, 2]
