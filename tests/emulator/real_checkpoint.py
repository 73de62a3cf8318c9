"""The first token of SmolLM2-135M, its real weights on the plan for an L4, whole grid, in the emulator.

python -m tests.emulator.real_checkpoint GGUF FILE

The kernel's token and logits are compared with a plain forward pass in float32 that knows no schedule. FILE gets what
was found; exit 1 for a fault, another token, or logits beyond the rounding of activations.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from amk.bench.tools.provenance import commit
from amk.emulator.decode import run
from amk.emulator.machine.machine import Limits
from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from amk.lowering.kernel import build
from amk.planner.decode import plan
from amk.quantize.forward import text_logits
from amk.targets.target import load_target

PROMPT = [1]
CONTEXT = 256
MOST_APART = 2e-2
"""Norm of the difference over the norm of the logits: what bf16 activations of 30 layers leave."""
LIMITS = Limits(instructions=20_000_000_000, seconds=6 * 3600.0, megabytes=16_000)


def main(gguf: Path, into: Path) -> int:
    checkpoint = open_checkpoint(gguf)
    schedule = plan(checkpoint.spec, load_target("l4"), max_context=CONTEXT)
    ptx = build(schedule).compiled.ptx
    started, worked = time.monotonic(), time.process_time()
    result = run(schedule, checkpoint, ptx, prompts=[PROMPT], tokens=1, limits=LIMITS, races=True)
    seconds, processor = time.monotonic() - started, time.process_time() - worked
    expected = text_logits(checkpoint.spec, checkpoint, PROMPT)[-1]
    apart = float(np.linalg.norm(result.logits - expected) / np.linalg.norm(expected))
    found = {
        "run": {
            "command": f"python -m tests.emulator.real_checkpoint {gguf.name} {into.name}",
            "commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "hardware": f"{platform.processor() or platform.machine()}, one core",
        },
        "plan": {"gpu": "l4", "workers": schedule.launch.workers, "warps": schedule.launch.warps, "context": CONTEXT},
        "prompt": PROMPT, "token": result.tokens.reshape(-1).tolist(), "forward_token": int(expected.argmax()),
        "logits_apart": apart, "ended": result.ended,
        "raced": all(outcome.races_checked for outcome in result.outcomes),
        "faults": [str(fault) for fault in result.faults], "warp_instructions": result.instructions,
        "seconds_with_compiling": round(seconds, 1), "processor_seconds_with_compiling": round(processor, 1),
        "seconds": [round(outcome.seconds, 1) for outcome in result.outcomes],
    }  # fmt: skip
    into.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))
    right = result.ended and not result.faults and found["token"] == [found["forward_token"]] and apart < MOST_APART
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
