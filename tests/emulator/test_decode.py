"""Whole kernels: the PTX of small schedules gives the interpreter's tokens and, within rounding, its logits."""

from __future__ import annotations

import numpy as np

from amk.emulator.decode import run
from amk.emulator.machine import Order
from amk.engine.cpu_engine import CpuEngine
from amk.lowering.kernel import build
from tests.engine.tiny import RandomTensors, tiny_model, tiny_plan

ROUNDING = 2e-6
"""Of logits, relative to the largest: sums of products are cut off in the emulated tensor core, rounded in numpy."""


def test_the_tiny_model_gives_the_interpreters_tokens_in_any_order() -> None:
    schedule = tiny_plan(tiny_model())
    source, ptx = RandomTensors(schedule.model), build(schedule).compiled.ptx
    expected = CpuEngine(schedule, source, numerics="device")
    expected.request([3, 17, 5])
    tokens = expected.step(4).tolist()
    for order in (Order(), Order(eager=True), Order(seed=1, slice=50)):
        result = run(schedule, source, ptx, prompts=[[3, 17, 5]], tokens=4, order=order)
        assert result.faults == []
        assert result.ended
        assert result.tokens.tolist() == tokens
        scale = np.abs(expected.logits()).max()
        assert np.abs(result.logits - expected.logits()).max() <= ROUNDING * scale
