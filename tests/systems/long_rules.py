"""Random kernels with barriers by phase, flags, copies and proxies against every interleaving of their rules.

    python -m tests.systems.long_rules --jobs 2 --seconds 3600 --record tests/records/proof/system-rules.json

A slice judges and counts the draws that no draw of an earlier slice made: `drawn` is the number of draws, `SAFE`,
`UNSAFE`, `UNKNOWN` and `too large` are numbers of different systems. The whole run has more than a million of them. A
difference is a SAFE system of which some interleaving shows something wrong, or whose certificate the checker refuses;
an UNSAFE one of which no interleaving does; or a witness that does not replay.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

from amk.systems.document import to_json
from amk.systems.flat_certificate import certificate
from amk.systems.proof import check
from amk.systems.run_witness import replay_run
from amk.systems.verdict import Verdict, judged
from tests import long_run
from tests.long_run import Run
from tests.systems.random_rules import Made
from tests.systems.rule_runs import Rules, TooMany

EACH, SLICES, STATES = 5_000, 370, 20_000
FIRST = 10_000_000
"""The first seed: other than those of the tests."""
CHANGES = (0, 1, 2, 2, 3, 3, 4, 5)
"""Changes of a protocol that is right, one of these numbers."""


class Drawn:
    """The draws so far, by a digest of what they make."""

    def __init__(self) -> None:
        self.slices, self.seen = 0, set[bytes]()

    def new(self, number: int) -> Iterator[tuple[int, Made]]:
        """Seeds and systems of slice `number` that no earlier draw made. Slices are asked for in any order."""
        if number < self.slices:
            self.slices, self.seen = 0, set()
        while self.slices < number:
            for _ in self._of(self.slices):
                pass
            self.slices += 1
        self.slices = number + 1
        yield from self._of(number)

    def _of(self, number: int) -> Iterator[tuple[int, Made]]:
        for seed in range(FIRST + number * EACH, FIRST + (number + 1) * EACH):
            protocol = Made(Random(seed), CHANGES)
            digest = blake2b(protocol.key.encode(), digest_size=16).digest()
            if digest not in self.seen:
                self.seen.add(digest)
                yield seed, protocol


DRAWN = Drawn()


def compare(number: int) -> dict[str, Any]:
    """What slice `number` counts, and its differences."""
    return {"drawn": EACH, **compared(DRAWN.new(number))}


def compared(systems: Iterable[tuple[int, Made]]) -> dict[str, Any]:
    """Counts and differences of these systems, which are under their seeds."""
    counts: Counter[str] = Counter()
    differences = []
    for seed, protocol in systems:
        verdict = judged(protocol.built().flat())
        document = to_json(verdict.system)
        explorer = Rules(document, STATES)
        try:
            wrong = explorer.wrong(all_of_it=False)
        except TooMany:
            counts["too large"] += 1
            continue
        counts[verdict.verdict] += 1
        counts["states"] += explorer.states
        differences += [f"seed {seed}: {found}" for found in _differences(verdict, document, wrong)]
    return {**counts, "differences": differences}


def _differences(verdict: Verdict, document: dict[str, Any], wrong: set[str]) -> Iterator[str]:
    if (verdict.safe and wrong) or (verdict.verdict == "UNSAFE" and not wrong):
        yield f"{verdict.verdict}, exploration finds {sorted(wrong)}"
    if verdict.safe and not check(document, json.loads(json.dumps(certificate(verdict.system, safe=True)))).accepted:
        yield "the checker refuses the certificate"
    if verdict.finding is not None and verdict.finding.run is not None:
        found = verdict.witness_json()
        if found is None or not replay_run(found, "witness"):
            yield "the witness does not replay"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, default=Path("tests/records/proof/system-rules.json"))
    long_run.arguments(parser)
    options = parser.parse_args()
    return long_run.go([Run("system rules", compare, options.record, SLICES, guess=15.0)], options)


if __name__ == "__main__":
    sys.exit(main())
