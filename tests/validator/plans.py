"""Small plans that the validator tests share."""

import json
from dataclasses import replace

from amk.adversary.recipe import TINY
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.settings import FAST, PHASED, Settings
from amk.schedule_ir.codec import parse_schedule
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target

SMALL = {
    "fast": replace(FAST, warps=4, kv_block=8),
    "naive": replace(PHASED, warps=4, kv_block=8),
    "heads": replace(PHASED, warps=4, kv_block=8, wide_epilogue=64, head_handoff=True),
    "two-warps": replace(FAST, warps=2, kv_block=4, wide_epilogue=8),
    "drawing": replace(FAST, warps=2, kv_block=8, sampling="top-k-top-p"),
}
MODELS: dict[str, ModelSpec] = {
    "plain": TINY,
    "qk-norm": TINY.model_copy(update={"qk_norm": True, "layers": 1}),
    "bias": TINY.model_copy(update={"qkv_bias": True, "heads": 2}),
    "ragged": TINY.model_copy(update={"vocab": 101, "ffn": 160, "hidden": 96, "layers": 1}),
    "deep": TINY.model_copy(update={"layers": 5}),
}


def small_plan(settings: Settings = SMALL["fast"], model: ModelSpec = TINY, workers: int = 4) -> Schedule:
    return plan(model, load_target("h200"), settings=settings, workers=workers)


def from_document(document: object) -> Schedule:
    return parse_schedule(json.dumps(document).encode(), "test")[0]
