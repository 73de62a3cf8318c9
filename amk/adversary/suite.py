"""The stored cases: each file's verdict against what the file says, and its repaired twin against SAFE."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from amk.adversary.cases import repaired
from amk.adversary.confusion import Outcome, Table, certified, judged_system
from amk.adversary.edits import Json
from amk.adversary.mistakes import BY_LABEL
from amk.judges.oracle.judge import Ruling
from amk.judges.replay import replay
from amk.schedule_ir.codec import parse_schedule
from amk.validator.program.system import from_json
from amk.validator.verify import verify

STATED = {"SAFE": "SAFE", "UNSAFE": "UNSAFE", "UNKNOWN": "OPEN"}


def folder() -> Path:
    """Where the cases are: `amk/_data/adversarial` in an installed wheel, `adversarial/` in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_data" / "adversarial"
    return installed if installed.is_dir() else package.parent / "adversarial"


def run_suite() -> Table:
    """All files, in order of their names."""
    table = Table()
    for file in sorted(folder().rglob("*.json")):
        for outcome in judged(json.loads(file.read_text(encoding="utf-8"))):
            table.add(outcome)
    return table


def judged(case: Json) -> Iterator[Outcome]:
    """The case and its twin; the truth is what the file states (the tests hold it against the oracle)."""
    name, kind = str(case["name"]), BY_LABEL[case["class"]].key
    stated = Ruling(STATED[case["status"]], case["because"])  # type: ignore[arg-type]
    if "system" in case:
        yield _system(kind, name, case["system"], stated)
        yield _system(kind, f"{name}, repaired", case["twin"], Ruling("SAFE"))
        return
    yield _schedule(kind, name, case["schedule"], stated)
    yield _schedule(kind, f"{name}, repaired", repaired(case), Ruling("SAFE"))


def _schedule(kind: str, name: str, document: Json, ruling: Ruling) -> Outcome:
    schedule = parse_schedule(json.dumps(document).encode(), name)[0]
    verdict = verify(schedule)
    codes = tuple(d.code for d in verdict.diagnostics)
    replayed = None
    if verdict.evidence is not None:
        replayed = replay(verdict.evidence.system.to_json(), verdict.evidence.witness.to_json())
    uncertified = certified(schedule) if verdict.safe else ""
    return Outcome(kind, name, verdict.status, codes, ruling, replayed, uncertified)


def _system(kind: str, name: str, columns: Json, ruling: Ruling) -> Outcome:
    verdict, uncertified = judged_system(from_json(columns))
    return Outcome(kind, name, verdict, (), ruling, None, uncertified, flat=True)
