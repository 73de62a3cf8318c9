"""A first ring, right and wrong in the usual ways: each message says what to change, in the kernel's own lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import amk
from amk.cli import main
from amk.judges.replay import replay
from amk.report.diagnostic import AmkError
from amk.systems import System
from tests.systems.ring import READ, SIGNAL_FULL, WAIT_EMPTY, WAIT_FULL, WRITE, Mistake, ring

HERE = "tests/systems/ring.py"
WRONG: dict[str, tuple[Mistake, str, str]] = {
    "too few slots": (Mistake(slots=1, at_once=2), "AMK201", "with empty at 2 instead of 1"),
    "more free than slots": (Mistake(free=4), "AMK302", "start empty at 3 instead of 4"),
    "counter one too low": (Mistake(short=1), "AMK302", f"full to be 1 higher, every time at {HERE}:{WAIT_FULL}"),
    "one signal missing": (Mistake(short=-1), "AMK202", f"full to be 1 lower, every time at {HERE}:{WAIT_FULL}"),
    "no acquire": (Mistake(wait="relaxed"), "AMK302", f"make consumer's wait for full at {HERE}:{WAIT_FULL} acquire"),
    "no release": (Mistake(signal="relaxed"), "AMK302", f"signal of full at {HERE}:{SIGNAL_FULL} release"),
    "neither": (Mistake(wait="relaxed", signal="relaxed"), "AMK302", f"signal of full at {HERE}:{SIGNAL_FULL} release"),
    "given back before it is read": (Mistake(early=True), "AMK302", f"signal of empty at {HERE}:{READ - 1} behind"),
    "never asked for": (Mistake(unasked=True), "AMK302", "let producer wait for empty >= 4 before its access"),
}  # fmt: skip


def test_the_right_ring_is_safe() -> None:
    for slots in (1, 2, 3):
        verdict = amk.verify(ring(Mistake(slots=slots)))
        assert verdict.safe and verdict.verdict == "SAFE" and verdict.deterministic and not verdict.diagnostics


@pytest.mark.parametrize("name", WRONG)
def test_each_mistake_is_found_and_its_change_said(name: str) -> None:
    mistake, code, change = WRONG[name]
    verdict = amk.verify(ring(mistake))
    assert verdict.verdict == "UNSAFE" and verdict.finding is not None
    (diagnostic,) = verdict.diagnostics
    assert diagnostic.code == code and change in diagnostic.advice
    assert diagnostic.where is not None and (diagnostic.where.file or "").endswith(HERE)
    assert diagnostic.where.line in {WRITE, READ, WAIT_FULL, WAIT_EMPTY}
    assert change in verdict.explain() and "consumer" in verdict.explain()
    found = verdict.witness_json()
    assert found is not None and replay(found["system"], found["witness"])


def test_the_file_says_the_same_and_every_form_names_the_kernel_s_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, witness = tmp_path / "ring.json", tmp_path / "w.json"
    ring(Mistake(short=1)).save(file)
    for form in ("full", "concise", "json", "sarif", "github"):
        assert main(["verify", str(file), "--format", form, "--witness", str(witness)]) == 1
        output = "".join(capsys.readouterr())
        assert "ring.py" in output and str(WRITE) in output
        if form == "sarif":
            (result,) = json.loads(output.partition("\nUNSAFE")[0] if output.startswith("{") else output)["runs"][0][
                "results"
            ]
            place: dict[str, Any] = result["locations"][0]["physicalLocation"]
            assert place["artifactLocation"]["uri"].endswith(HERE) and place["region"]["startLine"] == WRITE
    assert main(["replay", str(witness)]) == 0
    assert "CONFIRMED" in capsys.readouterr().out


def test_certificates_are_for_their_system_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, other, proof = tmp_path / "good.json", tmp_path / "other.json", tmp_path / "proof.json"
    ring().save(good)
    ring(Mistake(short=1)).save(other)
    assert main(["verify", str(good), "--certificate", str(proof)]) == 0
    assert main(["check-certificate", str(good), str(proof)]) == 0
    assert main(["check-certificate", str(other), str(proof)]) == 3
    # evidence for `block` alone says nothing about what relaxed operations leave open
    relaxed = json.loads(good.read_text())
    relaxed["orders"]["wait"][0] = 0
    other.write_text(json.dumps(relaxed))
    assert main(["check-certificate", str(other), str(proof)]) == 3
    narrow = json.loads(good.read_text())
    narrow["orders"]["cta"][1] = 1
    other.write_text(json.dumps(narrow))
    assert main(["check-certificate", str(other), str(proof)]) == 3
    assert main(["verify", str(other)]) == 1
    assert "AMK505" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("scope", "place", "safe"),
    [
        ("cta", {}, True), ("cta", {"cta": 1}, False), ("cluster", {"cta": 1}, True),
        ("cluster", {"cluster": 1}, False),
        ("gpu", {"cluster": 1}, True), ("gpu", {"gpu": 1}, False), ("sys", {"gpu": 1, "cta": 3}, True),
    ],
)  # fmt: skip
def test_scopes_reach_as_far_as_they_say(scope: Any, place: dict[str, int], safe: bool) -> None:
    sys = System()
    data, flag = sys.buffer("data", 4), sys.counter("flag", scope=scope)
    with sys.agent("writer") as w:
        w.write(data, 0, 4)
        w.signal(flag)
    with sys.agent("reader", **place) as r:
        r.wait(flag, 1)
        r.read(data, 0, 4)
    verdict = amk.verify(sys)
    assert verdict.safe == safe and (safe or verdict.diagnostics[0].code == "AMK505")


def test_copies_are_not_ordered_among_themselves() -> None:
    """Two copies into one slot: the second needs the first's completion, however late it is issued."""
    for waits in (False, True):
        sys = System()
        slot, done = sys.buffer("slot", 128), sys.counter("done", scope="cta")
        with sys.agent("producer") as p:
            p.copy(None, (slot, 0, 128), done, value="first")
            if waits:
                p.wait(done, 1)
            p.copy(None, (slot, 0, 128), done, value="second")
        with sys.agent("consumer") as c:
            c.wait(done, 2)
            c.read(slot, 0, 128, value="second")
        verdict = amk.verify(sys)
        assert verdict.safe == waits and (waits or verdict.diagnostics[0].code == "AMK301")


