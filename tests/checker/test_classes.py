"""Whole classes of schedules that compute something else, or never end: the checker refuses each by itself."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from amk.adversary.edits import steps
from amk.adversary.neighbourhood.bases import base as neighbours
from amk.adversary.subjects import subject
from amk.checker.certificate import check_certificate
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.validator.export.of_schedule import evidence
from amk.validator.verify import verify
from tests.checker.offer import certificate_of, reasons
from tests.tiny import PLAIN
from tests.validator.plans import MODELS, SMALL, from_document, small_plan

Document = dict[str, Any]
Change = Callable[[Document], object]
WORD = 2**32


@cache
def text(name: str) -> str:
    if name in ("fenced", "tagged"):
        return json.dumps(subject(name, 4, 2, 1).document)
    if name == "int8":
        settings = replace(FAST, scales_apart=True, warps=2)
        return plan(
            PLAIN, load_target("h200"), settings=settings, formats=formats("int8"), max_context=64, workers=4
        ).model_dump_json()
    if name == "rows":
        return plan(
            PLAIN, load_target("h200"), settings=replace(FAST, rows=3, warps=2), max_context=64, workers=4
        ).model_dump_json()
    settings, model = {"bias": ("naive", "bias"), "norm": ("fast", "qk-norm")}[name]
    return small_plan(SMALL[settings], MODELS[model]).model_dump_json()


def refused(name: str, change: Change) -> list[str]:
    """Of the base with one change; the base itself has a certificate, which is offered too."""
    document = json.loads(text(name))
    twin = certificate_of(from_document(copy.deepcopy(document)))
    assert isinstance(twin, dict)
    change(document)
    return reasons(from_document(document), twin)


def op(document: Document, name: str) -> Document:
    return next(step["op"] for _, step in steps(document) if step["op"]["op"] == name)


def names(name: str, **fields: object) -> Change:
    """The first op of that name, with other fields."""
    return lambda document: op(document, name).update(fields)


def buffer(name: str, **fields: object) -> Change:
    return lambda document: next(b for b in document["buffers"] if b["name"] == name).update(fields)


def waits(counter: str, *thresholds: object, instead: bool = False) -> Change:
    """The first wait on a counter has others beside it, or in its place."""

    def change(document: Document) -> None:
        step, wait = next(
            (step, wait) for _, step in steps(document) for wait in step["waits"] if wait["counter"] == counter
        )
        step["waits"] += [wait | {"at_least": threshold} for threshold in thresholds]
        if instead:
            step["waits"].remove(wait)

    return change


@pytest.mark.parametrize(
    "thresholds",
    [
        ({"t": 8}, 4),  # of both tokens the sorted list is as it should be
        ({"t": 5, "1": 0}, {"t": 3, "1": 1}),
        (1,),
        ({"t": 4, "1": 5},),
        ({"t": 4, "1": -4},),
        ({"t": 4, "1": WORD},),
        ({"t": WORD, "1": 4},),
    ],
)
def test_each_wait_goes_on_with_its_own_counter(thresholds: tuple[object, ...]) -> None:
    """In the base four workers signal `best`."""
    document = json.loads(text("fenced"))
    assert {"t": 4, "1": 4} in [w["at_least"] for _, s in steps(document) for w in s["waits"] if w["counter"] == "best"]
    found = refused("fenced", waits("best", *thresholds))
    assert all(reason != "" for reason in found), found


def test_another_threshold_of_the_same_token_is_no_fault() -> None:
    assert refused("fenced", waits("best", {"t": 4, "1": 3}))[0] == ""


CONSTANTS = [
    ("stage_norm", "h", "embedding"),
    ("stage", "act", "weights"),
    ("rope_append", "qkv", "rope"),
    ("combine", "split_partial", "weights"),
    ("combine", "split_scale", "norm"),
    ("select", "best_index", "prompt"),
    ("select", "best_value", "norm"),
]


@pytest.mark.turns(4)
@pytest.mark.parametrize(("name", "field", "constant"), CONSTANTS)
@pytest.mark.parametrize("base", ["fenced", "tagged"])
def test_a_constant_is_read_as_itself_alone(base: str, name: str, field: str, constant: str) -> None:
    found = refused(base, names(name, **{field: constant}))
    assert all(reason.startswith(("constants: ", "needs: ", "tags: ", "bounds: ")) for reason in found), found


SHARED = ["x", "part", "ssq", "residual"]


@pytest.mark.turns(4)
@pytest.mark.parametrize("field", SHARED)
@pytest.mark.parametrize("which", ["ring", "full"])
def test_the_bytes_of_a_ring_are_the_copies_own(field: str, which: str) -> None:
    """Everything that names the array names the ring's bytes instead, which has their dtype."""

    def change(document: Document) -> None:
        lists = {b["name"]: b for b in document["buffers"]}
        array = next(s["op"][field] for _, s in steps(document) if field in s["op"])
        ring = document["streams"][0][which]
        lists[ring].update(dtype=lists[array]["dtype"], shape=[2**15], offset=lists[ring]["offset"])
        for _, step in steps(document):
            step["op"].update({key: ring for key, value in step["op"].items() if value == array})

    found = refused("fenced", change)
    assert all(reason != "" for reason in found)


