"""Certificates of schedules: every SAFE plan has one, nothing unsafe has, and every edit that matters is noticed."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amk.adversary.cases import RECIPES, Recipe, make_case, repaired
from amk.adversary.classes.slots import arrivals
from amk.adversary.confusion import mutation
from amk.adversary.edits import Edit, after, apply, at, find, steps
from amk.adversary.forgeries import main as forge_many
from amk.adversary.forgeries import offer, victims
from amk.adversary.neighbourhood.bases import base
from amk.adversary.subjects import reshare, split_programs, subject
from amk.adversary.suite import folder
from amk.checker import facts
from amk.checker.certificate import Proof, check_certificate
from amk.checker.core import EDGES
from amk.checker.footprints import Footprints
from amk.checker.words import FlagWords, Readings
from amk.cli import main
from amk.judges.oracle.judge import last_start, rule
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.settings import FAST
from amk.report.diagnostic import AmkError, Exit
from amk.schedule_ir.codec import load_schedule, save_schedule, schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.validator.export.certificate import NotSafe
from amk.validator.export.of_schedule import certify_schedule, claims_of, run_times
from amk.validator.static.obligations import ring_obligations
from amk.validator.verify import verify
from tests.validator.plans import MODELS, SMALL, from_document, small_plan

UNSOUND = [recipe for recipe in RECIPES if recipe.status != "SAFE"]


def accepted(schedule: Schedule, certificate: object, proof: Proof | None = None) -> str:
    """The checker's reason, "" if it accepts; through JSON, as from a file."""
    return check_certificate(schedule, schedule_hash(schedule), json.loads(json.dumps(certificate)), proof).reason


def test_an_approximation_that_the_model_does_not_have_is_refused() -> None:
    """It computes other numbers, too near for a run of a small model to show."""
    document = json.loads(json.dumps(base("LayerNorm, parallel")))
    assert accepted(from_document(document), certify_schedule(from_document(document))) == ""
    at(document, find(document, "gelu"))["op"]["tanh"] = True
    with pytest.raises(NotSafe, match="needs: gelu"):
        certify_schedule(from_document(document))


@pytest.mark.parametrize(
    ("settings_name", "model"),
    [
        ("fast", "plain"),
        ("fast", "ragged"),
        ("naive", "deep"),
        ("heads", "bias"),
        ("two-warps", "qk-norm"),
        ("drawing", "plain"),
    ],
)
def test_safe_plans_have_accepted_certificates(settings_name: str, model: str) -> None:
    schedule = small_plan(SMALL[settings_name], MODELS[model])
    certificate = certify_schedule(schedule)
    assert accepted(schedule, certificate) == ""
    assert len(json.dumps(certificate)) < 20_000


def test_launches_of_one_token_are_proved_as_launches_of_two() -> None:
    schedule = small_plan(replace(SMALL["naive"], max_tokens=1))
    assert rule(schedule, 1, [0, last_start(schedule, 1)]).status == verify(schedule).status == "SAFE"
    assert accepted(schedule, certify_schedule(schedule, checked=False)) == ""
    launch = schedule.launch.model_copy(update={"max_tokens": 2})  # no room for what the second token leaves
    wrong = schedule.model_copy(update={"launch": launch})
    assert verify(wrong).status == "UNSAFE"
    with pytest.raises(NotSafe):
        certify_schedule(wrong)


@pytest.mark.turns(12)
@pytest.mark.parametrize("recipe", UNSOUND, ids=lambda recipe: recipe.name)
def test_no_certificate_for_unsafe_or_open_cases(recipe: Recipe) -> None:
    """Also not from the certificate of the safe twin, re-hashed."""
    case = make_case(recipe)
    try:
        schedule = from_document(case["schedule"])
    except AmkError:
        return  # not a schedule at all
    with pytest.raises(NotSafe):
        certify_schedule(schedule)


@pytest.mark.parametrize("name", ["class-43-split-count", "class-13-dropped-wait-masked-by-same-sm-order"])
def test_twins_of_the_class_files_have_certificates(name: str) -> None:
    case = json.loads((folder() / f"{name}.json").read_text())
    assert accepted(from_document(repaired(case)), certify_schedule(from_document(repaired(case)))) == ""
    with pytest.raises(NotSafe):
        certify_schedule(from_document(case["schedule"]))


