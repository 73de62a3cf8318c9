"""Compilation without a GPU: both outputs, determinism, resources, cache, refusals."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from amk.lowering import cache, headers
from amk.lowering import compile as compile_module
from amk.lowering.compile import ARCHITECTURES, Compiled, compile_cuda, compiler_build, cuda_include_directories
from amk.lowering.cubin import Budget, Resources, arch_number, check_budget, parse_ptxas_log
from amk.report.diagnostic import AmkError, Exit

SHARED = """
extern "C" __global__ void __launch_bounds__(256, 1) swap(float* out) {
  __shared__ float tile[640];
  tile[threadIdx.x] = out[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x ^ 5];
}
"""
SPILLING = """
__device__ __noinline__ float depth(float x, int n) { return n ? depth(x * 1.5f, n - 1) + x : x; }
extern "C" __global__ void deep(float* out) { out[0] = depth(out[0], (int)out[1]); }
template <int N> __global__ void plain(float* out) { out[N] = N; }
"""
HEADERS = """
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda/std/array>
extern "C" __global__ void convert(float* out, const __nv_bfloat16* in) {
  cuda::std::array<float, 2> pair{__bfloat162float(in[0]), float(__nv_fp8_e4m3(1.5f))};
  out[threadIdx.x] = pair[threadIdx.x & 1];
}
"""


def compile_fresh(source: str, arch: str, **extra: tuple[str, ...]) -> Compiled:
    return compile_cuda(source, arch, use_cache=False, name_expressions=extra.get("name_expressions", ()))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture_gives_cubin_and_ptx(arch: str) -> None:
    compiled = compile_fresh(SHARED, arch)
    assert compiled.cubin.startswith(b"\x7fELF")
    assert f".target {arch}" in compiled.ptx
    assert compiled.resources["swap"].static_smem == 640 * 4
    assert compiled.resources["swap"].max_threads == 256
    assert 0 < compiled.resources["swap"].registers <= 32


@pytest.mark.turns(12)
def test_same_source_gives_same_bytes_without_host_paths() -> None:
    first, second = compile_fresh(HEADERS, "sm_90a"), compile_fresh(HEADERS, "sm_90a")
    assert first == second
    assert "Compile time" not in first.log
    for directory in cuda_include_directories():
        assert directory.encode() not in first.cubin
        assert directory not in first.ptx


def test_spills_of_called_functions_count() -> None:
    compiled = compile_fresh(SPILLING, "sm_90a", name_expressions=("plain<3>",))
    assert compiled.resources["deep"].spill_stores > 0
    assert compiled.resources[compiled.lowered_names["plain<3>"]].spill_stores == 0


def test_log_without_resources_is_refused() -> None:
    with pytest.raises(AmkError, match="AMK901"):
        parse_ptxas_log("ptxas info    : Compiling entry function 'k' for 'sm_80'\n")


def test_source_that_does_not_compile_carries_the_log() -> None:
    with pytest.raises(AmkError, match="AMK901") as raised:
        compile_fresh('extern "C" __global__ void k() { int x = ; }', "sm_80")
    assert raised.value.exit_code is Exit.INTERNAL
    assert "expected an expression" in raised.value.diagnostics[0].facts[0].text


def test_missing_header_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_module, "_header_directories", lambda: {"cudart": "/nowhere", "cccl": None})
    with pytest.raises(AmkError, match="AMK605") as raised:
        compile_fresh(HEADERS, "sm_80")
    assert raised.value.exit_code is Exit.INPUT
    assert raised.value.diagnostics[0].help == "pip install nvidia-cuda-cccl==13.0.*"
    assert compile_fresh(SHARED, "sm_80").resources


def test_a_missing_compiler_is_told_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bindings say where they looked on further lines, none or many."""

    def missing(_: str) -> Any:
        raise RuntimeError('Failure finding "libnvrtc.so.13": No such file\n  listdir("/nowhere")\n')

    monkeypatch.setattr(compile_module.importlib, "import_module", missing)
    with pytest.raises(AmkError, match="AMK605") as raised:
        compile_module._nvrtc.__wrapped__()
    (diagnostic,) = raised.value.diagnostics
    assert diagnostic.message == 'NVRTC cannot be loaded: Failure finding "libnvrtc.so.13": No such file'


