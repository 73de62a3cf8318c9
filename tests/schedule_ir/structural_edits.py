r"""Random edits of good plans: what the verdict says of them, and whether what it calls SAFE computes the model.

    python -m tests.schedule_ir.structural_edits --count 600 --seconds 300 \
        --record tests/records/search/structural-edits.json

Trial i makes one to three drawn edits to one of the plans, with repairs; its generator is seeded by i alone, and the
record keeps how many were made, so the command goes on where it was stopped. A trial ends as `inapplicable` (the edits
do not apply, or the result has no meaning), `unchanged`, `UNSAFE` or `UNKNOWN` with the code of the first finding, or
SAFE. What is SAFE is lowered, which may be refused, and of small plans run by the judge of `amk.judges`: an interpreter
under two orders, four tokens in two launches each, against a forward pass that shares nothing with the planner. A plan
of full size is SAFE or not, and runs no tokens here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from amk.adversary.neighbourhood.bases import SMALL_BASES, base
from amk.agent.gate.candidate import program_key
from amk.bench.tools.provenance import software
from amk.judges.judge import judge
from amk.lowering.emit import emit
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.report.diagnostic import AmkError
from amk.schedule_ir.edits import kinds
from amk.schedule_ir.edits.apply import apply
from amk.schedule_ir.edits.draw import draw
from amk.schedule_ir.edits.file import edits_json
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.validator.verify import verify

FULL = "smollm2-135m on l4"
SHARE = 3
"""Every so many trials one is about the plan of full size."""


@cache
def parent(name: str) -> Schedule:
    if name == FULL:
        return plan(load_model("smollm2-135m"), load_target("l4"), max_context=2048)
    return Schedule.model_validate_json(json.dumps(base(name)))


@cache
def key_of(name: str) -> str:
    return program_key(parent(name), emit(parent(name)))


def trial(number: int) -> tuple[str, dict[str, Any]]:
    """(plan, what became of the edits)."""
    small = sorted(SMALL_BASES)
    name = FULL if number % SHARE == 0 else small[number % len(small)]
    rng = np.random.default_rng([number, 20])
    before = parent(name)
    edits = tuple(draw(before, rng) for _ in range(1 + int(rng.integers(3))))
    found: dict[str, Any] = {"kinds": [e.do for e in edits], "edits": edits}
    try:
        result = apply(before, edits)
    except AmkError as error:
        return name, found | {"end": "inapplicable", "code": error.diagnostics[0].code}
    found["repaired"] = bool(result.repaired)
    if result.schedule == before:
        return name, found | {"end": "unchanged", "code": ""}
    verdict = verify(result.schedule)
    if not verdict.safe:
        return name, found | {"end": verdict.status, "code": verdict.diagnostics[0].code}
    return name, found | {"end": "SAFE", "code": ""} | _ran(name, result.schedule)


def _ran(name: str, schedule: Schedule) -> dict[str, Any]:
    """What the lowering and the judge say of a schedule that is SAFE."""
    try:
        lowered = "same kernel" if program_key(schedule, emit(schedule)) == key_of(name) else "new kernel"
    except AmkError as error:
        lowered = f"refused {error.diagnostics[0].code}"
    if name == FULL:
        return {"lowered": lowered, "judge": "not asked"}
    ruling = judge(schedule, 2)
    return {"lowered": lowered, "judge": ruling.status, "why": ruling.why}


def counted(record: dict[str, Any], number: int) -> None:
    """One more trial in the record."""
    name, found = trial(number)
    plans = record["plans"].setdefault("of full size" if name == FULL else "small", {})
    tally = {"ends": [found["end"]], "codes": [found["code"]] if found["code"] else []}
    tally |= {"refused by kind of edit": found["kinds"] if found["end"] in ("UNSAFE", "UNKNOWN") else []}
    tally |= {"SAFE by kind of edit": found["kinds"] if found["end"] == "SAFE" else []}
    tally |= {"lowered": [v for v in [found.get("lowered")] if v], "judge": [v for v in [found.get("judge")] if v]}
    tally |= {"repaired": [found["end"]] if found.get("repaired") else []}
    for field, values in tally.items():
        sums = Counter(plans.get(field, {}))
        sums.update(values)
        plans[field] = dict(sorted(sums.items()))
    if found.get("judge") == "refuted":
        edits = json.loads(edits_json(kinds.EditList(edits=found["edits"])))
        record["wrong"].append({"trial": number, "plan": name, "why": found["why"], "edits": edits})


def shares(record: dict[str, Any]) -> None:
    """Of what was judged: the share that the verdict refused, and that it called SAFE."""
    for sums in record["plans"].values():
        ends = sums["ends"]
        judged = sum(ends.get(end, 0) for end in ("SAFE", "UNSAFE", "UNKNOWN"))
        sums["share refused by the verdict"] = round(1 - ends.get("SAFE", 0) / judged, 3) if judged else None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--record", type=Path, required=True)
    arguments = parser.parse_args(argv)
    record: dict[str, Any] = {
        "format": 1,
        "name": "structural-edits",
        "done": 0,
        "seconds": 0.0,
        "plans": {},
        "wrong": [],
    }
    if arguments.record.exists():
        record |= json.loads(arguments.record.read_text())
    begun = last = time.monotonic()
    while record["done"] < arguments.count and time.monotonic() - begun < arguments.seconds:
        counted(record, record["done"])
        record["done"] += 1
        now = time.monotonic()
        record["seconds"], last = round(record["seconds"] + now - last, 2), now
        shares(record)
        words = shlex.join(
            ["python", "-m", "tests.schedule_ir.structural_edits", *(sys.argv[1:] if argv is None else argv)]
        )
        if record["done"] % 20 == 0 or record["done"] == arguments.count:
            record["run"] = software(words) | {"hardware": f"{os.cpu_count()} cores, no GPU, {platform.machine()}"}
            save(arguments.record, record)
            print(f"{record['done']}/{arguments.count}, {len(record['wrong'])} wrong", file=sys.stderr, flush=True)
    return 1 if record["wrong"] else 0


def save(path: Path, record: dict[str, Any]) -> None:
    """At once or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main())
