"""`amk simulate` as a user runs it."""

import json
import re
from pathlib import Path

import pytest

from amk.cli import main

RECORD = str(Path(__file__).parents[1] / "simulator" / "measurements" / "h200-smollm2-135m-bf16.json")


@pytest.fixture(scope="module")
def schedule(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "s.json"
    assert main(["plan", "--model", "smollm2-135m", "--gpu", "h200", "--max-context", "1024", "-o", str(path)]) == 0
    return path


def test_text_names_time_phases_and_bottlenecks(schedule: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(schedule)]) == 0
    out = capsys.readouterr().out
    assert "ms per token, simulated" in out and "gate_up" in out and "bottleneck" in out and "one layer" in out


def test_json_has_ms_per_token_and_the_sources_of_its_constants(
    schedule: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(schedule), "--format", "json", "--pos", "1000"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["ms_per_token"] >= data["floor_ms"] > 0 and data["simulated"] is True and data["pos"] == 1000
    assert data["constants"]["sources"] and all(s["end"] >= s["start"] for s in data["timeline"])
    assert sum(p["us"] for p in data["phases"]) == pytest.approx(1e3 * data["ms_per_token"], rel=0.1)


def test_the_timeline_is_a_page_and_a_perfetto_file(schedule: Path, tmp_path: Path) -> None:
    page, file = tmp_path / "t.html", tmp_path / "t.json"
    assert main(["simulate", str(schedule), "--timeline", str(page), "--timeline", str(file)]) == 0
    assert "gate_up" in page.read_text() and len(json.loads(file.read_text())["traceEvents"]) > 100


def test_an_unsafe_schedule_has_no_time(schedule: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = json.loads(schedule.read_text())
    text["counters"][0]["init"] = 0
    for node in text["programs"][0]["body"]:
        for inner in node.get("body", []):
            for step in inner.get("body", []):
                step["signals"] = []
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(text))
    assert main(["simulate", str(broken)]) == 1
    assert "AMK20" in capsys.readouterr().err


@pytest.mark.parametrize("words", [
    ["--pos", "99999"], ["--constants", "no-such-file"], ["--against", "no-such-run"], ["--calibrate", __file__],
], ids=str)  # fmt: skip
def test_bad_input_is_one_diagnostic(words: list[str], schedule: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(schedule), *words]) == 2
    assert capsys.readouterr().err.startswith("error[AMK")


@pytest.mark.turns(12)
def test_constants_are_fitted_used_and_compared(
    schedule: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted, compared = tmp_path / "fitted.json", tmp_path / "compared.json"
    rows = json.loads(Path(RECORD).read_text())
    few = tmp_path / "few.json"
    few.write_text(json.dumps(rows | {"rows": rows["rows"][:2]}))
    assert main(["simulate", "--calibrate", str(few), "-o", str(fitted)]) == 0
    assert main(["simulate", str(schedule), "--constants", str(fitted)]) == 0
    assert main(["simulate", "--against", RECORD, "-o", str(compared)]) == 0
    found = json.loads(compared.read_text())["smollm2-135m"]
    count = len(rows["rows"])
    assert found["kernels"] == count and 0 <= found["top5_recall"] <= 1 and len(found["pairs"]) == count
    assert "Spearman" in capsys.readouterr().out
    assert main(["simulate", "--against", RECORD, "-o", str(tmp_path / "plot.svg")]) == 0
    assert (tmp_path / "plot.svg").read_text().count("<circle") == count + 1
    assert main(["simulate", "--against", RECORD, "--held-out"]) == 2  # no other model to fit on


@pytest.mark.turns(12)
def test_every_fold_of_the_kernels_is_predicted_by_constants_fitted_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, few, compared = json.loads(Path(RECORD).read_text()), tmp_path / "few.json", tmp_path / "compared.json"
    few.write_text(json.dumps(rows | {"rows": [*rows["rows"][:2], *rows["rows"][4:6]]}))
    monkeypatch.setattr("amk.simulator.held_out.STEPS", 2)
    words = ["simulate", "--against", str(few), "--held-out", "kernels", "--folds", "2", "--jobs", "1"]
    assert main([*words, "-o", str(compared)]) == 0
    found = json.loads(compared.read_text())["smollm2-135m"]
    assert found["kernels"] == len(found["pairs"]) == 4
    by_shipped = tmp_path / "shipped.json"
    assert main(["simulate", "--against", str(few), "-o", str(by_shipped)]) == 0
    shipped = json.loads(by_shipped.read_text())["smollm2-135m"]["pairs"]
    assert [p["measured_ms"] for p in shipped] == [p["measured_ms"] for p in found["pairs"]]
    assert all(a["simulated_ms"] != b["simulated_ms"] for a, b in zip(shipped, found["pairs"], strict=True))
    assert main([*words, "-o", str(tmp_path / "plot.svg")]) == 0
    assert (tmp_path / "plot.svg").read_text().count("<circle") == 4 + 1
    few.write_text(json.dumps(rows | {"rows": rows["rows"][:4]}))  # one kernel at four positions
    capsys.readouterr()
    assert main(words) == 2 and "AMK005" in capsys.readouterr().err


def test_one_measured_row_is_compared_with_its_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = json.loads((Path(__file__).parents[1] / "records" / "speed" / "h100-table.json").read_text())
    one = tmp_path / "one.json"
    one.write_text(json.dumps({**table, "rows": table["rows"][:1]}))
    assert main(["simulate", "--against", str(one)]) == 0
    shown = capsys.readouterr().out
    found = re.search(r"llama3-8b bf16 fast at 128 +(\S+) +\S+ +(\S+)%", shown)
    assert found is not None
    measured, off = found.groups()
    assert float(measured) == pytest.approx(5.0456, abs=1e-4) and abs(float(off)) < 3
