"""Row groups of the weight matrices, assembled from the tensors of a source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from amk.models.matrices import ROWS_PER_GROUP, MatrixName, matrix, row_runs
from amk.models.model_spec import ModelSpec
from amk.weights.bfloat import F32, Bits, to_bf16_bits
from amk.weights.quantised import Bytes, Quantised, Quantiser
from amk.weights.weight_format import WeightFormat


class TensorSource(Protocol):
    """Rows of a named tensor as float32; a checkpoint is one."""

    def tensor(self, name: str, rows: slice = ...) -> F32: ...


@runtime_checkable
class CodedSource(Protocol):
    """A source whose layer matrices are codes already, in one format."""

    @property
    def form(self) -> WeightFormat: ...
    def codes(self, name: str, rows: slice) -> Quantised: ...


@runtime_checkable
class BitsSource(Protocol):
    """A source that may store rows in bf16: their bits, or None."""

    def bits(self, name: str, rows: slice) -> Bits | None: ...


@runtime_checkable
class StoredSource(BitsSource, Protocol):
    """One whose rows can be taken whatever their values are: their bits as they are stored in bf16, or None."""

    def stored_bits(self, name: str, rows: slice) -> Bits | None: ...


Fetch = Callable[[str, slice], NDArray[Any]]
"""Rows of a named tensor, [rows, width of the tensor]."""


def group_rows(source: TensorSource, model: ModelSpec, name: MatrixName, layer: int, first: int, last: int) -> F32:
    """Row groups [first, last) of a matrix, f32 [last - first, 8, k]; rows past the matrix's end are zero."""
    return _groups(source.tensor, model, name, layer, first, last)


def group_bits(source: TensorSource, model: ModelSpec, name: MatrixName, layer: int, first: int, last: int) -> Bits:
    """As `group_rows`, rounded to bf16, its bits: as they are stored, where that is bf16."""
    stored = source.bits if isinstance(source, BitsSource) else None

    def fetch(tensor: str, rows: slice) -> Bits:
        found = stored(tensor, rows) if stored else None
        return to_bf16_bits(source.tensor(tensor, rows)) if found is None else found

    return _groups(fetch, model, name, layer, first, last)


def quantised_groups(
    source: TensorSource,
    model: ModelSpec,
    name: MatrixName,
    layer: int,
    groups: range,
    form: WeightFormat,
    quantise: Quantiser,
) -> Quantised:
    """The codes of row groups, len(groups) * 8 rows: the source's own if it has them in this format."""
    if not (isinstance(source, CodedSource) and source.form == form and name != "lm_head"):
        rows = group_rows(source, model, name, layer, groups.start, groups.stop)
        return quantise(rows.reshape(-1, rows.shape[2]), form)
    coded, k = source, matrix(model, name).k
    scales = form.groups(k)

    def fetch(tensor: str, rows: slice) -> Bytes:
        """Codes, scales and zeros of a row side by side, as bytes."""
        found = coded.codes(tensor, rows)
        parts = [found.codes, np.ascontiguousarray(found.scales).view(np.uint8)]
        return np.concatenate(parts if found.zeros is None else [*parts, found.zeros], axis=1)

    joined = _groups(fetch, model, name, layer, groups.start, groups.stop).reshape(len(groups) * ROWS_PER_GROUP, -1)
    zeros = joined[:, k + 2 * scales :] if form.zeros else None
    return Quantised(joined[:, :k], np.ascontiguousarray(joined[:, k : k + 2 * scales]).view(np.float16), zeros)


def rows_of_groups(model: ModelSpec, name: MatrixName, layer: int, first: int, last: int) -> list[tuple[str, int, int]]:
    """(tensor, first row, end row) of row groups [first, last) of a matrix: tensors whose rows take turns have equally
    many in every group, the rows of others follow each other."""
    product = model.graph.products[name]
    if not product.in_turn:
        end = min(last * ROWS_PER_GROUP, matrix(model, name).rows)
        return row_runs(model, name, layer, first * ROWS_PER_GROUP, end)
    each = ROWS_PER_GROUP // len(product.rows)
    end = min(last * each, model.shape_of(product.rows[0])[0])
    return [(f"l{layer}.{tensor.name}", first * each, end) for tensor in product.rows]


def _groups(fetch: Fetch, model: ModelSpec, name: MatrixName, layer: int, first: int, last: int) -> NDArray[Any]:
    """[last - first, 8, width]; rows past the matrix's end are zero."""
    pieces = [fetch(tensor, slice(a, b)) for tensor, a, b in rows_of_groups(model, name, layer, first, last)]
    if model.graph.products[name].in_turn:
        return _in_turn(pieces, last - first)
    if padding := (last - first) * ROWS_PER_GROUP - sum(map(len, pieces)):
        pieces.append(np.zeros((padding, pieces[0].shape[1]), pieces[0].dtype))
    rows = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    return rows.reshape(last - first, ROWS_PER_GROUP, rows.shape[1])


def _in_turn(parts: list[NDArray[Any]], groups: int) -> NDArray[Any]:
    """Equal numbers of rows of every tensor in every group."""
    each, (rows, width) = ROWS_PER_GROUP // len(parts), parts[0].shape
    whole = rows // each
    out = np.zeros((groups, len(parts), each, width), parts[0].dtype)
    for place, part in enumerate(parts):
        out[:whole, place] = part[: whole * each].reshape(whole, each, width)
        if whole < groups:
            out[whole, place, : rows - whole * each] = part[whole * each :]
    return out.reshape(groups, ROWS_PER_GROUP, width)
