"""The header of a GGUF file: metadata and tensor directory, without touching tensor data.

This walk exists beside the `gguf` package for two reasons: it bounds-checks every length against the file before using
it (a hostile header cannot make it loop or allocate), and it skips the vocabulary, which takes the package seconds.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from amk.report.diagnostic import AmkError, Diagnostic, Where

MAGIC: Final = b"GGUF"

# value type id -> struct format; 8 is a string and 9 an array
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_FLOAT32, _STRING, _ARRAY = 6, 8, 9
_LENGTH: Final = struct.Struct("<Q")
MAX_KEY = 65535
MAX_STRING = 1 << 20  # chat templates are the longest strings that are kept
MAX_ENTRIES = 1 << 16


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array of the metadata: its length, and its elements if they are at most 64 numbers, else None.

    start: byte of the file where it begins, for `read_gguf_array`.
    """

    length: int
    values: tuple[int | float | bool, ...] | None
    start: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of the directory: shape rows first (GGUF stores it reversed), GGML type id, byte offset in the file."""

    shape: tuple[int, ...]
    type: int
    offset: int


Scalar = int | float | bool | str | GgufArray


@dataclass(frozen=True, slots=True)
class GgufHeader:
    fields: Mapping[str, Scalar]
    tensors: Mapping[str, GgufTensor]


def read_gguf_header(path: Path) -> GgufHeader:
    """The header of the GGUF file at `path`; AMK001 if it is unreadable, truncated or malformed."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Walk(data).header()
    except (OSError, ValueError) as error:  # ValueError: an empty file, or what _Walk found
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise AmkError(
            Diagnostic("AMK001", f"cannot read the GGUF file: {reason}", where=Where(file=str(path)))
        ) from error


def read_gguf_array(path: Path, array: GgufArray) -> list[str] | list[int] | list[float] | list[bool]:
    """All elements of an array that the header of this file has, however many.

    AMK001 for text that is not UTF-8, or a file that has changed since. Cost: 0.2 us a string.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _elements(data, array.start)
    except (OSError, ValueError, struct.error) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        message = f"cannot read an array of the GGUF file: {reason}"
        raise AmkError(Diagnostic("AMK001", message, where=Where(file=str(path)))) from error


def read_floats(path: Path, tensor: GgufTensor, limit: int) -> tuple[float, ...]:
    """The elements of a small float32 tensor (GGML type 0) of at most `limit` elements; ValueError otherwise."""
    count = 1
    for extent in tensor.shape:
        count *= extent
    if tensor.type != 0 or not 0 < count <= limit:
        raise ValueError("not a small float32 tensor")
    with path.open("rb") as file:
        file.seek(tensor.offset)
        return struct.unpack(f"<{count}f", file.read(4 * count).ljust(4 * count, b"\xff"))


class _Walk:
    """A cursor that raises ValueError instead of leaving the file."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def header(self) -> GgufHeader:
        if self.take(4) != MAGIC:
            raise ValueError("it does not start with 'GGUF'")
        version = self.scalar("I")
        if version not in (2, 3):
            raise ValueError(f"GGUF version {version} is not supported (2 and 3 are)")
        tensor_count, field_count = self.scalar("Q"), self.scalar("Q")
        if tensor_count > MAX_ENTRIES or field_count > MAX_ENTRIES:
            raise ValueError(f"{field_count} fields and {tensor_count} tensors are more than any model has")
        fields: dict[str, Scalar] = {}
        for _ in range(int(field_count)):
            key = self.string(MAX_KEY)
            if key in fields:
                raise ValueError(f"field {key[:80]!r} appears twice")
            fields[key] = self.value(int(self.scalar("I")))
        return GgufHeader(fields, self.directory(int(tensor_count), fields))

    def directory(self, count: int, fields: Mapping[str, Scalar]) -> dict[str, GgufTensor]:
        found: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(count):
            name = self.string(MAX_KEY)
            dimensions = int(self.scalar("I"))
            if not 0 < dimensions <= 4 or name in found:
                raise ValueError(f"tensor {name[:80]!r} has {dimensions} dimensions or appears twice")
            shape = tuple(int(self.scalar("Q")) for _ in range(dimensions))
            found[name] = (shape[::-1], int(self.scalar("I")), int(self.scalar("Q")))
        alignment = fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise ValueError(f"alignment {alignment!r} is not a power of two")
        start = -(-self.at // alignment) * alignment
        return {name: GgufTensor(shape, kind, start + offset) for name, (shape, kind, offset) in found.items()}

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise ValueError(f"it ends at byte {len(self.data)}, inside its header")
        self.at += size
        return self.data[self.at - size : self.at]

    def scalar(self, form: str) -> int | float | bool:
        value: int | float | bool = struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))[0]
        return value

    def string(self, limit: int) -> str:
        size = int(self.scalar("Q"))
        if size > limit:
            raise ValueError(f"a string of {size} bytes at byte {self.at}, the limit is {limit}")
        return self.take(size).decode("utf-8")

    def value(self, kind: int) -> Scalar:
        if kind == _STRING:
            return self.string(MAX_STRING)
        if kind == _ARRAY:
            return self.array()
        return self.number(kind)

    def number(self, kind: int) -> int | float | bool:
        if kind not in _SCALARS:
            raise ValueError(f"value type {kind} at byte {self.at} is not known")
        value = self.scalar(_SCALARS[kind])
        # The shortest decimal that names the same float32: 1e-5 was stored as 9.999999747378752e-06.
        return float(str(np.float32(value))) if kind == _FLOAT32 else value

    def array(self) -> GgufArray:
        start = self.at
        kind, length = int(self.scalar("I")), int(self.scalar("Q"))
        if kind in _SCALARS:
            size = struct.calcsize(f"<{_SCALARS[kind]}")
            if length <= 64:
                return GgufArray(length, tuple(self.number(kind) for _ in range(length)), start)
            if length > len(self.data) // size:
                raise ValueError(f"an array of {length} elements does not fit the file")
            self.skip(length * size)
        elif kind == _STRING:
            self.skip_strings(length)
        else:
            raise ValueError(f"an array of value type {kind} is not supported")
        return GgufArray(length, None, start)

    def skip(self, size: int) -> None:
        if size > len(self.data) - self.at:
            raise ValueError(f"it ends at byte {len(self.data)}, inside its header")
        self.at += size

    def skip_strings(self, count: int) -> None:
        """Each takes at least 8 bytes, so the file bounds the loop."""
        at, last, length = self.at, len(self.data) - _LENGTH.size, _LENGTH.unpack_from
        for _ in range(count):
            if at > last:
                break
            at += _LENGTH.size + length(self.data, at)[0]
        else:
            self.skip(at - self.at)
            return
        raise ValueError(f"it ends at byte {len(self.data)}, inside its header")


def _elements(data: mmap.mmap, start: int) -> list[Any]:
    """The elements of the array at `start`, which a walk found inside the file."""
    kind, length = struct.unpack_from("<IQ", data, start)
    at = start + 12
    if kind != _STRING:
        numbers: list[Any] = np.frombuffer(data, f"<{_SCALARS[kind]}", length, at).tolist()
        return numbers
    found, size = [], _LENGTH.unpack_from
    for _ in range(length):
        begin = at + _LENGTH.size
        at = begin + size(data, at)[0]
        found.append(data[begin:at].decode())
    return found
