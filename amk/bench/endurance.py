"""Very many tokens in a row, resumable: does a kernel ever hang, and are two passes bitwise the same?

    python -m amk.bench.endurance --gpu h200 --record pass1.json --time-limit 480     # again until it says complete
    python -m amk.bench.endurance --gpu h200 --record pass2.json --time-limit 480
    python -m amk.bench.endurance --compare pass1.json pass2.json

A pass is laps over the whole cache: positions 0 to context - 1, then from 0 again, each token fed back. After every
launch the logits and the tokens join a chain of hashes. At the end of every lap a record keeps the chain and the token
that goes on. A later process needs no more, because a lap reads no row of the cache that it has not written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from amk.bench.tools.hardware import provenance
from amk.engine.backends.cuda_engine import CudaEngine
from amk.engine.checkpoints.random_checkpoint import random_checkpoint
from amk.engine.load import gpu_engine
from amk.lowering.launch import Device
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.report.json_file import read_json
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.weights.quantised import nearest

FORMAT = 1
LIMIT = 4 << 20
PER_LAUNCH = 64
SEED = 0
FIRST_TOKEN = 1


def fresh(schedule: Schedule, tokens: int) -> dict[str, Any]:
    """The record of a pass of at least `tokens` tokens, in whole laps, that has not begun."""
    laps = -(-tokens // schedule.kv.context)
    model, gpu = schedule.model.name, schedule.target.name
    return {
        "format": FORMAT, "model": model, "gpu": gpu, "schedule": schedule_hash(schedule),
        "context": schedule.kv.context, "per_launch": PER_LAUNCH, "seed": SEED, "laps": laps, "token": FIRST_TOKEN,
        "hash": "", "chain": [], "seconds": 0.0, "runs": [],
    }  # fmt: skip


def opened(path: Path, start: dict[str, Any]) -> dict[str, Any]:
    """The record in the file, or `start`; AMK005 for the record of another pass than `start` begins."""
    if not path.exists():
        return start
    found = read_json(path, LIMIT)
    same = ("format", "schedule", "context", "per_launch", "seed", "laps")
    if not isinstance(found, dict) or any(found.get(name) != start[name] for name in same):
        message = "the record is of another pass: another schedule, length or format"
        raise AmkError(Diagnostic("AMK005", message, where=Where(file=str(path))))
    return found


def lap(engine: CudaEngine, record: dict[str, Any]) -> None:
    """One lap, entered into `record`. AMK604 if a wait made no progress, AMK901 for a wrong position or logits."""
    context, vocab, chain = record["context"], engine.schedule.model.vocab, record["hash"]
    engine.set_state(token=record["token"], pos=0, done=0)
    for first in range(0, context, PER_LAUNCH):
        tokens = engine.step(min(PER_LAUNCH, context - first))
        logits = engine.read("logits", np.float32, vocab)
        if not np.isfinite(logits).all():
            raise AmkError(Diagnostic("AMK901", f"logits that are not finite at position {first + len(tokens) - 1}"))
        chain = hashlib.sha256(chain.encode() + tokens.tobytes() + logits.tobytes()).hexdigest()
    state = engine.state()
    if state["pos"] != context:
        raise AmkError(Diagnostic("AMK901", f"a lap of {context} tokens ended at position {state['pos']}"))
    record["hash"], record["token"] = chain, state["token"]
    record["chain"].append(chain)


def go_on(engine: CudaEngine, record: dict[str, Any], path: Path, deadline: float) -> None:
    """Laps until the pass is complete or another one would not end in time; the file is replaced after each."""
    run = provenance("python -m amk.bench.endurance " + shlex.join(sys.argv[1:]), engine.device)
    record["runs"].append(run | {"first_lap": len(record["chain"])})
    longest = 0.0
    while len(record["chain"]) < record["laps"] and time.monotonic() + longest < deadline:
        began = time.monotonic()
        lap(engine, record)
        longest = max(longest, time.monotonic() - began)
        record["seconds"] = round(record["seconds"] + time.monotonic() - began, 2)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)


def compared(first: dict[str, Any], second: dict[str, Any]) -> str | None:
    """Why two records are not two complete equal passes; None if they are."""
    for record in (first, second):
        if len(record["chain"]) < record["laps"]:
            return f"a pass has {len(record['chain'])} of {record['laps']} laps"
    if first["schedule"] != second["schedule"] or first["laps"] != second["laps"]:
        return "the passes are of different schedules or lengths"
    apart = [i for i, (a, b) in enumerate(zip(first["chain"], second["chain"], strict=True)) if a != b]
    return f"the passes differ from lap {apart[0]} on" if apart else None


def main() -> int:
    parser = argparse.ArgumentParser(description="very many tokens in a row, twice, with equal hashes")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="at least so many (default: a million)")
    parser.add_argument("--context", type=int, default=8192, help="positions of a lap (default: 8192)")
    parser.add_argument("--record", type=Path, help="JSON file of this pass")
    parser.add_argument("--time-limit", type=float, default=480.0, help="begin no lap that would end after this")
    parser.add_argument("--compare", nargs=2, type=Path, metavar="FILE", help="two records: complete and equal?")
    options = parser.parse_args()
    began = time.monotonic()
    if options.compare:
        different = compared(*(read_json(path, LIMIT) for path in options.compare))
        print(different or "both passes are complete and equal")
        return 1 if different else 0
    if options.record is None:
        parser.error("give --record FILE or --compare FILE FILE")
    model = load_model(options.model)
    schedule = plan(model, load_target(options.gpu), max_context=options.context)
    record = opened(options.record, fresh(schedule, options.tokens))
    engine = gpu_engine(schedule, random_checkpoint(model, SEED), nearest, device=Device.open())
    engine.upload("request", np.array([0, -1, -1, -1, -1], np.int32))
    go_on(engine, record, options.record, began + options.time_limit)
    done, laps = len(record["chain"]), record["laps"]
    rate = f"{done * record['context']:,} tokens in {record['seconds']:.0f} s"
    print(f"{done} of {laps} laps, {rate}: {'complete' if done == laps else 'the same command goes on'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
