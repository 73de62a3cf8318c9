"""Cooperative launches on a real GPU: a grid barrier, tagged words, bulk copies, graphs, timing, and the watchdog."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from amk.lowering import watchdog
from amk.lowering.compile import compile_cuda
from amk.lowering.cubin import arch_number
from amk.lowering.device_memory import DeviceBuffer, MappedBuffer
from amk.lowering.launch import CooperativeLaunch, Device, Kernel, Module
from amk.lowering.stream import Event, Graph, Stream
from amk.report.diagnostic import AmkError

pytestmark = pytest.mark.gpu

THREADS = 128
DYNAMIC_BYTES = 64 * 1024
LOG_RECORDS = 64
GLOBALS = ("counter", "base", "data", "wrong", "words", "log", "abort_word", "stall_ns", "rounds", "excess")

PROLOGUE = """
#include "amk/watchdog.cuh"
using namespace amk;
using namespace amk::sync;
struct Globals {
  u32* counter; u32* base; uint4* data; u32* wrong; u64* words; WatchdogLog* log; const u32* abort_word;
  u64 stall_ns; u64 rounds; u64 excess;
};
static_assert(sizeof(Globals) == 80, "packed as ten 8-byte words by the test");
extern __shared__ uint4 scratch[];
"""

# Every block publishes 16 bytes, meets all others, and checks its right neighbour's: `rounds` times. The epoch base is
# device state that the kernel advances, so that a replay continues where the last launch ended; two rounds at least,
# because only a block's second signal says that all its threads have read the base.
BARRIER = (
    PROLOGUE
    + """
extern "C" __global__ void __launch_bounds__(128, 1) grid_barrier(const Globals* g) {
  __shared__ Watchdog dog;
  if (threadIdx.x == 0) watchdog_start(dog, g->log, g->abort_word, g->stall_ns, blockIdx.x);
  scratch[threadIdx.x * 16] = make_uint4(1, 2, 3, 4);
  cta_barrier<0, 128>();
  const u32 base = *g->base, rounds = static_cast<u32>(g->rounds), right = (blockIdx.x + 1) % gridDim.x;
  u32 wrong = 0;
  for (u32 round = 1; round <= rounds; ++round) {
    uint4* row = g->data + (round % 2) * gridDim.x;
    if (threadIdx.x == 0) {
      const u32 value = base + round;
      row[blockIdx.x] = make_uint4(value, value + blockIdx.x, value ^ blockIdx.x, ~value);
      signal_release(g->counter, 1);
      wait_counter(dog, 0, 7, g->counter, base + round * gridDim.x + static_cast<u32>(g->excess));
    }
    cta_barrier<0, 128>();
    const uint4 seen = load_global_v4(row + right);
    const u32 value = base + round;
    wrong += seen.x != value || seen.y != value + right || seen.z != (value ^ right) || seen.w != ~value;
    cta_barrier<0, 128>();
  }
  if (threadIdx.x == 37) g->wrong[blockIdx.x] = wrong;
  if (threadIdx.x == 0 && blockIdx.x == 0 && rounds > 1) *g->base = base + rounds * gridDim.x;
}
"""
)

# A token travels `rounds` times around the blocks as tagged words: no fence anywhere.
RELAY = (
    PROLOGUE
    + """
// Both values of a tagged pair once both tags are `tag`.
__device__ __forceinline__ uint2 wait_tagged_pair(Watchdog& dog, u32 agent, u32 object, const u64* words, u32 tag) {
  Stall<Blocked::tagged_word> stall;
#pragma unroll 1
  while (true) {
    const TaggedPair read = load_tagged_pair(words);
    const u32 odd = tag_of(read.first) != tag ? tag_of(read.first) : tag_of(read.second);
    if (odd == tag || stall.gives_up(dog, agent, object, tag, odd)) {
      return make_uint2(value_of(read.first), value_of(read.second));
    }
  }
}

