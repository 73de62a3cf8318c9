"""Energy, clocks and throttling of a contestant under sustained load, as NVML says.

Not measured while contestants take turns: a query would stand between launches. Afterwards each runs back to back for
some time. The energy is the difference of the GPU's own counter. Clocks and throttle reasons are sampled while the next
launches are enqueued already, so that the GPU does not wait for the host.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from amk.bench.tools.times import Power
from amk.bench.tools.timing import Contestant
from amk.lowering.launch import Device

SECONDS = 1.5
"""Many updates of the energy counter, which come every 20 to 100 ms."""
AHEAD = 4
"""Launches between two samples."""

REASONS = {
    0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost", 0x20: "thermal",
    0x40: "hardware thermal", 0x80: "power brake", 0x100: "display clocks",
}  # fmt: skip
"""Bits of nvmlDeviceGetCurrentClocksEventReasons that mean slower clocks than wanted; idle (1) is none."""


@dataclass(frozen=True)
class Sample:
    """energy_mj: of the GPU since its driver was loaded."""

    seconds: float
    energy_mj: int
    sm_mhz: int
    memory_mhz: int
    reasons: int


@dataclass(frozen=True)
class Meter:
    """NVML's view of one GPU."""

    nvml: Any
    handle: Any

    @classmethod
    def open(cls, device: Device) -> Meter | None:
        """None where NVML's bindings (nvidia-ml-py) are not installed or do not see the GPU."""
        try:
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
            return cls(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid_name(device.uuid())))
        except (ImportError, RuntimeError, OSError):
            return None
        except Exception as error:  # NVMLError has no base of its own
            if type(error).__module__ == "pynvml":
                return None
            raise

    def sample(self) -> Sample:
        nvml, handle = self.nvml, self.handle
        return Sample(
            time.perf_counter(), int(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)),
            int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        )  # fmt: skip


def uuid_name(digits: str) -> str:
    """32 hexadecimal digits as nvidia-smi and NVML write them."""
    return "GPU-" + "-".join(digits[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))


def loaded(meter: Meter, contestant: Contestant, seconds: float = SECONDS) -> Power:
    """What the GPU draws while the contestant runs back to back, two batches of launches ahead of the device at most.

    `prepare` is not for a stream in use: the contestant's `run` has to be repeatable without it.
    """
    stream, done = contestant.stream, [_batch(contestant), _batch(contestant)]
    done[0].synchronize()
    samples, batches = [meter.sample()], 0
    while samples[-1].seconds - samples[0].seconds < seconds:
        done = [done[1], _batch(contestant)]
        done[0].synchronize()  # one batch has ended since the last sample
        batches += 1
        samples.append(meter.sample())
    stream.synchronize()
    return summed(samples, batches * AHEAD * contestant.tokens)


def _batch(contestant: Contestant) -> torch.cuda.Event:
    """Some launches, and what is over when they are."""
    for _ in range(AHEAD):
        contestant.run()
    event = torch.cuda.Event()
    event.record(contestant.stream)
    return event


def summed(samples: Sequence[Sample], tokens: int) -> Power:
    """Of samples around `tokens` tokens, two or more, all taken while the GPU was busy."""
    first, last, during = samples[0], samples[-1], samples
    joules, seconds = (last.energy_mj - first.energy_mj) / 1e3, last.seconds - first.seconds
    clocks = [each.sm_mhz for each in during]
    seen = 0
    for each in during:
        seen |= each.reasons
    return Power(
        joules / tokens, joules / seconds, median(clocks), min(clocks), median(each.memory_mhz for each in during),
        tuple(name for bit, name in REASONS.items() if seen & bit),
    )  # fmt: skip
