"""A token as separate kernels: every step once and in order, the weights where the rings start, code that overlaps."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from amk.lowering.compile import compile_cuda
from amk.lowering.emit_phases import emit_phases
from amk.lowering.phases import SYNCHRONISING, chunks_of, phases
from amk.lowering.readback import Kind
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST, NAIVE, Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.layout import stream_layout
from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.schedule import Loop, Node, Schedule
from amk.targets.target import load_target
from amk.weights.weight_format import FormatName
from tests.handwritten.split_attention import schedule as two_programs
from tests.tiny import PLAIN, VARIANTS, tiny

H200 = load_target("h200")
SETTINGS = [FAST, NAIVE, replace(FAST, sampling="top-k-top-p"), replace(FAST, reduce_from=1, kv_dtype="fp8")]
CONSTANT_BYTES = 64 * 1024
"""Of `__constant__` data in one translation unit."""
ONE_LAYER = tiny("tiny-one-layer", layers=1)


def plan_of(settings: Settings, model: object = PLAIN, workers: int = 4) -> Schedule:
    return plan(model, H200, settings=settings, max_context=256, workers=workers)  # type: ignore[arg-type]


def work(nodes: tuple[Node, ...], layer: int = 0) -> list[tuple[str, int]]:
    """(op, layer) of what a token does, synchronisation left out, layers unrolled."""
    found: list[tuple[str, int]] = []
    for node in nodes:
        if isinstance(node, Loop):
            for at in range(node.count or 1):
                found += work(node.body, at)
        elif not isinstance(node.op, (*SYNCHRONISING, BarrierOp)):
            found.append((node.op.op, layer))
    return found


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("model", [PLAIN, ONE_LAYER], ids=lambda model: model.name)
def test_the_kernels_of_a_token_do_what_the_token_does(settings: Settings, model: object) -> None:
    schedule = plan_of(settings, model)
    found = phases(schedule)
    done = [
        (op.op, layer + ahead)
        for kernel, layer in found.launches
        for ahead, op in found.kernels[kernel].ops()
        if not isinstance(op, BarrierOp) and op.op not in ("begin", "finish")
    ]
    expected = [each for each in work(schedule.programs[0].body) if each[0] not in ("begin", "finish")]
    # After the layers the layer variable means nothing; the kernels keep the last one.
    beyond = next(i for i, (name, _) in enumerate(expected) if name == "argmax_rows") - 1
    assert done[:beyond] == expected[:beyond]
    assert [name for name, _ in done] == [name for name, _ in expected]
    firsts = [next(iter(kernel.ops()))[1].op for kernel in found.kernels]
    assert set(firsts) == {"begin"}, "every kernel knows the position"
    assert found.carried >= {"residual"} and "x" not in found.carried
    counts = Counter(kernel for kernel, _ in found.launches)
    assert set(counts) == set(range(len(found.kernels)))


@pytest.mark.parametrize("format_name", ["bf16", "int8", "int4-g128", "fp8"])
def test_no_kernel_reads_tagged_words_that_it_writes(format_name: FormatName) -> None:
    """Of the plans that are measured: some take words without a step that waits."""
    schedule = plan(load_model("llama3-8b"), H200, formats=formats(format_name), max_context=256)
    tagged = [buffer.name for buffer in schedule.buffers if buffer.tagged]
    for kernel in phases(schedule).kernels:
        names = Counter(
            name for _, op in kernel.ops() for field, name in vars(op).items() if name in tagged and field != "matrix"
        )
        assert max(names.values(), default=1) == 1, (kernel.name, names)


@pytest.mark.parametrize("model", VARIANTS, ids=lambda model: model.name)
def test_rings_start_at_the_weights_of_their_kernel(model: object) -> None:
    schedule = plan_of(FAST, model, 3)
    found, layout = phases(schedule), stream_layout(schedule, schedule.streams[0])
    at = np.zeros_like(layout.totals.reshape(-1))
    step = sum(layout.counts[name, 0] for name in ("qkv", "o", "gate_up", "down")).reshape(-1)
    for kernel, layer in found.launches:
        chunks = chunks_of(schedule, found, kernel)
        gemvs = found.kernels[kernel].gemvs()
        assert (chunks is None) == (not gemvs)
        if chunks is not None:
            np.testing.assert_array_equal(np.array(chunks.at) + layer * step, at)
            at += sum(layout.counts[op.matrix, 0].reshape(-1) for _, op in gemvs)
    np.testing.assert_array_equal(at, layout.totals.reshape(-1))


@pytest.mark.turns(24)
@pytest.mark.parametrize("form", ["bf16", "int8", "int4-g128-zp"])
def test_the_code_overlaps_and_has_no_hand_off_of_its_own(form: str) -> None:
    schedule = plan(PLAIN, H200, max_context=256, workers=4, formats=formats(form))  # type: ignore[arg-type]
    code = emit_phases(schedule, 2)
    compiled = compile_cuda(code.source, H200.arch)
    assert set(compiled.resources) == {kernel.symbol for kernel in code.kernels}
    assert all(used.spill_stores == 0 for used in compiled.resources.values())
    bodies = dict(re.findall(r"\.entry (amk_phase_\d+)\(.*?\{(.*?)\n\}", compiled.ptx, flags=re.DOTALL))
    assert set(bodies) == set(compiled.resources)
    for number, kernel in enumerate(code.kernels):
        body = bodies[kernel.symbol]
        start, wait = body.index("griddepcontrol.launch_dependents"), body.index("griddepcontrol.wait")
        assert start < wait
        # The weights are asked for before the wait.
        products = any(isinstance(op, GemvOp) for _, op in phases(schedule).kernels[number].ops())
        assert products == (0 < body.find("cp.async.bulk.shared") < wait)
        for kind in (Kind.SIGNAL_RELEASE, Kind.SIGNAL_RELAXED, Kind.POLL_ACQUIRE, Kind.TAGGED_STORE, Kind.TAGGED_LOAD):
            assert not any(form in body for form in forms(kind)), f"{kernel.symbol}: {kind}"
        assert kernel.shared_bytes + 2048 <= H200.smem_per_sm // 2


def forms(kind: Kind) -> list[str]:
    from amk.lowering.readback import FORMS

    return [opcode for opcode, known in FORMS.items() if known is kind]


def test_large_models_fit_two_kernels_on_an_sm() -> None:
    schedule = plan(load_model("llama3-8b"), H200, max_context=8192)
    code = emit_phases(schedule, 2)
    assert max(kernel.shared_bytes for kernel in code.kernels) > 100_000, "deep rings"
    most = emit_phases(schedule, 8).kernels
    counts = [kernel.blocks_per_sm for kernel in most]
    assert max(counts) == 8 and 1 <= min(counts) < 8, "what does not fit eight times is laid out for fewer"
    assert all(k.blocks_per_sm * (k.shared_bytes + 2048) <= H200.smem_per_sm for k in most)
    argument = code.argument({name: 7 for name in code.layout.dtype.names or ()}, layer=3, number=1)
    assert argument["layer"] == 3 and argument["number"] == 1 and argument.nbytes == code.dtype.itemsize


@pytest.mark.turns(4)
def test_the_kernels_of_a_plan_with_many_warps_compile_with_the_table_of_every_ring() -> None:
    many = replace(FAST, warps=16, chunk_bytes=1024)
    schedule = plan(load_model("llama3.2-1b"), H200, settings=many, max_context=8192)
    agents = schedule.launch.workers * schedule.launch.warps
    code, found, layout = emit_phases(schedule, 2), phases(schedule), stream_layout(schedule, schedule.streams[0])
    tables = re.findall(r"__device__ const RingWork ring_work\[(\d+)\] = \{(.*)\};", code.source)
    chunks = [c for c in (chunks_of(schedule, found, number) for number in range(len(code.kernels))) if c is not None]
    assert schedule.launch.warps >= 16 and len(tables) * agents * 8 > CONSTANT_BYTES, "too much for constants"
    for (length, text), expected in zip(tables, chunks, strict=True):
        rows = np.array(re.findall(r"-?\d+", text), np.int64).reshape(-1, 3)
        assert int(length) == agents == len(rows)
        np.testing.assert_array_equal(rows[:, 0] - layout.base.reshape(-1), expected.at)
        np.testing.assert_array_equal(rows[:, 2], expected.count)
    assert set(compile_cuda(code.source, H200.arch).resources) == {kernel.symbol for kernel in code.kernels}


def test_what_is_not_cut_is_refused() -> None:
    with pytest.raises(AmkError, match="AMK601"):
        emit_phases(plan(PLAIN, load_target("l4"), max_context=256, workers=4))
    with pytest.raises(AmkError, match="AMK601"):
        phases(two_programs())
