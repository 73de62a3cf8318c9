"""The suite's own machinery: generators, oracle, confusion table, and close calls that few mutants reach."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from amk.adversary import confusion
from amk.adversary.classes.table import BY_NUMBER, CLASSES
from amk.adversary.confusion import EACH, MANY, Mutation, Table, decide, decide_all, mutation, share, tokens_for
from amk.adversary.edits import Edit, Json, apply, at, named, steps
from amk.adversary.minimal import minimal_name
from amk.adversary.recipe import base_schedule
from amk.adversary.subjects import SETTINGS, subject, users
from amk.adversary.suite import folder
from amk.checker.facts import check_refills
from amk.checker.programs import Rejected, programs_of
from amk.cli import main
from amk.judges.oracle.facts import broken_rules
from amk.judges.oracle.flatten import spell
from amk.judges.oracle.judge import Ruling, rule, start_positions
from amk.judges.oracle.touched import COUNTING, POSITIONAL, Toucher
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.settings import FAST
from amk.schedule_ir.codec import parse_schedule
from amk.schedule_ir.expr import Env
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import RESERVED_SMEM_PER_BLOCK, STATIC_SMEM_PER_BLOCK, load_target
from amk.validator.export.certificate import NotSafe
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.program.system import System
from amk.validator.verify import verify


def schedule_of(document: Json) -> Schedule:
    return parse_schedule(json.dumps(document).encode(), "test")[0]


def first_code(document: Json) -> str:
    return verify(schedule_of(document)).diagnostics[0].code


def small(kind: str = "fenced") -> Json:
    return subject(kind, 2, 2, 1).document


@pytest.mark.turns(16)
@pytest.mark.parametrize(
    ("number", "seed", "status"),
    [
        (20, "evidence/10/3", "SAFE"),  # prefetches the same rows twice, which has no effect
        (20, "evidence/543/0", "SAFE"),
        (22, "evidence/1/3", "UNSAFE"),  # combine keeps its weights where it stages its output
        (22, "evidence/100/0", "UNSAFE"),
        (22, "evidence/533/4", "UNSAFE"),
        (1, "evidence/23/3", "SAFE"),  # from here on one warp waits, and the others read nothing of other workers
        (1, "evidence/60/0", "SAFE"),
        (1, "evidence/91/0", "SAFE"),
        (1, "evidence/135/3", "SAFE"),
        (22, "evidence/146/0", "SAFE"),
        (22, "evidence/216/4", "SAFE"),
        (22, "evidence/315/3", "SAFE"),
        (34, "1547/21", "UNSAFE"),  # defers more refills than its rings have slots
    ],
)
def test_mutants_on_which_the_judges_once_differed(number: int, seed: str, status: str) -> None:
    found = decide(mutation(number, seed))
    assert (found.verdict, found.ruling.status, found.uncertified) == (status, status, "")


def test_a_validator_that_says_yes_to_everything_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Yes:
        status, diagnostics, evidence, safe = "SAFE", (), None, True

    monkeypatch.setattr("amk.adversary.confusion.verify", lambda _: Yes)
    monkeypatch.setattr("amk.adversary.confusion.judged_system", lambda _: ("SAFE", ""))
    monkeypatch.setattr("amk.adversary.confusion.certified", lambda _: "")
    table = Table()
    for number, seed in share(len(CLASSES), seed=4):
        table.add(decide(mutation(number, seed)))
    assert table.total("false_accepts") == table.total("unsafe") + table.total("open") > 10
    assert not table.clean and table.differences


def test_a_safe_mutant_without_an_accepted_certificate_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amk.adversary.confusion.certify_schedule", lambda *_, **__: {"format": "none"})
    cases = [decide(mutation(3, f"bare/{n}")) for n in range(4)]
    table = Table()
    for outcome in cases:
        table.add(outcome)
    assert table.total("uncertified") == sum(o.verdict == "SAFE" for o in cases) > 0
    assert table.total("certificates") == 0 and "certificate: malformed" in table.differences[0]


def test_a_table_with_an_empty_class_is_not_clean() -> None:
    table = Table()
    table.add(decide(mutation(25, "0")))
    assert not table.clean and len(table.empty) == len(CLASSES) - 1


def test_a_class_with_few_cases_of_one_verdict_is_not_clean() -> None:
    table = Table()
    one = decide(mutation(25, "0"))
    for number in CLASSES:
        for _ in range(MANY):
            status = "SAFE" if table.total("cases") % MANY < EACH else "UNSAFE"
            table.add(replace(one, kind=str(number.number), verdict=status, ruling=Ruling(status), uncertified=""))
    assert table.clean and not table.thin
    table.rows["7"].safe -= 1
    assert table.thin == ["7"] and not table.clean


def test_equal_seeds_make_equal_mutants() -> None:
    for found in CLASSES:
        one, two = mutation(found.number, "same"), mutation(found.number, "same")
        if isinstance(one.subject, System) and isinstance(two.subject, System):
            assert one.subject.to_json() == two.subject.to_json()
        else:
            assert one == Mutation(found.number, "same/" + str(found.number), two.subject)


@pytest.mark.parametrize("kind", sorted(SETTINGS))
def test_the_oracle_accepts_plans_at_every_position(kind: str) -> None:
    schedule = schedule_of(small(kind))
    assert rule(schedule, tokens_for(schedule), start_positions(schedule, 3)).status == "SAFE"


def test_footprints_depend_on_position_and_turn_only_where_the_oracle_thinks_so() -> None:
    spelled = spell(schedule_of(small()), 2)
    toucher = Toucher(spelled)
    for segment in spelled.segments:
        for visit in segment.visits:
            seen = set()
            for pos in (0, 3, 7):
                for n in (0, 1):
                    env = Env(
                        loops=visit.loops | {"n": n}, worker=segment.worker, agent=visit.agent, pos=pos,
                        tables=toucher.tables,
                    )  # fmt: skip
                    key = (pos if visit.step.op.op in POSITIONAL else 0, n if visit.step.op.op in COUNTING else 0)
                    seen.add((key, tuple(visit.step.op.accesses(env, toucher.geometry))))
            assert len({key for key, _ in seen}) == len(seen)


def edited(*edits: Edit, kind: str = "fenced") -> Json:
    return apply(small(kind), list(edits))[0]


def test_limits_of_the_launch_are_exact() -> None:
    """Each line has one number that just fits and one that just does not."""

    def launch(**fields: Any) -> list[Edit]:
        return [Edit("replace", ("launch", name), value) for name, value in fields.items()]

    half = small()["target"]["smem_per_sm"] // 2 - RESERVED_SMEM_PER_BLOCK - STATIC_SMEM_PER_BLOCK
    close = [
        ([Edit("replace", ("target", "sms"), 2)], [Edit("replace", ("target", "sms"), 1)]),
        (launch(ctas_per_sm=5, registers=168), launch(ctas_per_sm=5, registers=172)),
        (
            launch(ctas_per_sm=2, registers=64, shared_bytes=half),
            launch(ctas_per_sm=2, registers=64, shared_bytes=half + 1),
        ),
    ]
    for fits, fails in close:
        assert verify(schedule_of(edited(*fits))).safe and rule(schedule_of(edited(*fits))).status == "SAFE"
        assert first_code(edited(*fails)) == "AMK402" and rule(schedule_of(edited(*fails))).status == "UNSAFE"


def test_counters_may_start_below_half_of_their_range_only() -> None:
    for start, code in ((2**31 - 1, None), (2**31, "AMK204")):
        document = small()
        edits = [
            Edit("replace", (*path, "waits", i, "at_least"), {"t": 2, "1": 2 + start})
            for path, step in steps(document)
            for i, wait in enumerate(step["waits"])
            if wait["counter"] == "act"
        ]
        edits.append(Edit("replace", (*named(document, "counters", "act"), "init"), start))
        verdict = verify(schedule_of(edited(*edits)))
        assert [d.code for d in verdict.diagnostics] == ([code] if code else [])


@pytest.mark.parametrize("kind", ["fenced", "tagged"])
@pytest.mark.parametrize(
    ("add", "ruling"),
    [
        (2**29 - 1, "SAFE"),  # thresholds grow by 2^31 - 4 a token
        (2**29, "UNSAFE"),  # 2^31: refused, whatever the waits find
        (715_827_883, "UNSAFE"),
        (2**30, "UNSAFE"),
    ],
)
def test_the_sum_of_a_token_stays_within_what_can_be_compared(kind: str, add: int, ruling: str) -> None:
    """Four signals, each of which could be compared; the device looks at the sign of the 32-bit difference."""
    document = subject(kind, 4, 1, 1).document
    waits, signals = users(document, "act")
    edits = [Edit("replace", (*path, "at_least"), {"t": 4 * add, "1": 4 * add}) for path in waits]
    edits += [Edit("replace", (*path, "add"), add) for path in signals]
    schedule = schedule_of(apply(document, edits)[0])
    found = verify(schedule)
    assert (found.status, {d.code for d in found.diagnostics}) == (ruling, set() if ruling == "SAFE" else {"AMK204"})
    assert rule(schedule, 2).status == ruling
    if ruling == "SAFE":
        assert certify_schedule(schedule)
    else:
        with pytest.raises(NotSafe, match=r"wrap|out of range"):
            certify_schedule(schedule)


@pytest.mark.parametrize(
    ("threshold", "code"),
    [
        (2**31 + 2**30, "AMK203"),  # the worker's own 2^30 are there when it begins to wait, so 2^31 are missing
        (2**31 + 2**30 + 1, "AMK204"),  # one more: the device takes 0 - asked for a number above zero
        (2**32, "AMK204"),
    ],
)
def test_what_a_wait_is_for_stays_within_what_can_be_compared(threshold: int, code: str) -> None:
    """A counter gains 2^32 a token, its thresholds grow by 4: not SAFE by that alone, and UNSAFE if a wait passes at
    once. The constant of a threshold may be of any size, so this is reached.
    """
    document = subject("tagged", 4, 1, 1).document
    waits, signals = users(document, "act")
    edits = [Edit("replace", (*path, "at_least"), {"t": 4, "1": threshold}) for path in waits]
    edits += [Edit("replace", (*path, "add"), 2**30) for path in signals]
    found = verify(schedule_of(apply(document, edits)[0]))
    assert found.diagnostics[0].code == code
    assert found.status == ("UNSAFE" if code == "AMK204" else "UNKNOWN")


def test_shared_arrays_are_aligned() -> None:
    path = (*named(small(), "buffers", "ssq"), "offset")
    document = edited(Edit("replace", path, at(small(), path) + 4))
    assert first_code(document) == "AMK406" and rule(schedule_of(document)).status == "UNSAFE"


def test_a_product_begins_with_a_slot_that_is_not_owed() -> None:
    """Small plans hold nothing back, so this one is larger, and its long products hold back all. Without refills both
    judges say no; with one they say yes, although the rest is owed through the next product."""
    model = load_model("smollm2-135m").model_copy(update={"layers": 1, "max_context": 64})
    settings = replace(FAST, handoff="fenced", warps=2, slots=16, held_refills=1.0)
    schedule = plan(model, load_target("h200"), settings=settings, workers=4)
    document = json.loads(schedule.model_dump_json())
    refills = [path for path, step in steps(document) if step["op"]["op"] == "refill"]
    assert refills, "nothing is held back"
    assert verify(schedule).safe and not list(broken_rules(spell(schedule, 1)))
    without = schedule_of(apply(document, [Edit("remove", path) for path in reversed(refills)])[0])
    assert verify(without).diagnostics[0].code == "AMK302"
    assert "holds back" in next(iter(broken_rules(spell(without, 1))))
    with pytest.raises(Rejected, match="drained while all of its slots may be owed"):
        check_refills(without, programs_of(without))
    fewer = schedule_of(apply(document, [Edit("replace", (*path, "op", "most"), 1) for path in refills])[0])
    assert verify(fewer).safe and not list(broken_rules(spell(fewer, 1)))
    check_refills(fewer, programs_of(fewer))


def test_the_oracle_keeps_only_the_bytes_that_are_touched() -> None:
    """A buffer may be larger than this machine's memory."""
    document = edited(Edit("replace", (*named(small(), "buffers", "h_mid"), "shape"), [2**31 - 1]))
    assert verify(schedule_of(document)).safe and rule(schedule_of(document)).status == "SAFE"


