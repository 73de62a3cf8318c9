"""Fixtures of the tests that need a GPU; without one they are skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amk.lowering.launch import Device
from amk.models.model_spec import ModelSpec
from amk.report.diagnostic import AmkError, Exit
from amk.targets.target import Target, targets

ALONE = "llama3-8b"
"""Loaded beside torch it takes 36 GB, so its tests follow each other in one process."""
LONGEST = (
    "test_soak.py",
    ALONE,
    "test_unsafe_for_real.py",
    "test_real_checkpoint.py",
    "test_positions.py",
    "test_sanitizer.py",
    "test_calibrate.py",
    "test_baselines.py",
    "llama3.2-1b",
)
"""What takes longest is begun first (`--no-loadscope-reorder`), so that nobody waits for it at the end."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """`--dist loadgroup`: the tests of one loaded subject stay in one process, all others go to whoever is free."""
    if group := group_of(item):
        item.add_marker(pytest.mark.xdist_group(group))


def group_of(item: pytest.Item) -> str | None:
    call = getattr(item, "callspec", None)
    if call is None:
        return None
    if any(model.name == ALONE for model in models_of(list(call.params.values()))):
        return ALONE
    return f"{item.path.name} {call.id}" if "subject" in call.params else None


def models_of(values: list[Any]) -> list[ModelSpec]:
    """The models among a test's parameters, or in tuples of them."""
    parts = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
    return [part for part in parts if isinstance(part, ModelSpec)]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The items of this folder, longest first, in the places that they have among all."""
    places = [n for n, item in enumerate(items) if item.path.parent.name == "gpu"]
    for place, item in zip(places, sorted((items[n] for n in places), key=rank), strict=True):
        items[place] = item


def rank(item: pytest.Item) -> int:
    """Equal for all tests of a group."""
    name = group_of(item) or item.nodeid
    return next((n for n, part in enumerate(LONGEST) if part in name), len(LONGEST))


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


@pytest.fixture(scope="module")
def checkpoint_path(request: pytest.FixtureRequest) -> Path:
    """SmolLM2: what AMK_SMOLLM2 names, else the file that the tests keep."""
    directory = os.environ.get("AMK_SMOLLM2")
    return Path(directory) if directory else Path(request.getfixturevalue("smollm2_path"))