@pytest.mark.parametrize("swapped", [False, True])
def test_a_step_does_not_use_bytes_by_way_of_two_buffers(swapped: bool) -> None:
    """One warp keeps weights in 'mix' and writes 'x' over them; no order of the buffers in a file makes that right."""
    document = copy.deepcopy(subject("fenced", 4, 1, 1).document)
    x, mix = (next(b for b in document["buffers"] if b["name"] == name) for name in ("x", "mix"))
    mix["offset"] = x["offset"]
    if swapped:
        document["buffers"].reverse()
    schedule = from_document(document)
    assert {d.code for d in verify(schedule).diagnostics} == {"AMK301"}
    assert "two arrays" in rule(schedule, 2).why
    with pytest.raises(NotSafe, match="race: in private memory"):
        certify_schedule(schedule)


def test_an_order_is_made_again_for_other_claims_and_other_times() -> None:
    proof = Proof(small_plan(SMALL["naive"], MODELS["plain"]))
    times = run_times(proof)
    proof.run(times)
    claims = claims_of(proof, "time")
    order = proof.order("time", {key: claim.copy() for key, claim in claims.items()})
    assert proof.order("time", claims) is order
    key = next(key for key, claim in claims.items() if claim.any())
    less = proof.order("time", claims | {key: claims[key] * 0})
    assert less is not order and (less.starts < order.starts).any()
    proof.run([[workers, [2 * time for time in row]] for workers, row in times])
    assert proof.order("time", claims) is not order


def test_what_one_warp_knows_serves_its_own_accesses_only() -> None:
    """On worker 1 warp 0 alone waits for the other worker's partials, and no barrier stands before `combine`."""
    schedule = mutation(1, "evidence/60/0").subject
    assert isinstance(schedule, Schedule)
    proof = Proof(schedule)
    proof.run(certify_schedule(schedule)["times"])
    order = proof.order("time", claims_of(proof, "time"))
    written, read = (
        next(j for j, item in enumerate(program.items) if item.step.op.op == op)
        for program, op in zip(proof.programs, ("merge", "combine"), strict=True)
    )
    readers = np.array([[1, read, 0], [1, read, 1]])
    writers = np.array([[0, written, 0]] * 2)
    assert order.before(writers, readers).tolist() == [True, False]
    assert order.starts[1, read, 0] <= written, "not all of the warp group know"


@pytest.mark.parametrize("seed", ["evidence/56/0", "evidence/68/3"])
def test_sums_of_all_warps_without_a_barrier_before(seed: str) -> None:
    """All warps sum what each has just made and signal: whoever has all these signals is behind both steps."""
    schedule = mutation(24, seed).subject
    assert isinstance(schedule, Schedule) and verify(schedule).safe
    assert accepted(schedule, certify_schedule(schedule, checked=False)) == ""


@pytest.mark.parametrize(("role", "warps"), [("all", 2), ("w0", 1)])
def test_signals_tell_nothing_of_warps_that_do_not_give_them(role: str, warps: int) -> None:
    """The same, and with one warp that sums and signals: the other may be at its product still."""
    document = subject("fenced", 2, 2, 1).document
    path = next(p for p, s in steps(document) if s["op"].get("h") == "h_out" and s["signals"])
    barrier = (*path[:-1], int(path[-1]) - 1)
    assert at(document, barrier)["op"]["op"] == "barrier"
    edits = [Edit("replace", (*path, "op", "role"), role), *arrivals(document, "h_out", warps), Edit("remove", barrier)]
    proof = Proof(from_document(apply(document, edits)[0]))
    proof.run(run_times(proof))
    order = proof.order("time", claims_of(proof, "time"))
    item = next(j for j, i in enumerate(proof.programs[0].items) if getattr(i.step.op, "h", "") == "h_out")
    assert [proof.programs[0].items[item - n].step.op.op for n in (0, 1)] == ["add_residual", "gemv"]
    instance, threshold = proof.counters.base["h_out"][0], 2 * warps
    assert proof.counters.warp_class.shape == (2, 2)

    def follows(warp: int, over: int) -> bool:
        claim = np.zeros(order.columns, np.int64)
        claim[proof.counters.warp_class[1, warp] * order.workers + 1] = over
        return bool(order.holds(instance, threshold, claim).all())

    for warp in range(2):
        gives = warp < warps
        followed = [follows(warp, item + n) for n in (-1, 0, 1, 2)]
        assert followed == [True, gives, gives, False]


