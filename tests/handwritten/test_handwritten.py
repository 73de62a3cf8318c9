"""Both schedules are proved, run to the right numbers in every order tried, compile, and break as expected."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import numpy as np
import pytest

from amk.adversary.edits import Edit, Json, apply, at, find, named, signalling, steps, waiting
from amk.adversary.edits import Path as Place
from amk.checker.certificate import check_certificate
from amk.engine.backends.cpu_engine import CpuEngine
from amk.engine.backends.session import Session
from amk.interpreter.fault import Deadlock
from amk.interpreter.interpret import Copies
from amk.interpreter.order import named_order
from amk.judges.replay import replay
from amk.lowering.kernel import build
from amk.schedule_ir.codec import canonical_json, load_schedule, schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.order.two_levels import NotComposable
from amk.validator.program.footprint import Footprints
from amk.validator.verify import Verdict, verify
from tests.engine.tiny import RandomTensors, reference_decoder
from tests.handwritten import split_attention, sync_agent
from tests.reference.llama_numpy import greedy
from tests.validator.plans import from_document

BOTH = pytest.mark.parametrize("module", [sync_agent, split_attention], ids=lambda m: m.__name__.rpartition(".")[2])
PROMPT = [3, 17, 5, 60, 2, 9, 11, 40, 1]
TOKENS = 10
"""With the prompt, past the first block of 16 positions: a second split becomes active."""


@BOTH
def test_the_file_is_what_the_module_writes(module: ModuleType, request: pytest.FixtureRequest) -> None:
    """`pytest tests/handwritten --update-golden` writes the files."""
    file = Path(module.__file__ or "").with_suffix(".json")
    if request.config.getoption("--update-golden"):
        file.write_bytes(canonical_json(module.schedule()))
    assert load_schedule(file)[0] == module.schedule()


@BOTH
@pytest.mark.parametrize("gpu", ["h200", "l4"])
def test_it_is_safe(module: ModuleType, gpu: str) -> None:
    verdict = verify(module.schedule(gpu))
    assert verdict.status == "SAFE" and verdict.deterministic, verdict.diagnostics
    assert verdict.tokens_to_wrap is not None and verdict.tokens_to_wrap > 10**6


@BOTH
def test_its_certificate_is_accepted(module: ModuleType) -> None:
    schedule = load_schedule(Path(module.__file__ or "").with_suffix(".json"))[0]
    verdict = check_certificate(schedule, schedule_hash(schedule), certify_schedule(schedule, checked=False))
    assert verdict.accepted, verdict.reason


def test_a_signal_need_not_speak_for_all_warps() -> None:
    """Without the barrier before `best` the fences separate the tokens still: the signals of one warp of a worker,
    whatever its other warps are at."""
    path = find(document(split_attention), "argmax_rows", nth=1)
    before = (*path[:-1], int(path[-1]) - 1)
    schedule = broken(split_attention, Edit("remove", before))
    assert verify(schedule).status == "SAFE"
    verdict = check_certificate(schedule, schedule_hash(schedule), certify_schedule(schedule, checked=False))
    assert verdict.accepted, verdict.reason


@pytest.mark.turns(48)
@BOTH
@pytest.mark.parametrize(("order", "copies"), [("random:1", "events"), ("delay:9", "whole"), ("favour:12", "whole")])
def test_it_decodes_what_the_reference_decodes(module: ModuleType, order: str, copies: Copies) -> None:
    schedule = module.schedule()
    source = RandomTensors(schedule.model)
    engine = CpuEngine(schedule, source, copies=copies, order=lambda: named_order(order))
    text = list(Session(engine, slice=4).generate(PROMPT, TOKENS))
    expected = list(greedy(reference_decoder(schedule.model, source.arrays), PROMPT, (), TOKENS))
    assert min(gap for _, gap in expected) > 1e-3, "the example must not hinge on a tie"
    assert text == [token for token, _ in expected]
    logits = reference_decoder(schedule.model, source.arrays).forward([*PROMPT, *text[:-1]])
    np.testing.assert_allclose(engine.logits(), logits, rtol=1e-4, atol=1e-4)


EVERY_ARCH = [(sync_agent, gpu) for gpu in ("a100-80gb", "l4", "b200")]
EVERY_ARCH += [(split_attention, gpu) for gpu in ("a10g", "h200", "rtx5090")]


@pytest.mark.turns(24)
@pytest.mark.parametrize(("module", "gpu"), EVERY_ARCH, ids=lambda value: getattr(value, "__name__", value))
def test_it_compiles_within_its_budget(module: ModuleType, gpu: str, tmp_path: Path) -> None:
    built = build(module.schedule(gpu), cache_directory=tmp_path)
    assert built.resources.spill_stores == built.resources.spill_loads == 0


def broken(module: ModuleType, *edits: Edit) -> Schedule:
    return from_document(apply(document(module), list(edits))[0])


def document(module: ModuleType) -> Json:
    return json.loads(module.schedule().model_dump_json())


def refused(verdict: Verdict, *codes: str) -> bool:
    """UNSAFE with one of these codes, and a witness that replays."""
    assert verdict.evidence is not None, verdict.diagnostics
    assert replay(verdict.evidence.system.to_json(), verdict.evidence.witness.to_json())
    return verdict.status == "UNSAFE" and verdict.diagnostics[0].code in codes


@pytest.mark.parametrize("counter", ["qkv", "attn", "h_mid", "act", "h_out", "best"])
def test_the_sync_warp_may_leave_out_no_poll(counter: str) -> None:
    path = waiting(document(sync_agent), counter)
    assert refused(verify(broken(sync_agent, Edit("remove", path))), "AMK302")


@pytest.mark.parametrize("head", range(sync_agent.MODEL.kv_heads))
def test_every_head_needs_its_signal(head: int) -> None:
    path = signalling(document(sync_agent), "qkv")
    assert refused(verify(broken(sync_agent, Edit("remove", (*path, "signals", head)))), "AMK202")


def test_a_worker_waits_for_its_own_head() -> None:
    gate = [*sync_agent.attention_tables()["attn.gate"][4:], 0, 0, 0, 0]
    assert refused(verify(broken(sync_agent, Edit("replace", ("tables", "attn.gate"), gate))), "AMK302")


def test_a_producer_of_another_head_does_not_count() -> None:
    """Worker 2 signals head 0 in place of worker 1: the sums agree, the rows of query head 1 may be missing."""
    added = document(sync_agent)["tables"]["qkv.to.0"]
    added[1], added[2] = 0, 1
    assert refused(verify(broken(sync_agent, Edit("replace", ("tables", "qkv.to.0"), added))), "AMK302")


def barriers(module: ModuleType) -> list[Place]:
    return [path for path, step in steps(document(module)) if step["op"]["op"] == "barrier"]


WAITED_FOR = {8: "h_mid", 14: "h_out"}
"""Barriers behind a wait of the sync warp that nothing else hands on, by number: the race that is told of may be one
with another worker, whose code names the wait, or one of two warps here."""


@pytest.mark.turns(4)
@pytest.mark.parametrize("number", range(0, len(barriers(sync_agent)), 2))
def test_the_two_kinds_of_warps_meet_where_they_must(number: int) -> None:
    verdict = verify(broken(sync_agent, Edit("remove", barriers(sync_agent)[number])))
    counter = WAITED_FOR.get(number)
    assert refused(verdict, "AMK302", *(() if counter is None else ("AMK504",)))
    assert counter is None or counter in verdict.diagnostics[0].message


def test_the_sync_warp_counts_at_the_barrier() -> None:
    path = next(p for p in barriers(sync_agent) if at(document(sync_agent), p)["op"]["role"] == "math")
    edits = [Edit("replace", (*path, "op", "agents"), sync_agent.MATH + 1)]
    assert verify(broken(sync_agent, *edits)).diagnostics[0].code == "AMK404"


def without_attn() -> Schedule:
    return broken(split_attention, Edit("remove", waiting(document(split_attention), "attn")))


def test_inactive_splits_are_overtaken_without_their_counter() -> None:
    assert refused(verify(without_attn()), "AMK302")


def test_the_interpreter_hangs_where_the_validator_says_so() -> None:
    """Worker 9 serves a split without positions. Late enough, it looks for queries that have been overwritten."""
    schedule = without_attn()
    engine = CpuEngine(schedule, RandomTensors(schedule.model), order=lambda: named_order("delay:9"))
    engine.request(PROMPT)
    with pytest.raises(Deadlock) as caught:
        engine.step(1)
    assert any(b.worker == 9 and b.waits_for.endswith("of qkv with tag 1, it has 2") for b in caught.value.blocked)


@pytest.mark.parametrize("counter", ["h_mid", "act", "h_out"])
def test_fenced_hand_offs_need_their_waits(counter: str) -> None:
    path = waiting(document(split_attention), counter)
    assert refused(verify(broken(split_attention, Edit("remove", path))), "AMK302")


def attn_and_best(order: str) -> Schedule:
    """`attn` handed off in this way, and no wait for `best` among the row workers."""
    data = document(split_attention)
    edits = [
        Edit("replace", (*named(data, "counters", "attn"), "handoff"), order),
        Edit("remove", waiting(data, "best")),
    ]
    return broken(split_attention, *edits)


def test_candidates_are_not_read_for_a_given_token() -> None:
    """So their words order nothing, and with a mere hint the launch state is stored before all have loaded it."""
    assert verify(attn_and_best("fenced")).status == "SAFE"
    verdict = verify(attn_and_best("hint"))
    assert refused(verdict, "AMK302") and "'state'" in verdict.diagnostics[0].message


@pytest.mark.parametrize("composed", [True, False])
def test_what_is_open_between_two_tokens_hides_no_fault_in_one(monkeypatch: pytest.MonkeyPatch, composed: bool) -> None:
    """Only words would keep one token's `best` from the next one's: open. One token is wrong all the same."""

    def refuse(schedule: Schedule, footprints: Footprints) -> NoReturn:
        raise NotComposable("made up")

    if not composed:
        monkeypatch.setattr("amk.validator.verify.compose", refuse)
    verdict = verify(attn_and_best("hint"))
    assert refused(verdict, "AMK302")
    assert [d.code for d in verdict.diagnostics] == ["AMK302", "AMK203"]


def test_a_counter_of_fewer_holds_nobody_back() -> None:
    path = (*waiting(document(split_attention), "attn"), "waits", 0, "at_least")
    late = {"t": split_attention.SERVING, "1": split_attention.SERVING - 1}
    assert refused(verify(broken(split_attention, Edit("replace", path, late))), "AMK302")


def test_four_warps_meet_between_append_and_attention() -> None:
    path = find(document(split_attention), "attend")
    edits = [Edit("remove", (*path[:-1], int(path[-1]) - 1))]
    assert refused(verify(broken(split_attention, *edits)), "AMK302")


def test_programs_that_own_rows_keep_one_order_of_drains() -> None:
    """A program may leave out what it owns nothing of; here the second one owns rows and leaves out their steps."""
    data = document(split_attention)
    first, count = data["tables"]["lm_head.first"], data["tables"]["lm_head.count"]
    count[7], count[8], first[8] = count[7] - 1, 1, first[7] + count[7] - 1
    edits = [
        Edit("replace", ("tables", "lm_head.first"), first),
        Edit("replace", ("tables", "lm_head.count"), count),
    ]
    codes = [d.code for d in verify(broken(split_attention, *edits)).diagnostics]
    assert codes and set(codes) == {"AMK106"}
