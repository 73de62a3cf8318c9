"""Schedules whose neighbourhoods are searched: small, and together with everything that a schedule can say."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from amk.adversary.edits import Json, meeting
from amk.adversary.specialised import specialised
from amk.models.model_spec import LayerSlice, ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import BF16, Formats, Layered, formats
from amk.planner.settings import FAST, NAIVE, PHASED, Settings
from amk.targets.target import load_target

CONTEXT = 12
NEOX: dict[str, Any] = {
    "family": "gpt_neox", "kv_heads": 2, "qkv_bias": True, "activation": "gelu", "parallel": True, "rotary_dim": 8,
}  # fmt: skip
SMALLEST = ModelSpec(
    name="smallest", source="made for the neighbourhoods", layers=2, hidden=32, ffn=64, heads=2, kv_heads=1,
    head_dim=32, vocab=40, max_context=CONTEXT, rms_eps=1e-5, rope_theta=1e4,
)  # fmt: skip


def _small(
    settings: Settings, *, workers: int = 2, formats: Formats | Layered = BF16, gpu: str = "h200", **model: Any
) -> Json:
    """The plan with blocks of 4 positions, or of a step's rows, of which a head's cache has three."""
    block = max(CONTEXT // 3, settings.rows)
    settings = replace(settings, kv_block=block, max_tokens=CONTEXT, max_ring_bytes=min(settings.max_ring_bytes, 16384))
    spec = SMALLEST.model_copy(update={"max_context": 3 * block} | model)
    schedule = plan(spec, load_target(gpu), settings=settings, formats=formats, workers=workers, max_context=3 * block)
    return json.loads(schedule.model_dump_json())


MIXED = formats("int4-g128", "int8-g128") | {"o": "bf16", "down": "int8"}
TAGGED = replace(FAST, handoff="tagged", warps=2)
DRAWN = replace(TAGGED, sampling="top-k-top-p")


def _two_programs() -> Json:
    """Each of the two workers runs a program of its own."""
    document = _small(replace(PHASED, warps=2, wide_epilogue=4096))
    (program,) = document["programs"]
    return document | {"programs": [program | {"count": 1}, program | {"name": "second", "first": 1, "count": 1}]}


def _roomy(document: Json) -> Json:
    """Every counter has twice as many instances as are used, so that an index may name another one."""
    counters = [counter | {"shape": [2 * size for size in counter["shape"]]} for counter in document["counters"]]
    return document | {"counters": counters}


def _specialised(settings: Settings, workers: int) -> Json:
    """Each of four warps has ops of its own; barriers are of two or three of them."""
    settings = replace(settings, warps=1, kv_splits=1, overlay=False)
    return specialised(_small(settings, workers=workers, layers=1, heads=workers, kv_heads=workers))


def _own_counters() -> Json:
    """The warps of each of four workers meet before lm_head by a counter of their own, all behind the same threshold;
    a table of zeros is there for one that is not."""
    document = _roomy(_small(replace(PHASED, warps=2), layers=1, workers=4))
    (program,) = document["programs"]
    body = program["body"][1]["body"]
    place = next(n for n, node in enumerate(body) if node.get("op", {}).get("matrix") == "lm_head") - 1
    body[place : place + 1] = meeting("own", [{"worker": 1}], {"t": 2, "1": 2, "zero": 1})
    own: Json = {"name": "own", "shape": [8], "scope": "gpu", "handoff": "fenced", "init": 0}
    tables = document["tables"] | {"zero": [0, 0, 0, 0]}
    return document | {"tables": tables, "counters": [*document["counters"], own]}


SMALL_BASES: dict[str, Callable[[], Json]] = {
    "fenced": lambda: _small(replace(PHASED, warps=2)),
    "fenced, heads apart": lambda: _small(
        replace(PHASED, warps=2, wide_epilogue=4096, head_handoff=True), heads=4, kv_heads=2, layers=1
    ),
    "tagged": lambda: _small(TAGGED),
    "flags and fences, bias": lambda: _small(replace(FAST, handoff="narrow", warps=2), qkv_bias=True, layers=1),
    "drawing": lambda: _small(replace(DRAWN), layers=1),
    "drawing, fenced": lambda: _small(replace(PHASED, warps=2, sampling="top-p"), layers=1),
    "batch, parts of down": lambda: _small(
        replace(TAGGED, batch=2, k_parts=2, chunk_bytes=512), ffn=64, layers=1, workers=4
    ),
    "live batch": lambda: _small(replace(TAGGED, batch=2, live=True, reduce_from=2), layers=1, workers=4),
    "live batch, fenced, head norms": lambda: _small(
        replace(PHASED, warps=2, batch=2, live=True), layers=1, qk_norm=True
    ),
    "batch of codes": lambda: _small(replace(TAGGED, batch=2), formats=formats("int4-g128-zp", "int8"), layers=1),
    "int8, fp8 cache": lambda: _small(replace(TAGGED, kv_dtype="fp8"), formats=formats("int8", "int8-g64"), layers=1),
    "int4 with zeros": lambda: _small(
        TAGGED, formats=formats("int4-g64-zp", "int4-g128-zp"), layers=1, hidden=64, vocab=41, tied_embeddings=True
    ),
    "fp8, scales apart": lambda: _small(
        replace(PHASED, warps=2, scales_apart=True), formats=formats("fp8", "int4-g64"), layers=1
    ),
    "layers of two kinds": lambda: _small(
        replace(TAGGED), formats=((1, formats("int8-g64", "int8-g128")), (1, MIXED)), layers=2
    ),
    "two programs": _two_programs,
    "naive, head norms": lambda: _small(NAIVE, qk_norm=True, layers=1),
    "splits reduced": lambda: _small(
        replace(TAGGED, reduce_from=2, kv_splits=2), formats=formats("int8"), layers=1, hidden=64
    ),
    "batch, drawing": lambda: _small(replace(PHASED, warps=2, batch=2, sampling="top-k"), layers=1),
    "sm_80": lambda: _small(
        replace(FAST, handoff="mixed", warps=2, refill_early=True, pollers="all"), gpu="a100", layers=1
    ),
    "LayerNorm, parallel": lambda: _small(TAGGED, layers=1, **NEOX),
    "LayerNorm, one after the other, fenced": lambda: _small(
        replace(PHASED, warps=2), layers=1, **NEOX | {"parallel": False, "activation": "gelu-tanh"}
    ),
    "LayerNorm, two layers": lambda: _small(replace(TAGGED, handoff="mixed"), **NEOX),
    "refills held back": lambda: _small(
        replace(PHASED, warps=2, run_ahead=True, slots=2, held_refills=1.0, first_refills=0.5), layers=1
    ),
    "rows": lambda: _small(replace(TAGGED, rows=3), layers=1),
    "rows, fenced, norms and bias": lambda: _small(
        replace(PHASED, warps=2, rows=2), layers=1, heads=4, kv_heads=2, qk_norm=True, qkv_bias=True
    ),
    "rows, parts of down, sums in global memory": lambda: _small(
        replace(TAGGED, rows=4, k_parts=2, chunk_bytes=512, head_sums="global", pollers="all"),
        layers=1,
        workers=4,
    ),
    "rows that accept": lambda: _small(replace(TAGGED, rows=2, accepts=True), layers=1),
    "rows that accept, drawn, fenced": lambda: _small(
        replace(PHASED, warps=2, rows=2, accepts=True, sampling="temperature"), layers=1
    ),
    "sixteen rows": lambda: _small(replace(TAGGED, rows=16, handoff="mixed", head_sums="global"), layers=1),
    "rows, all in parts": lambda: _small(
        replace(FAST, handoff="mixed", warps=2, rows=8, chunk_bytes=512, x_parts=2, k_parts=2), layers=1, hidden=64
    ),
    "rows, columns divided": lambda: _small(
        replace(FAST, handoff="mixed", warps=2, rows=4, headless=True, chunk_bytes=512, k_splits=2), layers=1, workers=3
    ),
    "batch of codes, down in thirds": lambda: _small(
        replace(TAGGED, batch=2, k_parts=3), formats=formats("int8"), ffn=192, layers=1, workers=3
    ),
    "rows without output head": lambda: _small(replace(TAGGED, rows=2, headless=True), layers=1),
    "slice of layers": lambda: _small(TAGGED, layers=1, slice=LayerSlice(first=1, of=3)),
    "four layers, fenced, room": lambda: _roomy(_small(replace(PHASED, warps=2), layers=4)),
    "four layers, tagged, room": lambda: _roomy(_small(TAGGED, layers=4)),
    "three layers of each of two kinds, room": lambda: _roomy(
        _small(TAGGED, formats=((3, formats("int8-g64", "int8-g128")), (3, MIXED)), layers=6)
    ),
    "three layers of rows in parts": lambda: _small(
        replace(FAST, handoff="mixed", warps=2, rows=8, chunk_bytes=512, x_parts=2, k_parts=2), layers=3, hidden=64
    ),
    "counters of each worker, room": _own_counters,
    "warps apart": lambda: _specialised(TAGGED, 3),
    "warps apart, fenced": lambda: _specialised(PHASED, 2),
    "output head": lambda: _small(TAGGED, layers=0, slice=LayerSlice(first=2, of=2, head=True)),
    "last layer and output head": lambda: _small(TAGGED, layers=1, slice=LayerSlice(first=1, of=2, head=True)),
    "batch in turns": lambda: _small(replace(TAGGED, batch=3), layers=1),
    "batch in turns of two warps, fenced": lambda: _small(replace(PHASED, warps=4, batch=5), layers=1, workers=3),
}

WHOLE = (
    "slice of layers", "sm_80", "refills held back", "fenced, heads apart", "int8, fp8 cache", "int4 with zeros",
    "LayerNorm, parallel", "rows", "batch, parts of down", "live batch, fenced, head norms", "fp8, scales apart",
    "two programs", "layers of two kinds", "drawing, fenced", "batch of codes", "rows, all in parts",
    "rows that accept", "rows without output head", "output head", "rows, columns divided",
)  # fmt: skip
"""Those that together have every op, hand-off and format; the recorded run makes all of their edits."""

STAND_FOR_MORE = (
    "four layers, fenced, room", "four layers, tagged, room", "three layers of each of two kinds, room",
    "three layers of rows in parts", "counters of each worker, room",
)  # fmt: skip
"""Those in which two layers, or one worker of a class, stand for others; a recorded run makes all of their edits."""


@cache
def base(name: str) -> Json:
    """The document of that base; shared, so edit copies."""
    return SMALL_BASES[name]()
