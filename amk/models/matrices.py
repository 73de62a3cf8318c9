"""The weight matrices of a decode step and how their rows map to checkpoint tensors.

Rows are grouped by 8 (one tensor-core tile). Which tensors are the rows of a matrix is said by the model's graph. Where
they take turns (gate and up), a group has as many rows of each, so that SwiGLU finds both halves in one worker. Rows
and columns are padded with zeros to whole chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from amk.models.graph import MATRICES as MATRICES
from amk.models.graph import MatrixName as MatrixName
from amk.models.model_spec import ModelSpec
from amk.weights.weight_format import FormatName

ROWS_PER_GROUP = 8


@dataclass(frozen=True)
class Matrix:
    """rows x k elements, logical (unpadded); per_layer is False for lm_head."""

    name: MatrixName
    rows: int
    k: int
    per_layer: bool = True

    @property
    def groups(self) -> int:
        return -(-self.rows // ROWS_PER_GROUP)

    def k_chunks(self, chunk_k: int) -> int:
        return -(-self.k // chunk_k)


def matrix(model: ModelSpec, name: MatrixName) -> Matrix:
    """One that a slice of the model does not multiply has no rows."""
    shapes = [model.shape_of(tensor) for tensor in model.graph.products[name].rows]
    rows = sum(shape[0] for shape in shapes) if name in matrices_of(model) else 0
    return Matrix(name, rows, shapes[0][1], per_layer=name != "lm_head")


def matrices_of(model: ModelSpec) -> tuple[MatrixName, ...]:
    """Those that a step of the model multiplies: all, or in a slice those of its layers, if any, and of its head."""
    return tuple(name for name in MATRICES if (model.has_head if name == "lm_head" else model.layers > 0))


ADDED: tuple[Literal["o"], Literal["down"]] = "o", "down"
"""Matrices whose rows are added to the hidden state: their columns may be divided among workers."""
K_SPLIT = "k_split"
"""Tables of a product whose columns are divided among workers with the same rows: `.first` and `.count` row groups, of
the columns' share number `.index`."""


def share_table(name: MatrixName, k_splits: int = 1) -> str:
    """The name of the tables that say which row groups of the matrix a worker owns, without `.first` or `.count`."""
    if k_splits > 1:
        return K_SPLIT
    return "hidden" if name in ("o", "down") else name


def scale_buffer(name: MatrixName) -> str:
    """The constant with the scales of a matrix's rows that stand apart from its chunks, f32 `scale_shape`."""
    return f"scales.{name}"


def scale_shape(model: ModelSpec, name: MatrixName) -> tuple[int, int]:
    """[layers (1 for lm_head), rows padded to whole groups]."""
    shape = matrix(model, name)
    return model.layers if shape.per_layer else 1, shape.groups * ROWS_PER_GROUP


def tensor_rows(model: ModelSpec, name: MatrixName, layer: int, group: int) -> list[tuple[str, int, int]]:
    """(tensor, first row, row count) runs that make up row group `group`, in packed order; the rest is zero padding."""
    product = model.graph.products[name]
    if product.in_turn:
        each = ROWS_PER_GROUP // len(product.rows)
        most = model.shape_of(product.rows[0])[0]
        return [(f"l{layer}.{t.name}", group * each, min(each, most - group * each)) for t in product.rows]
    first = group * ROWS_PER_GROUP
    return [(t, lo, hi - lo) for t, lo, hi in row_runs(model, name, layer, first, first + ROWS_PER_GROUP)]


def row_runs(model: ModelSpec, name: MatrixName, layer: int, first: int, end: int) -> list[tuple[str, int, int]]:
    """(tensor, first row, end row) of logical rows [first, end) of a matrix whose tensors follow each other."""
    runs, start = [], 0
    for tensor in model.graph.products[name].rows:
        stop = start + model.shape_of(tensor)[0]
        lo, hi = max(first, start), min(end, stop)
        if lo < hi:
            runs.append((tensor.name if name == "lm_head" else f"l{layer}.{tensor.name}", lo - start, hi - start))
        start = stop
    return runs


def bias_buffer(name: MatrixName) -> str:
    """The constant with the biases of a matrix's rows, f32 [layers, rows]."""
    return f"{name}_bias"


def vectors(model: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The constants that are norms and biases, f32, with their shapes."""
    graph, layers = model.graph, model.layers
    norms = len(graph.norms) * layers + 1, model.hidden
    found: dict[str, tuple[int, ...]] = {"norm": norms}
    if graph.final_norm.shift is not None:
        found["norm_shift"] = norms
    for name in matrices_of(model):
        if graph.products[name].biases:
            found[bias_buffer(name)] = (layers, matrix(model, name).rows)
    if graph.attention.q_norm is not None and layers:
        found |= {"q_norm": (layers, model.head_dim), "k_norm": (layers, model.head_dim)}
    return found


LAYERED = "layered"
"""In place of a label where formats differ between layers."""


def label(formats: Mapping[MatrixName, FormatName]) -> str:
    """A short name of a choice of formats: the one, the layers' and lm_head's, or 'mixed'."""
    layers = {form for name, form in formats.items() if name != "lm_head"}
    if len(layers) > 1:
        return "mixed"
    (one,) = layers
    return one if formats["lm_head"] == one else f"{one}-head-{formats['lm_head']}"
