"""`assert amk.verify(sys).safe` in somebody's test: the failure shows the witness, and a passing test nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEST = """
import amk
from tests.systems.ring import Mistake, ring

def test_right():
    assert amk.verify(ring()).safe

def test_wrong():
    assert amk.verify(ring(Mistake(short=1))).safe

def test_expected_to_be_wrong():
    assert not amk.verify(ring(Mistake(short=1))).safe
"""


@pytest.mark.turns(12)
def test_a_failing_test_shows_the_verdict(tmp_path: Path) -> None:
    file = tmp_path / "test_kernel.py"
    file.write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-p", "amk.systems.pytest_plugin", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120
    )
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("- amk verify: ring -") == 1
    for part in ("AMK302", "one run to where both can go on", "wait for full to be 1 higher", "ring.py"):
        assert part in done.stdout
