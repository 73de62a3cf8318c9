"""Random kernels by the ten thousand: `rules.c` explores each, and `amk verify` judges what it must.

Kernels that share nothing are one kernel, which is SAFE if and only if each of them is. Those that exploration finds
nothing in are judged, and have certificates, as one kernel of many; where that is UNKNOWN, the one that is named is
judged alone, and then the others. Those that it finds something in are judged one by one. Kernels that PTX leaves
undefined are not drawn.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from random import Random

import numpy as np
import pytest

from amk.systems import rules_verdict
from amk.systems.document import to_json
from amk.systems.flat_certificate import certificate
from amk.systems.flat_system import FlatSystem
from amk.systems.proof import check
from amk.systems.verdict import Verdict, judged
from tests.systems.compiled_rules import explored
from tests.systems.joined import Joined, joined
from tests.systems.random_rules import Made

TOGETHER = 32
"""Kernels that are judged as one."""


def different(first: int, changes: tuple[int, ...]) -> Iterator[Made]:
    """Draws from this seed on, without those that were drawn before."""
    seen: set[str] = set()
    seed = first
    while True:
        protocol = Made(Random(seed), changes)
        seed += 1
        if protocol.defined and protocol.key not in seen:
            seen.add(protocol.key)
            yield protocol


class Compared:
    """Counts of verdicts and states, and the differences; one of `certificates` batches that are SAFE gets one."""

    def __init__(self, certificates: int) -> None:
        self.counts: Counter[str] = Counter()
        self.differences: list[str] = []
        self.certificates, self.batches = certificates, 0

    def all_of(self, drawn: Iterator[Made], number: int) -> None:
        taken = islice(drawn, number)
        while part := tuple(islice(taken, TOGETHER)):
            self._part(joined(part), part)

    def _part(self, many: Joined, drawn: tuple[Made, ...]) -> None:
        found, states = explored(many)
        self.counts["states"] += states
        for number in (k for k, wrong in enumerate(found) if wrong):
            verdict = judged(many.chosen([number]).system).verdict
            self._count(verdict, verdict == "SAFE", drawn[number])
        right = [k for k, wrong in enumerate(found) if wrong == set()]
        self.counts["too large"] += sum(wrong is None for wrong in found)
        self._right(many, right, drawn)
        self.batches += 1

    def _right(self, many: Joined, numbers: list[int], drawn: tuple[Made, ...]) -> None:
        """All of these are right: SAFE, or UNKNOWN."""
        if not numbers:
            return
        chosen = many.chosen(numbers)
        verdict = _briefly(chosen.system)
        if verdict.safe:
            self.counts["SAFE"] += len(numbers)
            if self.batches % self.certificates == 0:
                self._certificate(chosen.system, len(numbers))
        elif len(numbers) == 1:
            self._count(verdict.verdict, verdict.verdict == "UNSAFE", drawn[numbers[0]])
        else:
            named = _named(chosen, verdict)
            self._right(many, [numbers[named]], drawn)
            self._right(many, numbers[:named] + numbers[named + 1 :], drawn)

    def _certificate(self, system: FlatSystem, number: int) -> None:
        evidence = json.loads(json.dumps(certificate(system, safe=True)))
        self.counts["certificates"] += number
        if not check(to_json(system), evidence).accepted:
            self.differences.append(f"batch {self.batches}: the checker refuses the certificate")

    def _count(self, verdict: str, wrong: bool, protocol: Made) -> None:
        self.counts[verdict] += 1
        if wrong:
            self.differences.append(f"{verdict}: {protocol.key}")


def _named(many: Joined, verdict: Verdict) -> int:
    """The system of the agent that the finding names, or the first."""
    assert verdict.finding is not None
    place = verdict.finding.diagnostic.where
    agent = (place.path or "").rpartition("/")[2] if place is not None else ""
    return int(np.searchsorted(many.agents, int(agent), side="right")) - 1 if agent.isdecimal() else 0


def _briefly(system: FlatSystem) -> Verdict:
    """Nothing is wrong: where it is not proved, few runs are tried."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules_verdict, "SECONDS", 0.0)
        return judged(system)
