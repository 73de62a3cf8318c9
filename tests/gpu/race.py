"""Kernels of one model beside the default plan's, in turn on one GPU: `python -m tests.gpu.race --help`.

`--kernel NAME=CODE CHANGES` enters one: CHANGES are of the default plan, as in `amk.bench.contest`; CODE is a folder of
device headers (like amk/lowering/cuda) or a checkout (which has amk/lowering), whose emitter and headers make the
machine code of that plan. Both may be empty: `again=` enters the default twice, which says what the race cannot tell
apart. NAME@MODEL=... enters in races of one model alone.

Kernels of this tree are admitted, in engines of their own. Code of another tree is launched, under the symbol of
ablations, on the buffers of the engine of its plan. Every kernel's logits stand beside its time: their error against
fp64, whether two runs have the same bits, and whether these are those of the same plan's own kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from amk.bench.table.ablation import SYMBOL
from amk.bench.tools.contestants import parse, schedule_of
from amk.bench.tools.times import finite
from amk.lowering import headers
from amk.lowering.abi import abi
from amk.lowering.compile import compile_cuda
from amk.lowering.emit import KERNEL, emit
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import save_schedule
from amk.schedule_ir.schedule import Schedule

if TYPE_CHECKING:
    import torch

    from amk.bench.tools.subject import Subject
    from amk.bench.tools.timing import Contestant

POSITION, CONTEXT, TOKENS = 128, 8192, 4
DEFAULT = "default"
OWN = headers.read_header
NICE = 10
"""Of the processes that prove and compile, so that the one that measures is not held up."""

ELSEWHERE = """
import sys
from pathlib import Path
import amk
from amk.lowering.compile import compile_cuda
from amk.lowering.emit import KERNEL, emit
from amk.schedule_ir.codec import load_schedule
folder, symbol, checkout = sys.argv[1:]
assert Path(amk.__file__).resolve().is_relative_to(checkout), f"{amk.__file__} is not of {checkout}"
schedule = load_schedule(Path(folder, "schedule.json"))[0]
source = emit(schedule).replace(KERNEL, symbol)
Path(folder, "source.cu").write_text(source)
Path(folder, "cubin").write_bytes(compile_cuda(source, schedule.target.arch).cubin)
"""
"""What a process of another checkout does; its own amk is the one that it imports."""


class LeftOut(RuntimeError):
    """Why a kernel takes no part."""


@dataclass(frozen=True)
class Variant:
    """A kernel of the race. code: folder of what it is made by, None for this tree; changes: of the default plan;
    model: the only one whose races it is in, None for all."""

    name: str
    code: Path | None = None
    changes: str = ""
    model: str | None = None

    @classmethod
    def parse(cls, text: str) -> Variant:
        """NAME[@MODEL]=CODE CHANGES, of which CODE and CHANGES may be empty."""
        name, equals, rest = text.partition("=")
        name, _, model = name.partition("@")
        code, _, changes = rest.partition(" ")
        folder = Path(code).resolve() if code else None
        if not equals or name in ("", DEFAULT):
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME=CODE CHANGES")
        if folder is not None and not any((folder / part).exists() for part in ("sync.cuh", "amk/lowering/emit.py")):
            raise argparse.ArgumentTypeError(f"{folder} has neither device headers nor amk/lowering")
        return cls(name, folder, changes.strip(), model or None)

    def races(self, case: str) -> bool:
        return self.model in (None, case.partition(":")[0])


def planned(case: str, gpu: str, changes: str) -> Schedule:
    model, _, dtype = case.partition(":")
    places = ["--positions", str(POSITION), "--context", str(CONTEXT)]
    return schedule_of(parse(["--model", model, "--gpu", gpu, "--dtype", dtype or "bf16", *places, ""], None), changes)


def compiled(code: Path, schedule: Schedule) -> bytes:
    """Machine code of the plan as `code` makes it, under the symbol of ablations.

    LeftOut if it does not, or if that kernel takes another argument than the engine of this tree gives.
    """
    if (code / "sync.cuh").exists():
        headers.read_header = lambda name: (code / name.removeprefix(headers.PREFIX)).read_text("utf-8")
        try:
            return compile_cuda(emit(schedule).replace(KERNEL, SYMBOL), schedule.target.arch).cubin
        finally:
            headers.read_header = OWN
    with tempfile.TemporaryDirectory() as folder:
        save_schedule(schedule, Path(folder, "schedule.json"))
        done = subprocess.run(
            [sys.executable, "-c", ELSEWHERE, folder, SYMBOL, str(code)],
            cwd=code, env=os.environ | {"PYTHONPATH": str(code)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise LeftOut(f"{code} makes no kernel of it: {done.stderr.strip().splitlines()[-1]}")
        if abi(schedule).struct() not in Path(folder, "source.cu").read_text():
            raise LeftOut(f"the kernel of {code} takes another argument")
        return Path(folder, "cubin").read_bytes()


def kernel_of(variant: Variant, case: str, gpu: str) -> tuple[Any, bytes | None]:
    """The admitted kernel of the variant's plan, and the code that is raced instead of it, if it is another tree's.

    LeftOut for a plan that is not SAFE or cannot be compiled.
    """
    from amk.engine.admission.admission import admit, admitted
    from amk.lowering.kernel import build

    try:
        schedule = planned(case, gpu, variant.changes)
        admit(schedule)
        kernel = admitted(schedule, build(schedule).compiled.cubin)
        return kernel, None if variant.code is None else compiled(variant.code, schedule)
    except AmkError as error:
        raise LeftOut(str(error).splitlines()[0]) from error


@dataclass(frozen=True)
class Entrant:
    """A kernel that takes part. logits: of two runs, f32 on the GPU; own: those of this tree's kernel of the plan."""

    variant: Variant
    contestant: Contestant
    logits: tuple[torch.Tensor, torch.Tensor]
    own: torch.Tensor


