"""Blocks of 32 codes with their scale, as GGML stores them, to float32.

    Q4_0    f16 d, 16 bytes: byte i holds code i (low half) and code i + 16 (high half); a value is d (code - 8)
    Q4_1    f16 d, f16 m, 16 bytes as above; a value is d code + m
    Q8_0    f16 d, 32 signed bytes; a value is d code

These are the formats of small models on a CPU, where reading the file is most of the time to the first word: one pass
of each operation over a megabyte that stays in the cache. The other formats are left to the `gguf` package.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

CODES = 32


def decode(blocks: npt.NDArray[np.generic], kind: Kind, out: Floats) -> None:
    """Rows of blocks, [rows, bytes per row], to `out`, [rows, elements per row] and contiguous."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        out[...] = dequantize(blocks, kind).reshape(out.shape)
        return
    size, write = decoder
    write(np.ascontiguousarray(blocks).view(np.uint8).reshape(-1, size), out.reshape(-1, CODES))


def _half(blocks: Bytes, at: int) -> Floats:
    """The f16 at byte `at` of every block, [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(blocks: Bytes, out: Floats) -> None:
    halves = out.reshape(-1, 2, CODES // 2)
    halves[:, 0] = blocks & 15
    halves[:, 1] = blocks >> 4


def _q4_0(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 2:], out)
    out -= np.float32(8)
    out *= _half(blocks, 0)


def _q4_1(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 4:], out)
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _q8_0(blocks: Bytes, out: Floats) -> None:
    out[...] = blocks[:, 2:].view(np.int8)
    out *= _half(blocks, 0)


_DECODERS: dict[Kind, tuple[int, Callable[[Bytes, Floats], None]]] = {
    Kind.Q4_0: (18, _q4_0),
    Kind.Q4_1: (20, _q4_1),
    Kind.Q8_0: (34, _q8_0),
}