def test_a_ring_that_is_its_own_mbarriers() -> None:
    assert all(reason != "" for reason in refused("fenced", lambda d: d["streams"][0].update(full="ring")))


def another_role(document: Document) -> None:
    document["roles"].append({"name": "other", "first": 1, "count": 1})
    op(document, "gemv")["role"] = "other"


ALONE: list[tuple[str, Change]] = [
    ("fenced", buffer("output", shape=[2])),
    ("fenced", buffer("weights", shape=[64])),
    ("fenced", buffer("k_cache", role="scratch")),
    ("fenced", buffer("norm", role="scratch")),
    ("fenced", lambda d: d["tables"]["lm_head.count"].__setitem__(3, d["tables"]["lm_head.count"][3] + 1)),
    ("bias", names("store_rows", bias=None)),
    ("norm", names("rope_append", q_norm=None)),
    ("norm", names("rope_append", k_norm=None)),
    ("norm", names("rope_append", q_norm=None, k_norm=None)),
    ("int8", names("gemv", row_scales="scales.o")),
    ("int8", names("gemv", row_scales=None)),
    ("fenced", lambda d: d["streams"][0].update(chunk_k=96)),
    ("fenced", another_role),
    ("fenced", names("add_residual", k_parts=5)),
    ("fenced", names("prefetch_cache", layer={"l": 1, "1": 4096})),
    ("rows", buffer("ssq", shape=[2])),
    ("rows", buffer("ssq", shape=[4, 2])),
]


@pytest.mark.parametrize(("base", "change"), ALONE)
def test_the_checker_decides_what_a_launch_rests_on(base: str, change: Change) -> None:
    assert all(reason != "" for reason in refused(base, change))


def signals_add(amount: object) -> Change:
    def change(document: Document) -> None:
        next(s for _, step in steps(document) for s in step["signals"]).update(add=amount)

    return change


def tags(**fields: int) -> Change:
    return lambda d: [b["tag"].update(fields) for b in d["buffers"] if b.get("tag")] or [].append(0)


MACHINE: list[tuple[str, Change]] = [
    ("fenced", signals_add(WORD)),
    ("fenced", signals_add({"worker": 2**31, "1": 1})),
    ("tagged", tags(t=WORD)),
    ("tagged", tags(t=2**31)),
    ("tagged", tags(**{"1": WORD})),
    ("tagged", lambda d: d["launch"].update(max_tokens=2**20) or tags(t=2**13)(d)),
]


@pytest.mark.parametrize(("base", "change"), MACHINE)
def test_numbers_are_those_of_the_device(base: str, change: Change) -> None:
    """32-bit counters, tags, amounts: what wraps differently there is refused."""
    assert all(reason != "" for reason in refused(base, change))


@pytest.mark.parametrize(("program", "layer", "step"), [(0, 1, 15), (0, 1, 29), (0, 2, 29)])
def test_a_number_in_another_form_is_another(program: int, layer: int, step: int) -> None:
    """x is in bf16, x_digits holds digits, and they have the same bytes. What stages for a product of codes may not
    write x instead."""
    document = json.loads(json.dumps(neighbours("layers of two kinds")))
    twin = certificate_of(from_document(copy.deepcopy(document)))
    assert isinstance(twin, dict)
    changed = document["programs"][program]["body"][1]["body"][layer]["body"][step]["op"]
    assert changed["x"] == "x_digits"
    changed["x"] = "x"
    assert all("dataflow" in reason for reason in reasons(from_document(document), twin))


@pytest.mark.parametrize(
    ("base", "buffer", "tag"),
    [
        ("layers of two kinds", 18, {"t": 2, "l": 2**31 - 1, "1": 1}),
        ("rows", 17, {"t": 1, "l": WORD - 1, "1": 1}),
    ],
)
def test_a_coefficient_of_a_loop_of_one_pass_adds_nothing(base: str, buffer: int, tag: dict[str, int]) -> None:
    """l is 0 in every step that uses the buffer. With two layers the same tags are refused, by both."""
    document = json.loads(json.dumps(neighbours(base)))
    document["buffers"][buffer]["tag"] = tag
    schedule = Schedule.model_validate_json(json.dumps(document))
    assert verify(schedule).safe
    certificate = json.loads(json.dumps(evidence(schedule, checked=False)))
    assert check_certificate(schedule, schedule_hash(schedule), certificate).accepted
    document = json.loads(json.dumps(neighbours("tagged")))
    for one in document["buffers"]:
        one["tag"] = tag if one.get("tag") and "l" in one["tag"] else one.get("tag")
    wrong = Schedule.model_validate_json(json.dumps(document))
    assert "AMK513" in {d.code for d in verify(wrong).diagnostics}
    with pytest.raises(AmkError, match="tags: of"):
        evidence(wrong)
