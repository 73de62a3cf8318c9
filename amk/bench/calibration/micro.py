"""The simulator's constants measured on this GPU, one small kernel each (micro.cu).

The kernels are not admitted: they run no schedule and touch only tensors that were made for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from amk.bench.calibration.sm_rates import SmRates, of_counts
from amk.bench.tools.ceiling import read_ceiling
from amk.bench.tools.timing import timed
from amk.lowering.compile import compile_cuda
from amk.lowering.launch import CooperativeLaunch, Device, Module
from amk.simulator.constants import Constants

PROBE = np.dtype([("data", "<u8"), ("words", "<u8"), ("out", "<u8"), ("vectors", "<u8"), ("repeats", "<u8")])
FEW, MANY = 2_000, 22_000
ROUNDS = 7
COLD_BYTES = 1 << 30
NEAR_BYTES = 2 << 20
SHARE_BYTES = 24 << 20
SHARE_NS, SHARE_ROUNDS = 4_000_000, 16
LOADED_KIB = 32
"""What `amk_probe_loaded` keeps in flight in every block."""
FASTER = 0.93
"""An SM whose equal share took less than this part of the median is in a smaller group."""


@dataclass
class Bench:
    """Buffers and the loaded module."""

    device: Device
    module: Module
    data: torch.Tensor
    words: torch.Tensor
    out: torch.Tensor

    def ms(self, kernel: str, grid: int, block: int, repeats: int, vectors: int) -> float:
        """The fastest of ROUNDS launches."""
        argument = np.array(
            (self.data.data_ptr(), self.words.data_ptr(), self.out.data_ptr(), vectors, repeats), PROBE
        )  # fmt: skip
        launch = CooperativeLaunch(self.module.kernel(kernel), grid, block)
        stream = torch.cuda.current_stream()
        times = []
        for _ in range(ROUNDS):
            self.words.zero_()
            times.append(timed(stream, lambda: launch(argument, stream.cuda_stream)))
        return min(times)

    def us(self, kernel: str, grid: int, block: int) -> float:
        """Microseconds of one repeat."""
        vectors = self.data.numel() // 16
        few, many = (self.ms(kernel, grid, block, n, vectors) for n in (FEW, MANY))
        return 1e3 * (many - few) / (MANY - FEW)

    def gbps(self, grid: int, size: int, repeats: int) -> float:
        """10^9 bytes per second of `grid` blocks that each read `size` bytes of their own, `repeats` times."""
        ms = self.ms("amk_probe_read", grid, 1024, repeats, size // 16)
        return grid * size * repeats / ms / 1e6


def measured_rates(device: Device, run: dict[str, object]) -> SmRates:
    """What every SM reads while all do, in `SHARE_ROUNDS` rounds."""
    text = Path(__file__).with_name("micro.cu").read_text(encoding="utf-8")
    size = min(2 * COLD_BYTES, device.free_bytes() // 4)
    data = torch.zeros(size, dtype=torch.uint8, device="cuda")
    words = torch.zeros(1 << 16, dtype=torch.int32, device="cuda")
    out = torch.zeros(2 * device.sm_count, dtype=torch.int64, device="cuda")
    argument = np.array((data.data_ptr(), words.data_ptr(), out.data_ptr(), size // 16, SHARE_NS), PROBE)
    counts: list[list[tuple[int, int]]] = []
    with Module(device, compile_cuda(text, device.arch).cubin) as module:
        launch = CooperativeLaunch(module.kernel("amk_probe_share"), device.sm_count, 1024)
        stream = torch.cuda.current_stream()
        for _ in range(SHARE_ROUNDS + 1):
            timed(stream, lambda: launch(argument, stream.cuda_stream))
            found = out.cpu().numpy().reshape(-1, 2)
            counts.append([(int(sm), int(vectors) * 16) for sm, vectors in found])
    smid, gbps = of_counts(counts[1:], SHARE_NS / 1e9)
    return SmRates(gpu=device.name, uuid=device.uuid(), smid=smid, gbps=tuple(map(tuple, gbps)), run=run)


def measured_constants(device: Device, start: Constants, report: Callable[[str], None], source: str) -> Constants:
    """`start` with everything replaced that a probe can see; `source` is written beside each."""
    text = Path(__file__).with_name("micro.cu").read_text(encoding="utf-8")
    size = min(COLD_BYTES, device.free_bytes() // 4) // (SHARE_BYTES * 2) * SHARE_BYTES * 2
    data = torch.zeros(max(size, SHARE_BYTES * device.sm_count), dtype=torch.uint8, device="cuda")
    words = torch.zeros(1 << 16, dtype=torch.int32, device="cuda")
    out = torch.zeros(4096, dtype=torch.int64, device="cuda")
    with Module(device, compile_cuda(text, device.arch).cubin) as module:
        bench = Bench(device, module, data, words, out)
        found = {"read_gbps": read_ceiling(device)} | _latencies(bench) | _rates(bench)
    for name, value in found.items():
        report(f"{name} {value:.4g} (was {getattr(start, name):.4g})")
    rounded = {name: float(f"{value:.4g}") for name, value in found.items()}
    return start.model_copy(update=rounded | {"sources": start.sources | dict.fromkeys(found, source)})


def _latencies(bench: Bench) -> dict[str, float]:
    chase, ping = bench.us("amk_probe_chase", 1, 32), bench.us("amk_probe_ping", 2, 32)
    few, many = bench.us("amk_probe_barrier_4", 1, 128), bench.us("amk_probe_barrier_16", 1, 512)
    each = max((many - few) / 12, 0.0)
    copy, copies = bench.us("amk_probe_copy", 1, 32), bench.us("amk_probe_copy_8", 1, 32)
    loaded = bench.us("amk_probe_loaded", bench.device.sm_count, 288)
    return {
        "l2_us": chase,
        "hop_us": max(ping / 2 - chase, 0.0),
        "copy_us": copy,
        "issue_us": max((copies - copy) / 7, 0.0),
        "queue_us_per_kib": max((loaded - chase) / LOADED_KIB, 0.0),
        "barrier_warp_us": each,
        "barrier_us": max(few - 4 * each, 0.0),
    }


def _rates(bench: Bench) -> dict[str, float]:
    sms = bench.device.sm_count
    alone, near = bench.gbps(1, SHARE_BYTES * 2, 1), bench.gbps(1, NEAR_BYTES, 64)
    bench.gbps(sms, SHARE_BYTES, 1)
    times = bench.out[:sms].cpu().numpy().astype(float)
    faster = times < FASTER * np.median(times)
    gain = float(np.median(times[~faster]) / np.median(times[faster])) if faster.any() else 1.0
    return {"sm_gbps": alone, "l2_gbps": near, "fast_sms": float(faster.mean()), "fast_gain": gain}
