"""The device headers: who may synchronise, what compiles where, and the layout shared with the host."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from amk.lowering import watchdog
from amk.lowering.compile import ARCHITECTURES, compile_cuda
from amk.lowering.cubin import arch_number
from amk.report.diagnostic import AmkError

CUDA = Path(str(resources.files("amk.lowering") / "cuda"))
FORBIDDEN = re.compile(
    r"(?<!sync::)\bfence|\bmembar|\bred\.|\batom\.|ld\.acquire|ld\.relaxed|st\.release|st\.relaxed|mbarrier\.|cp\.async|"
    r"\bbar\.|\bbarrier\.|__threadfence|__syncthreads|__syncwarp|\batomic[A-Z]\w*\s*\(|cuda::atomic|__ldg|ld\.global\.nc"
)
ASM = re.compile(r"\basm\b(?P<qualifier>\s+volatile)?\s*\(\s*(?P<text>(?:\"(?:[^\"\\]|\\.)*\"\s*)+)")
ALLOWED_ELSEWHERE = re.compile(r"^\s*(?:\{\s*)?(?:mma\.|ldmatrix\.|movmatrix\.|cvt\.|prmt\.|lop3\.|fma\.)")
VOLATILE = re.compile(r"\bvolatile\b")


def code_of(header: Path) -> str:
    """The header without comments."""
    text = re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"//[^\n]*", "", text)


def violations(code: str) -> list[str]:
    """What a header other than sync.cuh contains and must not: synchronisation, or assembly of any other kind."""
    found = FORBIDDEN.findall(code)
    for statement in ASM.finditer(code):
        body = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', statement["text"]))
        if not ALLOWED_ELSEWHERE.match(body):
            found.append(body)
    without_asm = ASM.sub("", code)
    found += VOLATILE.findall(without_asm)
    found += re.findall(r"^\s*#\s*define\b.*$", code, flags=re.MULTILINE)
    return found


def headers_but_sync() -> list[Path]:
    return sorted(path for path in CUDA.rglob("*.cuh") if path.name != "sync.cuh")


@pytest.mark.parametrize("header", headers_but_sync(), ids=lambda path: path.name)
def test_only_one_header_synchronises(header: Path) -> None:
    assert violations(code_of(header)) == []


@pytest.mark.parametrize(
    "code",
    [
        'asm volatile("fence.acq_rel.gpu;" ::: "memory");',
        'asm("ld.global.b32 %0, [%1];" : "=r"(x) : "l"(p));',
        "__threadfence();",
        "atomicAdd(&counter, 1);",
        "volatile int* flag = p;",
        "cuda::atomic_ref<int> a(x);",
        "__syncthreads();",
        "#define WAIT(x) while (x) {}",
        'asm volatile("{ mma.sync; red.release.gpu.global.add.u32 [%0], 1; }" :: "l"(p));',
    ],
)
def test_the_search_finds_synchronisation(code: str) -> None:
    assert violations(code)


def test_the_search_allows_matrix_instructions() -> None:
    assert violations('asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0};" : "+f"(d));') == []


def test_sync_has_no_macros() -> None:
    assert not re.search(r"^\s*#\s*define\b", code_of(CUDA / "sync.cuh"), flags=re.MULTILINE)


EVERY_ARCH = """
#include "amk/watchdog.cuh"
using namespace amk;
using namespace amk::sync;
struct Arguments { u32* counters; u64* words; uint4* data; WatchdogLog* log; const u32* abort_word; };
extern "C" __global__ void __launch_bounds__(128, 1) base(const Arguments* a) {
  __shared__ Watchdog dog;
  __shared__ alignas(128) uint4 tile[256];
  if (threadIdx.x == 0) watchdog_start(dog, a->log, a->abort_word, 2000000000ull, blockIdx.x);
  cta_barrier<0, 128>();
  copy_16(&tile[threadIdx.x], a->data + threadIdx.x);
  copy_commit();
  copy_16(&tile[threadIdx.x + 128], a->data + threadIdx.x, policy_evict_first());
  copy_commit();
  copy_wait<0>();
  warp_barrier();
  if (threadIdx.x == 0) {
    signal_release(a->counters, 1);
    wait_counter(dog, 0, 7, a->counters, gridDim.x);
    signal_relaxed(a->counters + 1, 2);
    wait_hint(dog, 1, 8, a->counters + 1, 5);
    fence_acquire_release_gpu();
  }
  cta_barrier<0, 128>();
  store_tagged(a->words + threadIdx.x, threadIdx.x, 9);
  store_tagged_pair(a->words + 2 * threadIdx.x, 1, 2, 9);
  const u32 value = value_of(load_tagged(a->words + threadIdx.x));
  const TaggedPair pair = load_tagged_pair(a->words + 2 * threadIdx.x);
  const uint4 constant = load_constant(a->data), fresh = load_global_v4(a->data + 2);
  prefetch_l2(a->data + 9);
  const u32 first = value_of(pair.first), second = value_of(pair.second);
  a->data[threadIdx.x] = make_uint4(value + first + constant.x, fresh.z, tile[threadIdx.x ^ 3].x, second);
}
"""
BULK = """
extern "C" __global__ void __launch_bounds__(128, 1) bulk(const Arguments* a) {
  __shared__ Watchdog dog;
  __shared__ alignas(128) uint4 tile[256];
  __shared__ u64 full[1];
  let_later_kernels_start();
  wait_for_earlier_kernels();
  if (threadIdx.x == 0) {
    watchdog_start(dog, a->log, a->abort_word, 2000000000ull, blockIdx.x);
    mbarrier_init(full, 1);
    fence_mbarrier_init();
  }
  cta_barrier<0, 128>();
  if (threadIdx.x == 0) {
    fence_proxy_async_shared();
    fence_proxy_async_global();
    mbarrier_arrive_expect_tx(full, 4096);
    bulk_load(tile, a->data, 2048, full, policy_evict_first());
    bulk_load(tile + 128, a->data + 128, 2048, full);
  }
  wait_mbarrier(dog, 1, 2, full, 0);
  a->data[threadIdx.x] = tile[threadIdx.x];
}
"""


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_primitive_compiles(arch: str) -> None:
    source = EVERY_ARCH + (BULK if arch_number(arch) >= 90 else "")
    for resources_of in compile_cuda(source, arch, use_cache=False).resources.values():
        assert resources_of.spill_stores == resources_of.stack == 0
        assert resources_of.registers <= 40


def test_bulk_copies_before_sm_90_are_a_compile_error_that_says_so() -> None:
    with pytest.raises(AmkError) as raised:
        compile_cuda(EVERY_ARCH + BULK, "sm_89", use_cache=False)
    assert "bulk copies need sm_90" in raised.value.diagnostics[0].facts[0].text


LAYOUT = """
#include "amk/watchdog.cuh"
using amk::sync::BlockedRecord;
using amk::sync::WatchdogLog;
"""


def offset_of(struct: str, field: str) -> str:
    """offsetof, which NVRTC lacks, in the form that its front end accepts as a constant."""
    return f"__INTADDR__(&((({struct}*)0)->{field}))"


def test_watchdog_layout_is_the_one_the_host_decodes() -> None:
    checks = [f"sizeof(BlockedRecord) == {watchdog.RECORD.itemsize}"]
    checks += [f"{offset_of('WatchdogLog', 'records')} == {watchdog.HEADER.itemsize}"]
    for struct, dtype in (("BlockedRecord", watchdog.RECORD), ("WatchdogLog", watchdog.HEADER)):
        assert dtype.fields is not None
        checks += [f"{offset_of(struct, name)} == {field[1]}" for name, field in dtype.fields.items()]
    source = LAYOUT + "\n".join(f'static_assert({check}, "{check}");' for check in checks)
    compile_cuda(source, "sm_80", use_cache=False)
    with pytest.raises(AmkError):
        compile_cuda(source + '\nstatic_assert(sizeof(BlockedRecord) == 1, "");', "sm_80", use_cache=False)


def test_reading_a_log() -> None:
    log = watchdog.empty_log(2)
    watchdog.check_log(log)
    header = log[: watchdog.HEADER.itemsize].view(watchdog.HEADER)
    assert header["capacity"][0] == 2
    header["count"] = 3
    log[watchdog.HEADER.itemsize :].view(watchdog.RECORD)[:] = np.array(
        [(57, 2, 0, 88, 9, 8, 1, 0), (3, 1, 2, 4, 1, 0, 9, 0)], dtype=watchdog.RECORD
    )
    first, second = watchdog.read_log(log)
    assert (first.worker, first.agent, first.kind, first.object, first.threshold, first.value) == (
        57,
        2,
        "counter",
        88,
        9,
        8,
    )
    assert (second.kind, second.cause) == ("mbarrier", "unknown (9)")
    with pytest.raises(AmkError, match="AMK604") as raised:
        watchdog.check_log(log)
    assert "worker 57, agent 2 waits for counter 88 >= 9, saw 8" in raised.value.diagnostics[0].facts[0].text
