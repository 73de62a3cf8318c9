"""What an engine on a GPU does not launch: behind a launch that the watchdog stopped, or more than is proved."""

from __future__ import annotations

import pytest

from amk.engine.backends import cuda_engine
from amk.lowering.watchdog import HEADER, empty_log
from amk.report.diagnostic import AmkError
from tests.emulator.test_same_memory import uploaded


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> tuple[cuda_engine.CudaEngine, list[int]]:
    engine, _ = uploaded("plain bf16", monkeypatch)
    tokens: list[int] = []
    monkeypatch.setattr(engine, "launch", lambda argument, _: tokens.append(int(argument["tokens"])))
    return engine, tokens


def test_nothing_is_launched_behind_a_stopped_launch_until_a_reset(
    launched: tuple[cuda_engine.CudaEngine, list[int]],
) -> None:
    """Its counters are between two tokens: waits of the next launch would pass early."""
    engine, tokens = launched
    engine.step(2)
    stopped = empty_log(cuda_engine.LOG_RECORDS)
    stopped[: HEADER.itemsize].view(HEADER)["count"] = 1
    engine.log.upload(stopped)
    for _ in range(2):
        with pytest.raises(AmkError, match="AMK604"):
            engine.step(3)
        with pytest.raises(AmkError, match="AMK604"):
            engine.enqueue(4)
    assert tokens == [2, 3], "the step that finds it is the last"
    engine.reset()
    engine.step(5)
    assert tokens == [2, 3, 5]


def test_a_launch_has_no_more_tokens_than_are_proved(launched: tuple[cuda_engine.CudaEngine, list[int]]) -> None:
    """`output` has room for so many, and their tags differ; the context has room for more."""
    engine, tokens = launched
    most = 4
    few = engine.schedule.launch.model_copy(update={"max_tokens": most})
    engine.schedule = engine.schedule.model_copy(update={"launch": few})
    engine.step(most)
    with pytest.raises(AmkError, match="AMK901"):
        engine.step(most + 1)
    assert tokens == [most] and engine.epoch == most
