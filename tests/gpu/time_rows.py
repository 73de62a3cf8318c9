"""Time of steps of several rows beside those of one row and of a batch, and of prompts read by them, on this GPU.

python -m tests.gpu.time_rows MODEL [PLAN,..]   prints one JSON object a line: a plan's step at a position, or a prompt.
Every plan has its own copy of the weights, so name those that fit in memory together; by default all.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import torch

from amk.api.loading import target_here
from amk.bench.decode_bench import own
from amk.bench.subject import Subject
from amk.bench.timing import race
from amk.bench.torch_model import TorchWeights
from amk.engine.admission.admission import admitted
from amk.lowering.kernel import build
from amk.models.model import load_model
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import BF16, layered
from amk.planner.settings import FAST, Settings
from amk.planner.tuned import tuned
from amk.targets.target import Target, load_target

CONTEXT, ROWS = 2560, 8
POSITIONS, PROMPTS = (16, 512, 2048), (64, 512, 2048)
MANY = 1000
"""Prompts of more tokens take too long token by token."""
STEPS, ROUNDS, REPEATS = 4, 30, 6


def plans(model: ModelSpec, target: Target) -> dict[str, Settings]:
    """By name: one row, with the copies and parts of the plan of several rows too, several rows, as large a batch."""
    alone = tuned(FAST, model, target, layered(model, BF16), target.sms, CONTEXT)
    return {
        "rows 1": FAST,
        "rows 1, chunk_bytes=2048;k_parts=4": replace(alone, plan="search", chunk_bytes=2048, k_parts=4),
        "rows 4": replace(FAST, rows=4),
        "rows 8": replace(FAST, rows=ROWS),
        "batch 8": replace(FAST, batch=ROWS),
        "rows 16": replace(FAST, rows=2 * ROWS),
        "batch 16": replace(FAST, batch=2 * ROWS),
    }


def subjects(model: ModelSpec, target: Target, names: Sequence[str]) -> dict[str, Subject]:
    """The plans with the same random weights; all if none is named."""
    weights, found = TorchWeights.random(model, 20), dict[str, Subject]()
    for name, settings in plans(model, target).items():
        if names and name not in names:
            continue
        schedule = plan(model, target, settings=settings, max_context=CONTEXT)
        found[name] = Subject.random(admitted(schedule, build(schedule).compiled.cubin), 20, weights)
        torch.cuda.empty_cache()
    return found


def prompt_ms(subject: Subject, length: int) -> float:
    """Milliseconds in which the kernel reads a prompt, as the host sees it."""
    engine, schedule = subject.engine, subject.schedule
    prompt = np.arange(schedule.kv.context, dtype=np.int32) * 7 % schedule.model.vocab
    engine.upload("prompt", prompt)
    engine.upload("request", np.array([length, -1, -1, -1, -1], np.int32))
    torch.cuda.synchronize()
    began = time.perf_counter()
    engine.set_state(token=int(prompt[0]), pos=0, done=0)
    left = length // schedule.rows
    while left:
        now = min(left, schedule.launch.max_tokens)
        engine.step(now)
        left -= now
    return (time.perf_counter() - began) * 1e3


def measure(name: str, names: Sequence[str]) -> None:
    made = subjects(load_model(name), load_target(target_here()), names)
    for pos in POSITIONS:
        for subject in made.values():
            subject.load_cache()
        times = race([replace(own(subject, pos, STEPS), name=plan) for plan, subject in made.items()], ROUNDS)
        for plan_name, found in times.items():
            print(json.dumps({"model": name, "pos": pos, "plan": plan_name, **asdict(found)}), flush=True)
    several = [plan_name for plan_name in made if made[plan_name].schedule.rows > 1]
    for length in PROMPTS if several else ():
        for plan_name in ["rows 1"] * ("rows 1" in made and length < MANY) + several:
            found = sorted(prompt_ms(made[plan_name], length) for _ in range(REPEATS))
            median, least, most = found[len(found) // 2], found[0], found[-1]
            shown = {"prompt": length, "plan": plan_name, "ms": median, "least": least, "most": most}
            print(json.dumps({"model": name, **shown}), flush=True)
    for subject in made.values():
        subject.free()
    made.clear()
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    measure(sys.argv[1], sys.argv[2].split(",") if len(sys.argv) > 2 else ())
