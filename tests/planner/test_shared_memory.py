"""Shared memory by stage, lifetime and K-split: the same numbers in planner, schedule and proof."""

from dataclasses import replace
from itertools import combinations
from typing import Literal

import pytest

from amk.lowering.kernel import why_not_built
from amk.models.matrices import MATRICES
from amk.models.model import load_model
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.k_split import EQUAL, FINER, cut, row, rows, settings_of
from amk.planner.settings import FAST, NAIVE, Settings
from amk.schedule_ir.codec import canonical_json
from amk.schedule_ir.shared_memory import extent, peak, stages
from amk.targets.target import load_target
from amk.validator.verify import verify
from amk.weights.weight_format import FormatName
from tests.cases import cases
from tests.tiny import PLAIN, VARIANTS

APART, OVERLAID = (replace(FAST, overlay=o) for o in (False, True))


@pytest.mark.turns(4)
@pytest.mark.parametrize("model", VARIANTS, ids=lambda m: m.name)
@pytest.mark.parametrize(
    "settings", [APART, OVERLAID, replace(NAIVE, overlay=True)], ids=["apart", "overlaid", "naive"]
)
def test_arrays_that_share_bytes_are_never_live_together(model: ModelSpec, settings: Settings) -> None:
    schedule = plan(model, load_target("h200"), settings=settings, max_context=256)
    place = {b.name: (b.offset or 0, (b.offset or 0) + b.bytes) for b in schedule.buffers if b.space == "shared"}
    for stage in stages(schedule):
        for a, b in combinations(stage.live, 2):
            assert place[a][1] <= place[b][0] or place[b][1] <= place[a][0], f"{a} and {b} at {stage.step}"
    assert peak(schedule) <= extent(schedule.buffers) == schedule.launch.shared_bytes
    assert verify(schedule).safe


def test_the_proof_refuses_arrays_that_are_live_together() -> None:
    """`q` laid over `att`, which is written while `q` is still read."""
    schedule = plan(PLAIN, load_target("h200"), settings=OVERLAID, max_context=256)
    att = next(b for b in schedule.buffers if b.name == "att")
    buffers = tuple(b.model_copy(update={"offset": att.offset}) if b.name == "q" else b for b in schedule.buffers)
    assert verify(schedule.model_copy(update={"buffers": buffers})).status == "UNSAFE"


def test_liveness_of_a_layer() -> None:
    found = {s.step: set(s.live) for s in stages(plan(PLAIN, load_target("h200"), max_context=256))}
    assert "x" not in found["attend"] and {"att", "q", "residual", "ring"} <= found["attend"]
    assert {"x", "part"} <= found["gemv"] and "att" not in found["combine"]
    assert "q" not in found["merge"] and found["finish"] <= {"ring", "full"}


def test_overlaying_makes_room_for_deeper_rings() -> None:
    model, target = load_model("llama3-8b"), load_target("l4")
    rings = [
        next(b.bytes for b in plan(model, target, settings=s, max_context=256).buffers if b.name == "ring")
        for s in (replace(APART, max_ring_bytes=1 << 20), replace(OVERLAID, max_ring_bytes=1 << 20))
    ]
    assert rings[1] > rings[0]


def test_the_table_is_the_planner_s_arithmetic() -> None:
    model, target = load_model("qwen2.5-1.5b"), load_target("l4")
    entry = row(model, target, 64, 24 * 1024, APART)
    settings = replace(APART, chunk_bytes=entry.chunk, slots=entry.slots)
    assert plan(model, target, settings=settings, max_context=256).launch.shared_bytes == entry.peak
    assert entry.ms is not None


def test_a_k_split_halves_the_peak_at_equal_bytes_in_flight() -> None:
    found = list(rows(load_model("llama3-8b"), load_target("l4")))
    whole, best = found[0], min(found, key=lambda r: r.peak)
    assert whole.k_split == 1 and whole.ms is None and best.ms is not None
    coarse = [r for r in found if r.chunk <= 16384]
    assert best.overlaid <= coarse[0].overlaid / 2


@pytest.mark.turns(12)
@pytest.mark.parametrize("gpu", ["l4", "l20"][: cases(1, 2)])
def test_a_finer_cut_along_k_takes_half_at_exactly_equal_bytes_in_flight(gpu: str) -> None:
    """Four sequences of llama3-8b fit, and are SAFE and compiled, only so."""
    model, target = load_model("llama3-8b"), load_target(gpu)
    whole, parted = (cut(model, target, 4, parts) for parts in (1, FINER))
    for each in (whole, parted):
        assert (each.slots - 1) * each.chunk * FAST.warps == EQUAL
    assert parted.peak <= whole.peak / 2 and whole.ms is None and parted.ms is not None
    schedule = plan(model, target, settings=settings_of(4, FINER), max_context=256)
    assert peak(schedule) <= schedule.launch.shared_bytes == parted.peak
    assert verify(schedule).safe and why_not_built(schedule) is None


@pytest.mark.parametrize(
    ("layers", "head", "align"),
    [
        ("int8-g128", "int8-g128", 128), ("int4-g128-zp", "bf16", 128), ("int4-g128", "int4-g128", 16),
        ("bf16", "bf16", 16), ("int8", "bf16", 16), ("int8", "int8", 16), ("fp8", "fp8", 16),
    ],
)  # fmt: skip
def test_copies_are_padded_to_whole_lines_where_that_is_cheap(
    layers: FormatName, head: FormatName, align: Literal[16, 128]
) -> None:
    """Not where they are whole lines as they are, nor where the padding of 2,064 bytes would cost a twentieth."""
    model = load_model("llama3-8b")
    schedule = plan(model, load_target("h200"), formats=formats(layers, head), max_context=256)
    (stream,), buffers = schedule.streams, {b.name: b for b in schedule.buffers}
    largest = max(chunk.bytes for name in MATRICES for chunk in stream.kinds(name))
    ring, weights = buffers["ring"], buffers["weights"]
    assert stream.chunk_align == align
    assert stream.chunk_bytes % align == 0 and 0 <= stream.chunk_bytes - largest < align
    assert (ring.offset or 0) % align == 0 and ring.bytes == schedule.launch.warps * stream.slots * stream.chunk_bytes
    assert weights.bytes % stream.chunk_bytes == 0
    assert (b'"chunk_align"' in canonical_json(schedule)) == (align != 16), "older schedules keep their text"
