"""What the engine of the GPU writes for a text and reads behind a launch: a driver copies as late as it may."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from amk.engine.backends import cuda_engine
from amk.engine.backends.cuda_engine import CudaEngine
from amk.engine.backends.request import first_state, request_buffers
from amk.lowering.device_memory import DeviceBuffer
from amk.lowering.watchdog import empty_log
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Schedule
from tests.emulator.host_driver import HostDriver, HostModules, host_device
from tests.engine.tiny import tiny_model, tiny_plan

MODEL = tiny_model(layers=1)
CHOSEN = 7


class Launched:
    """What a launch leaves: chosen tokens, and records of the watchdog."""

    def __init__(self, driver: HostDriver) -> None:
        self._driver, self.records = driver, 0
        self.engine: CudaEngine | None = None

    def __call__(self, argument: NDArray[Any], _stream: Any) -> None:
        assert self.engine is not None
        self._driver.make_copies()
        output = self._driver.held[self.engine.buffers["output"].address].view(np.int32)
        output[: int(argument["tokens"]) * self.engine.schedule.vectors] = CHOSEN
        self._driver.held[self.engine.log.address].view(np.uint32)[0] = self.records


def engine_of(patch: pytest.MonkeyPatch, schedule: Schedule) -> tuple[CudaEngine, HostDriver, Launched]:
    driver = HostDriver()
    launched = Launched(driver)
    patch.setattr(cuda_engine, "Module", HostModules())
    patch.setattr(cuda_engine, "CooperativeLaunch", lambda *_: launched)
    patch.setattr(cuda_engine, "check_loaded", lambda *_: None)
    admitted: Any = SimpleNamespace(schedule=schedule, loadable=bytes)
    launched.engine = engine = CudaEngine(admitted, host_device(driver))
    engine.reset()
    return engine, driver, launched


def content(driver: HostDriver, buffer: DeviceBuffer) -> NDArray[np.int32]:
    return driver.content(buffer)[0].view(np.int32)


def texts(context: int, count: int, most_rows: int) -> Iterator[tuple[list[int], int]]:
    """Prompts and where they begin, token 0 among their tokens."""
    draw = random.Random(5)
    for _ in range(count):
        length = draw.randint(1, draw.choice((4, context)))
        start = draw.randint(0, min(length - 1, context - most_rows))
        yield [draw.randrange(0, 3) for _ in range(length)], start


@pytest.mark.parametrize("more", [{}, {"rows": 4}, {"batch": 3}], ids=str)
@pytest.mark.parametrize("room", [cuda_engine.REQUEST_WORDS, 24])
def test_a_request_is_written_whole(more: dict[str, int], room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was written before; words are copied through less room than a prompt takes, too."""
    monkeypatch.setattr(cuda_engine, "REQUEST_WORDS", room)
    schedule = tiny_plan(MODEL, workers=4, kv_block=4, kv_splits=2, **more)
    engine, driver, _ = engine_of(monkeypatch, schedule)
    engine.set_state(epoch=11)
    for number, (text, start) in enumerate(texts(schedule.kv.context, 60, 4)):
        prompts = [text] * schedule.batch
        if number % 7 == 3:
            engine.upload("prompt", np.full(schedule.kv.context * schedule.batch, 5, np.int32))
        if number % 5 == 3:
            engine.reset()
            engine.set_state(epoch=11)
        engine.request_batch(prompts, (9,), start=start, prompt_length=start + 1)
        wanted = request_buffers(schedule, prompts, (9,), start + 1)
        words = content(driver, engine.buffers["prompt"])[: schedule.kv.context * schedule.batch]
        rows = slice(start, schedule.kv.context)
        each = (schedule.batch, schedule.kv.context)
        np.testing.assert_array_equal(words.reshape(each)[:, rows], wanted["prompt"].reshape(each)[:, rows])
        asked = content(driver, engine.buffers["request"])[: len(wanted["request"])]
        np.testing.assert_array_equal(asked, wanted["request"])
        assert engine.state() == first_state(prompts, start) | {"epoch": 11}


def test_what_is_written_at_once_comes_behind_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, driver, _ = engine_of(monkeypatch, tiny_plan(MODEL, workers=4))
    engine.request([1, 2, 3])
    engine.set_state(pos=2)
    assert engine.state()["pos"] == 2
    engine.request([1, 2, 3])
    engine.upload("prompt", np.array([4], np.int32))
    assert content(driver, engine.buffers["prompt"])[:3].tolist() == [4, 2, 3]


def test_a_launch_on_another_stream_finds_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, driver, _ = engine_of(monkeypatch, tiny_plan(MODEL, workers=4))
    seen = []
    engine.launch = lambda *_: seen.append(driver.held[engine.buffers["prompt"].address].view(np.int32)[1])  # type: ignore
    engine.request([1, 2, 3])
    engine.enqueue(1, stream=99)
    assert seen == [2]


def test_a_step_returns_its_own_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = tiny_plan(MODEL, workers=4, rows=4)
    engine, _, _ = engine_of(monkeypatch, schedule)
    engine.request([1, 2, 3])
    kept = engine.step(2)
    assert kept.tolist() == [[CHOSEN] * 4] * 2
    monkeypatch.setattr("tests.engine.test_requests.CHOSEN", 8)
    assert engine.step(1).tolist() == [[8] * 4]
    assert kept.tolist() == [[7] * 4] * 2
    assert engine.epoch == 3


def test_a_stopped_kernel_is_told_at_once_and_until_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _, launched = engine_of(monkeypatch, tiny_plan(MODEL, workers=4))
    engine.request([1, 2, 3])
    launched.records = 1
    for _ in range(2):
        with pytest.raises(AmkError, match="AMK604"):
            engine.step(1)
    launched.records = 0
    engine.reset()
    engine.request([1, 2, 3])
    assert engine.step(1).tolist() == [CHOSEN]
    assert len(engine.log.download(np.uint8, engine.log.nbytes)) == len(empty_log(cuda_engine.LOG_RECORDS))
