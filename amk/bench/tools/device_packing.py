"""Packing on the GPU: the order of amk.interpreter.packing, for weights that torch already holds there."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from amk.bench.tools.device_quantise import packed_chunks, quantised
from amk.bench.tools.torch_model import Drawn, TorchWeights
from amk.models.matrices import MATRICES, ROWS_PER_GROUP, MatrixName, matrices_of, matrix, scale_buffer, scale_shape
from amk.schedule_ir.layout import owners, piece_places, stream_layout
from amk.schedule_ir.memory import Stream
from amk.schedule_ir.schedule import Schedule
from amk.weights.weight_format import Chunk

PACKINGS = 2
ROOM = 3


def packed_weights(schedule: Schedule, weights: TorchWeights, into: Tensor | None = None) -> Tensor:
    """The packed weight buffer, bytes [pieces, piece_bytes], on the weights' device; quantised where the stream is.

    into: where it is written, contiguous, of any type.
    """
    (stream,) = schedule.streams
    layout = stream_layout(schedule, stream)
    shape = (int(layout.places.sum()) * stream.row_groups, stream.piece_bytes)
    if into is None:
        out = torch.zeros(shape, dtype=torch.uint8, device=weights.embedding.device)
    else:
        out = into.view(-1).view(torch.uint8)[: shape[0] * shape[1]].view(shape).zero_()
    for (name, layer, part), places in piece_places(schedule, stream):
        rows, chunk = _rows_in_groups(schedule, weights, name, layer), stream.chunk(name, layer)
        divided = len(rows) // ROWS_PER_GROUP, layout.splits[name], layout.parts[name], -1, chunk.bytes
        groups, index = (torch.from_numpy(each).to(rows.device) for each in owners(schedule, layout, name))
        own = _encoded(rows, chunk).view(divided)[groups, index, part]
        out[torch.from_numpy(places).to(rows.device), : chunk.bytes] = own.reshape(-1, chunk.bytes)
    return out


def row_scales(schedule: Schedule, weights: TorchWeights) -> dict[str, Tensor]:
    """The scales that stand apart from the chunks, f32 `scale_shape`, by buffer."""
    (stream,) = schedule.streams
    found: dict[str, Tensor] = {}
    for name in matrices_of(schedule.model):
        if not any(chunk.apart for chunk in stream.kinds(name)):
            continue
        layers, rows = scale_shape(schedule.model, name)
        out = found[scale_buffer(name)] = torch.zeros((layers, rows), device=weights.embedding.device)
        for layer in range(layers):
            chunk = stream.chunk(name, layer)
            if chunk.apart:
                out[layer] = quantised(_rows_in_groups(schedule, weights, name, layer), chunk.weights).scales[:, 0]
    return found


def _rows_in_groups(schedule: Schedule, weights: TorchWeights, name: MatrixName, layer: int) -> Tensor:
    """The rows of a matrix in the order of its row groups, zeros behind them."""
    rows = weights.matrices[name][layer]
    if name == "gate_up":
        rows = rows.view(2, -1, ROWS_PER_GROUP // 2, rows.shape[1]).transpose(0, 1).reshape(rows.shape)
    count = matrix(schedule.model, name).groups * ROWS_PER_GROUP
    padded = torch.zeros((count, rows.shape[1]), dtype=rows.dtype, device=rows.device)
    padded[: rows.shape[0]] = rows
    return padded


@dataclass
class Packings:
    """Packed weights that are kept, the latest used last: plans that differ in other choices have them in common."""

    by_key: OrderedDict[str, Tensor] = field(default_factory=OrderedDict)

    def of(self, schedule: Schedule, weights: TorchWeights) -> Tensor:
        """`packed_weights`. Always of the same weights; kept while the device has room for ROOM more of that size."""
        key = packing_key(schedule)
        found = self.by_key.pop(key, None)
        if found is None:
            found = packed_weights(schedule, weights)
            while len(self.by_key) >= PACKINGS:
                self.by_key.popitem(last=False)
        if torch.cuda.mem_get_info()[0] >= ROOM * found.nbytes:
            self.by_key[key] = found
        return found


def packing_key(schedule: Schedule) -> str:
    """sha256 of all that `packed_weights` takes from a schedule."""
    (stream,) = schedule.streams
    layout = stream_layout(schedule, stream)
    digest = hashlib.sha256(
        repr((schedule.model, stream.chunk_bytes, layout.places.tolist(), layout.parts, layout.splits)).encode()
    )
    for (name, layer, part), places in piece_places(schedule, stream):
        digest.update(repr((name, layer, part, stream.chunk(name, layer), places.shape)).encode())
        digest.update(places.tobytes())
        digest.update(b"".join(each.tobytes() for each in owners(schedule, layout, name)))
    return digest.hexdigest()


def _encoded(rows: Tensor, chunk: Chunk) -> Tensor:
    """Bytes [groups * k_chunks, chunk.bytes] of padded rows."""
    if chunk.format != "bf16":
        return packed_chunks(quantised(rows, chunk.weights), chunk)
    tiles = rows.view(-1, ROWS_PER_GROUP, rows.shape[1] // chunk.columns, chunk.columns // 32, 32)
    return tiles.permute(0, 2, 3, 1, 4).reshape(-1, ROWS_PER_GROUP * chunk.columns).view(torch.uint8)


def _rounded_of(layers: Sequence[Tensor], layer: int) -> Tensor:
    return layers[layer].bfloat16()


def _values_of(stream: Stream, name: MatrixName, layers: Sequence[Tensor], layer: int) -> Tensor:
    """The numbers that the chunks of a matrix stand for."""
    rows, chunk = layers[layer], stream.chunk(name, layer)
    return rows if chunk.format == "bf16" else quantised(rows, chunk.weights).values(chunk.weights)


def streamed(schedule: Schedule, weights: TorchWeights, rounded_kept: bool = True) -> tuple[TorchWeights, TorchWeights]:
    """The weights that the schedule's stream stands for: exactly (f32 where quantised), and rounded to bf16.

    Both are `weights` itself when the stream is all bf16. The exact matrices would take twice the memory of the
    weights, so each is made when it is asked for, which takes as long as reading it. rounded_kept: the rounded ones are
    not, unless the weights themselves are drawn.
    """
    stream = schedule.streams[0]
    coded = [name for name in MATRICES if any(chunk.format != "bf16" for chunk in stream.kinds(name))]
    if not coded:
        return weights, weights
    exact, rounded = dict(weights.matrices), dict(weights.matrices)
    for name in coded:
        layers = weights.matrices[name]
        exact[name] = Drawn(partial(_values_of, stream, name, layers), len(layers))
        drawn = Drawn(partial(_rounded_of, exact[name]), len(layers))
        rounded[name] = list(drawn) if rounded_kept and not isinstance(layers, Drawn) else drawn
    return replace(weights, matrices=exact), replace(weights, matrices=rounded)
