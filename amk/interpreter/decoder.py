"""A decoder layer in plain numpy, float32, by the model's graph: what the plain forward passes have in common."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from amk.models.graph import Attention, Norm, Product
from amk.models.model_spec import ModelSpec
from amk.schedule_ir.ops import OPS
from amk.weights.bfloat import F32

Multiply = Callable[[F32, tuple[str, ...]], F32]
"""x [tokens, in] times matrices [out, in], given by name, one below the other: [tokens, out in all]."""
Vector = Callable[[str], F32]
"""A norm or bias by name."""
Attend = Callable[[F32], F32]
"""Rows of q, k and v of the tokens, [tokens, q_dim + 2 * kv_dim] -> what attention makes of them, [tokens, q_dim]."""


def layer_output(model: ModelSpec, layer: int, x: F32, multiply: Multiply, vector: Vector, attend: Attend) -> F32:
    """The hidden state [tokens, hidden] that layer `layer` makes of x."""
    graph, place = model.graph, f"l{layer}."
    states, values = [x], dict[str, F32]()
    for node in graph.nodes:
        if isinstance(node, Attention):
            values["attn"] = attend(values["qkv"])
            continue
        if isinstance(node.reads, Norm):
            inputs = normed(model, node.reads, states[node.reads.reads], vector, place)
        else:
            inputs = values[node.reads]
        output = multiply(inputs, tuple(place + tensor.name for tensor in node.rows))
        if node.biases:
            output += np.concatenate([vector(place + tensor.name) for tensor in node.biases])
        if node.then == "residual":
            states.append(states[-1] + output)
        else:
            values["qkv" if node.then == "rows" else "act"] = output if node.then == "rows" else activated(node, output)
    return states[-1]


def normed(model: ModelSpec, norm: Norm, x: F32, vector: Vector, place: str = "") -> F32:
    """The norm of x, [tokens, hidden]."""
    if norm.shift is not None:
        centred = np.asarray(x - np.mean(x, axis=-1, keepdims=True), np.float32)
        return unit(model, centred) * vector(place + norm.weight.name) + vector(place + norm.shift.name)
    return unit(model, x) * vector(place + norm.weight.name)


def unit(model: ModelSpec, x: F32) -> F32:
    """x at root mean square 1 along its last axis."""
    mean = np.mean(np.square(x), axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(mean + np.float32(model.rms_eps)), np.float32)


def activated(node: Product, x: F32) -> F32:
    """What the MLP makes of its first product, [tokens, ffn] of [tokens, rows]."""
    return OPS[node.taken_by].activated(x, dict(node.settings))


def heads_of(model: ModelSpec, layer: int, joint: F32, vector: Vector) -> tuple[F32, F32, F32]:
    """q, k and v of the joint rows, [tokens, heads, head_dim] each, with the norms of heads that the model has."""
    split = np.split(joint, [model.q_dim, model.q_dim + model.kv_dim], axis=1)
    q, k, v = (part.reshape(len(joint), -1, model.head_dim) for part in split)
    attention = model.graph.attention
    if attention.q_norm is not None and attention.k_norm is not None:
        q = unit(model, q) * vector(f"l{layer}.{attention.q_norm.name}")
        k = unit(model, k) * vector(f"l{layer}.{attention.k_norm.name}")
    return q, k, v


def rotated(x: F32, turn: tuple[F32, F32]) -> F32:
    """x [tokens, heads, head_dim] with every pair (i, i + head_dim / 2) turned by its angle; turn: cosines and sines,
    [tokens, head_dim / 2].
    """
    cos, sin = turn[0][:, None], turn[1][:, None]
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
