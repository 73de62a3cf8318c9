"""Which array a product's vector stands in, for every pair of formats."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST
from amk.planner.staging import staged_arrays
from amk.schedule_ir.memory import Buffer
from amk.schedule_ir.schedule import Schedule, Step
from amk.targets.target import load_target
from amk.validator.static.structure import check_structure
from amk.weights.weight_format import FormatName, weight_format
from tests.damage import rewritten
from tests.tiny import PLAIN, RAGGED

ONE_PER_LAYOUT: tuple[FormatName, ...] = ("bf16", "int8", "int4-g64-zp", "fp8")


def bytes_of(buffer: Buffer) -> range:
    assert buffer.offset is not None
    return range(buffer.offset, buffer.offset + buffer.bytes)


@pytest.mark.parametrize("layers", ONE_PER_LAYOUT)
@pytest.mark.parametrize("lm_head", ONE_PER_LAYOUT)
def test_vectors_that_live_together_do_not_overlap(layers: FormatName, lm_head: FormatName) -> None:
    buffers = {b.name: b for b in staged_arrays(RAGGED, formats(layers, lm_head))}
    apart = weight_format(layers).staged() != weight_format(lm_head).staged()
    assert ("x_head" in buffers) == apart
    assert ("x_sums" in buffers) == ("int4-g64-zp" in (layers, lm_head))
    assert ("x_scales" in buffers) == ({layers, lm_head} != {"bf16"})
    hidden = -(-RAGGED.hidden // 64) * 64
    for extra in ("x_head", "x_scales", "x_sums"):
        if extra in buffers:
            assert not set(bytes_of(buffers[extra])) & set(range(2 * hidden))
    tables = [bytes_of(buffers[name]) for name in ("x_scales", "x_sums") if name in buffers]
    vectors = [bytes_of(buffer) for name, buffer in buffers.items() if name not in ("x_scales", "x_sums")]
    assert not any(set(table) & set(vector) for table in tables for vector in vectors)


def test_plans_of_bf16_know_no_blocks() -> None:
    assert [(b.name, b.dtype, b.shape) for b in staged_arrays(PLAIN, formats())] == [("x", "bf16", (256,))]


def quantised(layers: FormatName = "int4-g128-zp", lm_head: FormatName = "fp8") -> Schedule:
    settings = replace(FAST, warps=2)
    return plan(
        PLAIN, load_target("h200"), settings=settings, formats=formats(layers, lm_head), max_context=64, workers=4
    )


@pytest.mark.parametrize(
    ("op", "field", "value"),
    [("gemv", "x", "x_head"), ("gemv", "sums", None), ("gemv", "scales", None), ("stage", "scales", None),
     ("stage_norm", "scales", None)],
)  # fmt: skip
def test_a_product_that_would_read_another_layout_is_refused(op: str, field: str, value: str | None) -> None:
    schedule = quantised()
    assert not check_structure(schedule)

    def change(step: Step) -> Step:
        return step.model_copy(update={"op": step.op.model_copy(update={field: value})}) if step.op.op == op else step

    damaged = rewritten(schedule, change)
    assert {diagnostic.code for diagnostic in check_structure(damaged)} == {"AMK405"}
