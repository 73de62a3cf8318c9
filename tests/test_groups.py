"""Tests of one loaded model run in one process: two processes with llama3-8b beside torch do not fit on a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.turns(4)
def test_tests_of_one_loaded_model_stay_in_one_process() -> None:
    """Without a GPU they are skipped, but by the process that would have run them."""
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "--import-mode=importlib", "-p", "no:cacheprovider"]
    command += ["-v", "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder", "tests/gpu/test_batch.py"]
    hidden = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    hidden["CUDA_VISIBLE_DEVICES"] = ""
    out = subprocess.run(command, cwd=ROOT, env=hidden, capture_output=True, text=True, check=True, timeout=300).stdout
    ran = re.findall(r"^\[(gw\d)\] .*(\[llama3-8b-\d+\])", out, re.MULTILINE)
    assert len(ran) > 10 and len({process for process, _ in ran}) == 1, out[-2000:]
