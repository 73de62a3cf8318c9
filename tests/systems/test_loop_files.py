"""Systems with loops as files: what Python says is what the file says; what is no such file is refused at its place."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest

from amk.cli import main
from amk.report.diagnostic import AmkError
from amk.systems import LoopSystem
from amk.systems.affine import Index
from amk.systems.document import to_json
from amk.systems.loop_document import canonical, parse_loops, schema
from amk.systems.loop_numbers import evaluated, written
from amk.systems.loop_program import Program, judged_program
from amk.systems.loop_writer import text_of
from amk.systems.open_loop import judged_loops
from tests.systems.random_loops import built, random_program
from tests.systems.test_loops import SAFE, UNSAFE, ring

VALIDATOR = jsonschema.Draft202012Validator(schema())


def read_back(system: LoopSystem) -> LoopSystem:
    """The system that its file makes, and the file's own promises."""
    text = text_of(system)
    VALIDATOR.validate(json.loads(text))
    read = parse_loops(text.encode(), "loops.json")
    assert canonical(read.document) == text
    result = Program(read, {}, system.count).built()
    assert text_of(result) == text
    return result


@pytest.mark.parametrize("system", SAFE + UNSAFE, ids=lambda s: s.name)
def test_a_file_says_what_python_said(system: LoopSystem) -> None:
    result = read_back(system)
    for laps in (0, 1, 5, 12):
        assert to_json(result.unrolled(laps).flat()) == to_json(system.unrolled(laps).flat())


@pytest.mark.parametrize("system", [ring(), *UNSAFE], ids=lambda s: s.name)
def test_a_file_gets_the_verdict_of_what_python_said(system: LoopSystem) -> None:
    one, two = judged_loops(system), judged_program(parse_loops(text_of(system).encode(), "loops.json"))
    assert one.verdict == two.verdict and one.explain().splitlines()[1:] == two.explain().splitlines()[1:]


def test_files_of_random_kernels_say_the_same_events() -> None:
    rng = Random(23)
    for _ in range(20):
        system = built(random_program(rng))
        result = read_back(system)
        assert all(to_json(result.unrolled(n).flat()) == to_json(system.unrolled(n).flat()) for n in (0, 3, 7))


