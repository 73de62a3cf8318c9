"""`amk compile` and `amk schema`: what they write, what they print, and what they refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from amk.cli import main
from amk.lowering import cache
from amk.planner.decode import plan
from amk.schedule_ir.codec import save_schedule
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from tests.damage import raised_threshold
from tests.tiny import PLAIN


@pytest.fixture(autouse=True)
def private_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cache, "default_directory", lambda: tmp_path / "cubins")


@pytest.fixture
def schedule() -> Schedule:
    return plan(PLAIN, load_target("l4"), max_context=256)


def saved(schedule: Schedule, directory: Path) -> str:
    path = directory / "schedule.json"
    save_schedule(schedule, path)
    return str(path)


@pytest.mark.turns(4)
def test_a_file_becomes_machine_code(schedule: Schedule, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cubin, source, ptx = (tmp_path / name for name in ("k.cubin", "k.cu", "k.ptx"))
    words = ["compile", saved(schedule, tmp_path), "-o", str(cubin), "--emit-cuda", str(source), "--ptx", str(ptx)]
    assert main([*words, "--format", "json"]) == 0
    assert cubin.read_bytes()[:4] == b"\x7fELF"
    assert "amk_decode" in source.read_text() and ".target sm_89" in ptx.read_text()
    printed = json.loads(capsys.readouterr().out)
    assert printed["spill_bytes"]["used"] == 0
    assert 0 < printed["registers"]["used"] <= printed["registers"]["budget"]
    assert printed["cubin_bytes"] == cubin.stat().st_size


@pytest.mark.turns(4)
def test_a_model_and_a_gpu_instead_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "--model", "SmolLM2-135m", "--gpu", "A100", "--plan", "naive", "--max-context", "256"]) == 0
    text = capsys.readouterr().out
    assert "sm_80" in text and "registers a thread" in text


@pytest.mark.parametrize("words", [[], ["--model", "llama3-8b"], ["x.json", "--model", "llama3-8b", "--gpu", "l4"]])
def test_either_a_file_or_a_plan(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", *words]) == 2
    assert "AMK005" in capsys.readouterr().err


def test_only_proved_schedules_are_compiled(
    schedule: Schedule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "k.cubin"
    file = saved(raised_threshold(schedule, "act"), tmp_path)
    assert main(["compile", file, "-o", str(output)]) == 1
    message = capsys.readouterr().err
    assert "AMK20" in message
    assert re.search(rf"--> {re.escape(file)}:1:\d+   \(/programs/", message)
    assert not output.exists()


@pytest.mark.turns(4)
def test_over_budget_is_refused_like_an_unsafe_schedule(
    schedule: Schedule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = schedule.model_copy(update={"launch": schedule.launch.model_copy(update={"registers": 32})})
    output = tmp_path / "k.cubin"
    assert main(["compile", saved(small, tmp_path), "-o", str(output)]) == 1
    assert "AMK403" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.turns(12)
def test_a_place_that_cannot_be_written(schedule: Schedule, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", saved(schedule, tmp_path), "-o", str(tmp_path / "no" / "k.cubin")]) == 2
    assert "AMK001" in capsys.readouterr().err


def test_schema_names_every_field_of_a_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert set(schema["properties"]) == set(Schedule.model_fields)
    assert schema["additionalProperties"] is False
    assert {"GemvOp", "AttendOp", "Counter", "Stream"} <= set(schema["$defs"])
