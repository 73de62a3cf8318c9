"""The bytes of a chunk, for every number of bits of a code.

Codes stand in tiles of 512 bytes, [8 rows][4 lanes][16 bytes]: lane 4 * row + q of a warp reads its operand as 16
consecutive bytes. A bf16 tile has 32 columns, the lane 8 of them in order. Narrower codes come in units of 64 columns,
16 a lane (16 q .. + 16), whose first eight meet one half of the tensor core's rows and whose last eight the other:

    8 bits: columns 0..3, 8..11, 4..7, 12..15, a word each: the operand's registers in their order.
    4 bits: eight bytes, byte i has column i in its lower and column 8 + i in its upper nibble.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.weights.bfloat import F32, Bits, from_bf16_bits
from amk.weights.quantised import Bytes, Quantised, dequantised
from amk.weights.weight_format import ALIGNMENT, ROWS, Chunk

TILE_COLUMNS = 32
"""Columns of a bf16 tile."""
UNIT_COLUMNS = 64
"""Columns of a unit of narrower codes."""
LANES = 4
"""Lanes that share a row of a tile."""

BYTE_ORDER = np.array([0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15])
NIBBLE_ORDER = np.array([0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15])
"""Columns, of a lane's 16, in the order of its bytes and nibbles."""


def pack_bf16(bits: Bits, columns: int) -> Bits:
    """bf16 bits [groups, 8, k] -> [groups * k_chunks, 8 * columns], group-major, columns padded with zeros."""
    groups, _, k = bits.shape
    padded = -(-k // columns) * columns
    if padded > k:
        bits = np.concatenate([bits, np.zeros((groups, ROWS, padded - k), np.uint16)], axis=2)
    # Runs of 32 columns move as one 64-byte item: eight times faster than moving elements.
    runs = bits.view("V64").reshape(groups, ROWS, padded // TILE_COLUMNS)
    tiles = np.ascontiguousarray(runs.transpose(0, 2, 1))
    return tiles.view(np.uint16).reshape(groups * (padded // columns), ROWS * columns)


def pack_quantised(rows: Quantised, chunk: Chunk) -> Bytes:
    """Codes of groups * 8 rows -> bytes [groups * k_chunks, chunk.bytes], group-major.

    Columns past the end get codes of 0 and, in groups wholly past it, scales of zero.
    """
    form, columns = chunk.weights, chunk.columns
    groups, k = len(rows.codes) // ROWS, rows.codes.shape[1]
    count = -(-k // columns)
    codes = np.pad(rows.codes, ((0, 0), (0, count * columns - k)), constant_values=form.kind.middle)
    lanes = codes.reshape(groups, ROWS, count, columns // UNIT_COLUMNS, LANES, UNIT_COLUMNS // LANES)
    parts = [_payload(lanes, form.bits).reshape(groups, count, -1)]
    if chunk.apart:
        return parts[0].reshape(groups * count, chunk.bytes)
    parts.append(_per_chunk(rows.scales, groups, count, form.groups(columns), bool(form.group)).view(np.uint8))
    if form.zeros:
        assert rows.zeros is not None
        zeros = _per_chunk(rows.zeros, groups, count, form.groups(columns), bool(form.group))
        parts.append(np.pad(zeros, ((0, 0), (0, 0), (0, -zeros.shape[2] % ALIGNMENT))))
    return np.concatenate(parts, axis=2).reshape(groups * count, chunk.bytes)


def _payload(lanes: Bytes, bits: int) -> Bytes:
    """Codes [groups, 8, chunks, units, 4, 16] -> their bytes, [groups, chunks, ...] in the order of the tiles."""
    if bits == 8:
        return np.ascontiguousarray(lanes[..., BYTE_ORDER].transpose(0, 2, 3, 1, 4, 5))
    nibbles = lanes[..., NIBBLE_ORDER]
    pairs = nibbles[..., 0::2] | nibbles[..., 1::2] << 4
    groups, rows, chunks, units = pairs.shape[:4]
    tiles = pairs.reshape(groups, rows, chunks, units // 2, 2, LANES, 8)
    return np.ascontiguousarray(tiles.transpose(0, 2, 3, 1, 5, 4, 6))


def _per_chunk(values: NDArray[Any], groups: int, chunks: int, each: int, grouped: bool) -> NDArray[Any]:
    """[groups * 8, scales of a row] -> [groups, chunks, 8 * each]; a whole row's scale is repeated in every chunk."""
    if grouped:
        values = np.pad(values, ((0, 0), (0, chunks * each - values.shape[1])))
    else:
        values = np.repeat(values, chunks, axis=1)
    cut = values.reshape(groups, ROWS, chunks, each).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(cut).reshape(groups, chunks, ROWS * each)


def unpack_chunks(packed: NDArray[Any], chunk: Chunk) -> F32:
    """Packed chunks, [n, at least chunk.bytes] in bytes or 16-bit words -> their numbers, f32 [n, 8, columns].

    Of chunks without scales: the numbers of the codes.
    """
    count, columns = len(packed), chunk.columns
    stored = np.ascontiguousarray(packed).view(np.uint8).reshape(count, -1)[:, : chunk.bytes]
    if chunk.weights.plain:
        bits = np.ascontiguousarray(stored).view(np.uint16)
        tiles = from_bf16_bits(bits).reshape(count, -1, ROWS, TILE_COLUMNS)
        return np.ascontiguousarray(tiles.transpose(0, 2, 1, 3)).reshape(count, ROWS, columns)
    return dequantised(_unpack_quantised(stored, chunk), chunk.weights).reshape(count, ROWS, columns)


def _unpack_quantised(packed_chunks: Bytes, chunk: Chunk) -> Quantised:
    """Bytes [n, chunk.bytes] -> the codes of n * 8 rows; scales are per chunk."""
    form, count = chunk.weights, len(packed_chunks)
    size, each = form.payload_bytes(chunk.columns), form.groups(chunk.columns)
    payload, rest = packed_chunks[:, :size], packed_chunks[:, size:]
    if form.bits == 8:
        lanes = np.empty((count, chunk.columns // UNIT_COLUMNS, ROWS, LANES, 16), np.uint8)
        lanes[..., BYTE_ORDER] = payload.reshape(lanes.shape)
        codes = lanes.transpose(0, 2, 1, 3, 4)
    else:
        pairs = payload.reshape(count, -1, ROWS, LANES, 2, 8)
        nibbles = np.empty((*pairs.shape[:-1], 16), np.uint8)
        nibbles[..., NIBBLE_ORDER[0::2]], nibbles[..., NIBBLE_ORDER[1::2]] = pairs & 15, pairs >> 4
        codes = nibbles.transpose(0, 2, 1, 4, 3, 5)
    flat: Bytes = np.ascontiguousarray(codes).reshape(count * ROWS, chunk.columns)
    if chunk.apart:
        return Quantised(flat, np.ones((count * ROWS, each), np.float16))
    scales = np.ascontiguousarray(rest[:, : 2 * ROWS * each]).view(np.float16).reshape(count * ROWS, each)
    zeros = None
    if form.zeros:
        zeros = rest[:, 2 * ROWS * each : 3 * ROWS * each].reshape(count * ROWS, each)
    return Quantised(flat, scales, zeros)
