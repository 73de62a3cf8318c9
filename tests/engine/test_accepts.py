"""Steps that accept guesses by themselves: whichever of them are right, a launch's text is that of one token at a time.

The validator, the checker and the judges follow every way of accepting, each by its own code.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from amk.adversary.edits import Edit, apply, steps
from amk.adversary.neighbourhood.bases import TAGGED
from amk.checker.certificate import check_certificate
from amk.engine.backends.cpu_engine import CpuEngine
from amk.judges.emulated_run import EmulatedKernel
from amk.judges.judge import DEVICE_TOLERANCE, Machine, judge, judged, requests
from amk.judges.numpy_run import run
from amk.judges.oracle.judge import rule, start_positions
from amk.judges.oracle.touched import ways
from amk.judges.replay import replay
from amk.judges.request import Shown
from amk.lowering.kernel import build
from amk.models.model_spec import ModelSpec
from amk.planner.settings import PHASED, Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import canonical_json, schedule_hash
from amk.schedule_ir.ops.select import REJECTED
from amk.schedule_ir.sampling import GREEDY, Sampling
from amk.schedule_ir.schedule import Schedule
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.verify import verify
from tests.cases import cases
from tests.engine.guesses import guessed, small_plan
from tests.engine.test_draft import enumerated
from tests.engine.test_forward import Arrays
from tests.engine.tiny import RandomTensors, tiny_model, tiny_plan
from tests.validator.plans import from_document

CASES: dict[str, tuple[ModelSpec, int, dict[str, Any]]] = {
    "tagged words": (tiny_model(layers=1), 3, {"workers": 8, "kv_splits": 1}),
    "fenced counters, two splits": (tiny_model(), 2, {"workers": 4, "kv_splits": 2, "handoff": "fenced"}),
    "rows across blocks": (tiny_model(layers=1), 4, {"workers": 4, "kv_splits": 2, "warps": 4}),
    "fp8 cache": (tiny_model(layers=1), 2, {"workers": 4, "kv_dtype": "fp8"}),
    "drawn": (tiny_model(layers=1), 3, {"workers": 4, "sampling": "temperature", "warps": 2}),
    "drawn behind filters": (
        tiny_model(layers=1), 2, {"workers": 4, "sampling": "top-k-top-p", "warps": 2, "handoff": "fenced"},
    ),
    "a lane for each row": (tiny_model(layers=1), 12, {"workers": 4, "kv_block": 12}),
}  # fmt: skip
PROMPT = [5, 17, 3, 40]


def planned(name: str, **changes: Any) -> Schedule:
    model, rows, settings = CASES[name]
    settings = {"kv_block": 4, "rows": rows, "accepts": True, "context": 48, "max_tokens": 48} | settings
    return tiny_plan(model, **(settings | changes))


def small(settings: Settings = PHASED, rows: int = 2, **more: Any) -> Schedule:
    return small_plan(settings, more, rows=rows, accepts=True)


def sampling_of(name: str, seed: int = 5) -> Sampling:
    match CASES[name][2].get("sampling"):
        case "temperature":
            return Sampling(0.9, seed=seed)
        case "top-k-top-p":
            return Sampling(1.2, 30, 0.95, seed)
    return GREEDY


def plain_text(name: str, prompt: list[int], sampling: Sampling) -> list[int]:
    """The given tokens and those that one step after the other chooses behind them."""
    engine = CpuEngine(planned(name, rows=1, accepts=False, reduce_from=1), RandomTensors(CASES[name][0]))
    engine.request(prompt, sampling=sampling)
    return [prompt[0], *engine.step(47).tolist()]


def tokens_of(shown: NDArray[np.int32]) -> list[list[int]]:
    """What each step shows; rows that are no right guesses come last."""
    found = [[token for token in step if token != REJECTED] for step in shown.tolist()]
    assert all(step[: len(mine)] == mine for step, mine in zip(shown.tolist(), found, strict=True))
    return found


@pytest.mark.turns(24)
@pytest.mark.parametrize("name", CASES)
def test_every_way_of_accepting_gives_the_text_of_one_token_at_a_time(name: str) -> None:
    model, rows, _ = CASES[name]
    sampling = sampling_of(name)
    right, engine = plain_text(name, PROMPT[:1], sampling), CpuEngine(planned(name), RandomTensors(model))
    each, steps = (range(1, rows + 1), 3) if rows < 4 else ((1, rows - 1, rows), 2)
    for counts in product(each, repeat=steps):
        guesses, _ = guessed(right, counts, rows, model.vocab)
        engine.request(guesses, sampling=sampling, start=0, prompt_length=1)
        found = tokens_of(engine.step(steps))
        assert tuple(map(len, found)) == counts
        assert [*chain(*found)] == right[1 : 1 + sum(counts)]
        state = engine.state()
        assert (state["pos"], state["token"]) == (sum(counts), right[sum(counts)])
        logits = engine.logits()[: counts[-1]]
        assert sampling.temperature or [int(token) for token in logits.argmax(axis=1)] == found[-1]


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", CASES)
def test_a_launch_reads_a_prompt_and_goes_on_until_the_text_ends(name: str) -> None:
    """Given tokens are never compared, and none of them ends the text, wherever the last one lies in its step."""
    model, rows, _ = CASES[name]
    engine = CpuEngine(planned(name), RandomTensors(model))
    for length in (2, len(PROMPT)):
        sampling = sampling_of(name, length)
        right = plain_text(name, PROMPT[:length], sampling)
        ends = (PROMPT[length // 2], right[length + 3])
        last = next(at for at in range(length, len(right)) if right[at] in ends)
        steps = min(48 // rows, length + 6)
        for guesses in (right, [(token + 1) % model.vocab for token in right]):
            engine.request(
                right[:length] + guesses[length : length + 12], ends, sampling, start=0, prompt_length=length
            )
            found = tokens_of(engine.step(steps))
            text = [right[0], *chain(*found)]
            assert text[: last + 1] == right[: min(len(text), last + 1)]
            assert set(text[last:]) <= {right[last]}, "the end is repeated, one position a step"
            ended = engine.state()["done"] == 1
            assert ended == (len(text) > last)
            assert [*map(len, found[len(found) - max(len(text) - last - 1, 0) :])] == [1] * max(len(text) - last - 1, 0)


def test_a_schedule_that_accepts_nothing_does_not_say_so() -> None:
    """The text, and so the name, of every schedule from before is what it was."""
    assert b"accepts" not in canonical_json(planned("tagged words", accepts=False))
    assert json.loads(canonical_json(planned("tagged words")))["accepts"] is True


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", CASES)
def test_every_way_is_safe(name: str) -> None:
    schedule = planned(name)
    assert verify(schedule).safe
    certificate = certify_schedule(schedule, checked=False)
    assert check_certificate(schedule, schedule_hash(schedule), certificate).reason == ""


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", ["tagged words", "fp8 cache", "drawn", "drawn behind filters"])
def test_no_run_refutes_it(name: str) -> None:
    schedule = planned(name, max_tokens=6)
    assert judge(schedule, most=cases(3, 6)).status == "not refuted"


def test_the_judge_notices_rows_that_count_too_many_or_too_few() -> None:
    """A machine that shows one row more, one less, or a rejected token is refuted."""
    schedule = small(rows=3)
    request, order = next(iter(requests(schedule)))

    def changed(how: Callable[[NDArray[np.int64]], None]) -> Machine:
        def machine(*request: Any) -> Shown:
            shown = run(*request)
            how(shown.tokens[0])
            return shown

        return machine

    def less(tokens: NDArray[np.int64]) -> None:
        tokens[0, 1] = REJECTED

    def more(tokens: NDArray[np.int64]) -> None:
        step = next(step for step in tokens if step[1] == REJECTED)
        step[1] = 0

    assert judged(schedule, request, order).status == "not refuted"
    for how in (less, more):
        assert judged(schedule, request, order, changed(how)).status == "refuted"


@pytest.mark.turns(4)
@pytest.mark.parametrize("settings", [PHASED, TAGGED], ids=["fenced", "tagged"])
def test_the_oracle_rules_at_every_position_and_way(settings: Settings) -> None:
    schedule = small(settings, rows=3)
    assert len(ways(schedule, 3)) == 9 and len(ways(schedule, 2)) == 3
    assert rule(schedule, 3, start_positions(schedule, 3)).status == "SAFE"


def without_a_barrier(schedule: Schedule) -> Iterator[tuple[str, Schedule]]:
    document = json.loads(schedule.model_dump_json())
    for path, step in steps(document):
        if step["op"]["op"] == "barrier":
            yield path, from_document(apply(document, [Edit("remove", path)])[0])


@pytest.mark.turns(4)
@pytest.mark.parametrize("settings", [PHASED, TAGGED], ids=["fenced", "tagged"])
def test_without_any_one_barrier_validator_and_oracle_say_the_same(settings: Settings) -> None:
    verdicts = {}
    for path, schedule in without_a_barrier(small(settings)):
        verdict = verify(schedule)
        assert (verdict.status == "SAFE") == (rule(schedule).status == "SAFE"), path
        if verdict.evidence is not None:
            assert replay(verdict.evidence.system.to_json(), verdict.evidence.witness.to_json())
        verdicts[path] = verdict.status
    assert {"SAFE", "UNSAFE"} >= set(verdicts.values()) and "UNSAFE" in verdicts.values()


@pytest.mark.parametrize("rows", [1, 65])
def test_guesses_need_rows(rows: int) -> None:
    with pytest.raises(AmkError, match="AMK016"):
        tiny_plan(tiny_model(), workers=4, rows=rows, accepts=True)
    one = tiny_plan(tiny_model(), workers=4).model_copy(update={"accepts": True})
    assert "AMK106" in {diagnostic.code for diagnostic in verify(one).diagnostics}
    certificate = certify_schedule(tiny_plan(tiny_model(), workers=4)) | {"schedule": schedule_hash(one)}
    assert check_certificate(one, schedule_hash(one), certificate).reason != ""


@pytest.mark.turns(16)
@pytest.mark.parametrize(
    "settings", [PHASED, TAGGED, replace(TAGGED, sampling="top-k-top-p")], ids=["fenced", "tagged", "drawn"]
)
def test_its_kernel_accepts_the_same(settings: Settings) -> None:
    """The compiled kernel in the emulator, with races and all ways that the judge knows."""
    pytest.importorskip("numba")
    schedule, kernel = small(settings, rows=3), EmulatedKernel(lambda schedule: build(schedule).compiled.ptx)
    for request, order in list(requests(schedule))[: cases(2, 6)]:
        ruling = judged(schedule, request, order, kernel, DEVICE_TOLERANCE)
        assert ruling.status == "not refuted", (request, order, ruling)


@pytest.mark.turns(4)
def test_drawn_texts_come_as_often_as_their_probability_says() -> None:
    """Every text of three tokens among the three most probable ones, enumerated with its probability by an independent
    decoder, and how often launches of several steps give it, whose guesses are mostly wrong in some place."""
    spec, prompt, seeds = tiny_model(layers=1), [3, 17, 5], 200
    source = Arrays(spec)
    exact = enumerated(spec, source, prompt, 3)
    likely = [*prompt, *max(exact, key=exact.__getitem__)]
    schedule = tiny_plan(spec, workers=2, warps=2, rows=2, accepts=True, sampling="top-k", context=16, kv_block=4)
    engine, found, sizes = CpuEngine(schedule, source), Counter[tuple[int, ...]](), Counter[int]()
    engine.request(prompt, start=0)
    engine.step(1)
    for seed in range(seeds):
        engine.request([*likely, 0, 0], (), Sampling(1.2, top_k=3, seed=seed), start=2, prompt_length=3)
        shown = tokens_of(engine.step(3))
        sizes.update(map(len, shown))
        found[tuple(list(chain(*shown))[:3])] += 1
    assert sizes[1] > 50 and sizes[2] > 50, "guesses are accepted and rejected"
    assert found.keys() <= exact.keys()
    distance = sum((found[text] - seeds * p) ** 2 / (seeds * p) for text, p in exact.items() if seeds * p >= 5)
    bins = sum(seeds * p >= 5 for p in exact.values())
    assert bins >= 6 and distance < bins + 4 * (2 * bins) ** 0.5, "four standard deviations of chi square"
