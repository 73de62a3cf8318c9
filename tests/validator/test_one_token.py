"""What a composition of two tokens says about a launch of one is what composing that launch says."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from amk.adversary.edits import Json, apply
from amk.schedule_ir.schedule import Schedule
from amk.validator.compose import Composition, compose
from amk.validator.local_order import NotComposable
from amk.validator.memo import Memo
from amk.validator.one_token import one_token_follows
from amk.validator.order import ClocksTooLarge
from amk.validator.system import I64, READ, Bools
from tests.validator.one_edits import mutants
from tests.validator.plans import MODELS, SMALL, small_plan
from tests.validator.test_incremental import _in_two, _valid


def _document(name: str) -> Json:
    return json.loads(small_plan(SMALL[name], MODELS["qk-norm"]).model_dump_json())


def _composed(document: Json, tokens: int = 2) -> Composition:
    return compose(Schedule.model_validate_json(json.dumps(document)), tokens)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_one_token_of_a_plan_follows_and_is_safe(name: str) -> None:
    plain = small_plan(SMALL[name], MODELS["deep"])
    assert one_token_follows(compose(plain)) and compose(plain, 1).safe


@pytest.mark.parametrize("name", ["fast", "naive"])
def test_where_it_follows_the_composed_launch_is_safe(name: str) -> None:
    document, memo, followed = _document(name), Memo(), 0
    for seed in range(3):
        for _, edits in mutants(document, seed, 1):
            text = _valid(apply(document, edits)[0])
            try:
                result = None if text is None else compose(Schedule.model_validate_json(text), 2, memo)
            except (NotComposable, ClocksTooLarge):
                continue
            if result is not None and one_token_follows(result):
                followed += 1
                assert compose(result.schedule, 1, memo).safe
    assert followed > 4


def test_two_programs_are_composed() -> None:
    result = compose(_in_two(small_plan(SMALL["naive"], MODELS["qk-norm"])))
    assert result.safe and not one_token_follows(result)


class _Unordered:
    """An order of nothing but what comes after a write, or a read."""

    def __init__(self, known: object) -> None:
        self.known = known

    def __getattr__(self, name: str) -> object:
        return getattr(self.known, name)

    def precedes(self, before: I64, after: I64) -> Bools:
        return np.zeros(len(before), bool)


def test_what_stands_behind_the_loop_has_to_come_after_what_it_overwrites() -> None:
    """`begin` reads the state that `finish` writes: without an order between them there is a race."""
    result = _composed(_document("naive"))
    assert one_token_follows(result)
    result.order = _Unordered(result.order)  # type: ignore[assignment]
    assert not one_token_follows(result)


def test_an_order_that_only_the_second_token_waits_for_does_not_count() -> None:
    document = _document("naive")
    first = document["programs"][0]["body"][1]["body"][0]
    counter = document["counters"][-1]
    index = [0 for _ in counter["shape"]]
    first["waits"].append({"counter": counter["name"], "index": index, "at_least": 0, "order": "acquire"})
    result = _composed(document)
    assert result.safe and not one_token_follows(result) and _composed(document, 1).safe


def test_steps_behind_the_loop_that_signal_are_composed() -> None:
    document = _document("naive")
    counter = document["counters"][-1]
    index = [0 for _ in counter["shape"]]
    document["programs"][0]["body"][-1]["signals"].append(
        {"counter": counter["name"], "index": index, "add": 1, "order": "release"}
    )
    result = _composed(document)
    assert result.safe and not one_token_follows(result)


@pytest.mark.parametrize("name", ["state", "output", "logits"])
def test_the_launch_ends_with_what_is_meant(name: str) -> None:
    """Rows of the first token that leave something else, which those of the second would hide."""
    result = _composed(_document("fast"))
    assert result.accesses is not None and one_token_follows(result)
    buffer = next(i for i, b in enumerate(result.schedule.buffers) if b.name == name)
    rows = result.accesses.still.copy()
    rows[np.flatnonzero((rows[:, 1] == buffer) & (rows[:, 2] != READ))[0], 5] += 1
    result.accesses = replace(result.accesses, still=rows)
    assert not one_token_follows(result)
