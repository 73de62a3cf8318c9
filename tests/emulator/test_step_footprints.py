"""What each step of a kernel touches is what its op declares, byte for byte."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from amk.emulator.decode import Result, run
from amk.emulator.steps import LINE_INFO
from amk.lowering import headers
from amk.lowering.compile import DEFAULT_OPTIONS, compile_ptx
from amk.lowering.emit import emit
from amk.lowering.stamp import stamped
from amk.planner.decode import plan
from amk.planner.formats import BF16, formats
from amk.planner.settings import FAST
from amk.schedule_ir.expr import Env
from amk.schedule_ir.ops.base import Access, Geometry
from amk.schedule_ir.ops.stage import StageOp
from amk.schedule_ir.ops.stage_norm import StageNormOp
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from tests.emulator.test_decode import scheduled
from tests.engine.tiny import RandomTensors
from tests.tiny import tiny

TAGGED, NAIVE, ROWS = "bf16 sm_90a, tagged", "naive sm_80", "four rows across blocks, sm_90a"
TREE, PARTS = "six nodes of a tree, sm_90a", "a batch, with parts in a loop"
LAYOUTS = "two layouts of one and a half blocks"
DIVIDED, FIVE = "columns divided among workers", "five rows, no whole turn of merge"
TURNS = "a batch whose KV heads are served in turns"
BY_DATA = {
    *(("select", name) for name in ("best_index", "best_value", "prompt", "request")), ("embed", "embedding"),
    ("embed_rows", "embedding"), ("advance", "prompt"),
    ("rope_append", "rope"), ("rope_append", "tree"), ("argmax_rows", "shared"),
}  # fmt: skip
"""Declared reads that a run may leave out: chosen by data or by the position, or sums of rows that fill up a group."""
OF_ROWS = {("none", "prompt"), ("none", "state")}
"""The compiler gives what `begin` and `select` load of further rows the line of no call."""


@cache
def in_parts() -> Schedule:
    """Two products of six parts, four of which are one loop of the text."""
    settings = replace(FAST, handoff="tagged", warps=2, batch=2, kv_block=16, k_parts=6, chunk_bytes=512)
    return plan(tiny(ffn=384), load_target("h200"), settings=settings, formats=BF16, max_context=64, workers=4)


@cache
def divided() -> Schedule:
    """Columns of o and `down` divided among two of three workers, in steps of several rows."""
    settings = replace(
        FAST, rows=9, headless=True, warps=2, kv_block=16, x_parts=2, k_parts=2, k_splits=2, chunk_bytes=512,
        handoff="mixed",
    )  # fmt: skip
    model = tiny(layers=1, hidden=128, ffn=128, heads=2, kv_heads=1)
    return plan(model, load_target("h200"), settings=settings, formats=BF16, max_context=64, workers=3)


@cache
def five_rows() -> Schedule:
    """Ten query vectors of a kv head, of which two warps take four at a time."""
    settings = replace(FAST, rows=5, headless=True, warps=2, kv_block=16, handoff="mixed")
    model = tiny(layers=1, hidden=128, ffn=128, heads=2, kv_heads=1, head_dim=64)
    return plan(model, load_target("h200"), settings=settings, formats=BF16, max_context=64, workers=4)


@cache
def in_turns() -> Schedule:
    """Thirty-four KV heads on twelve workers: three warps serve a head each, the fourth none."""
    settings = replace(FAST, batch=34, warps=4, kv_block=16, chunk_bytes=512)
    model = tiny(layers=1, hidden=64, ffn=64, heads=2, kv_heads=1, head_dim=32, vocab=96)
    return plan(model, load_target("h200"), settings=settings, formats=BF16, max_context=64, workers=12)


@cache
def in_two_layouts() -> Schedule:
    """Codes in the layers and bf16 in lm_head: the last norm is staged for both."""
    settings = replace(FAST, warps=2, kv_block=16)
    wanted = formats("int8", "bf16")
    return plan(tiny(hidden=96), load_target("h200"), settings=settings, formats=wanted, max_context=64, workers=4)


@cache
def compiled(name: str) -> tuple[str, str]:
    """CUDA and PTX."""
    schedule = named(name)
    text = stamped(emit(schedule), schedule)
    return text, compile_ptx(text, schedule.target.arch, options=(*DEFAULT_OPTIONS, LINE_INFO))


def named(name: str) -> Schedule:
    own = {PARTS: in_parts, LAYOUTS: in_two_layouts, DIVIDED: divided, FIVE: five_rows, TURNS: in_turns}
    return own[name]() if name in own else scheduled(name)


def ran(name: str) -> Result:
    schedule = named(name)
    text, ptx = compiled(name)
    prompt = [3, 17] if schedule.rows == 1 else [*range(3, 3 + 2 * schedule.rows)]
    prompts = [prompt] * schedule.batch
    result = run(schedule, RandomTensors(schedule.model), ptx, prompts=prompts, tokens=2, text=text)
    assert result.ended and not result.faults
    return result


@pytest.mark.turns(24)
@pytest.mark.parametrize("name", [TAGGED, NAIVE, ROWS, TREE, PARTS, LAYOUTS, DIVIDED, FIVE, TURNS])
def test_every_step_touches_what_its_op_declares(name: str) -> None:
    found = ran(name).mismatches
    assert [str(m) for m in found if m.kind != "unread" and (m.op, m.buffer) not in OF_ROWS] == []
    assert {(m.op, m.buffer) for m in found} <= BY_DATA | OF_ROWS | {("begin", "prompt"), ("begin", "state")}


def test_a_warp_that_publishes_what_another_one_does_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words are the same, so values do not tell."""
    closure = headers.closure

    def longer(source: str) -> dict[str, str]:
        found = closure(source)
        own = found["amk/ops/store_sums.cuh"]
        changed = own.replace("share_begin(count, S::kAgents, agent + 1)", "share_begin(count, S::kAgents, agent + 2)")
        return found | {"amk/ops/store_sums.cuh": changed if changed != own else pytest.fail("nothing changed")}

    monkeypatch.setattr(headers, "closure", longer)
    compiled.cache_clear()
    mismatches = {(m.kind, m.op, m.buffer) for m in ran(DIVIDED).mismatches}
    compiled.cache_clear()
    assert ("undeclared write", "store_sums", "sums_o") in mismatches


