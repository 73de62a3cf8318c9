"""Weights that the GPU puts in order, its kernel in the emulator: the bytes are those that the CPU makes, all of them,
and values that are no numbers are named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("numba", reason="the emulator is compiled")

from amk.emulator.machine.machine import Machine
from amk.emulator.memory.global_memory import Allocation
from amk.emulator.ptx.parse import parse
from amk.emulator.ptx.program import Program, assemble
from amk.engine import device_packing
from amk.engine.checkpoints.checkpoint import Checkpoint
from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from amk.engine.device_packing import ARGUMENT, KERNEL, SOURCE, WARPS, is_stored, pack_into
from amk.interpreter.packing import packed_array
from amk.lowering.compile import ARCHITECTURES, compile_ptx
from amk.lowering.device_memory import DeviceBuffer
from amk.models.model import ModelSpec
from amk.models.row_groups import TensorSource
from amk.planner.formats import formats
from amk.report.diagnostic import AmkError
from amk.schedule_ir.layout import stream_layout
from amk.schedule_ir.schedule import Schedule
from amk.weights.bfloat import Bits, to_bf16_bits
from amk.weights.quantised import nearest
from tests.emulator.host_driver import FRESH, HostDriver, host_device
from tests.engine import tiny_model as files
from tests.engine.tiny import NEOX, RandomTensors, tiny_model, tiny_plan

WIDE = {"workers": 5, "warps": 8, "chunk_bytes": 1024}
PLANS: dict[str, tuple[ModelSpec, dict[str, Any]]] = {
    "ragged": (tiny_model(hidden=96, heads=3, kv_heads=1, ffn=160), {}),
    "down in two parts": (tiny_model(ffn=128), {"act_parts": 2, "workers": 5, "warps": 8}),
    "six tiles a chunk": (tiny_model(hidden=192, heads=6, ffn=192), WIDE | {"chunk_bytes": 4096}),
    "without a gate": (tiny_model(**NEOX), {}),
    "two row groups a chunk": (tiny_model(vocab=96), {"batch": 10, "row_groups": 2, "chunk_bytes": 1024}),
    "columns divided": (tiny_model(hidden=256, ffn=512), {"workers": 8, "rows": 4, "k_splits": 2}),
    "without output head": (tiny_model(), {"rows": 4, "headless": True}),
}
FAR = 10_000_000
"""A piece of 512 bytes, more than 2^32 bytes behind the first one."""
NO_NUMBERS = ((0x7F80, 3), (0xFF80, 2), (0x7FC1, 3), (0xFF81, 2), (0x7FFF, 2), (0xFFFF, 3))
"""Bits, and the column where they stand: the lower or upper half of a word."""


class Stored(RandomTensors):
    """Tensors that are bf16 in their file."""

    def bits(self, name: str, rows: slice) -> Bits | None:
        return self.stored_bits(name, rows)

    def stored_bits(self, name: str, rows: slice) -> Bits | None:
        return to_bf16_bits(self.tensor(name, rows))


class Emulated:
    """In place of the driver's module and launches: the kernel runs on the memory of a host driver."""

    def __init__(self, driver: HostDriver, ptx: str) -> None:
        self._driver, self._program, self.launches = driver, assemble(parse(ptx), KERNEL), 0

    def module(self, *_: Any) -> Any:
        return self

    def __enter__(self) -> Emulated:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def kernel(self, name: str) -> Emulated:
        assert name == KERNEL
        return self

    def enqueue(self, _kernel: Any, grid: int, block: int) -> Any:
        def launch(argument: NDArray[Any], stream: int) -> None:
            assert block == 32 * WARPS
            self._driver.later(stream, self._run, argument.copy(), grid)

        return launch

    def _run(self, argument: NDArray[Any], grid: int) -> None:
        self.launches += 1
        there = {name: self._driver.behind(int(argument[name])) for name in LIMITS}
        machine = machine_of(self._program, grid, argument, there)
        for name in ("chunks", "infinite"):
            memory = there[name][: LIMITS[name](argument)]
            memory[:] = machine.read(name, np.uint8, memory.nbytes).view(np.uint8)


