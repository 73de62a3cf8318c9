"""Packing on the GPU: the order of amk.schedule_ir.packing, for weights that torch already holds there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from amk.bench.torch_model import TorchWeights
from amk.schedule_ir.layout import StreamLayout, stream_layout
from amk.schedule_ir.matrices import ROWS_PER_GROUP, MatrixName, matrix
from amk.schedule_ir.schedule import Schedule


def packed_weights(schedule: Schedule, weights: TorchWeights) -> Tensor:
    """The packed weight buffer, bf16 [chunks, 8 * chunk_k], on the weights' device."""
    (stream,) = schedule.streams
    layout = stream_layout(schedule, stream)
    width = stream.chunk_k
    out = torch.zeros(
        (int(layout.totals.sum()), ROWS_PER_GROUP * width), dtype=torch.bfloat16, device=weights.embedding.device
    )
    for name, layer, places in chunk_places(schedule, layout, width):
        rows = weights.matrices[name][layer]
        if name == "gate_up":
            rows = rows.view(2, -1, ROWS_PER_GROUP // 2, rows.shape[1]).transpose(0, 1).reshape(rows.shape)
        groups = matrix(schedule.model, name).groups
        padded = torch.zeros((groups * ROWS_PER_GROUP, rows.shape[1]), dtype=rows.dtype, device=rows.device)
        padded[: rows.shape[0]] = rows
        tiles = padded.view(groups, ROWS_PER_GROUP, -1, width // 32, 32).permute(0, 2, 3, 1, 4)
        out[torch.from_numpy(places).to(rows.device)] = tiles.reshape(-1, ROWS_PER_GROUP * width)
    return out


def chunk_places(
    schedule: Schedule, layout: StreamLayout, width: int
) -> Iterator[tuple[MatrixName, int, NDArray[np.int64]]]:
    """(matrix, layer, packed index of each of its group-major chunks) for every drain of a token."""
    done = np.zeros_like(layout.totals)
    for name, layer in layout.drains:
        counts = layout.counts[name]
        starts = (layout.base + done).reshape(-1)
        sizes = counts.reshape(-1)
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        done += counts
        yield name, layer, np.repeat(starts, sizes) + within
