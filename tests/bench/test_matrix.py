"""The matrix of models and targets: one model per target here, all of them in the recorded run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from amk.bench.table.matrix import Cell, Matrix, examine, render
from amk.cli import main
from amk.models.model import shipped_models
from amk.report.diagnostic import AmkError
from amk.targets.target import targets

RECORDED = Path(__file__).parents[1] / "records" / "proof" / "matrix-bf16.json"
TABLE = Path(__file__).parents[1] / "records" / "proof" / "matrix-bf16.md"


@pytest.mark.turns(48)
@pytest.mark.parametrize("gpu", [target.name for target in targets()])
def test_one_model_runs_on_every_target(gpu: str) -> None:
    cell = examine("smollm2-135m", gpu, "bf16", use_cache=True)
    assert (cell.outcome, cell.verdict, cell.spill_bytes) == ("runs", "SAFE", 0), cell.reason
    assert 0 < (cell.registers or 0) <= (cell.register_budget or 0)
    assert 0 < (cell.shared_bytes or 0) <= (cell.shared_limit or 0)


def test_a_model_that_does_not_fit_says_by_how_much() -> None:
    cell = examine("llama3-70b", "l4", "bf16")
    assert cell.outcome == "does not fit" and cell.verdict is None
    assert cell.reason is not None and cell.reason.startswith("AMK011") and "short of 1" in cell.reason


@pytest.mark.turns(4)
def test_a_recorded_cell_is_kept_while_schedule_and_code_are_the_same() -> None:
    cell = examine("smollm2-135m", "l4", "bf16", use_cache=True)
    marked = replace(cell, compile_s=1234.5)
    assert examine("smollm2-135m", "l4", "bf16", marked, use_cache=True) is marked
    for field in ("code_sha256", "schedule_sha256"):
        again = examine("smollm2-135m", "l4", "bf16", replace(marked, **{field: "0" * 64}), use_cache=True)
        assert again.compile_s != 1234.5 and again.outcome == "runs"


@pytest.mark.turns(4)
def test_the_command_records_resumes_and_renders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, table = tmp_path / "m.json", tmp_path / "m.md"
    words = ["matrix", "--record", str(record), "--models", "llama3-70b", "--render", str(table)]
    assert main([*words, "--gpus", "l4"]) == 0
    assert main([*words, "--gpus", "L40S,l4", "--resume", "--jobs", "2"]) == 0
    assert capsys.readouterr().out.count("short of ") == 3
    entries = json.loads(record.read_text())["cells"]
    assert [entry["cell"]["gpu"] for entry in entries] == ["l4", "l40s"]
    assert set(entries[0]["run"]) >= {"command", "commit", "date"}
    assert table.read_text().splitlines()[-1] == "| llama3-70b | does not fit (AMK011) | does not fit (AMK011) |"


@pytest.mark.parametrize(
    "text", ["[]", '{"format": 2}', '{"format": 1, "cells": [{"cell": {"a": 1}, "run": {}}]}', "x"]
)
def test_a_file_that_is_no_matrix_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    file.write_text(text)
    with pytest.raises(AmkError, match=r"AMK00[15]"):
        Matrix.open(file)
    assert main(["matrix", "--record", str(file), "--gpus", "l4", "--models", "smollm2-135m"]) == 2


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    for words in (["--gpus", "l5"], ["--models", "llama9"]):
        assert main(["matrix", "--record", str(tmp_path / "m.json"), *words]) == 2


def test_the_recorded_matrix_is_complete_and_its_table_is_current() -> None:
    matrix = Matrix.open(RECORDED)
    cells: dict[tuple[str, str], Cell] = {(cell.model, cell.gpu): cell for cell in matrix.cells()}
    assert set(cells) == {(model, target.name) for model in shipped_models() for target in targets()}
    for cell in cells.values():
        assert cell.outcome == "does not fit" or (cell.outcome, cell.verdict, cell.spill_bytes) == ("runs", "SAFE", 0)
    assert render(matrix) == TABLE.read_text(encoding="utf-8")