def test_numbers_are_written_in_one_way() -> None:
    k = Index()
    shown = {
        "k": [k, k * 2 - k],
        "k % 3 * 1024 + 5": [k % 3 * 1024 + 5],
        "k // 3 + 1": [k // 3 + 1, (k + 3) // 3],
        "k // 2 * 4 + k % 2 * -1": [k // 2 * 4 - k % 2],
    }
    for text, indices in shown.items():
        assert all(written(index, "k") == text for index in indices)
    rng = Random(5)
    for _ in range(60):
        index = (k * rng.randint(-3, 3) + rng.randint(0, 5)) % rng.randint(1, 6) * rng.randint(-2, 9) + k // 2
        value = evaluated(json.loads(json.dumps(written(index, "k"))), {"k": k})
        assert [Index.of(value).at(lap) for lap in range(40)] == [index.at(lap) for lap in range(40)]


def document(**changes: Any) -> dict[str, Any]:
    """A ring whose number of slots is a parameter too."""
    box = {"buffer": "slots", "lo": "k % slots * 16", "hi": "k % slots * 16 + 16", "value": ["tile", {"number": "k"}]}

    def loop(wait: str, access: str, signal: str) -> list[dict[str, Any]]:
        code = [{"do": "wait", "counter": wait, "at_least": "k + 1"}, {"do": access, **box}]
        return [{"do": "loop", "index": "k", "count": "tiles", "code": [*code, {"do": "signal", "counter": signal}]}]

    return {
        "format": "amk.loops/1", "name": "ring",
        "parameters": {"tiles": {"at_least": 1, "at_most": 4096}, "slots": {"at_least": 1, "at_most": 3}},
        "counters": [{"name": "full", "scope": "cta"}, {"name": "empty", "scope": "cta", "init": "slots"}],
        "buffers": [{"name": "slots", "size": "slots * 16"}],
        "agents": [
            {"name": "producer", "code": loop("empty", "write", "full")},
            {"name": "consumer", "code": loop("full", "read", "empty")},
        ],
    } | changes  # fmt: skip


def judged_text(content: dict[str, Any]) -> Any:
    return judged_program(parse_loops(json.dumps(content, indent=1).encode(), "ring.json"))


def test_every_value_of_a_parameter_is_looked_at() -> None:
    verdict = judged_text(document())
    assert verdict.safe and verdict.title == "ring: 2 agents, tiles from 1 to 4096, slots from 1 to 3"
    free = [{"name": "full", "scope": "cta"}, {"name": "empty", "scope": "cta", "init": 3}]
    wrong = judged_text(document(counters=free, buffers=[{"name": "slots", "size": 64}]))
    assert wrong.verdict == "UNSAFE" and "slots = 1, 2 laps" in wrong.explain() and "ring.json:" in wrong.explain()
    many = document(parameters={"tiles": {}, "slots": {"at_least": 1, "at_most": 99}})
    unknown = judged_text(many)
    assert unknown.verdict == "UNKNOWN" and "slots: 99 cases" in unknown.explain()
    assert "help: bound the counts" in unknown.explain()


def changed(change: str, to: str) -> dict[str, Any]:
    text = json.dumps(document())
    assert change in text
    return dict(json.loads(text.replace(change, to, 1)))


def test_a_value_that_is_wrong_is_found_behind_one_that_is_not_decided() -> None:
    """With one slot the arrivals at `other` grow, which is not decided; with two a slot too many is free."""
    content = document()
    growing = {"do": "signal", "counter": "other", "amount": "k * (1 - slots // 2) + 1"}
    content["agents"][0]["code"][0]["code"].append(growing)
    content["counters"].append({"name": "other"})
    assert judged_text(content).verdict == "UNKNOWN"
    content["counters"][1]["init"] = "slots + slots // 2"
    assert judged_text(content).verdict == "UNSAFE"


def test_an_open_count_in_another_place_is_unknown_by_name_and_tried_where_it_is_small() -> None:
    nested = changed('"count": "tiles", "code": [', '"count": "tiles", "code": [{"do": "loop", "index": "j", '
                     '"count": "tiles", "code": []}, ')  # fmt: skip
    verdict = judged_text(nested)
    assert verdict.verdict == "UNKNOWN" and "the open count of loop j is within or behind" in verdict.explain()
    nested["parameters"]["tiles"]["at_most"] = 4
    assert judged_text(nested).safe
    for number in ("k * k + 1", "tiles - k"):
        verdict = judged_text(changed('"at_least": "k + 1"', f'"at_least": "{number}"'))
        assert verdict.verdict != "SAFE" and "ring.json:" in verdict.explain()


def test_agents_without_an_open_loop_may_wait_for_the_end_of_it() -> None:
    wait = {"do": "wait", "counter": "full", "at_least": "tiles"}
    inner = [{"do": "loop", "index": "s", "count": "slots", "code": [
        {"do": "read", "buffer": "slots", "lo": "16 * s", "hi": "16 * s + 16"}]}]  # fmt: skip
    agents = [*document()["agents"], {"name": "last", "code": [wait, *inner]}]
    assert judged_text(document(agents=agents)).safe
    agents[-1]["code"][0]["at_least"] = "tiles - 1"
    assert judged_text(document(agents=agents)).verdict == "UNSAFE"


REFUSED = [
    ('"count": "tiles"', '"count": "many"', "AMK009"),
    ('"k + 1"', '"k + q"', "AMK009"),
    ('"k + 1"', '"k +"', "AMK005"),
    ('"k + 1"', '"k ** 2"', "AMK005"),
    ('"k + 1"', '"len(k)"', "AMK005"),
    ('"k + 1"', '"k % 0"', "AMK005"),
    ('"k + 1"', "1.5", "AMK005"),
    ('"k + 1"', '"' + "(" * 150 + "k" + ")" * 150 + '"', "AMK005"),
    ('"do": "wait"', '"do": "lock"', "AMK005"),
    ('"counter": "full"', '"counter": "fill"', "AMK009"),
    ('"counter": "full"', '"counter": "full", "number": 0', "AMK005"),
    ('"buffer": "slots"', '"buffer": "slot"', "AMK009"),
    ('"index": "k"', '"index": "slots"', "AMK007"),
    ('"index": "k"', '"index": "lambda"', "AMK005"),
    ('"count": "tiles", "code"', '"count": 99999999, "code"', "AMK002"),
    ('"name": "empty"', '"name": "full"', "AMK007"),
    ('"at_most": 4096', '"at_most": 0', "AMK005"),
    ('"tile"', "[1]", "AMK005"),
    ('"size": "slots * 16"', '"size": "slots * 8"', "AMK005"),
    ("amk.loops/1", "amk.loops/2", "AMK004"),
    ('"name": "ring"', '"name": "ring", "speed": 1', "AMK005"),
]


@pytest.mark.parametrize(("change", "to", "code"), REFUSED, ids=[to[:24] for _, to, _ in REFUSED])
def test_what_is_no_such_system_is_refused_at_its_place(change: str, to: str, code: str) -> None:
    with pytest.raises(AmkError) as error:
        judged_text(changed(change, to))
    found = error.value.diagnostics[0]
    assert found.code == code and found.where is not None
    assert found.where.file == "ring.json" and found.where.line is not None


def test_a_value_that_no_file_holds_is_refused_at_the_caller() -> None:
    sys = ring()
    sys.agents[0].write(sys.buffer("other", 8), 0, 8, value=(1.5,))
    with pytest.raises(AmkError, match="AMK005"):
        text_of(sys)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, witness = tmp_path / "good.json", tmp_path / "bad.json", tmp_path / "w.json"
    ring().save(good)
    ring(short=1).save(bad)
    assert main(["verify", str(good)]) == 0 and "SAFE  ring: 2 agents, laps from 0 on" in capsys.readouterr().out
    assert main(["verify", str(bad), "--witness", str(witness)]) == 1
    output = capsys.readouterr()
    assert "test_loops.py:" in output.out + output.err and main(["replay", str(witness)]) == 0
    for form in ("concise", "sarif", "github", "json"):
        capsys.readouterr()
        assert main(["verify", str(bad), "--format", form]) == 1
        found = capsys.readouterr()
        assert "AMK302" in found.out + found.err and "test_loops.py" in found.out + found.err
    assert main(["trace", str(bad), "-o", str(tmp_path / "t.html")]) == 0 and (tmp_path / "t.html").stat().st_size
    capsys.readouterr()
    assert main(["schema", "--loops"]) == 0 and json.loads(capsys.readouterr().out) == schema()
