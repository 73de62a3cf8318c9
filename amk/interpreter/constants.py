"""The launch constants other than the streamed weights: embedding, norms, biases, rotary table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.models.matrices import bias_buffer, vectors
from amk.models.model_spec import ModelSpec
from amk.models.rope import rope_frequencies
from amk.models.row_groups import BitsSource, TensorSource
from amk.schedule_ir.schedule import Schedule
from amk.weights.bfloat import F32, Bits, to_bf16_bits


def constants(schedule: Schedule, source: TensorSource) -> dict[str, NDArray[Any]]:
    """Content of every constant buffer that the model defines, in the buffer's shape: float32, bf16 as its bits.

    The packed weights, and the request and the prompt, which belong to a launch, are not among them.
    """
    model = schedule.model
    makers: dict[str, Callable[[], NDArray[Any]]] = {
        "embedding": lambda: embedding(model, source),
        "rope": lambda: rope_table(model, schedule.kv.context),
        **{name: partial(vector, model, source, name) for name in vectors(model)},
    }
    return {b.name: makers[b.name]() for b in schedule.buffers if b.role == "constant" and b.name in makers}


def embedding(model: ModelSpec, source: TensorSource) -> Bits:
    """bf16 bits [vocab, hidden]; those of the file itself, if it stores them."""
    if isinstance(source, BitsSource) and (stored := source.bits("embed", slice(None))) is not None:
        return stored
    out = np.empty((model.vocab, model.hidden), np.uint16)
    step = max(1, (1 << 22) // model.hidden)
    for row in range(0, model.vocab, step):
        out[row : row + step] = to_bf16_bits(source.tensor("embed", slice(row, min(row + step, model.vocab))))
    return out


def vector(model: ModelSpec, source: TensorSource, name: str) -> F32:
    """The constant `name` of `vectors(model)`: a row for every norm of the model in turn, or for every layer."""
    graph = model.graph
    if name in ("norm", "norm_shift"):
        each = [norm.weight if name == "norm" else norm.shift for norm in graph.norms]
        last = graph.final_norm.weight if name == "norm" else graph.final_norm.shift
        assert last is not None
        names = [f"l{layer}.{tensor.name}" for layer in range(model.layers) for tensor in each if tensor is not None]
        # Without the output head no norm follows: the last row weighs what nobody multiplies.
        behind = source.tensor(last.name) if model.has_head else np.ones(model.hidden, np.float32)
        return np.stack([*(source.tensor(each) for each in names), behind])
    heads = {"q_norm": graph.attention.q_norm, "k_norm": graph.attention.k_norm}.get(name)
    biases = {bias_buffer(matrix): product.biases for matrix, product in graph.products.items()}
    parts = biases[name] if heads is None else (heads,)
    return np.stack(
        [np.concatenate([source.tensor(f"l{n}.{tensor.name}") for tensor in parts]) for n in range(model.layers)]
    )


def rope_table(model: ModelSpec, context: int) -> F32:
    """f32 [context, head_dim]: cosines, then sines, of the head_dim / 2 angles; angles are computed in float64."""
    angles = np.arange(context, dtype=np.float64)[:, None] * rope_frequencies(model)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
