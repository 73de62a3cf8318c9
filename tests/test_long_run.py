"""A long run goes on when slices take its processes down, and says which did."""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests import long_run, slice_workers
from tests.long_run import Run

MARK = "AMK_TEST_LONG_RUN"


def sliced(number: int) -> dict[str, Any]:
    """2 dies always, 3 the first time, 4 asks for more memory than there are addresses."""
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    once = Path(os.environ[MARK]) / "once"
    if number == 3 and not once.exists():
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 4:
        bytearray(slice_workers.MOST_MEMORY)
    return {"seen": 1, "differences": []}


def test_slices_that_kill_their_process_are_differences_and_the_others_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK, str(tmp_path))
    run = Run("test", sliced, tmp_path / "record.json", slices=8, guess=0.1)
    assert long_run.go([run], argparse.Namespace(jobs=2, seconds=60.0)) == 1
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["done"], record["ahead"], record["counts"]) == (8, [], {"seen": 6})
    assert sorted(line[:19] for line in record["differences"]) == ["slice 2: killed: it", "slice 4: MemoryErro"]
    assert (tmp_path / "once").exists()
