"""Goes through the edits of the bases, the least looked at first, and writes down what it finds."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice, starmap
from pathlib import Path
from random import Random

from amk.adversary.edits import Json
from amk.adversary.neighbourhood.bases import base
from amk.adversary.neighbourhood.ledger import MOST_CHARACTERS, Ledger, Line, key_of
from amk.adversary.neighbourhood.mutator import Change, Neighbourhood, schema_of_schedules
from amk.adversary.neighbourhood.survey import EVERYTHING, Care, Survey

TURN = 500
"""Edits of a base before the next one has its turn."""
ONE_IN = 50
"""One in so many SAFE edits is judged by everything, and one in so many others at all."""


@dataclass
class Search:
    """pairs: of edits, in place of single ones. holes: where the schedule of each kind of hole is written. thorough:
    whether the first SAFE edit of a field and a sample of them are judged by everything."""

    bases: tuple[str, ...]
    ledger: Ledger
    pairs: bool = False
    seed: int = 0
    holes: Path | None = None
    commit: str = ""
    thorough: bool = True
    _counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for line in self.ledger.lines:
            self._count(line)

    def run(self, seconds: float, edits: int | None = None) -> Iterator[Line]:
        """New lines, until the time or the edits are used up or everything is done."""
        end, left = time.monotonic() + seconds, 10**12 if edits is None else edits
        open_bases = list(self.bases)
        while open_bases:
            for name in list(open_bases):
                pending = list(islice(self._pending(name), min(TURN, left)))
                if not pending:
                    open_bases.remove(name)
                    continue
                survey = Survey(base(name))
                for change in pending:
                    if time.monotonic() > end or not left:
                        return
                    yield self.judged(name, survey, change)
                    left -= 1

    def _pending(self, name: str) -> Iterator[Change]:
        changes = starmap(both, pairs(name, self.seed)) if self.pairs else iter(ordered(name, self.seed))
        return (change for change in changes if key_of(name, change) not in self.ledger.keys)

    def judged(self, name: str, survey: Survey, change: Change) -> Line:
        """What becomes of one edit, written down."""
        outcome = survey.outcome(change, self._care(name, change))
        shown = change.key if len(change.key) <= MOST_CHARACTERS or outcome.hole else ""
        line = Line(name, key_of(name, change), change.field, change.kind, outcome, self.commit, shown)
        self.ledger.add(line)
        if line.outcome.hole and self.holes is not None and not self._counts[_hole(line)]:
            _write(self.holes, line, survey.edited(change))
        self._count(line)
        return line

    def _care(self, name: str, change: Change) -> Care:
        """Everything for the first SAFE edit of a field and for a sample; the first others of a field and kind."""
        drawn = int(key_of(name, change)[:8], 16) % ONE_IN == 0
        first = not self._counts[f"safe {change.field}"]
        known = self._counts[f"other {name} {change.field} {change.kind}"]
        deep = self.thorough and (first or drawn)
        return Care(EVERYTHING if deep else 1, 1 if known < 2 or drawn else 0)

    def _count(self, line: Line) -> None:
        if line.outcome.verdict == "SAFE":
            self._counts[f"safe {line.field}"] += line.outcome.asked == EVERYTHING
        elif line.outcome.judge:
            self._counts[f"other {line.base} {line.field} {line.kind}"] += 1
        if line.outcome.hole:
            self._counts[_hole(line)] += 1


def _hole(line: Line) -> str:
    return f"hole {line.outcome.hole} {line.field} {line.kind} {line.outcome.judge}"


@lru_cache(maxsize=1)
def ordered(name: str, seed: int = 0) -> list[Change]:
    """All single edits of a base: one of every field and kind first, then another of each, and so on."""
    return in_turns(Neighbourhood(base(name), schema_of_schedules()).changes(), Random(f"{seed} {name}"))


def in_turns(all_changes: Iterable[Change], rng: Random) -> list[Change]:
    """The changes in a drawn order: one of every field and kind first, then another of each, and so on."""
    changes = list(all_changes)
    rng.shuffle(changes)
    rank: Counter[tuple[str, str]] = Counter()
    place: list[int] = []
    for change in changes:
        place.append(rank[change.field, change.kind])
        rank[change.field, change.kind] += 1
    return [changes[i] for i in sorted(range(len(changes)), key=place.__getitem__)]


def pairs(name: str, seed: int) -> Iterator[tuple[Change, Change]]:
    """Pairs of edits, without end: half of them of one field, of one step or of neighbouring places."""
    changes = list(Neighbourhood(base(name), schema_of_schedules()).changes())
    rng = Random(f"{seed} {name} pairs")
    fields: dict[str, list[Change]] = {}
    for change in changes:
        fields.setdefault(change.field, []).append(change)
    names = sorted(fields)
    while True:
        one = rng.choice(fields[rng.choice(names)])
        if rng.random() < 0.5:
            near = [c for c in rng.choices(changes, k=400) if c.edits[0].path[:-1][:6] == one.edits[0].path[:-1][:6]]
            two = rng.choice(near or fields[one.field])
        else:
            two = rng.choice(fields[rng.choice(names)])
        yield one, two


def both(one: Change, two: Change) -> Change:
    """The pair as one change."""
    return Change(f"{one.field} and {two.field}", f"{one.kind} and {two.kind}", (*one.edits, *two.edits))


def _write(folder: Path, line: Line, document: Json) -> None:
    """The schedule, and a line in README that says what it shows."""
    folder.mkdir(parents=True, exist_ok=True)
    file = f"edit-{line.key}.json"
    (folder / file).write_text(json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n", encoding="ascii")
    outcome = line.outcome
    entry = (
        f"{file}: passes {outcome.hole} ({outcome.verdict}{' ' if outcome.codes else ''}{' '.join(outcome.codes)}, "
        f"certificate {outcome.certificate}); {outcome.judge}; base {line.base}, {line.field}, {line.kind}: "
        f"{line.edits[:200]}; {outcome.why[:160]}"
    )
    with (folder / "README").open("a", encoding="utf-8") as readme:
        readme.write(entry.replace("\n", " ") + "\n")


def commit() -> str:
    """Of the checkout that this runs from; empty outside of one."""
    try:
        where = Path(__file__).parent
        found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=where)
    except OSError:
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
