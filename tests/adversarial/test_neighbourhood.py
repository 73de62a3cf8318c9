"""The neighbourhoods: bases that have everything, edits that follow from the schema, no hole among a slice of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from amk.adversary.edits import Edit, Json, apply, at, find, steps
from amk.adversary.neighbourhood.account import account, beyond
from amk.adversary.neighbourhood.bases import CONTEXT, SMALL_BASES, WHOLE, base
from amk.adversary.neighbourhood.ledger import Ledger, Line, counts, key_of, read
from amk.adversary.neighbourhood.mutator import Change, Neighbourhood, Site, schema_of_schedules
from amk.adversary.neighbourhood.reasons import BY_CODE, BY_FIELD, BY_PROPERTY, reason_of
from amk.adversary.neighbourhood.search import Search, both, pairs
from amk.adversary.neighbourhood.survey import EVERYTHING, Care, Outcome, Survey
from amk.cli import main
from amk.report.diagnostic import TITLES
from amk.schedule_ir.ops import OPS
from amk.schedule_ir.schedule import Schedule, mode_of
from amk.validator.verify import Verdict, verify
from amk.weights.weight_format import FORMATS
from tests.adversarial import whole_neighbourhood
from tests.adversarial.strictness import rendered
from tests.adversarial.whole_neighbourhood import (
    PAIR_PARTS,
    PAIR_SLICES,
    PARTS,
    SLICES,
    VALUE_PARTS,
    VALUE_SLICES,
    counted,
    edits_of,
    splits_of,
    values_of,
)

SLICE, SPLITS = 3_000, 30
EACH, MOST = 64, 600
"""Edits of each base that are drawn for its slice, and at most."""
VERDICTS = ("refused", "SAFE", "UNSAFE", "UNKNOWN")
LIGHT = Care(safe=1, other=0, certificates=False)


@cache
def neighbourhood(name: str) -> Neighbourhood:
    return Neighbourhood(base(name), schema_of_schedules())


def sites_of(name: str) -> list[Site]:
    return neighbourhood(name).sites


@cache
def changes_of(name: str) -> list[Change]:
    return list(neighbourhood(name).changes())


def schedule_of(document: Json) -> Schedule:
    return Schedule.model_validate_json(json.dumps(document))


def test_the_bases_have_everything_that_a_schedule_can_say() -> None:
    """Already those whose edits are all made and recorded."""
    schedules = [schedule_of(base(name)) for name in WHOLE]
    ops = {step["op"]["op"] for name in WHOLE for _, step in steps(base(name))}
    formats = {
        c.format for s in schedules for st in s.streams for m in ("qkv", "o", "down", "lm_head") for c in st.kinds(m)
    }
    assert len(set(WHOLE) & set(SMALL_BASES)) == len(WHOLE) >= 12
    assert ops == set(OPS)
    assert formats == set(FORMATS)
    assert {c.handoff for s in schedules for c in s.counters} == {"fenced", "hint"}
    assert {b.tagged for s in schedules for b in s.buffers} == {True, False}
    assert {st.engine for s in schedules for st in s.streams} == {"bulk", "cp_async"}
    assert {s.kv.dtype for s in schedules} == {"bf16", "fp8"}
    assert {mode_of(s) for s in schedules} >= {"greedy", "top-p"}
    assert {mode_of(schedule_of(base(name))) for name in SMALL_BASES} >= {"top-k-top-p"}
    batched = {
        c.format for s in schedules if s.batch > 1 for st in s.streams for c in st.kinds("qkv") + st.kinds("lm_head")
    }
    assert batched >= {"bf16", "int8", "int4-g128-zp"}
    assert max(len(s.programs) for s in schedules) > 1
    assert any(step["op"].get("k_parts", 1) > 1 for name in WHOLE for _, step in steps(base(name)))
    assert any(stream.later for s in schedules for stream in s.streams)
    assert any(s.kv.splits > 1 for s in schedules)
    assert {s.model.qkv_bias for s in schedules} == {s.model.qk_norm for s in schedules} == {True, False}


@pytest.mark.parametrize("name", SMALL_BASES)
def test_the_bases_are_safe(name: str) -> None:
    assert verify(schedule_of(base(name))).safe


@pytest.mark.turns(12)
def test_every_property_of_the_schema_is_edited() -> None:
    """But those of objects that no base has."""
    schema = schema_of_schedules()
    wanted = {f"{title}.{key}" for title, d in schema["$defs"].items() for key in d.get("properties", {})}
    wanted |= {f"Schedule.{key}" for key in schema["properties"]}
    fields = {site.field for name in SMALL_BASES for site in sites_of(name)}
    missing = {f for f in wanted - fields if not f.startswith(("Pool.", "RopeScaling."))}
    assert not missing
    edited = {change.field for name in ("fenced", "drawing") for change in changes_of(name)}
    assert {f.partition(".")[2] for f in fields if f.removeprefix("Schedule.") in ("version", "dtype", "batch")} == {
        "version", "dtype", "batch",
    }  # fmt: skip
    assert {"Step.op", "Wait.compare", "Signal.action", "GemvOp.k_part", "Stream.run_ahead", "Loop.count"} <= edited


def test_further_edits_are_those_that_the_others_lack() -> None:
    document, further = base("layers of two kinds"), neighbourhood("layers of two kinds")
    known = {change.key for change in further.changes()}
    changes = list(further.further())
    found = {change.key: change for change in changes}
    assert len(found) == len(changes) > 20_000 and not known & found.keys()
    for change in Random(1).sample(changes, 500):
        assert apply(document, list(change.edits))[0] != document, change

    def replaces(path: tuple[str | int, ...], value: Json) -> bool:
        return any(c.edits[0].path == path and c.edits[0].value == value for c in found.values())

    path = next(s.path for s in further.sites if s.field == "GemvOp.layer" and s.value == {"l": 1})
    assert replaces(("launch", "max_tokens"), document["model"]["vocab"]), "of another field"
    assert replaces(path, {"l": document["model"]["vocab"]}) and replaces(path, {"l": 3 * 2**32}), "coefficients"
    assert replaces(("launch", "max_tokens"), 3 * 2**32) and replaces(("launch", "max_tokens"), CONTEXT + 3 * 2**32)
    assert replaces(("model", "rope_theta"), document["model"]["rms_eps"]), "floats"
    assert replaces(("tables", "qkv.first"), document["tables"]["qkv.count"]), "arrays"
    later = next(n for n, stream in enumerate(document["streams"]) if stream.get("later"))
    assert any(c.edits == (Edit("remove", ("streams", later, "later")),) for c in found.values()), "left out"


def test_edits_are_all_different_and_change_the_text() -> None:
    changes = changes_of("fenced")
    document = base("fenced")
    assert len({change.key for change in changes}) == len(changes) > 20_000
    for change in Random(1).sample(changes, 2_000):
        result = apply(document, list(change.edits))[0]
        assert result != document, change
    assert base("fenced") == document == json.loads(json.dumps(document)), "edits are copies"


def test_known_mistakes_are_edits() -> None:
    """Of the file, not of a list: each was once called SAFE."""
    document = base("fenced")
    found = {(c.edits[0].path, json.dumps(c.edits[0].value)) for c in changes_of("fenced")}
    for op, name, value in (
        ("stage_norm", "h", "embedding"), ("stage", "act", "weights"), ("rope_append", "qkv", "rope"),
        ("select", "best_index", "prompt"), ("combine", "split_partial", "weights"), ("gemv", "x", "ring"),
        ("gemv", "part", "ring"), ("embed", "ssq", "ring"), ("rope_append", "q", "ring"), ("attend", "partial", "ring"),
    ):  # fmt: skip
        assert ((*find(document, op), "op", name), json.dumps(value)) in found, (op, name)
    output = next(i for i, b in enumerate(document["buffers"]) if b["name"] == "output")
    assert any(path == ("buffers", output, "shape", 0) for path, _ in found)
    waits = [(path, step["waits"]) for path, step in steps(document) if step["waits"]]
    assert any(c.field == "Step.waits[]" and c.kind == "added" for c in changes_of("fenced")) and waits
    best = [w["at_least"] for _, ws in waits for w in ws if w["counter"] == "best"]
    for expression in ({"t": 2, "1": 2}, {"t": 3, "1": 2}, {"t": 2, "1": 1}):
        assert any(json.dumps(expression) == value or json.loads(value) == expression for _, value in found), best


@cache
def sliced(name: str) -> tuple[list[Change], Iterator[Change]]:
    """(an edit of every field that no earlier base has and EACH others, more for verdicts that are missing then).
    They are drawn by the base's name, so another base or field beside it changes nothing. The others are made only
    when somebody asks for them, once."""
    rng, earlier = Random(f"slice {name}"), list(SMALL_BASES)[: list(SMALL_BASES).index(name)]
    known = {site.field for other in earlier for site in sites_of(other)}
    sites = [site for site in sites_of(name) if site.path]
    first: dict[str, Change] = {}
    for site in rng.sample(sites, len(sites)):
        if site.field not in known and site.field not in first and (changes := list(neighbourhood(name).at(site))):
            first[site.field] = rng.choice(changes)
    drawn = (
        rng.choice(changes) for site in rng.choices(sites, k=MOST) if (changes := list(neighbourhood(name).at(site)))
    )
    return [*first.values(), *islice(drawn, EACH)], drawn


def test_a_slice_has_every_field_and_three_thousand_edits() -> None:
    chosen = {name: sliced(name)[0] for name in SMALL_BASES}
    assert sum(map(len, chosen.values())) >= SLICE
    without = {s.field for name in SMALL_BASES for s in sites_of(name)} - {
        c.field for some in chosen.values() for c in some
    }
    left = [(name, s) for name in SMALL_BASES for s in sites_of(name) if s.field in without and s.path]
    assert not any(c.field == s.field for name, s in left for c in neighbourhood(name).at(s)), without


@pytest.mark.parametrize("name", SMALL_BASES)
def test_no_hole_in_a_slice(name: str) -> None:
    """Every SAFE edit is run; of one edit in ten the certificate is offered to the checker."""
    outcomes: Counter[str] = Counter()
    (chosen, more), holes, survey = sliced(name), [], Survey(base(name))
    for number, change in enumerate(chain(chosen, more)):
        if number >= len(chosen) and min(outcomes[verdict] for verdict in VERDICTS) > 1:
            break
        outcome = survey.outcome(change, replace(LIGHT, certificates=number % 10 == 0))
        outcomes[outcome.verdict] += 1
        if outcome.verdict == "error" or outcome.hole:
            holes.append((change.field, change.kind, change.key[:200], outcome))
    assert not holes
    assert min(outcomes[verdict] for verdict in VERDICTS) > 1, outcomes


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", SMALL_BASES)
def test_no_hole_in_a_slice_of_further_edits(name: str) -> None:
    """Every SAFE edit is run; of one in ten the certificate is offered to the checker."""
    rng, survey, holes = Random(f"further {name}"), Survey(base(name)), []
    for number, site in enumerate(rng.choices(sites_of(name), k=50)):
        for change in sorted(neighbourhood(name).further_at(site), key=lambda _: rng.random())[:1]:
            outcome = survey.outcome(change, replace(LIGHT, certificates=number % 10 == 0))
            if outcome.verdict == "error" or outcome.hole:
                holes.append((change.field, change.kind, change.key[:200], outcome))
    assert not holes


PLANTED = {
    "AMK202": ("Wait.at_least", "hang"),
    "AMK302": ("Step.waits[]", "poison"),
    "AMK103": ("Buffer.shape[]", "bounds"),
    "AMK106": ("GemvOp.layer", ""),
}
"""Codes that a validator could fail to give, a field whose edits they refuse, and what a run then shows."""


@pytest.mark.parametrize("code", PLANTED)
def test_a_validator_that_overlooks_a_class_is_found_out(code: str) -> None:
    """Edits that it refuses for this reason alone are called SAFE; the judge refutes one of the first few."""
    field, kind = PLANTED[code]

    def blind(schedule: Schedule) -> Verdict:
        verdict = verify(schedule)
        overlooked = {d.code for d in verdict.diagnostics} == {code}
        return replace(verdict, status="SAFE", diagnostics=()) if overlooked else verdict

    survey, found = Survey(base("fenced"), blind), []
    for change in Random(1).sample([c for c in changes_of("fenced") if c.field == field], 60):
        outcome = survey.outcome(change, LIGHT)
        found += [outcome.judge] if outcome.hole else []
        if any(kind in ruling for ruling in found):
            return
    raise AssertionError(f"nothing in {field} shows that {code} is missing: {found}")


def test_a_checker_that_accepts_everything_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from amk.adversary.neighbourhood import survey as module

    class Accepted:
        accepted = True

    monkeypatch.setattr(module, "check_certificate", lambda *_: Accepted())
    survey = Survey(base("fenced"))
    removed = [c for c in changes_of("fenced") if c.field == "Step.waits[]" and c.kind == "removed"]
    outcomes = [survey.outcome(change) for change in removed[:6]]
    assert any(o.hole == "checker" and o.verdict == "UNSAFE" for o in outcomes)


@pytest.mark.turns(4)
def test_a_run_that_was_killed_goes_on(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"

    def go(path: Path, edits: int) -> list[str]:
        ledger = Ledger(path)
        lines = [line.key for line in Search(("fenced",), ledger).run(600, edits)]
        ledger.close()
        return lines

    expected = go(whole, 12)
    first = go(broken, 7)
    content = broken.read_bytes()
    broken.write_bytes(content[:-9])  # killed while it wrote the seventh line
    again = go(broken, 6)
    assert first == expected[:7] and again == expected[6:]
    assert [line.key for line in read(broken)] == expected
    kept = ("field", "kind", "base")
    assert [[getattr(x, k) for k in kept] for x in read(broken)] == [[getattr(x, k) for k in kept] for x in read(whole)]


@pytest.mark.turns(4)
def test_the_command_counts_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, holes = tmp_path / "edits.jsonl", tmp_path / "holes"
    words = ["adversarial", "--neighbourhood", str(file), "--base", "fenced", "--edits", "5", "--format", "json"]
    for done in (5, 10):
        assert main([*words, "--holes", str(holes)]) in (0, 1)
        found = json.loads(capsys.readouterr().out)
        assert found["edits"] == done == sum(row["edits"] for row in found["fields"].values())
    assert main(["adversarial", "--neighbourhood", str(file), "--base", "fence"]) == 2
    assert "fenced" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"{}", b"\x7fELF\x00\xff", b"[" * 100_000, b"notes\n"], ids=lambda c: repr(c[:5]))
def test_a_file_of_another_kind_is_left_alone(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "other").write_bytes(content)
    assert main(["adversarial", "--neighbourhood", str(file), "--edits", "1"]) == 2
    assert "error[AMK005]" in capsys.readouterr().err and file.read_bytes() == content


def test_holes_are_written_with_what_they_show(tmp_path: Path) -> None:
    def careless(schedule: Schedule) -> Verdict:
        return replace(verify(schedule), status="SAFE", diagnostics=())

    ledger = Ledger(tmp_path / "edits")
    search = Search(("fenced",), ledger, holes=tmp_path / "holes", thorough=False)
    survey = Survey(base("fenced"), careless)
    emptied = [c for c in changes_of("fenced") if c.field == "Step.waits[]" and c.kind == "removed"]
    lines = [search.judged("fenced", survey, change) for change in emptied[:3]]
    ledger.close()
    holes = [line for line in lines if line.outcome.hole]
    assert holes and holes[0].outcome.hole == "validator"
    written = (tmp_path / "holes" / f"edit-{holes[0].key}.json").read_bytes()
    assert schedule_of(json.loads(written)) != schedule_of(base("fenced"))
    assert holes[0].key in (tmp_path / "holes" / "README").read_text()


def test_pairs_are_repeatable_and_find_their_places() -> None:
    def some(seed: int) -> list[Change]:
        return [both(*pair) for pair in islice(pairs("fenced", seed), 60)]

    one = some(1)
    assert [c.key for c in one] == [c.key for c in some(1)] != [c.key for c in some(2)]
    survey = Survey(base("fenced"))
    assert sum(survey.edited(change) is not None for change in one) > 50


@pytest.mark.turns(4)
def test_a_slice_of_pairs_has_drawn_ones_and_safe_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two edits that are SAFE alone, at two places, can be read together."""
    name = sorted(SMALL_BASES)[0]
    monkeypatch.setattr(whole_neighbourhood, "PAIRS", 0)
    monkeypatch.setattr(whole_neighbourhood, "SAFE_PAIRS", 4)
    found = whole_neighbourhood.pairs_slice(0)
    assert found["edits"] == found["bases"][name]["edits"] == 4 and found["differences"] == []
    assert found["bases"][name].get("SAFE", 0) >= 1 and PAIR_PARTS * len(SMALL_BASES) == PAIR_SLICES
    monkeypatch.setattr(whole_neighbourhood, "PAIRS", 3)
    monkeypatch.setattr(whole_neighbourhood, "SAFE_PAIRS", 0)
    first, other = whole_neighbourhood.pairs_slice(0), whole_neighbourhood.pairs_slice(len(SMALL_BASES))
    assert first["edits"] == other["edits"] == 3 and first["fields"] != other["fields"]


