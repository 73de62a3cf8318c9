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
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.bench.tools.provenance import commit
from amk.emulator.decode import EmulatedEngine
from amk.engine.backends.cuda_engine import CudaEngine
from amk.engine.checkpoints.random_checkpoint import RandomCheckpoint
from amk.lowering.kernel import build
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST
from amk.quantize.search import searched
from amk.schedule_ir.memory import Buffer
from amk.schedule_ir.sampling import GREEDY, Sampling
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.weights.quantised import Quantiser
from tests.tiny import NORMED, PAIRED, PLAIN, RAGGED

SEED, TOKENS, CONTEXT, WORKERS = 20, 6, 256, 8
SMALL = 1 << 16
QUANTISE: Quantiser = searched
"""On both sides; the choice that `amk generate` makes."""
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
        MODELS[model], load_target("h200"), settings=chosen, formats=wanted, max_context=CONTEXT, workers=WORKERS
    )


def prompts_of(schedule: Schedule) -> list[list[int]]:
    return [[3 + s, 17, 5] for s in range(schedule.batch)]


def sampling_of(case: str) -> Sampling:
    return DRAWN if "sampling" in CASES[case][2] else GREEDY


def gpu_side(case: str) -> CudaEngine:
    """The case on the GPU, before its launch."""
    from amk.engine.load import gpu_engine

    schedule = schedule_of(case)
    engine = gpu_engine(schedule, RandomCheckpoint(schedule.model, SEED), QUANTISE)
    engine.request_batch(prompts_of(schedule), (), sampling_of(case))
    return engine


def emulated_side(case: str, ptx: str) -> EmulatedEngine:
    """The case in the emulator, before its launch."""
    schedule = schedule_of(case)
    engine = EmulatedEngine(schedule, RandomCheckpoint(schedule.model, SEED), ptx, quantise=QUANTISE)
    engine.request_batch(prompts_of(schedule), (), sampling_of(case))
    return engine


def on_gpu(case: str) -> dict[str, Any]:
    engine = gpu_side(case)
    try:
        schedule = engine.schedule
        held = digests(schedule, lambda b: engine.read(b.name, np.uint8, b.bytes))
        engine.step(1)
        after_one = left_by(schedule, lambda b: engine.read(b.name, np.uint8, b.bytes))
        engine.reset()
        engine.request_batch(prompts_of(schedule), (), sampling_of(case))
        tokens = engine.step(TOKENS)
        return _entry(schedule, tokens, engine.logits()) | {"held": held, "after_one": after_one}
    finally:
        engine.free()


def emulated(case: str, tokens: int = TOKENS) -> tuple[dict[str, Any], EmulatedEngine]:
    """The entry after so many tokens; raises SystemExit for faults. Also the engine, with the memory they left."""
    schedule = schedule_of(case)
    engine = emulated_side(case, build(schedule).compiled.ptx)
    held = digests(schedule, lambda b: engine.machine.read(b.name, np.uint8, b.bytes))
    outcome = engine.launch(tokens)
    if outcome.faults or not outcome.ended:
        raise SystemExit(f"{case}: {[str(fault) for fault in outcome.faults[:5]]}")
    return _entry(schedule, engine.output(tokens), engine.logits()) | {"held": held}, engine


Read = Callable[[Buffer], NDArray[Any]]


def digests(schedule: Schedule, read: Read) -> dict[str, str]:
    """sha256 of every buffer that the host writes once, as it lies in memory before the launch."""
    constant = [b for b in schedule.buffers if b.space == "global" and b.role == "constant"]
    return {b.name: hashlib.sha256(np.ascontiguousarray(read(b)).tobytes()).hexdigest() for b in constant}


def left_by(schedule: Schedule, read: Read) -> dict[str, str]:
    """What the launch left in every small scratch buffer: the first that differs says where two runs part."""
    small = [b for b in schedule.buffers if b.space == "global" and b.role == "scratch" and b.bytes <= SMALL]
    return {b.name: base64.b64encode(np.ascontiguousarray(read(b)).tobytes()).decode() for b in small}


def _entry(schedule: Schedule, tokens: NDArray[Any], logits: NDArray[np.float32]) -> dict[str, Any]:
    ptx = build(schedule).compiled.ptx
    return {
        "ptx": hashlib.sha256(ptx.encode()).hexdigest(),
        "tokens": np.asarray(tokens).reshape(-1).tolist(),
        "logits": base64.b64encode(np.ascontiguousarray(logits, np.float32).tobytes()).decode(),
    }


def gpu_name() -> str:
    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()


def record(path: Path) -> int:
    run = {"commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds"), "hardware": gpu_name()}
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
        own, _ = emulated(case)
        there, here = (
            np.frombuffer(base64.b64decode(e["logits"]), np.float32).astype(np.float64) for e in (entry, own)
        )
        apart = np.abs(there - here)
        entry["emulated"] = {
            "same_ptx": own["ptx"] == entry["ptx"],
            "commit": commit(),
            "other_memory": other_memory(entry, own),
            "equal_after_one_token": equal_parts(case, entry),
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


def equal_parts(case: str, there: dict[str, Any]) -> dict[str, str]:
    """By scratch buffer, in the order of the schedule: elements with the bits that the GPU's first token left. The
    first that differs says which op the two part at."""
    if "after_one" not in there:
        return {}
    _, engine = emulated(case, tokens=1)
    here = left_by(engine.schedule, lambda b: engine.machine.read(b.name, np.uint8, b.bytes))
    found = {}
    for name, text in here.items():
        item = engine.buffers[name].item_bytes
        one, other = (np.frombuffer(base64.b64decode(t), np.uint8) for t in (text, there["after_one"][name]))
        rows = (one == other)[: len(one) // item * item].reshape(-1, item).all(1)
        found[name] = f"{rows.sum()} of {rows.size}"
    return found


def other_memory(there: dict[str, Any], here: dict[str, Any]) -> list[str] | None:
    """Buffers that held other bytes before the launch; None if the GPU's run did not read them back."""
    if "held" not in there:
        return None
    return [name for name, digest in there["held"].items() if here["held"][name] != digest]


if __name__ == "__main__":
    sys.exit({"record": record, "compare": compare}[sys.argv[1]](Path(sys.argv[2])))
