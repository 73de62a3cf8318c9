"""The launch constants other than the streamed weights: embedding, norms, biases, rotary table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.schedule_ir.bfloat import F32, Bits, to_bf16_bits
from amk.schedule_ir.model_spec import ModelSpec
from amk.schedule_ir.rope import rope_frequencies
from amk.schedule_ir.row_groups import TensorSource
from amk.schedule_ir.schedule import Schedule


def constants(schedule: Schedule, source: TensorSource) -> dict[str, NDArray[Any]]:
    """Content of every constant buffer that the model defines, in the buffer's shape: float32, bf16 as its bits.

    The packed weights, and the request and the prompt, which belong to a launch, are not among them.
    """
    makers: dict[str, Callable[[], NDArray[Any]]] = {
        "embedding": lambda: embedding(schedule.model, source),
        "norm": lambda: norms(schedule.model, source),
        "rope": lambda: rope_table(schedule.model, schedule.kv.context),
        "qkv_bias": lambda: qkv_bias(schedule.model, source),
        "q_norm": lambda: head_norms(schedule.model, source, "q_norm"),
        "k_norm": lambda: head_norms(schedule.model, source, "k_norm"),
    }
    return {b.name: makers[b.name]() for b in schedule.buffers if b.role == "constant" and b.name in makers}


def embedding(model: ModelSpec, source: TensorSource) -> Bits:
    """bf16 bits [vocab, hidden]."""
    out = np.empty((model.vocab, model.hidden), np.uint16)
    step = max(1, (1 << 22) // model.hidden)
    for row in range(0, model.vocab, step):
        out[row : row + step] = to_bf16_bits(source.tensor("embed", slice(row, min(row + step, model.vocab))))
    return out


def norms(model: ModelSpec, source: TensorSource) -> F32:
    """f32 [2 * layers + 1, hidden]: before attention and before the MLP of each layer in turn, then the final one."""
    names = [f"l{layer}.{part}_norm" for layer in range(model.layers) for part in ("attn", "ffn")]
    return np.stack([source.tensor(name) for name in (*names, "final_norm")])


def rope_table(model: ModelSpec, context: int) -> F32:
    """f32 [context, head_dim]: cosines, then sines, of the head_dim / 2 angles; angles are computed in float64."""
    angles = np.arange(context, dtype=np.float64)[:, None] * rope_frequencies(model)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def qkv_bias(model: ModelSpec, source: TensorSource) -> F32:
    """f32 [layers, q_dim + 2 * kv_dim]."""
    rows = [np.concatenate([source.tensor(f"l{layer}.b{x}") for x in "qkv"]) for layer in range(model.layers)]
    return np.stack(rows)


def head_norms(model: ModelSpec, source: TensorSource, name: str) -> F32:
    """f32 [layers, head_dim]."""
    return np.stack([source.tensor(f"l{layer}.{name}") for layer in range(model.layers)])
