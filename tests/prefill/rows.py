"""Plans with weights of every format, and what their matrices stand for, computed from the tensors and not from the
packed bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.models.matrices import MatrixName
from amk.models.model_spec import ModelSpec
from amk.planner.formats import Formats, formats
from amk.schedule_ir.schedule import Schedule
from amk.weights.quantised import nearest
from tests.engine.tiny import NEOX, tiny_model
from tests.reference.codes import numbers

WIDE = {"workers": 5, "warps": 8, "chunk_bytes": 1024}
PACKED: dict[str, tuple[ModelSpec, Formats, dict[str, Any]]] = {
    "bf16, ragged": (tiny_model(hidden=96, heads=3, kv_heads=1, ffn=160), formats("bf16"), {}),
    "bf16, down in two parts": (tiny_model(ffn=128), formats("bf16"), {"act_parts": 2, "workers": 5, "warps": 8}),
    "bf16, six tiles a chunk": (
        tiny_model(hidden=192, heads=6, ffn=192),
        formats("bf16"),
        WIDE | {"chunk_bytes": 4096},
    ),
    "bf16, sixteen tiles a chunk": (
        tiny_model(hidden=512, head_dim=128, ffn=512),
        formats("bf16"),
        WIDE | {"chunk_bytes": 8192},
    ),
    "int8": (tiny_model(qkv_bias=True, ffn=160), formats("int8"), WIDE),
    "int8, rows of 360 bytes": (tiny_model(ffn=180), formats("int8"), WIDE),
    "int8 in groups": (tiny_model(ffn=160), formats("int8-g64"), WIDE),
    "int4": (tiny_model(ffn=160), formats("int4-g64"), WIDE),
    "int4 with zeros": (tiny_model(), formats("int4-g128-zp"), WIDE),
    "fp8": (tiny_model(ffn=160), formats("fp8"), WIDE),
    "fp8, scales apart": (tiny_model(ffn=160), formats("fp8"), WIDE | {"scales_apart": True}),
    "without a gate": (tiny_model(**NEOX), formats("bf16"), {}),
}
"""A model, formats of its weights and settings of a plan, for every way in which chunks are packed."""


def stored_rows(schedule: Schedule, source: Any, name: MatrixName, layer: int) -> NDArray[np.float32]:
    """f32 [rows, k], the tensors of a matrix below each other."""
    tensors, of = schedule.model.graph.products[name].rows, "" if name == "lm_head" else f"l{layer}."
    rows = np.concatenate([source.tensor(f"{of}{tensor.name}") for tensor in tensors])
    form = schedule.streams[0].chunk(name, layer).weights
    if form.codes == "bf16":
        return rows
    codes = nearest(rows, form)
    found = numbers(form.codes, form.group, codes.codes, codes.scales, codes.zeros).astype(np.float32)
    assert np.abs(found - rows).max() > 0, "quantising changes something"
    return found