@pytest.mark.parametrize(
    ("name", "edges", "buffer", "split_active"),
    [
        ("hint-one-short", "wait", "'qkv'", "UNSAFE"),
        ("order-at-some-positions", "wait", "'qkv'", "SAFE"),
        ("idle-worker-behind-hints", "word", "'state'", "SAFE"),
    ],
)
def test_an_idle_worker_is_refused_for_the_reason_of_the_case(
    name: str, edges: str, buffer: str, split_active: str
) -> None:
    """In the plan that the case starts from worker 3 is idle too, and held back; only what the case changes is wrong.

    wait: a word may be overwritten before worker 3 has found it, which is the reader in every finding. While the split
    of worker 3 is active (from position 8 on), its partial results say where it is.
    """
    schedule = schedule_of(json.loads((folder() / f"{name}.json").read_text())["schedule"])
    assert rule(schedule_of(base_schedule("idle")), 2).status == "SAFE"
    verdict = verify(schedule)
    assert verdict.evidence is not None and verdict.evidence.edges == edges
    (finding,) = verdict.diagnostics
    assert finding.code == "AMK302" and buffer in finding.message
    assert any(fact.text.startswith("worker 3 warp 0 reads") for fact in finding.facts)
    assert [rule(schedule, 2, [pos]).status for pos in (0, 8)] == ["UNSAFE", split_active]


