"""Kernels of other device headers beside those of this tree, in one process: `python -m tests.gpu.race_headers --help`.

A change of op bodies alone is no setting, so `amk.bench.contest` cannot race it. The kernel of the default plan is
admitted, checked against fp64, and launched by its engine; the others are compiled under another symbol, and launched
on the buffers of that engine: their plans may differ in what is no buffer.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from amk.bench.ablation import SYMBOL
from amk.bench.contestants import parse, schedule_of
from amk.lowering import headers
from amk.lowering.compile import compile_cuda
from amk.lowering.emit import KERNEL, emit
from amk.schedule_ir.schedule import Schedule

POSITION, CONTEXT = 128, 8192
DEFAULT = "default"
OWN = headers.read_header


@dataclass(frozen=True)
class Variant:
    """A kernel of the race. folder: its headers, None for those of this tree; changes: of the default plan."""

    name: str
    folder: Path | None
    changes: str

    @classmethod
    def parse(cls, text: str) -> Variant:
        """NAME=FOLDER CHANGES, of which FOLDER and CHANGES may be empty."""
        name, _, rest = text.partition("=")
        folder, _, changes = rest.partition(" ")
        return cls(name, Path(folder).resolve() if folder else None, changes)

    def read(self, name: str) -> str:
        return (
            OWN(name) if self.folder is None else (self.folder / name.removeprefix(headers.PREFIX)).read_text("utf-8")
        )


def planned(case: str, gpu: str, changes: str) -> Schedule:
    model, dtype = case.split(":")
    places = ["--positions", str(POSITION), "--context", str(CONTEXT)]
    return schedule_of(parse(["--model", model, "--gpu", gpu, "--dtype", dtype, *places, "-"], None), changes)


def compiled(variant: Variant, case: str, gpu: str) -> bytes:
    """Machine code of the variant under the symbol of ablations."""
    schedule = planned(case, gpu, variant.changes)
    headers.read_header = variant.read
    return compile_cuda(emit(schedule).replace(KERNEL, SYMBOL), schedule.target.arch).cubin


def raced(case: str, default: Schedule, cubins: dict[str, Future[bytes]], rounds: int) -> list[dict[str, Any]]:
    """A line for each kernel: its times, and their ratio to those of the default plan."""
    from amk.bench.ablated import AblatedKernel  # needs torch
    from amk.bench.contest import SEED, _checked
    from amk.bench.decode_bench import own
    from amk.bench.subject import Subject
    from amk.bench.timing import race
    from amk.bench.torch_model import TorchWeights
    from amk.engine.admission.admission import admitted
    from amk.lowering.kernel import build

    kernel = admitted(default, build(default).compiled.cubin)
    subject = Subject.random(kernel, SEED, TorchWeights.random(default.model, SEED, drawn=True))
    error, torch_error, correct = _checked([subject], POSITION)[0]
    made = [AblatedKernel(subject.engine, name, cubin.result()) for name, cubin in cubins.items()]
    entered = [each.contestant(POSITION, 4) for each in made]
    times = race([*entered, replace(own(subject, POSITION, 4), name=DEFAULT)], rounds)
    subject.engine.check()
    subject.free()
    for contestant in entered:
        contestant.free()
    found = [
        {"case": case, "name": name, "ratio": each.ms / times[DEFAULT].ms, **asdict(each)}
        for name, each in times.items()
    ]
    return [{**line, "error": error, "torch_error": torch_error, "correct": correct} for line in found]


LINE = "{case:24} {name:14} {ms:.4f} {p10:.4f} {p90:.4f} {ratio:.4f} {error:.2e} {correct}"


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--kernel", type=Variant.parse, action="append", required=True, metavar="NAME=FOLDER CHANGES",
        help="another kernel: a folder like amk/lowering/cuda, changes of the plan as in amk.bench.contest",
    )  # fmt: skip
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no case after so many")
    parser.add_argument("--jobs", type=int, default=4, help="processes that compile")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("cases", nargs="+", metavar="MODEL:FORMAT")
    chosen = parser.parse_args(argv)
    began, lines = time.monotonic(), list[dict[str, Any]]()
    with ProcessPoolExecutor(chosen.jobs, mp_context=get_context("spawn")) as pool:
        cubins = {
            case: {each.name: pool.submit(compiled, each, case, chosen.gpu) for each in chosen.kernel}
            for case in chosen.cases
        }
        for case in chosen.cases:
            if time.monotonic() - began > chosen.seconds:
                print(f"no time for {case}")
                pool.shutdown(cancel_futures=True)
                break
            lines += raced(case, planned(case, chosen.gpu, ""), cubins[case], chosen.rounds)
            for line in lines[-len(chosen.kernel) - 1 :]:
                print(LINE.format(**line), flush=True)
            chosen.record.write_text(json.dumps(recorded(argv, lines), indent=1), encoding="utf-8")
    return 0 if lines and all(line["correct"] for line in lines) else 1


def recorded(argv: Sequence[str], lines: list[dict[str, Any]]) -> dict[str, Any]:
    from amk.bench.hardware import provenance
    from amk.lowering.launch import Device

    return {"run": provenance("python -m tests.gpu.race_headers " + " ".join(argv), Device.open()), "rows": lines}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