LIMITS: dict[str, Callable[[Any], int | None]] = {
    "rows": lambda of: 2 * int(of["length"]) * int(of["k"]),
    "places": lambda of: 4 * int(of["count"]),
    "chunks": lambda _: None,
    "infinite": lambda of: 4 * int(of["count"]),
}
"""Where what the kernel may read and write of a buffer ends, by its argument: buffers are larger."""


def machine_of(
    program: Program, grid: int, argument: NDArray[Any], memories: dict[str, NDArray[np.uint8]], offset: int = 0
) -> Machine:
    """The machine behind a launch on these memories. offset: of the chunks' address from their memory."""
    allocations = [
        Allocation(name, len(part), "scratch" if name in ("chunks", "infinite") else "constant", part.copy())
        for name, memory in memories.items()
        for part in (memory[: LIMITS[name](argument)],)
    ]
    machine = Machine(program, grid, WARPS, 0, allocations, races=True)
    there = argument.copy()
    for name in memories:
        there[name] = machine.memory.addresses[name] + (offset if name == "chunks" else 0)
    outcome = machine.launch(there.tobytes())
    assert outcome.ended and not outcome.faults, outcome.faults
    return machine


@pytest.fixture(scope="module")
def ptx() -> str:
    return compile_ptx(SOURCE, "sm_90a")


