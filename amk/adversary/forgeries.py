"""Forged certificates for unsafe schedules: none may be accepted.

A forgery starts from the best that can be said for the unsafe schedule: the times of a run if it has one, or the
greatest vectors that hold. Or it starts from the certificate of its safe twin, re-hashed. It is then mutated and
spliced. The checker is asked each time; `python -m amk.adversary.forgeries --n 100000 --record FILE` is the long run.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

from amk.adversary.cases import RECIPES, make_case, repaired
from amk.checker.certificate import Proof
from amk.checker.core import EDGES
from amk.checker.programs import Rejected
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import parse_schedule
from amk.validator.export.certificate import NotSafe
from amk.validator.export.of_schedule import certify_schedule, claims_of, coded, run_times
from amk.validator.verify import verify
from amk.version import __version__

Claims = dict[str, Any]
HUGE = 1 << 20
SLICE = 1000
"""Forgeries between two writes of the record."""


@dataclass
class Victim:
    """An unsafe schedule, unrolled once, and certificates to start from."""

    name: str
    proof: Proof
    donors: list[Claims] = field(default_factory=list)

    def accepts(self, claims: Claims) -> str:
        """ "" if the checker is fooled, else its reason. Hash and obligations are right in every forgery."""
        try:
            self.proof.check(claims.get("times"), claims.get("clocks"))
        except Rejected as reason:
            return str(reason)
        except (KeyError, IndexError, ValueError, OverflowError) as error:
            return f"{type(error).__name__}: {error}"
        return ""


def victims(limit: int | None = None) -> Iterator[Victim]:
    """Every recipe whose schedule is UNSAFE or UNKNOWN and well-formed enough to be unrolled."""
    count = 0
    for recipe in RECIPES:
        case = make_case(recipe)
        found = _victim(recipe.name, case)
        if recipe.status != "SAFE" and found is not None:
            count += 1
            yield found
        if count == limit:
            return


def _victim(name: str, case: dict[str, Any]) -> Victim | None:
    try:
        schedule = parse_schedule(json.dumps(case["schedule"]).encode(), name)[0]
        if verify(schedule).safe:
            return None
        victim = Victim(name, Proof(schedule))
    except (AmkError, Rejected):
        return None
    twin = parse_schedule(json.dumps(repaired(case)).encode(), name)[0]
    victim.donors.append(certify_schedule(twin))
    try:
        times = run_times(victim.proof)
        victim.proof.run(times)
        clocks = {edges: coded(claims_of(victim.proof, edges)) for edges in EDGES}
        victim.donors.append({"times": times, "clocks": clocks})
    except (NotSafe, Rejected):
        programs = sorted(victim.proof.programs, key=lambda p: p.workers.start)
        times = [[len(p.workers), list(range(len(p.items)))] for p in programs]
        victim.donors.append({"times": times, "clocks": {}})
    return victim


def forge(rng: Random, donors: list[Claims], strangers: list[Claims]) -> Claims:
    """One forgery: parts of donors (vectors also of other schedules') with up to three changes; a few are no
    certificates at all."""
    own = rng.random() < 0.8
    times, clocks = rng.choice(donors)["times"], rng.choice(donors if own else strangers)["clocks"]
    forged: Claims = {"times": copy.deepcopy(times), "clocks": copy.deepcopy(clocks)}
    forged["clocks"] = {edges: forged["clocks"].get(edges, []) for edges in EDGES}
    for _ in range(rng.randrange(4)):
        rng.choice(CHANGES)(rng, forged)
    if rng.random() < 0.05:
        _break(rng, forged)
    return forged


def _rows(rng: Random, claims: Claims) -> list[Any]:
    rows: list[Any] = claims["clocks"][rng.choice(EDGES)]
    return rows


def _shuffle(rng: Random, claims: Claims) -> None:
    """Two items change places in time, or one moves."""
    row = rng.choice(claims["times"])[1]
    if len(row) > 1:
        i = rng.randrange(len(row) - 1)
        j = rng.choice((i + 1, rng.randrange(len(row))))
        row[i], row[j] = (row[j], row[i]) if rng.random() < 0.5 else (rng.randrange(HUGE), row[j])


def _raise(rng: Random, claims: Claims) -> None:
    """Vectors grow a little."""
    for entry in _rows(rng, claims):
        for at in range(0, len(entry[2]), 2):
            entry[2][at] += rng.choice((0, 0, 1, 3))


def _top(rng: Random, claims: Claims) -> None:
    """Every worker is said to have finished everything."""
    for entry in _rows(rng, claims):
        entry[2] = [HUGE, sum(entry[2][1::2])]


def _retarget(rng: Random, claims: Claims) -> None:
    """A vector is claimed for another counter or threshold."""
    rows = _rows(rng, claims)
    if rows:
        rng.choice(rows)[rng.randrange(2)] = rng.randrange(20)


def _swap(rng: Random, claims: Claims) -> None:
    rows = _rows(rng, claims)
    if len(rows) > 1:
        one, two = rng.sample(rows, 2)
        one[2], two[2] = two[2], one[2]


def _turn(rng: Random, claims: Claims) -> None:
    """What is over on one warp group is claimed of another one, of the same worker or not."""
    for entry in _rows(rng, claims):
        entry[2] = [number for at in range(len(entry[2]) - 2, -1, -2) for number in entry[2][at : at + 2]]


def _share(rng: Random, claims: Claims) -> None:
    """What holds in time is claimed for what is visible, or the other way round."""
    one, two = rng.sample(EDGES, 2)
    claims["clocks"][one] = copy.deepcopy(claims["clocks"][two])


def _drop(rng: Random, claims: Claims) -> None:
    rows = _rows(rng, claims)
    if rows:
        del rows[rng.randrange(len(rows))]


def _break(rng: Random, claims: Claims) -> None:
    """Something that is not a certificate."""
    rows = _rows(rng, claims)
    if rows:
        entry = rng.choice(rows)
        entry[2] = rng.choice(([], [1], [HUGE], [-1, 4], ["1", 4], [1.0, 4], None, [1 << 70, 4]))
    else:
        claims["times"] = rng.choice(([], None, [[0]], [[1, [-1] * 9]], [[4, None]], "times"))


CHANGES = (_shuffle, _raise, _raise, _top, _retarget, _swap, _swap, _turn, _share, _drop, _drop)


def offer(victims: list[Victim], count: int, seed: str) -> tuple[Counter[str], list[str]]:
    """(how often each kind of reason was given, descriptions of accepted forgeries) for `count` forgeries."""
    rng = Random(seed)
    reasons: Counter[str] = Counter()
    accepted: list[str] = []
    strangers = [donor for victim in victims for donor in victim.donors]
    for n in range(count):
        victim = victims[n % len(victims)]
        forged = forge(rng, victim.donors, strangers)
        reason = victim.accepts(forged)
        reasons[reason.partition(":")[0] or "accepted"] += 1
        if not reason:
            accepted.append(f"{victim.name}: {json.dumps(forged)}")
    return reasons, accepted


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="offer forged certificates of unsafe schedules to the checker")
    parser.add_argument("--n", type=int, default=2000, help="forgeries in all (default: 2000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="count in this file, and go on where it stops")
    arguments = parser.parse_args(argv)
    found = _begun(arguments)
    known = list(victims())
    while found["offered"] < arguments.n:
        started = time.monotonic()
        count = min(SLICE, arguments.n - found["offered"])
        reasons, accepted = offer(known, count, f"{arguments.seed}/{found['offered']}")
        found["offered"] += count
        found["accepted"] += len(accepted)
        found["reasons"] = dict(sorted((Counter(found["reasons"]) + reasons).items()))
        found["seconds"] = round(found["seconds"] + time.monotonic() - started, 1)
        sys.stderr.writelines(f"accepted: {text}\n" for text in accepted)
        if arguments.record:
            arguments.record.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))
    return 1 if found["accepted"] else 0


def _begun(arguments: argparse.Namespace) -> dict[str, Any]:
    """The record so far, if it is of this run."""
    command = f"python -m amk.adversary.forgeries --n {arguments.n} --seed {arguments.seed}"
    if arguments.record and arguments.record.exists():
        found: dict[str, Any] = json.loads(arguments.record.read_text(encoding="utf-8"))
        if found.get("command") == command:
            return found
    head = {"command": command, "version": __version__, "date": date.today().isoformat(), "cpu": platform.machine()}
    return head | {"offered": 0, "accepted": 0, "reasons": {}, "seconds": 0.0}


if __name__ == "__main__":
    sys.exit(main())
