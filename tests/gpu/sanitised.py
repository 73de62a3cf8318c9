"""Decodes a few tokens of small models and prints them: `python -m tests.gpu.sanitised GPU CASE...`.

Run under compute-sanitizer, which is slow: few workers, short caches, no torch, and a watchdog that waits longer.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from amk.engine.backends.cuda_engine import CudaEngine
from amk.engine.checkpoints.random_checkpoint import random_checkpoint
from amk.engine.load import gpu_engine
from amk.lowering.launch import Device
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST, NAIVE
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import Target, load_target
from amk.weights.quantised import nearest
from tests.tiny import PAIRED, PLAIN, RAGGED

CASES = {
    "plain fast": (PLAIN, FAST, "bf16"),
    "plain naive": (PLAIN, NAIVE, "bf16"),
    "ragged fast": (RAGGED, FAST, "bf16"),
    "plain int8": (PLAIN, FAST, "int8"),
    "plain fp8-cache": (PLAIN, replace(FAST, kv_dtype="fp8"), "bf16"),
    "plain fp8": (PLAIN, FAST, "fp8"),
    "paired int4": (PAIRED, FAST, "int4-g128"),
    "paired zero-points": (PAIRED, FAST, "int4-g128-zp"),
    "plain batch": (PLAIN, replace(FAST, batch=4), "bf16"),
    "paired divided batch": (PAIRED, replace(FAST, batch=16, k_splits=2), "bf16"),
    "plain divided rows": (PLAIN, replace(FAST, rows=8, k_splits=2), "bf16"),
    "plain many rows": (PLAIN, replace(FAST, rows=64, k_splits=2), "bf16"),
    "plain live": (PLAIN, replace(FAST, batch=4, live=True, sampling="top-k-top-p"), "bf16"),
}
CONTEXT, WORKERS, TOKENS, START = 512, 8, 3, 200
STALL_NS = 100_000_000_000


def main() -> int:
    gpu, device = load_target(sys.argv[1]), Device.open()
    for name in sys.argv[2:]:
        schedule = planned(name, gpu)
        weights = random_checkpoint(schedule.model, 1)
        engine = gpu_engine(schedule, weights, nearest, device=device, stall_ns=STALL_NS)
        decoded = [decoded(engine, pos) for pos in (0, START)]
        print(f"{name}: decoded {decoded}", flush=True)
        engine.free()
    return 0


def planned(name: str, gpu: Target) -> Schedule:
    model, settings, form = CASES[name]
    return plan(model, gpu, settings=settings, max_context=CONTEXT, workers=WORKERS, formats=formats(form))


def decoded(engine: CudaEngine, pos: int) -> list[int]:
    """Every sequence from this position on. What it reads before chooses nothing, and rows are those of a prompt."""
    schedule = engine.schedule
    prompt = [1] * (pos + (1 if schedule.rows == 1 else TOKENS * schedule.rows))
    engine.request_batch([prompt] * schedule.batch, start=[pos] * schedule.batch if schedule.live else pos)
    tokens: list[int] = engine.step(TOKENS).reshape(-1).tolist()
    return tokens


if __name__ == "__main__":
    raise SystemExit(main())