def packed(
    patch: pytest.MonkeyPatch,
    schedule: Schedule,
    source: TensorSource,
    ptx: str,
    block_bytes: int = 4096,
    free: int = 1 << 40,
    arch: str = "sm_90a",
) -> tuple[Bits, Emulated, list[tuple[int, int]]]:
    """The weights as an engine has them behind `pack_into`, what ran, and the progress that it was told."""
    driver = HostDriver()
    emulated, device = Emulated(driver, ptx), replace(host_device(driver), arch=arch)
    patch.setattr(type(device), "free_bytes", lambda _: free)
    patch.setattr(device_packing, "Module", emulated.module)
    patch.setattr(device_packing, "Enqueue", emulated.enqueue)
    patch.setattr(device_packing, "BLOCK_BYTES", block_bytes)
    (stream,) = schedule.streams
    size = next(buffer.bytes for buffer in schedule.buffers if buffer.name == stream.source)
    buffer = DeviceBuffer(device, size)
    engine: Any = SimpleNamespace(schedule=schedule, device=device, buffers={stream.source: buffer})
    engine.upload = lambda name, data, offset: engine.buffers[name].upload(np.ascontiguousarray(data), offset)
    steps: list[tuple[int, int]] = []
    assert not pack_into(engine, source, nearest, lambda *how_far: steps.append(how_far))
    assert len(driver.held) == 1, "what it took beside the weights is given back"
    return driver.held[buffer.address].view(np.uint16).reshape(-1, stream.chunk_bytes // 2), emulated, steps


@pytest.mark.parametrize("name", PLANS)
def test_all_bytes_are_those_of_the_cpu(name: str, ptx: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, settings = PLANS[name]
    schedule, source = tiny_plan(model, **settings), Stored(model)
    found, emulated, steps = packed(monkeypatch, schedule, source, ptx)
    expected = packed_array(schedule, RandomTensors(model))
    np.testing.assert_array_equal(found[: len(expected)], expected)
    assert np.all(found[len(expected) :].view(np.uint8) == FRESH)
    assert emulated.launches > len({key[:2] for key in stream_layout(schedule, schedule.streams[0]).packed}), (
        "matrices come in several blocks"
    )
    assert steps[-1] == (expected.nbytes, expected.nbytes) and steps == sorted(steps)


def test_plans_are_of_the_kinds_that_they_are_called() -> None:
    plans = {name: tiny_plan(model, **settings) for name, (model, settings) in PLANS.items()}
    divided = plans["columns divided"]
    assert plans["two row groups a chunk"].streams[0].row_groups == 2
    assert max(stream_layout(divided, divided.streams[0]).splits.values()) == 2
    assert plans["without output head"].headless


def checkpoint(path: Path, dtype: str = "BF16", model_type: str = "llama") -> Checkpoint:
    return open_checkpoint(files.write_single(path, files.weights(model_type), dtype, model_type=model_type))


def test_a_checkpoint_in_bf16(tmp_path: Path, ptx: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = checkpoint(tmp_path / "tiny")
    schedule = tiny_plan(source.spec)
    found, emulated, _ = packed(monkeypatch, schedule, source, ptx)
    expected = packed_array(schedule, source)
    np.testing.assert_array_equal(found[: len(expected)], expected)
    assert emulated.launches


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_what_is_no_number_is_named(
    value: tuple[int, int], tmp_path: Path, ptx: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = checkpoint(tmp_path / "tiny")
    file = tmp_path / "tiny" / "model.safetensors"
    data = bytearray(file.read_bytes())
    row = source.bits("l1.w_up", slice(5, 6))
    assert row is not None
    at = data.index(row.tobytes())
    bits, column = value
    data[at + 2 * column : at + 2 * column + 2] = bits.to_bytes(2, "little")
    file.write_bytes(data)
    changed = open_checkpoint(tmp_path / "tiny")
    with pytest.raises(AmkError, match=rf"w_up\[5, {column}\]") as raised:
        packed(monkeypatch, tiny_plan(changed.spec), changed, ptx)
    assert raised.value.diagnostics[0].code == "AMK013"


def test_a_piece_is_far_behind_the_first(ptx: str) -> None:
    argument = np.zeros((), ARGUMENT)
    for field, value in {"count": 1, "across": 1, "columns": 32, "length": 8, "k": 32, "parts": 1}.items():
        argument[field] = value
    rows, places = np.arange(256, dtype=np.uint16), np.array([FAR], np.int32)
    memories = {"rows": rows.view(np.uint8), "places": places.view(np.uint8)}
    memories |= {"chunks": np.zeros(512, np.uint8), "infinite": np.zeros(4, np.uint8)}
    machine = machine_of(assemble(parse(ptx), KERNEL), 1, argument, memories, offset=-512 * FAR)
    np.testing.assert_array_equal(machine.read("chunks", np.uint16, 256), rows)


def test_others_are_put_in_order_by_the_cpu(tmp_path: Path, ptx: str, monkeypatch: pytest.MonkeyPatch) -> None:
    floats, stored = checkpoint(tmp_path / "floats", "F32"), checkpoint(tmp_path / "stored")
    plain = tiny_plan(stored.spec)
    mixed = tiny_plan(stored.spec, weights=formats("int8", "bf16"))
    assert is_stored(plain, stored) and not is_stored(plain, floats) and not is_stored(mixed, stored)
    found, emulated, _ = packed(monkeypatch, plain, floats, ptx)
    np.testing.assert_array_equal(found, packed_array(plain, floats))
    assert not emulated.launches
    full, emulated, _ = packed(monkeypatch, plain, stored, ptx, free=4 * 4096)
    np.testing.assert_array_equal(full, found)
    assert not emulated.launches, "no memory is left for a block"
    other, emulated, _ = packed(monkeypatch, plain, stored, ptx, arch="sm_75")
    np.testing.assert_array_equal(other, found)
    assert not emulated.launches, "nothing is compiled for such a GPU"


def test_the_argument_is_what_the_kernel_reads() -> None:
    offsets = [ARGUMENT.fields[name][1] for name in ARGUMENT.names]  # type: ignore[index,union-attr]
    assert offsets == [0, 8, 16, 24, 32, 36, 40, 44, 48, 52] and ARGUMENT.itemsize == 56
    assert all(f".entry {KERNEL}" in compile_ptx(SOURCE, arch) for arch in ARCHITECTURES)
