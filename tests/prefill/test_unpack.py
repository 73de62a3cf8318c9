"""The kernel that unpacks matrices, in the emulator: bytes of every format become the numbers that they stand for."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="prompts are read by torch")
pytest.importorskip("numba", reason="the emulator is compiled")

from amk.emulator.machine.machine import Machine
from amk.emulator.memory.global_memory import Allocation
from amk.emulator.ptx.parse import parse
from amk.emulator.ptx.program import assemble
from amk.interpreter.packing import packed_arrays
from amk.lowering.compile import compile_ptx
from amk.models.matrices import scale_buffer
from amk.prefill.device_matrices import WARPS, argument, kernel_of, source_of
from amk.schedule_ir.layout import matrix_places
from amk.schedule_ir.schedule import Schedule
from amk.weights.bfloat import to_bf16_bits
from amk.weights.codes import CODES
from tests.engine.tiny import RandomTensors, tiny_plan
from tests.prefill.rows import PACKED, stored_rows


@cache
def programs(ptx: str) -> dict[str, Any]:
    """The kernel of every kind of code."""
    return {codes: assemble(parse(ptx), kernel_of(codes)) for codes in CODES}


@pytest.fixture(scope="module")
def ptx() -> str:
    return compile_ptx(source_of(CODES), "sm_90a")


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", PACKED)
def test_chunks_become_the_rows_that_they_stand_for(name: str, ptx: str) -> None:
    model, wanted, settings = PACKED[name]
    source, schedule = RandomTensors(model), tiny_plan(model, weights=wanted, **settings)
    packed, scales = packed_arrays(schedule, source)
    for (matrix_name, layer), places in matrix_places(schedule, schedule.streams[0]).items():
        if matrix_name != "lm_head" and layer == 0:
            continue  # the last layer is where a place could be off by most
        expected = to_bf16_bits(stored_rows(schedule, source, matrix_name, layer))
        apart = scales.get(scale_buffer(matrix_name))
        up_to = packed[: places.max() + 1]  # a read behind the matrix's last chunk is one behind all memory
        found = unpacked(programs(ptx), schedule, matrix_name, layer, up_to, places, apart, expected.shape)
        np.testing.assert_array_equal(found, expected, err_msg=f"{matrix_name} of layer {layer}")


def unpacked(
    kernels: dict[str, Any],
    schedule: Schedule,
    name: Any,
    layer: int,
    packed: Any,
    places: Any,
    apart: Any,
    shape: tuple[int, int],
) -> Any:
    buffers = {"chunks": packed, "places": places, "apart": apart if apart is not None else np.zeros(1, np.float32)}
    allocations = [
        Allocation(key, data.nbytes, "constant", np.ascontiguousarray(data).reshape(-1).view(np.uint8))
        for key, data in buffers.items()
    ]
    size = 2 * shape[0] * shape[1]
    blocks = -(-len(places) // WARPS)
    program = kernels[schedule.streams[0].chunk(name, layer).weights.codes]
    machine = Machine(program, blocks, WARPS, 0, [*allocations, Allocation("out", size, "scratch", None)])
    at = machine.memory.addresses
    scales = at["apart"] + apart[layer].nbytes * layer if apart is not None else 0
    block = argument(schedule, name, layer, len(places), at["chunks"], at["places"], at["out"], scales)
    outcome = machine.launch(block.tobytes())
    assert outcome.ended and not outcome.faults, outcome.faults
    assert machine.defined("out", 0, size), "every number is written"
    return machine.read("out", np.uint16, size // 2).reshape(shape)
