"""Ablated kernels: they leave out what they say, nobody but the tool can run them, and their times add up."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from amk.bench.table.ablation import (
    HEADER,
    PAIRS,
    PARTS,
    PARTS_OF_PAIRS,
    SYMBOL,
    WORK,
    Ablation,
    ablated_source,
    cells,
    mask,
    named,
    pairs,
    parts_of,
    summary,
    unfed,
    unmet,
    variants,
)
from amk.bench.table.measurement import Measurement
from amk.bench.table.record import ABLATIONS, Record
from amk.bench.table.row import Key
from amk.bench.tools.times import Times
from amk.cli import main
from amk.commands import bench_ablate
from amk.engine.admission.admission import AdmittedKernel
from amk.lowering.compile import Compiled, compile_cuda
from amk.lowering.emit import KERNEL, emit
from amk.lowering.stamp import stamp_of
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.schedule_ir.schedule import Schedule, steps_of
from amk.targets.target import load_target
from amk.validator.export.of_schedule import evidence
from tests.tiny import PLAIN

CUDA = Path(str(resources.files("amk.lowering") / "cuda"))
WORDS = r"ld\.relaxed\.gpu\.global\.v2\.b64"
KEY = Key("llama3-8b", "h200", "int8", "fast", 128, 4, 20, ())


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return plan(PLAIN, load_target("h200"), settings=replace(FAST, handoff="fenced"), max_context=256)


@pytest.fixture(scope="module")
def whole(schedule: Schedule) -> Compiled:
    return compile_cuda(emit(schedule), schedule.target.arch)


def without(schedule: Schedule, *parts: str) -> Compiled:
    return compile_cuda(ablated_source(schedule, frozenset(parts)), schedule.target.arch)


def count(compiled: Compiled, instruction: str) -> int:
    return len(re.findall(rf"^\s*(?:@\S+ )?(?:{instruction})", compiled.ptx, flags=re.MULTILINE))


def test_the_bits_are_those_of_the_header() -> None:
    text = (CUDA / "ablation.cuh").read_text(encoding="utf-8")
    found = {name: int(bit) for name, bit in re.findall(r"bool k(\w+) = \(kParts & (\d+)\) != 0;", text)}
    assert [bit for _, bit in sorted(found.items(), key=lambda each: each[1])] == [1 << n for n in range(len(PARTS))]
    ordered = [name for name, _ in sorted(found.items(), key=lambda each: each[1])]
    assert [re.sub("^no|^one|ring$", "", name.lower()).replace("deep", "depth") for name in ordered] == list(PARTS)
    assert mask(PARTS) == 2 ** len(PARTS) - 1 and mask(("waits", "product")) == 1 + 8
    with pytest.raises(AmkError, match="AMK005"):
        mask(("magic",))


def test_the_product_leaves_nothing_out(schedule: Schedule) -> None:
    assert "AMK_ABLATION" not in emit(schedule)
    mentions = [path.name for path in CUDA.rglob("*.cuh") if "AMK_ABLATION" in path.read_text(encoding="utf-8")]
    assert mentions == ["ablation.cuh"]
    check = '#include "amk/ablation.cuh"\nstatic_assert(!amk::ablation::kAny, "");\n'
    compile_cuda(check, schedule.target.arch)
    with pytest.raises(AmkError, match="AMK901"):
        compile_cuda(f"#define AMK_ABLATION 64u\n{check}", schedule.target.arch)


@pytest.fixture(scope="module")
def some(schedule: Schedule) -> Compiled:
    return without(schedule, "staging", "sums", "depth")


@pytest.mark.turns(16)
def test_waits_fences_and_candidates_are_not_in_the_code(schedule: Schedule, whole: Compiled) -> None:
    found = without(schedule, "waits", "fence", "argmax", "place")
    for instruction in (r"ld\.acquire\.gpu", r"fence\.proxy\.async\.shared"):
        assert count(whole, instruction) > 0 == count(found, instruction)
    assert count(found, r"shfl\.sync\.bfly") < count(whole, r"shfl\.sync\.bfly")
    assert count(found, r"cp\.async\.bulk") == count(whole, r"cp\.async\.bulk")


@pytest.mark.turns(12)
def test_vectors_and_sums_are_not_read_and_the_ring_has_twice_the_slots(
    schedule: Schedule, whole: Compiled, some: Compiled
) -> None:
    for instruction in (r"ld\.global", r"ld\.shared"):
        assert count(some, instruction) < count(whole, instruction)
    slots = schedule.streams[0].slots
    assert count(whole, r"mbarrier\.init") == slots and count(some, r"mbarrier\.init") == 2 * slots
    assert count(some, r"mma\.sync") == count(whole, r"mma\.sync")


@pytest.fixture(scope="module")
def codes() -> Schedule:
    """A plan of codes whose vectors cross SMs as tagged words."""
    settings = replace(FAST, handoff="tagged")
    return plan(PLAIN, load_target("h200"), settings=settings, formats=formats("int8"), max_context=256, workers=4)


@pytest.mark.turns(4)
def test_bounds_of_designs_leave_out_the_meeting_and_the_conversion(codes: Schedule) -> None:
    as_it_is = compile_cuda(emit(codes), codes.target.arch)
    met_not, raw = (without(codes, part) for part in ("meeting", "conversion"))
    assert count(met_not, r"bar\.sync") < count(as_it_is, r"bar\.sync")
    assert count(met_not, r"mma\.sync") == count(as_it_is, r"mma\.sync") > 0
    assert count(raw, r"shfl\.sync\.bfly") < count(as_it_is, r"shfl\.sync\.bfly")
    assert count(raw, WORDS) == count(as_it_is, WORDS) > 0


def test_an_unmet_schedule_lacks_just_the_barrier_before_each_product(codes: Schedule) -> None:
    def ops(schedule: Schedule) -> list[str]:
        return [step.op.op for program in schedule.programs for step in steps_of(program.body)]

    before, after = ops(codes), ops(unmet(codes))
    expected = [op for n, op in enumerate(before) if not (op == "barrier" and before[n + 1 : n + 2] == ["gemv"])]
    assert after == expected and len(before) - len(after) == before.count("gemv") > 0


def test_an_unfed_schedule_lacks_just_the_wait_for_the_input_of_down(schedule: Schedule) -> None:
    def waits(some: Schedule) -> list[str]:
        return [wait.counter for program in some.programs for step in steps_of(program.body) for wait in step.waits]

    assert waits(unfed(schedule)) == [counter for counter in waits(schedule) if counter != "act"] != waits(schedule)
    with pytest.raises(AmkError, match="AMK005"):
        unfed(plan(PLAIN, load_target("h200"), settings=replace(FAST, warps=4), max_context=256, workers=4))


def test_nothing_is_multiplied_and_everything_is_still_copied_and_signalled(
    schedule: Schedule, whole: Compiled
) -> None:
    found = without(schedule, *WORK)
    assert count(found, r"mma\.sync") == 0 < count(whole, r"mma\.sync")
    for instruction in (r"cp\.async\.bulk", r"red\.release\.gpu", r"mbarrier\.arrive"):
        assert count(found, instruction) == count(whole, instruction) > 0


@pytest.mark.turns(12)
def test_nobody_admits_an_ablated_kernel(schedule: Schedule, some: Compiled) -> None:
    kernel = some
    assert list(kernel.resources) == [SYMBOL] and KERNEL not in kernel.ptx
    assert stamp_of(kernel.cubin) is None and stamp_of(kernel.ptx) is None
    certificate = evidence(schedule)
    for code in (kernel.cubin, kernel.ptx):
        with pytest.raises(AmkError, match="AMK606"):
            AdmittedKernel(schedule, certificate, code)


def test_an_ablation_is_of_something_and_of_bulk_copies(schedule: Schedule) -> None:
    with pytest.raises(AmkError, match="AMK005"):
        ablated_source(schedule, frozenset())
    with pytest.raises(AmkError, match="AMK"):
        ablated_source(plan(PLAIN, load_target("l4"), max_context=256), frozenset({"sums"}))


def test_each_part_and_pair_with_and_without_waits() -> None:
    found = variants()
    each = len(PARTS_OF_PAIRS)
    assert len(found) == len(set(found)) == 2 * (1 + each + each * (each - 1) // 2) + 1
    assert found[0] == frozenset() and found[-1] == frozenset(WORK)
    assert all(parts_of(named(parts)) == parts for parts in found)


def ablation(ms: dict[str, float]) -> Ablation:
    times = {name: Times(t, t, t) for name, t in ms.items()}
    return Ablation(KEY, 10, 7 * 10**9, 5 * 10**7, 4650.0, times, 1e-3, 2e-3, True)


def test_worth_of_parts_in_a_line_and_of_parts_that_hide_each_other() -> None:
    line = ablation({"-": 2.0, "sums": 1.7, "product": 1.6, "sums+product": 1.3, named(frozenset(WORK)): 1.1})
    one, other = frozenset({"sums"}), frozenset({"product"})
    assert line.worth(one) == pytest.approx(0.3) and line.worth(other, one) == pytest.approx(0.4)
    assert line.hidden(one | other) == pytest.approx(0) and line.bound_ms == 1.1
    hiding = ablation({"-": 2.0, "sums": 2.0, "product": 2.0, "sums+product": 1.5})
    assert hiding.hidden(one | other) == pytest.approx(0.5) and hiding.bound_ms is None
    assert hiding.worth(frozenset({"fence"})) is None
    assert "product: 0.4000 ms, 40.00 us a layer" in summary(line)
    assert all(len(row) == len(HEADER) for row in cells(line)) and len(cells(line)) == 3
    assert [row[0] for row in pairs(line)] == ["sums+product"] and len(pairs(line)[0]) == len(PAIRS)


def test_a_record_is_read_as_it_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = ablation({"-": 2.0, "waits": 1.9, "sums": float("nan"), "waits+sums": 1.8})
    file = tmp_path / "ablations.json"
    Record(file, form=ABLATIONS).add(row, {"commit": "x"})
    again = Record.open(file, ABLATIONS).ablations()[0]
    assert again.key == row.key and again.times["waits"] == row.times["waits"]
    assert again.times["sums"].ms != again.times["sums"].ms
    with pytest.raises(AmkError, match="AMK005"):
        Record.open(file)
    assert main(["bench", "--ablate", "all", "--rows", str(file)]) == 0
    assert "llama3-8b int8" in capsys.readouterr().out
    assert main(["bench", "--ablate", "all", "--rows", str(file), "--format", "json"]) == 0


@pytest.mark.parametrize(
    ("exit_code", "others"), [(Exit.UNSAFE, 1), (Exit.INPUT, 1), (Exit.INTERNAL, 0)], ids=["refused", "input", "broken"]
)
def test_a_kernel_that_is_refused_costs_its_row_alone(
    exit_code: Exit,
    others: int,
    schedule: Schedule,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def measured(arguments: argparse.Namespace, case: Measurement) -> Ablation:
        if case.key.batch == 8:
            raise AmkError(Diagnostic("AMK609", "the machine code"), exit_code)
        return replace(ablation({"-": 2.0, "waits": 1.9}), key=case.key)

    monkeypatch.setattr(bench_ablate, "_measured", measured)
    cases = [Measurement(schedule, replace(KEY, batch=batch)) for batch in (8, 4)]
    arguments = argparse.Namespace(record=None, resume=False, time_limit=None, format="full")
    if others:
        assert bench_ablate.ablated(arguments, cases, dict, 0.0) == Exit.UNSAFE
    else:
        with pytest.raises(AmkError, match="AMK609"):
            bench_ablate.ablated(arguments, cases, dict, 0.0)
    captured = capsys.readouterr()
    assert ("batch 8, is left out: AMK609" in captured.err) == bool(others)
    assert captured.out.count("batch 4") == others


@pytest.mark.parametrize(
    "words",
    [
        ["--ablate", "magic"],
        ["--ablate", "all", "--plot", "x.svg"],
        ["--ablate", "all", "--runs", "2", "--record", "r"],
    ],
)
def test_what_does_not_go_together_is_refused(words: list[str]) -> None:
    try:
        code = main(["bench", "--model", "llama3.2-1b", "--gpu", "h200", *words])
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    assert code == 2