def refills_before_the_signal() -> Schedule:
    """Between the barrier behind a product and the step of one warp that publishes its result, all warps refill."""
    asked = replace(FAST, warps=2, slots=2, kv_block=8, handoff="fenced", refill_first=True)
    return small_plan(replace(asked, held_refills=1.0, first_refills=1.0), MODELS["qk-norm"], workers=2)


def test_a_step_of_all_between_the_barrier_and_the_signal() -> None:
    """The signal says nothing of the warps that may still refill, and everything of the one that gives it."""
    schedule = refills_before_the_signal()
    ops = [item.step.op for item in Proof(schedule).programs[0].items]
    at = [j for j, op in enumerate(ops) if op.op == "add_residual" and ops[j - 1].op == "refill"]
    assert at and all(ops[j].role == "w0" and ops[j - 1].role == "all" and ops[j - 2].op == "barrier" for j in at)
    assert verify(schedule).safe and rule(schedule, 2).status == "SAFE"
    assert accepted(schedule, certify_schedule(schedule, checked=False)) == ""


def test_the_same_without_the_barrier_has_no_certificate() -> None:
    """The signal's warp adds up what the others may still be writing."""
    document = json.loads(refills_before_the_signal().model_dump_json())
    added = next(p for p, s in steps(document) if s["op"].get("h") == "h_out" and s["signals"])
    barrier = (*added[:-1], int(added[-1]) - 2)
    assert at(document, barrier)["op"]["op"] == "barrier"
    schedule = from_document(apply(document, [Edit("remove", barrier)])[0])
    assert verify(schedule).status == rule(schedule, 2).status == "UNSAFE"
    with pytest.raises(NotSafe, match="race: in private memory"):
        certify_schedule(schedule)


def test_words_that_are_not_always_looked_at_order_nothing() -> None:
    """An idle worker is known to be past its first read only through candidates, which a given token does not read."""
    case = json.loads((folder() / "idle-worker-behind-hints.json").read_text())
    with pytest.raises(NotSafe, match="race: in 'state'"):
        certify_schedule(from_document(case["schedule"]))


def idle_for(*keys: str) -> Schedule:
    """Words and hints, 8 workers; the last has no rows of these products."""
    document = subject("tagged", 8, 1, 1).document
    for key in keys:
        counts = document["tables"][f"{key}.count"]
        document = apply(document, reshare(document, key, [*counts[:-2], counts[-2] + counts[-1], 0]))[0]
    return from_document(document)


@pytest.mark.turns(12)
def test_whoever_owns_the_position_waits_for_the_workers_words() -> None:
    """The last worker is past the last token's 'act' once its keys and values have been read. Each of three workers
    does that at the positions of its split only, but whatever the position is everybody waits for the one that does."""
    schedule = idle_for("hidden")
    assert verify(schedule).safe and accepted(schedule, certify_schedule(schedule, checked=False)) == ""
    proof = Proof(schedule)
    proof.run(run_times(proof))
    order = proof.order("wait", claims_of(proof, "wait"))
    items = [(item.step.op.op, item.token) for item in proof.programs[0].items]
    read, merged, written = items.index(("stage", 0)), items.index(("merge", 1)), items.index(("swiglu", 1))
    assert (order.wherever >= order.starts).all()
    assert (order.starts[:7, written, 7] <= read).all() and (order.wherever[:7, written, 7] > read).all()
    assert (order.wherever[:7, merged, 7] <= read).all(), "no single one of the three always knows"
    cases = [
        order._starts_with(order._read_by(1, proof.words.together[0], case))[:7, merged, 7] > read
        for case in proof.words.cases
    ]
    assert [np.flatnonzero(known).tolist() for known in cases] == [[3], [4], [5]]


def read_words(readings: Readings) -> set[tuple[int, int, int, int, int]]:
    """(item, warp, reader, owner, the owner's item) of what is always read."""
    return {
        (item, warp, reader, owner, int(r.writer[owner]))
        for (item, warp), found in readings.items()
        for r in found
        for reader, owner in np.argwhere(r.always).tolist()
    }


