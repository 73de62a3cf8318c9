"""One small file per class: the smallest mutant among a fixed number of draws that shows what the class is about, with
its twin. It is unsafe, or UNKNOWN where that is the class's own verdict."""

from __future__ import annotations

from pathlib import Path

from amk.adversary.cases import case_text, new_case
from amk.adversary.classes.table import CLASSES, Class
from amk.adversary.confusion import drawn, tokens_for
from amk.adversary.edits import Json, apply
from amk.judges.oracle.judge import rule
from amk.judges.oracle.systems import rule_system
from amk.validator.program.system import System
from amk.validator.verify import verify

DRAWS = 60


def minimal_name(kind: Class) -> str:
    """File name of a class's case."""
    words = "".join(c if c.isalnum() else " " for c in kind.title.lower()).split()
    return f"class-{kind.number:02d}-{'-'.join(words)}"[:64]


def minimal_case(kind: Class) -> Json:
    """The case as it stands in its file. ValueError if no draw shows the class's code, or is unsafe."""
    draws = [drawn(kind.number, f"minimal/{n}") for n in range(DRAWS)]
    plans = [m for m in draws if not isinstance(m, System)]
    if not plans:
        return _system_case(kind, [m for m in draws if isinstance(m, System)])
    plans.sort(key=lambda m: (_size(m[0][0].document), len(m[0][1])))
    for (base, edits), schedule in plans:
        document, repair = apply(base.document, edits)
        ruling = rule(schedule, tokens_for(schedule))
        if ruling.status == "SAFE" or (ruling.status == "OPEN" and not kind.code):
            continue
        verdict = verify(schedule)
        expect = verdict.diagnostics[0].code
        if kind.code not in ("", expect):
            continue
        return new_case(minimal_name(kind), kind.mistake, verdict.status, expect, _because(kind), document, repair)
    raise ValueError(f"no draw of class {kind.number} is what its file has to show")


def _because(kind: Class) -> str:
    text = (kind.generate.__doc__ or "").split(":", 1)[1]
    return " ".join(text.split()).rstrip(".")


def _size(document: Json) -> int:
    launch = document["launch"]
    return int(launch["workers"] * launch["warps"] * document["model"]["layers"])


def _system_case(kind: Class, systems: list[System]) -> Json:
    """Both sides of the line as flat systems."""
    by_size = sorted(systems, key=lambda s: s.events)
    rulings = [rule_system(s) for s in by_size]
    bad = next(s for s, r in zip(by_size, rulings, strict=True) if r.status == "UNSAFE")
    # of the safe ones the most like it: a twin differs in little
    good = [s for s, r in zip(by_size, rulings, strict=True) if r.status == "SAFE" and s.events >= bad.events]
    case = new_case(minimal_name(kind), kind.mistake, "UNSAFE", "UNSAFE", _because(kind), None, [])
    return {k: v for k, v in case.items() if k not in ("repair", "schedule")} | {
        "system": bad.to_json(),
        "twin": good[0].to_json(),
    }


def write_minimal(folder: Path) -> int:
    """One file per class; returns how many."""
    for found in CLASSES:
        case = minimal_case(found)
        (folder / f"{case['name']}.json").write_text(case_text(case), encoding="ascii")
    return len(CLASSES)
