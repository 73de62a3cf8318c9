"""Schedule files: canonical text, hash, and hostile input: exit 2, one clear diagnostic, bounded time."""

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from amk.adversary.neighbourhood.bases import base
from amk.cli import main
from amk.report.diagnostic import AmkError, Exit
from amk.schedule_ir.codec import CASE, canonical_json, load_schedule, parse_schedule, schedule_hash
from amk.schedule_ir.references import check_references
from amk.schedule_ir.schedule import VERSION, Schedule
from tests.validator.plans import small_plan

TEXT = canonical_json(small_plan())
HEAD = f'"version":{VERSION}'.encode()


def _codes(content: bytes) -> list[str]:
    with pytest.raises(AmkError) as caught:
        parse_schedule(content, "f.json")
    assert caught.value.exit_code == Exit.INPUT
    return [d.code for d in caught.value.diagnostics]


def test_canonical_text_round_trips_and_the_hash_is_stable() -> None:
    schedule, positions = parse_schedule(TEXT, "f.json")
    assert schedule == small_plan() and canonical_json(schedule) == TEXT
    indented = json.dumps(json.loads(TEXT), indent=2).encode()
    assert schedule_hash(parse_schedule(indented, "f.json")[0]) == schedule_hash(schedule)
    assert positions.nearest("/programs/0/body/99/op") == 1


def _changed(path: tuple[str | int, ...], value: Any) -> bytes:
    document = json.loads(TEXT)
    parent = document
    for part in path[:-1]:
        parent = parent[part]
    parent[path[-1]] = value
    return json.dumps(document, indent=1).encode()


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        (("version",), VERSION + 1, "AMK004"),
        (("version",), True, "AMK004"),
        (("surprise",), 1, "AMK005"),
        (("launch", "workers"), -1, "AMK005"),
        (("launch", "workers"), 10**30, "AMK005"),
        (("launch", "warps"), 1.5, "AMK005"),
        (("kv", "block"), 0, "AMK005"),
        (("roles", 0, "name"), "rôle", "AMK008"),
        (("roles", 0, "name"), "../../etc/passwd", "AMK008"),
        (("roles", 1, "name"), "all", "AMK007"),
        (("buffers", 1, "name"), "weights", "AMK007"),
        (("tables", "qkv.first"), [0], "AMK005"),
        (("tables", "l"), [0, 0, 0, 0], "AMK007"),
        (("programs", 0, "first"), 1, "AMK005"),
        (("programs", 0, "body", 1, "var"), "l", "AMK005"),
        (("programs", 0, "body", 0, "op", "role"), "nobody", "AMK009"),
        (("programs", 0, "body", 0, "op", "op"), "explode", "AMK005"),
        (("programs", 0, "body", 1, "body", 0, "op", "x"), "ssq", "AMK005"),
        (("counters", 0, "shape"), [2**41], "AMK005"),
        (("model", "rms_eps"), "1e-5", "AMK005"),
    ],
)
def test_wrong_values_are_refused_with_their_line(path: tuple[str | int, ...], value: Any, code: str) -> None:
    with pytest.raises(AmkError) as caught:
        parse_schedule(_changed(path, value), "f.json")
    first = caught.value.diagnostics[0]
    assert first.code == code
    assert first.where is not None and first.where.line is not None and first.where.file == "f.json"


def test_damaged_text_is_refused() -> None:
    assert _codes(b"") == ["AMK001"]
    assert _codes(TEXT[: len(TEXT) // 2]) == ["AMK001"]
    assert _codes(b"[1, 2]") == ["AMK005"]
    assert _codes(b"[" * 100_000) == ["AMK003"]
    assert _codes(TEXT.replace(b'"block":', b'"block":NaN,"x":', 1)) == ["AMK006"]
    assert _codes(TEXT.replace(HEAD, HEAD + b"," + HEAD, 1)) == ["AMK007"]
    assert _codes(TEXT.replace(HEAD, b'"version":' + b"9" * 5000, 1)) == ["AMK005"]


def test_an_older_file_is_refused_by_its_version_and_told_how_to_be_made_again() -> None:
    """Before anything else in it is read: fields of older files mean other things, or are missing."""
    document = json.loads(TEXT)
    document["version"] = 1
    del document["programs"]
    with pytest.raises(AmkError) as caught:
        parse_schedule(json.dumps(document).encode(), "old.json")
    (found,) = caught.value.diagnostics
    assert found.code == "AMK004" and "version 1" in found.message and f"version {VERSION}" in found.message
    assert f"amk plan --model {document['model']['name']} --gpu {document['target']['name']}`" in str(found.help)
    document["model"]["name"], document["target"] = "x; rm -rf /", 7
    with pytest.raises(AmkError) as caught:
        parse_schedule(json.dumps(document).encode(), "old.json")
    assert "`amk plan`" in str(caught.value.diagnostics[0].help)


def test_random_bytes_and_random_damage_never_do_anything_else() -> None:
    rng = random.Random(5)
    started = time.process_time()
    for _ in range(150):
        damaged = bytearray(TEXT)
        for _ in range(rng.randrange(1, 6)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        for content in (bytes(damaged), rng.randbytes(200)):
            try:
                parse_schedule(content, "f.json")
            except AmkError as error:
                assert error.exit_code == Exit.INPUT
    assert time.process_time() - started < 20


@pytest.mark.parametrize("kind", ["sparse", "fifo", "missing", "folder"])
def test_files_that_are_no_schedule_end_with_exit_2(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.json"
    if kind == "sparse":
        with path.open("wb") as file:
            file.truncate(2**30)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    started = time.process_time()
    assert main(["verify", str(path)]) == 2
    shown = capsys.readouterr().err
    assert shown.count("error[AMK0") == 1 and "Traceback" not in shown
    assert time.process_time() - started < 5


def test_a_file_on_disk_loads(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_bytes(TEXT)
    assert load_schedule(tmp_path / "s.json")[0] == small_plan()


def test_a_case_of_the_suite_is_read_as_its_schedule() -> None:
    head = {"format": CASE, "name": "x", "class": "y", "schedule": json.loads(TEXT)}
    schedule, positions = parse_schedule(json.dumps(head, indent=1).encode(), "case.json")
    assert schedule == small_plan()
    region = positions.region("/programs/0/name")
    assert region is not None and region.line > 5 and region.text == f'"name": "{schedule.programs[0].name}"'
    assert positions.region("/format") == positions.region("")
    assert _codes(json.dumps(head | {"schedule": {"format": CASE}}).encode()) == ["AMK004"]
    assert _codes(json.dumps({"format": CASE, "system": {}}).encode()) == ["AMK005"]
    assert _codes(json.dumps(head | {"format": "amk.case/2"}).encode()) == ["AMK004"]


def test_programs_stand_in_the_order_of_their_workers() -> None:
    """All that counts workers, and the kernel that asks which program a worker runs, rely on it."""
    schedule = Schedule.model_validate_json(json.dumps(base("two programs")))
    assert len(schedule.programs) > 1 and not check_references(schedule)
    other = schedule.model_copy(update={"programs": tuple(reversed(schedule.programs))})
    assert {diagnostic.code for diagnostic in check_references(other)} == {"AMK005"}
