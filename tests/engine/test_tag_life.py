"""An engine starts its epochs again before a tag repeats, and the text goes on."""

from __future__ import annotations

import numpy as np
import pytest

from amk.engine.backends.tag_life import MOST_EPOCHS, POISON, tokens_told_apart
from amk.planner.decode import plan
from amk.planner.settings import FAST, NAIVE
from amk.schedule_ir.expr import Env
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
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
