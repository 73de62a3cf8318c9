"""Mutants judged twice: the validator against the oracle, counted by class.

A case is a false accept if the validator says SAFE and the oracle does not, a false reject if it says UNSAFE and the
oracle does not, or if its witness does not replay. UNKNOWN is counted apart; where the oracle says that only policy
decides (OPEN), UNKNOWN is the right answer and everything else a mistake. Every SAFE needs a certificate that the
independent checker accepts; one without is counted as uncertified.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

from pydantic import ValidationError

from amk.adversary.classes.sync import Mutant
from amk.adversary.classes.table import BY_NUMBER, CLASSES
from amk.adversary.edits import Json, apply
from amk.checker.certificate import Proof, check_certificate
from amk.checker.programs import Rejected
from amk.judges.flat_checker import check
from amk.judges.oracle.flatten import TooBig
from amk.judges.oracle.judge import Ruling, rule
from amk.judges.oracle.systems import rule_system
from amk.judges.replay import replay
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import parse_schedule, schedule_hash
from amk.schedule_ir.references import check_references
from amk.schedule_ir.schedule import Schedule
from amk.validator.export.certificate import NotSafe, make_certificate
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.memory.flat import judge
from amk.validator.program.system import System
from amk.validator.verify import verify

TITLES = {str(c.number): c.title for c in CLASSES}
OPEN = frozenset(str(c.number) for c in CLASSES if c.open)
HEAD = ("cases", "false_accepts", "false_rejects", "unknown", "witnesses", "certificates", "uncertified")
MANY, EACH = 100, 20
"""With so many cases of a class, so many must be SAFE and so many UNSAFE."""
TRIES = 40
"""Draws until a generator's mutant is well-formed; they nearly always are at once."""
"""One per process: mutants of one plan share most of what is asked about them."""
JUDGED: dict[str, Outcome] = {}
"""By the mutant's digest, in this process."""


@dataclass(frozen=True)
class Mutation:
    """One mutant: a schedule or a flat system of one class."""

    number: int
    seed: str
    subject: Schedule | System


@dataclass(frozen=True)
class Outcome:
    """What both judges said. kind: number of the class, or its name. replayed: None without a witness. uncertified: why
    a SAFE has no accepted certificate, "" if it has one or needs none. flat: judged as a flat system."""

    kind: str
    seed: str
    verdict: str
    codes: tuple[str, ...]
    ruling: Ruling
    replayed: bool | None
    uncertified: str = ""
    flat: bool = False

    @property
    def false_accept(self) -> bool:
        return self.verdict == "SAFE" and self.ruling.status != "SAFE"

    @property
    def false_reject(self) -> bool:
        return self.verdict == "UNSAFE" and (self.ruling.status != "UNSAFE" or self.replayed is False)

    @property
    def unknown(self) -> bool:
        return self.verdict == "UNKNOWN"


@dataclass
class Row:
    """Counts of one class; plans: cases that are edited plans, not flat systems."""

    title: str
    cases: int = 0
    plans: int = 0
    safe: int = 0
    unsafe: int = 0
    open: int = 0
    false_accepts: int = 0
    false_rejects: int = 0
    unknown: int = 0
    witnesses: int = 0
    certificates: int = 0
    uncertified: int = 0

    def add(self, outcome: Outcome) -> None:
        self.cases += 1
        self.plans += not outcome.flat
        self.safe += outcome.ruling.status == "SAFE"
        self.unsafe += outcome.ruling.status == "UNSAFE"
        self.open += outcome.ruling.status == "OPEN"
        self.false_accepts += outcome.false_accept
        self.false_rejects += outcome.false_reject
        self.unknown += outcome.unknown
        self.witnesses += outcome.replayed is True
        self.uncertified += outcome.uncertified != ""
        self.certificates += outcome.verdict == "SAFE" and not outcome.uncertified


