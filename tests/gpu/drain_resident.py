"""How fast code for sm_80, 86 and 89 drains weights that are resident in L2, beside what its own GPU's memory supplies.

    python -m tests.gpu.drain_resident --gpu h100 --record FILE      (this GPU's name among the targets; 200 s)

A plan for another GPU runs here from its PTX, on few SMs, so that L2 does not limit it, with two models of one layer
that differ in the width of the feed-forward part alone: bytes more over time more is the rate of draining, in which
hand-offs cancel. Times the ratio of clocks it should be at least `CATCH_UP` times what memory supplies to an SM there.
Logits are held to fp64 and two runs are bitwise equal, as in test_targets.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from amk.bench.table.decode_bench import needed_bytes, own
from amk.bench.tools.hardware import provenance
from amk.bench.tools.timing import take_turns
from amk.bench.tools.torch_model import TorchWeights
from amk.lowering.kernel import build
from amk.lowering.launch import Device
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.weights.weight_format import FormatName
from tests.gpu.subjects import loaded
from tests.gpu.test_targets import check
from tests.simulator.gpus import clock_ghz
from tests.tiny import tiny

GPUS = ("l4", "rtx4090", "a100", "a10g")
FORMATS: tuple[FormatName, ...] = ("bf16", "int8", "int4-g128")
WIDTHS = (1024, 4096)
WORKERS, TOKENS, ROUNDS, POSITION, CATCH_UP = 32, 16, 30, 128, 3


def layer(ffn: int) -> ModelSpec:
    """At most 31 MB in bf16."""
    return tiny(f"resident-{ffn}", layers=1, hidden=1024, ffn=ffn, heads=16, kv_heads=4, vocab=1024, max_context=512)


def schedules(gpu: str, form: FormatName) -> list[Schedule]:
    target = load_target(gpu)
    return [plan(layer(ffn), target, workers=WORKERS, max_context=512, formats=formats(form)) for ffn in WIDTHS]


def ptx(gpu: str, form: FormatName) -> list[str]:
    return [build(schedule).compiled.ptx for schedule in schedules(gpu, form)]


def row(gpu: str, form: FormatName, images: Sequence[str], here: str) -> dict[str, Any]:
    target, times, sizes = load_target(gpu), [], []
    for schedule, image in zip(schedules(gpu, form), images, strict=True):
        with loaded(schedule, TorchWeights.random(schedule.model, 5), image=image) as subject:
            check(subject, (0, POSITION))
            times.append(take_turns([own(subject, POSITION, TOKENS)], ROUNDS)["amk"])
            sizes.append(needed_bytes(schedule, POSITION))
    rate = (sizes[1] - sizes[0]) / (times[1].ms - times[0].ms) / 1e6 / WORKERS
    ratio, supply = clock_ghz(target) / clock_ghz(load_target(here)), target.read_ceiling_gbps / target.sms
    return {
        "gpu": gpu, "arch": target.arch, "format": form, "ms": [each.ms for each in times],
        "p10": [each.p10 for each in times], "p90": [each.p90 for each in times], "bytes": sizes, "workers": WORKERS,
        "drain_here_gbps": round(rate, 1), "drain_there_gbps": round(rate * ratio, 1), "supply_gbps": round(supply, 2),
        "times_supply": round(rate * ratio / supply, 2),
    }  # fmt: skip


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--record", type=Path, required=True)
    chosen = parser.parse_args(argv)
    cases = [(gpu, form) for gpu in GPUS for form in FORMATS]
    command = f"python -m tests.gpu.drain_resident --gpu {chosen.gpu} --record FILE"
    found: dict[str, Any] = {"run": provenance(command, Device.open()), "rows": []}
    with ProcessPoolExecutor(6, mp_context=get_context("spawn")) as pool:
        for case, images in zip(cases, pool.map(ptx, *zip(*cases, strict=True)), strict=True):
            found["rows"].append(row(*case, images, chosen.gpu))
            chosen.record.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(json.dumps(found["rows"][-1]), flush=True)
    return int(any(each["times_supply"] < CATCH_UP for each in found["rows"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
