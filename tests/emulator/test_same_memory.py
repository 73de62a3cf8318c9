"""GPU and emulator are given the same bytes: a comparison of their results is one of the machines, not of the hosts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from amk.emulator.ptx.encode import GLOBAL_BASE
from amk.emulator.steps import COUNTERS
from amk.engine.admission import admission
from amk.engine.backends import cuda_engine
from amk.lowering.abi import abi
from amk.lowering.emit import KERNEL
from tests.emulator import hardware
from tests.emulator.host_driver import HostDriver, HostModules, host_device

EMPTY = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry {name}(.param .align 8 .b8 p[{size}]) {{ ret; }}
"""


def uploaded(case: str, patch: pytest.MonkeyPatch) -> tuple[cuda_engine.CudaEngine, HostDriver]:
    """What the GPU's engine writes: the real one, but for the driver's memory, and without code."""
    driver = HostDriver()
    patch.setattr(admission, "started", lambda schedule: SimpleNamespace(schedule=schedule, loadable=bytes))
    patch.setattr(cuda_engine, "Module", HostModules())
    patch.setattr(cuda_engine, "CooperativeLaunch", lambda *_: None)
    patch.setattr(cuda_engine, "check_loaded", lambda *_: None)
    patch.setattr("amk.lowering.launch.Device.open", lambda: host_device(driver))
    return hardware.gpu_side(case), driver


# One of the two of four bits: choosing their codes takes seconds.
@pytest.mark.turns(4)
@pytest.mark.parametrize("case", [case for case in hardware.CASES if case != "paired int4"])
def test_every_byte_is_the_same_before_the_launch(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, driver = uploaded(case, monkeypatch)
    schedule = gpu.schedule
    own = hardware.emulated_side(case, EMPTY.format(name=KERNEL, size=abi(schedule).dtype.itemsize))
    compared = [b for b in schedule.buffers if b.space == "global" and b.role != "scratch"]
    assert {"weights", "embedding", "prompt", "state"} <= {b.name for b in compared}
    for buffer in compared:
        there, written = (a[: buffer.bytes] for a in driver.content(gpu.buffers[buffer.name]))
        place = own.machine.memory.addresses[buffer.name] - GLOBAL_BASE
        defined = own.machine.grid.undefined[place : place + buffer.bytes] == 0
        here = own.machine.read(buffer.name, np.uint8, buffer.bytes)
        np.testing.assert_array_equal(written, defined, err_msg=buffer.name)
        np.testing.assert_array_equal(there[written], here[written], err_msg=buffer.name)
    counters, written = driver.content(gpu.counters)
    assert written.all()
    np.testing.assert_array_equal(counters, own.machine.read(COUNTERS, np.uint8, len(counters)))