def raced(case: str, entered: Mapping[Variant, tuple[Any, bytes | None]], rounds: int) -> list[dict[str, Any]]:
    """A line for each kernel, the default's first: its times, and round by round their ratio to the default's."""
    import torch

    from amk.bench.contest import SEED, _packed_already
    from amk.bench.tools.accuracy import relative_error, within_tolerance
    from amk.bench.tools.device_packing import streamed
    from amk.bench.tools.subject import Subject
    from amk.bench.tools.times import summary
    from amk.bench.tools.timing import laps
    from amk.bench.tools.torch_model import TorchWeights

    default = next(iter(entered.values()))[0].schedule
    weights = TorchWeights.random(default.model, SEED, drawn=True)
    stream, subjects = streamed(default, weights), dict[str, Subject]()
    for variant, (kernel, _) in entered.items():
        if variant.changes not in subjects:
            packed = _packed_already(kernel.schedule, list(subjects.values()))
            subjects[variant.changes] = Subject.random(kernel, SEED, weights, stream, packed)
    entrants = [
        entrant(variant, subjects[variant.changes], code, default.model.vocab) for variant, (_, code) in entered.items()
    ]
    token = 1000 % default.model.vocab
    reference = subjects[""].torch_logits(token, POSITION, torch.float64)
    torch_error = relative_error(subjects[""].torch_logits(token, POSITION, torch.bfloat16), reference)
    times, stalls = laps([each.contestant for each in entrants], rounds)
    for subject in subjects.values():
        subject.engine.check()
    lines = []
    for each in entrants:
        first, second = each.logits
        error, name = relative_error(first, reference), each.variant.name
        lines.append(
            {
                "case": case, "name": name, "changes": each.variant.changes,
                "code": each.variant.code and each.variant.code.name,
                **asdict(summary(times[name], stalls[name])), **paired(times[name], times[DEFAULT]),
                "error": error, "torch_error": torch_error, "same_bits": torch.equal(first, each.own),
                "correct": torch.equal(first, second) and within_tolerance(error, torch_error),
            }
        )  # fmt: skip
    for each in entrants:
        if each.variant.code is not None:
            each.contestant.free()
    for subject in subjects.values():
        subject.free()
    return lines


def entrant(variant: Variant, subject: Subject, code: bytes | None, vocab: int) -> Entrant:
    """The kernel with the logits of two runs. AMK604 if a wait of it does not end."""
    from amk.bench.table.ablated import AblatedKernel  # needs torch
    from amk.bench.table.decode_bench import own

    subject.load_cache()
    token = 1000 % vocab
    bits = subject.logits(token, POSITION)
    if code is None:
        contestant = replace(own(subject, POSITION, TOKENS), name=variant.name)
        return Entrant(variant, contestant, (subject.logits(token, POSITION), bits), bits)
    kernel = AblatedKernel(subject.engine, variant.name, code)
    runs = launched(kernel, subject, token), launched(kernel, subject, token)
    return Entrant(variant, kernel.contestant(POSITION, TOKENS), runs, bits)


def launched(kernel: Any, subject: Subject, token: int) -> torch.Tensor:
    """`Subject.logits` by another kernel."""
    import torch

    engine = subject.engine
    engine.poison()
    subject.start(token, POSITION)
    kernel.launch(engine.argument(1), engine.stream.handle)
    engine.stream.synchronise()
    engine.check()
    return torch.from_numpy(engine.read("logits", np.float32, subject.schedule.model.vocab)).cuda()


