"""Weights that the GPU puts in order are byte for byte those that the CPU puts in order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amk.engine.checkpoints.random_checkpoint import random_checkpoint
from amk.engine.device_packing import BLOCK_BYTES
from amk.engine.load import gpu_engine
from amk.interpreter.packing import packed_array
from amk.lowering.launch import Device
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.settings import FAST, Settings
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.layout import stream_layout
from amk.targets.target import Target
from amk.weights.bfloat import F32, Bits, to_bf16_bits
from amk.weights.quantised import nearest

pytestmark = pytest.mark.gpu

TWO = replace(FAST, rows=32, row_groups=2, k_splits=2, x_parts=2, k_parts=2, handoff="mixed")
PLANS: dict[str, tuple[str, Settings]] = {
    "one row": ("smollm2-135m", FAST),
    "gate and up in turn, blocks of rows": ("qwen2.5-0.5b", FAST),
    "two row groups a chunk, columns divided": ("qwen3-0.6b", TWO),
    "rows that others take turns with": ("pythia-160m", FAST),
}


class Stored:
    """The random weights of a model in bf16, as a file has them. spoiled: a tensor with a value that is no number."""

    def __init__(self, model: Any, spoiled: str = "") -> None:
        self._source, self._spoiled = random_checkpoint(model, 3), spoiled

    def tensor(self, name: str, rows: slice = slice(None)) -> F32:
        return self._source.tensor(name, rows)

    def bits(self, name: str, rows: slice) -> Bits | None:
        if name == self._spoiled:
            raise AmkError(Diagnostic("AMK013", f"{name} is no number"))
        return to_bf16_bits(self.tensor(name, rows))

    def stored_bits(self, name: str, rows: slice) -> Bits | None:
        found = to_bf16_bits(self.tensor(name, rows))
        if name == self._spoiled:
            found[-1, -1] = 0xFF80
        return found


@pytest.mark.parametrize("name", PLANS)
def test_bytes_are_those_of_the_cpu(name: str, device: Device, gpu: Target) -> None:
    known, settings = PLANS[name]
    model = load_model(known)
    schedule, source = plan(model, gpu, settings=settings, max_context=128), Stored(model)
    (stream,) = schedule.streams
    divided = max(stream_layout(schedule, stream).splits.values())
    assert (stream.row_groups, divided) == ((2, 2) if settings is TWO else (1, 1))
    expected = packed_array(schedule, random_checkpoint(model, 3))
    engine = gpu_engine(schedule, source, nearest, device=device)
    try:
        found = engine.read(stream.source, np.uint16, expected.size).reshape(expected.shape)
        np.testing.assert_array_equal(found, expected)
        assert expected.nbytes > BLOCK_BYTES
    finally:
        engine.free()


def test_what_is_no_number_is_told(device: Device, gpu: Target) -> None:
    model = load_model("smollm2-135m")
    schedule = plan(model, gpu, settings=FAST, max_context=128)
    with pytest.raises(AmkError, match="w_down is no number"):
        gpu_engine(schedule, Stored(model, spoiled=f"l{model.layers - 1}.w_down"), nearest, device=device)
