"""A night of identical candidates: how often would one be kept?

    python -m tests.agent.aa_night --record tests/records/h200-aa-night.json        # on a GPU, under 3 minutes
    python -m tests.agent.aa_night --simulated

Every pair is the incumbent and a copy of it that is loaded anew. Nothing but chance can make the copy faster, and no
screen protects the rule here: each pair goes straight to the race. A race that passes is confirmed in a fresh process.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from amk.agent import certify, decide
from amk.agent.candidate import Candidate, Workshop
from amk.agent.certify import Judgement
from amk.agent.devices import local_gpus, matching
from amk.agent.events import Phase
from amk.agent.gate import Gate, Ready
from amk.agent.measure import ROUNDS, Backend, Job, Samples, positions_within
from amk.agent.noise import Noise
from amk.agent.simulated import SimulatedBackend
from amk.agent.station import Post, StationBackend
from amk.bench.provenance import commit
from amk.planner.settings import FAST
from amk.schedule_ir.model import load_model
from amk.schedule_ir.target import Target, load_target

PAIRS = 200
COPIES = 8
"""Differently named copies, so that every pair loads one afresh."""
STEPS = 5
CONTEXT = 8192


def night(backend: Backend, ready: Ready, pairs: int) -> dict[str, Any]:
    """Counts and spreads of `pairs` A/A races."""
    positions = positions_within(ready.candidate.schedule.kv.context)
    copies = [renamed(ready, number) for number in range(COPIES)]
    calibration = compared(backend, ready, ready, "calibrate", -1, positions)
    mad, gains, kept, passed = decide.spread(calibration.log_ratios), [], 0, 0
    for number in range(pairs):
        copy = copies[number % COPIES]
        race = compared(backend, ready, copy, "race", number, positions)
        gains.append(-float(np.median(race.log_ratios)))
        if wins(race, "race", mad, number, positions):
            passed += 1
            confirmed = compared(backend, ready, copy, "confirm", number, positions)
            kept += wins(confirmed, "confirm", mad, number, positions)
    quantiles = np.quantile(np.array(gains), (0.0, 0.05, 0.5, 0.95, 1.0))
    return {
        "pairs": pairs, "kept": kept, "races passed": passed, "mad": mad, "gain needed": decide.needed(mad),
        "gains (0, 5, 50, 95, 100%)": [round(float(q), 6) for q in quantiles],
        "ms": [round(ms, 4) for ms in calibration.median_ms("a")], "positions": positions,
    }  # fmt: skip


def compared(
    backend: Backend, incumbent: Ready, candidate: Ready, phase: Phase, index: int, positions: Sequence[int]
) -> Samples:
    """One comparison; RuntimeError if there is none."""
    job = Job(index, phase, 1, ROUNDS[phase], STEPS, tuple(positions), index + 1)
    found = backend.measure(job, incumbent, candidate)
    if not isinstance(found, Samples):
        raise RuntimeError(f"pair {index}: {found}")
    return found


def wins(samples: Samples, phase: Phase, mad: float, index: int, positions: Sequence[int]) -> bool:
    """The rule of the search."""
    even = decide.everywhere(samples.median_ms("b"), samples.median_ms("a"), positions, mad)
    return even.passed and decide.race(samples.log_ratios, mad, ROUNDS[phase], index).passed


def renamed(ready: Ready, number: int) -> Ready:
    return replace(ready, candidate=replace(ready.candidate, key=f"{number:04d}{ready.candidate.key[4:]}"))


def subject(target: Target, model: str, simulated: bool) -> Ready:
    """The hand-tuned plan, certified and compiled."""
    spec = load_model(model)
    workshop = Workshop(spec, target, min(CONTEXT, spec.max_context))
    made = workshop.make(FAST)
    assert isinstance(made, Candidate)
    if simulated:
        return Ready(made, b"", Judgement("SAFE"))
    gated, ready = Gate(workshop, certify.installed()).judge(0, made)
    assert ready is not None, gated
    return ready


def backend_of(target: Target, simulated: bool, log: Path) -> Backend:
    if simulated:
        return SimulatedBackend(target.name, 1, noise=Noise("heavy", 0.006))
    gpu = matching(target, local_gpus())[0]
    return StationBackend(Post(gpu.name, gpu.ordinal, log))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    target, began = load_target(options.gpu), time.monotonic()
    with TemporaryDirectory() as folder:
        backend = backend_of(target, options.simulated, Path(folder) / "worker.log")
        try:
            found = night(backend, subject(target, options.model, options.simulated), options.pairs)
        finally:
            backend.close()
    found |= {"model": options.model, "device": backend.device, "seconds": round(time.monotonic() - began, 1)}
    found["run"] = {
        "command": f"python -m tests.agent.aa_night --pairs {options.pairs} --model {options.model}"
        + (" --simulated" if options.simulated else ""),
        "commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{backend.label}, {os.cpu_count()} cores",
    }  # fmt: skip
    text = json.dumps({"format": 1, "name": "aa-night"} | found, indent=1)
    print(text)
    if options.record is not None:
        options.record.write_text(text + "\n")
    return 1 if found["kept"] else 0


if __name__ == "__main__":
    sys.exit(main())
