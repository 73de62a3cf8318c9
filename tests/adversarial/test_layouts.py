"""Layers, tokens, workers and sequences that differ from the others, beyond the first two: safe layouts are SAFE, and a
mistake in one place is seen by the validator, by the checker and by the oracle, which spells out every layer and token.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from random import Random
from typing import Any

import pytest

from amk.adversary.edits import Json
from amk.checker.certificate import Proof, check_certificate
from amk.checker.programs import Rejected
from amk.judges.judge import judge
from amk.judges.oracle.judge import rule
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.validator.export.certificate import NotSafe
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.verify import verify
from tests.adversarial import random_layouts
from tests.adversarial.layouts import (
    FENCED,
    LAYOUTS,
    all_steps,
    ends_apart,
    entries,
    layer_loops,
    own_programs,
    planned,
    token_loop,
    two_loops,
    unrolled,
)

TOKENS = 4
"""Two more than the validator's induction begins with."""
SEEDS = (1, 2, 9, 12)
"""Of walks from random layouts, of plans with two warps, with four, and with ops of its own for each."""


@cache
def layout(name: str) -> Json:
    return LAYOUTS[name]()


def schedule_of(document: Json) -> Schedule:
    return Schedule.model_validate_json(json.dumps(document))


def oracle(schedule: Schedule) -> str:
    return rule(schedule, TOKENS).status


def certified(schedule: Schedule) -> bool:
    """Whether the checker accepts what can be made for the schedule, SAFE or not."""
    try:
        proof = Proof(schedule)
        certificate = json.loads(json.dumps(certify_schedule(schedule, checked=False, proof=proof)))
    except (NotSafe, Rejected):
        return False
    return check_certificate(schedule, schedule_hash(schedule), certificate, proof).accepted


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_of_a_safe_plan_is_safe(name: str) -> None:
    schedule = schedule_of(layout(name))
    assert verify(schedule).status == "SAFE"
    assert certified(schedule)
    assert oracle(schedule) == "SAFE"
    assert judge(schedule, 1).status == "not refuted"


def wait(counter: str, index: int, at_least: Any) -> Json:
    entry = {"counter": counter, "index": [index], "at_least": at_least, "order": "acquire"}
    return {"op": {"op": "wait", "role": "w0"}, "waits": [entry], "signals": []}


def without_last_wait(document: Json, counter: str, program: int = 0) -> Json:
    """The wait for the counter that stands last in the program goes."""
    body = token_loop(document["programs"][program])["body"]
    last = [i for i, n in enumerate(body) if any(w["counter"] == counter for w in n.get("waits", ()))][-1]
    body.pop(last)
    return document


def third_layer_without_wait() -> Json:
    document = unrolled(planned(FENCED, 4))
    (third,) = [w for w in entries(document, "waits", "h_mid") if w["index"] == [2]]
    for step in all_steps(document["programs"][0]["body"]):
        step["waits"] = [w for w in step["waits"] if w is not third]
    return document


def one_more_a_layer() -> Json:
    """In layer 0 it asks for one less than there is, in layer 1 for all there is, in layer 2 for one more."""
    document = deepcopy(layout("one cell"))
    (loop,) = layer_loops(document)
    loop["body"].append(wait("h_out", 0, {"t": 8, "l": 3, "1": 1}))
    return document


def loops_that_meet() -> Json:
    """The second loop's first cell is that of the first loop's third layer, which has signalled it."""
    document = two_loops(planned(FENCED, 6))
    next(c for c in document["counters"] if c["name"] == "h_mid")["shape"] = [9]
    second = list(layer_loops(document))[1]
    for step in second["body"]:
        for entry in (*step["waits"], *step["signals"]):
            if entry["counter"] == "h_mid":
                entry["index"] = [{"l": 1, "1": 2}]
    return document


def tags_that_meet() -> Json:
    """Layer 2 of a token has the tag of layer 0 of the next one."""
    document = deepcopy(layout("five layers, tagged"))
    next(b for b in document["buffers"] if b["name"] == "h_mid")["tag"] = {"t": 2, "l": 1, "1": 1}
    return document


