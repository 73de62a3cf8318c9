"""SAFE edits as kernels: one that computes something else is told; runs are shared where everything is equal, only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amk.adversary.neighbourhood.bases import WHOLE, base
from amk.adversary.neighbourhood.mutator import Neighbourhood, schema_of_schedules
from amk.adversary.neighbourhood.survey import Care, Survey
from amk.emulator.machine.machine import Limits
from amk.schedule_ir.schedule import Schedule
from tests import run_folder
from tests.adversarial import whole_neighbourhood
from tests.adversarial.emulated import Emulated
from tests.adversarial.whole_neighbourhood import _schedule, neighbourhood_slice
from tests.run_folder import Kept, claimed, given_up

BASE = "fenced, heads apart"


def schedule(**model: Any) -> Schedule:
    document = json.loads(json.dumps(base(BASE)))
    document["model"] |= model
    return Schedule.model_validate_json(json.dumps(document))


@pytest.fixture
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(run_folder.NAME, str(tmp_path))


@pytest.mark.turns(16)
@pytest.mark.usefixtures("_folder")
def test_runs_are_shared_where_the_host_prepares_the_same() -> None:
    """Another name changes nothing; another theta changes the table of angles, and not the kernel."""
    for model, kernels, runs, shared in (
        ({}, 1, 2, 0),
        ({"name": "other"}, 0, 0, 2),
        ({"rope_theta": 100.0}, 0, 2, 0),
        ({"rope_theta": 100.0}, 0, 0, 2),
    ):
        claimed("ModelSpec.field", "another slice")
        found = Emulated("this slice")
        found.judge(schedule(**model), "an edit", "ModelSpec.field", drawn=False)
        assert found.rulings == {"not refuted": 1} and not found.refutations
        counts = [found.counts[name] for name in ("kernels", "runs", "runs shared", "edits that share every run")]
        assert counts == [kernels, runs, shared, shared > 0]


def test_a_block_that_no_compiler_unrolls_is_counted_as_not_run() -> None:
    document = json.loads(json.dumps(base(BASE)))
    document["kv"]["block"] = 1 << 20
    found = Emulated("this slice")
    found.judge(Schedule.model_validate_json(json.dumps(document)), "an edit", "KvLayout.block", drawn=False)
    assert found.rulings == {"unrun: not printed: AMK601": 1} and not found.refutations


@pytest.mark.turns(4)
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
    monkeypatch.setattr(whole_neighbourhood, "edits_of", lambda _: ([[right, wrong]], found, survey))
    monkeypatch.setattr("tests.adversarial.emulated.EVERYTHING", 2)
    counted = neighbourhood_slice(WHOLE.index(BASE))
    (difference,) = counted["differences"]
    assert "StageNormOp.h" in difference and "emulated" in difference and outcome.verdict == "SAFE"
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


def test_a_claim_outlives_its_process_and_not_more(tmp_path: Path) -> None:
    """A slice whose process died is made again, and finds its claims."""
    for name in ("field", "other"):
        assert claimed(name, "slice 3", tmp_path) and not claimed(name, "slice 4", tmp_path)
        assert claimed(name, "slice 3", tmp_path)
    given_up("field", tmp_path)
    assert claimed("field", "slice 4", tmp_path) and not claimed("field", "slice 3", tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.usefixtures("_folder")
def test_a_field_is_open_until_an_edit_of_it_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is too large for the machine; the second is judged by everything, no third one is."""
    monkeypatch.setattr("tests.adversarial.emulated.EVERYTHING", 2)
    found = Emulated("this slice")
    for size in (1 << 31, 64, 64):
        edited = schedule()
        launch = edited.launch.model_copy(update={"max_tokens": size})
        rooms = tuple(
            b.model_copy(update={"shape": (size, *b.shape[1:])}) if b.name == "output" else b for b in edited.buffers
        )
        edited = edited.model_copy(update={"launch": launch, "buffers": rooms})
        found.judge(edited, "an edit", "Launch.field", drawn=False)
        if size > 64:
            assert not found.everything["Launch.field"] and sum(found.rulings.values()) == 1
            assert next(iter(found.rulings)).startswith("unrun")
    assert found.everything == {"Launch.field": 1} and found.run == {"Launch.field": 2}


@pytest.mark.usefixtures("_folder")
def test_a_kernel_that_needs_more_than_a_run_may_take_is_not_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amk.judges.emulated_run.LIMITS", Limits(instructions=2_000))
    found = Emulated("this slice")
    found.judge(schedule(), "an edit", "Launch.field", drawn=False)
    assert found.rulings == {"unrun: not ended within the limit of instructions": 1} and not found.refutations


@pytest.mark.turns(12)
@pytest.mark.usefixtures("_folder")
def test_sums_of_a_stage_that_needs_none_are_judged_by_everything() -> None:
    """The one field of which only a few edits of two bases are SAFE: they go where other scratch has been."""
    name = "int8, fp8 cache"
    survey, found = Survey(base(name)), Emulated("this slice")
    changes = Neighbourhood(base(name), schema_of_schedules()).changes()
    safe = []
    for change in (change for change in changes if change.field == "StageOp.sums"):
        if survey.outcome(change, Care(certificates=False)).verdict == "SAFE":
            safe.append(json.loads(change.key)[0][2])
            found.judge(_schedule(survey, change), change.key, change.field, drawn=len(safe) == 1)
    assert sorted(safe) == ["mix", "part", "q", "ssq"] and not found.refutations
    assert found.run == {"StageOp.sums": 4} and found.everything["StageOp.sums"] == 1