def test_splits_have_a_twin_with_at_most_one_edit_and_one_user() -> None:
    document = base("fp8, scales apart")
    splits = splits_of("fp8, scales apart")[0]
    of_a_form = [
        change for change in splits
        if change.kind == "split, enumeration" and change.edits[1].value["name"] == "x_halves.twin"
    ]  # fmt: skip
    assert {change.edits[1].value["dtype"] for change in of_a_form} > {"digits", "bf16"}
    assert {change.field.partition(",")[0] for change in of_a_form} >= {"GemvOp.x", "StageOp.x", "StageNormOp.x"}
    for change in Random(1).sample(splits, 50):
        user, twin = change.edits
        edited = apply(document, [user, twin])[0]
        (original,) = (e for e in at(document, twin.path[:-1]) if e["name"] == twin.value["name"].removesuffix(".twin"))
        assert at(edited, user.path) == twin.value["name"] and at(document, user.path) == original["name"]
        assert sum(original.get(k) != twin.value.get(k) for k in {*original, *twin.value} - {"name"}) <= 1


@pytest.mark.turns(24)
@pytest.mark.parametrize("name", WHOLE)
def test_no_hole_among_splits(name: str) -> None:
    changes, _, survey = splits_of(name)
    outcomes = [survey.outcome(change, LIGHT) for change in changes[:: len(changes) // SPLITS + 1]]
    assert not [outcome for outcome in outcomes if outcome.verdict == "error" or outcome.hole]
    assert {outcome.verdict for outcome in outcomes} >= {"refused", "UNSAFE"}


def test_the_account_and_the_counts() -> None:
    def line(number: int, **outcome: Any) -> Line:
        return Line("fenced", str(number), "Wait.at_least", "far", Outcome(**outcome), edits="[]")

    lines = [
        line(1, verdict="UNSAFE", codes=("AMK302",), judge="not refuted", certificate="refused"),
        line(2, verdict="UNSAFE", codes=("AMK302",), judge="refuted: hang", certificate="accepted: made"),
        line(3, verdict="UNSAFE", codes=("AMK104",), judge="not refuted"),
        line(4, verdict="SAFE", certificate="accepted", judge="refuted: tokens"),
        line(5, verdict="SAFE", certificate="none: AMK215", judge="not refuted"),
        line(6, verdict="UNSAFE", codes=("AMK302",)),
    ]
    rows = {row.code: row for row in account(lines)}
    assert (rows["AMK302"].judged, rows["AMK302"].refuted, rows["AMK302"].kind) == (2, 1, "unseen")
    assert rows["AMK104"].kind == "policy" and rows["AMK104"].examples
    assert [entry.outcome.hole for entry in lines] == ["", "checker", "", "validator and checker", "", ""]
    (row,) = counts(lines).values()
    assert row["holes"] == 2 and row["SAFE, not certified"] == 1 and row["not SAFE, certificate accepted"] == 1


def test_a_key_names_one_edit_of_one_base() -> None:
    one, two = changes_of("fenced")[:2]
    assert len({key_of(name, change) for name in ("fenced", "tagged") for change in (one, two)}) == 4


def test_a_slice_of_the_whole_run_counts_what_it_saw() -> None:
    """Outcomes of all kinds, without the work of making them."""
    outcomes = [
        Outcome("SAFE", (), "accepted", "not refuted", asked=EVERYTHING, seconds={"verify": 0.5}),
        Outcome("SAFE", (), "accepted", "refuted: tokens", "token 3"),
        Outcome("UNSAFE", ("AMK302",), "refused", "not refuted"),
        Outcome("UNSAFE", ("AMK103",), "accepted: made", "unrun"),
        Outcome("error", why="too long"),
        Outcome("error", why="KeyError: x"),
        Outcome("refused", ("AMK005",)),
        Outcome("UNSAFE", ("AMK103", "AMK302"), "accepted: base's", "not refuted"),
    ]
    lines = [Line("rows", str(n), "Wait.at_least", "far", o, edits="[]") for n, o in enumerate(outcomes)]
    found = counted("rows", lines)
    assert (found["edits"], found["holes"]) == (8, 1)
    assert found["bases"] == {"rows": {"edits": 8, "SAFE": 2, "UNSAFE": 3, "error": 2, "refused": 1}}
    assert found["not SAFE, certificate accepted"] == {
        "AMK103: Wait.at_least, far": 1, "AMK103 AMK302: Wait.at_least, far": 1,
    }  # fmt: skip
    assert found["without a verdict"] == {"too long: rows": 1}
    hole, error, beyond = found["differences"]
    assert "passes validator" in hole and "KeyError" in error and "is refused for AMK103 AMK302" in beyond
    assert found["account"]["AMK302"]["fields"] == {"Wait.at_least": 1} and found["account"]["AMK103"]["unrun"] == 1


def test_the_values_of_a_base_are_all_further_edits_and_the_first_have_every_field_and_kind() -> None:
    changes, of_field, _ = values_of("output head")
    every = list(neighbourhood("output head").further())
    first = changes[: 4 * len(changes) // VALUE_PARTS]
    assert {(c.field, c.kind) for c in first} == {(c.field, c.kind) for c in every}
    assert sorted(c.key for c in changes) == sorted(c.key for c in every)
    assert VALUE_PARTS * len(WHOLE) == VALUE_SLICES and of_field == Counter(c.field for c in every)


def test_the_slices_of_a_base_are_all_of_its_edits() -> None:
    changes = list(neighbourhood("slice of layers").changes())
    parts = [change.key for part in edits_of("slice of layers")[0] for change in part]
    assert sorted(parts) == sorted(change.key for change in changes) and PARTS * len(WHOLE) == SLICES


def test_rows_of_the_output_head_count_where_there_is_one() -> None:
    """The edit whose accepted certificate is no difference without a head is one with a head, and of other rows too."""

    def line(base: str, table: str, code: str) -> Line:
        edits = f'[["replace",["tables","{table}",0],1]]'
        return Line(base, "", "", "", Outcome("UNSAFE", (code,), certificate="accepted"), edits=edits)

    assert beyond(line("rows, columns divided", "lm_head.first", "AMK102"))
    assert not beyond(line("rows", "lm_head.first", "AMK102"))
    assert not beyond(line("rows, columns divided", "qkv.first", "AMK101"))
    assert beyond(line("rows", "qkv.first", "AMK103")) and not beyond(line("rows", "qkv.first", "AMK302"))
    assert not beyond(line("rows", "qkv.first", "AMK104"))


def test_the_strictness_account_names_what_stands_without_a_reason() -> None:
    def row(**fields: int) -> dict[str, Any]:
        named = {name.replace("_", "."): count for name, count in fields.items()}
        return {"judged": 2 + sum(fields.values()), "refuted": 2, "unrun": 1, "fields": named, "example": ""}

    rows = {
        "AMK503": row(Wait_order=3), "AMK202": row(Wait_order=2), "AMK201": row(),
        "AMK302": row(Counter_handoff=1, Wait_counter=4, StageOp_also=2),
    }  # fmt: skip
    page, without = rendered({"counts": {"edits": 9, "account": rows}}, "neighbourhood.json")
    assert without == ["AMK202 Wait.order"]
    assert "| AMK503 | M3: wait does not acquire | 5 | 2 | 3 | 1 | unseen: " in page
    assert "| 4 unseen: a race shows in some orders only; 2 policy: an op orders its accesses to one operand" in page
    assert "7 stand unseen, 3 by policy, 2 without a reason.\n\nKnown to be refused needlessly:\n" in page


def test_a_reason_is_that_of_the_code_and_the_field() -> None:
    assert reason_of("AMK302", "Counter.handoff").kind == reason_of("AMK302", "GemvOp.scales").kind == "policy"
    assert reason_of("AMK302", "Wait.at_least").kind == reason_of("AMK106", "PeakOp.round").kind == "unseen"
    assert reason_of("AMK106", "GemvOp.layer").kind == "policy" and reason_of("AMK999", "GemvOp.layer").kind == "open"
    assert {reason.kind for table in (BY_CODE, BY_FIELD, BY_PROPERTY) for reason in table.values()} <= {
        "unseen",
        "policy",
    }


def test_reasons_are_of_codes_and_fields_that_there_are() -> None:
    fields = {site.field for name in SMALL_BASES for site in neighbourhood(name).sites}
    assert {code for code, _ in (*BY_FIELD, *BY_PROPERTY)} | BY_CODE.keys() <= TITLES.keys()
    assert {field for _, field in BY_FIELD} <= fields | {f"{field}[]" for field in fields} | {"Stream.chunks{}"}
    assert {name for _, name in BY_PROPERTY} <= {field.rpartition(".")[2] for field in fields}
