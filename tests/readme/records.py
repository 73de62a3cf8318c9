"""The index of recorded runs, and whether what a record is about has changed since it was made.

tests/records/claims.json names for each record the claim that it supports and the paths that it is about. A record is
stale if a file under these paths, other than a page of text, differs between one of the record's commits and HEAD.
"""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "tests" / "records"


class Claim(NamedTuple):
    """record: path under tests/records. about: paths of the repository whose change makes the record stale."""

    record: str
    claim: str
    about: tuple[str, ...]


def claims() -> list[Claim]:
    entries = json.loads((RECORDS / "claims.json").read_text(encoding="utf-8"))
    return [Claim(e["record"], e["claim"], tuple(e["about"])) for e in entries]


def commits(record: str) -> tuple[str, ...]:
    """The commits that a record names, in the order of first mention."""
    text = (RECORDS / record).read_text(encoding="utf-8")
    found = re.findall(r'"commits?":\s*\{?\s*"([0-9a-f]{7,40})"', text)
    return tuple(dict.fromkeys(commit[:7] for commit in found))


def dates(record: str) -> tuple[str, str] | None:
    """The first and the last day that a record names."""
    days = sorted(re.findall(r'"(20\d\d-\d\d-\d\d)[T" ]', (RECORDS / record).read_text(encoding="utf-8")))
    return (days[0], days[-1]) if days else None


@cache
def changed(commit: str, about: tuple[str, ...]) -> bool | None:
    """Whether a file under `about`, pages of text left out, differs between `commit` and HEAD; None if git does not
    know the commit."""
    command = ["git", "-C", str(ROOT), "diff", "--quiet", commit, "HEAD", "--", *about, ":(exclude,glob)**/*.md"]
    code = subprocess.run(command, capture_output=True, check=False).returncode
    return {0: False, 1: True}.get(code)


def stale(claim: Claim) -> bool | None:
    """Whether a record is stale; None where no commit is named or git does not know it."""
    known = [changed(commit, claim.about) for commit in commits(claim.record)]
    return None if not known or None in known else any(known)


def index() -> str:
    """Markdown: one row per record. Without the staleness, which a change anywhere in the tree may alter."""
    return "| record | claim | commit | date |\n|---|---|---|---|\n" + "".join(map(_row, claims()))


def _row(claim: Claim) -> str:
    made, when = commits(claim.record), dates(claim.record)
    days = "-" if when is None else when[0] if when[0] == when[1] else f"{when[0]} to {when[1]}"
    return f"| [{claim.record}]({claim.record}) | {claim.claim} | {', '.join(made) or '-'} | {days} |\n"


def report() -> str:
    """One line per record: current, changed or unknown."""
    words = {True: "changed since", False: "current", None: "unknown"}
    return "".join(f"{words[stale(claim)]:>14}  {claim.record}\n" for claim in claims())
