"""`amk trace`: pages and traces of schedules, witnesses and recordings; bad input is one diagnostic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amk import cli
from amk.adversary.neighbourhood.bases import base
from amk.schedule_ir.codec import canonical_json, save_schedule
from tests.report.test_timeline import Page, data, well_formed
from tests.trace.recordings import synthetic_recording
from tests.validator.plans import from_document, small_plan

ADVERSARIAL = Path(__file__).parents[2] / "adversarial"


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = cli.main(["trace", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def schedule(tmp_path: Path) -> Path:
    save_schedule(small_plan(), tmp_path / "s.json")
    return tmp_path / "s.json"


def test_a_schedule_becomes_a_page_and_a_trace(schedule: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, trace = schedule.with_name("t.html"), schedule.with_name("t.json")
    code, out, err = run([str(schedule), "-o", str(page), "-o", str(trace), "--format", "json"], capsys)
    found = json.loads(out)
    assert code == 0 and err.count("wrote") == 2 and found["marked"] == 0
    drawn = data(page.read_text())
    assert len(drawn["spans"]["track"]) == found["spans"] and len(drawn["arrows"]["source"]) == found["arrows"] > 0
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(e["ph"] == "X" for e in events) == found["spans"]


def test_workers_warps_and_tokens_are_chosen(schedule: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(schedule), "--workers", "1,3", "--warps", "all", "--tokens", "2", "--format", "json"]
    code, out, _ = run(words, capsys)
    assert code == 0 and json.loads(out)["tracks"] == 2 * small_plan().launch.warps
    code, out, _ = run([str(schedule), "--format", "json"], capsys)
    assert code == 0 and json.loads(out)["tracks"] == 4 * 2


@pytest.mark.turns(24)
@pytest.mark.parametrize(
    ("name", "marked"), [("missing-wait", 2), ("queue-inversion", None), ("merge-before-attend", None)]
)
def test_a_witness_is_drawn_and_marked(
    name: str, marked: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = json.loads((ADVERSARIAL / f"{name}.json").read_text())
    schedule, witness = tmp_path / "s.json", tmp_path / "w.json"
    schedule.write_bytes(canonical_json(from_document(case["schedule"])))
    assert cli.main(["verify", str(schedule), "--witness", str(witness)]) == 1
    capsys.readouterr()
    page = tmp_path / "t.html"
    code, out, _ = run([str(schedule), "--witness", str(witness), "-o", str(page), "--format", "json"], capsys)
    found = json.loads(out)
    assert code == 0 and found["marked"] >= 1 and found["marked"] == (marked or found["marked"])
    steps = sum(count for _, count in json.loads(witness.read_text())["witness"]["order"])
    assert found["spans"] <= steps + 40
    assert len(data(page.read_text())["spans"]["marked"]) == found["marked"]
    code, out, _ = run([str(schedule), "--witness", str(witness), "--workers", "0", "--format", "json"], capsys)
    assert code == 0 and 0 < json.loads(out)["tracks"] <= small_plan().launch.warps


def test_an_unsafe_schedule_is_drawn_as_its_witness(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = json.loads((ADVERSARIAL / "missing-wait.json").read_text())
    schedule, page = tmp_path / "s.json", tmp_path / "t.html"
    schedule.write_bytes(canonical_json(from_document(case["schedule"])))
    code, out, _ = run([str(schedule), "-o", str(page), "--format", "json"], capsys)
    found = json.loads(out)
    assert code == 0 and found["marked"] == 2 and len(data(page.read_text())["spans"]["marked"]) == 2
    assert found["notes"][0].startswith("UNSAFE: AMK302") and any("of h_mid" in note for note in found["notes"])
    code, out, _ = run([str(schedule), "--logical", "--format", "json"], capsys)
    assert code == 0 and json.loads(out)["marked"] == 0 and "logical order" in json.loads(out)["title"]


@pytest.mark.turns(4)
def test_words_that_get_one_tag_twice_are_no_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two hidden states of a layer in one buffer: the tag does not say which."""
    text = json.dumps(base("tagged"))
    merged = json.loads(text.replace('"h_mid"', '"h_out"'))
    for kind in ("buffers", "counters"):
        merged[kind] = list({each["name"]: each for each in merged[kind]}.values())
    path = tmp_path / "merged.json"
    path.write_text(json.dumps(merged))
    assert cli.main(["trace", str(path), "-o", str(tmp_path / "merged.html")]) == 1
    assert "error[AMK513]" in capsys.readouterr().err


