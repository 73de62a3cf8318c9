"""A kind of code is two files: with them alone amk quantises, plans, proves, compiles and runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="the emulator is compiled")

ROOT = Path(__file__).parents[2]
CODE = '''"""offset8: eight bits, 128 being 0; value = (code - 128) * scale."""

from typing import Any

from amk.weights.codes import Array, Code


def encode(values: Array, zero: Any, xp: Any) -> Array:
    return xp.asarray(xp.clip(xp.round(values) + zero, 1, 255), dtype=xp.uint8)


def decode(codes: Array, zero: Any, xp: Any) -> Array:
    return xp.asarray(codes, dtype=xp.float32) - zero


CODE = Code(
    bits=8, formats=("offset8", "offset8-g64"), staged="digits", largest=127.0, middle=128, encode=encode, decode=decode
)
'''
HEADER = """// offset8: int8 with its top bit flipped.
#pragma once
#include "amk/codes/int8.cuh"

namespace amk {

template <int kGroupColumns = 0, bool kStoredZeros = false>
struct Offset8 : Int8<kGroupColumns, kStoredZeros> {
  using Signed = Int8<kGroupColumns, kStoredZeros>;
  static constexpr int kMiddle = 128;
  static __device__ __forceinline__ uint4 flipped(const uint4& v) {
    return make_uint4(v.x ^ 0x80808080u, v.y ^ 0x80808080u, v.z ^ 0x80808080u, v.w ^ 0x80808080u);
  }
  static __device__ __forceinline__ float sum(const uint4& v, int block, const uint2& x) {
    return Signed::sum(flipped(v), block, x);
  }
  static __device__ __forceinline__ void pairs(const uint4& v, int block, u32 zero, u32 (&out)[8]) {
    Signed::pairs(flipped(v), block, zero, out);
  }
};

}  // namespace amk
"""
FILES = {"weights/codes/offset8.py": CODE, "lowering/cuda/codes/offset8.cuh": HEADER}


def with_files(package: Path, copy: Path, files: dict[str, str]) -> None:
    """A package of links to another, with files beside them."""
    copy.mkdir()
    here = {name: text for name, text in files.items() if "/" not in name}
    below = {name.partition("/")[0] for name in files} - here.keys()
    for each in package.iterdir():
        if each.name in below:
            inner = {name.partition("/")[2]: text for name, text in files.items() if name.startswith(f"{each.name}/")}
            with_files(each, copy / each.name, inner)
        elif each.name != "__pycache__":
            (copy / each.name).symlink_to(each)
    for name, text in here.items():
        (copy / name).write_text(text)


@pytest.mark.turns(8)
def test_two_files_are_a_kind_of_code(tmp_path: Path) -> None:
    with_files(ROOT / "amk", tmp_path / "amk", FILES)
    for beside in ("models", "adversarial"):
        (tmp_path / beside).symlink_to(ROOT / beside)
    paths = {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT))), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    finished = subprocess.run(
        [sys.executable, "-m", "tests.weights.new_code", "offset8-g64"],
        cwd=tmp_path, env=os.environ | paths, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert finished.stdout == "done\n", finished.stdout + finished.stderr
