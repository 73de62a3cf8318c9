"""The race of kernels of several trees, as far as it needs no GPU."""

from __future__ import annotations

import argparse
import io
import random
import shutil
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from amk.bench.table.ablation import SYMBOL
from amk.lowering import headers
from amk.lowering.compile import compile_cuda
from amk.lowering.emit import KERNEL, emit
from amk.planner.decode import plan
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from tests.gpu.race import LeftOut, Variant, arguments, compiled, paired, planned
from tests.tiny import tiny

ROOT = Path(__file__).parents[2]
HEADERS = ROOT / "amk/lowering/cuda"


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return plan(tiny(), load_target("h200"), max_context=64, workers=2)


@pytest.fixture(scope="module")
def own(schedule: Schedule) -> bytes:
    return code(compile_cuda(emit(schedule).replace(KERNEL, SYMBOL), schedule.target.arch).cubin)


def code(cubin: bytes) -> bytes:
    """The kernel's instructions: names in a cubin differ from one compilation to the next."""
    return bytes(ELFFile(io.BytesIO(cubin)).get_section_by_name(f".text.{SYMBOL}").data())


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "amk", tmp_path / "amk", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def replaced(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_kernels_are_named_with_code_plan_and_model() -> None:
    headers_alone = Variant.parse(f"a={HEADERS} scale_blocks=1; kv_block=64")
    assert headers_alone == Variant("a", HEADERS, "scale_blocks=1; kv_block=64")
    assert Variant.parse(f"b@smollm2-135m={ROOT}") == Variant("b", ROOT, "", "smollm2-135m")
    assert Variant.parse("c= handoff='tagged'") == Variant("c", None, "handoff='tagged'")
    assert Variant.parse("b@smollm2-135m=").races("smollm2-135m:bf16")
    assert not Variant.parse("b@smollm2-135m=").races("qwen3-0.6b")
    assert Variant.parse("again=").races("qwen3-0.6b:int8")


@pytest.mark.parametrize("text", ["a", "default=", "=", f"a={ROOT / 'tests'}"])
def test_what_names_no_kernel_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        Variant.parse(text)


def test_changes_are_of_the_default_plan() -> None:
    default = planned("smollm2-135m", "h100", "")
    assert planned("smollm2-135m:bf16", "h100", "") == default
    assert planned("smollm2-135m", "h100", "handoff='fenced'") != default


@pytest.mark.turns(4)
def test_the_own_checkout_and_headers_make_the_own_code(schedule: Schedule, own: bytes, checkout: Path) -> None:
    assert code(compiled(checkout, schedule)) == own
    assert code(compiled(HEADERS, schedule)) == own


@pytest.mark.turns(4)
def test_another_tree_makes_other_code(schedule: Schedule, own: bytes, checkout: Path) -> None:
    folder = checkout / "amk/lowering/cuda"
    replaced(folder / "ops/stage_norm.cuh", "fmaf(v[k], v[k], ", "fmaf(v[k], v[k], 1.0f + ")
    changed = code(compiled(folder, schedule))
    assert changed != own
    assert code(compiled(checkout, schedule)) == changed
    assert headers.read_header("amk/ops/stage_norm.cuh") == (HEADERS / "ops/stage_norm.cuh").read_text()


def test_a_kernel_with_another_argument_takes_no_part(schedule: Schedule, checkout: Path) -> None:
    tail = '    ("trace", "amk::u32*", "<u8"),\n'
    replaced(checkout / "amk/lowering/abi.py", tail, f'{tail}    ("more", "amk::u64", "<u8"),\n')
    with pytest.raises(LeftOut, match="another argument"):
        compiled(checkout, schedule)


def test_a_tree_that_cannot_make_it_takes_no_part(schedule: Schedule, checkout: Path) -> None:
    replaced(checkout / "amk/lowering/cuda/ops/stage_norm.cuh", "fmaf(", "no_such_function(")
    with pytest.raises(LeftOut, match="makes no kernel"):
        compiled(checkout, schedule)


def test_ratios_are_taken_round_by_round() -> None:
    base = [1.0, 2.0, 4.0] * 7
    assert paired([1.1 * t for t in base], base)["ratio"] == pytest.approx(1.1)
    assert paired(base, base) == dict.fromkeys(("ratio", "ratio_low", "ratio_high", "ratio_p10", "ratio_p90"), 1.0)
    assert paired([1.0], [2.0]) | {"ratio_low": 0.0, "ratio_high": float("inf")} == paired([1.0], [2.0])


def test_the_bounds_hold_in_95_of_100_races() -> None:
    generator = random.Random(3)
    hits = 0
    for _ in range(1000):
        found = paired([1.02 * generator.lognormvariate(0, 0.05) for _ in range(60)], [1.0] * 60)
        hits += found["ratio_low"] <= 1.02 <= found["ratio_high"]
    assert 935 <= hits <= 985


def test_a_race_needs_somebody_to_race() -> None:
    with pytest.raises(SystemExit):
        arguments(["smollm2-135m"])
