"""Fixtures of the tests that need a GPU; without one they are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from amk.lowering.launch import Device
from amk.report.diagnostic import AmkError, Exit
from amk.schedule_ir.target import Target, targets


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    try:
        opened = Device.open()
    except AmkError as error:
        if error.exit_code is not Exit.NO_GPU:
            raise
        pytest.skip(str(error))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def gpu(device: Device) -> Target:
    """The known target that describes this GPU: same architecture, and no larger in SMs, shared memory or memory."""
    fitting = [
        target
        for target in targets()
        if target.arch == device.arch
        and target.sms <= device.sm_count
        and target.smem_per_block <= device.shared_bytes_per_block
        and target.hbm_bytes <= 1.02 * device.memory_bytes
    ]
    if not fitting:
        pytest.skip(f"no known target describes {device.name} ({device.arch}, {device.sm_count} SMs)")
    return max(fitting, key=lambda target: (target.sms, target.hbm_bytes))


@pytest.fixture(scope="session")
def torch_gpu(device: Device) -> Device:
    """Skips where torch is missing or cannot use the GPU."""
    torch = pytest.importorskip("torch", reason="the reference of these tests is torch")
    if not torch.cuda.is_available():
        pytest.skip("torch cannot use this GPU")
    return device
