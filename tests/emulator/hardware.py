"""Logits of small models from a GPU, compared bit by bit with the emulator's.

python -m tests.emulator.hardware record FILE     # on an H200: runs each case, writes tokens and logits
python -m tests.emulator.hardware compare FILE    # anywhere: emulates the same PTX, adds the differences to FILE
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.bench.provenance import commit
from amk.engine.random_checkpoint import RandomCheckpoint
from amk.lowering.kernel import build
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST
from amk.schedule_ir.sampling import GREEDY, Sampling
from amk.schedule_ir.schedule import Schedule
from amk.schedule_ir.target import load_target
from tests.tiny import NORMED, PAIRED, PLAIN, RAGGED

SEED, TOKENS, CONTEXT, WORKERS = 20, 6, 256, 8
MODELS = {"plain": PLAIN, "ragged": RAGGED, "norm": NORMED, "paired": PAIRED}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "plain bf16": ("plain", "bf16", {}),
    "ragged bf16": ("ragged", "bf16", {}),
    "norm bf16": ("norm", "bf16", {}),
    "plain int8": ("plain", "int8", {}),
    "plain fp8": ("plain", "fp8", {}),
    "paired int4": ("paired", "int4-g128", {}),
    "paired int4 with zero points": ("paired", "int4-g128-zp", {}),
    "plain bf16, batch 4": ("plain", "bf16", {"batch": 4}),
    "plain bf16, drawing": ("plain", "bf16", {"sampling": "top-k"}),
}
DRAWN = Sampling(temperature=0.8, top_k=20, seed=7)


def schedule_of(case: str) -> Schedule:
    model, dtype, settings = CASES[case]
    chosen = replace(FAST, **settings)
    wanted = formats(dtype, None)
    return plan(
        MODELS[model], load_target("h200"), settings=chosen, wanted=wanted, max_context=CONTEXT, workers=WORKERS
    )


def prompts_of(schedule: Schedule) -> list[list[int]]:
    return [[3 + s, 17, 5] for s in range(schedule.batch)]


def sampling_of(case: str) -> Sampling:
    return DRAWN if "sampling" in CASES[case][2] else GREEDY


def on_gpu(case: str) -> dict[str, Any]:
    from amk.engine.load import gpu_engine

    schedule = schedule_of(case)
    engine = gpu_engine(schedule, RandomCheckpoint(schedule.model, SEED))
    try:
        engine.request_batch(prompts_of(schedule), (), sampling_of(case))
        tokens = engine.step(TOKENS)
        return _entry(schedule, tokens, engine.logits())
    finally:
        engine.free()


def emulated(case: str) -> dict[str, Any]:
    from amk.emulator.decode import run

    schedule = schedule_of(case)
    result = run(
        schedule, RandomCheckpoint(schedule.model, SEED), build(schedule).compiled.ptx, prompts=prompts_of(schedule),
        tokens=TOKENS, sampling=sampling_of(case),
    )  # fmt: skip
    if result.faults or not result.ended:
        raise SystemExit(f"{case}: {[str(fault) for fault in result.faults[:5]]}")
    return _entry(schedule, result.tokens, result.logits)


def _entry(schedule: Schedule, tokens: NDArray[Any], logits: NDArray[np.float32]) -> dict[str, Any]:
    ptx = build(schedule).compiled.ptx
    return {
        "ptx": hashlib.sha256(ptx.encode()).hexdigest(),
        "tokens": np.asarray(tokens).reshape(-1).tolist(),
        "logits": base64.b64encode(np.ascontiguousarray(logits, np.float32).tobytes()).decode(),
    }


def record(path: Path) -> int:
    name = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    run = {"commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds"), "hardware": name}
    run["command"] = f"python -m tests.emulator.hardware record {path.name}"
    cases = {case: on_gpu(case) for case in CASES}
    path.write_text(json.dumps({"run": run, "cases": cases}, indent=1), encoding="utf-8")
    print(*(f"{case}: tokens {entry['tokens']}" for case, entry in cases.items()), sep="\n")
    return 0


def compare(path: Path) -> int:
    """1 if tokens differ anywhere. Cases that were compared before are not run again."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    same = True
    for case, entry in stored["cases"].items():
        if "emulated" in entry:
            same &= entry["emulated"]["same_tokens"]
            continue
        own = emulated(case)
        there, here = (
            np.frombuffer(base64.b64decode(e["logits"]), np.float32).astype(np.float64) for e in (entry, own)
        )
        apart = np.abs(there - here)
        entry["emulated"] = {
            "same_ptx": own["ptx"] == entry["ptx"],
            "same_tokens": own["tokens"] == entry["tokens"],
            "logits": there.size,
            "equal_bits": int((there == here).sum()),
            "largest_difference": float(apart.max()),
            "of_the_largest_logit": float(apart.max() / np.abs(there).max()),
        }
        same &= own["tokens"] == entry["tokens"]
        print(case, entry["emulated"], flush=True)
        path.write_text(json.dumps(stored, indent=1), encoding="utf-8")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit({"record": record, "compare": compare}[sys.argv[1]](Path(sys.argv[2])))