Edit = tuple[str, int, int]
"""Kind of the accesses to the norm or to x that are moved, by how many bytes at either end."""


@pytest.mark.turns(16)
@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (("read", 4, 0), {("undeclared read", "norm")}),
        (("read", 0, 4), {("unread", "norm")}),
        (("write", 0, -2), {("undeclared write", "shared")}),
        (("write", -2, 0), {("unwritten", "shared")}),
    ],
)
def test_a_wrong_declaration_is_told(
    edit: Edit, expected: set[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One op's footprint is an element too short or too long; the kernel is the same."""
    declared = StageNormOp.accesses

    def moved(self: StageNormOp, env: Env, geo: Geometry) -> list[Access]:
        kind, first, last = edit
        return [
            a._replace(lo=a.lo + first, hi=a.hi + last) if a.kind == kind and a.buffer in ("norm", self.x) else a
            for a in declared(self, env, geo)
        ]

    monkeypatch.setattr(StageNormOp, "accesses", moved)
    mismatches = {(m.kind, m.buffer) for m in ran(TAGGED).mismatches if m.op == "stage_norm"}
    assert mismatches >= expected


@pytest.mark.turns(16)
@pytest.mark.parametrize("part", [2, 4])
def test_a_wrong_declaration_of_one_part_of_a_loop_is_told(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts have one call in the text; what each of them reads is beside its own."""
    declared = StageOp.accesses

    def moved(self: StageOp, env: Env, geo: Geometry) -> list[Access]:
        found = declared(self, env, geo)
        return [a._replace(lo=a.lo + 8) if a.buffer == "act" and self.k_part == part else a for a in found]

    assert "c.p" in compiled(PARTS)[0]
    monkeypatch.setattr(StageOp, "accesses", moved)
    wrong = [m for m in ran(PARTS).mismatches if m.op == "stage"]
    size = max(m.hi for m in wrong) - min(m.lo for m in wrong)
    assert {(m.kind, m.buffer) for m in wrong} == {("undeclared read", "act")}
    act = next(b for b in in_parts().buffers if b.name == "act")
    parts = {m.lo * 6 * act.shape[0] // act.bytes % 6 for m in wrong}
    assert parts == {part} and size < act.bytes
