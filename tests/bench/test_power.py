"""Energy and clocks from samples of NVML; a contestant is loaded for some time, and never far ahead of the device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from amk.bench.table.decode_bench import sustained
from amk.bench.tools import power
from amk.bench.tools.power import AHEAD, Meter, Sample, loaded, summed, uuid_name
from amk.bench.tools.timing import Contestant
from amk.engine.backends.request import TextEngine
from amk.planner.decode import plan
from amk.planner.settings import Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from tests.engine.tiny import tiny_model


def test_joules_a_token_and_why_clocks_were_held_down() -> None:
    samples = [
        Sample(1.0, 5_000_000, 1980, 3201, 0x0),
        Sample(1.5, 5_300_000, 1755, 3201, 0x4),
        Sample(2.0, 5_600_000, 1965, 3201, 0x1),
    ]
    found = summed(samples, 400)
    assert (found.joules, found.watts) == (1.5, 600.0)
    assert (found.sm_mhz, found.least_sm_mhz, found.memory_mhz) == (1965, 1755, 3201)
    assert found.throttled == ("power cap",)
    assert summed([samples[0], samples[2]], 400).throttled == ()


def test_nvml_names_a_gpu_by_its_uuid() -> None:
    assert uuid_name("0123456789abcdef0123456789abcdef") == "GPU-01234567-89ab-cdef-0123-456789abcdef"


class Device:
    """Finishes a launch in 10 ms, one after the other; draws 500 W."""

    def __init__(self) -> None:
        self.now, self.busy_until, self.most_ahead = 0.0, 0.0, 0.0

    def launch(self) -> None:
        self.busy_until = max(self.busy_until, self.now) + 0.010
        self.most_ahead = max(self.most_ahead, self.busy_until - self.now)

    def event(self) -> Any:
        done: list[float] = []

        def synchronise() -> None:
            self.now = max(self.now, done[0])

        return SimpleNamespace(record=lambda stream: done.append(self.busy_until), synchronize=synchronise)

    def finish(self) -> None:
        self.now = self.busy_until


def test_a_load_is_sampled_while_the_device_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setattr(power.torch.cuda, "Event", device.event)
    meter: Any = SimpleNamespace(sample=lambda: Sample(device.now, round(device.now * 500e3), 1980, 3201, 0))
    stream: Any = SimpleNamespace(synchronize=device.finish)
    found = loaded(meter, Contestant("x", 4, stream, device.launch), seconds=0.5)
    assert found.joules == pytest.approx(500 * 0.010 / 4) and found.watts == pytest.approx(500)
    assert device.most_ahead <= 2 * AHEAD * 0.010 + 1e-9


def test_without_nvml_there_is_no_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(power.importlib, "import_module", missing)
    device: Any = SimpleNamespace(uuid=lambda: "ab" * 16)
    assert Meter.open(device) is None


class LaunchesOnly(TextEngine):
    """Counts what is launched, and refuses as every engine does."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.launched, self.written = schedule, 0, 0
        self.stream, self.buffers = SimpleNamespace(handle=0), {"state": SimpleNamespace(address=0)}
        self.device = SimpleNamespace(driver=SimpleNamespace(call=self.copy))

    def copy(self, *words: object) -> None:
        self.written += 1

    def _begin(self, buffers: Any, state: Any, lengths: Any) -> None:
        pass

    def set_state(self, **words: int) -> None:
        self.stands_at(words)

    def read(self, name: str, dtype: Any, count: int) -> Any:
        return np.zeros(count, dtype)

    def enqueue(self, tokens: int) -> None:
        self._launches(tokens)
        self.launched += 1


def test_a_sustained_load_near_the_end_of_a_context_starts_over(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = plan(tiny_model(), load_target("h200"), settings=Settings(warps=4, chunk_bytes=512), max_context=64)
    engine = LaunchesOnly(schedule)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle: None)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    contestant = sustained(SimpleNamespace(schedule=schedule, engine=engine), 56, 4)  # type: ignore[arg-type]
    for _ in range(5):
        contestant.run()
    assert engine.launched == 5 and engine.written == 5 * 2
    with pytest.raises(AmkError, match="AMK014"):
        for _ in range(3):
            engine.enqueue(4)