def paired(times: Sequence[float], base: Sequence[float]) -> dict[str, float]:
    """Of the ratios round by round: the median, the 10th and 90th percentile, and bounds of the median that hold in 95
    of 100 races whatever the ratios' distribution is: order statistics half a binomial's 1.96 deviations away from it.
    """
    ratios = sorted(a / b for a, b in zip(times, base, strict=True))
    count = len(ratios)
    beside = int(np.floor(count / 2 - 0.98 * np.sqrt(count)))
    low, high = (ratios[beside], ratios[count - 1 - beside]) if beside >= 0 else (0.0, float("inf"))
    p10, middle, p90 = (float(value) for value in np.percentile(ratios, (10, 50, 90)))
    return {"ratio": middle, "ratio_low": low, "ratio_high": high, "ratio_p10": p10, "ratio_p90": p90}


HEAD = "{:20} {:18} {:>7} {:>7} {:>7}  {:>6} [{:^13}]  {:>8}  ok  bits".format(
    "case", "kernel", "ms", "p10", "p90", "ratio", "95% of median", "error"
)
LINE = (
    "{case:20} {name:18} {ms:7.4f} {p10:7.4f} {p90:7.4f}  {ratio:6.4f} [{ratio_low:6.4f} {ratio_high:6.4f}]"
    "  {error:8.2e}  {right:3} {bits}"
)


def shown(line: Mapping[str, Any]) -> str:
    return LINE.format(**line, right="yes" if line["correct"] else "NO", bits="same" if line["same_bits"] else "other")


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.race", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kernel", type=Variant.parse, action="append", required=True, metavar="NAME=CODE CHANGES", dest="kernels",
        help="another kernel; again for each",
    )  # fmt: skip
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case after so many")
    parser.add_argument("--jobs", type=int, default=8, help="processes that prove and compile")
    parser.add_argument("--compile", action="store_true", help="stop behind the compiler: needs no GPU")
    parser.add_argument("--record", type=Path, help="write what is found to this JSON file, case by case")
    parser.add_argument("cases", nargs="+", metavar="MODEL[:FORMAT]")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """0 if everybody took part and is correct."""
    chosen, began = arguments(argv), time.monotonic()
    lines, missing = list[dict[str, Any]](), list[str]()
    with ProcessPoolExecutor(
        chosen.jobs, mp_context=get_context("spawn"), initializer=os.nice, initargs=(NICE,)
    ) as pool:
        pending: dict[str, dict[Variant, Future[tuple[Any, bytes | None]]]] = {
            case: {
                each: pool.submit(kernel_of, each, case, chosen.gpu)
                for each in (Variant(DEFAULT), *chosen.kernels)
                if each.races(case)
            }
            for case in chosen.cases
        }
        if not chosen.compile:
            print(HEAD, flush=True)
        for case, futures in pending.items():
            if time.monotonic() - began > chosen.seconds:
                missing.append(f"{case}: not begun in time")
                pool.shutdown(cancel_futures=True)
                continue
            entered, reasons = ready(case, futures)
            missing += reasons
            if chosen.compile or not any(each.name == DEFAULT for each in entered):
                continue
            try:
                found = raced(case, entered, chosen.rounds)
            except AmkError as error:  # a kernel that waits forever ends the races of its model
                missing.append(f"{case}: {error}")
                continue
            print("\n".join(map(shown, found)), flush=True)
            lines += found
            if chosen.record:
                chosen.record.write_text(
                    json.dumps(finite(recorded(argv, lines, missing)), indent=1) + "\n", encoding="utf-8"
                )
    for reason in missing:
        print(f"left out: {reason}", flush=True)
    return 0 if not missing and all(line["correct"] for line in lines) else 1


def ready(
    case: str, futures: Mapping[Variant, Future[tuple[Any, bytes | None]]]
) -> tuple[dict[Variant, tuple[Any, bytes | None]], list[str]]:
    """Those who take part, and why others do not."""
    entered, reasons = dict[Variant, tuple[Any, bytes | None]](), list[str]()
    for variant, each in futures.items():
        try:
            entered[variant] = each.result()
        except LeftOut as reason:
            reasons.append(f"{case} {variant.name}: {reason}")
    return entered, reasons


def recorded(argv: Sequence[str], lines: list[dict[str, Any]], missing: list[str]) -> dict[str, Any]:
    from amk.bench.tools.hardware import provenance
    from amk.lowering.launch import Device

    run = provenance("python -m tests.gpu.race " + " ".join(argv), Device.open())
    return {"format": 1, "run": run, "position": POSITION, "left_out": missing, "rows": lines}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
