"""The file: what amk emits is read back with the same verdict, and what is no system is refused at its place."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from amk.adversary.cases import RECIPES, make_case, repaired
from amk.cli import main
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import save_schedule
from amk.systems.document import parse_system, schema, to_json, written
from amk.systems.verdict import judged
from amk.validator.export.flat_file import flat_file
from amk.validator.verify import verify
from tests.systems.ring import ring
from tests.validator.plans import MODELS, SMALL, from_document, small_plan
from tests.validator.test_flat_file import CLASSES, RUNS, UNSAFE

VALIDATOR = jsonschema.Draft202012Validator(schema())


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", UNSAFE)
def test_emitted_systems_get_the_verdict_of_their_schedules(name: str) -> None:
    case = make_case(next(recipe for recipe in RECIPES if recipe.name == name))
    for document, expected in ((case["schedule"], "UNSAFE"), (repaired(case), "SAFE")):
        schedule = from_document(document)
        assert verify(schedule).status == expected
        emitted = json.loads(json.dumps(flat_file(schedule, 0, 1)))
        VALIDATOR.validate(emitted)
        assert judged(parse_system(json.dumps(emitted).encode(), "flat.json")).verdict == expected


@pytest.mark.turns(4)
@pytest.mark.parametrize("file", CLASSES, ids=lambda f: f.stem[:8])
def test_emitted_systems_of_the_classes(file: Path) -> None:
    case = json.loads(file.read_text())
    if case["status"] != "UNSAFE" or not case["expect"].startswith(RUNS):
        return
    for document, expected in ((case["schedule"], "UNSAFE"), (repaired(case), "SAFE")):
        text = json.dumps(flat_file(from_document(document), 0, 2)).encode()
        assert judged(parse_system(text, "flat.json")).verdict == expected


@pytest.mark.parametrize("name", ["two-warps", "naive"])
def test_emit_then_verify(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule, system, proof = tmp_path / "s.json", tmp_path / "flat.json", tmp_path / "proof.json"
    save_schedule(small_plan(SMALL[name], MODELS["qk-norm"], workers=2), schedule)
    assert main(["verify", str(schedule), "--emit-system", str(system), "--tokens", "1"]) == 0
    assert main(["verify", str(system)]) == 0
    if name == "naive":
        assert main(["verify", str(system), "--certificate", str(proof)]) == 0
        assert main(["check-certificate", str(system), str(proof)]) == 0
    assert "SAFE" in capsys.readouterr().out


def edited(change: dict[str, Any]) -> bytes:
    """The ring's file with values replaced by pointer; indented, one number a line."""
    document = copy.deepcopy(to_json(ring().flat()))
    for pointer, value in change.items():
        *parents, last = pointer.strip("/").split("/")
        at: Any = document
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if value is None:
            del at[last]
        elif isinstance(at, list):
            at[int(last)] = value
        else:
            at[last] = value
    return json.dumps(document, indent=1).encode()


BLOCK = "/systems/block"
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({f"{BLOCK}/wait_counter/5": 2}, "AMK005", f"{BLOCK}/wait_counter/5"),
    ({f"{BLOCK}/wait_threshold/3": -1}, "AMK005", f"{BLOCK}/wait_threshold/3"),
    ({f"{BLOCK}/wait_threshold/3": 10**30}, "AMK005", f"{BLOCK}/wait_threshold/3"),
    ({f"{BLOCK}/wait_threshold/3": 1.5}, "AMK005", f"{BLOCK}/wait_threshold/3"),
    ({f"{BLOCK}/wait_threshold/3": "1"}, "AMK005", f"{BLOCK}/wait_threshold/3"),
    ({f"{BLOCK}/signal_amount/0": 0}, "AMK005", f"{BLOCK}/signal_amount/0"),
    ({f"{BLOCK}/access_kind/1": 4}, "AMK005", f"{BLOCK}/access_kind/1"),
    ({f"{BLOCK}/access_hi/2": 0}, "AMK005", f"{BLOCK}/access_hi/2"),
    ({f"{BLOCK}/access_lo/2": 99999}, "AMK005", f"{BLOCK}/access_hi/2"),
    ({f"{BLOCK}/wait_first": [0]}, "AMK005", f"{BLOCK}/wait_first"),
    ({f"{BLOCK}/agent_first/1": 99}, "AMK005", f"{BLOCK}/agent_first"),
    ({f"{BLOCK}/agent_first": []}, "AMK005", f"{BLOCK}/agent_first"),
    ({f"{BLOCK}/access_lo": None}, "AMK005", f"{BLOCK}"),
    ({f"{BLOCK}/acess_lo": [1]}, "AMK005", f"{BLOCK}/acess_lo"),
    ({"/orders/scope/1": 4}, "AMK005", "/orders/scope/1"),
    ({"/orders/wait": [1]}, "AMK005", "/orders/wait"),
    ({"/orders/cta/0": -1}, "AMK005", "/orders/cta/0"),
    ({"/sources/event/0": 99}, "AMK005", "/sources/event/0"),
    ({"/sources/event": [0]}, "AMK005", "/sources/event"),
    ({"/systems/word": to_json(ring().flat())["systems"]["block"]}, "AMK005", "/systems"),
    ({"/format": "amk.flat/2"}, "AMK004", "/format"),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_what_is_no_system_is_refused_at_its_line(number: int, tmp_path: Path) -> None:
    change, code, pointer = BAD[number]
    content = edited(change)
    with pytest.raises(AmkError) as error:
        parse_system(content, "system.json")
    found = error.value.diagnostics[0]
    assert found.code == code and found.where is not None and found.where.file == "system.json"
    assert (found.where.path or "").startswith(pointer)
    assert found.where.line is not None and found.where.column is not None
    line = content.decode().splitlines()[found.where.line - 1]
    (value,) = change.values()
    if pointer in change and isinstance(value, int | float | str):
        assert json.dumps(value) in line
    file = tmp_path / "system.json"
    file.write_bytes(content)
    assert main(["verify", str(file)]) == 2


def test_text_that_is_not_json_or_too_much_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = edited({})
    for k, content in enumerate((whole[:500], whole[:-2], b'{"format": "amk.flat/1", "format": "amk.flat/1"}')):
        file = tmp_path / f"{k}.json"
        file.write_bytes(content)
        assert main(["verify", str(file)]) == 2
    assert "AMK007" in capsys.readouterr().err


def test_options_of_schedules_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "ring.json"
    ring().save(file)
    for option in (["--fix"], ["--emit-system", "x"], ["--emit-smt", "x"], ["--timeout", "3"]):
        assert main(["verify", str(file), *option]) == 2


def test_the_schema_accepts_what_is_written_and_refuses_misspellings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--system"]) == 0
    assert json.loads(capsys.readouterr().out) == schema()
    document = json.loads(written(ring().flat()))
    VALIDATOR.validate(document)
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(document | {"system": {}})
