"""A sample of all edits of the device code, one a slice of the recorded run.

    python -m tests.validator.evidence --only lowering --jobs 14 --seconds 900 --records tests/records/proof

A survivor that `equivalent.json` proves to compute the same counts as equivalent, by its place or by a rule for places.
Any other is a difference, and so is one that is named there and is refused.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from amk.lowering.headers import read_header
from tests.lowering.edits.judge import all_edits, beside, judge
from tests.lowering.edits.rules import SOURCE, Edit, edits

Case = tuple[tuple[str, ...], Edit]
EQUIVALENT = Path(__file__).with_name("equivalent.json")
OTHERS = ("amk/pack.cuh", "amk/unpack.cuh")
"""Headers of kernels that are of no schedule: `of_rows` judges their edits."""
SLICES = 1_190
"""A few more than the sample has edits."""
KEPT = ("survived", "equal PTX")
OF_A_RULE, OF_A_TEXT, OF_A_HEADER = 10, 2, 6
"""Edits of one rule and subject that the sample takes, of the headers and of the emitted text, and of one header."""


def sample(cases: list[Case]) -> list[Case]:
    """Evenly spaced edits of every rule in every subject, kinds in turn, then of headers that have few of them."""
    groups: dict[tuple[str, str, bool], list[Case]] = {}
    for names, edit in cases:
        groups.setdefault((names[0], edit.name.split(":")[0], edit.file == SOURCE), []).append((names, edit))
    taken: list[tuple[int, Case]] = []
    for (_, _, in_text), group in groups.items():
        taken += enumerate(spaced(group, OF_A_TEXT if in_text else OF_A_RULE))
    chosen = [case for _, case in sorted(taken, key=lambda pair: pair[0])]
    return chosen + [case for file in sorted({edit.file for _, edit in cases}) for case in further(file, cases, chosen)]


def spaced(cases: list[Case], count: int) -> list[Case]:
    count = min(len(cases), count)
    return [cases[place * len(cases) // count] for place in range(count)]


def further(file: str, cases: list[Case], chosen: list[Case]) -> list[Case]:
    """What a file lacks to have as many as every header has."""
    there = {edit for _, edit in chosen if edit.file == file}
    left = [case for case in cases if case[1].file == file and case[1] not in there]
    return spaced(left, max(0, OF_A_HEADER - len(there)))


@cache
def equivalent() -> tuple[dict[str, str], dict[str, str]]:
    """Places of edits that change PTX and not what the kernel does, and patterns of such places, with the reason."""
    found = json.loads(EQUIVALENT.read_text())
    return found["places"], found["rules"]


@cache
def numbered() -> dict[Edit, str]:
    """The place of every edit, with its number behind the first where several have the same words."""
    alike: dict[str, list[Edit]] = {}
    others = edits({file: read_header(file) for file in OTHERS})
    for edit in (*(edit for _, edit in all_edits()), *others):
        alike.setdefault(edit.place, []).append(edit)
    ordered = (sorted(same, key=lambda edit: edit.at) for same in alike.values())
    return {edit: edit.place + f" #{n}" * (n > 1) for same in ordered for n, edit in enumerate(same, 1)}


def proof_of(edit: Edit) -> str:
    """Why the edited kernel computes the same; empty if nothing says so."""
    places, rules = equivalent()
    by_rule = (why for pattern, why in rules.items() if re.fullmatch(pattern, edit.place))
    return places.get(numbered()[edit]) or next(by_rule, "")


@cache
def chosen() -> list[Case]:
    return sample(all_edits())


def edits_slice(number: int) -> dict[str, Any]:
    """One edit of the sample; none where it has fewer."""
    if number >= len(chosen()):
        return {"edits": 0}
    names, edit = chosen()[number]
    return judged(names, edit, (*beside(edit), *names))


def judged(names: tuple[str, ...], edit: Edit, kernels: tuple[str, ...]) -> dict[str, Any]:
    """What becomes of an edit, which is called by the first of `names`, in these kernels."""
    key, why = f"{names[0]}: {edit.name}", proof_of(edit)
    subject, verdict = judge(kernels, edit)
    differences = [f"named in {EQUIVALENT.name}, and {verdict}: {key}"] if why and verdict not in KEPT else []
    if verdict == "survived":
        verdict = "equivalent" if why else verdict
        differences += [] if why else [f"survived: {key}: {edit.new}"]
    result = f"{edit.kind}: {verdict}" + (f", {subject}" if subject else "")
    changed = {edit.kind.partition(":")[0]: int(verdict != "equal PTX")}
    counts = {f"{edit.kind}: {verdict}": 1}
    return {"edits": 1, "changed": changed, "outcomes": counts, "results": {key: result}, "differences": differences}
