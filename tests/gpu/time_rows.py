"""Time of steps of several rows beside those of one row and of a batch, and of prompts read by them, on this GPU.

python -m tests.gpu.time_rows MODEL [PLAN,..]   prints one JSON object a line: a plan's logits or step at a position, or
a prompt. Every plan has its own copy of the weights, so name those that fit in memory together; by default all. A name
may have settings behind it: "rows 8: kv_splits=8;hints=act". Logits are those of as many rows as the widest step has:
beside the plan with the fewest rows, the first ones beside fp64. Of a plan without output head keys and values of as
many rows are compared, bit by bit, with those of the plan with one.
With "prepare" behind, kernels are only proved, compiled and sealed, so that the next start measures at once; with
"ablate", a step of each plan is timed without its staging, products, waits, attention, and all but its copies.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch

from amk.api.devices import target_here
from amk.bench.table.ablated import AblatedKernel, ablated_cubins
from amk.bench.table.ablation import WORK
from amk.bench.table.decode_bench import own
from amk.bench.tools.accuracy import relative_error
from amk.bench.tools.device_packing import streamed
from amk.bench.tools.subject import Subject
from amk.bench.tools.timing import take_turns
from amk.bench.tools.torch_model import TorchDecoder, TorchWeights
from amk.engine.admission.admission import AdmittedKernel, started
from amk.models.model import load_model
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import BF16, layered
from amk.planner.settings import FAST, Settings
from amk.planner.tuned import tuned
from amk.prefill.views import view
from amk.targets.target import Target, load_target

CONTEXT, ROWS = 2560, 8
CACHES = ("k_cache", "v_cache")
POSITIONS, PROMPTS = (16, 512, 2048), (64, 512, 2048)
MANY = 1000
"""Prompts of more tokens take too long token by token."""
STEPS, ROUNDS, REPEATS = 4, 30, 6
ABLATED_AT = 512
ABLATED = tuple(
    frozenset(part) for part in (["staging"], ["product"], ["staging", "product"], ["waits"], ["attention"], WORK)
)
HEADLESS = " headless"
EXACT = 2
"""Rows of a step that fp64 takes the time for."""


SEVENTHS = {f"rows {rows} k_parts=7": replace(FAST, rows=rows, k_parts=7) for rows in (1, ROWS)}
"""`down` of 7 * 2,048 columns: one row in copies of 4 KB and several in copies of 2 KB have one packing."""


def plans(model: ModelSpec, target: Target) -> dict[str, Settings]:
    """By name: one row, with the copies and parts of the plan of several rows too, several rows, as large a batch.

    alone: in chunks of one row group. headless: without output head.
    """

    def found(settings: Settings) -> Settings:
        return replace(tuned(settings, model, target, layered(model, BF16), target.sms, CONTEXT), plan="search")

    alone = {
        f"rows {rows} alone": replace(found(replace(FAST, rows=rows)), row_groups=1) for rows in (4 * ROWS, 8 * ROWS)
    }
    return {
        "rows 1": FAST,
        "rows 1 chunk_bytes=2048;k_parts=4": replace(found(FAST), chunk_bytes=2048, k_parts=4),
        **(SEVENTHS if model.ffn % (7 * 256) == 0 else {}),
        "rows 4": replace(FAST, rows=4),
        "rows 8": replace(FAST, rows=ROWS),
        "rows 8 tree": replace(FAST, rows=ROWS, tree=True),
        "batch 8": replace(FAST, batch=ROWS),
        "rows 16": replace(FAST, rows=2 * ROWS),
        "batch 16": replace(FAST, batch=2 * ROWS),
        "rows 32": replace(FAST, rows=4 * ROWS),
        "rows 64": replace(FAST, rows=8 * ROWS),
        **alone,
        **{f"rows {rows}{HEADLESS}": replace(FAST, rows=rows, headless=True) for rows in (4 * ROWS, 8 * ROWS)},
    }


def settings_of(name: str, settings: Settings, model: ModelSpec, target: Target) -> Settings:
    """The plan before the colon with the settings behind it, `rows 8: kv_splits=8;pollers=all`."""
    words = dict(word.split("=") for word in name.partition(": ")[2].split(";"))
    base = tuned(settings, model, target, layered(model, BF16), target.sms, CONTEXT)
    values: dict[str, Any] = {}
    for key, word in words.items():
        values[key] = json.loads(word) if word[0].isdigit() else word
    return replace(base, plan="search", **values)


def kernel(model: ModelSpec, target: Target, settings: Settings) -> AdmittedKernel:
    """Planned, proved, compiled and sealed, in a process of its own."""
    return started(plan(model, target, settings=settings, max_context=CONTEXT))


def kernels(model: ModelSpec, target: Target, names: Sequence[str]) -> dict[str, AdmittedKernel]:
    """Those of the plans, made at once; all if none is named."""
    every = plans(model, target)
    wanted = {name: settings for name, settings in every.items() if not names or name in names}
    for name in names:
        if ": " in name:
            wanted[name] = settings_of(name, every[name.partition(": ")[0]], model, target)
    began = time.perf_counter()
    with ProcessPoolExecutor(len(wanted), mp_context=get_context("spawn")) as pool:
        futures = {name: pool.submit(kernel, model, target, settings) for name, settings in wanted.items()}
        found = {name: each.result() for name, each in futures.items()}
    print(json.dumps({"model": model.name, "kernels_s": round(time.perf_counter() - began, 1)}), flush=True)
    return found


def subjects(model: ModelSpec, target: Target, names: Sequence[str]) -> dict[str, Subject]:
    """The plans with the same random weights; all if none is named."""
    every = kernels(model, target, names)
    weights, found = TorchWeights.random(model, 20, drawn=True), dict[str, Subject]()
    stream = streamed(next(iter(every.values())).schedule, weights)
    for name, each in every.items():
        found[name] = Subject.random(each, 20, weights, stream)
        torch.cuda.empty_cache()
    return found


def stand(subject: Subject, tokens: Sequence[int], pos: int) -> None:
    """Before tokens at `pos` and behind, scratch poisoned."""
    engine, schedule = subject.engine, subject.schedule
    subject.load_cache()
    engine.poison()
    engine.upload("request", np.array([pos + len(tokens), -1, -1, -1, -1], np.int32))
    prompt = np.zeros(schedule.kv.context, np.int32)
    prompt[pos : pos + len(tokens)] = tokens
    engine.upload("prompt", prompt)
    engine.set_state(token=tokens[0], pos=pos, done=0)


def row_logits(subject: Subject, tokens: Sequence[int], pos: int) -> torch.Tensor:
    """f32 [tokens, vocab] on the GPU of tokens at `pos` and behind."""
    engine, schedule, found = subject.engine, subject.schedule, list[torch.Tensor]()
    stand(subject, tokens, pos)
    for _ in range(len(tokens) // schedule.rows):
        engine.step(1)
        found.append(torch.from_numpy(engine.logits().reshape(schedule.rows, -1).copy()).cuda())
    return torch.cat(found)


def row_caches(subject: Subject, tokens: Sequence[int], pos: int) -> torch.Tensor:
    """Keys and values of tokens at `pos` and behind, bits [2, layers, heads, tokens, head_dim] on the GPU."""
    stand(subject, tokens, pos)
    subject.engine.step(len(tokens) // subject.schedule.rows)
    found = [view(subject.engine, name).view(torch.int16) for name in CACHES]
    return torch.stack([cache[:, :, pos : pos + len(tokens)] for cache in found])


def cache_agreement(by_plan: dict[str, Subject], pos: int) -> Iterator[dict[str, Any]]:
    """Of each plan without output head: whether two runs, and the plan with one, leave the same bits."""
    for name, subject in by_plan.items():
        if not subject.schedule.headless:
            continue
        twin, rows = by_plan.get(name.removesuffix(HEADLESS)), 2 * subject.schedule.rows
        tokens = [(1000 + pos + 7 * r) % subject.schedule.model.vocab for r in range(rows)]
        first, second = row_caches(subject, tokens, pos), row_caches(subject, tokens, pos)
        same = None if twin is None else torch.equal(first, row_caches(twin, tokens, pos))
        numbers = first.view(torch.bfloat16)
        yield {
            "plan": name, "pos": pos, "rows": rows, "equal": torch.equal(first, second), "as_with_head": same,
            "finite": bool(numbers.isfinite().all()),
        }  # fmt: skip


def agreement(by_plan: dict[str, Subject], pos: int) -> list[dict[str, Any]]:
    """Of each plan: whether two runs are bitwise equal, and how far its rows are from others'."""
    most = max(subject.schedule.rows for subject in by_plan.values())
    least = min(by_plan.values(), key=lambda subject: subject.schedule.rows)
    tokens = [(1000 + pos + 7 * r) % least.schedule.model.vocab for r in range(most)]
    reference, exact = row_logits(least, tokens, pos), dict[torch.dtype, torch.Tensor]()
    for dtype in (torch.float64, torch.bfloat16):
        decoder = TorchDecoder(least.source(dtype), least.k_cache.clone(), least.v_cache.clone(), dtype, "bf16")
        each = enumerate(torch.tensor(tokens[:EXACT], device="cuda")[:, None])
        rows = [decoder.step(token, pos + r, decoder.rope(pos + r)).double().reshape(-1) for r, token in each]
        exact[dtype] = torch.stack(rows)
    torch_error = relative_error(exact[torch.bfloat16], exact[torch.float64])
    found = []
    for name, subject in by_plan.items():
        if most % subject.schedule.rows:
            continue
        first, second = row_logits(subject, tokens, pos), row_logits(subject, tokens, pos)
        worst = max(relative_error(first[r], reference[r].double()) for r in range(most))
        found.append(
            {
                "plan": name, "pos": pos, "rows": most, "equal": torch.equal(first, second), "to_least": worst,
                "argmax": int((first.argmax(-1) == reference.argmax(-1)).sum()), "finite": bool(first.isfinite().all()),
                "error": relative_error(first[:EXACT], exact[torch.float64]), "torch_error": torch_error,
            }
        )  # fmt: skip
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


