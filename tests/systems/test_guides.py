"""What the guide to CI prints runs as it says: the job's script, the hook, and places in the user's own source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import amk
from amk.systems import System

GUIDE = Path(amk.__file__).parent / "systems" / "guides" / "continuous-integration.md"
ROOT = Path(__file__).parents[2]


def kernel(short: int = 0) -> System:
    """A hand-off whose lines are of a file that is not Python."""
    sys = System("hand-off")
    tile, done = sys.buffer("tile", 64), sys.counter("done")
    with sys.agent("gemm") as g, sys.agent("norm") as n:
        for agent, calls in ((g, ("write", "signal")), (n, ("wait", "read"))):
            for call in calls:
                with sys.at(("kernel.cu", {"write": 10, "signal": 11, "wait": 20, "read": 21}[call])):
                    if call in ("write", "read"):
                        getattr(agent, call)(tile, 0, 64)
                    elif call == "signal":
                        agent.signal(done)
                    else:
                        agent.wait(done, 1 - short)
    return sys


def shell(script: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """As GitHub and pre-commit start it: the first line that fails ends it."""
    (folder / "bin").mkdir(exist_ok=True)
    program = folder / "bin" / "amk"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m amk "$@"\n')
    program.chmod(0o755)
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-e", "-c", script, *words], cwd=folder, env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "kernels").mkdir()
    kernel().save(tmp_path / "kernels" / "right.system.json")
    return tmp_path


@pytest.mark.turns(12)
def test_the_job_fails_for_one_wrong_kernel_and_points_into_the_user_s_source(checkout: Path) -> None:
    script = GUIDE.read_text(encoding="utf-8").partition("- run: |\n")[2].partition("      - if: always()")[0]
    script = textwrap.dedent(script)
    done = shell(script, checkout)
    assert done.returncode == 0, done.stderr
    kernel(short=1).save(checkout / "kernels" / "wrong.system.json")
    assert shell(script, checkout).returncode == 1
    (run,) = json.loads((checkout / "sarif" / "wrong.system.json.sarif").read_text())["runs"]
    (result,) = run["results"]
    place = result["locations"][0]["physicalLocation"]
    assert result["ruleId"] == "AMK302" and place["artifactLocation"]["uri"] == "kernel.cu"
    assert place["region"]["startLine"] in (10, 21)
    assert not json.loads((checkout / "sarif" / "right.system.json.sarif").read_text())["runs"][0]["results"]


@pytest.mark.turns(4)
def test_the_hook_names_the_file_that_is_wrong(checkout: Path) -> None:
    entry = GUIDE.read_text(encoding="utf-8").partition("entry: sh -c '")[2].partition("' --")[0]
    right, wrong = "kernels/right.system.json", "kernels/wrong.system.json"
    assert shell(entry, checkout, "--", right).returncode == 0
    kernel(short=1).save(checkout / wrong)
    done = shell(entry, checkout, "--", right, wrong)
    assert done.returncode == 1 and "kernel.cu" in done.stdout + done.stderr and "AMK302" in done.stdout + done.stderr
