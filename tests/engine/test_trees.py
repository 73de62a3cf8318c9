"""Steps whose rows are the nodes of a tree: behind each node the schedule says what it says of the way to it alone.

The validator, the checker and the judges know of trees, each by its own code.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amk
from amk.adversary.edits import Edit, apply, find
from amk.adversary.neighbourhood.bases import TAGGED
from amk.api.devices import Device
from amk.checker.certificate import check_certificate
from amk.emulator.decode import EmulatedEngine
from amk.engine.backends.cpu_engine import CpuEngine
from amk.engine.backends.room import Token
from amk.engine.backends.rows_backend import RowsBackend
from amk.engine.generation.lookup import Lookup
from amk.engine.generation.speculation import Speculating
from amk.engine.load import plan_for_cpu
from amk.judges.emulated_run import EmulatedKernel
from amk.judges.forward import ForwardPass
from amk.judges.judge import DEVICE_TOLERANCE, Machine, judge, judged, requests
from amk.judges.numpy_run import run
from amk.judges.oracle.judge import rule
from amk.judges.request import Request, Shown, tree_words
from amk.lowering.kernel import build
from amk.models.model_spec import ModelSpec
from amk.planner.settings import PHASED, Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import canonical_json, schedule_hash
from amk.schedule_ir.sampling import Sampling
from amk.schedule_ir.schedule import Schedule
from amk.schedule_ir.tree import tree_words as words_of
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.together import apart
from amk.validator.verify import verify
from amk.weights.bfloat import F32
from tests.cases import cases
from tests.engine import tiny_chat
from tests.engine.guesses import small_plan
from tests.engine.tiny import NEOX, RandomTensors, tiny_model, tiny_plan
from tests.validator.plans import from_document

CASES: dict[str, tuple[ModelSpec, int, dict[str, Any]]] = {
    "tagged words": (tiny_model(layers=1), 4, {"workers": 8, "kv_splits": 1}),
    "fenced counters, two splits": (tiny_model(), 5, {"workers": 4, "kv_splits": 2, "handoff": "fenced"}),
    "rows across blocks": (tiny_model(layers=1), 4, {"workers": 4, "kv_splits": 2, "warps": 4, "kv_block": 4}),
    "fp8 cache": (tiny_model(layers=1), 4, {"workers": 4, "kv_dtype": "fp8"}),
    "norms of heads": (tiny_model(layers=1, qk_norm=True), 4, {"workers": 4, "warps": 2}),
    "heads rotated in part": (tiny_model(layers=1, **NEOX), 4, {"workers": 4, "warps": 2}),
    "a lane for each row": (tiny_model(layers=1), 12, {"workers": 4, "kv_block": 12}),
    "more than 32 rows": (tiny_model(layers=1, max_context=128), 40, {"workers": 4, "kv_block": 40, "context": 80}),
}  # fmt: skip
PROMPT = [5, 17, 3, 40, 9, 2, 61]


def planned(name: str, **changes: Any) -> Schedule:
    model, rows, settings = CASES[name]
    return tiny_plan(model, **({"rows": rows, "tree": True, "context": 48, "max_tokens": 48} | settings | changes))


def trees(rows: int) -> Iterator[tuple[int, ...]]:
    """Parents of the rows behind the first: every tree of few rows, of more some that are drawn."""
    if rows <= 5:
        yield from product(*(range(row) for row in range(1, rows)))
        return
    draw = random.Random(rows)
    yield (0,) * (rows - 1)
    for _ in range(6):
        yield tuple(draw.randrange(max(row - draw.choice((1, 2, row)), 0), row) for row in range(1, rows))


def ways_of(parents: Sequence[int], tokens: Sequence[int]) -> list[list[int]]:
    """Of each row: the tokens behind the root on the way to it."""
    ways: list[list[int]] = [[]]
    for parent, token in zip(parents, tokens, strict=True):
        ways.append([*ways[parent], token])
    return ways


def one_by_one(model: ModelSpec, source: RandomTensors, text: list[int], ways: list[list[int]]) -> F32:
    """Logits behind each way, by a forward pass of one token after the other."""
    found, begun = [], ForwardPass(model, {"lm_head": source.tensor("lm_head"), **source.arrays})
    for token in text[:-1]:
        begun.feed(token)
    cache = begun.cache()
    for way in ways:
        begun.resume(cache)
        found.append([begun.feed(token) for token in [text[-1], *way]][-1])
    return np.array(found)


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", CASES)
def test_every_node_of_every_tree_has_the_logits_of_its_way(name: str) -> None:
    model, rows, settings = CASES[name]
    source, schedule = RandomTensors(model), planned(name)
    engine, tolerance = CpuEngine(schedule, source), 1e-4
    if "kv_dtype" in settings:  # the forward pass of this file keeps its cache in fp64
        tolerance = 0.2
    tokens = [(11 + 7 * row) % model.vocab for row in range(rows - 1)]
    for number, parents in enumerate(trees(rows)):
        start = (0, 3, schedule.kv.block - 2)[number % 3] if number else len(PROMPT) - 1
        text = [PROMPT[n % len(PROMPT)] for n in range(start + 1)]
        for at in range(0, start, rows):
            engine.request(text, start=at)
            engine.step(1)
        engine.request([*text, *tokens], start=start, prompt_length=start + 1, parents=parents)
        shown = engine.step(1)[0]
        ways = ways_of(parents, tokens)
        wanted, found = one_by_one(model, source, text, ways), engine.logits()
        assert np.abs(found - wanted).max() < tolerance * np.abs(wanted).max(), (parents, start)
        assert shown.tolist() == found.argmax(axis=1).tolist()
        assert engine.state()["pos"] == start + rows


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", CASES)
def test_a_chain_is_what_rows_are_without_a_tree(name: str) -> None:
    """Bit for bit, in launches of several steps."""
    model, rows, _ = CASES[name]
    found = []
    for schedule in (planned(name), planned(name, tree=False)):
        engine = CpuEngine(schedule, RandomTensors(model))
        engine.request([(3 + 5 * n) % model.vocab for n in range(2 * rows)])
        found.append((engine.step(2), engine.logits().view(np.uint32), engine.state()))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert found[0][2] == found[1][2]


def test_whatever_the_table_says_a_step_stays_within_itself() -> None:
    """Bits of a row itself and of rows behind it, in any content, change nothing; nothing else is read or written."""
    name = "tagged words"
    model, rows, _ = CASES[name]
    engine, draw = CpuEngine(planned(name), RandomTensors(model)), np.random.default_rng(3)
    for at in range(0, len(PROMPT), rows):
        engine.request(PROMPT, start=at)
        engine.step(1)
    before = np.array([[(1 << row) - 1, 0] for row in range(rows)], np.int64)
    for _ in range(cases(5, 40)):
        junk = draw.integers(-(2**31), 2**31, (rows, 2)).astype(np.int64)
        logits = []
        for table in (junk, junk & before):
            engine.request([*PROMPT, 1, 2, 3], start=len(PROMPT) - 1, prompt_length=len(PROMPT))
            engine._machine.set("tree", (table & 0xFFFFFFFF).astype(np.uint32).view(np.int32).reshape(-1))
            engine.step(1)
            logits.append(engine.logits())
        assert np.isfinite(logits[0]).all()
        np.testing.assert_array_equal(*logits)


def test_the_table_of_the_host_is_the_one_of_the_judge() -> None:
    for rows in (2, 4, 33, 64):
        for parents in trees(min(rows, 5)):
            np.testing.assert_array_equal(words_of(parents, rows), tree_words(parents, rows))
    chain = words_of((), 64).view(np.uint32).reshape(-1, 2)
    assert [int(low) | int(high) << 32 for low, high in chain] == [(1 << row) - 1 for row in range(64)]


@pytest.mark.parametrize("parents", [(0, 2), (-1,), (0, 0, 0, 0), (1,)], ids=str)
def test_what_is_no_tree_is_refused(parents: tuple[int, ...]) -> None:
    with pytest.raises(AmkError, match="AMK014"):
        words_of(parents, 4)


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", CASES)
def test_it_is_safe(name: str) -> None:
    schedule = planned(name)
    assert verify(schedule).safe
    certificate = certify_schedule(schedule, checked=False)
    assert check_certificate(schedule, schedule_hash(schedule), certificate).reason == ""


def test_it_takes_turns_with_one_row() -> None:
    schedule = planned("tagged words")
    assert apart(schedule, planned("tagged words", rows=1, tree=False, reduce_from=1)) == []


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", CASES)
def test_no_run_refutes_it(name: str) -> None:
    assert judge(planned(name), most=cases(3, 8)).status == "not refuted"


def test_the_judge_notices_a_wrong_row() -> None:
    """Another row's logits, another row's key, or another token behind a row."""
    schedule = planned("tagged words")
    request, order = next(iter(requests(schedule)))
    assert request.parents == (0, 0, 1)

    def logits(shown: Shown) -> None:
        shown.logits[0][[2, 3]] = shown.logits[0][[3, 2]]

    def key(shown: Shown) -> None:
        assert shown.caches is not None
        shown.caches[0][:, :, :, request.start + 2] = shown.caches[0][:, :, :, request.start + 1]

    def token(shown: Shown) -> None:
        shown.tokens[0][0, 3] = (shown.tokens[0][0, 3] + 1) % schedule.model.vocab

    def position(shown: Shown) -> None:
        shown.state[0]["position"] -= 1

    for kind, how in (("logits", logits), ("cache", key), ("tokens", token), ("state", position)):

        def machine(*request: Any, how: Any = how) -> Shown:
            shown = run(*request)
            how(shown)
            return shown

        found = judged(schedule, request, order, machine)
        assert (found.status, found.kind) == ("refuted", kind)


def test_the_judge_notices_a_chain_in_place_of_the_tree() -> None:
    schedule = planned("tagged words")

    def machine(schedule: Schedule, weights: Any, request: Request, *rest: Any) -> Shown:
        return run(schedule, weights, replace(request, parents=()), *rest)

    chained: Machine = machine
    rulings = [judged(schedule, request, order, chained) for request, order in requests(schedule) if request.parents]
    assert [ruling.kind for ruling in rulings] == ["logits"] * 4


def small(settings: Settings = PHASED, rows: int = 4) -> Schedule:
    return small_plan(settings, rows=rows, tree=True)


@pytest.mark.turns(4)
@pytest.mark.parametrize("settings", [PHASED, TAGGED], ids=["fenced", "tagged"])
def test_the_oracle_says_the_same(settings: Settings) -> None:
    schedule = small(settings)
    assert rule(schedule).status == "SAFE"
    document = json.loads(canonical_json(schedule))
    edits = [Edit("remove", (*find(document, "attend")[:-1], find(document, "attend")[-1] - 1))]
    broken = from_document(apply(document, edits)[0])
    assert verify(broken).status == rule(broken).status == "UNSAFE"


@pytest.mark.turns(12)
@pytest.mark.parametrize("settings", [PHASED, TAGGED], ids=["fenced", "tagged"])
def test_its_kernel_computes_the_same(settings: Settings) -> None:
    """The compiled kernel in the emulator, with races."""
    pytest.importorskip("numba")
    schedule, kernel = small(settings), EmulatedKernel(lambda schedule: build(schedule).compiled.ptx)
    for request, order in list(requests(schedule))[: cases(4, 8)]:
        ruling = judged(schedule, request, order, kernel, DEVICE_TOLERANCE)
        assert ruling.status == "not refuted", (request, order, ruling)


@pytest.mark.turns(4)
def test_its_kernel_stays_within_the_step_whatever_the_table_says() -> None:
    """At the context's last positions, where angles of a place behind a row's own are not there; also for bits that are
    those of no tree it computes what the reference does."""
    pytest.importorskip("numba")
    schedule, draw = small(), np.random.default_rng(5)
    rows, start = schedule.rows, schedule.kv.context - schedule.rows
    source = RandomTensors(schedule.model)
    engine = EmulatedEngine(schedule, source, build(schedule).compiled.ptx, races=True)
    reference = CpuEngine(schedule, source)
    before = np.array([[(1 << row) - 1, 0] for row in range(rows)], np.uint32)
    text = [(3 + 5 * n) % schedule.model.vocab for n in range(schedule.kv.context)]
    engine.request_batch([text])
    reference.request(text)
    assert engine.launch(start // rows).faults == []
    reference.step(start // rows)
    for junk in (np.full((rows, 2), 0xFFFFFFFF, np.uint32), draw.integers(0, 2**32, (rows, 2)).astype(np.uint32)):
        logits = []
        for table in (junk, junk & before):
            engine.request_batch([text], prompt_length=start + 1)
            engine.write({"tree": table.view(np.int32).reshape(-1)})
            engine.set_state(pos=start, token=text[start])
            outcome = engine.launch(1)
            assert outcome.ended and outcome.faults == []
            logits.append(engine.logits())
        np.testing.assert_array_equal(*(found.view(np.uint32) for found in logits))
        reference.request(text, start=start, prompt_length=start + 1)
        reference._machine.set("tree", junk.view(np.int32).reshape(-1))
        reference.step(1)
        wanted = reference.logits()
        assert np.abs(logits[0] - wanted).max() < 5e-2 * np.abs(wanted).max()  # activations are bf16


@pytest.mark.parametrize("changes", [{"rows": 1}, {"accepts": True}, {"sampling": "temperature"}], ids=str)
def test_a_tree_is_of_rows_that_the_host_accepts(changes: dict[str, Any]) -> None:
    with pytest.raises(AmkError, match="AMK016"):
        planned("tagged words", **changes)
    plain = planned("tagged words", tree=False, **changes)
    marked = plain.model_copy(update={"tree": True})
    assert "AMK106" in {diagnostic.code for diagnostic in verify(marked).diagnostics}
    certificate = certify_schedule(plain) | {"schedule": schedule_hash(marked)}
    assert check_certificate(marked, schedule_hash(marked), certificate).reason != ""


@pytest.mark.parametrize("op", ["rope_append", "attend"])
def test_rows_that_are_not_told_of_the_tree_are_refused(op: str) -> None:
    """Each op by itself, by the validator and by the checker; and one that is told though there is none."""
    schedule = planned("tagged words")
    certificate = certify_schedule(schedule)
    document = json.loads(canonical_json(schedule))
    untold = from_document(apply(document, [Edit("remove", (*find(document, op), "op", "tree"))])[0])
    flat = from_document({name: value for name, value in document.items() if name != "tree"})
    for wrong in (untold, flat):
        assert "AMK106" in {diagnostic.code for diagnostic in verify(wrong).diagnostics}
        offered = certificate | {"schedule": schedule_hash(wrong)}
        assert check_certificate(wrong, schedule_hash(wrong), offered).reason != ""


def test_rows_without_a_tree_do_not_say_so() -> None:
    """The text, and so the name, of every schedule from before is what it was."""
    assert b"tree" not in canonical_json(planned("tagged words", tree=False))
    assert json.loads(canonical_json(planned("tagged words")))["tree"] is True


class Counting(CpuEngine):
    """Counts steps."""

    steps = 0

    def step(self, tokens: int) -> Any:
        self.steps += tokens
        return super().step(tokens)


@pytest.mark.turns(12)
@pytest.mark.parametrize("rows", [2, 4, 9])
def test_branches_of_any_shape_in_as_few_steps_as_rows_allow(rows: int) -> None:
    """Trees wider and deeper than a step, behind texts of any length, up to the end of the context, whatever was read
    before."""
    model = tiny_model(layers=1)
    source = RandomTensors(model)
    engine = Counting(tiny_plan(model, rows=rows, tree=True, workers=2, warps=2, context=24, kv_block=12), source)
    backend, draw = RowsBackend(engine), random.Random(rows)
    for turn in range(cases(12, 60)):
        text = [draw.randrange(model.vocab) if draw.random() < 0.3 else n for n in range(draw.choice((1, 5, 13, 20)))]
        room = 24 - len(text)
        parents: list[int] = []
        depth = [0]
        for node in range(draw.choice((0, 1, 3, 7, 14))):
            parents.append(draw.choice([n - 1 for n in range(node + 1) if depth[n] < room]))
            depth.append(depth[parents[-1] + 1] + 1)
        nodes = [draw.randrange(model.vocab) for _ in parents]
        engine.steps = 0
        found = backend.branches(text, nodes, parents)
        wanted = one_by_one(model, source, text, ways_of([parent + 1 for parent in parents], nodes))
        assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max(), (turn, text, parents)
        if len(nodes) < rows and len(text) + rows <= 24:
            assert engine.steps <= (len(text) - 1) // rows + 2
            engine.steps = 0
            again = backend.branches(text, nodes, parents)
            assert engine.steps == 1, "the text is in the cache"
            assert np.abs(again - wanted).max() < 1e-4 * np.abs(wanted).max()
        after = backend.logits([*text, *nodes[:1]][:24])
        wanted = one_by_one(model, source, text, [nodes[:1]][: 1 if len(text) < 24 else 0] or [[]])
        assert np.abs(after - wanted[0]).max() < 1e-4 * np.abs(wanted).max(), "a tree leaves no wrong key behind"
    with pytest.raises(AmkError, match="AMK014"):
        backend.branches([1] * 23, [1, 2], [-1, 0])


@pytest.mark.turns(12)
@pytest.mark.parametrize("device", ["interpreter", "emulator"])
def test_scores_of_candidates_are_those_of_the_forward_pass(tmp_path: Path, device: Device) -> None:
    """Candidates with common beginnings, through the Python API."""
    draw, emulated = random.Random(4), device == "emulator"
    if emulated:
        pytest.importorskip("numba")
    with amk.load(tiny_chat.write(tmp_path), device="cpu", max_context=64) as exact:
        prompt = [int(token) for token in exact.encode("ABABAB WAS")]
        count = cases(3, 12) if emulated else 40
        candidates = [[draw.randrange(3, 9) for _ in range(draw.randint(1, 6))] for _ in range(count)]
        wanted = exact.score(prompt, candidates)
        schedule = plan_for_cpu(exact.spec, 64, rows=16, tree=True)
        with amk.load(tmp_path, schedule=schedule, device=device) as scoring:
            found = scoring.score(prompt, candidates)
    largest = max(-min(one.logprobs) for one in wanted)
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_allclose(other.logprobs, one.logprobs, atol=(0.02 if emulated else 1e-4) * largest)


class Ways:
    """Two ways, of which one is right up to a place that wanders, in turns the first and the second."""

    def __init__(self, text: Sequence[int]) -> None:
        self._wanted, self.asked = list(text), 0

    def guess(self, tokens: Sequence[Token], count: int, sampling: Sampling) -> list[int]:
        raise AssertionError("asked for one way")

    def ways(self, tokens: Sequence[Token], count: int, most: int) -> list[list[int]]:
        self.asked += 1
        right = self._wanted[len(tokens) : len(tokens) + count]
        wrong = self.asked // 2 % 4
        right = [token if n < wrong else (token + 1) % 90 for n, token in enumerate(right)]
        other = [(token + 2) % 90 for token in right]
        return [right, other] if self.asked % 2 else [other, right]


def counted_passes(model: amk.LanguageModel) -> list[None]:
    """Grows by one with every pass of the model."""
    passes: list[None] = []
    backend: Any = model._backend
    of, name = (backend.engine, "step") if isinstance(backend, RowsBackend) else (backend._forward, "read")
    run = getattr(of, name)

    def counting(*arguments: Any) -> Any:
        passes.append(None)
        return run(*arguments)

    setattr(of, name, counting)
    return passes


@pytest.mark.turns(24)
@pytest.mark.parametrize("drawn", [{}, {"temperature": 0.8, "top_k": 20, "seed": 11}, {"logprobs": 1}], ids=str)
@pytest.mark.parametrize("device", ["cpu", "interpreter"])
def test_whichever_way_is_right_the_text_is_that_of_one_token_at_a_time(
    tmp_path: Path, device: Device, drawn: dict[str, Any]
) -> None:
    """Up to the end of the context; what a step read on another way than its first is read again."""
    directory, asked = tiny_chat.write(tmp_path), {"max_tokens": 100, "ignore_eos": True} | drawn
    options: dict[str, Any] = {"speculate": "lookup", "draft_tokens": 6, "draft_branches": 2}
    with (
        amk.load(directory, device="cpu", max_context=40) as plain,
        amk.load(directory, device=device, max_context=40, **options) as guessing,
    ):
        prompt = [int(token) for token in plain.encode("ABABAB WAS")]
        wanted = plain.generate(prompt, **asked)
        found = guessing.generate(prompt, **asked)
        assert found.tokens == wanted.tokens and found.usage.drafted_tokens > 0
        guessing._speculating = Speculating(
            guessing._backend,  # type: ignore[arg-type]
            lambda: Ways([*prompt, *wanted.tokens]), 6, branches=2,
        )  # fmt: skip
        for _ in range(2):
            found = guessing.generate(prompt, **asked)
            assert found.tokens == wanted.tokens
            usage = found.usage
            assert usage.steps + usage.accepted_tokens == len(found.tokens)
            assert usage.accepted_tokens > len(found.tokens) // 3, "both ways are accepted"
        for one, other in zip(wanted.logprobs or (), found.logprobs or (), strict=True):
            assert abs(one.logprob - other.logprob) < 1e-3
        passes = counted_passes(guessing)
        found = guessing.generate(prompt, **asked | {"max_tokens": 20})
        assert found.tokens == wanted.tokens[:20]
        assert len(passes) == found.usage.steps, "what is read again is read beside guesses"


def test_lookup_knows_several_ways() -> None:
    lookup = Lookup(shortest=1)
    text = [1, 2, 3, 4, 9, 2, 3, 5, 8, 3, 7, 1, 2, 3]
    assert lookup.ways(text, 2, 3) == [[4, 9], [5, 8], [7, 1]], "of three equal tokens, of two, of one"
    assert lookup.ways(text, 2, 2) == [[4, 9], [5, 8]]
    assert lookup.ways(text, 2, 1) == [lookup.guess(text, 2)]
    assert lookup.ways([1, 2, 1, 2], 2, 3) == [[1, 2]], "ways differ in their first token"
    often = [1, 2, 3, 1, 2, 4, 1, 2, 4, 1, 2, 5, 1, 2]
    assert lookup.ways(often, 1, 3) == [[5], [4], [3]], "of equal tokens the latest place first"
    assert lookup.ways([*often, 6, 1, 2], 1, 3) == [[6], [5], [4]], "learned as the text grows"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"draft_branches": 0}, "AMK005"),
        ({"draft_branches": 2, "draft_steps": 2, "device": "cpu"}, "AMK005"),
        ({"draft_branches": 2, "draft_steps": 2}, "AMK016"),
        ({"draft_branches": 2, "rows": 4}, "AMK016"),
    ],
    ids=str,
)
def test_ways_that_nothing_verifies_are_refused(tmp_path: Path, options: dict[str, Any], code: str) -> None:
    directory = tiny_chat.write(tmp_path)
    options = {"speculate": "lookup", "device": "interpreter", "max_context": 40} | options
    if rows := options.pop("rows", None):
        with amk.load(directory, device="cpu") as model:
            options["schedule"] = plan_for_cpu(model.spec, 40, rows=rows)
    with pytest.raises(AmkError, match=code):
        amk.load(directory, **options)