def test_every_split_needs_a_worker() -> None:
    document = edited(Edit("replace", ("tables", "attn.head"), [0, -1]))
    assert first_code(document) == "AMK101" and rule(schedule_of(document)).status == "UNSAFE"


def test_what_words_order_in_time_is_not_visible_without_a_fence() -> None:
    """The scales lie in plain memory beside tagged partials: whoever found the partials may still read old scales."""
    number = int(named(small("tagged"), "buffers", "split_scale")[1])
    plain = [Edit("replace", ("buffers", number, field), value) for field, value in (("tagged", False), ("tag", None))]
    document = edited(*plain, kind="tagged")
    assert first_code(document) == "AMK302" and rule(schedule_of(document)).status == "UNSAFE"


@pytest.mark.parametrize(("missing", "status"), [(0, "SAFE"), (1, "SAFE"), (2, "UNSAFE")])
def test_partial_thresholds_over_signals_with_a_common_past(missing: int, status: str) -> None:
    """Every warp signals behind a barrier: one warp's signal says that all warps of its worker have written.

    No single signal is guaranteed when one may be missing, so only the check event by event can tell.
    """
    document = subject("wide", 2, 2, 1).document
    giving, waiting = users(document, "act")[1][0], users(document, "act")[0][0]
    edits = [
        Edit("replace", (*giving[:-2], "op", "role"), "all"),
        Edit("replace", (*waiting, "at_least"), {"t": 4, "1": 4 - missing}),
    ]
    schedule = schedule_of(apply(document, edits)[0])
    assert verify(schedule).status == rule(schedule).status == status


