"""Random kernels with barriers by phase, flags, copies and proxies against every interleaving of their rules.

    python -m tests.systems.long_rules --jobs 2 --seconds 3600 --record tests/records/proof/system-rules.json

A slice is 250 systems; the whole run has a million. A difference is a SAFE system of which some interleaving shows
something wrong, an UNSAFE one of which none does, or a witness that does not replay.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from amk.systems.document import written
from amk.systems.run_witness import replay_run
from amk.systems.verdict import judged
from tests import long_run
from tests.long_run import Run
from tests.systems.random_rules import random_rules
from tests.systems.rule_runs import Rules, TooMany

EACH, SLICES, STATES = 250, 4000, 40_000
FIRST = 1_000_000
"""The first seed: other than those of the tests."""


def compare(number: int) -> dict[str, Any]:
    """What slice `number` counts, and its differences."""
    counts: Counter[str] = Counter()
    differences = []
    for seed in range(FIRST + number * EACH, FIRST + (number + 1) * EACH):
        verdict = judged(random_rules(Random(seed)).flat())
        explorer = Rules(json.loads(written(verdict.system)), STATES)
        try:
            wrong = explorer.wrong(all_of_it=False)
        except TooMany:
            counts["too large"] += 1
            continue
        counts[verdict.verdict] += 1
        counts["states"] += explorer.states
        if (verdict.safe and wrong) or (verdict.verdict == "UNSAFE" and not wrong):
            differences.append(f"seed {seed}: {verdict.verdict}, exploration finds {sorted(wrong)}")
        if verdict.finding is not None and verdict.finding.run is not None:
            found = verdict.witness_json()
            if found is None or not replay_run(found, "witness"):
                differences.append(f"seed {seed}: the witness does not replay")
    return {**counts, "differences": differences}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, default=Path("tests/records/proof/system-rules.json"))
    long_run.arguments(parser)
    options = parser.parse_args()
    return long_run.go([Run("system rules", compare, options.record, SLICES, guess=15.0)], options)


if __name__ == "__main__":
    sys.exit(main())
