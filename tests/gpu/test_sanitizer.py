"""compute-sanitizer over small shapes: no access out of bounds, no race in shared memory that is not a known report."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from amk.lowering.launch import Device
from amk.targets.target import Target
from tests.gpu.sanitised import CASES

pytestmark = pytest.mark.gpu

SECONDS = 300
PLACES = ("/usr/local/cuda/bin/compute-sanitizer",)


def tool() -> str:
    found = shutil.which("compute-sanitizer") or next((p for p in PLACES if Path(p).exists()), None)
    if found is None:
        pytest.skip("compute-sanitizer is not installed")
    return found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("check", ["memcheck", "racecheck"])
def test_small_shapes_are_clean(check: str, case: str, device: Device, gpu: Target) -> None:
    command = [tool(), "--tool", check, "--print-limit", "20", "--error-exitcode", "0"]
    command += [sys.executable, "-m", "tests.gpu.sanitised", gpu.name, case]
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, cwd=root, env=os.environ | {"PYTHONPATH": path},
        check=False,
    )  # fmt: skip
    text = done.stdout + done.stderr
    if "Device not supported" in text or "Unable to find" in text:
        pytest.skip(f"compute-sanitizer cannot look at this GPU: {text[-300:]}")
    assert done.returncode == 0, text[-3000:]
    assert text.count(f"{case}: decoded") == 1, text[-3000:]
    found = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)", text)
    assert found is not None and int(found[1]) == 0, text[:6000]
