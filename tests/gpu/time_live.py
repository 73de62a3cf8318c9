"""Live batches on this GPU: what a position for each sequence costs beside one for all, and texts that come and go.

timeout 300 python -m tests.gpu.time_live MODEL[:FORMAT[:BATCH]] ...   (checks: pytest tests/gpu/test_live_batches.py)

Prints one JSON object a line: milliseconds of a step of the batch with one position, and of the live one with all
sequences there, and spread over the context; then seconds and tokens a second of 24 texts of 32 prompt and 128 new
tokens, one after the other and as many at once as there are sequences.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import torch
from pydantic import TypeAdapter

from amk.bench.table.decode_bench import own
from amk.bench.tools.subject import Subject
from amk.bench.tools.timing import take_turns
from amk.bench.tools.torch_model import TorchWeights
from amk.engine.admission.admission import admitted
from amk.engine.backends.live_backend import LiveBackend
from amk.lowering.kernel import build
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST, Settings
from amk.schedule_ir.sampling import GREEDY
from amk.targets.target import load_target
from amk.weights.weight_format import FormatName

CONTEXT, BATCH = 2560, 8
POSITIONS = (16, 512, 2048)
STEPS, ROUNDS = 4, 20
TEXTS, PROMPT, NEW = 24, 32, 128


def subject(model: str, form: FormatName, settings: Settings, weights: TorchWeights) -> Subject:
    target, wanted = load_target("h200"), formats(form)
    schedule = plan(load_model(model), target, settings=settings, formats=wanted, max_context=CONTEXT)
    return Subject.random(admitted(schedule, build(schedule).compiled.cubin), 20, weights)


def spread(batch: int) -> list[int]:
    """Positions from the first to the last of `POSITIONS`."""
    first, last = POSITIONS[0], POSITIONS[-1]
    return [first + (last - first) * s // (batch - 1) for s in range(batch)]


def texts_per_s(live: Subject, workers: int) -> dict[str, float]:
    """Seconds, and new tokens a second, of `TEXTS` texts."""
    backend, vocab = LiveBackend(live.engine), live.schedule.model.vocab

    def run(number: int) -> int:
        text = [(31 * number + 7 * n + 1) % vocab for n in range(PROMPT)]
        while len(text) < PROMPT + NEW:
            text += backend.extend(text, PROMPT + NEW - len(text), GREEDY, ())
        return len(text) - PROMPT

    began = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        tokens = sum(pool.map(run, range(TEXTS)))
    seconds = time.perf_counter() - began
    return {"seconds": round(seconds, 3), "tokens_per_s": round(tokens / seconds, 1)}


def measure(case: str) -> None:
    model, named, count = (*case.split(":"), "", "")[:3]
    form = TypeAdapter[FormatName](FormatName).validate_python(named or "bf16")
    batch = int(count or BATCH)
    weights = TorchWeights.random(load_model(model), 20)
    one = subject(model, form, replace(FAST, batch=batch), weights)
    live = subject(model, form, replace(FAST, batch=batch, live=True), weights)
    for pos in POSITIONS:
        for each in (one, live):
            each.load_cache()
            each.start(1, pos)
        contestants = [replace(own(one, pos, STEPS), name="one position"), replace(own(live, pos, STEPS), name="live")]
        if pos == POSITIONS[-1]:
            prepare: Callable[[], None] = lambda: live.place(1, spread(batch))  # noqa: E731
            contestants.append(replace(own(live, pos, STEPS), name="live, spread", prepare=prepare))
        for name, found in take_turns(contestants, ROUNDS).items():
            print(json.dumps({"model": case, "pos": pos, "batch": name, **asdict(found)}), flush=True)
    for workers in (1, batch):
        print(json.dumps({"model": case, "texts at once": workers, **texts_per_s(live, workers)}), flush=True)
    one.free()
    live.free()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        measure(wanted)
