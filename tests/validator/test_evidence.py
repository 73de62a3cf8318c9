"""Long runs survive what happens on foreign machines: a process that dies, a slice that raises, time that runs out."""

from __future__ import annotations

import argparse
import json
import os
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import long_run
from tests.long_run import Run
from tests.slice_workers import Measured


def _square(number: int) -> dict[str, Any]:
    return {"sum": number * number, "differences": []}


def _odd_ones_die(number: int) -> dict[str, Any]:
    if number % 2:
        os._exit(9)
    return _square(number)


def _third_raises(number: int) -> dict[str, Any]:
    if number == 3:
        raise ValueError("too large")
    return _square(number)


def _sleeps(number: int) -> dict[str, Any]:
    time.sleep(600 if number == 1 else 0)
    return _square(number)


def _go(run: Run, seconds: float = 60.0) -> tuple[int, dict[str, Any]]:
    code = long_run.go([run], argparse.Namespace(jobs=2, seconds=seconds))
    return code, json.loads(run.path.read_text())


def test_a_process_that_dies_takes_only_its_slice_and_twice_is_a_difference(tmp_path: Path) -> None:
    code, record = _go(Run("r", _odd_ones_die, tmp_path / "record.json", 6, guess=0.01))
    assert (code, record["done"], record["ahead"], record["counts"]["sum"]) == (1, 6, [], 20)
    assert sorted(record["differences"]) == [f"slice {n}: killed: its process died twice" for n in (1, 3, 5)]
    assert record["commits"] == {long_run.commit(): "0-5"}


def test_a_slice_that_raises_is_a_difference(tmp_path: Path) -> None:
    code, record = _go(Run("r", _third_raises, tmp_path / "record.json", 5, guess=0.01))
    assert (code, record["done"], record["counts"]["sum"]) == (1, 5, 21)
    assert record["differences"] == ["slice 3: ValueError: too large"]


def test_a_record_says_which_slices_each_commit_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slice 3 was made first, ahead of the others."""
    path = tmp_path / "record.json"
    for commit, slices in (("one", [3, 0]), ("two", [1, 2, 4])):
        monkeypatch.setattr(long_run, "commit", partial(str, commit))
        run = Run("r", _square, path, 6)
        run.open = set(slices)
        for number in slices:
            run.end(number, Measured(_square(number), 1.0, 1.0))
    record = json.loads(path.read_text())
    assert record["commits"] == {"one": "0 3", "two": "1-2 4"}
    assert (record["done"], record["ahead"], record["counts"]["sum"]) == (5, [], 30)
    assert long_run.numbers("0-2 7 9-10") == {0, 1, 2, 7, 9, 10} and long_run.numbers("") == set()


def test_records_of_two_machines_are_merged_once(tmp_path: Path) -> None:
    records = []
    for name, slices in (("one", [0, 3]), ("other", [1, 4])):
        run = Run("r", _square, tmp_path / name, 6)
        run.open = set(slices)
        for number in slices:
            run.end(number, Measured(_square(number), 1.0, 2.0))
        records.append(run.record)
    union = long_run.merged(*records)
    assert (union["done"], union["ahead"], union["counts"]["sum"]) == (2, [3, 4], 26)
    assert (union["seconds"], union["cpu_seconds"], union["commits"]) == (4.0, 8.0, {long_run.commit(): "0-1 3-4"})
    with pytest.raises(ValueError, match="share 2 slices"):
        long_run.merged(union, records[0])


@pytest.mark.turns(4)
def test_slices_under_way_when_the_time_is_over_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is over as soon as the others are made, however long their processes took to start."""
    run, began = Run("r", _sleeps, tmp_path / "record.json", 3, guess=0.01), time.monotonic()
    clock = SimpleNamespace(monotonic=lambda: 60.0 if (run.record["done"], run.record["ahead"]) == (1, [2]) else 0.0)
    monkeypatch.setattr(long_run, "time", clock)
    code, record = _go(run)
    assert (code, record["done"], record["ahead"]) == (0, 1, [2])
    assert time.monotonic() - began < 300


def test_the_page_lists_every_run_with_its_record_and_slices() -> None:
    from tests.validator.long_checks import WHAT

    text = (Path(__file__).parents[1] / "records" / "README.md").read_text(encoding="utf-8")
    lines = [
        line[2:-2].split(" | ") for line in text.split("| run | record |")[1].splitlines()[2:] if line[:3] == "| `"
    ]
    found = {cells[0].strip("`"): (cells[1].strip("`"), cells[2]) for cells in lines}
    assert found.pop("fuzz") == ("fuzzed-schedules", "until 4 hours")
    assert found == {n: (c.record[:-5], f"{c.slices:,}") for n, c in WHAT.items() if n != "fuzz"}
