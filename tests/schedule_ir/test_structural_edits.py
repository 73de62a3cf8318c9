"""The recorded run of random edits: a trial is the same again, and what it calls SAFE the judge does not refute."""

from __future__ import annotations

import json
from pathlib import Path

from tests.schedule_ir.structural_edits import SHARE, counted, main, trial

SMALL = [n for n in range(1, 12) if n % SHARE]


def test_a_trial_is_a_function_of_its_number() -> None:
    number = SMALL[2]
    assert trial(number) == trial(number)
    assert trial(number)[1]["edits"] != trial(SMALL[3])[1]["edits"]


def test_trials_are_counted_and_none_is_wrong() -> None:
    record = {"plans": {}, "wrong": []}
    for number in SMALL[2:4]:
        counted(record, number)
    assert sum(record["plans"]["small"]["ends"].values()) == 2  # type: ignore[index]
    assert record["wrong"] == []


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """Nothing is left to do, so a record with all trials stays as it is."""
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"done": 3, "plans": {}, "wrong": []}))
    assert main(["--count", "3", "--record", str(path)]) == 0
    assert json.loads(path.read_text()) == {"done": 3, "plans": {}, "wrong": []}
