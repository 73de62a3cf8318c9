"""When refills go out, raced on one GPU against today's defaults: `python -m tests.gpu.race_refills FOLDER --gpu h100`.

Every row is a race of `amk.bench.contest`, whose record goes to FOLDER. What the simulator says of each contestant is
printed first, so that it cannot be chosen afterwards; `--predict` stops there and needs no GPU. All contestants of all
races are proved and compiled side by side while races run.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from amk.bench.tools.contestants import parse, schedule_of
from amk.simulator.predict import step_ms

POSITION, CONTEXT = 128, 8192
NICE = 10
"""Of the processes that prove and compile, so that the one that measures is not held up."""

UNADOPTED = ("held_refills=1/6", "chunk_bytes=2048; hint_slack=4", "hint_slack=4")
SMALL = "chunk_bytes=2048; hint_slack=4"
RACES: dict[tuple[str, str, str | None], tuple[str, ...]] = {
    ("llama3-8b", "int8", None): (
        "carried=2/3", "carried=2/3; held_refills=1/4", "carried=1/3", "carried=2/3; paced=False", *UNADOPTED,
    ),
    ("llama3.2-1b", "int8", None): (
        "carried=1/2", "carried=1/3", "carried=2/3; first_refills=0.0", "carried=1/4", "carried=1/3; held_refills=1/3",
        "carried=1/2; hint_slack=4", SMALL, f"carried=1/2; {SMALL}", f"carried=1/4; {SMALL}", f"carried=1/3; {SMALL}",
        "chunk_bytes=2048", "carried=1/3; chunk_bytes=2048",
    ),
    ("llama3-8b", "int4-g128", None): (
        "carried=1/3", "carried=1/6", "carried=1/3; paced=False", "carried=1/3; first_refills=0.0", "held_refills=1/6",
        "hint_slack=4",
    ),
    ("llama3-8b", "fp8", None): ("carried=2/3", "carried=1/3", "hint_slack=4"),
    ("llama3.2-1b", "bf16", None): ("paced=True", "carried=1/3", "carried=1/6"),
    ("llama3-8b", "bf16", None): ("carried=2/3", "paced=False"),
    ("llama3-8b", "int4-g128-zp", "bf16"): ("carried=1/3", "paced=False"),
}  # fmt: skip
"""By model, format and that of lm_head: what is changed of the default."""

Race = tuple[str, str, str | None]


def command(race: Race, gpu: str) -> list[str]:
    """The arguments of the contest."""
    model, dtype, head = race
    head_of = ["--lm-head", head] if head else []
    places = ["--positions", str(POSITION), "--context", str(CONTEXT)]
    return ["--model", model, "--gpu", gpu, "--dtype", dtype, *head_of, *places, *RACES[race]]


def entrant(arguments: argparse.Namespace, changes: str, race: bool) -> tuple[float, Any]:
    """Simulated milliseconds of a token, and the kernel, or why there is none."""
    predicted = step_ms(schedule_of(arguments, changes), POSITION)
    if not race:
        return predicted, None
    from amk.bench.contest import kernel_of  # needs torch

    return predicted, kernel_of(arguments, changes)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", default="h100")
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--races", nargs="+", metavar="MODEL:FORMAT", help="these alone (default: all)")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no race after so many seconds")
    chosen = parser.parse_args(argv)
    began, worst = time.monotonic(), 0
    races = [race for race in RACES if chosen.races is None or f"{race[0]}:{race[1]}" in chosen.races]
    parsed = {race: parse(command(race, chosen.gpu)) for race in races}
    context = get_context("spawn")
    with ProcessPoolExecutor(chosen.processes, mp_context=context, initializer=os.nice, initargs=(NICE,)) as pool:
        found: dict[Race, list[Future[tuple[float, Any]]]] = {
            race: [pool.submit(entrant, arguments, changes, not chosen.predict) for changes in ("", *arguments.changes)]
            for race, arguments in parsed.items()
        }
        for race, arguments in parsed.items():
            if time.monotonic() - began > chosen.seconds:
                print("not begun in time:", *race, flush=True)
                for each in found[race]:
                    each.cancel()
                continue
            name = f"{chosen.gpu}-refills-{race[0]}-{race[1]}.json"
            worst = max(worst, _raced(arguments, [each.result() for each in found[race]], chosen.folder / name))
    return worst


def _raced(arguments: argparse.Namespace, entrants: Sequence[tuple[float, Any]], record: Path) -> int:
    """The exit code of the contest; 0 where there are predictions alone."""
    default = entrants[0][0]
    print(arguments.model, arguments.dtype, f"default {default:.4f} ms simulated", flush=True)
    for (predicted, _), changes in zip(entrants[1:], arguments.changes, strict=True):
        print(f"  {predicted / default:.3f} {changes}", flush=True)
    kernels = [kernel for _, kernel in entrants]
    if all(kernel is None for kernel in kernels):
        return 0
    from amk.bench import contest  # needs torch

    arguments.record = record
    return contest.compared(arguments, kernels)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
