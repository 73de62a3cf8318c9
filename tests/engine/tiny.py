"""Small random models and small targets, for tests that execute schedules."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import BF16, Formats, Layered
from amk.planner.settings import Settings
from amk.schedule_ir.schedule import CacheDtype, Schedule
from amk.targets.target import load_target
from amk.weights.bfloat import round_bf16
from tests.reference.codes import nearest_e4m3
from tests.reference.llama_numpy import Config, Decoder

TINY: dict[str, Any] = {
    "name": "tiny",
    "source": "made up for tests",
    "layers": 2,
    "hidden": 64,
    "ffn": 96,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 32,
    "vocab": 83,
    "max_context": 64,
    "rms_eps": 1e-5,
    "rope_theta": 1e4,
}


NEOX: dict[str, Any] = {
    "family": "gpt_neox", "kv_heads": 4, "qkv_bias": True, "activation": "gelu", "parallel": True, "rotary_dim": 8,
}  # fmt: skip
"""LayerNorm, attention and MLP beside each other, heads rotated in part, GELU."""


def tiny_model(**changes: Any) -> ModelSpec:
    return ModelSpec(**(TINY | changes))


def tiny_plan(
    model: ModelSpec, *, workers: int = 4, context: int = 48, weights: Formats | Layered = BF16, **settings: Any
) -> Schedule:
    chosen = {"warps": 4, "chunk_bytes": 512, "kv_block": 8, "max_tokens": 32, "slots": 4} | settings
    settled = Settings(**chosen)
    return plan(model, load_target("h200"), settings=settled, formats=weights, max_context=context, workers=workers)


class RandomTensors:
    """Every tensor of a model, drawn once; matrices and the embedding are bf16 values, the rest float32."""

    def __init__(self, model: ModelSpec, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        own = model.layer_tensors()
        layer = sorted(own, key=lambda name: name in ("bq", "bk", "bv", "q_norm", "k_norm"))  # those not all have last
        shapes = model.global_tensors() | {f"l{i}.{name}": own[name] for i in range(model.layers) for name in layer}
        self.arrays: dict[str, NDArray[np.float32]] = {}
        for name, shape in shapes.items():
            values = draw.standard_normal(shape).astype(np.float32)
            if name.endswith("norm"):
                self.arrays[name] = 1 + values / 4
            elif len(shape) == 2:
                self.arrays[name] = round_bf16(values if name == "embed" else values * 2 / np.sqrt(shape[1]))
            else:
                self.arrays[name] = values / 2

    def tensor(self, name: str, rows: slice = slice(None)) -> NDArray[np.float32]:
        if name == "lm_head" and name not in self.arrays:
            name = "embed"
        return self.arrays[name][rows].copy()


def reference_decoder(
    model: ModelSpec, arrays: dict[str, NDArray[np.float32]], kv_dtype: CacheDtype = "bf16"
) -> Decoder:
    """The independent decoder; a bf16 cache is kept in float32, as the interpreter's exact numerics do."""
    config = Config(
        layers=model.layers, heads=model.heads, kv_heads=model.kv_heads, head_dim=model.head_dim,
        rms_eps=model.rms_eps, rope_theta=model.rope_theta,
    )  # fmt: skip
    return Decoder(config, arrays, kept=nearest_e4m3 if kv_dtype == "fp8" else np.asarray)