extern "C" __global__ void __launch_bounds__(128, 1) relay(const Globals* g) {
  __shared__ Watchdog dog;
  if (threadIdx.x == 0) watchdog_start(dog, g->log, g->abort_word, g->stall_ns, blockIdx.x);
  cta_barrier<0, 128>();
  if (threadIdx.x != 0) return;
  const u32 left = (blockIdx.x + gridDim.x - 1) % gridDim.x;
  for (u32 round = 1; round <= g->rounds; ++round) {
    uint2 token = make_uint2(0, 0);
    if (blockIdx.x == 0) {
      if (round > 1) token = wait_tagged_pair(dog, 1, 9, g->words + 2 * left, round - 1);
    } else {
      token = wait_tagged_pair(dog, 1, 9, g->words + 2 * left, round);
    }
    store_tagged_pair(g->words + 2 * blockIdx.x, token.x + 1, token.y + blockIdx.x, round);
  }
}
"""
)

# One warp refills a ring of four slots with bulk copies and adds up what it reads.
RING = (
    PROLOGUE
    + """
extern "C" __global__ void __launch_bounds__(128, 1) ring(const Globals* g) {
  __shared__ Watchdog dog;
  __shared__ u64 full[4];
  if (threadIdx.x == 0) {
    watchdog_start(dog, g->log, g->abort_word, g->stall_ns, blockIdx.x);
    for (int slot = 0; slot < 4; ++slot) mbarrier_init(full + slot, 1);
    fence_mbarrier_init();
  }
  cta_barrier<0, 128>();
  if (threadIdx.x >= 32) return;
  const u32 chunks = static_cast<u32>(g->rounds), promised = chunks - static_cast<u32>(g->excess);
  const uint4* source = g->data + blockIdx.x * chunks * 32;
  const u64 policy = policy_evict_first();
  if (threadIdx.x == 0) {
    for (u32 chunk = 0; chunk < 4 && chunk < promised; ++chunk) {
      mbarrier_arrive_expect_tx(full + chunk, 512);
      bulk_load(scratch + chunk * 32, source + chunk * 32, 512, full + chunk, policy);
    }
  }
  u32 sum = 0;
  for (u32 chunk = 0; chunk < chunks; ++chunk) {
    const u32 slot = chunk % 4;
    wait_mbarrier(dog, 2, slot, full + slot, chunk / 4 % 2);
    const uint4 row = scratch[slot * 32 + threadIdx.x];
    sum += row.x + row.y + row.z + row.w;
    warp_barrier();
    if (threadIdx.x == 0 && chunk + 4 < promised) {
      fence_proxy_async_shared();
      mbarrier_arrive_expect_tx(full + slot, 512);
      bulk_load(scratch + slot * 32, source + (chunk + 4) * 32, 512, full + slot, policy);
    }
  }
  g->wrong[blockIdx.x * 32 + threadIdx.x] = sum;
}
"""
)


@dataclass
class Bench:
    """Everything a test kernel touches, and the block of globals that says where it is."""

    device: Device
    stream: Stream
    buffers: dict[str, DeviceBuffer]
    abort: MappedBuffer
    globals: DeviceBuffer

    def launch(self, kernel: Kernel, grid: int) -> None:
        CooperativeLaunch(kernel, grid, THREADS)(np.array([self.globals.address], np.uint64), self.stream.handle)

    def read(self, name: str, dtype: str, count: int) -> NDArray[np.generic]:
        return self.buffers[name].download(dtype, count)

    def log(self) -> NDArray[np.uint8]:
        return self.buffers["log"].download(np.uint8, self.buffers["log"].nbytes)


@contextmanager
def bench(
    device: Device, data: NDArray[np.uint32], *, rounds: int, excess: int = 0, stall_ms: int = 2000
) -> Iterator[Bench]:
    """Zeroed memory for up to 1,024 blocks, and `data`."""
    arrays = {
        "counter": np.zeros(32, np.uint32),
        "base": np.zeros(32, np.uint32),
        "data": data,
        "wrong": np.full(32 * 1024, 0xFFFFFFFF, np.uint32),
        "words": np.zeros(2 * 1024, np.uint64),
        "log": watchdog.empty_log(LOG_RECORDS),
    }
    buffers = {name: DeviceBuffer.of(device, array) for name, array in arrays.items()}
    with Stream(device) as stream, MappedBuffer(device, 1) as abort:
        scalars = {"abort_word": abort.address, "stall_ns": stall_ms * 1_000_000, "rounds": rounds, "excess": excess}
        addresses = {name: buffer.address for name, buffer in buffers.items()}
        block = np.array([{**addresses, **scalars}[name] for name in GLOBALS], dtype=np.uint64)
        with DeviceBuffer.of(device, block) as globals_block:
            yield Bench(device, stream, buffers, abort, globals_block)
    for buffer in buffers.values():
        buffer.free()


@contextmanager
def loaded(device: Device, source: str, name: str, dynamic: int = DYNAMIC_BYTES) -> Iterator[Kernel]:
    """The kernel as a cubin for this device; what the driver loaded is what was checked."""
    compiled = compile_cuda(source, device.arch)
    with Module(device, compiled.cubin) as module:
        kernel = module.kernel(name, dynamic)
        assert kernel.matches(compiled.resources[name]), (kernel.registers, kernel.static_smem, compiled.resources)
        yield kernel


def rows(blocks: int) -> NDArray[np.uint32]:
    return np.zeros(2 * blocks * 4, np.uint32)


def test_grid_barrier_directly_and_replayed(device: Device) -> None:
    grid, rounds = device.sm_count, 1000
    with loaded(device, BARRIER, "grid_barrier") as kernel, bench(device, rows(grid), rounds=rounds) as b:
        with Event(device) as start, Event(device) as end:
            start.record(b.stream)
            b.launch(kernel, grid)
            end.record(b.stream)
            end.synchronise()
            milliseconds = end.milliseconds_since(start)
        assert not b.read("wrong", "<u4", grid).any()
        assert 0.1 < milliseconds < 100, "a thousand grid barriers take about a microsecond each"
        launch = CooperativeLaunch(kernel, grid, THREADS)
        with Graph(b.stream, lambda handle: launch(np.array([b.globals.address], np.uint64), handle)) as graph:
            for _ in range(5):
                graph.replay(b.stream)
            b.stream.synchronise()
        assert b.stream.is_done()
        assert not b.read("wrong", "<u4", grid).any()
        assert b.read("counter", "<u4", 1)[0] == 6 * rounds * grid
        assert b.read("base", "<u4", 1)[0] == 6 * rounds * grid
        watchdog.check_log(b.log())


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89"])
def test_code_of_another_target_compiled_by_the_driver(device: Device, arch: str) -> None:
    compiled = compile_cuda(BARRIER, arch)
    with Module(device, compiled.ptx) as module, bench(device, rows(40), rounds=50) as b:
        b.launch(module.kernel("grid_barrier", 48 * 1024), 40)
        b.stream.synchronise()
        assert not b.read("wrong", "<u4", 40).any()


def test_ptx_that_does_not_assemble_carries_the_log(device: Device) -> None:
    with pytest.raises(AmkError, match="AMK603: cuModuleLoadDataEx") as raised:
        Module(device, ".version 9.0\n.target sm_80\n.address_size 64\n.visible .entry k() { nonsense; }\n")
    assert raised.value.diagnostics[0].facts


def test_tagged_words_travel_without_fences(device: Device) -> None:
    grid, rounds = device.sm_count, 100
    with loaded(device, RELAY, "relay") as kernel, bench(device, rows(1), rounds=rounds) as b:
        b.launch(kernel, grid)
        b.stream.synchronise()
        watchdog.check_log(b.log())
        words = b.read("words", "<u8", 2 * grid).reshape(grid, 2)
        assert (words >> np.uint64(32) == rounds).all()
        values = words & np.uint64(0xFFFFFFFF)
        assert values[-1].tolist() == [rounds * grid, rounds * grid * (grid - 1) // 2]


def test_ring_of_bulk_copies(device: Device) -> None:
    if arch_number(device.arch) < 90:
        pytest.skip("bulk copies need sm_90")
    grid, chunks = device.sm_count, 37
    data = np.random.default_rng(1).integers(0, 2**32, grid * chunks * 128, dtype=np.uint32)
    with loaded(device, RING, "ring") as kernel, bench(device, data, rounds=chunks) as b:
        b.launch(kernel, grid)
        b.stream.synchronise()
        watchdog.check_log(b.log())
        expected = data.reshape(grid, chunks, 32, 4).sum(axis=(1, 3), dtype=np.uint32)
        assert (b.read("wrong", "<u4", grid * 32).reshape(grid, 32) == expected).all()


def test_watchdog_ends_a_stalled_kernel_and_names_the_wait(device: Device) -> None:
    grid = device.sm_count
    with (
        loaded(device, BARRIER, "grid_barrier") as kernel,
        bench(device, rows(grid), rounds=10, excess=10_000, stall_ms=50) as b,
    ):
        b.launch(kernel, grid)
        b.stream.synchronise()
        first = watchdog.read_log(b.log())[0]
        assert (first.agent, first.kind, first.object, first.threshold) == (0, "counter", 7, grid + 10_000)
        assert first.value == grid
        assert first.cause == "stalled"
        with pytest.raises(AmkError, match="AMK604"):
            watchdog.check_log(b.log())


def test_watchdog_names_a_copy_that_never_comes(device: Device) -> None:
    if arch_number(device.arch) < 90:
        pytest.skip("bulk copies need sm_90")
    data = np.zeros(8 * 128, np.uint32)
    with loaded(device, RING, "ring") as kernel, bench(device, data, rounds=8, excess=2, stall_ms=50) as b:
        b.launch(kernel, 1)
        b.stream.synchronise()
        first = watchdog.read_log(b.log())[0]
        assert (first.worker, first.agent, first.kind, first.object, first.threshold) == (0, 2, "mbarrier", 2, 1)


def test_host_stops_a_running_kernel(device: Device) -> None:
    grid = device.sm_count
    with (
        loaded(device, BARRIER, "grid_barrier") as kernel,
        bench(device, rows(grid), rounds=3, excess=10_000, stall_ms=60_000) as b,
    ):
        b.launch(kernel, grid)
        time.sleep(0.1)
        assert not b.stream.is_done()
        b.abort.words[0] = 1
        b.stream.synchronise()
        causes = {wait.cause for wait in watchdog.read_log(b.log())}
        assert "aborted by the host" in causes
        assert "stalled" not in causes


def test_a_grid_that_is_not_resident_is_refused(device: Device) -> None:
    with loaded(device, BARRIER, "grid_barrier") as kernel:
        resident = kernel.max_active_blocks(THREADS) * device.sm_count
        CooperativeLaunch(kernel, resident, THREADS)
        with pytest.raises(AmkError, match="AMK402"):
            CooperativeLaunch(kernel, resident + 1, THREADS)


def test_shared_memory_up_to_the_limit(device: Device) -> None:
    compiled = compile_cuda(BARRIER, device.arch)
    limit = device.shared_bytes_per_block - compiled.resources["grid_barrier"].static_smem
    with Module(device, compiled.cubin) as module:
        assert module.kernel("grid_barrier", limit // 16 * 16).max_active_blocks(THREADS) == 1
        with pytest.raises(AmkError, match="AMK401"):
            module.kernel("grid_barrier", limit + 16)