def test_what_is_read_must_be_what_is_meant() -> None:
    sys = System()
    data = sys.buffer("data", 8)
    with sys.agent("only") as a:
        a.write(data, 0, 8, value="old")
        a.read(data, 0, 8, value="new")
    assert amk.verify(sys).diagnostics[0].code == "AMK104"
    sys = System()
    with sys.agent("only") as a:
        a.read(sys.buffer("data", 8), 4, 8, value="anything")
    assert amk.verify(sys).diagnostics[0].code == "AMK105"
    sys = System()
    data = sys.buffer("data", 8)
    sys.initial(data, 0, 8, "zero")
    sys.final(data, 0, 8, "sum")
    assert amk.verify(sys).diagnostics[0].code == "AMK104"


BAD = [
    ("AMK005", "p.wait(full, -1)"), ("AMK005", "p.wait(full, True)"), ("AMK005", "p.signal(full, 0)"),
    ("AMK005", "p.read(data, 4, 4)"), ("AMK005", "p.read(data, 0, 9)"), ("AMK005", "p.wait(full, 1, order='strong')"),
    ("AMK009", "p.wait(data, 1)"), ("AMK009", "p.read(other, 0, 4)"), ("AMK007", "sys.agent('p')"),
    ("AMK008", "sys.agent('')"), ("AMK005", "sys.counter('x', scope='block')"), ("AMK005", "sys.buffer('x', 0)"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "call"), BAD)
def test_errors_are_at_the_caller_s_line(code: str, call: str) -> None:
    sys = System()
    names: dict[str, Any] = {
        "sys": sys,
        "p": sys.agent("p"),
        "full": sys.counter("full"),
        "data": sys.buffer("data", 8),
    }
    names["other"] = System().buffer("data", 8)
    with pytest.raises(AmkError) as error:
        exec(compile("\n" * 6 + call, "kernel.py", "exec"), names)
    (found,) = error.value.diagnostics
    assert found.code == code and found.where is not None
    assert (found.where.file, found.where.line) == ("kernel.py", 7)
