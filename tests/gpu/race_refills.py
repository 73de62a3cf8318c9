"""When refills go out, raced on one GPU against today's defaults: `python -m tests.gpu.race_refills FOLDER --gpu h100`.

Every row is a race of `amk.bench.contest`, whose record goes to FOLDER. What the simulator says of each contestant is
printed first, so that it cannot be chosen afterwards; `--predict` stops there and needs no GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from amk.bench.contestants import parse, schedule_of
from amk.simulator.predict import step_ms

POSITION, CONTEXT = 128, 8192
UNADOPTED = ("held_refills=1/6", "chunk_bytes=2048; hint_slack=4", "hint_slack=4")
CARRIED = ("carried=True", "carried=True; first_refills=0.0")
RACES: dict[tuple[str, str, str | None], tuple[str, ...]] = {
    ("llama3.2-1b", "int8", None): (*CARRIED, "carried=True; held_refills=1/3", *UNADOPTED, "paced=True"),
    ("llama3-8b", "int8", None): (*CARRIED, "carried=True; paced=False", *UNADOPTED),
    ("llama3-8b", "int4-g128", None): (*CARRIED, "carried=True; paced=False", "held_refills=1/6", "hint_slack=4"),
    ("llama3-8b", "int4-g128-zp", "bf16"): ("paced=False", *CARRIED),
    ("llama3.2-1b", "bf16", None): ("paced=True", "carried=True"),
    ("llama3-8b", "bf16", None): ("paced=True", *CARRIED),
}
"""By model, format and that of lm_head: what is changed of the default."""


def command(race: tuple[str, str, str | None], gpu: str) -> list[str]:
    """The arguments of the contest."""
    model, dtype, head = race
    head_of = ["--lm-head", head] if head else []
    places = ["--positions", str(POSITION), "--context", str(CONTEXT)]
    return ["--model", model, "--gpu", gpu, "--dtype", dtype, *head_of, *places, *RACES[race]]


def predicted(arguments: Sequence[str], changes: str) -> float:
    """Simulated milliseconds of a token."""
    return step_ms(schedule_of(parse(arguments), changes), POSITION)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", default="h100")
    parser.add_argument("--predict", action="store_true")
    chosen = parser.parse_args(argv)
    worst = 0
    for race in RACES:
        arguments = command(race, chosen.gpu)
        default = predicted(arguments, "")
        print(" ".join(arguments[:6]), f"default {default:.4f} ms simulated", flush=True)
        for changes in RACES[race]:
            print(f"  {predicted(arguments, changes) / default:.3f} {changes}", flush=True)
        if not chosen.predict:
            from amk.bench import contest  # needs torch

            name = f"{chosen.gpu}-refills-{race[0]}-{race[1]}.json"
            record = ["--record", str(chosen.folder / name)]
            worst = max(worst, contest.main([*record, *arguments]))
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
