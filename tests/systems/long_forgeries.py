"""Forged certificates of kernels, offered to the checkers of systems.

    python -m tests.systems.long_forgeries --jobs 2 --seconds 600 --record tests/records/proof/system-forgeries.json

A forger has complete runs of an unsafe kernel with barriers by phase and says of them what is so, or changes a number
of that; and for loops it has the evidence for a kernel that is safe, or what the guess says of the kernel itself,
claims that do not follow included, with numbers changed. A difference is a forgery that is accepted: of a flat kernel
that is not safe; of a loop, for which some longer unrolling is not safe. `offered` counts those of unsafe kernels.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from amk.report.diagnostic import AmkError
from amk.systems import loop_evidence
from amk.systems.document import to_json
from amk.systems.flat_system import FlatSystem
from amk.systems.loop_proof.check import proved_from
from amk.systems.loop_proof.numbers import Refused
from amk.systems.loop_proof.program import Program
from amk.systems.loop_writer import document_of
from amk.systems.loops import LoopSystem
from amk.systems.machine import Machine
from amk.systems.proof import filled
from amk.systems.rule_reading import Refused as RuleRefused
from amk.systems.verdict import judged
from tests import long_run
from tests.long_run import Run
from tests.systems.forging import claims_of, complete, forged, proves
from tests.systems.random_loop_rules import Draft
from tests.systems.random_loops import built, random_program
from tests.systems.random_rules import Made

FLAT, LOOPS, EACH, SLICES = 40, 6, 8, 400
LATER = (0, 1, 2, 5)
"""Periods behind what a proof of a loop is for, at which it is looked up."""


def attack(number: int, flat: int = FLAT, loops: int = LOOPS) -> dict[str, Any]:
    """What slice `number` offers, and what was accepted."""
    rng, counts, differences = Random(70_000_000 + number), Counter[str](), list[str]()
    for n in range(flat):
        system = Made(rng, (1, 2, 2, 3)).built().flat()
        if system.rules is not None and not judged(system).safe:
            differences += [f"slice {number}, {n}: {difference}" for difference in _flat(system, rng, counts)]
    for n in range(loops):
        differences += [f"slice {number}, loop {n}: {difference}" for difference in _loops(rng, counts)]
    return {**counts, "differences": differences}


def _flat(flat: FlatSystem, rng: Random, counts: Counter[str]) -> Iterator[str]:
    document = json.loads(json.dumps(to_json(flat)))
    block, orders = filled(document["systems"]["block"]), document["orders"]
    for machine in complete(flat, rng):
        for claims in _claims(flat, machine, block, orders, rng):
            counts["offered"] += 1
            if proves(block, orders, claims):
                yield f"accepted {json.dumps(claims)} of {json.dumps(document)}"


def _claims(flat: FlatSystem, machine: Machine, block: Any, orders: Any, rng: Random) -> Iterator[Any]:
    try:
        claims = claims_of(flat, machine, block, orders)
    except RuleRefused:
        return
    yield claims
    yield from (forged(rng, claims) for _ in range(3))


def kernels(rng: Random) -> tuple[LoopSystem, list[LoopSystem]]:
    """A kernel, and some that are a little different."""
    if rng.random() < 0.4:
        return built(random_program(rng)), [built(random_program(rng)) for _ in range(2)]
    seed, systems = rng.random(), []
    for changes in (0, 1, 1, 2):
        draft = Draft(Random(seed))
        draft.rng = rng
        for _ in range(changes):
            draft.change()
        systems.append(draft.built())
    return systems[0], systems[1:]


def _loops(rng: Random, counts: Counter[str]) -> Iterator[str]:
    try:
        good, others = kernels(rng)
        models = [_evidence(good)]
    except (AmkError, Refused, RuleRefused):
        return
    for kernel in others:
        try:
            program = _program(kernel)
            unsafe = _unsafe(kernel)
        except (AmkError, Refused):
            continue
        for model in (*models, *_own(program)):
            for n in range(EACH):
                evidence = model if n == 0 else changed(rng, model)
                counts["offered" if unsafe else "offered for what may be safe"] += 1
                if (laps := accepted(program, evidence)) is None:
                    continue
                counts["accepted for what may be safe"] += not unsafe
                wrong = [
                    laps + d * program.period
                    for d in LATER
                    if not judged(kernel.unrolled(laps + d * program.period).flat()).safe
                ]
                if wrong:
                    yield f"{kernel.name}: {wrong} laps are not safe; {json.dumps(evidence)}"


def _program(kernel: LoopSystem) -> Program:
    return Program(document_of(kernel).model_dump(mode="json"), {}, kernel.count)


def _evidence(kernel: LoopSystem) -> Any:
    program = _program(kernel)
    return loop_evidence.attempt(program, program.period, 0, 0, 4)


def _own(program: Program) -> Iterator[Any]:
    """What the guess says, and what is left of it."""
    try:
        yield loop_evidence.attempt(program, program.period, 0, 0, 4, weed=False)
        yield loop_evidence.attempt(program, program.period, 0, 0, 4)
    except (Refused, RuleRefused):
        return


def _unsafe(kernel: LoopSystem) -> bool:
    """Some number of laps that a proof would be for is not."""
    return any(not judged(kernel.unrolled(laps).flat()).safe for laps in (4 * kernel.period, 7 * kernel.period))


def accepted(program: Program, evidence: Any) -> int | None:
    """From which number of laps on all of this rest would be safe."""
    try:
        return proved_from(program, program.period, evidence)
    except (Refused, RuleRefused, KeyError, TypeError, ValueError, IndexError):
        return None


def changed(rng: Random, evidence: Any) -> Any:
    """With some numbers changed."""
    forgery = copy.deepcopy(evidence)
    for _ in range(rng.choice((1, 1, 2, 4))):
        table = rng.choice(("claims", "claims", "lines", "runs", "loose", "rest"))
        if table in ("claims", "lines") and forgery[table]:
            row = rng.choice(forgery[table])
            where = rng.choice(row[3]) if table == "claims" and row[3] else row
            at = rng.choice([k for k, entry in enumerate(where) if type(entry) is int])
            where[at] = max(-20, where[at] + rng.choice((-3, -1, 1, 3)))
        elif table == "runs":
            legs = forgery["runs"][rng.choice(("head", "period", "tail"))]
            if legs:
                leg = rng.choice(legs)
                leg[rng.randrange(2)] = max(0, leg[0] + rng.choice((-1, 1)))
        elif table == "loose":
            forgery["loose"] = [] if forgery["loose"] else [rng.randrange(6)]
        else:
            forgery["rest"], forgery["periods"] = 0, rng.choice((2, 3, 4, 5))
    return forgery


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, default=Path("tests/records/proof/system-forgeries.json"))
    long_run.arguments(parser)
    options = parser.parse_args()
    return long_run.go([Run("system forgeries", attack, options.record, SLICES, guess=20.0)], options)


if __name__ == "__main__":
    sys.exit(main())
