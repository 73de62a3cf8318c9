"""The public benchmark: amk agrees with its truth, its cases are those of the code, and its score counts rightly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from amk.systems.benchmark.score import by_family, main, read, score
from amk.systems.document import parse_system, to_json
from amk.systems.incidents import load
from amk.systems.verdict import judged
from tests.systems.make_benchmark import FILE

CASES = read(str(FILE))
EVERY = 1 if "AMK_SYSTEMS" in os.environ else 4


def test_amk_gives_the_expected_verdicts() -> None:
    wrong = []
    for case in CASES[::EVERY]:
        verdict = judged(parse_system(json.dumps(case["system"]).encode(), case["name"]))
        if verdict.verdict != case["expected"]:
            wrong.append((case["name"], verdict.verdict))
    assert not wrong


def test_every_incident_is_in_it_as_it_is_in_the_code() -> None:
    stored = {case["name"]: case["system"] for case in CASES}
    for incident in load().values():
        for fixed, name in ((False, "reported"), (True, "fixed")):
            document, kept = to_json(incident.system(fixed).flat()), dict(stored[f"{incident.name}/{name}"])
            document.pop("sources")
            kept.pop("sources")
            assert document == kept


def test_the_verdicts_are_mixed_and_the_names_unique() -> None:
    assert len({case["name"] for case in CASES}) == len(CASES) > 200
    for family in ("incident", "construct", "schedule", "random"):
        expected = [case["expected"] for case in CASES if case["family"] == family]
        assert 5 * min(expected.count("SAFE"), expected.count("UNSAFE")) > len(expected), family


def test_the_score_counts_every_kind_of_answer() -> None:
    cases = [{"name": str(n), "expected": "SAFE" if n % 2 else "UNSAFE", "family": "f"} for n in range(6)]
    answers = {"0": "UNSAFE", "1": "UNSAFE", "2": "SAFE", "3": "UNKNOWN", "4": "UNKNOWN", "9": "SAFE"}
    report = score(cases, [{"name": name, "verdict": verdict, "seconds": 1} for name, verdict in answers.items()])
    found = {kind: names for kind, names in report["by_outcome"].items() if names}
    assert found == {
        "right": ["0"], "false UNSAFE": ["1"], "false SAFE": ["2"], "UNKNOWN": ["3", "4"], "missing": ["5"],
    }  # fmt: skip
    assert by_family(cases, report["by_outcome"]) == [("f", 6, 1)] and report["seconds"]["sum"] == 5


def test_the_score_needs_nothing_of_amk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It runs any command; one that says SAFE to everything is told so."""
    cases = tmp_path / "cases.jsonl"
    cases.write_text("".join(json.dumps(case) + "\n" for case in CASES[:2]))
    results = tmp_path / "results.jsonl"
    command = f"{sys.executable} -c pass {{}}"
    script = FILE.parent / "score.py"
    done = subprocess.run(
        [sys.executable, "-I", str(script), str(cases), "--run", command, "--write", str(results)],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1 and "false SAFE      1" in done.stdout, done.stdout + done.stderr
    assert "import amk" not in script.read_text() and "from amk" not in script.read_text()
    assert main([str(cases), str(results)]) == 1
    assert "false SAFE      1" in capsys.readouterr().out
