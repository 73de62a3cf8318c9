"""A batch whose sequences have positions of their own: what each computes does not depend on where the others are.

The verdict, its certificate and the judges that run the schedule know of it; a step that takes another sequence's
position or cache is noticed by each of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk.adversary.neighbourhood.bases import SMALL_BASES, base
from amk.checker.certificate import Proof, check_certificate
from amk.checker.facts import check_sequences
from amk.checker.programs import Rejected
from amk.cli import main
from amk.emulator.decode import EmulatedEngine
from amk.engine.backends.request import first_state
from amk.judges.emulated_run import EmulatedKernel
from amk.judges.judge import DEVICE_TOLERANCE, judge, judged, requests
from amk.judges.oracle.judge import rule, start_positions
from amk.lowering.compile import compile_ptx
from amk.lowering.emit import emit
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.settings import Settings
from amk.schedule_ir.codec import canonical_json, load_schedule, schedule_hash
from amk.schedule_ir.expr import Env
from amk.schedule_ir.ops import begin
from amk.schedule_ir.ops.base import Access, Geometry
from amk.schedule_ir.ops.reduce_splits import ReduceSplitsOp
from amk.schedule_ir.schedule import Schedule, steps_of
from amk.targets.target import load_target
from amk.validator.evidence.flat_check import FlatCheck
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.together import apart
from amk.validator.verify import verify
from tests.engine.tiny import RandomTensors
from tests.tiny import VARIANTS

LIVE = sorted(name for name in SMALL_BASES if "live" in name)


@cache
def schedule_of(name: str) -> Schedule:
    return Schedule.model_validate_json(json.dumps(base(name)))


@cache
def printed(schedule_text: str) -> str:
    schedule = Schedule.model_validate_json(schedule_text)
    return compile_ptx(emit(schedule), schedule.target.arch)


def kernel() -> EmulatedKernel:
    return EmulatedKernel(lambda schedule: printed(schedule.model_dump_json()))


@pytest.mark.parametrize("name", LIVE)
def test_live_batches_are_safe_and_certified(name: str) -> None:
    schedule = schedule_of(name)
    verdict = verify(schedule)
    assert verdict.safe, verdict.diagnostics
    assert check_certificate(schedule, schedule_hash(schedule), certify_schedule(schedule, checked=False)).reason == ""


@pytest.mark.turns(4)
@pytest.mark.parametrize("model", VARIANTS, ids=lambda model: model.name)
def test_plans_of_live_batches_are_safe_and_certified(model: ModelSpec) -> None:
    schedule = plan(model, load_target("h200"), settings=Settings(batch=4, live=True), max_context=64)
    verdict = verify(schedule)
    assert verdict.safe, verdict.diagnostics
    assert check_certificate(schedule, schedule_hash(schedule), certify_schedule(schedule, checked=False)).reason == ""


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", LIVE)
def test_no_run_refutes_sequences_at_positions_of_their_own(name: str) -> None:
    schedule = schedule_of(name)
    asked = list(requests(schedule))
    assert any(len(set(request.starts)) > 1 and 0 in request.starts for request, _ in asked)
    assert judge(schedule, most=len(asked)).status == "not refuted"


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", LIVE)
def test_no_run_of_the_kernel_refutes_sequences_at_positions_of_their_own(name: str) -> None:
    schedule = schedule_of(name)
    for request, order in requests(schedule):
        ruling = judged(schedule, request, order, kernel(), DEVICE_TOLERANCE)
        assert ruling.status == "not refuted", ruling


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", LIVE)
def test_the_oracle_rules_at_every_combination_of_positions(name: str) -> None:
    schedule = schedule_of(name)
    every = start_positions(schedule, 2)
    assert rule(schedule, 2, product(every, repeat=schedule.batch)).status == "SAFE"


def test_requests_fit_the_context_whatever_the_blocks_are() -> None:
    document = json.loads(json.dumps(base("live batch")))
    document["kv"]["block"] = 1 << 20
    schedule = Schedule.model_validate_json(json.dumps(document))
    for request, _ in requests(schedule):
        assert max(request.starts) + sum(request.launches) <= schedule.kv.context


def test_the_position_of_another_sequence_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = schedule_of(LIVE[0])
    monkeypatch.setattr(Schedule, "sequences", property(lambda self: [1 - h for h in self.tables["attn.head"]]))
    assert judge(schedule, most=2).status == "refuted"


@pytest.mark.turns(4)
def test_what_was_in_the_cache_of_a_sequence_that_left_is_not_read() -> None:
    """A text that begins where another one was: its tokens are those of an empty cache, on the kernel."""
    schedule = schedule_of(LIVE[0])
    texts = [[3, 17, 5], [9, 2, 30, 8, 11, 4]]
    found = []
    for junk in (0, 0x7FC0):  # zeros, and bf16 NaNs
        engine = EmulatedEngine(schedule, RandomTensors(schedule.model), printed(schedule.model_dump_json()))
        engine.request_batch(texts)
        shape = engine.buffers["k_cache"].shape
        cache = np.zeros(shape, np.uint16)
        cache[:, 0] = junk
        engine.fill_cache(cache, cache)
        engine.set_state(**first_state(texts, (0, 3)))
        outcome = engine.launch(4)
        assert outcome.ended and not outcome.faults
        found.append((engine.output(4).tolist(), engine.state()))
    assert found[0] == found[1]
    assert (found[0][1]["pos"], found[0][1]["pos.1"]) == (4, 7)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda d: _buffer(d, "state").update(shape=[5]), "AMK103"),
        (lambda d: _buffer(d, "state").update(shape=[7]), "AMK103"),
        (lambda d: _buffer(d, "k_cache").update(shape=[1]), "AMK103"),
        (lambda d: d.update(live=False), "AMK103"),
        (lambda d: d["tables"].update({"attn.head": [0, 0, 1, 0]}), "AMK102"),
        (lambda d: d["tables"].update({"attn.head": [0, 1, 1, 0], "attn.split": [0, 0, 1, 0]}), "AMK102"),
    ],
    ids=[
        "positions too few",
        "positions too many",
        "no rows",
        "one position",
        "cache of another",
        "two writers of a cache",
    ],
)
def test_wrong_live_schedules_are_refused(change: Callable[[dict[str, Any]], None], code: str) -> None:
    document = json.loads(json.dumps(base("live batch")))
    change(document)
    schedule = Schedule.model_validate_json(json.dumps(document))
    assert code in {diagnostic.code for diagnostic in verify(schedule).diagnostics}
    refused = check_certificate(schedule, schedule_hash(schedule), certify_schedule(schedule_of("live batch")))
    assert not refused.accepted
    with pytest.raises(Rejected):
        Proof(schedule).check(None, None)


def test_one_sequence_cannot_be_live() -> None:
    document = base("tagged") | {"live": True}
    found = verify(Schedule.model_validate_json(json.dumps(document)))
    assert "AMK106" in {diagnostic.code for diagnostic in found.diagnostics}


def test_partials_of_another_sequence_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op whose reads at some positions are of what another sequence's workers write at some of theirs: with one
    position for both every read finds its write, with two it may not."""
    monkeypatch.setattr(ReduceSplitsOp, "accesses", _of_the_next_sequence(ReduceSplitsOp.accesses))
    schedule = schedule_of("live batch")
    assert {d.code for d in verify(schedule).diagnostics} == {"AMK104"}
    proof = Proof(schedule)
    with pytest.raises(Rejected, match="positions: what moves with one sequence"):
        check_sequences(proof.schedule, proof.rows)


