"""A launch past the end of the context is refused by every engine, before anything runs; one up to it is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amk.api.emulated import EmulatorEngine
from amk.engine.backends.cpu_engine import CpuEngine
from amk.engine.backends.request import TextEngine
from amk.report.diagnostic import AmkError
from tests.emulator.test_same_memory import uploaded
from tests.engine.tiny import RandomTensors, tiny_model, tiny_plan

MODEL, CONTEXT = tiny_model(layers=1), 8
SETTINGS: dict[str, Any] = {"workers": 6, "context": CONTEXT, "kv_block": 4, "max_tokens": 8}


def refused(engine: TextEngine, tokens: int) -> None:
    with pytest.raises(AmkError, match="AMK014") as found:
        engine.step(tokens)
    assert f"a launch of {tokens} steps from position" in found.value.diagnostics[0].message


@pytest.mark.turns(4)
def test_one_sequence_and_rows() -> None:
    one = CpuEngine(tiny_plan(MODEL, **SETTINGS), RandomTensors(MODEL))
    refused(one, CONTEXT + 1)
    one.request([3, 4, 5], start=0)
    expected = one.step(CONTEXT)
    refused(one, 1)
    one.request([3, 4, 5], start=2)
    refused(one, CONTEXT - 1)
    np.testing.assert_array_equal(one.step(CONTEXT - 2), expected[2:])
    rows = CpuEngine(tiny_plan(MODEL, rows=3, **SETTINGS), RandomTensors(MODEL))
    rows.request([3, 4, 5, 6, 7, 8, 9, 10], start=0)
    refused(rows, 3)
    rows.step(2)
    refused(rows, 1)
    rows.request([3, 4, 5, 6, 7, 8, 9, 10], start=CONTEXT - 3)
    rows.step(1)


def test_no_more_steps_than_are_proved() -> None:
    engine = CpuEngine(tiny_plan(MODEL, **(SETTINGS | {"max_tokens": 3})), RandomTensors(MODEL))
    engine.request([3, 4, 5])
    with pytest.raises(AmkError, match="AMK901"):
        engine.step(4)
    engine.step(3)


@pytest.mark.parametrize("live", [False, True])
def test_the_farthest_of_several_sequences_decides(live: bool) -> None:
    engine = CpuEngine(tiny_plan(MODEL, batch=2, live=live, **SETTINGS), RandomTensors(MODEL))
    engine.request_batch([[3] * 6, [4] * 6])
    engine.step(5)
    starts: Any = [2, 5] if live else 5
    engine.request_batch([[3] * 6, [4] * 6], start=starts)
    refused(engine, 4)
    engine.step(3)
    refused(engine, 1)


@pytest.mark.turns(4)
def test_the_emulator() -> None:
    pytest.importorskip("numba")
    emulated = EmulatorEngine(tiny_plan(MODEL, **SETTINGS), RandomTensors(MODEL))
    emulated.request([3, 4, 5, 6, 7, 8, 9, 10], start=CONTEXT - 1)
    refused(emulated, 2)


def test_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a driver that launches nothing: what is enqueued counts before it has run, and so does a state by hand, or
    one that the caller's copies on the stream put back."""
    engine, _ = uploaded("plain bf16", monkeypatch)
    launched: list[int] = []
    monkeypatch.setattr(engine, "launch", lambda argument, _: launched.append(int(argument["tokens"])))
    context = engine.schedule.kv.context
    engine.reset()
    engine.request([3, 4, 5], start=2)
    engine.enqueue(context - 3)
    with pytest.raises(AmkError, match="AMK014"):
        engine.enqueue(2)
    engine.enqueue(1)
    engine.set_state(pos=context - 4)
    refused(engine, 5)
    engine.enqueue(4)
    refused(engine, 1)
    engine.stands_at(engine.schedule.all_at(context - 2))
    engine.enqueue(2)
    assert launched == [context - 3, 1, 4, 2]
