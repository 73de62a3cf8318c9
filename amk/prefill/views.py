"""Tensors over an engine's buffers: the same memory, no copy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from amk.engine.backends.cuda_engine import CudaEngine
from amk.schedule_ir.launch_needs import host_buffers
from amk.schedule_ir.schedule import Schedule

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32, "i32": torch.int32, "fp8": torch.float8_e4m3fn}
"""By the type of a buffer."""


class _Span:
    """Device memory in the words of the CUDA array interface (version 3 of Numba's specification)."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


def view(engine: CudaEngine, name: str) -> Tensor:
    """A global buffer, as `shaped` says; it must not be used after the engine was freed."""
    nbytes = next(each.bytes for each in engine.schedule.buffers if each.name == name)
    span = _Span(engine.buffers[name].address, nbytes)
    return shaped(engine.schedule, name, torch.as_tensor(span, device=torch.device("cuda", engine.device.ordinal)))


def shaped(schedule: Schedule, name: str, memory: Tensor) -> Tensor:
    """The bytes of a constant or state, u8 [bytes], in its type and the shape that the host knows it in; no copy."""
    buffer = next(each for each in schedule.buffers if each.name == name)
    _, shape = host_buffers(schedule).get(name, (buffer.role, buffer.shape))
    return memory.view(DTYPES[buffer.dtype]).view(shape)
