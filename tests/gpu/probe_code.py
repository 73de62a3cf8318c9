"""How much code an SM keeps, and of which headers the code of a kernel is.

    python -m tests.gpu.probe_code               cycles of a pass through straight code of so many KiB, on this GPU
    python -m tests.gpu.probe_code MODEL ROWS    bytes of the kernel of steps of so many rows by header, without a GPU

A pass: 8 warps of every SM execute the code once and meet; the median of the SMs, over 50 passes. Bytes need `nvdisasm`
on PATH and are those of steps without output head where there are several rows.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from amk.lowering.compile import DEFAULT_OPTIONS, compile_cuda
from amk.lowering.emit import emit
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.settings import FAST
from amk.targets.target import load_target
from tests.gpu.stalls import places

KIB = (16, 32, 64, 96, 112, 120, 128, 136, 144, 160, 192, 256)
INSTRUCTIONS = 64
"""Of a KiB."""
WARPS, PASSES = 8, 50
SOURCE = """
extern "C" __global__ void __launch_bounds__(256, 1) probe(long long* out, float* sink, float k, int passes) {
  float a = k, b = k, c = k, e = k;
  long long began = 0;
#pragma unroll 1
  for (int pass = 0; pass < passes + 2; ++pass) {
    if (pass == 2) began = clock64();
#pragma unroll
    for (int i = 0; i < COUNT / 4; ++i) {
      asm volatile("fma.rn.f32 %0,%0,%4,%4;fma.rn.f32 %1,%1,%4,%4;fma.rn.f32 %2,%2,%4,%4;fma.rn.f32 %3,%3,%4,%4;"
                   : "+f"(a), "+f"(b), "+f"(c), "+f"(e) : "f"(k));
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = (clock64() - began) / passes;
  sink[blockIdx.x * 256 + threadIdx.x] = a + b + c + e;
}
"""


def cubin(kib: int, arch: str) -> bytes:
    return compile_cuda(SOURCE.replace("COUNT", str(kib * INSTRUCTIONS)), arch).cubin


def passes() -> None:
    import torch
    from cuda.bindings import driver

    properties = torch.cuda.get_device_properties(0)
    arch, sms = f"sm_{properties.major}{properties.minor}", properties.multi_processor_count
    out = torch.zeros(sms, dtype=torch.int64, device="cuda")
    sink = torch.zeros(sms * WARPS * 32, device="cuda")
    kinds = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_int)
    for kib in KIB:
        status, module = driver.cuModuleLoadData(cubin(kib, arch))
        assert status == driver.CUresult.CUDA_SUCCESS, status
        status, probe = driver.cuModuleGetFunction(module, b"probe")
        assert status == driver.CUresult.CUDA_SUCCESS, status
        arguments = ((out.data_ptr(), sink.data_ptr(), 0.5, PASSES), kinds)
        (status,) = driver.cuLaunchKernel(probe, sms, 1, 1, WARPS * 32, 1, 1, 0, 0, arguments, 0)
        assert status == driver.CUresult.CUDA_SUCCESS, status
        torch.cuda.synchronize()
        cycles = int(out.median())
        print(f"{kib:4} KiB {cycles:7} cycles a pass, {cycles / kib:.1f} a KiB", flush=True)


def headers(name: str, rows: int) -> Counter[str]:
    """Bytes of the kernel by the header that they are of."""
    settings = replace(FAST, rows=rows, headless=rows > 1)
    schedule = plan(load_model(name), load_target("h200"), settings=settings, max_context=2560)
    code = compile_cuda(emit(schedule), schedule.target.arch, options=(*DEFAULT_OPTIONS, "--generate-line-info"))
    with TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(code.cubin)
        return Counter({header: 16 * count for header, count in Counter(places(file)).items()})


if __name__ == "__main__":
    if len(sys.argv) < 3:
        passes()
    else:
        for header, count in (found := headers(sys.argv[1], int(sys.argv[2]))).most_common():
            print(f"{count:8,} {header}")
        print(f"{found.total():8,} all")
