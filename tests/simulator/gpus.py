"""What is predicted for every GPU, and how fast its SMs can drain chunks that are resident: made without a GPU.

    python -m tests.simulator.gpus --record tests/records/speed/gpus-simulated.json

plans, compiles and simulates two models in every weight format on every target, one row each (10 s of a core), and
goes on where it was stopped. `python -m tests.readme` writes one page per GPU from the record.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

from amk.lowering.chunk_loops import chunk_loops
from amk.lowering.kernel import build
from amk.lowering.sass import disassemble
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.report.diagnostic import AmkError
from amk.simulator.constants import stored
from amk.simulator.kinds import known_error
from amk.simulator.predict import predict
from amk.targets.target import Target, load_target, targets
from amk.weights.weight_format import FormatName

CASES: tuple[tuple[str, FormatName], ...] = (
    ("llama3.2-1b", "bf16"),
    ("llama3-8b", "bf16"),
    ("llama3-8b", "int8"),
    ("llama3-8b", "fp8"),
    ("llama3-8b", "int4-g128"),
)
POSITION = 128


def clock_ghz(target: Target) -> float:
    """Published boost clock."""
    return next(p.mhz for p in stored().published if p.target == target.name) / 1000


def row(gpu: str, model: str, form: FormatName) -> dict[str, Any]:
    """Predicted ms, floor and phases; instructions a chunk and the rate at which they let an SM drain, or a reason."""
    target = load_target(gpu)
    key = {"gpu": gpu, "model": model, "format": form}
    try:
        schedule = plan(load_model(model), target, formats=formats(form), max_context=4096)
    except AmkError as error:
        return {**key, "refused": error.diagnostics[0].code, "reason": error.diagnostics[0].message}
    predicted = predict(schedule, POSITION)
    phases = sorted(predicted.phases, key=lambda phase: -phase.us)[:4]
    parts: dict[str, float] = {}
    for phase in predicted.phases:
        for part, us in phase.parts.items():
            parts[part] = parts.get(part, 0.0) + us
    return {
        **key, "ms": round(predicted.ms, 4), "floor_ms": round(predicted.floor_ms, 4),
        "error": known_error(schedule, POSITION),
        "phases": [{"name": p.name, "us": round(p.us, 1), "limit": p.bottleneck} for p in phases],
        "parts": {part: round(us, 1) for part, us in sorted(parts.items(), key=lambda item: -item[1])},
        **drain(schedule, target),
    }  # fmt: skip


def drain(schedule: Any, target: Target) -> dict[str, Any]:
    stream = schedule.streams[0]
    listing = disassemble(build(schedule).compiled.cubin)
    if listing is None:
        raise SystemExit("nvdisasm is needed: pip install nvidia-cuda-nvdisasm")
    loops = chunk_loops(listing)
    slowest = max(loops, key=lambda loop: loop.instructions)
    rate, supply = slowest.drain_gbps(stream.chunk_bytes, clock_ghz(target)), target.read_ceiling_gbps / target.sms
    return {
        "loops": len(loops), "chunk_bytes": stream.chunk_bytes, "instructions": slowest.instructions,
        "drain_gbps": round(rate, 1), "supply_gbps": round(supply, 2), "ratio": round(rate / supply, 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, required=True)
    path: Path = parser.parse_args().record
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    empty = {
        "about": "simulated; no GPU was used", "command": "python -m tests.simulator.gpus --record FILE",
        "commit": commit.stdout.strip(), "date": str(date.today()), "rows": [],
    }  # fmt: skip
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else empty
    done = {(r["gpu"], r["model"], r["format"]) for r in found["rows"]}
    cases = [(t.name, model, form) for t in targets() for model, form in CASES]
    for number, case in enumerate(cases, 1):
        if case not in done:
            found["rows"].append(row(*case))
            path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{number} of {len(cases)}: {' '.join(case)}", flush=True)


if __name__ == "__main__":
    main()
