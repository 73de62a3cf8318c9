"""Where a tensor of another library lies, by the DLPack protocol: no copy, and no dependency on that library.

Layout of the structures: dlpack.h, version 0.8 (DLManagedTensor), which every exporter gives unless asked for more.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Final

CPU, CUDA = 1, 2
"""Device types."""
DTYPES: Final = {(0, 32): "i32", (2, 32): "f32", (4, 16): "bf16", (10, 8): "fp8"}
"""(type code, bits) by the dtype of a buffer."""
NO_ORDER: Final = -1
"""As the consumer's stream: the exporter orders nothing, whoever enqueues does."""


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


@dataclass(frozen=True)
class Borrowed:
    """Memory of a tensor. dtype: "" for one that no buffer has. owner: keeps the memory alive."""

    address: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    contiguous: bool
    device: tuple[int, int]
    owner: Any

    def overlaps(self, other: Borrowed) -> bool:
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes


def borrow(tensor: Any) -> Borrowed:
    """The memory of an object with `__dlpack__`; TypeError for anything else."""
    if not hasattr(tensor, "__dlpack__"):
        raise TypeError(f"{type(tensor).__name__} has no __dlpack__")
    on_gpu = int(tensor.__dlpack_device__()[0]) == CUDA
    capsule = tensor.__dlpack__(stream=NO_ORDER) if on_gpu else tensor.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    found = _Tensor.from_address(pointer(capsule, b"dltensor"))
    shape = tuple(found.shape[i] for i in range(found.ndim))
    strides = tuple(found.strides[i] for i in range(found.ndim)) if found.strides else _dense(shape)
    count = 1
    for size in shape:
        count *= size
    dense = all(size == 1 or a == b for size, a, b in zip(shape, strides, _dense(shape), strict=True))
    return Borrowed(
        address=(found.data or 0) + found.byte_offset,
        nbytes=count * found.bits * found.lanes // 8,
        shape=shape,
        dtype=DTYPES.get((found.code, found.bits), "") if found.lanes == 1 else "",
        contiguous=dense,
        device=(found.device_type, found.device_id),
        owner=(tensor, capsule),  # the capsule gives the tensor back when it goes
    )


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a row-major tensor, in elements."""
    out, step = [], 1
    for size in reversed(shape):
        out.append(step)
        step *= size
    return tuple(reversed(out))