@pytest.mark.parametrize("size", [(8, 1, 1), (3, 2, 1), (4, 1, 2)])
def test_words_of_a_split_are_read_at_each_of_its_positions(size: tuple[int, int, int]) -> None:
    """By brute force over the positions, what the cases take from the first and the last of each split."""
    schedule = from_document(subject("tagged", *size).document)
    proof, kv = Proof(schedule), schedule.kv
    cases = [read_words(case) for case in proof.words.cases]
    always = read_words(proof.words.readings)
    assert len(cases) == min(kv.splits, -(-kv.context // kv.block)) and always
    assert all(always <= case for case in cases) and (len(cases) == 1 or any(always < case for case in cases))
    for position in range(kv.context):
        rows = Footprints(proof.schedule, proof.programs, [position] * 4).rows()
        here = read_words(FlagWords(proof.schedule, schedule.model.layers, rows).readings)
        assert cases[position // kv.block % kv.splits] <= here


def test_nobody_waits_for_a_worker_without_words() -> None:
    """The same without keys and values of its own: at no position is it known to be past 'act'."""
    schedule = idle_for("hidden", "qkv")
    assert verify(schedule).status == "UNSAFE"
    with pytest.raises(NotSafe, match="race: in 'act'"):
        certify_schedule(schedule)


@pytest.mark.parametrize("name", ["missing-wait", "relaxed-signal", "order-at-some-positions", "weight-two"])
def test_the_twins_certificate_does_not_fit_the_unsafe_case(name: str) -> None:
    case = make_case(next(r for r in RECIPES if r.name == name))
    unsafe, twin = from_document(case["schedule"]), from_document(repaired(case))
    certificate = certify_schedule(twin)
    assert accepted(twin, certificate) == ""
    assert accepted(unsafe, certificate) == "certificate: made for another schedule"
    assert accepted(unsafe, certificate | {"schedule": schedule_hash(unsafe)}) != ""


def test_tagged_words_do_not_separate_what_an_acquire_counts() -> None:
    """Everybody signals once a token, one worker waits for all. Only words keep others from signalling for the next
    token before all have for this one, and a word stored behind a signal may be seen before the signal."""
    document = subject("tagged", 4, 1, 1).document
    edits = [*split_programs(document, 1), Edit("insert", ("counters", 0), {"name": "extra", "shape": [1]})]
    split = apply(document, edits)[0]
    count = {"counter": "extra", "index": [0]}
    wait = {"op": {"op": "wait", "role": "w0"}, "waits": [count | {"at_least": {"t": 4, "1": 4}}], "signals": []}
    signal = {"op": {"op": "signal", "role": "w0"}, "waits": [], "signals": [count | {"add": 1}]}
    inside = Edit("insert", find(split, "select"), wait)
    embeds = [after(path) for path, step in steps(split) if step["op"]["op"] == "embed"]
    schedule = from_document(apply(split, [inside, *(Edit("insert", path, signal) for path in embeds)])[0])
    with pytest.raises(NotSafe, match="epochs: not separated"):
        certify_schedule(schedule)
    verdict = verify(schedule)
    assert (verdict.status, [d.code for d in verdict.diagnostics]) == ("UNKNOWN", ["AMK203"])
    other = Edit("insert", ("programs", 1, *inside.path[2:]), wait)  # now all of them wait before they go on
    fenced = from_document(apply(json.loads(schedule.model_dump_json()), [other])[0])
    assert verify(fenced).safe and accepted(fenced, certify_schedule(fenced, checked=False)) == ""


@pytest.mark.parametrize(("number", "seed"), [(2, "78/6"), (2, "78/28"), (44, "78/2")])
def test_workers_of_a_program_need_not_run_together(number: int, seed: str) -> None:
    """A chain of workers of one program, and a counter that starts near the wrap."""
    found = mutation(number, seed).subject
    assert isinstance(found, Schedule) and verify(found).safe
    assert accepted(found, certify_schedule(found, checked=False)) == ""


@pytest.fixture(scope="module")
def naive() -> tuple[Schedule, dict[str, Any]]:
    schedule = small_plan(SMALL["naive"], MODELS["qk-norm"])
    return schedule, certify_schedule(schedule)


def test_a_vector_raised_anywhere_is_rejected(naive: tuple[Schedule, dict[str, Any]]) -> None:
    schedule, certificate = naive
    proof, tried = Proof(schedule), 0
    for edges in EDGES:
        for number, (_, _, coded) in enumerate(certificate["clocks"][edges]):
            for place in range(0, len(coded), 2):
                forged = copy.deepcopy(certificate)
                forged["clocks"][edges][number][2][place] += 1
                assert accepted(schedule, forged, proof) == "clocks: not a post-fixpoint"
                tried += 1
    assert tried > 10


def test_a_vector_left_out_is_noticed(naive: tuple[Schedule, dict[str, Any]]) -> None:
    schedule, certificate = naive
    proof, noticed = Proof(schedule), 0
    for edges in EDGES:
        for number in range(len(certificate["clocks"][edges])):
            forged = copy.deepcopy(certificate)
            del forged["clocks"][edges][number]
            noticed += accepted(schedule, forged, proof).startswith(("race", "epochs"))
    assert noticed >= 4


def test_a_run_that_is_not_legal_is_rejected(naive: tuple[Schedule, dict[str, Any]]) -> None:
    schedule, certificate = naive
    ((count, row),) = certificate["times"]
    assert accepted(schedule, certificate | {"times": [[1, row], [count - 1, row]]}) == ""
    assert accepted(schedule, certificate | {"times": [[count, row[::-1]]]}).startswith("times")
    for bad in ([[count, row[:-1]]], [[count - 1, row]], [[count + 1, row]], [[count, row], [1, row]], [[True, row]]):
        assert accepted(schedule, certificate | {"times": bad}) == "times: malformed"
    assert accepted(schedule, certificate | {"times": [[count, [0] * len(row)]]}).startswith("times")
    waiting = next(i for i, t in enumerate(row) if t)
    early = [*row[:waiting], row[waiting - 1], *row[waiting + 1 :]]
    assert accepted(schedule, certificate | {"times": [[count, early]]}) != ""


def test_obligations_are_named(naive: tuple[Schedule, dict[str, Any]]) -> None:
    schedule, certificate = naive
    assert accepted(schedule, certificate | {"obligations": []}) == "obligations: the ring lemma is missing"
    scripts = [o.script for o in ring_obligations()]
    assert len(facts.RING_LEMMA) == len(scripts)


@pytest.mark.turns(12)
def test_forgeries_are_not_accepted() -> None:
    """The long run is `python -m amk.adversary.forgeries --n 100000`."""
    reasons, fooled = offer(list(victims(6)), 1000, "tests")
    assert fooled == []
    assert sum(reasons.values()) == 1000 and len(reasons) >= 3
    assert reasons["race"] > 50, "forgeries whose vectors hold get as far as the race check"


def test_a_long_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = list(victims(1))
    monkeypatch.setattr("amk.adversary.forgeries.victims", lambda: iter(few))
    monkeypatch.setattr("amk.adversary.forgeries.SLICE", 10)
    record = tmp_path / "record.json"
    assert forge_many(["--n", "20", "--record", str(record)]) == 0
    half = json.loads(record.read_text()) | {"offered": 10, "reasons": {}}
    record.write_text(json.dumps(half))
    assert forge_many(["--n", "20", "--record", str(record)]) == 0
    found = json.loads(record.read_text())
    assert found["offered"] == 20 and sum(found["reasons"].values()) == 10 and found["accepted"] == 0


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.integers() | st.floats() | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)


@cache
def _tiniest() -> tuple[Schedule, dict[str, Any], Proof]:
    schedule = small_plan(SMALL["fast"], MODELS["qk-norm"], workers=2)
    return schedule, certify_schedule(schedule), Proof(schedule)


@given(st.sampled_from(("format", "schedule", "times", "clocks", "obligations")), JUNK)
@settings(max_examples=60, deadline=None)
def test_any_certificate_gets_a_verdict(key: str, junk: object) -> None:
    schedule, certificate, proof = _tiniest()
    digest = schedule_hash(schedule)
    assert check_certificate(schedule, digest, certificate | {key: junk}, proof).accepted in (True, False)
    assert not check_certificate(schedule, digest, junk, proof).accepted


@pytest.mark.turns(12)
def test_a_full_size_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = plan(load_model("llama3-8b"), load_target("h200"))
    file, evidence, other = tmp_path / "s.json", tmp_path / "c.json", tmp_path / "o.json"
    save_schedule(schedule, file)
    assert main(["verify", str(file), "--certificate", str(evidence)]) == Exit.SAFE
    assert evidence.stat().st_size < 50_000
    assert main(["check-certificate", str(file), str(evidence)]) == Exit.SAFE
    assert "ACCEPTED" in capsys.readouterr().out
    save_schedule(load_schedule(file)[0].model_copy(update={"name": "another"}), other)
    assert main(["check-certificate", str(other), str(evidence)]) == Exit.UNKNOWN
    assert "AMK206" in capsys.readouterr().err
    evidence.write_text("[")
    assert main(["check-certificate", str(file), str(evidence)]) == Exit.INPUT
