"""An engine starts its epochs again before a tag repeats, and the text goes on."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest

from amk.adversary.neighbourhood.bases import base
from amk.engine.backends.tag_life import MOST_EPOCHS, POISON, tokens_told_apart
from amk.planner.decode import plan
from amk.planner.settings import FAST, NAIVE
from amk.schedule_ir.expr import Env
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.validator.program.trace import unroll
from amk.validator.verify import verify
from tests.emulator.test_same_memory import uploaded
from tests.tiny import tiny


def planned(naive: bool = False) -> Schedule:
    return plan(tiny(), load_target("h200"), settings=NAIVE if naive else FAST, max_context=128, workers=4)


def tags_of(schedule: Schedule, epoch: int) -> list[list[int]]:
    """Of each tagged buffer, its tags in the layers of one token."""
    layers = range(schedule.model.layers)
    tags = [b.tag for b in schedule.buffers if b.tag is not None]
    return [[Env(loops={"t": epoch, "l": layer}, worker=0).eval_int(tag) for layer in layers] for tag in tags]


def test_no_tag_reaches_the_poison_before_the_last_token_and_one_does_soon_after() -> None:
    schedule = planned()
    most = tokens_told_apart(schedule)
    last = [max(tags) for tags in tags_of(schedule, most - 1)]
    assert last and all(tag < POISON for tag in last)
    assert any(max(tags) >= POISON for tags in tags_of(schedule, most))
    assert all(max(a) < min(b) for a, b in zip(tags_of(schedule, 6), tags_of(schedule, 7), strict=True))


def used_tags(schedule: Schedule, epoch: int) -> dict[str, list[int]]:
    """Of each tagged buffer, its tags in the steps of one token that name it, whole numbers."""
    found: dict[str, list[int]] = {}
    tags = {buffer.name: buffer.tag for buffer in schedule.buffers if buffer.tag is not None}
    for number, program in enumerate(schedule.programs):
        for item in unroll(program, number, 1):
            for name in {value for _, value in item.step.op if isinstance(value, str)} & tags.keys():
                env = Env(loops=item.loops | {"t": epoch}, worker=0)
                found.setdefault(name, []).append(env.eval_int(tags[name]))
    return found


SLOPES, LAYERS, STARTS = (2, 2**28, 2**31 - 1), (0, 1, -1, -(2**32), 2**27), (1, 7, 2**28 - 1, 2**31)


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", ["layers of two kinds", "rows", "rows, columns divided"])
def test_what_the_verdict_calls_safe_keeps_its_tags_apart_for_as_long_as_the_engine_counts_on(name: str) -> None:
    """Any tag that is SAFE, of all buffers with a tag of the layer at once and of the partial results alone."""
    document = base(name)
    safe = falling = 0
    for slope, layer, start in product(SLOPES, LAYERS, STARTS):
        for alone in (False, True):
            edited = json.loads(json.dumps(document))
            for buffer in edited["buffers"]:
                if buffer["tag"] and "l" in buffer["tag"] and (not alone or buffer["name"].startswith("split")):
                    buffer["tag"] = {"t": slope, "l": layer, "1": start}
            schedule = Schedule.model_validate_json(json.dumps(edited))
            verdict = verify(schedule)
            if verdict.status != "SAFE":
                continue
            safe, falling = safe + 1, falling + (layer < 0)
            most = tokens_told_apart(schedule)
            assert verdict.tokens_to_wrap is not None and most >= schedule.launch.max_tokens
            last, before, first = (used_tags(schedule, epoch) for epoch in (most - 1, most - 2, 0))
            for each, tags in last.items():
                assert max(tags) < POISON and min(first[each]) > 0, (slope, layer, start, each)
                assert max(before[each]) < min(tags), (slope, layer, start, each)
    assert safe > falling > 0


def test_without_tags_the_epoch_itself_is_the_limit() -> None:
    assert tokens_told_apart(planned(naive=True)) == MOST_EPOCHS


def test_the_engine_starts_again_in_time_and_keeps_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, driver = uploaded("plain bf16", monkeypatch)
    launched: list[int] = []

    def launch(argument: np.ndarray, _: object) -> None:
        state = engine.state()
        launched.append(state["epoch"])
        engine.upload(
            "state", np.array(list((state | {"epoch": state["epoch"] + int(argument["tokens"])}).values()), np.int32)
        )

    monkeypatch.setattr(engine, "launch", launch)
    engine.reset()
    engine.request([3, 4, 5])
    first, _ = driver.content(engine.counters)
    first = first.copy()
    tagged = [b for b in engine.schedule.buffers if b.tag is not None and b.space == "global"]
    assert tagged
    engine.set_state(epoch=engine.most_epochs - 10, pos=7)
    engine.enqueue(4)
    engine.enqueue(6)
    engine.upload(tagged[0].name, np.zeros(4, np.uint32))
    engine.counters.upload(np.full(engine.counters.nbytes, 9, np.uint8))
    caches = {b.name: engine.read(b.name, np.uint8, b.bytes) for b in engine.schedule.buffers if b.role == "state"}
    engine.enqueue(2)
    engine.enqueue(3)
    assert launched == [engine.most_epochs - 10, engine.most_epochs - 6, 0, 2]
    np.testing.assert_array_equal(driver.content(engine.counters)[0], first)
    for buffer in tagged:
        assert (driver.content(engine.buffers[buffer.name])[0][: buffer.bytes] == 0xFF).all(), buffer.name
    assert engine.state()["pos"] == 7
    for name, before in caches.items():
        if name != "state":
            np.testing.assert_array_equal(engine.read(name, np.uint8, len(before)), before)
