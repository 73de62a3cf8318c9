"""A verdict with earlier results at hand is the verdict without: byte for byte, in any order, and in less time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache, cached_property
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from amk.adversary.edits import Json, apply
from amk.planner.decode import plan
from amk.planner.settings import PRESETS
from amk.report.diagnostic import AmkError
from amk.report.render import as_json
from amk.schedule_ir.model import load_model
from amk.schedule_ir.schedule import Schedule
from amk.schedule_ir.target import load_target
from amk.validator import memo as memo_module
from amk.validator import neighbours
from amk.validator.evaluator import Evaluations
from amk.validator.memo import MANY, Keyed, Memo
from amk.validator.schedule_certificate import certify_schedule
from amk.validator.verify import Verdict, verify
from tests.validator.one_edits import KINDS, mutants
from tests.validator.plans import MODELS, SMALL, small_plan


def told(schedule: Schedule, memo: Memo | None) -> str:
    """Everything that a verdict says, but the time it took."""
    try:
        verdict = verify(schedule, memo=memo)
    except AmkError as error:
        return json.dumps([as_json(d) for d in error.diagnostics])
    evidence = None if verdict.evidence is None else verdict.evidence.to_json("")
    return json.dumps(
        [
            verdict.status, [as_json(d) for d in verdict.diagnostics], verdict.deterministic, verdict.tokens_to_wrap,
            {k: v for k, v in verdict.stats.items() if k != "seconds"}, evidence,
            [(p.obligation.name, p.obligation.script, p.outcome, p.model) for p in verdict.proofs],
        ]
    )  # fmt: skip


def edited(document: Json, kind: str, rng: Random) -> Json:
    """The document after one more edit of this kind, if there is a place for it."""
    try:
        return apply(document, KINDS[kind](document, rng))[0]
    except (IndexError, ValueError):
        return document


@cache
def _cold(text: str) -> str:
    return told(Schedule.model_validate_json(text), None)


def _valid(document: Json) -> str | None:
    text = json.dumps(document)
    try:
        Schedule.model_validate_json(text)
    except ValidationError:
        return None
    return text


@settings(max_examples=4, deadline=None)
@given(
    name=st.sampled_from(sorted(SMALL)),
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=2, max_size=3),
    seed=st.integers(0, 10_000),
    two=st.booleans(),
)
def test_sequences_of_edits_get_the_verdicts_of_a_cold_run_in_both_orders(
    name: str, kinds: list[str], seed: int, two: bool
) -> None:
    plain = small_plan(SMALL[name], MODELS["qk-norm"])
    rng, document = Random(seed), json.loads((_in_two(plain) if two else plain).model_dump_json())
    texts = [json.dumps(document)]
    for kind in kinds:
        document = edited(document if rng.random() < 0.5 else json.loads(texts[0]), kind, rng)
        texts += [text] if (text := _valid(document)) is not None else []
    for order in (texts, texts[::-1]):
        memo = Memo()
        for text in (*order, order[0]):
            assert told(Schedule.model_validate_json(text), memo) == _cold(text)


@cache
def _llama(preset: str) -> Json:
    made = plan(load_model("llama3-8b"), load_target("h200"), settings=PRESETS[preset])
    return json.loads(made.model_dump_json())


def _timed(check: Callable[[], Any]) -> float:
    start = time.process_time()
    check()
    return time.process_time() - start


def test_edits_of_a_full_size_plan_get_the_verdict_of_a_cold_run_in_less_time() -> None:
    document = _llama("fast")
    base, memo = Schedule.model_validate_json(json.dumps(document)), Memo()
    told(base, memo)
    cold, warm = [], []
    kept = ("threshold", "no wait", "ring depth", "moved step", "share")
    for kind, edits in mutants(document, 1, 1):
        if kind in kept:
            schedule = Schedule.model_validate_json(json.dumps(apply(document, edits)[0]))
            answers: list[str] = []
            warm.append(_timed(lambda s=schedule, a=answers: a.append(told(s, memo))))  # type: ignore[misc]
            cold.append(_timed(lambda s=schedule, a=answers: a.append(told(s, None))))  # type: ignore[misc]
            assert answers[0] == answers[1]
    assert len(cold) == len(kept) and sum(warm) < 0.5 * sum(cold), (warm, cold)


def _in_two(schedule: Schedule) -> Schedule:
    """The workers of the only program share it as two equal ones: then nobody knows a run of it beforehand."""
    (program,) = schedule.programs
    first = program.model_copy(update={"count": 1})
    rest = program.model_copy(update={"name": "rest", "first": 1, "count": program.count - 1})
    return schedule.model_copy(update={"programs": (first, rest)})


def test_what_is_remembered_of_earlier_runs_decides_nothing() -> None:
    """Orders of other schedules, and none at all, lead to the same verdicts."""
    document = json.loads(_in_two(small_plan(SMALL["fast"], MODELS["qk-norm"])).model_dump_json())
    other, memo = Memo(), Memo()
    assert verify(_in_two(small_plan(SMALL["two-warps"], MODELS["deep"])), memo=other).safe
    asked = 0
    for kind, edits in mutants(document, 9, 2):
        text = _valid(apply(document, edits)[0])
        if text is None or kind not in ("threshold", "no wait", "no signal", "moved step", "no barrier"):
            continue
        asked += 1
        for orders in ({}, dict(other.orders), {n: (a, p[::-1].copy()) for n, (a, p) in other.orders.items()}):
            memo.orders = orders | memo.orders if asked % 2 else orders
            assert told(Schedule.model_validate_json(text), memo) == _cold(text)
    assert asked > 4 and other.orders


def test_certificates_do_not_depend_on_earlier_verdicts() -> None:
    schedule = small_plan(SMALL["naive"], MODELS["qk-norm"])
    before = certify_schedule(schedule)
    memo = Memo()
    for _, edits in mutants(json.loads(schedule.model_dump_json()), 3, 1):
        if (text := _valid(apply(json.loads(schedule.model_dump_json()), edits)[0])) is not None:
            told(Schedule.model_validate_json(text), memo)
    assert verify(schedule, memo=memo).safe and certify_schedule(schedule) == before


def stage(*parts: Any) -> np.ndarray:
    """A stage whose result shows what it was given."""
    return np.array([hash(repr(parts))])


DIFFERENT: tuple[Any, ...] = (
    (), (1,), ("1",), (True,), (b"1",), (None,), (1, 1), ((1, 1),), ((1,), 1), ("a", "b"), ("ab", ""), ("", "ab"),
    (np.array([1]),), (np.array([[1]]),), (np.array([1], np.int32),), (np.array([1, 0], np.int32),),
    (np.array([1]).view(np.uint64),), (np.array([1, 1]),), (Keyed(1, b"1"),), (Keyed(1, b"2"),),
    *((np.full(2 * MANY, number),) for number in (1, -1, 2**15, 2**16 - 1, 2**16 + 1, 2**31, 2**32 - 1, 2**32 + 1)),
    (np.full(2 * MANY, 1, np.int32),), (np.full(2 * MANY, 1, np.int16),), (np.full((MANY, 2), 1),),
)  # fmt: skip


def test_different_parts_have_different_keys_and_a_stage_sees_nothing_but_its_parts() -> None:
    memo = Memo()
    made = [memo(stage, *parts) for parts in DIFFERENT]
    assert len({m.key for m in made}) == len(DIFFERENT) == memo.misses
    for parts, first in zip(DIFFERENT, made, strict=True):
        assert memo(stage, *parts) is first
    assert memo.hits == len(DIFFERENT)


def test_long_arrays_that_are_alike_where_they_are_looked_up_have_keys_of_their_own() -> None:
    memo, rng = Memo(), np.random.default_rng(1)
    first = rng.integers(0, 9, (4 * MANY, 3))
    apart = [first, *(first.copy() for _ in range(3)), first[:, :2].copy(), first.astype(np.int32)]
    for n, array in enumerate(apart[1:4]):
        array[1 + n, n] += 1
    keys = [memo(stage, array).key for array in apart]
    assert len(set(keys)) == len(apart)
    assert [memo(stage, array.copy()).key for array in apart] == keys == [memo(stage, array).key for array in apart]
    assert Memo()(stage, np.asfortranarray(first)).key == keys[0]
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 1


def test_digests_of_arrays_that_are_gone_are_forgotten() -> None:
    before = len(memo_module.SEEN._known)
    for number in range(5):
        memo_module.given(np.full(2 * MANY, 1000 + number))
    held = memo_module.given(np.full(2 * MANY, 2000))
    assert len(memo_module.SEEN._known) <= before + 1 and held.value[0] == 2000


@pytest.mark.parametrize("part", [[1], {"a": 1}, {1}, 1.5, object(), Memo()], ids=lambda p: type(p).__name__)
def test_what_can_change_cannot_be_a_part(part: object) -> None:
    with pytest.raises(TypeError, match="cannot be a part"):
        Memo()(stage, part)


def test_kept_results_cannot_be_written_to_and_stay_what_they_were() -> None:
    memo, schedule = Memo(), small_plan(SMALL["fast"], MODELS["qk-norm"])
    verify(schedule, memo=memo)
    results = list(memo.kept())
    arrays = [a for result in results for a in _arrays(result, set())]
    assert len(arrays) > 100 and not any(a.flags.writeable for a in arrays)
    before = [a.tobytes() for a in arrays]
    for _, edits in mutants(json.loads(schedule.model_dump_json()), 5, 1):
        if (text := _valid(apply(json.loads(schedule.model_dump_json()), edits)[0])) is not None:
            told(Schedule.model_validate_json(text), memo)
    assert [a.tobytes() for a in arrays] == before
    with pytest.raises(ValueError, match="read-only"):
        arrays[0][...] = 0


def _arrays(value: Any, seen: set[int]) -> list[np.ndarray]:
    if id(value) in seen or isinstance(value, Evaluations):
        return []
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        return [value]
    fields = getattr(value, "__dict__", {})
    # what an object works out on demand from its read-only fields is not among them
    lazy = {id(v) for name, v in fields.items() if isinstance(getattr(type(value), name, None), cached_property)}
    return [a for inside in memo_module._inside(value) if id(inside) not in lazy for a in _arrays(inside, seen)]


@pytest.mark.parametrize("room", [60_000, 400_000])
def test_edits_with_a_small_memo_get_the_verdict_of_a_cold_run(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "BLOCK", 300)
    document = json.loads(small_plan(SMALL["fast"], MODELS["qk-norm"]).model_dump_json())
    memo, rng = Memo(room), Random(room)
    for _, change in [one for seed in (1, 2) for one in mutants(document, seed, 1)]:
        text = json.dumps(apply(document, change)[0])
        with suppress(ValidationError):
            schedule = Schedule.model_validate_json(text)
            assert told(schedule, memo) == _cold(text)
            if rng.random() < 0.5:
                assert told(Schedule.model_validate_json(json.dumps(document)), memo) == _cold(json.dumps(document))
    assert memo.filled <= memo.room and memo.misses > 1000
    assert memo.filled == sum(size for _, size in memo._kept.values()) > 0


def test_results_that_several_have_in_common_are_made_and_kept_once() -> None:
    memo, asked = Memo(room=1 << 20), list[int]()

    def made(memo: Memo, several: list[tuple[int]]) -> list[np.ndarray]:
        asked.extend(one for (one,) in several)
        return [np.full(1000, one) for (one,) in several]

    for n in range(400):
        found = memo.each(made, (), [(n,), (n + 1,), (n,)])
        assert [int(one.value[0]) for one in found] == [n, n + 1, n]
    assert asked == [*range(401)]
    assert memo.room // 2 < memo.filled == sum(size for _, size in memo._kept.values()) <= memo.room


def test_a_small_memo_forgets_and_says_the_same() -> None:
    schedule, memo = small_plan(SMALL["two-warps"], MODELS["qk-norm"]), Memo(room=100_000)
    memo.evaluations.room = 1000
    first = told(schedule, memo)
    assert told(schedule, memo) == first == told(schedule, None)
    assert memo.filled <= memo.room and memo.misses > memo.hits


class _Alone(Memo):
    """A memo that makes each of several results once more, by itself."""

    looked = 0

    def each(self, stage: Any, common: Any, several: Any) -> Any:
        found = super().each(stage, common, several)
        for one, own in zip(found, several, strict=True):
            (alone,) = stage(Memo(), *memo_module._values(common), [memo_module._values(own)])
            assert _same(one.value, alone), stage.__qualname__
            self.looked += 1
        return found


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if is_dataclass(one):
        return all(_same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return bool(one == other)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_results_that_are_made_together_are_those_made_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "BLOCK", 300)
    memo, document = _Alone(), json.loads(small_plan(SMALL[name], MODELS["qk-norm"]).model_dump_json())
    changes = [[], *(change for _, change in mutants(document, 1, 1))]
    for change in changes:
        with suppress(AmkError, ValidationError):
            verify(Schedule.model_validate_json(json.dumps(apply(document, change)[0])), memo=memo)
    assert memo.looked > 100


def test_undecided_obligations_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    memo, schedule = Memo(), small_plan(SMALL["naive"], MODELS["qk-norm"])
    monkeypatch.setattr("amk.validator.smt._z3", lambda script, timeout_ms: ("unknown", "made up"))
    verdict: Verdict = verify(schedule, memo=memo)
    monkeypatch.undo()
    assert verdict.status == "UNKNOWN" and verify(schedule, memo=memo).safe
