"""Activations staged by bulk copies, raced on one GPU: `python -m tests.gpu.race_bulk FOLDER --gpu h200 --batches 8`.

The default plan and one with `down` in 7 parts are admitted kernels and compared with fp64. The others are made of them
(bulk_staging.py), run on their buffers and have to give the same logits, bit for bit.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from amk.bench.ablated import AblatedKernel
from amk.bench.ablation import SYMBOL
from amk.bench.ceiling import read_ceiling
from amk.bench.contest import SEED, _checked, made
from amk.bench.contestants import parse, schedule_of
from amk.bench.decode_bench import own
from amk.bench.hardware import provenance
from amk.bench.subject import Subject
from amk.bench.timing import race
from amk.bench.torch_model import TorchWeights
from amk.lowering.compile import compile_cuda
from amk.lowering.launch import Device
from amk.prefill.views import view
from tests.gpu.bulk_staging import bulk_source

POSITIONS, CONTEXT, TOKENS = (128, 2044), 2048, 4
DEFAULT, PARTS = "default", "k_parts=7"
"""The most columns of which two parts fit in x: 14,336 / 7 = 2,048."""

BULK: dict[str, tuple[str, bool]] = {
    "bulk": ("", True),
    "bulk, 7 parts ahead": (PARTS, True),
    "bulk, 7 parts ahead, one barrier a part": (PARTS, False),
}
"""By name: changes of the default plan, and whether warps meet between staging and multiplying."""

Variants = dict[str, tuple[Subject, AblatedKernel]]
"""By name: whose buffers it runs on, and the kernel."""


def cubin(arguments: argparse.Namespace, name: str) -> bytes:
    changes, meet = BULK[name]
    schedule = schedule_of(arguments, changes)
    return compile_cuda(bulk_source(schedule, SYMBOL, meet=meet), schedule.target.arch).cubin


def same_logits(subject: Subject, variant: AblatedKernel, pos: int) -> bool:
    """Whether a launch of the variant leaves the logits of the admitted kernel."""
    engine, token = subject.engine, 1000 % subject.schedule.model.vocab
    subject.load_cache()
    expected = subject.logits(token, pos)
    subject.load_cache()
    engine.poison()
    subject.start(token, pos)
    variant.launch(engine.argument(1), engine.stream.handle)
    engine.stream.synchronise()
    engine.check()
    batch, vocab = subject.schedule.batch, subject.schedule.model.vocab
    found = view(engine, "logits").view(-1)[: batch * vocab].cpu()
    return bool(torch.equal(found, expected.reshape(-1).cpu()))


def entered(arguments: argparse.Namespace, pool: ProcessPoolExecutor) -> tuple[dict[str, Subject], Variants]:
    """The admitted kernels by their changes, and the others."""
    admitted = [pool.submit(made, arguments, changes) for changes in ("", PARTS)]
    cubins = {name: pool.submit(cubin, arguments, name) for name in BULK}
    kernels = [each.result() for each in admitted]
    weights = None
    subjects: dict[str, Subject] = {}
    for changes, kernel in zip(("", PARTS), kernels, strict=True):
        if isinstance(kernel, str):
            raise RuntimeError(f"{changes or 'default'}: {kernel}")
        weights = weights or TorchWeights.random(kernel.schedule.model, SEED, drawn=True)
        subjects[changes] = Subject.random(kernel, SEED, weights, (weights, weights))
        torch.cuda.empty_cache()
    return subjects, {
        name: (subjects[BULK[name][0]], AblatedKernel(subjects[BULK[name][0]].engine, name, each.result()))
        for name, each in cubins.items()
    }


def raced(arguments: argparse.Namespace, subjects: dict[str, Subject], variants: Variants) -> list[dict[str, Any]]:
    """A row for each kernel and position; `correct`: fp64's logits, or those of the kernel that it is made of."""
    rows = []
    for pos in arguments.positions:
        checked = dict(zip(subjects, _checked(list(subjects.values()), pos), strict=True))
        correct = {changes or DEFAULT: ok for changes, (_, _, ok) in checked.items()}
        correct |= {name: same_logits(*variant, pos) for name, variant in variants.items()}
        runners = [replace(own(each, pos, TOKENS), name=changes or DEFAULT) for changes, each in subjects.items()]
        times = race([*runners, *(kernel.contestant(pos, TOKENS) for _, kernel in variants.values())], arguments.steps)
        for name, found in times.items():
            ratio = found.ms / times[DEFAULT].ms
            rows.append({"name": name, "pos": pos, **asdict(found), "ratio": ratio, "correct": correct[name]})
            print(
                f"{found.ms:.4f} {found.p10:.4f} {found.p90:.4f} {ratio:.4f} {correct[name]} {pos} {name}", flush=True
            )
        error, torch_error, _ = checked[""]
        print(f"error of the default {error:.2e}, of torch in bf16 {torch_error:.2e}", flush=True)
    for subject in subjects.values():
        subject.engine.check()
        subject.free()
    return rows


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--batches", type=lambda t: [int(b) for b in t.split(",")], default=[8, 4, 16])
    chosen = parser.parse_args(argv)
    right, places = True, ["--positions", ",".join(map(str, POSITIONS)), "--context", str(CONTEXT)]
    with ProcessPoolExecutor(5, mp_context=get_context("spawn")) as pool:
        for batch in chosen.batches:
            arguments = parse(["--model", "llama3-8b", "--gpu", chosen.gpu, "--batch", str(batch), *places, PARTS])
            device = Device.open()
            ceiling = read_ceiling(device)
            print(f"batch {batch}; read ceiling {ceiling:.0f} GB/s", flush=True)
            rows = raced(arguments, *entered(arguments, pool))
            found = {
                "run": provenance("python -m tests.gpu.race_bulk FOLDER", device),
                "ceiling_gbps": ceiling,
                "rows": rows,
            }
            path = chosen.folder / f"{chosen.gpu}-bulk-{batch}.json"
            path.write_text(json.dumps(found, indent=1), encoding="utf-8")
            right &= all(row["correct"] for row in rows)
            gc.collect()
            torch.cuda.empty_cache()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
