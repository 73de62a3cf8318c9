"""Weight streams taken whole: tiles come straight from the logical matrices, a gemv share is a few matrix products.

For schedules whose streams are proved; the packed order plays no part here. GemvOp.reference stays the definition:
`gemv_share` computes the same sums, added in another order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.interpreter.memory import View
from amk.models.matrices import ROWS_PER_GROUP, MatrixName, matrix
from amk.models.model_spec import ModelSpec
from amk.models.row_groups import TensorSource, group_rows, quantised_groups
from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Stream
from amk.schedule_ir.ops.base import Geometry, own_sums, owned_groups
from amk.schedule_ir.ops.gemv import GemvOp
from amk.weights.bfloat import F32, from_bf16_bits, round_bf16, to_bf16_bits
from amk.weights.quantised import Quantiser, dequantised, nearest
from amk.weights.weight_format import weight_format

WIDE_ELEMENTS = 1 << 28
"""Models up to this many streamed weights are kept as float32 (1 GiB), larger ones, where in bf16, as bf16."""


class LogicalWeights:
    """The matrices of a model as the stream holds them, padded to whole row groups, read from the source when first
    needed. Without a stream: in bf16.
    """

    def __init__(
        self, model: ModelSpec, source: TensorSource, stream: Stream | None = None, quantise: Quantiser = nearest
    ) -> None:
        self._model, self._source, self._stream, self._quantise = model, source, stream, quantise
        per_layer = sum(matrix(model, n).rows * matrix(model, n).k for n in ("qkv", "o", "gate_up", "down"))
        self._wide = per_layer * model.layers + model.vocab * model.hidden <= WIDE_ELEMENTS
        self._matrices: dict[tuple[MatrixName, int], NDArray[Any]] = {}

    def rows(self, name: MatrixName, layer: int, first: int, last: int) -> F32:
        """Row groups [first, last): f32 [(last - first) * 8, k]."""
        kept = self._matrices.get((name, layer))
        if kept is None:
            kept = self._matrices[name, layer] = self._load(name, layer)
        part = kept[first * ROWS_PER_GROUP : last * ROWS_PER_GROUP]
        return from_bf16_bits(part) if part.dtype == np.uint16 else part

    def _load(self, name: MatrixName, layer: int) -> NDArray[Any]:
        shape = matrix(self._model, name)
        form = self._stream.chunk(name, layer).weights if self._stream else weight_format("bf16")
        wide = self._wide or not form.plain
        out = np.empty((shape.groups * ROWS_PER_GROUP, shape.k), np.float32 if wide else np.uint16)
        step = max(1, (1 << 22) // (shape.k * ROWS_PER_GROUP))
        for first in range(0, shape.groups, step):
            last = min(first + step, shape.groups)
            here = slice(first * ROWS_PER_GROUP, last * ROWS_PER_GROUP)
            if not form.plain:
                groups = range(first, last)
                codes = quantised_groups(self._source, self._model, name, layer, groups, form, self._quantise)
                out[here] = dequantised(codes, form)
                continue
            rows = group_rows(self._source, self._model, name, layer, first, last).reshape(-1, shape.k)
            out[here] = round_bf16(rows) if wide else to_bf16_bits(rows)
        return out

    def tile(self, name: MatrixName, layer: int, group: int, k_chunk: int, chunk_k: int) -> F32:
        """f32 [8, chunk_k], zero padded."""
        rows = self.rows(name, layer, group, group + 1)[:, k_chunk * chunk_k : (k_chunk + 1) * chunk_k]
        return np.pad(rows, ((0, 0), (0, chunk_k - rows.shape[1])))


def gemv_share(op: GemvOp, env: Env, geo: Geometry, view: View, weights: LogicalWeights) -> None:
    """What op.reference does, with one product for all whole row groups of the share and one for each ragged end."""
    lo, hi, k_chunks = op.share(env, geo)
    if lo == hi:
        return
    layer, first = env.eval_int(op.layer), owned_groups(env, op.matrix, op.k_splits)[0]
    width, (begin, size) = geo.columns(op.stream, op.matrix, layer), op.columns(env, geo)
    each = geo.streams[op.stream].row_groups
    for lower, upper, c0, c1 in _pieces(lo, hi, k_chunks):
        group, end = lower * each, upper * each
        k0, k1 = c0 * width, min(c1 * width, size)
        rows = weights.rows(op.matrix, layer, first + group, first + end)
        own = rows[:, begin + k0 : begin + k1]
        # One product a sequence: the sums are those of the sequence alone, whatever else is in the batch.
        sums = [own @ op.read_x(geo, view, k0, k1, s) for s in range(geo.vectors)]
        slots = np.stack(sums).reshape(geo.vectors, -1, ROWS_PER_GROUP).transpose(1, 0, 2)
        at = own_sums(env, geo, op.part) + (group + int(env.agent) * each) * ROWS_PER_GROUP * geo.vectors
        before = view.read(op.part, at, at + slots.size) if op.k_part else np.float32(0)
        view.write(op.part, at, before + slots.reshape(-1))


def _pieces(lo: int, hi: int, k_chunks: int) -> list[tuple[int, int, int, int]]:
    """(row, end row, first column, end column) rectangles of chunks [lo, hi) in the order of rows of chunks."""
    (g0, c0), (g1, c1) = divmod(lo, k_chunks), divmod(hi, k_chunks)
    if g0 == g1:
        return [(g0, g0 + 1, c0, c1)]
    pieces = []
    if c0:
        pieces.append((g0, g0 + 1, c0, k_chunks))
        g0 += 1
    if g0 < g1:
        pieces.append((g0, g1, 0, k_chunks))
    if c1:
        pieces.append((g1, g1 + 1, 0, c1))
    return pieces
