"""The certificate of a system with loops that is SAFE: flat ones for the numbers of laps that are unrolled, and claims
for all others."""

from __future__ import annotations

import json
from typing import Any

from amk.systems.document import parse_system
from amk.systems.flat_certificate import certificate
from amk.systems.loop_document import LoopDocument
from amk.systems.loop_proof.check import FORMAT
from amk.systems.loop_proof.periods import spelled, unrolled
from amk.systems.loop_proof.program import Program
from amk.systems.open_loop import LoopVerdict, Proof

Json = dict[str, Any]


def loop_certificate(verdict: LoopVerdict, document: LoopDocument) -> Json:
    """document: what the verdict is about. `NotSafe` for a verdict that is not SAFE."""
    from amk.validator.export.certificate import NotSafe

    if not verdict.safe or not verdict.proofs:
        raise NotSafe("the system is not safe, or has values that no file can hold")
    count = verdict.proofs[0].program.count
    return {"format": FORMAT, "open": count, "cases": [_case(proof, document) for proof in verdict.proofs]}


def _case(proof: Proof, document: LoopDocument) -> Json:
    program = proof.program
    base: Json = {}
    if program.count is None:
        base["0"] = _flat(program, 0)
    else:
        bounds = document.parameters[program.count]
        covered = {r["rest"]: proof.period * (r["peeled"] + r["periods"]) + r["rest"] for r in proof.rests}
        last = bounds.at_most if bounds.at_most is not None else max(covered.values())
        for laps in range(bounds.at_least, last + 1):
            if laps < covered.get(laps % proof.period, last + 1):
                base[str(laps)] = _flat(program, laps)
    return {"values": dict(program.values), "laps": proof.period, "rests": list(proof.rests), "base": base}


def _flat(program: Program, laps: int) -> Json:
    document = spelled(unrolled(program, laps), 0).document()
    return certificate(parse_system(json.dumps(document).encode(), f"{laps} laps"))