@dataclass
class Table:
    """All classes, and the seeds of every case on which the judges differ."""

    rows: dict[str, Row] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.rows.setdefault(outcome.kind, Row(TITLES.get(outcome.kind, outcome.kind))).add(outcome)
        if outcome.false_accept or outcome.false_reject:
            verdicts = f"{outcome.verdict} {','.join(outcome.codes)} / {outcome.ruling.status} {outcome.ruling.why}"
            self.differences.append(f"{outcome.seed}: {verdicts}")
        if outcome.uncertified:
            self.differences.append(f"{outcome.seed}: SAFE without a certificate: {outcome.uncertified}")

    def total(self, name: str) -> int:
        return sum(getattr(row, name) for row in self.rows.values())

    @property
    def unknown_outside(self) -> int:
        """UNKNOWN in classes that are not built to be."""
        return sum(row.unknown for kind, row in self.rows.items() if kind not in OPEN)

    @property
    def empty(self) -> list[str]:
        """Classes without a case."""
        return [kind for kind in TITLES if kind not in self.rows]

    @property
    def thin(self) -> list[str]:
        """Classes with many cases, of which fewer than `EACH` are SAFE, or UNSAFE."""
        many = {kind: row for kind, row in self.rows.items() if row.cases >= MANY}
        return [kind for kind, row in many.items() if min(row.safe, row.unsafe) < EACH]

    @property
    def kinds(self) -> list[str]:
        """Rows in the order of the classes; those without a number come last."""
        place = {kind: i for i, kind in enumerate(TITLES)}
        return sorted(self.rows, key=lambda kind: (place.get(kind, len(place)), kind))

    @property
    def clean(self) -> bool:
        wrong = ("false_accepts", "false_rejects", "uncertified")
        return not (any(self.total(name) for name in wrong) or self.empty or self.thin)

    def as_json(self) -> dict[str, Any]:
        head = {name: self.total(name) for name in HEAD}
        classes = {kind: asdict(self.rows[kind]) for kind in self.kinds}
        return head | {
            "unknown_outside": self.unknown_outside,
            "empty_classes": self.empty,
            "thin_classes": self.thin,
            "differences": self.differences[:100],
            "classes": classes,
        }


def drawn(number: int, seed: str) -> tuple[Mutant, Schedule] | System:
    """What the class's generator makes of this seed, well-formed: equal arguments, equal mutant."""
    for attempt in range(TRIES):
        subject = BY_NUMBER[number].generate(Random(f"{seed}/{number}/{attempt}"))
        if isinstance(subject, System):
            return subject
        try:
            return subject, schedule_of(apply(subject[0].document, subject[1])[0])
        except AmkError:
            continue
    raise ValueError(f"class {number} makes nothing well-formed from seed {seed}")


def schedule_of(document: Json) -> Schedule:
    """The schedule; AmkError if it is not well-formed."""
    text = json.dumps(document).encode()
    try:
        schedule = Schedule.model_validate_json(text)
    except ValidationError:
        return parse_schedule(text, "mutant")[0]
    return parse_schedule(text, "mutant")[0] if check_references(schedule) else schedule


def mutation(number: int, seed: str) -> Mutation:
    """`drawn` as what the judges read."""
    subject = drawn(number, seed)
    return Mutation(number, f"{seed}/{number}", subject if isinstance(subject, System) else subject[1])


def tokens_for(schedule: Schedule) -> int:
    """Tokens the oracle runs: enough that an imbalance of one increment per token shows."""
    return 3 if schedule.model.layers == 1 else 2


def decide(case: Mutation) -> Outcome:
    """Both judges on one mutant."""
    if isinstance(case.subject, System):
        verdict, uncertified = judged_system(case.subject)
        ruling = rule_system(case.subject)
        return Outcome(str(case.number), case.seed, verdict, (), ruling, None, uncertified, flat=True)
    found = verify(case.subject)
    codes = tuple(d.code for d in found.diagnostics)
    replayed = None
    if found.evidence is not None:
        replayed = replay(found.evidence.system.to_json(), found.evidence.witness.to_json())
    try:
        ruling = rule(case.subject, tokens_for(case.subject))
    except TooBig as error:
        raise ValueError(f"{case.seed} is too large for the oracle: {error}") from error
    uncertified = certified(case.subject) if found.safe else ""
    return Outcome(str(case.number), case.seed, found.status, codes, ruling, replayed, uncertified)


def decide_all(draws: list[tuple[int, str]]) -> Iterator[Outcome]:
    """Outcomes of (class, seed) pairs; a mutant that is drawn again, by whichever class, is not judged again."""
    for number, seed in draws:
        case = mutation(number, seed)
        key = case.subject.digest if isinstance(case.subject, System) else schedule_hash(case.subject)
        if key not in JUDGED:
            JUDGED[key] = decide(case)
        yield replace(JUDGED[key], kind=str(number), seed=case.seed)


def judged_system(system: System) -> tuple[str, str]:
    """Verdict on a flat system, and why its certificate is not accepted, if it is SAFE."""
    mine = judge(system)
    return ("SAFE", check(system.to_json(), make_certificate(mine)).reason) if mine.safe else ("UNSAFE", "")


def certified(schedule: Schedule) -> str:
    """Empty if the schedule has a certificate, as a file would hold it, that the checker accepts; else why not."""
    try:
        proof = Proof(schedule)
        certificate = json.loads(json.dumps(certify_schedule(schedule, checked=False, proof=proof)))
    except (NotSafe, Rejected) as reason:
        return str(reason)
    return check_certificate(schedule, schedule_hash(schedule), certificate, proof).reason


def share(count: int, seed: int) -> Iterator[tuple[int, str]]:
    """(class, seed) of `count` mutants, all classes in turn."""
    for n in range(count):
        yield CLASSES[n % len(CLASSES)].number, f"{seed}/{n // len(CLASSES)}"
