"""Quantising on the GPU: amk.weights.quantised and amk.weights.chunks for rows that torch already holds there.

The codes are those of `nearest`, the bytes those of `pack_quantised`; a test holds both to that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from amk.models.matrices import ROWS_PER_GROUP
from amk.weights.chunks import BYTE_ORDER, LANES, NIBBLE_ORDER, UNIT_COLUMNS
from amk.weights.weight_format import ALIGNMENT, Chunk, WeightFormat

TOGETHER = 1 << 26
"""Numbers that are quantised at once: it bounds the memory for what is between them and their codes."""


@dataclass(frozen=True)
class DeviceQuantised:
    """codes u8 [rows, k], scales fp16 [rows, groups], zeros u8 [rows, groups] or None."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None

    def values(self, form: WeightFormat) -> Tensor:
        """f32 [rows, k]: what the codes stand for."""
        k = self.codes.shape[1]
        width = form.group or k
        zero = form.kind.middle if self.zeros is None else self.zeros.repeat_interleave(width, dim=1)[:, :k].float()
        return form.kind.decode(self.codes, zero, torch) * self.scales.float().repeat_interleave(width, dim=1)[:, :k]


def quantised(rows: Tensor, form: WeightFormat) -> DeviceQuantised:
    """The nearest codes of `rows`, [rows, k], under scales from the largest magnitude (with zeros: the range)."""
    parts = [_quantised(part, form) for part in rows.split(max(1, TOGETHER // rows.shape[1]))]
    codes, scales = torch.cat([part.codes for part in parts]), torch.cat([part.scales for part in parts])
    return DeviceQuantised(codes, scales, torch.cat([part.zeros for part in parts]) if form.zeros else None)


def _quantised(rows: Tensor, form: WeightFormat) -> DeviceQuantised:
    k = rows.shape[1]
    groups = form.groups(k)
    width = form.group or k
    blocks = F.pad(rows.float(), (0, groups * width - k)).view(len(rows), groups, width)
    zeros = None
    if form.zeros:
        low, high = blocks.amin(2).clamp(max=0), blocks.amax(2).clamp(min=0)
        most = (1 << form.bits) - 1
        scales = _scale_at_least((high - low) / most)
        zeros = (-low / scales.float()).round().clamp(0, most).to(torch.uint8)
    else:
        scales = _scale_at_least(blocks.abs().amax(2) / form.kind.largest)
    zero = form.kind.middle if zeros is None else zeros.float().unsqueeze(2)
    codes = form.kind.encode(blocks / scales.float().unsqueeze(2), zero, torch)
    return DeviceQuantised(codes.view(len(rows), -1)[:, :k].contiguous(), scales, zeros)


def _scale_at_least(values: Tensor) -> Tensor:
    scales = values.half()
    up = (scales.view(torch.int16) + 1).view(torch.float16)  # the next larger one: scales are not negative
    scales = torch.where(scales.float() < values, up, scales)
    return torch.where(values == 0, torch.ones_like(scales), scales)


def packed_chunks(rows: DeviceQuantised, chunk: Chunk) -> Tensor:
    """Codes of groups * 8 rows -> bytes [groups * k_chunks, chunk.bytes], group-major."""
    form, columns = chunk.weights, chunk.columns
    groups, k = len(rows.codes) // ROWS_PER_GROUP, rows.codes.shape[1]
    count = -(-k // columns)
    codes = F.pad(rows.codes, (0, count * columns - k), value=form.kind.middle)
    lanes = codes.view(groups, ROWS_PER_GROUP, count, columns // UNIT_COLUMNS, LANES, UNIT_COLUMNS // LANES)
    if form.bits == 8:
        tiles = lanes[..., torch.from_numpy(BYTE_ORDER).to(codes.device)].permute(0, 2, 3, 1, 4, 5)
    else:
        nibbles = lanes[..., torch.from_numpy(NIBBLE_ORDER).to(codes.device)]
        pairs = nibbles[..., 0::2] | nibbles[..., 1::2] << 4
        tiles = pairs.view(groups, ROWS_PER_GROUP, count, -1, 2, LANES, 8).permute(0, 2, 3, 1, 5, 4, 6)
    if chunk.apart:
        return tiles.reshape(groups * count, chunk.bytes)
    parts = [tiles.reshape(groups, count, -1), _per_chunk(rows.scales, groups, count, form, columns).view(torch.uint8)]
    if rows.zeros is not None:
        zeros = _per_chunk(rows.zeros, groups, count, form, columns)
        parts.append(F.pad(zeros, (0, -zeros.shape[2] % ALIGNMENT)))
    return torch.cat(parts, dim=2).view(groups * count, chunk.bytes)


def _per_chunk(values: Tensor, groups: int, chunks: int, form: WeightFormat, columns: int) -> Tensor:
    """[groups * 8, scales of a row] -> [groups, chunks, 8 * scales of a chunk's row]."""
    each = form.groups(columns)
    wide = F.pad(values, (0, chunks * each - values.shape[1])) if form.group else values.repeat(1, chunks)
    cut = wide.view(groups, ROWS_PER_GROUP, chunks, each).transpose(1, 2)
    return cut.reshape(groups, chunks, ROWS_PER_GROUP * each).contiguous()
