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


def test_a_slice_that_is_taken_out_of_a_record_is_made_again(tmp_path: Path) -> None:
    """The others' counts and differences stay."""

    def counted(number: int) -> dict[str, Any]:
        differences = [f"slice {number}"] if number in (1, 3) else []
        return {"seen": 1, "found": {f"kind {number % 2}": number, "what": "kinds"}, "differences": differences}

    run = Run("test", counted, path := tmp_path / "record.json", slices=5)
    for _ in range(5):
        run.end(number := run.begin(), slice_workers.Measured(counted(number), 1.0, 1.0))
    opened = long_run.without(json.loads(path.read_text()), {1: counted(1)})
    assert (opened["done"], opened["ahead"], opened["differences"]) == (1, [2, 3, 4], ["slice 3"])
    assert opened["counts"] == {"seen": 4, "found": {"kind 0": 6, "kind 1": 3, "what": "kinds"}}
    path.write_text(json.dumps(opened))
    again = Run("test", counted, path, slices=5)
    assert again.begin() == 1
    again.end(1, slice_workers.Measured(counted(1), 1.0, 1.0))
    assert again.record["counts"] == run.record["counts"] and again.record["done"] == 5


def test_runs_are_made_in_their_order_as_far_as_slices_fit_in_the_time(tmp_path: Path) -> None:
    short, long = (
        Run(name, sliced, tmp_path / name, slices=count, guess=each)
        for name, count, each in (("a", 2, 9.0), ("b", 50, 1.0))
    )
    assert long_run._next([short, long], 60.0) is short
    assert long_run._next([short, long], 5.0) is long
    short.begin(), short.begin()
    assert long_run._next([short, long], 60.0) is long
    assert long_run._next([short, long], 0.5) is None
