"""`amk emulate`: tokens of a small schedule, and what ends it before it is through."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from amk.adversary.neighbourhood.bases import base
from amk.cli import main
from amk.commands.emulate import compiled
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.settings import FAST
from amk.report.diagnostic import Exit
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from tests.tiny import tiny


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A schedule, and beside it its PTX."""
    file = tmp_path_factory.mktemp("emulate") / "small.json"
    file.write_text(json.dumps(base("fenced")))
    file.with_suffix(".ptx").write_text(compiled(Schedule.model_validate_json(file.read_text())))
    return file


def test_tokens_do_not_depend_on_the_order(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for order in ("round-robin", "seed:3"):
        asked = ["emulate", str(small), "--ptx", str(small.with_suffix(".ptx")), "--tokens", "3", "--order", order]
        assert main([*asked, "--format", "json"]) == Exit.SAFE
        shown.append(json.loads(capsys.readouterr().out))
    assert shown[0]["tokens"] == shown[1]["tokens"] and not shown[0]["faults"]


def test_more_sequences_than_tokens_of_the_vocabulary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, settings = tiny(layers=1, hidden=64, ffn=64, heads=2, kv_heads=1, vocab=4), replace(FAST, batch=5)
    schedule = plan(model, load_target("h200"), settings=replace(settings, kv_block=16, warps=2), workers=2)
    (file := tmp_path / "many.json").write_text(schedule.model_dump_json())
    assert main(["emulate", str(file), "--tokens", "1", "--format", "json"]) == Exit.SAFE
    (step,) = json.loads(capsys.readouterr().out)["tokens"]
    assert len(step) == 5


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([[2, 0]], "2 workers of 2 warps"),
        ([[0, 2]], "2 workers of 2 warps"),
        ([[-1, 0]], "neither a witness nor a list"),
        ([[10**30, 0]], "2 workers of 2 warps"),
        (["11"], "neither a witness nor a list"),
        (5, "neither a witness nor a list"),
        ({"format": "amk.evidence/1"}, "not a witness file"),
    ],
)
def test_an_order_of_other_warps_is_refused(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], order: object, message: str
) -> None:
    (file := tmp_path / "order.json").write_text(json.dumps(order))
    asked = ["emulate", str(small), "--ptx", str(small.with_suffix(".ptx")), "--order"]
    assert main([*asked, str(file)]) == Exit.INPUT
    assert message in capsys.readouterr().err
    assert main([*asked, "seed:-1"]) == Exit.INPUT
    assert "a seed is a number" in capsys.readouterr().err


def test_a_word_that_is_no_order_is_told_which_words_are(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emulate", str(small), "--ptx", str(small.with_suffix(".ptx")), "--order", "foo"]) == Exit.INPUT
    assert "foo: an order is round-robin, seed:N or a JSON file" in capsys.readouterr().err


def test_a_witness_is_an_order(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Worker 1 reads what worker 0 has not written: the threshold is one too low."""
    text = small.read_text()
    wait = '{"counter": "h_mid", "index": [{"l": 1}], "at_least": {"t": 2, "1": %d}'
    assert text.count(wait % 2) == 1
    (broken := tmp_path / "broken.json").write_text(text.replace(wait % 2, wait % 1))
    witness = str(tmp_path / "witness.json")
    assert main(["verify", str(broken), "--witness", witness]) == Exit.UNSAFE
    assert main(["emulate", str(broken), "--order", witness]) == Exit.UNSAFE
    assert "race" in capsys.readouterr().err
    assert main(["emulate", str(small), "--order", witness]) == Exit.INPUT
    assert "of another schedule" in capsys.readouterr().err


def test_a_fault_names_its_counter_and_its_ptx_can_be_written(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wait for one signal more than there are: warps poll for ever."""
    wait = '{"counter": "h_mid", "index": [{"l": 1}], "at_least": {"t": 2, "1": %d}'
    text = small.read_text()
    assert text.count(wait % 2) == 1
    (broken := tmp_path / "broken.json").write_text(text.replace(wait % 2, wait % 3))
    ptx = tmp_path / "broken.ptx"
    assert main(["emulate", str(broken), "--emit-ptx", str(ptx)]) == Exit.UNSAFE
    message = capsys.readouterr().err
    assert re.search(r"polls the counters \+ \d+ \(h_mid\[0\]\), which holds", message)
    lines = ptx.read_text().splitlines()
    at = re.findall(r" at (\S+), line (\d+) of the PTX", message)
    assert at and all(opcode in lines[int(line) - 1] for opcode, line in at)


@pytest.mark.parametrize(
    ("broken", "code", "status"),
    [
        (lambda text: text[:3000], "AMK801", Exit.INPUT),
        (lambda text: text.replace("fma.rn.f32", "fmx.rn.f32"), "AMK802", Exit.UNKNOWN),
        (lambda text: text.replace("\tret;", "$L:\n\tbra.uni $L;\n\tret;"), "AMK803", Exit.UNKNOWN),
    ],
)
def test_bad_ptx_and_endless_loops_end(
    small: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    broken: Callable[[str], str],
    code: str,
    status: Exit,
) -> None:
    (file := tmp_path / "broken.ptx").write_text(broken(small.with_suffix(".ptx").read_text()))
    assert main(["emulate", str(small), "--ptx", str(file), "--instructions", "1000000"]) == status
    assert code in capsys.readouterr().err


def test_what_needs_too_much_memory_is_refused_before_weights_are_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "large.json"
    file.write_text(plan(load_model("llama3-8b"), load_target("h200"), max_context=256).model_dump_json())
    began = time.process_time()
    assert main(["emulate", str(file)]) == Exit.UNKNOWN
    assert time.process_time() - began < 5
    assert "AMK803" in capsys.readouterr().err


@pytest.mark.turns(4)
def test_a_schedule_that_the_interpreter_cannot_follow_is_told_as_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    """The kernel ends and has a token; what it read as digits was written as half floats."""
    assert main(["emulate", "adversarial/halves-where-digits-are-read.json"]) == Exit.UNSAFE
    message = capsys.readouterr().err
    assert "AMK805" in message and "gemv" in message and "was never written" in message


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", ["output head", "last layer and output head", "slice of layers"])
def test_a_slice_is_given_hidden_states(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As many as tokens are asked for; what it leaves is compared, and so are the footprints of one launch."""
    file, what = tmp_path / "slice.json", "logits" if "head" in name else "hidden_states"
    file.write_text(json.dumps(base(name)))
    assert main(["emulate", str(file), "--tokens", "3", "--order", "seed:2", "--format", "json"]) == Exit.SAFE
    result = json.loads(capsys.readouterr().out)
    assert result["tokens"] == [] and result[f"{what}_differ_by"] < 2.0**-7 and not result["faults"]
    assert main(["emulate", str(file), "--footprints", "--position", "5"]) == Exit.SAFE
    assert "differ from the interpreter's by" in capsys.readouterr().out
    assert main(["emulate", str(file), "--footprints", "--tokens", "2"]) == Exit.INPUT


def test_a_slice_that_leaves_something_else_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "head.json"
    file.write_text(json.dumps(base("output head")))
    text = compiled(Schedule.model_validate_json(file.read_text()))
    wrong = tmp_path / "wrong.ptx"
    wrong.write_text(
        text.replace("rsqrt.approx.ftz.f32", "sqrt.approx.ftz.f32").replace("rsqrt.approx.f32", "sqrt.approx.f32")
    )
    assert wrong.read_text() != text
    assert main(["emulate", str(file), "--ptx", str(wrong)]) == Exit.UNSAFE
    assert "AMK805" in capsys.readouterr().err
