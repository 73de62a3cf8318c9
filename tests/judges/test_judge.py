"""The judge does not refute what is right, and refutes what is wrong, of every kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amk.adversary.edits import Json, find, steps, waiting
from amk.adversary.edits import at as value_at
from amk.adversary.neighbourhood.bases import SMALL_BASES, base
from amk.judges.choice import Drawing
from amk.judges.judge import MOST_READ, _Follower, judge, judged, requests
from amk.judges.orders import Priorities, order_of
from amk.judges.request import Request
from amk.schedule_ir.sampling import Sampling
from amk.schedule_ir.schedule import Schedule


def schedule_of(document: Json) -> Schedule:
    return Schedule.model_validate_json(json.dumps(document))


def copy_of(name: str) -> Json:
    return json.loads(json.dumps(base(name)))


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", SMALL_BASES)
def test_a_right_schedule_is_not_refuted(name: str) -> None:
    """By three of the requests, others for each base; all together they are all asked."""
    schedule = schedule_of(base(name))
    asked = list(requests(schedule))
    first = list(SMALL_BASES).index(name)
    for request, order in (asked[(first + i * 5) % len(asked)] for i in range(3)):
        ruling = judged(schedule, request, order)
        assert ruling.status == "not refuted", (request, order, ruling)


def _no_wait(document: Json) -> None:
    del value_at(document, waiting(document, "h_mid"))["waits"][:]


def _too_high(document: Json) -> None:
    value_at(document, waiting(document, "h_mid"))["waits"][0]["at_least"]["1"] += 1


def _third_token(document: Json) -> None:
    value_at(document, waiting(document, "h_mid"))["waits"][0]["at_least"]["t"] += 1


def _embedding_again(document: Json) -> None:
    value_at(document, find(document, "stage_norm"))["op"]["h"] = "embedding"


def _other_norm(document: Json) -> None:
    value_at(document, find(document, "stage_norm", 1))["op"]["index"] = {"l": 2}


def _small_output(document: Json) -> None:
    next(b for b in document["buffers"] if b["name"] == "output")["shape"] = [2]


def _no_barrier(document: Json) -> None:
    for path, step in list(steps(document))[::-1]:
        if step["op"]["op"] == "barrier":
            del value_at(document, path[:-1])[path[-1]]


def _other_matrix(document: Json) -> None:
    value_at(document, find(document, "gemv", matrix="o"))["op"]["layer"] = 0


def _forgotten_cache(document: Json) -> None:
    next(b for b in document["buffers"] if b["name"] == "k_cache")["role"] = "scratch"


def _finished_early(document: Json) -> None:
    path = find(document, "finish")
    del value_at(document, path[:-1])[path[-1]]


WRONG: dict[str, tuple[Callable[[Json], None], set[str]]] = {
    "no wait": (_no_wait, {"poison", "tokens", "logits"}),
    "threshold too high": (_too_high, {"hang"}),
    "threshold grows too fast": (_third_token, {"hang"}),
    "embedding in place of the hidden state": (_embedding_again, {"tokens", "logits"}),
    "norm of another layer": (_other_norm, {"tokens", "logits"}),
    "output of two tokens": (_small_output, {"bounds"}),
    "no barriers": (_no_barrier, {"poison", "tokens", "logits"}),
    "weights of another layer": (_other_matrix, {"chunk", "tokens"}),
    "a cache that does not survive": (_forgotten_cache, {"poison"}),
    "state is not stored": (_finished_early, {"state", "tokens", "registers", "poison"}),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_schedule_is_refuted(name: str) -> None:
    change, kinds = WRONG[name]
    document = copy_of("fenced")
    change(document)
    ruling = judge(schedule_of(document), most=4)
    assert ruling.status == "refuted" and ruling.kind in kinds, ruling


def _other_layer(document: Json) -> None:
    value_at(document, find(document, "take_hidden"))["op"]["norm"] = "rope"


def _other_output(document: Json) -> None:
    value_at(document, find(document, "give_hidden"))["op"]["residual"] = "x"


SLICED: dict[str, tuple[Callable[[Json], None], set[str]]] = {
    "no barriers": (_no_barrier, {"poison", "hidden", "cache"}),
    "another table in place of a norm": (_other_layer, {"hidden", "cache"}),
    "another vector in place of the residual": (_other_output, {"hidden", "poison"}),
    "an epoch that is not stored": (_finished_early, {"state", "poison", "registers"}),
    "a cache that does not survive": (_forgotten_cache, {"poison"}),
}


@pytest.mark.parametrize("name", SLICED)
def test_a_wrong_slice_of_layers_is_refuted(name: str) -> None:
    change, kinds = SLICED[name]
    document = copy_of("slice of layers")
    change(document)
    ruling = judge(schedule_of(document), most=8)
    assert ruling.status == "refuted" and ruling.kind in kinds, ruling


def _other_scale(document: Json) -> None:
    value_at(document, find(document, "give_logits"))["op"]["ssq"] = "part"


HEADED: dict[str, tuple[Callable[[Json], None], set[str]]] = {
    "no barriers": (_no_barrier, {"poison", "logits"}),
    "something else in place of the sums of squares": (_other_scale, {"poison", "logits", "bounds"}),
    "an epoch that is not stored": (_finished_early, {"state", "poison", "registers"}),
}


@pytest.mark.parametrize("name", HEADED)
def test_a_wrong_output_head_is_refuted(name: str) -> None:
    change, kinds = HEADED[name]
    document = copy_of("output head")
    change(document)
    ruling = judge(schedule_of(document), most=8)
    assert ruling.status == "refuted" and ruling.kind in kinds, ruling


@pytest.mark.parametrize("name", ["output head", "last layer and output head"])
def test_a_right_output_head_is_not_refuted(name: str) -> None:
    assert judge(schedule_of(copy_of(name))).status == "not refuted"


def test_a_long_run_sees_what_two_tokens_do_not() -> None:
    document = copy_of("fenced")
    wait = value_at(document, waiting(document, "h_mid"))["waits"][0]
    wait["at_least"]["t"] += wait["at_least"]["t"] // 2  # holds for the first token only
    short = Request(((7, 20),), (1,))
    assert judged(schedule_of(document), short, "round-robin").status == "not refuted"
    assert judge(schedule_of(document), 1).kind == "hang"


def test_rows_begin_within_the_context_whatever_the_blocks() -> None:
    document = json.loads(json.dumps(base("rows")))
    document["kv"]["block"] = 4 * document["kv"]["context"]
    schedule = Schedule.model_validate_json(json.dumps(document))
    for request, _ in requests(schedule):
        assert request.start >= 0 and request.start + schedule.rows * sum(request.launches) <= schedule.kv.context


def test_what_cannot_be_run_is_not_refuted() -> None:
    document = copy_of("fenced")
    next(b for b in document["buffers"] if b["name"] == "act")["shape"] = [2**39]
    assert judge(schedule_of(document)).status == "unrun"
    document = copy_of("fenced")
    next(b for b in document["buffers"] if b["name"] == "prompt")["shape"] = [5]
    assert judge(schedule_of(document)).status == "unrun"


def test_each_of_64_sequences_has_a_drawing_that_a_launch_takes() -> None:
    request = Request(tuple((s,) for s in range(64)), (2,), drawing=Drawing(0.8, 5, 0.9, 7))
    drawings = request.drawings
    assert len(set(drawings)) == 44
    for each in drawings:
        Sampling(each.temperature, each.top_k, each.top_p, each.seed).words()


def test_orders_are_repeatable_and_differ() -> None:
    class Event:
        is_copy = False

        def __init__(self, worker: int, warp: int) -> None:
            self.worker, self.warp = worker, warp

    def run(seed: int) -> list[tuple[int, int]]:
        order = Priorities(seed)
        for worker in range(4):
            for warp in range(3):
                order.push(Event(worker, warp))
        taken = [order.pop() for _ in range(12)]
        assert len(order) == 0
        return [(e.worker, e.warp) for e in taken]

    assert run(1) == run(1)
    assert len({tuple(run(seed)) for seed in range(5)}) == 5
    with pytest.raises(ValueError, match="names no"):
        order_of("priorities:x")


def test_a_request_behind_more_tokens_than_are_read_is_not_run() -> None:
    """The sequences of a live batch begin at positions of their own, the last ones of the context among them."""
    document = json.loads(json.dumps(base("live batch, fenced, head norms")))
    document["kv"]["context"] = 4 * MOST_READ
    ruling = judge(schedule_of(document))
    assert ruling.status == "unrun" and f"at most {MOST_READ:,} are read" in ruling.why


class Doubtful:
    """A model whose two best tokens are level: 1 and 3."""

    def after(self, read: tuple[int, ...]) -> np.ndarray:
        return np.array([[0.0, 1.0, 0.5, 1.0]])

    def slack(self, read: tuple[int, ...]) -> float:
        return 0.1


@pytest.mark.parametrize(("end", "is_done"), [(1, 0), (3, 1), (2, 0)])
def test_where_the_model_leaves_doubt_the_token_that_was_taken_ends_the_text_or_not(end: int, is_done: int) -> None:
    """The largest is 1, the kernel takes 3."""
    text: Any = Doubtful()
    follower = _Follower(text, Request(((0,),), (1,), ends=(end,)), 0, False, None)
    assert follower.follow(np.array([[3]])) is None
    state = {"token": 3, "position": 1, "epoch": 1, "done": is_done}
    assert follower.state(state) is None and follower.state(state | {"done": 1 - is_done}) is not None
