"""A file given where another kind is expected is refused by what it is, as bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amk.adversary.neighbourhood.bases import base
from amk.cli import main
from amk.report.diagnostic import Exit


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A schedule, its certificate, a flat system, its certificate, and a witness, by name."""
    folder = tmp_path_factory.mktemp("kinds")
    found = {name: str(folder / f"{name}.json") for name in ("schedule", "certificate", "flat", "of-flat", "witness")}
    Path(found["schedule"]).write_text(json.dumps(base("fenced")))
    system = {"format": "amk.flat/1", "name": "none", "agents": [[]], "counters": []}
    Path(found["flat"]).write_text(json.dumps(system))
    Path(found["of-flat"]).write_text(json.dumps({"format": "amk.flat-certificate/1"}))
    Path(found["witness"]).write_text(json.dumps({"format": "amk.evidence/1"}))
    assert main(["verify", found["schedule"], "--certificate", found["certificate"]]) == Exit.SAFE
    return found


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("certificate", "a certificate of a schedule"),
        ("of-flat", "a certificate of a flat system"),
        ("witness", "a witness"),
    ],
)
@pytest.mark.parametrize("command", ["verify", "emulate", "check-certificate", "diff", "compile", "trace"])
def test_no_schedule(
    files: dict[str, str], command: str, name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    further = [files["certificate"]] if command in ("check-certificate", "diff") else []
    assert main([command, files[name], *further]) == Exit.INPUT
    message = capsys.readouterr().err
    assert f"error[AMK005]: the file is {kind}, not a schedule" in message and files[name] in message
    assert "make the schedule again" not in message


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("schedule", "a schedule"),
        ("flat", "a flat system"),
        ("of-flat", "a certificate of a flat system"),
        ("witness", "a witness"),
    ],
)
def test_no_certificate(files: dict[str, str], name: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-certificate", files["schedule"], files[name]]) == Exit.INPUT
    message = capsys.readouterr().err
    assert f"error[AMK005]: the file is {kind}, not a certificate of a schedule" in message and files[name] in message


def test_a_certificate_that_says_nothing_is_refused(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others: list[object] = [{"format": "amk.certificate/4"}, {}, [], {"format": 5}]
    for content in others:
        (file := tmp_path / "c.json").write_text(json.dumps(content))
        assert main(["check-certificate", files["schedule"], str(file)]) == Exit.UNKNOWN
        assert "AMK206" in capsys.readouterr().err


def test_a_version_that_is_not_known_is_told_as_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file := tmp_path / "s.json").write_text("{}")
    assert main(["verify", str(file)]) == Exit.INPUT
    assert "AMK004" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_certificate_that_is_not_written_is_told(
    form: str, files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a schedule, and of a flat system whose only agent waits for what nobody signals."""
    block = {
        "format": "amk.system/1", "agent_first": [0, 1], "counter_init": [0],
        "wait_first": [0, 1], "wait_counter": [0], "wait_threshold": [1],
        "signal_first": [0, 0], "signal_counter": [], "signal_amount": [],
        "access_first": [0, 0], "access_buffer": [], "access_lo": [], "access_hi": [], "access_kind": [],
    }  # fmt: skip
    stuck = {"format": "amk.flat/1", "name": "stuck", "systems": {"block": block}}
    (system := tmp_path / "stuck.json").write_text(json.dumps(stuck))
    for file in ("adversarial/missing-wait.json", str(system)):
        certificate = tmp_path / "c.json"
        assert main(["verify", file, "--certificate", str(certificate), "--format", form]) == Exit.UNSAFE
        printed = capsys.readouterr()
        assert f"not written: {certificate}; UNSAFE has no certificate" in printed.err
        assert form == "text" or json.loads(printed.out)["verdict"] == "UNSAFE"
        assert not certificate.exists()
