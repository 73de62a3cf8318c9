"""The staging of a product's input, lane by lane: the device code compiled for the host, a thread a lane.

What it leaves in shared memory is block_point.py's: digits or halves, scales, sums, bf16 beside them, and nothing else.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from amk.weights.bfloat import F32, from_bf16_bits, to_bf16_bits
from amk.weights.block_point import BLOCK, block_scales, whole_blocks

HERE = Path(__file__).parent / "host_warp"
HEADERS = ("ablation", "context", "row_at", "cells", "fetches", "vector_layouts", "staged")
UNTOUCHED = 0x5A
SHAPES = ((14336, 8, 16), (4096, 12, 4), (896, 8, 16), (4864, 14, 2), (28672, 12, 8), (100, 3, 16))
"""(elements, agents, blocks of a run): equal shares, shares a block apart, two rounds, an agent without a block, a
block cut short; runs of a share, of part of it, and longer than it."""

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


@dataclass(frozen=True)
class Left:
    """x as bytes [blocks, 128], the bf16 beside it, scales and sums [blocks], all with room behind."""

    x: NDArray[np.uint8]
    also: NDArray[np.uint16]
    scales: NDArray[np.uint32]
    sums: NDArray[np.uint32]


@dataclass(frozen=True)
class Program:
    """Elements, agents and blocks of a run, and the command that stages so many."""

    count: int
    agents: int
    run: int
    command: tuple[str, str]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """staging.cpp with every shape, each in a namespace: what costs is the headers, which are read once."""
    folder = tmp_path_factory.mktemp("staging")
    shutil.copytree(HERE, folder, dirs_exist_ok=True)
    cuda = HERE.parents[2] / "amk" / "lowering" / "cuda"
    for name in HEADERS:
        shutil.copy(cuda / f"{name}.cuh", folder / "amk")
    lines = ["#include <cstdio>", "#include <cstdlib>", "#include <mutex>", "#include <string>"]
    lines += ['#include "amk/staged.cuh"', "#define main staged"]
    for number, (count, agents, run) in enumerate(SHAPES):
        lines += [f"#define COUNT {count}", f"#define AGENTS {agents}", f"#define RUN {run}"]
        lines += [f"namespace shape_{number} {{", '#include "staging.cpp"', "}"]
        lines += ["#undef COUNT", "#undef AGENTS", "#undef RUN"]
    lines += ["#undef main", "int main(int count, char** words) {", "  switch (atoi(words[1])) {"]
    lines += [
        f"    case {number}: return shape_{number}::staged(count - 1, words + 1);" for number in range(len(SHAPES))
    ]
    (folder / "shapes.cpp").write_text("\n".join([*lines, "  }", "  return 1;", "}", ""]))
    command = ["g++", "-std=c++20", "-O0", "-w", "-pthread", "-I", folder, folder / "shapes.cpp"]
    subprocess.run([*command, "-o", folder / "staging"], check=True, timeout=120)
    return folder / "staging"


@pytest.fixture(params=range(len(SHAPES)), ids=lambda number: "{}-by-{}".format(*SHAPES[number][:2]))
def staging(request: pytest.FixtureRequest, program: Path) -> Program:
    return Program(*SHAPES[request.param], (str(program), str(request.param)))


def run(program: Program, layout: str, source: str, values: F32, blocks_of_run: int = 1) -> Left:
    command = [*program.command, layout, source, str(blocks_of_run)]
    out = subprocess.run(command, input=values.tobytes(), capture_output=True, check=True, timeout=120).stdout
    blocks = whole_blocks(values.size) + 4
    x, also, rest = np.split(np.frombuffer(out, np.uint8), [blocks * 128, blocks * 256])
    scales, sums = np.split(rest.view(np.uint32), 2)
    return Left(x.reshape(blocks, 128), also.view(np.uint16), scales, sums)


def drawn(count: int, seed: int) -> F32:
    """Heavy tails of many magnitudes; blocks of zeros, of subnormals, of numbers near a power of two, not finite."""
    draw = np.random.default_rng(seed)
    x = (draw.standard_t(2, count) * 2.0 ** draw.integers(-20, 20, count)).astype(np.float32)
    x[:BLOCK] = 0
    for block, values in enumerate((np.arange(8) * 1e-41, [0.9921875, 1.0, 1.984375], [1.0, np.inf], [np.nan, 2.0]), 2):
        here = slice(block * BLOCK, (block + 1) * BLOCK)
        x[here] = np.resize(np.asarray(values, np.float32), x[here].shape)
    return x


def places(count: int) -> NDArray[np.int64]:
    """x_place: where element i stands in bf16."""
    i = np.arange(count)
    return i + np.choose(i // 2 % 4, [0, 2, -2, 0])


def scales_of(staging: Program, padded: F32, run: int) -> F32:
    """The scales of every agent's share, of runs from its first block on."""
    ends = [whole_blocks(staging.count) * agent // staging.agents * BLOCK for agent in range(staging.agents + 1)]
    return np.concatenate([block_scales(padded[a:b], run) for a, b in pairwise(ends) if a < b])


@pytest.mark.turns(12)
@pytest.mark.parametrize("of_runs", [False, True], ids=["blocks", "runs"])
@pytest.mark.parametrize("source", ["tagged-bf16", "tagged-f32", "plain"])
@pytest.mark.parametrize("layout", ["digits", "halves"])
def test_blocks_are_those_of_the_interpreter(staging: Program, layout: str, source: str, of_runs: bool) -> None:
    count, run_of = staging.count, staging.run if of_runs else 1
    x = drawn(count, 3)
    left = run(staging, layout, source, x, run_of)
    stored = from_bf16_bits(to_bf16_bits(x)) if source == "tagged-bf16" else x
    blocks = whole_blocks(count)
    padded = np.zeros(blocks * BLOCK, np.float32)
    padded[:count] = stored
    scales = scales_of(staging, padded, run_of)
    finite = np.isfinite(scales)
    np.testing.assert_array_equal(left.scales[:blocks].view(np.float32), scales)
    with np.errstate(invalid="ignore"):
        units = (padded.reshape(-1, BLOCK).astype(np.float64) / scales[:, None])[finite]
    if layout == "digits":
        numbers = np.rint(units).astype(np.int64)
        high = numbers + 128 >> 8
        expected = np.concatenate([numbers - 256 * high, high], axis=1).astype(np.int8).view(np.uint8)
        sums = numbers.sum(axis=1) * scales[finite].astype(np.float64)
        np.testing.assert_array_equal(left.sums[:blocks].view(np.float32)[finite], sums.astype(np.float32))
        assert np.isnan(left.sums[:blocks].view(np.float32)[~finite]).all()
    else:
        expected = units.astype(np.float32).astype(np.float16).view(np.uint8)
        assert (left.sums.view(np.uint8) == UNTOUCHED).all()
    np.testing.assert_array_equal(left.x[:blocks][finite], expected)
    beside, numbers_of = left.also[places(count)], ~np.isnan(stored)
    np.testing.assert_array_equal(beside[numbers_of], to_bf16_bits(stored)[numbers_of])
    for behind in (left.x[blocks:], left.scales[blocks:].view(np.uint8), left.sums[blocks:].view(np.uint8)):
        assert (behind == UNTOUCHED).all()


@pytest.mark.turns(12)
@pytest.mark.parametrize(("layout", "of_runs"), [("digits", False), ("digits", True), ("bare", False)])
def test_half_a_share_is_used_before_the_words_of_the_other_are_there(
    staging: Program, layout: str, of_runs: bool
) -> None:
    """The program aborts unless that is so, and unless nothing is used early where warps have not met ("bare")."""
    count = staging.count
    if (count, staging.agents) != SHAPES[0][:2]:
        pytest.skip("shares of few fetches, or of several rounds, are used as a whole")
    x = drawn(count, 5)
    run_of = staging.run if of_runs else 1
    left, expected = run(staging, layout, "late", x, run_of), run(staging, "digits", "tagged-bf16", x, run_of)
    for name in ("x", "also", "scales", "sums"):
        np.testing.assert_array_equal(getattr(left, name), getattr(expected, name))


def test_bf16_is_copied_to_its_place(staging: Program) -> None:
    count = staging.count
    if count % (4 * staging.agents):
        pytest.skip("bf16 is shared in whole fetches")
    x = drawn(count, 4)
    left = run(staging, "bf16", "tagged-bf16", x)
    bits, numbers = left.x.reshape(-1).view(np.uint16), ~np.isnan(x)
    np.testing.assert_array_equal(bits[places(count)][numbers], to_bf16_bits(x)[numbers])
    assert (left.x.reshape(-1)[2 * count :] == UNTOUCHED).all() and (left.scales.view(np.uint8) == UNTOUCHED).all()
