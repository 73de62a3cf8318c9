"""Decodes a few tokens of small models and prints them: `python -m tests.gpu.sanitised GPU CASE...`.

Run under compute-sanitizer, which is slow: few workers, short caches, no torch, and a watchdog that waits longer.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from amk.engine.checkpoints.random_checkpoint import random_checkpoint
from amk.engine.load import gpu_engine
from amk.lowering.launch import Device
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST, NAIVE
from amk.targets.target import load_target
from amk.weights.quantised import nearest
from tests.tiny import PLAIN, RAGGED

CASES = {
    "plain fast": (PLAIN, FAST, "bf16"),
    "plain naive": (PLAIN, NAIVE, "bf16"),
    "ragged fast": (RAGGED, FAST, "bf16"),
    "plain int8": (PLAIN, FAST, "int8"),
    "plain fp8-cache": (PLAIN, replace(FAST, kv_dtype="fp8"), "bf16"),
}
CONTEXT, WORKERS, TOKENS, START = 256, 4, 3, 200
STALL_NS = 100_000_000_000


def main() -> int:
    gpu, device = load_target(sys.argv[1]), Device.open()
    for name in sys.argv[2:]:
        model, settings, form = CASES[name]
        schedule = plan(
            model, gpu, settings=settings, max_context=CONTEXT, workers=WORKERS, formats=formats(form)  # type: ignore[arg-type]
        )  # fmt: skip
        engine = gpu_engine(schedule, random_checkpoint(model, 1), nearest, device=device, stall_ns=STALL_NS)
        engine.request([1])
        first = engine.step(TOKENS).tolist()
        engine.set_state(token=1, pos=START, done=0)
        print(f"{name}: decoded {first + engine.step(TOKENS).tolist()}", flush=True)
        engine.free()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
