"""Plans of oddly sized models, with nothing but the ops' needs to refuse a size: what is SAFE must compile and run.

    python -m tests.validator.evidence --only sizes --seconds 3600 --records FOLDER

The planner refuses sizes of its own (amk/planner/fetches.py). Here that is switched off, so that what the device code
relies on (amk/schedule_ir/ops/precondition.py) alone decides. A slice draws models about the limits of the device code
and settings for them. A SAFE schedule whose kernel does not compile, or which a run of the kernel in the emulator
refutes, or whose certificate the checker refuses, is a *difference*. Kernels of models too large to run are compiled.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import gcd
from random import Random
from typing import Any
from unittest.mock import patch

from amk.checker.certificate import check_certificate
from amk.judges.emulated_run import EmulatedKernel
from amk.models.model_spec import ModelSpec
from amk.planner import decode
from amk.planner.formats import Formats, formats
from amk.planner.settings import Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.validator.export.certificate import NotSafe
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.verify import verify
from amk.weights.weight_format import FORMATS
from tests.adversarial.emulated import Kernels, ruling
from tests.tiny import tiny

SLICES, DRAWS = 2000, 12
SECONDS = 60.0
"""For `verify`."""
SMALL = 1 << 16
"""Elements of the matrices of a layer, or of the output head, that the emulator multiplies in seconds."""
CRASHES = (ValueError, ArithmeticError, LookupError, AssertionError)
"""Of the planner, whose code relies on what it refuses."""
CONTEXT = 24
REFUSALS = ("require_whole_fetches", "_require_parts", "_require_room")
"""Of sizes, in the planner."""
LIMITS = (1024, 2048, 512, 4096)
"""Elements that a warp has at most at once, of some op in some layout."""


def drawn(rng: Random) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(of the model, settings, the rest of a plan)."""
    warps = rng.choice((1, 1, 2, 2, 3, 4, 5, 6, 7, 8))
    neox = rng.random() < 0.35
    kv_heads = rng.choice((1, 1, 2, 3))
    heads = kv_heads * (1 if neox else rng.choice((1, 1, 2, 3, 4)))
    head_dim = rng.choice((8, 8, 16, 24, 32, 40, 64, 96, 128, 256)) if rng.random() < 0.9 else rng.randrange(2, 64, 2)
    if rng.random() < 0.8:  # products of attention's outputs come in multiples of 32 columns
        more = 32 // gcd(32, heads * head_dim)
        heads, kv_heads = heads * more, kv_heads * (more if neox else 1)
    model: dict[str, Any] = {
        "layers": rng.choice((1, 1, 2)), "hidden": width(rng, warps), "ffn": width(rng, warps), "heads": heads,
        "kv_heads": kv_heads, "head_dim": head_dim, "vocab": rng.choice((3, 9, 17, 33, 64, 71, 200)),
        "qkv_bias": rng.random() < 0.3, "tied_embeddings": rng.random() < 0.2,
    }  # fmt: skip
    if neox:
        model |= {"family": "gpt_neox", "qkv_bias": True, "activation": rng.choice(("gelu", "gelu-tanh"))}
        model |= {"parallel": rng.random() < 0.5, "rotary_dim": max(2, head_dim // 4 * 2), "tied_embeddings": False}
    else:
        model["qk_norm"] = rng.random() < 0.25
    many = rng.random()
    settings: dict[str, Any] = {
        "warps": warps, "handoff": rng.choice(("fenced", "tagged", "tagged", "mixed", "narrow")), "max_tokens": 8,
        "chunk_bytes": rng.choice((512, 1024, 2048)), "kv_block": rng.choice((4, 8, 12, 16, 64)),
        "kv_splits": rng.choice((None, 1, 2, 3, 4)), "kv_dtype": rng.choice(("bf16", "bf16", "fp8")),
        "reduce_from": rng.choice((None, 2, 8)), "wide_epilogue": rng.choice((0, 64, 4096)),
        "run_ahead": rng.random() < 0.7, "max_ring_bytes": 1 << 14,
        "handoff_dtype": rng.choice((None, None, "f32", "bf16")), "scale_blocks": rng.choice((1, 1, 1, 2, 4, 8, 16)),
        "scales_apart": rng.random() < 0.3, "head_sums": rng.choice(("shared", "shared", "global")),
        "pollers": rng.choice(("one", "all")), "overlay": rng.random() < 0.8,
        "sampling": rng.choice(("greedy",) * 4 + ("temperature", "top-k", "top-p", "top-k-top-p")),
    }  # fmt: skip
    if many < 0.2:
        settings |= {"batch": rng.choice((2, 3, 4, 9)), "live": rng.random() < 0.4}
    elif many < 0.45:
        settings |= {"rows": rng.choice((2, 3, 4, 7, 8, 16)), "x_parts": rng.choice((1, 1, 2, 3))}
        settings |= {"row_groups": 1 + (settings["rows"] == 16 and rng.random() < 0.5), "kv_block": 16}
        settings["accepts"] = rng.random() < 0.2
    else:
        settings["head_handoff"] = rng.random() < 0.2
    if many < 0.45 or rng.random() < 0.2:
        settings["k_parts"] = rng.choice((None, 2, 3, 4))
    elif rng.random() < 0.2:
        settings["act_parts"] = rng.choice((2, 3))
    kept = rng.choice(list(FORMATS)) if rng.random() < 0.6 else "bf16"
    plan = {
        "workers": max(rng.choice((1, 2, 3, 4, 5)), kv_heads * settings.get("batch", 1)), "kept": kept,
        "head": rng.choice((kept, "bf16", rng.choice(list(FORMATS)))),
        "gpu": rng.choice(("h200", "h200", "a100", "l4")),
    }  # fmt: skip
    return model, settings, plan


def width(rng: Random, warps: int) -> int:
    """Elements of a vector: a few, or about a limit of what all warps have, in steps of every kind."""
    step = rng.choice((32, 32, 32, 64, 64, 64, 64, 8, 1)) * rng.choice((1, warps))
    if rng.random() < 0.7:
        return max(2, rng.randrange(16, 300) // step * step or step)
    about = rng.choice(LIMITS) * rng.choice((1, warps)) + rng.choice((-1, 0, 0, 1, 2)) * step
    return max(2, min(about, 1 << 14))


def plan_of(model: dict[str, Any], settings: dict[str, Any], plan: dict[str, Any]) -> Schedule:
    """The plan, whatever its sizes; AmkError or another error where the planner cannot make one."""
    wanted: Formats = formats(plan["kept"], plan["head"])
    spec = tiny("odd", **{"max_context": CONTEXT} | model)
    with patch.multiple(decode, **dict.fromkeys(REFUSALS, lambda *_: None)):
        return decode.plan(
            spec, load_target(plan["gpu"]), settings=replace(Settings(), **settings), formats=wanted,
            max_context=CONTEXT, workers=plan["workers"],
        )  # fmt: skip


def small(model: ModelSpec) -> bool:
    """Whether the emulator runs it in seconds."""
    of_layer = model.hidden * (model.q_dim + model.kv_dim + model.ffn) * model.layers
    return of_layer + model.hidden * model.vocab <= SMALL


def found_in(schedule: Schedule) -> tuple[str, str]:
    """(what became of it, what is wrong): refused by a code, or SAFE and compiled or run."""
    verdict = verify(schedule, timeout_s=SECONDS)
    if not verdict.safe:
        return verdict.diagnostics[0].code if verdict.diagnostics else verdict.status, ""
    try:
        certificate = json.loads(json.dumps(certify_schedule(schedule, checked=False)))
        checked = check_certificate(schedule, schedule_hash(schedule), certificate)
        reason = "" if checked.accepted else checked.reason
    except NotSafe as error:
        reason = str(error)
    if reason:
        return "SAFE", f"no accepted certificate: {reason}"
    try:
        ptx = Kernels().ptx(schedule)
    except AmkError as error:
        return "SAFE", f"not printed: {error.diagnostics[0]}"
    if ptx is None:
        return "SAFE", "does not compile"
    if not small(schedule.model):
        return "compiled", ""
    shown, ran = ruling(schedule, EmulatedKernel(lambda _: ptx), 1)
    if shown.status == "refuted" and shown.kind != "limit":
        return "compiled", f"emulated: {shown.kind}: {shown.why}"
    return "run" if ran else f"compiled, unrun: {shown.why[:40]}", ""


def looked_at(rng: Random) -> tuple[str, str]:
    """The same of a draw."""
    said = drawn(rng)
    try:
        schedule = plan_of(*said)
    except AmkError as error:
        return f"not planned: {error.diagnostics[0].code}", ""
    except CRASHES as error:
        return f"not planned: {type(error).__name__}", ""
    try:
        kind, wrong = found_in(schedule)
    except Exception as error:  # noqa: BLE001  whatever it is, it is told and the others go on
        kind, wrong = "error", f"{type(error).__name__}: {error}"
    return kind, wrong and f"{json.dumps(said)}: {wrong}"[:1500]


def sizes_slice(number: int) -> dict[str, Any]:
    """DRAWS plans."""
    rng = Random(50_000_017 + number)
    results: Sequence[tuple[str, str]] = [looked_at(rng) for _ in range(DRAWS)]
    differences = [f"slice {number}: {wrong}" for _, wrong in results if wrong]
    return {"draws": DRAWS, "became": Counter(kind for kind, _ in results), "differences": differences}
