"""The weight matrices of a decode step and how their rows map to checkpoint tensors.

Rows are grouped by 8 (one tensor-core tile). gate_up interleaves 4 gate and 4 up rows in each group so that SwiGLU
finds both halves in one worker. Rows and columns are padded with zeros to whole chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from amk.schedule_ir.model_spec import ModelSpec

MatrixName = Literal["qkv", "o", "gate_up", "down", "lm_head"]
MATRICES: tuple[MatrixName, ...] = ("qkv", "o", "gate_up", "down", "lm_head")
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
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    match name:
        case "qkv":
            return Matrix(name, q + 2 * kv, model.hidden)
        case "o":
            return Matrix(name, model.hidden, q)
        case "gate_up":
            return Matrix(name, 2 * model.ffn, model.hidden)
        case "down":
            return Matrix(name, model.hidden, model.ffn)
        case "lm_head":
            return Matrix(name, model.vocab, model.hidden, per_layer=False)


def share_table(name: MatrixName) -> str:
    """The name of the tables that say which row groups of the matrix a worker owns, without `.first` or `.count`."""
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
    first = group * ROWS_PER_GROUP
    if name == "gate_up":
        half = first // 2
        return [
            (f"l{layer}.w_gate", half, min(4, model.ffn - half)),
            (f"l{layer}.w_up", half, min(4, model.ffn - half)),
        ]
    if name != "qkv":
        tensor = "lm_head" if name == "lm_head" else f"l{layer}.w{'o' if name == 'o' else '_down'}"
        return [(tensor, first, min(ROWS_PER_GROUP, matrix(model, name).rows - first))]
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    runs: list[tuple[str, int, int]] = []
    for tensor, start, rows in (("wq", 0, q), ("wk", q, kv), ("wv", q + kv, kv)):
        lo, hi = max(first, start), min(first + ROWS_PER_GROUP, start + rows)
        if lo < hi:
            runs.append((f"l{layer}.{tensor}", lo - start, hi - lo))
    return runs
