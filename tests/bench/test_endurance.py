"""Endurance runs: what a record must be to be continued, what makes two passes equal; laps of a pretended kernel."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk.bench import endurance
from amk.planner.decode import plan
from amk.report.diagnostic import AmkError
from amk.targets.target import load_target
from tests.tiny import PLAIN

SCHEDULE = plan(PLAIN, load_target("h200"), max_context=160, workers=4)


class Pretended:
    """Decodes by a rule: the logits depend on token and position, as a kernel's would."""

    def __init__(self, wrong_at: int = -1) -> None:
        self.schedule, self.device = SCHEDULE, None
        self.now, self.wrong_at, self.steps = {"pos": 0, "token": 0}, wrong_at, 0

    def set_state(self, **words: int) -> None:
        self.now |= words

    def state(self) -> dict[str, int]:
        return self.now

    def step(self, tokens: int) -> Any:
        found = []
        for _ in range(tokens):
            self.now["token"] = (7 * self.now["token"] + self.now["pos"]) % 512
            self.now["pos"] += 1
            found.append(self.now["token"])
        self.steps += 1
        return np.array(found, np.int32)

    def read(self, name: str, dtype: Any, count: int) -> Any:
        return np.full(count, self.now["token"] + (self.steps == self.wrong_at), np.float32)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endurance, "provenance", lambda command, device: {"command": command})


def passed(path: Path, engine: Any, laps: int = 4, slices: int = 1) -> dict[str, Any]:
    """A pass in `slices` processes' worth of resumed runs."""
    start = endurance.fresh(SCHEDULE, laps * 160)
    for i in range(slices):
        record = endurance.opened(path, endurance.fresh(SCHEDULE, laps * 160))
        record["laps"] = min(laps, len(record["chain"]) + -(-laps // slices)) if i + 1 < slices else laps
        endurance.go_on(engine, record, path, time.monotonic() + 60)
        path.write_text(json.dumps(record | {"laps": start["laps"]}))
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def test_a_resumed_pass_is_the_same_pass(tmp_path: Path) -> None:
    whole = passed(tmp_path / "1.json", Pretended())
    parts = passed(tmp_path / "2.json", Pretended(), slices=3)
    assert len(whole["chain"]) == 4 and len(set(whole["chain"])) == 4
    assert endurance.compared(whole, parts) is None
    assert len(parts["runs"]) == 3 and [run["first_lap"] for run in parts["runs"]] == [0, 2, 4]


def test_one_different_logit_shows(tmp_path: Path) -> None:
    whole, wrong = passed(tmp_path / "1.json", Pretended()), passed(tmp_path / "2.json", Pretended(wrong_at=5))
    assert endurance.compared(whole, wrong) == "the passes differ from lap 1 on"
    assert "0 of 4 laps" in str(endurance.compared(endurance.fresh(SCHEDULE, 640), whole))


def test_a_record_of_another_pass_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "1.json"
    passed(path, Pretended())
    with pytest.raises(AmkError, match="AMK005"):
        endurance.opened(path, endurance.fresh(SCHEDULE, 5 * 160))
