"""Bounds of a GGUF header, checked before the `gguf` package reads it.

The package trusts lengths: a declared array of 2^60 elements or a key count past the end of the file makes it loop or
allocate without end. This pass walks the same bytes, follows only lengths, and refuses any that leaves the file or
passes a limit. Cost: one step per metadata element and per tensor; no tensor data is touched.

Source of the format: the GGUF specification in the ggml repository (docs/gguf.md), versions 2 and 3, little-endian.
"""

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from amk.engine.refusal import bad_weights, unsupported

MAX_KEYS = 10_000
MAX_TENSORS = 100_000
MAX_ARRAY = 4_000_000  # elements; the largest vocabularies in use have 0.3 million tokens and 0.5 million merges
MAX_STRING = 16 << 20
MAX_NAME = 256
MAX_DIMENSIONS = 4

_STRING, _ARRAY, _UINT32 = 8, 9, 4
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True)
class TensorInfo:
    """One declared tensor; `shape` in row-major order (the file stores it reversed), `end` relative to the data."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    end: int


class _Cursor:
    """A position in the file that cannot leave it."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at, self.size = path, data, 0, len(data)

    def skip(self, count: int, what: str) -> int:
        """Moves over `count` bytes and returns where they start."""
        start = self.at
        if count > self.size - start:
            raise bad_weights(
                self.path,
                f"the file ends inside {what}",
                f"{what} needs {count:,} bytes at offset {start:,}; the file has {self.size:,}",
                help="the download may be incomplete: fetch the file again",
            )
        self.at = start + count
        return start

    def number(self, form: str, what: str) -> int:
        """One little-endian integer, `form` as in `struct`."""
        value: int = struct.unpack_from("<" + form, self.data, self.skip(struct.calcsize(form), what))[0]
        return value

    def bounded(self, form: str, limit: int, what: str) -> int:
        value = self.number(form, what)
        if value > limit:
            raise bad_weights(self.path, f"{what} is {value:,}, the limit is {limit:,}")
        return value

    def text(self, limit: int, what: str) -> str:
        count = self.bounded("Q", limit, f"the length of {what}")
        start = self.skip(count, what)
        try:
            return self.data[start : start + count].decode("utf-8")
        except UnicodeDecodeError:
            raise bad_weights(self.path, f"{what} is not UTF-8", f"at offset {start:,}") from None


def check_header(path: Path) -> list[TensorInfo]:
    """The declared tensors of a GGUF file whose header stays inside the file and the limits; AMK013 otherwise."""
    with path.open("rb") as file:
        if path.stat().st_size < 4 or file.read(4) != b"GGUF":
            raise bad_weights(path, "not a GGUF file", "it does not begin with the bytes GGUF")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _walk(_Cursor(path, data))


def _walk(cursor: _Cursor) -> list[TensorInfo]:
    cursor.skip(4, "the magic")
    version = cursor.number("I", "the version")
    if version not in (2, 3):
        raise unsupported(cursor.path, f"GGUF version {version} is not known", "versions 2 and 3, little-endian, are")
    tensors = cursor.bounded("Q", MAX_TENSORS, "the tensor count")
    keys = cursor.bounded("Q", MAX_KEYS, "the metadata count")
    alignment = _DEFAULT_ALIGNMENT
    for _ in range(keys):
        key = cursor.text(MAX_NAME, "a metadata key")
        start = _skip_value(cursor, key)
        if key == "general.alignment":
            alignment = struct.unpack_from("<I", cursor.data, start)[0]
    if alignment == 0 or alignment & (alignment - 1):
        raise bad_weights(cursor.path, f"alignment {alignment} is not a power of two")
    infos = [_tensor_info(cursor) for _ in range(tensors)]
    data_start = -(-cursor.at // alignment) * alignment
    for info in infos:
        if data_start + info.end > cursor.size:
            raise bad_weights(
                cursor.path,
                f"tensor {info.name!r} reaches past the end of the file",
                f"it ends at byte {data_start + info.end:,}; the file has {cursor.size:,}",
                help="the download may be incomplete: fetch the file again",
            )
    return infos


def _skip_value(cursor: _Cursor, key: str) -> int:
    """Moves over one metadata value and returns where its payload starts."""
    what = f"metadata {key!r}"
    kind = cursor.number("I", what)
    start = cursor.at
    if kind == _STRING:
        cursor.text(MAX_STRING, what)
    elif kind == _ARRAY:
        _skip_array(cursor, what)
    elif kind in _SCALAR_BYTES and (key != "general.alignment" or kind == _UINT32):
        cursor.skip(_SCALAR_BYTES[kind], what)
    else:
        raise bad_weights(cursor.path, f"{what} has value type {kind}, which it cannot have")
    return start


def _skip_array(cursor: _Cursor, what: str) -> None:
    kind = cursor.number("I", what)
    count = cursor.bounded("Q", MAX_ARRAY, f"the length of {what}")
    if kind == _STRING:
        for _ in range(count):
            cursor.text(MAX_STRING, what)
    elif kind in _SCALAR_BYTES:
        cursor.skip(count * _SCALAR_BYTES[kind], what)
    else:
        raise bad_weights(cursor.path, f"{what} is an array of value type {kind}, which no known file uses")


def _tensor_info(cursor: _Cursor) -> TensorInfo:
    name = cursor.text(MAX_NAME, "a tensor name")
    what = f"the description of tensor {name!r}"
    count = cursor.bounded("I", MAX_DIMENSIONS, f"the number of dimensions of {name!r}")
    shape = tuple(reversed([cursor.number("Q", what) for _ in range(count)]))
    raw = cursor.number("I", what)
    offset = cursor.number("Q", what)
    try:
        kind = GGMLQuantizationType(raw)
    except ValueError:
        raise unsupported(cursor.path, f"tensor {name!r} has storage type {raw}, which is not known") from None
    block, size = GGML_QUANT_SIZES[kind]
    if not shape or 0 in shape or shape[-1] % block:
        raise bad_weights(cursor.path, f"tensor {name!r} has shape {list(shape)}, which {kind.name} cannot store")
    return TensorInfo(name, shape, kind, offset + prod(shape) // block * size)
