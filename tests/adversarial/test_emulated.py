"""SAFE edits as kernels: one that computes something else is told; runs are shared where everything is equal, only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amk.adversary.neighbourhood.bases import WHOLE, base
from amk.adversary.neighbourhood.mutator import Neighbourhood, schema_of_schedules
from amk.adversary.neighbourhood.survey import Survey
from amk.schedule_ir.schedule import Schedule
from tests import run_folder
from tests.adversarial import whole_neighbourhood
from tests.adversarial.emulated import Emulated
from tests.adversarial.whole_neighbourhood import neighbourhood_slice
from tests.run_folder import Kept, first

BASE = "fenced, heads apart"


def schedule(**model: Any) -> Schedule:
    document = json.loads(json.dumps(base(BASE)))
    document["model"] |= model
    return Schedule.model_validate_json(json.dumps(document))


@pytest.fixture
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(run_folder.NAME, str(tmp_path))


@pytest.mark.turns(2)
@pytest.mark.usefixtures("_folder")
def test_runs_are_shared_where_the_host_prepares_the_same() -> None:
    """Another name changes nothing; another theta changes the table of angles, and not the kernel."""
    for model, kernels, runs, shared in (
        ({}, 1, 1, 0),
        ({"name": "other"}, 0, 0, 1),
        ({"rope_theta": 100.0}, 0, 1, 0),
        ({"rope_theta": 100.0}, 0, 0, 1),
    ):
        first("ModelSpec.field")
        found = Emulated()
        found.judge(schedule(**model), "an edit", "ModelSpec.field", drawn=False)
        assert found.rulings == {"not refuted": 1} and not found.told
        counts = [found.counts[name] for name in ("kernels", "runs", "runs shared", "edits that share every run")]
        assert counts == [kernels, runs, shared, shared]


@pytest.mark.turns(2)
@pytest.mark.usefixtures("_folder")
def test_a_slice_tells_a_kernel_that_computes_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it called SAFE; the numpy machine is not asked."""
    changes = list(Neighbourhood(base(BASE), schema_of_schedules()).changes())
    wrong = next(c for c in changes if c.field == "StageNormOp.h" and json.loads(c.key)[0][2] == "embedding")
    right = next(c for c in changes if c.field == "ModelSpec.name")
    survey = Survey(base(BASE))
    outcome = survey.outcome(right)
    monkeypatch.setattr(survey, "outcome", lambda _: outcome)
    found = {wrong.field: 1, right.field: 1}
    monkeypatch.setattr(whole_neighbourhood, "edits_of", lambda _: ([right, wrong], found, survey))
    monkeypatch.setattr(whole_neighbourhood, "PARTS", 1)
    monkeypatch.setattr("tests.adversarial.emulated.EVERYTHING", 2)
    counted = neighbourhood_slice(WHOLE.index(BASE))
    (told,) = counted["differences"]
    assert "StageNormOp.h" in told and "emulated" in told and outcome.verdict == "SAFE"
    emulated = counted["emulated"]
    assert emulated["rulings"] == {"not refuted": 1, "refuted": 1} and emulated["edits"] == emulated["kernels"] == 2
    assert emulated["run"] == found and emulated["judged by everything"] == {right.field: 1}


def test_what_processes_share(tmp_path: Path) -> None:
    one, other = Kept("of one kind", tmp_path), Kept("of one kind", tmp_path)
    one["key"] = {"a": 1}
    assert other["key"] == {"a": 1} and dict(other) == {"key": {"a": 1}} and len(other) == 1
    assert other.get("no key") is None and "key" not in Kept("of another", tmp_path)
    del other["key"]
    assert "key" not in one
    assert first("field", tmp_path) and not first("field", tmp_path) and first("other", tmp_path)
