"""The index of recorded runs, and whether what a record is about has changed since it was made.

tests/records/claims.json names for each record the claim that it supports and the paths that it is about. A record is
stale if a file under these paths, other than a page of text, differs between one of the record's commits and HEAD.
A file of the tree cannot know later commits, so tests/records/stale.json says which records were stale at one commit.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "tests" / "records"
STATE = RECORDS / "stale.json"
HASH = re.compile(r"\b[0-9a-f]{7,40}\b")


class Claim(NamedTuple):
    """record: path under tests/records. about: paths of the repository whose change makes the record stale.
    made_of: the record that this one is drawn or tabulated from. unknown: why git cannot say whether it is stale."""

    record: str
    claim: str
    about: tuple[str, ...]
    made_of: str = ""
    unknown: str = ""


class State(NamedTuple):
    """Which records were stale at a commit; None: git cannot say."""

    as_of: str
    stale: dict[str, bool | None]


def claims() -> list[Claim]:
    entries = json.loads((RECORDS / "claims.json").read_text(encoding="utf-8"))
    return [Claim(**{**entry, "about": tuple(entry["about"])}) for entry in entries]


def commits(claim: Claim) -> tuple[str, ...]:
    """The commits that a record, or what it is made of, names under `commit` or `commits`, in the order of first
    mention."""
    path = RECORDS / (claim.made_of or claim.record)
    return tuple(dict.fromkeys(_commits(json.loads(path.read_text(encoding="utf-8")))))


def _commits(value: Any) -> Iterator[str]:
    for key, inner in value.items() if isinstance(value, dict) else ():
        if key in ("commit", "commits"):
            yield from (commit[:7] for commit in HASH.findall(" ".join([inner] if isinstance(inner, str) else inner)))
        else:
            yield from _commits(inner)
    for inner in value if isinstance(value, list) else ():
        yield from _commits(inner)


def dates(record: str) -> tuple[str, str] | None:
    """The first and the last day that a record names."""
    days = sorted(re.findall(r'"(20\d\d-\d\d-\d\d)[T" ]', (RECORDS / record).read_text(encoding="utf-8")))
    return (days[0], days[-1]) if days else None


@cache
def changed(commit: str, about: tuple[str, ...], at: str = "HEAD") -> bool | None:
    """Whether a file under `about`, pages of text left out, differs between two commits; None if git does not know
    one of them."""
    command = ["git", "-C", str(ROOT), "diff", "--quiet", commit, at, "--", *about, ":(exclude,glob)**/*.md"]
    code = subprocess.run(command, capture_output=True, check=False).returncode
    return {0: False, 1: True}.get(code)


def stale(claim: Claim, at: str = "HEAD") -> bool | None:
    """Whether a record is stale; None where no commit is named, or where git does not know one and no other shows a
    change."""
    known = [changed(commit, claim.about, at) for commit in commits(claim)]
    return True if True in known else None if not known or None in known else False


def state() -> State:
    return State(**json.loads(STATE.read_text(encoding="utf-8")))


def refresh(at: str) -> None:
    """Writes which records are stale at a commit."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=8", at]
    as_of = subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    found = State(as_of, {claim.record: stale(claim, as_of) for claim in claims()})
    STATE.write_text(json.dumps(found._asdict(), indent=1) + "\n", encoding="utf-8")


def index() -> str:
    """Markdown: one row per record."""
    head = f"| record | claim | commit | date | changed since, as of {state().as_of} |\n|---|---|---|---|---|\n"
    return head + "".join(map(_row, claims()))


def _row(claim: Claim) -> str:
    hashes, when = commits(claim), dates(claim.made_of or claim.record)
    days = "-" if when is None else when[0] if when[0] == when[1] else f"{when[0]} to {when[1]}"
    word = {True: "yes", False: "no", None: f"unknown: {claim.unknown}"}[state().stale.get(claim.record)]
    cells = f"[{claim.record}]({claim.record})", claim.claim, ", ".join(hashes) or "-", days, word
    return f"| {' | '.join(cells)} |\n"


def report() -> str:
    """One line per record: current, changed or unknown, as of the commit in the first line."""
    words = {True: "changed since", False: "current", None: "unknown"}
    lines = (f"{words[stale]:>14}  {record}\n" for record, stale in state().stale.items())
    return f"as of {state().as_of}\n{''.join(lines)}"