def _of_the_next_sequence(original: Callable[..., list[Access]]) -> Callable[..., list[Access]]:
    def accesses(self: ReduceSplitsOp, env: Env, geo: Geometry) -> list[Access]:
        found = []
        for access in original(self, env, geo):
            half = geo.buffers[access.buffer].bytes // 2
            moved = access.buffer in (self.split_partial, self.split_scale)
            by = (half if access.lo < half else -half) if moved else 0
            found.append(access._replace(lo=access.lo + by, hi=access.hi + by, origin=access.origin + by))
        return found

    return accesses


def _buffer(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(buffer for buffer in document["buffers"] if buffer["name"] == name)


def test_side_by_side_is_not_every_combination() -> None:
    """The check of single positions proves nothing where sequences are apart."""
    assert FlatCheck(schedule_of("live batch"), 1).positions() == (list(range(12)), False)
    assert FlatCheck(schedule_of("tagged"), 1).positions() == (list(range(12)), True)


@pytest.mark.parametrize("name", SMALL_BASES)
def test_ops_whose_accesses_move_say_so(name: str) -> None:
    schedule = schedule_of(name)
    geo, tables = schedule.geometry(), {n: np.array(t) for n, t in schedule.tables.items()}
    for program in schedule.programs:
        for step in steps_of(program.body):
            if "pos" in step.op.registers:
                continue
            for agent, worker in product(range(geo.role_size[step.op.role]), range(schedule.launch.workers)):
                seen = [
                    step.op.accesses(Env({"t": 0, "l": 0, "n": 0}, worker, agent, pos, tables), geo)
                    for pos in range(0, 12 - schedule.rows, 3)
                ]
                assert all(each == seen[0] for each in seen), step.op.op


def test_texts_of_live_and_other_schedules_are_not_mixed() -> None:
    other = Schedule.model_validate_json(json.dumps(base("live batch") | {"live": False}))
    assert any("live" in found.message for found in apart(schedule_of("live batch"), other))


def test_the_state_names_every_position() -> None:
    assert begin.state_words(3, live=True)[4:] == ("token.1", "token.2", "pos.1", "pos.2")


@pytest.mark.turns(4)
def test_the_command_plans_and_verifies_live_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "live.json")
    asked = ["--model", "smollm2-135m", "--gpu", "h200", "--max-context", "256", "--batch", "2", "--live"]
    assert main(["plan", *asked, "-o", file]) == 0
    assert load_schedule(Path(file))[0].live
    assert main(["verify", file]) == 0
    assert "SAFE" in capsys.readouterr().out


@pytest.mark.turns(32)
@pytest.mark.parametrize("name", LIVE)
def test_the_emulators_command_compares_footprints_of_live_batches(name: str, tmp_path: Path) -> None:
    file = tmp_path / "live.json"
    file.write_bytes(canonical_json(schedule_of(name)))
    asked = ["emulate", str(file), "--tokens", "2", "--position", "3"]
    assert main(asked) == 0
    assert main([*asked, "--footprints"]) == 0
