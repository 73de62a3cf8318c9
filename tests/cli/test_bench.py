"""`amk bench` where it cannot measure: what it says, and with which exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amk.cli import main
from amk.commands import bench, bench_table
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.targets.target import load_target

RECORDS = Path(__file__).resolve().parents[1] / "records" / "speed"

ASK = ["bench", "--model", "llama3.2-1b", "--gpu", "h200"]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AmkError(Diagnostic("AMK602", "no CUDA driver"), Exit.NO_GPU)

    monkeypatch.setattr(bench.Device, "open", refuse)


def test_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ASK) == 5
    assert "AMK602" in capsys.readouterr().err


def test_diagnostics_follow_the_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASK, "--format", "json"]) == 5
    assert "AMK602" in json.dumps(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    "words",
    [["--positions", "131072"], ["--positions", "9", "--max-context", "9"], ["--resume"]],
    ids=["beyond the model", "beyond the context", "nothing to resume"],
)
def test_what_cannot_be_measured(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASK, *words]) == 2
    assert "error[AMK0" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--positions", "-1"], ["--baselines", "magic"], ["--steps", "0"], ["--plan", "x"]])
def test_usage_errors(words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*ASK, *words])
    assert caught.value.code == 2


def test_without_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench.Device, "open", lambda: object())
    monkeypatch.setattr(bench.importlib.util, "find_spec", lambda name: None)
    assert main(ASK) == 5
    assert "torch" in capsys.readouterr().err


def test_rows_need_no_gpu_to_be_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the rows' timing module needs torch")
    assert torch
    from amk.bench.table.record import Record
    from amk.bench.table.row import Key, Row, cells, header
    from amk.bench.tools.times import Times

    key = Key("m", "h200", "bf16", "fast", 128, 4, 50, ("cublas-graph",))
    times = {"cublas-graph": Times(2.0, 1.9, 2.1)}
    row = Row(key, Times(1.0, 0.9, 1.1), times, 10**9, 4000.0, 1e-3, 2e-3, 1e-6, True, True, True)
    assert row.floor_ms == pytest.approx((10**9 - load_target("h200").l2_bytes) / 4000e6)
    assert row.of_ceiling == pytest.approx(0.25)
    assert row.of_ceiling == pytest.approx(0.25)
    assert row.ratio("cublas-graph") == pytest.approx(2.0)
    assert len(cells(row)) == len(header(key.baselines))
    without = Row(key, row.times, {}, 10**9, 4000.0, 1e-3, 2e-3, 1e-6, True, True, True)
    assert len(cells(without)) == len(cells(row)) and cells(without).count("-") == 2 + 4, (
        "a wrong baseline is left out, and no power"
    )
    path = tmp_path / "rows.json"
    Record.open(path).add(row, {"commit": "abc"})
    again = Record.open(path)
    assert again.find(key) == row
    again.add(row, {"commit": "def"})
    assert [entry["run"]["commit"] for entry in Record.open(path).entries] == ["def"]
    path.write_text('{"format": 2, "rows": []}')
    with pytest.raises(AmkError, match="AMK005"):
        Record.open(path)


def test_old_and_new_records_are_drawn_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [RECORDS / "h200-table.json"]
    page = tmp_path / "speed.html"
    assert main(["bench", "--plot", str(page), "--rows", *map(str, records)]) == 0
    text = page.read_text()
    for words in ("llama3.2-1b bf16 on h200, fast plan", "cublas-graph", "floor", "position", "<polyline", "32,767"):
        assert words in text
    assert "<script" not in text
    assert main(["bench", "--plot", str(tmp_path / "speed.svg"), "--rows", str(records[0])]) == 0
    assert (tmp_path / "speed.svg").read_text().startswith("<svg ")
    assert main(["bench", "--plot", str(tmp_path / "speed.png"), "--rows", str(records[0])]) == 2
    assert main(["bench", "--plot", str(page), "--rows", str(tmp_path / "none.json")]) == 2
    assert "AMK001" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--table", "h200", "--model", "llama3-8b"],
        ["--table", "h200", "--runs", "5"],
        ["--rows", "x"],
        [],
        ["--table", "h20"],
        ["--table", "h200", "--cases", "2,17", "--rows", str(RECORDS / "h200-table.json")],
        ["--model", "llama3-8b", "--gpu", "h200", "--cases", "1"],
        ["--table", "h200", "--baselines-once"],
    ],
    ids=[
        "table and model",
        "runs without a record",
        "rows without a plot",
        "nothing named",
        "no such table",
        "no such case",
        "cases without a table",
        "one run of several",
    ],
)
def test_arguments_that_do_not_go_together(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    assert "error[AMK005]" in capsys.readouterr().err


def test_separate_runs_are_separate_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")

    class Done:
        returncode = 0

    def start(command: list[str], env: dict[str, str], **options: object) -> Done:
        assert "-P" in command and "ANTHROPIC_API_KEY" not in env
        asked.append(command)
        return Done()

    monkeypatch.setattr(bench_table.subprocess, "run", start)
    words = [
        "bench",
        "--table",
        "h200",
        "--runs",
        "3",
        "--record",
        str(tmp_path / "r.json"),
        "--time-limit=100",
        "--resume",
    ]
    monkeypatch.setattr("sys.argv", ["amk", *words])
    assert main(words) == 0
    assert [command[command.index("--run") + 1] for command in asked] == ["1", "2", "3"]
    assert all("--runs" not in command and "--resume" in command for command in asked)
    assert all(int(command[command.index("--time-limit") + 1]) <= 100 for command in asked)
    printed = capsys.readouterr().out
    assert "llama3-8b int8, 128" in printed and "not measured" in printed
    assert "Published by others, not measured here" in printed
    asked.clear()
    monkeypatch.setattr("sys.argv", ["amk", *words, "--baselines", "compile", "--baselines-once"])
    assert main([*words, "--baselines", "compile", "--baselines-once"]) == 0
    assert ["none" in command for command in asked] == [False, True, True]
    assert ["compile" in command for command in asked] == [True, False, False]
    assert not any("--baselines-once" in command for command in asked)


def test_the_shares_of_a_table_are_judged_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every GPU measures some cases into a record of its own."""
    record = json.loads((RECORDS / "h200-table.json").read_text())
    shares = [tmp_path / "a.json", tmp_path / "b.json"]
    for n, share in enumerate(shares):
        share.write_text(json.dumps({"format": 1, "rows": record["rows"][n::2]}))
    whole = tmp_path / "whole.json"
    words = ["bench", "--table", "h200", "--cases", "2,11-12", "--record", str(whole)]
    assert main([*words, "--rows", *map(str, shares), "--format", "json"]) == 0
    cases = json.loads(capsys.readouterr().out)["cases"]
    assert [case["case"] for case in cases] == [
        "llama3-8b bf16, 128", "llama3-8b bf16, 128, batch 4", "llama3-8b bf16, 128, batch 8",
    ]  # fmt: skip
    assert [case["target_ms"] for case in cases] == [3.45, 3.58, 3.78]
    assert len(json.loads(whole.read_text())["rows"]) == len(record["rows"])
    assert main([*words, "--rows", str(tmp_path / "none.json")]) == 2
    assert "AMK001" in capsys.readouterr().err


def test_a_family_without_a_baseline_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--model", "pythia-70m", "--gpu", "h200"]) == 2
    shown = capsys.readouterr().err
    assert "AMK012" in shown and "gpt_neox" in shown
