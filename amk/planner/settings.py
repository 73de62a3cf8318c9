"""The choices a plan is made of; the rest follows from model and target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from amk.schedule_ir.matrices import MATRICES, matrix
from amk.schedule_ir.model_spec import ModelSpec


@dataclass(frozen=True)
class Settings:
    """One point of the plan space.

    warps: agents per worker. slots: ring depth per warp, None = as much as shared memory holds, at most max_ring_bytes.
    chunk_bytes: upper bound of one copy. kv_block: positions per attention block, None = 64, or 32 where a kv head's
    queries are wide and registers are short. handoff: how activations cross SMs, by counters behind a release fence or
    by tagged words, None = handoff_of. head_handoff: attention waits for its head's rows only.
    wide_epilogue: sum partials in all warps when a worker has more output rows than this.
    """

    plan: Literal["fast", "naive", "search", "custom"] = "fast"
    warps: int = 8
    slots: int | None = None
    max_ring_bytes: int = 216 * 1024
    chunk_bytes: int = 2048
    kv_block: int | None = None
    handoff: Literal["fenced", "tagged"] | None = None
    head_handoff: bool = False
    wide_epilogue: int = 64
    run_ahead: bool = True
    refill_fence: bool = True
    max_tokens: int = 1024
    hint_slack: int = 0
    prefetch_cache: bool = False
    pf_qkv: int = 0
    pf_o: int = 0
    pf_gate_up: int = 0
    pf_down: int = 0
    pf_lm_head: int = 0


FAST = Settings()
NAIVE = Settings(plan="naive", handoff="fenced", head_handoff=False, wide_epilogue=0, run_ahead=False, slots=4)
PRESETS = {"fast": FAST, "naive": NAIVE}


def kv_block(settings: Settings, model: ModelSpec) -> int:
    """Positions per attention block."""
    return settings.kv_block or (128 if model.head_dim <= 64 else 64)


def handoff_of(settings: Settings, model: ModelSpec, workers: int) -> Literal["fenced", "tagged"]:
    """The hand-off of a plan. Tagged words order only those who depend on them: a worker without rows of some matrix
    would read its input and pass nothing on, and only hints, which order nothing in the model, would hold back those
    who overwrite the words.
    """
    if settings.handoff:
        return settings.handoff
    return "tagged" if all(matrix(model, name).groups >= workers for name in MATRICES) else "fenced"
