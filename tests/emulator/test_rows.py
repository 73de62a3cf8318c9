"""Steps of several rows in the emulator: ends of a text, and blocks of the cache that a step just reaches."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

from amk.adversary.neighbourhood.bases import base
from amk.emulator.decode import EmulatedEngine
from amk.engine.backends.cpu_engine import CpuEngine
from amk.judges.emulated_run import EmulatedKernel
from amk.judges.judge import DEVICE_TOLERANCE, judged
from amk.judges.request import Request
from amk.lowering.compile import compile_ptx
from amk.lowering.emit import emit
from amk.schedule_ir.schedule import Schedule
from tests.engine.tiny import RandomTensors
from tests.lowering.edits.judge import original, subject

SCHEDULE = Schedule.model_validate_json(json.dumps(base("rows, parts of down, sums in global memory")))
SOURCE = RandomTensors(SCHEDULE.model)
TEXT = [5, 11, 2, 30, 8, 1, 9, 17, 25, 3, 33, 12]
Seen = tuple[list[list[int]], dict[str, int]]


@cache
def ptx() -> str:
    return compile_ptx(emit(SCHEDULE), SCHEDULE.target.arch)


def emulated(ends: tuple[int, ...] = (), prompt_length: int = 3, start: int = 0, steps: int = 1) -> Seen:
    """Tokens behind the rows of each step, and the launch state; the words behind the given ones are the text's too."""
    engine = EmulatedEngine(SCHEDULE, SOURCE, ptx())
    engine.request_batch([TEXT], ends)
    engine.machine.write("request", np.array([prompt_length], np.int32))
    engine.fill_cache(*(np.zeros(engine.buffers[name].shape, np.uint16) for name in ("k_cache", "v_cache")))
    engine.set_state(token=TEXT[start], pos=start)
    outcome = engine.launch(steps)
    assert outcome.ended and not outcome.faults, outcome.faults
    return engine.output(steps).tolist(), engine.state()


def interpreted(ends: tuple[int, ...] = (), prompt_length: int = 3, start: int = 0, steps: int = 1) -> Seen:
    engine = CpuEngine(SCHEDULE, SOURCE, numerics="device")
    engine.request(TEXT, ends)
    machine = engine._machine
    machine.set("request", np.array([prompt_length, *engine._machine.get("request")[1:]], np.int32))
    for name in ("k_cache", "v_cache"):
        machine.set(name, np.zeros_like(machine.get(name)))
    machine.set("state", np.array([TEXT[start], start, 0, 0], np.int32))
    return engine.step(steps).tolist(), engine.state()


@pytest.mark.turns(12)
@pytest.mark.parametrize("place", range(4))
def test_each_of_the_ends_ends_the_text_behind_the_last_row_only(place: int) -> None:
    (row, *_), _ = emulated()
    for token, ended in ((row[-1], 1), (row[0], int(row[0] == row[-1]))):
        ends = tuple(token if n == place else -1 for n in range(4))
        assert emulated(ends) == interpreted(ends)
        assert emulated(ends)[1]["done"] == ended


def test_a_text_that_has_ended_stays_ended() -> None:
    (row, *_), _ = emulated()
    assert emulated((row[-1],), steps=2) == interpreted((row[-1],), steps=2)


@pytest.mark.parametrize("start", range(9))
def test_splits_are_read_from_the_step_on_that_reaches_them(start: int) -> None:
    assert emulated(prompt_length=1, start=start) == interpreted(prompt_length=1, start=start)


@pytest.mark.parametrize("start", [0, 70, 95, 118])
def test_lanes_that_have_a_split_each_give_the_others_its_weight(start: int) -> None:
    """One split of eight has seen something, five, six and all of them, beside a plain forward pass."""
    schedule = subject("weights of splits")
    assert (schedule.kv.splits, schedule.model.head_dim) == (8, 128)
    text = tuple((7 * n + 3) % schedule.model.vocab for n in range(start + 3))
    request = Request((text,), (1, 1), start)
    kernel = EmulatedKernel(lambda _: str(original("weights of splits")))
    found = judged(schedule, request, "priorities:1", kernel, DEVICE_TOLERANCE)
    assert (found.status, kernel.runs) == ("not refuted", 1), found
