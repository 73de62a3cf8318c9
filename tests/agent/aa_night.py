"""A night of identical candidates: how often would one be kept?

    python -m tests.agent.aa_night --record tests/records/search/h200-aa-night.json        # on a GPU, nine minutes
    python -m tests.agent.aa_night --simulated
    python -m tests.agent.aa_night --pairs 20 --head-start 0            # what the host's time adds: a minute on a GPU
    python -m tests.agent.aa_night --pairs 20 --chain                   # what the place in memory adds: a minute

Every pair is the incumbent and a copy of it that is loaded anew. Nothing but chance can make the copy faster, and no
pilot protects the rule here: each pair goes straight to the paired test. What passes it is confirmed in a fresh
process. Blocks are shorter and positions fewer than in a search, so that single rounds vary more than there. In a chain
every copy is the next pair's incumbent and stays where it is, so that program and place change roles: the medians of
even and odd pairs have different signs where one place is slower, and the same where what was loaded last is. Since the
halves of a round are measured in exchanged places neither should show.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from amk.agent.decide import keep as decide
from amk.agent.device.device_server import Post, ServerBackend
from amk.agent.device.devices import local_gpus, matching
from amk.agent.device.measure import ROUNDS, Backend, Job, Samples
from amk.agent.device.noise import Noise
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.device.supervisor import WORKER
from amk.agent.gate import certify
from amk.agent.gate.candidate import Candidate, Workshop
from amk.agent.gate.certify import Judgement
from amk.agent.gate.gate import Gate, Ready
from amk.agent.journal.events import Phase
from amk.agent.journal.inbox import write_whole
from amk.bench.tools.provenance import commit
from amk.models.model import load_model
from amk.planner.settings import FAST
from amk.targets.target import Target, load_target

PAIRS = 200
COPIES = 8
"""Differently named copies, so that every pair loads one afresh."""
ATTEMPTS = 6
PAUSE = 4.0
"""Seconds after an accident, times the attempts before: what took the memory may be over by then."""
ACCIDENTS = ("crashed", "lost")
"""Faults that say nothing about the kernel, whose copy ran before."""
STEPS = 3
POSITIONS = (128, 2048)
CONTEXT = 4096


@dataclass
class Night:
    """A/A paired tests one after the other. A worker that ends without a result, as where memory runs out beside
    another job, has measured nothing: the pair is repeated in a fresh one, and `retries` counts what happened. A device
    that is lost or a result that looks faked is no accident: RuntimeError."""

    backend: Backend
    ready: Ready
    positions: tuple[int, ...]
    chain: bool = False
    mad: float = 0.0
    ms: tuple[float, ...] = ()
    gains: list[float] = field(default_factory=list)
    passed: int = 0
    kept: int = 0
    retries: Counter[str] = field(default_factory=Counter)

    def run(self, pairs: int, save: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """`save` is given all that is known after every pair."""
        copies = [renamed(self.ready, number) for number in range(COPIES)]
        calibration = self.compared(self.ready, "calibrate", -1)
        self.mad, self.ms = decide.spread(calibration.log_ratios), calibration.median_ms("a")
        for number in range(pairs):
            copy = copies[number % COPIES]
            test = self.compared(copy, "paired test", number)
            self.gains.append(-float(np.median(test.log_ratios)))
            if self.wins(test, "paired test", number):
                self.passed += 1
                self.kept += self.wins(self.compared(copy, "confirm", number), "confirm", number)
            if self.chain:
                self.ready = copy
            save(self.found())
        return self.found()

    def found(self) -> dict[str, Any]:
        """Counts and spreads so far."""
        quantiles = np.quantile(np.array(self.gains), (0.0, 0.05, 0.5, 0.95, 1.0))
        return {
            "pairs": len(self.gains), "kept": self.kept, "races passed": self.passed, "retries": dict(self.retries),
            "mad": self.mad, "gain needed": decide.least_gain(self.mad),
            "gains (0, 5, 50, 95, 100%)": [round(float(q), 6) for q in quantiles],
            "medians of even and odd pairs": [
                round(float(np.median(each)), 6) for each in (self.gains[::2], self.gains[1::2]) if each
            ],
            "ms": [round(ms, 4) for ms in self.ms], "positions": self.positions,
        }  # fmt: skip

    def compared(self, candidate: Ready, phase: Phase, index: int) -> Samples:
        """One comparison with the incumbent, tried ATTEMPTS times."""
        for attempt in range(1, ATTEMPTS + 1):
            job = Job(index, phase, attempt, ROUNDS[phase], STEPS, self.positions, index + 1)
            found = self.backend.measure(job, self.ready, candidate)
            if isinstance(found, Samples):
                return found
            if found.suspect or found.kind not in ACCIDENTS:
                break
            self.retries[f"{found.kind}: {found.detail}"] += attempt < ATTEMPTS
            time.sleep(PAUSE * attempt)
        raise RuntimeError(f"pair {index}: {found}")

    def wins(self, samples: Samples, phase: Phase, index: int) -> bool:
        """The rule of the search."""
        even = decide.everywhere(samples.median_ms("b"), samples.median_ms("a"), self.positions, self.mad)
        return even.passed and decide.paired_test(samples.log_ratios, self.mad, ROUNDS[phase], index).passed


def renamed(ready: Ready, number: int) -> Ready:
    return replace(ready, candidate=replace(ready.candidate, key=f"{number:04d}{ready.candidate.key[4:]}"))


def subject(target: Target, model: str, simulated: bool) -> Ready:
    """The hand-tuned plan, certified and compiled."""
    spec = load_model(model)
    workshop = Workshop(spec, target, min(CONTEXT, spec.max_context))
    candidate = workshop.make(FAST)
    assert isinstance(candidate, Candidate)
    if simulated:
        return Ready(candidate, b"", Judgement("SAFE"))
    gated, ready = Gate(workshop, certify.installed()).judge(0, candidate)
    assert ready is not None, gated
    return ready


def backend_of(target: Target, simulated: bool, log: Path, head_start: int | None = None) -> Backend:
    if simulated:
        return SimulatedBackend(target.name, 1, noise=Noise("heavy", 0.006))
    gpu = matching(target, local_gpus())[0]
    command = WORKER if head_start is None else (sys.executable, "-m", "tests.agent.hasty_worker", str(head_start))
    return ServerBackend(Post(gpu.name, gpu.ordinal, log, gpu.uuid, command))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--positions", type=int, nargs="+", default=list(POSITIONS))
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--head-start", type=int, help="clock cycles that the GPU is kept busy before each step")
    parser.add_argument("--chain", action="store_true", help="every copy is the incumbent of the next pair")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    target, began = load_target(options.gpu), time.monotonic()
    with TemporaryDirectory() as folder:
        backend = backend_of(target, options.simulated, Path(folder) / "worker.log", options.head_start)

        def save(result: dict[str, Any]) -> str:
            text = json.dumps(described(result, backend, options, time.monotonic() - began), indent=1)
            if options.record is not None:
                write_whole(options.record, text + "\n")
            return text

        try:
            ready = subject(target, options.model, options.simulated)
            found = Night(backend, ready, tuple(options.positions), options.chain).run(options.pairs, save)
        finally:
            backend.close()
    print(save(found))
    return 1 if found["kept"] else 0


def described(result: dict[str, Any], backend: Backend, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """The content of the record; a night that was cut short says how many pairs it has and how many were asked for."""
    words = f"python -m tests.agent.aa_night --pairs {options.pairs} --model {options.model}"
    words += " --chain" if options.chain else ""
    words += f" --head-start {options.head_start}" if options.head_start is not None else ""
    return {
        "format": 1, "name": "aa-night", **result, "pairs asked for": options.pairs, "model": options.model,
        "device": backend.device, "seconds": round(seconds, 1),
        "run": {
            "command": words + (" --simulated" if options.simulated else ""),
            "commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "hardware": f"{backend.label}, {os.cpu_count()} cores",
        },
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
