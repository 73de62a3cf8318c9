"""Random kernels with an open loop, as files, against every interleaving of their first laps and longer unrollings.

    python -m tests.systems.long_loops --jobs 2 --seconds 3600 --record tests/records/proof/system-loops.json

A slice draws 25 systems, the whole run 100,000, half of them with barriers by phase and copies; every one is written as
a file and read back. A difference is a SAFE system whose certificate the checker refuses, of which exploration shows
something wrong for up to three laps, or the flat judge for more laps than the proof unrolled; an UNSAFE one whose
witness does not replay, or of whose unrolling exploration shows nothing; or an unrolling on which the file and Python
differ.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from amk.judges.replay import replay
from amk.report.diagnostic import AmkError
from amk.systems.document import to_json
from amk.systems.loop_certificate import loop_certificate
from amk.systems.loop_document import parse_loops
from amk.systems.loop_program import Program, judged_program
from amk.systems.loop_proof.check import check
from amk.systems.loop_writer import text_of
from amk.systems.loops import LoopSystem
from amk.systems.open_loop import LoopVerdict
from amk.systems.run_witness import replay_run
from amk.systems.verdict import judged
from tests import long_run
from tests.long_run import Run
from tests.systems.random_loop_rules import random_loop_rules
from tests.systems.random_loops import built, random_program
from tests.systems.rule_runs import Rules, TooMany

EACH, SLICES, STATES, EXPLORED = 25, 4000, 20_000, 3
FURTHER = (1, 2, 12)
FIRST = 12_000_000
"""The first seed: other than those of the tests."""


def compare(number: int) -> dict[str, Any]:
    """What slice `number` counts, and its differences."""
    counts: Counter[str] = Counter()
    differences = []
    for seed in range(FIRST + number * EACH, FIRST + (number + 1) * EACH):
        rng = Random(seed)
        try:
            system = random_loop_rules(rng, (0, 1, 1, 2)) if seed % 2 else built(random_program(rng))
            system.unrolled(3 * system.period)
        except AmkError:
            counts["no kernel"] += 1
            continue
        read = parse_loops(text_of(system).encode(), "loops.json")
        verdict = judged_program(read)
        if verdict.safe:
            certified = loop_certificate(verdict, read.document)
            if not check(read.document.model_dump(mode="json"), json.loads(json.dumps(certified))).accepted:
                differences.append(f"seed {seed}: the checker refuses the certificate")
        counts[verdict.verdict] += 1
        found = [*_round_trip(system, Program(read, {}, system.count).built()), *_differences(verdict, counts)]
        differences += [f"seed {seed}: {one}" for one in found]
    return {**counts, "differences": differences}


def _round_trip(document: LoopSystem, system: LoopSystem) -> Iterator[str]:
    if any(to_json(system.unrolled(laps).flat()) != to_json(document.unrolled(laps).flat()) for laps in (0, 1, 5)):
        yield "the file says another system"


def _differences(verdict: LoopVerdict, counts: Counter[str]) -> Iterator[str]:
    if verdict.unsafe is not None and verdict.verdict == "UNSAFE":
        wrong = _wrong(to_json(verdict.unsafe.system), counts)
        if wrong is not None and not wrong:
            yield f"UNSAFE, exploration finds nothing for {verdict.unsafe.system.name}"
        shown = verdict.unsafe.witness_json()
        ruled = shown is not None and "order" in shown
        if shown is None or not (replay_run(shown, "w") if ruled else replay(shown["system"], shown["witness"])):
            yield "the witness does not replay"
    elif verdict.safe:
        for laps in range(EXPLORED + 1):
            if wrong := _wrong(to_json(verdict.system.unrolled(laps).flat()), counts):
                yield f"SAFE, exploration finds {sorted(wrong)} for {laps} laps"
        if not all(judged(verdict.system.unrolled(verdict.laps + more).flat()).safe for more in FURTHER):
            yield "SAFE, and a longer unrolling is not"


def _wrong(document: dict[str, Any], counts: Counter[str]) -> set[str] | None:
    """What some interleaving shows; None if there are too many states."""
    explorer = Rules(document, STATES)
    try:
        wrong = explorer.wrong(all_of_it=False)
    except TooMany:
        counts["unrollings too large to explore"] += 1
        return None
    counts["unrollings explored"] += 1
    counts["states"] += explorer.states
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, default=Path("tests/records/proof/system-loops.json"))
    long_run.arguments(parser)
    options = parser.parse_args()
    return long_run.go([Run("system loops", compare, options.record, SLICES, guess=5.0)], options)


if __name__ == "__main__":
    sys.exit(main())
