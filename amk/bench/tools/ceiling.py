"""The read ceiling of this GPU, now: how fast plain 16-byte loads stream a buffer much larger than L2.

The buffer holds random bytes, as weights do: constant ones are moved with less power. A pass has the head start of
every contestant, so that the host's time to enqueue it does not count. The kernel is not admitted: it runs no
schedule and reads a buffer of its own.
"""

from __future__ import annotations

import numpy as np
import torch

from amk.bench.tools.timing import HEAD_START, timed
from amk.lowering.compile import compile_cuda
from amk.lowering.launch import CooperativeLaunch, Device, Module

BYTES = 16 * 2**30
THREADS = 1024
REPEATS = 50
KERNEL = "amk_read_all"
ARGUMENT = np.dtype([("data", "<u8"), ("sink", "<u8"), ("vectors", "<u8")])

SOURCE = f"""struct Range {{ const uint4* data; unsigned* sink; unsigned long long vectors; }};

extern "C" __global__ void __launch_bounds__({THREADS}, 2) {KERNEL}(const __grid_constant__ Range range) {{
  const unsigned long long stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  unsigned long long i = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  unsigned mixed = 0;
  for (; i + 3 * stride < range.vectors; i += 4 * stride) {{
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = range.data[i + j * stride];
#pragma unroll
    for (int j = 0; j < 4; ++j) mixed ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }}
  for (; i < range.vectors; i += stride) mixed ^= range.data[i].x;
  if (mixed == 0x9e3779b9u) *range.sink = mixed;
}}
"""


def read_ceiling(device: Device) -> float:
    """10^9 bytes per second: the best of `REPEATS` passes over 16 GiB, or half of what is free if that is less."""
    size = min(BYTES, device.free_bytes() // 2) // 16 * 16
    data = torch.empty(size // 8, dtype=torch.int64, device="cuda").random_()
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")
    argument = np.array((data.data_ptr(), sink.data_ptr(), size // 16), ARGUMENT)
    with Module(device, compile_cuda(SOURCE, device.arch).cubin) as module:
        kernel = module.kernel(KERNEL)
        launch = CooperativeLaunch(kernel, kernel.max_active_blocks(THREADS) * device.sm_count, THREADS)
        stream = torch.cuda.current_stream()
        times = [timed(stream, lambda: launch(argument, stream.cuda_stream), HEAD_START) for _ in range(REPEATS)]
    del data
    torch.cuda.empty_cache()
    return size / min(times) / 1e6
