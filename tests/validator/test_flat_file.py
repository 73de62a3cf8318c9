"""What `--emit-system` writes can be judged by a reader that knows nothing but the format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amk.adversary.cases import RECIPES, make_case, repaired
from amk.cli import main
from amk.report.diagnostic import Exit
from amk.schedule_ir.codec import save_schedule, schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.validator.export.flat_file import flat_file
from amk.validator.verify import verify
from tests.cases import cases
from tests.validator.flat_reader import safe
from tests.validator.plans import MODELS, SMALL, from_document, small_plan


def written(schedule: Schedule, tmp_path: Path) -> dict[str, object]:
    file, system = tmp_path / "s.json", tmp_path / "flat.json"
    save_schedule(schedule, file)
    assert main(["verify", str(file), "--emit-system", str(system), "--tokens", "1"]) in (Exit.SAFE, Exit.UNSAFE)
    found: dict[str, object] = json.loads(system.read_text())
    return found


@pytest.mark.parametrize("name", ["fast", "naive"])
def test_safe_plans(name: str, tmp_path: Path) -> None:
    schedule = small_plan(SMALL["two-warps"] if name == "fast" else SMALL[name], MODELS["qk-norm"], workers=2)
    file = written(schedule, tmp_path)
    assert file["schedule"] == schedule_hash(schedule) and file["format"] == "amk.flat/1"
    systems = file["systems"]
    assert isinstance(systems, dict) and set(systems) == ({"block"} if name == "naive" else {"block", "word", "fence"})
    assert safe(file)


UNSAFE = ["missing-wait", "threshold-high", "relaxed-signal", "merge-before-attend", "wait-after-read"]


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", UNSAFE[:: cases(2, 1)])
def test_unsafe_cases_and_their_twins(name: str) -> None:
    case = make_case(next(recipe for recipe in RECIPES if recipe.name == name))
    for document, expected in ((case["schedule"], "UNSAFE"), (repaired(case), "SAFE")):
        schedule = from_document(document)
        assert verify(schedule).status == expected
        assert safe(json.loads(json.dumps(flat_file(schedule, 0, 1)))) == (expected == "SAFE")


RUNS = ("AMK104", "AMK105", "AMK106", "AMK2", "AMK302", "AMK501", "AMK502")
"""Findings of the classes' files that runs show; the others are listed in `system-format.md`."""
CLASSES = [f for f in sorted((Path(__file__).parents[2] / "adversarial").glob("class-*.json")) if "-34-" not in f.name]


@pytest.mark.turns(4)
@pytest.mark.parametrize("file", CLASSES, ids=lambda f: f.stem[:8])
def test_the_reader_judges_the_files_of_the_classes_as_they_say(file: Path) -> None:
    """Class 34 is about copies, which are no events."""
    case = json.loads(file.read_text())
    if case["status"] != "UNSAFE" or not case["expect"].startswith(RUNS):
        return
    for document, expected in ((case["schedule"], False), (repaired(case), True)):
        assert safe(json.loads(json.dumps(flat_file(from_document(document), 0, 2)))) == expected


def test_what_a_flat_system_cannot_say_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    system = tmp_path / "flat.json"
    case = next(f for f in CLASSES if f.stem.startswith("class-15"))
    assert main(["verify", str(case), "--emit-system", str(system)]) == Exit.UNKNOWN
    assert "AMK208" in capsys.readouterr().err and not system.exists()


def test_steps_and_loops_lead_back_to_the_schedule() -> None:
    schedule = small_plan(SMALL["naive"], MODELS["qk-norm"], workers=2)
    file = flat_file(schedule, 0, 2)
    document = json.loads(schedule.model_dump_json())
    tags = file["systems"]["block"]["event_tag"]
    for pointer, loops, warp in file["steps"][0]:
        node = document
        for part in pointer.strip("/").split("/"):
            node = node[int(part)] if isinstance(node, list) else node[part]
        assert "op" in node and set(loops) <= {"t", "l"} and 0 <= warp < schedule.launch.warps
    assert 0 <= max(tags) < len(file["steps"][0])
    assert file["loops"][0]["workers"] == [0, 2] and file["loops"][0]["body"][1][:2] == ["t", None]
