"""Writes the cases of the public benchmark: `python -m tests.systems.make_benchmark` (a minute).

Expected verdicts come from where card.md says: an exploration of all interleavings that shares no code with amk, or a
report; never from `amk verify`, which only has to agree (`test_benchmark.py`).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from amk.adversary.cases import repaired
from amk.systems.document import to_json
from amk.systems.incidents import load
from amk.validator.export.flat_file import flat_file
from tests.systems.random_rules import random_rules
from tests.systems.rule_runs import Rules, TooMany
from tests.systems.test_rules import RIGHT, WRONG
from tests.validator.flat_reader import safe
from tests.validator.plans import from_document
from tests.validator.test_flat_file import CLASSES, RUNS

FILE = Path(__file__).parents[2] / "amk" / "systems" / "benchmark" / "cases-v3.jsonl.gz"
STATES = 60_000
RANDOM = 120
NEXT_PHASE = 3
Case = dict[str, Any]


def case(name: str, family: str, expected: str, truth: str, system: Case, source: str = "") -> Case:
    return {
        "name": name, "family": family, "expected": expected, "truth": truth, "source": source, "system": system,
    }  # fmt: skip


def explored(system: Case) -> str | None:
    """SAFE or UNSAFE by every interleaving; None: there are too many."""
    try:
        return "UNSAFE" if Rules(system, STATES).wrong(all_of_it=False) else "SAFE"
    except TooMany:
        return None


def incidents() -> Iterator[Case]:
    for incident in load().values():
        for fixed in (False, True):
            system = to_json(incident.system(fixed).flat())
            found, meant = explored(system), "SAFE" if fixed else "UNSAFE"
            # a scope that is too narrow is wrong by rule, and no interleaving shows it
            by_rule = incident.code == "AMK505" and not fixed
            assert by_rule or found in (None, meant), incident.name
            truth = "rule" if by_rule else "report" if found is None else "exploration"
            name = f"{incident.name}/{'fixed' if fixed else 'reported'}"
            yield case(name, "incident", meant, truth, system, incident.report)


def constructs() -> Iterator[Case]:
    makes = {f"right {n}": make for n, make in enumerate(RIGHT)} | {name: make for name, (make, *_) in WRONG.items()}
    for name, make in makes.items():
        system = to_json(make().flat())
        found = explored(system)
        if found is not None and "scope" not in name and "other GPU" not in name and "another GPU" not in name:
            yield case(name.replace(" ", "-"), "construct", found, "exploration", system)


def classes() -> Iterator[Case]:
    for file in CLASSES:
        stored = json.loads(file.read_text())
        if stored["status"] != "UNSAFE" or not stored["expect"].startswith(RUNS):
            continue
        for kind, schedule in (("mutant", stored["schedule"]), ("twin", repaired(stored))):
            system = json.loads(json.dumps(flat_file(from_document(schedule), 0, 2)))
            if set(system["systems"]) != {"block"}:
                continue
            system = {"format": system["format"], "name": file.stem, "systems": system["systems"]}
            expected = "UNSAFE" if kind == "mutant" else "SAFE"
            assert safe(system | {"tagged": [], "private": []}) == (expected == "SAFE"), file.stem
            system["systems"]["block"].pop("event_tag", None)
            yield case(f"{file.stem}/{kind}", "schedule", expected, "second judge", system)


def defined(system: Case) -> bool:
    """Agents take turns of arriving and waiting at the barrier of a cluster, as PTX has it."""
    block, orders = system["systems"]["block"], system["orders"]
    rules, scope = orders.get("wait_rule") or [0] * len(block["wait_counter"]), orders["scope"]
    paired = {c for c, rule in zip(block["wait_counter"], rules, strict=True) if rule == NEXT_PHASE and scope[c] == 1}
    for first, end in pairwise(block["agent_first"]):
        arrived = dict.fromkeys(paired, False)
        for event in range(first, end):
            for table, arrives in (("wait", False), ("signal", True)):
                for c in block[f"{table}_counter"][slice(*block[f"{table}_first"][event : event + 2])]:
                    if c in paired and arrived[c] == arrives:
                        return False
                    arrived[c] = arrives
    return True


def drawn() -> Iterator[Case]:
    rng, number = Random(2026), 0
    while number < RANDOM:
        system = to_json(random_rules(rng).flat())
        found = explored(system) if defined(system) else None
        if found is not None:
            yield case(f"random-{number:03}", "random", found, "exploration", system)
            number += 1


def main() -> None:
    cases = [*incidents(), *constructs(), *classes(), *drawn()]
    assert len({c["name"] for c in cases}) == len(cases)
    text = "".join(json.dumps(c, separators=(",", ":"), sort_keys=True) + "\n" for c in cases)
    FILE.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{len(cases)} cases, {len(text):,} bytes, {FILE.stat().st_size:,} packed")


if __name__ == "__main__":
    main()