@pytest.mark.parametrize("arch", ["sm_70", "90a", "", "sm_90a --x"])
def test_unknown_architecture(arch: str) -> None:
    with pytest.raises(AmkError, match="AMK601"):
        compile_fresh(SHARED, arch)


def test_arch_number() -> None:
    assert arch_number("sm_120a") == 120
    with pytest.raises(AmkError):
        arch_number("compute_90")


@pytest.mark.parametrize("name", ["amk/../compile.py", "amk/absent.cuh", "amk/ops//x.cuh"])
def test_header_names_are_not_paths(name: str) -> None:
    with pytest.raises(AmkError, match="AMK901"):
        headers.closure(f'#include "{name}"\n')


def test_cache_returns_the_same_and_survives_corruption(tmp_path: Path) -> None:
    first = compile_cuda(SHARED, "sm_80", cache_directory=tmp_path)
    (entry,) = tmp_path.iterdir()
    written = entry.stat().st_mtime_ns
    assert compile_cuda(SHARED, "sm_80", cache_directory=tmp_path) == first
    assert entry.stat().st_mtime_ns == written
    record = json.loads(entry.read_text())
    surrogate = json.dumps(record | {"seal": "\ud800" * 64})
    record["content"]["ptx"] = "tampered"
    deep = "[" * 100_000
    for bad in (
        json.dumps(record),
        "{",
        "[]",
        '{"schema": 1}',
        "\0",
        surrogate,
        json.dumps(record | {"seal": "\u00e9"}),
        deep,
    ):
        entry.write_text(bad)
        assert cache.load(tmp_path, entry.stem) is None
        assert compile_cuda(SHARED, "sm_80", cache_directory=tmp_path) == first
    entry.unlink()
    os.mkfifo(entry)  # whoever reads it waits
    assert compile_cuda(SHARED, "sm_80", cache_directory=tmp_path) == first
    assert [path.name for path in tmp_path.iterdir()] == [entry.name]


def test_cache_directory_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert compile_cuda(SHARED, "sm_80", cache_directory=blocked / "below").resources


def test_cache_key_depends_on_every_input(tmp_path: Path) -> None:
    compile_cuda(SHARED, "sm_80", cache_directory=tmp_path)
    compile_cuda(SHARED + "\n", "sm_80", cache_directory=tmp_path)
    compile_cuda(SHARED, "sm_86", cache_directory=tmp_path)
    compile_cuda(SHARED, "sm_80", cache_directory=tmp_path, options=("--std=c++17", "--ptxas-options=-v"))
    assert len(list(tmp_path.iterdir())) == 4
    assert cache.cache_key(["ab", "c"]) != cache.cache_key(["a", "bc"])
    assert "V13." in compiler_build()


USED = Resources(registers=128, spill_stores=0, spill_loads=0, stack=0, static_smem=1000, max_threads=512)


def test_a_budget_fits_from_exactly_what_is_used_on() -> None:
    def fits(**change: int) -> bool:
        limits = {"threads": 512, "registers": 128, "shared_bytes": 100_000} | change
        try:
            check_budget("k", USED, 99_000, Budget(**limits))
        except AmkError:
            return False
        return True

    assert [n for n in range(126, 131) if fits(registers=n)] == [128, 129, 130]
    assert [n for n in range(99_998, 100_003) if fits(shared_bytes=n)] == [100_000, 100_001, 100_002]
    assert [n for n in range(510, 515) if fits(threads=n)] == [510, 511, 512]


@pytest.mark.parametrize(
    ("budget", "code"),
    [
        (Budget(threads=512, registers=127, shared_bytes=100_000), "AMK403"),
        (Budget(threads=513, registers=128, shared_bytes=100_000), "AMK403"),
        (Budget(threads=512, registers=128, shared_bytes=99_999), "AMK401"),
    ],
)
def test_budget_that_is_exceeded(budget: Budget, code: str) -> None:
    with pytest.raises(AmkError) as raised:
        check_budget("k", USED, 99_000, budget)
    assert raised.value.diagnostics[0].code == code
    assert raised.value.exit_code is Exit.UNSAFE


def test_budget_refuses_spills() -> None:
    spilling = Resources(registers=32, spill_stores=4, spill_loads=4, stack=8, static_smem=0, max_threads=0)
    with pytest.raises(AmkError, match="8 bytes of register spills"):
        check_budget("k", spilling, 0, Budget(threads=32, registers=255, shared_bytes=0))