def right_for_two_tokens() -> Json:
    """At token 0 it asks for less than there is, at token 1 for what there is, at token 2 for more."""
    document = planned(FENCED, 3)
    token_loop(document["programs"][0])["body"].insert(0, wait("h_out", 2, {"t": 3, "1": -1}))
    return document


def two_tokens_wanted() -> Json:
    """A wait behind the loop over tokens that a launch of one token does not satisfy."""
    document = planned(FENCED, 3)
    document["programs"][0]["body"].insert(2, wait("best", 0, 4))
    return document


def once_a_launch() -> Json:
    """Counted before the loop over tokens: one more than thresholds know."""
    document = planned(FENCED, 3)
    signal = {"counter": "best", "index": [0], "add": 1, "order": "release"}
    document["programs"][0]["body"].insert(1, {"op": {"op": "signal", "role": "w0"}, "waits": [], "signals": [signal]})
    return document


def one_worker_waits_for_less() -> Json:
    document = planned(FENCED, 2, workers=3)
    document["tables"]["less"] = [0, 0, -1]
    entries(document, "waits", "h_mid")[0]["at_least"]["less"] = 1
    return document


def one_worker_gives_for_another() -> Json:
    """As many signals as before, but two of them are the first worker's."""
    document = planned(FENCED, 2, workers=3)
    document["tables"]["given"] = [2, 1, 0]
    entries(document, "signals", "act")[0]["add"] = {"given": 1}
    return document


def sums_in_last_row() -> Json:
    document = deepcopy(layout("own programs, live"))
    shared = {b["name"]: b for b in document["buffers"]}
    shared["ssq"]["offset"] = shared["x"]["offset"] + 2 * shared["x"]["shape"][-1] * 2
    return document


def last_sequence_unserved() -> Json:
    document = deepcopy(layout("own programs, live"))
    document["tables"]["attn.head"] = [0, 1, 1, -1]
    return document


def one_program_does_not_wait() -> Json:
    document = deepcopy(layout("own programs, live"))
    loop = next(node for node in token_loop(document["programs"][2])["body"] if node.get("var") == "l")
    loop["body"] = [s for s in loop["body"] if not any(w["counter"] == "attn" for w in s["waits"])]
    return document


MISTAKES: list[Callable[[], Json]] = [
    third_layer_without_wait, one_more_a_layer, loops_that_meet, tags_that_meet, right_for_two_tokens,
    two_tokens_wanted, once_a_launch, one_worker_waits_for_less, one_worker_gives_for_another, sums_in_last_row,
    last_sequence_unserved, one_program_does_not_wait,
    lambda: without_last_wait(ends_apart(planned(FENCED, 5)), "act"),
    lambda: without_last_wait(own_programs(ends_apart(planned(FENCED, 4))), "qkv", program=1),
]  # fmt: skip


@pytest.mark.turns(4)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_one_place_is_seen(mistake: Callable[[], Json]) -> None:
    schedule = schedule_of(mistake())
    assert not verify(schedule).safe
    assert not certified(schedule)
    assert oracle(schedule) == "UNSAFE" or judge(schedule, 2).kind == "hang"


def walk(rng: Random) -> list[tuple[str, str]]:
    """A plan, and what three edits in turn make of what was SAFE last."""
    document = random_layouts.drawn_next(rng)[1]
    found = [random_layouts.looked_at(document, run=True)]
    for _ in range(3):
        _, other = random_layouts.drawn_next(rng, document)
        found.append(random_layouts.looked_at(other, run=False))
        document = other if found[-1][0] == "SAFE" else document
    return found


@pytest.mark.turns(16)
def test_random_layouts_have_no_hole_and_would_tell_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [one for seed in SEEDS for one in walk(Random(seed))]
    assert {verdict for verdict, _ in found} >= {"SAFE", "UNSAFE"}
    assert not any(wrong for _, wrong in found), found
    safe = verify(schedule_of(layout("unrolled")))
    monkeypatch.setattr(random_layouts, "verify", lambda *_, **__: safe)
    verdict, wrong = random_layouts.looked_at(third_layer_without_wait(), run=False)
    assert verdict == "SAFE" and wrong.startswith("oracle: "), wrong