def test_a_witness_of_another_schedule_is_refused(
    schedule: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = json.loads((ADVERSARIAL / "missing-wait.json").read_text())
    bad, witness = tmp_path / "bad.json", tmp_path / "w.json"
    bad.write_bytes(canonical_json(from_document(case["schedule"])))
    cli.main(["verify", str(bad), "--witness", str(witness)])
    capsys.readouterr()
    code, _, err = run([str(schedule), "--witness", str(witness)], capsys)
    assert code == 2 and "AMK005" in err and "another schedule" in err
    raw = json.loads(witness.read_text())
    raw["system"]["event_tag"] = raw["system"]["event_tag"][::-1]
    witness.write_text(json.dumps(raw))
    code, _, err = run([str(bad), "--witness", str(witness)], capsys)
    assert code == 2 and "AMK005" in err


def test_a_recording_is_drawn_without_a_gpu(schedule: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw, page = schedule.with_name("raw.json"), schedule.with_name("t.html")
    raw.write_text(synthetic_recording(small_plan()).model_dump_json())
    code, out, _ = run([str(schedule), "--from", str(raw), "-o", str(page)], capsys)
    assert code == 0 and "exposed wait us" in out and "gate_up" in out and "SM imbalance" in out
    assert "Where a token" in Page(page.read_text()).text
    _, out, _ = run([str(schedule), "--from", str(raw), "--format", "json"], capsys)
    assert len(json.loads(out)["tables"]) == 3


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--workers", "4"], 2),
        (["--pos", "-1"], 2),
        (["--pos", "100000000"], 2),
        (["--record", "x.json"], 2),
        (["--from", "nope.json"], 2),
        (["--witness", "nope.json"], 2),
        (["-o", "/nonexistent/t.html"], 2),
    ],
)
def test_bad_requests_are_one_diagnostic(
    words: list[str], code: int, schedule: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, _, err = run([str(schedule), *words], capsys)
    assert found == code and err.startswith("error[AMK") and "Traceback" not in err


def test_a_hostile_recording_cannot_inject(schedule: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw, page = schedule.with_name("raw.json"), schedule.with_name("t.html")
    recording = synthetic_recording(small_plan()).model_copy(update={"device": "</script><script>alert(1)</script>"})
    raw.write_text(recording.model_dump_json())
    assert run([str(schedule), "--from", str(raw), "-o", str(page)], capsys)[0] == 0
    assert len(Page(page.read_text()).scripts) == 2


@pytest.mark.turns(4)
def test_the_page_of_a_full_size_schedule_is_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule, page = tmp_path / "s.json", tmp_path / "t.html"
    assert cli.main(["plan", "--model", "llama3-8b", "--gpu", "h200", "-o", str(schedule)]) == 0
    assert run([str(schedule), "-o", str(page)], capsys)[0] == 0
    assert page.stat().st_size < 1_000_000 and len(data(page.read_text())["spans"]["track"]) > 1000


@pytest.mark.parametrize("words", [[], ["--workers", "0-3", "--warps", "all", "--tokens", "2"], ["--witness"]])
def test_what_perfetto_reads_is_well_formed(
    words: list[str], schedule: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.json"
    if words == ["--witness"]:
        schedule, witness = ADVERSARIAL / "missing-wait.json", tmp_path / "w.json"
        cli.main(["verify", str(schedule), "--witness", str(witness), "--fix-seconds", "0"])
        words = ["--witness", str(witness)]
    assert run([str(schedule), *words, "-o", str(trace)], capsys)[0] == 0
    found = json.loads(trace.read_text())
    well_formed(found)
    assert sum(e["ph"] == "s" for e in found["traceEvents"]) > 5