def ablate(name: str, names: Sequence[str]) -> None:
    """Prints the times of every plan's kernel at a position, whole and with parts left out."""
    for plan_name, subject in subjects(load_model(name), load_target(target_here()), names).items():
        cubins = ablated_cubins(subject.schedule, ABLATED, len(ABLATED))
        subject.load_cache()
        others = [
            AblatedKernel(subject.engine, part, cubin).contestant(ABLATED_AT, STEPS) for part, cubin in cubins.items()
        ]
        for part, found in take_turns([own(subject, ABLATED_AT, STEPS), *others], ROUNDS).items():
            print(
                json.dumps({"model": name, "pos": ABLATED_AT, "plan": plan_name, "without": part, **asdict(found)}),
                flush=True,
            )
        for other in others:
            other.free()
        subject.engine.check()


def measure(name: str, names: Sequence[str]) -> None:
    by_plan = subjects(load_model(name), load_target(target_here()), names)
    for pos in POSITIONS if any(subject.schedule.rows > 1 for subject in by_plan.values()) else ():
        texts = {n: s for n, s in by_plan.items() if s.schedule.batch == 1 and not s.schedule.headless}
        lines = agreement(texts, pos) if texts else []
        for line in (*lines, *cache_agreement(by_plan, pos)):
            print(json.dumps({"model": name, **line}), flush=True)
    for pos in POSITIONS:
        for subject in by_plan.values():
            subject.load_cache()
        times = take_turns([replace(own(subject, pos, STEPS), name=plan) for plan, subject in by_plan.items()], ROUNDS)
        for plan_name, found in times.items():
            print(json.dumps({"model": name, "pos": pos, "plan": plan_name, **asdict(found)}), flush=True)
    several = [plan_name for plan_name in by_plan if by_plan[plan_name].schedule.rows > 1]
    for length in PROMPTS if several else ():
        for plan_name in ["rows 1"] * ("rows 1" in by_plan and length < MANY) + several:
            runs = sorted(prompt_ms(by_plan[plan_name], length) for _ in range(REPEATS))
            median, least, most = runs[len(runs) // 2], runs[0], runs[-1]
            shown = {"prompt": length, "plan": plan_name, "ms": median, "least": least, "most": most}
            print(json.dumps({"model": name, **shown}), flush=True)
    for subject in by_plan.values():
        subject.free()
    by_plan.clear()
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    chosen = sys.argv[2].split(",") if len(sys.argv) > 2 else ()
    if sys.argv[3:] == ["prepare"]:
        kernels(load_model(sys.argv[1]), load_target(target_here()), chosen)
    elif sys.argv[3:] == ["ablate"]:
        ablate(sys.argv[1], chosen)
    else:
        measure(sys.argv[1], chosen)