@pytest.mark.turns(16)
def test_mutants_of_every_class_are_judged_alike(capsys: pytest.CaptureFixture[str]) -> None:
    """A slice of `amk adversarial --n`, which `.ci/run` runs with more."""
    assert main(["adversarial", "--n", "44", "--seed", "9", "--jobs", "1", "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["cases"] == 44 and report["false_accepts"] == report["false_rejects"] == 0
    assert set(report["classes"]) == {str(c) for c in BY_NUMBER} and "unknown" in report
    rows = report["classes"].values()
    assert report["differences"] == [] and min(sum(row[kind] for row in rows) for kind in ("safe", "unsafe")) > 10
    assert main(["adversarial", "--n", "3", "--jobs", "1"]) == 1
    assert "classes without a case" in capsys.readouterr().out


def test_without_a_number_the_stored_cases_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`test_cases` judges every file; here one that tells the truth, and the same one telling a lie."""
    source = json.loads((folder() / f"{minimal_name(BY_NUMBER[3])}.json").read_text())
    monkeypatch.setattr("amk.adversary.suite.folder", lambda: tmp_path)
    (tmp_path / "true.json").write_text(json.dumps(source))
    assert main(["adversarial", "--format", "json"]) == 1  # the other classes are empty
    report = json.loads(capsys.readouterr().out)
    assert (report["cases"], report["false_accepts"], report["false_rejects"]) == (2, 0, 0)
    (tmp_path / "false.json").write_text(json.dumps(source | {"status": "SAFE"}))
    assert main(["adversarial", "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["false_rejects"] == 1


@pytest.mark.turns(4)
def test_metamorphic_edits_keep_the_verdict() -> None:
    """Renaming and reordering counters, and equal copies of a program, change nothing."""
    rng = Random(5)
    for number in (3, 9, 12, 14, 22):
        for n in range(4):
            case = mutation(number, f"meta/{n}")
            assert isinstance(case.subject, Schedule)
            document = json.loads(case.subject.model_dump_json())
            verdict = verify(case.subject).status
            for change in (_renamed, _reordered, _split):
                assert verify(schedule_of(change(document, rng))).status == verdict


def _renamed(document: Json, rng: Random) -> Json:
    text = json.dumps(document)
    for name in ("attn", "best"):
        text = text.replace(f'"counter": "{name}"', f'"counter": "new_{name}"')
    copy = json.loads(text)
    for counter in copy["counters"]:
        counter["name"] = f"new_{counter['name']}" if counter["name"] in ("attn", "best") else counter["name"]
    return copy


def _reordered(document: Json, rng: Random) -> Json:
    counters = list(document["counters"])
    rng.shuffle(counters)
    return document | {"counters": counters}


def _split(document: Json, rng: Random) -> Json:
    """The last worker of the first program gets a copy of it."""
    first, *rest = document["programs"]
    if first["count"] < 2:
        return document
    last = first | {"name": "copy", "first": first["first"] + first["count"] - 1, "count": 1}
    return document | {"programs": [first | {"count": first["count"] - 1}, last, *rest]}


def test_a_mutant_that_is_drawn_again_is_not_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []
    one = decide(mutation(25, "0"))
    monkeypatch.setattr(confusion, "JUDGED", {})
    monkeypatch.setattr(confusion, "decide", lambda case: (judged.append(case.seed), one)[1])
    found = list(decide_all([(25, "0"), (25, "0"), (3, "again"), (25, "0")]))
    assert judged == ["0/25", "again/3"]
    assert [(o.kind, o.seed) for o in found] == [("25", "0/25")] * 2 + [("3", "again/3"), ("25", "0/25")]
