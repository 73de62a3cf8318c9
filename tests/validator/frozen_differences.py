"""Why today's validator answers otherwise than an earlier one: differences that `tests.validator.frozen` recorded.

    python -m tests.validator.frozen_differences --record FILE > PAGE

Two schedules of every kind of difference are made again from their names and judged by the validators of the commits
between the two that the record compares, by bisection: the record keeps the commits at which the earlier answer ends.
The page counts the differences of each kind beside them. The command runs where the record was made: other commits plan
and edit otherwise.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from amk.adversary.confusion import mutation
from amk.adversary.edits import Edit, Json, apply
from amk.adversary.neighbourhood.bases import SMALL_BASES, base
from amk.models.model import load_model
from tests.adversarial.full_size import drawn
from tests.validator.frozen import PARTS, ROOT, _document, _server, worktree
from tests.validator.frozen_verdicts import Answer

LINE = re.compile(r"([\w-]+): (.*): was (\[.*\]), is (\[.*\])")
REASONS = {
    "097430cc": "A product may begin while refills of its ring are owed, as long as one slot is not: the refusal was "
    "needless.",
    "f827e8d0": "Accesses are compared in the order of any run, so another race, or its other step, is named.",
    "06d4a17a": "One run places all accesses, so the race is found before the read of a word that nobody has written.",
    "987da570": "Deadlocks of large schedules are shown by the flat run, which names another waiting step.",
    "26b5a0c1": "Options that a model's family does not have are refused when the file is read.",
    "8a1346e6": "Steps of more than 8 rows are in the schema.",
    "c7916ccf": "Steps of more than 16 rows are in the schema.",
    "caa2d7ec": "Codes may be multiplied by several vectors.",
    "7e5e8cfb": "Steps whose rows are a tree are in the schema.",
    "a4f5d6d2": "Scales of runs of blocks are in the schema.",
    "822f0659": "Products in parts of their inputs are in the schema.",
    "9eb63694": "Steps that accept guesses are in the schema.",
    "80805221": "Steps of up to 64 rows are in the schema.",
    "d003a059": "Batches of up to 64 sequences are in the schema.",
    "38198704": "An output head alone is in the schema.",
    "08313015": "Partials of attention lie in the array of queries, whose rows have one length.",
    "59ff6666": "A buffer has a dimension at least.",
    "fd43a172": "Launches of one token are judged by themselves, so what a second one would show is another finding.",
    "318c363b": "State that is stored before the token loop is found by its own rule.",
    "08f40046": "All warps reduce the splits of many columns, so the role `all` is judged by what it reads.",
    "71d38778": "A live batch whose buffers have another shape is refused; it was an error of the program.",
    "a9021dd4": "Of several steps that compute something else another one is named.",
    "36718803": "Symmetric codes of four bits need no sums of a vector's blocks, which several vectors do not have.",
}
"""By the commit at which the earlier answer ends."""


@dataclass(frozen=True)
class Difference:
    """was, now: answers of the earlier validator, and of the one that made the record."""

    part: str
    name: str
    was: Answer
    now: Answer

    @classmethod
    def of(cls, line: str) -> Difference:
        """From how the record says it; ValueError for other lines."""
        if (found := LINE.fullmatch(line)) is None:
            raise ValueError(f"no difference of answers: {line}")
        part, name, was, now = found.groups()
        return cls(part, name, ast.literal_eval(was), ast.literal_eval(now))

    @property
    def kind(self) -> str:
        """Part, and status and code of both answers."""
        was, now = (" ".join(word for word in answer[:2] if isinstance(word, str)) for answer in (self.was, self.now))
        return f"{self.part}: {was.strip()} > {now.strip()}"


@cache
def _named(part: str) -> dict[str, Json]:
    """Every case of a part with few of them."""
    cases_of, slices = PARTS[part]
    return {name: document for number in range(slices) for name, document in cases_of(number)}


def document(part: str, name: str) -> Json:
    """The schedule that a slice calls so."""
    if part in ("neighbourhood", "whole"):
        of = max((known for known in SMALL_BASES if name.startswith(f"{known} ")), key=len)
        edits = [Edit(do, tuple(path), value) for do, path, value in json.loads(name[len(of) + 1 :])]
        return apply(base(of), edits)[0]
    if part in ("mutants", "full-size"):
        number, seed = name.removeprefix("class ").split(", ")
        if part == "full-size":
            return _document(drawn(int(number), seed, load_model("llama3-8b"))[0])
        return _document(mutation(int(number), seed.removesuffix(f"/{number}")).subject)
    return _named(part)[name]


def ends(
    cases: Mapping[str, Answer], commits: Sequence[str], ask: Callable[[str, list[str]], Mapping[str, Answer]]
) -> dict[str, str]:
    """For every case, with its earlier answer, the first of the commits (oldest first) that answers otherwise, by
    bisection. The first one answers as earlier, the last one otherwise. ask(commit, names): its answers."""
    open_ = {name: (0, len(commits) - 1) for name in cases}
    while wanted := [(low + high) // 2 for low, high in open_.values() if high - low > 1]:
        at = max(wanted, key=wanted.count)
        names = [name for name, (low, high) in open_.items() if low < at < high]
        for name, answer in ask(commits[at], names).items():
            low, high = open_[name]
            open_[name] = (at, high) if answer == cases[name] else (low, at)
    return {name: commits[high] for name, (_, high) in open_.items()}


def between(against: str, commit: str) -> list[str]:
    """The commits from `against` to `commit`, oldest first, without those of merged branches."""
    command = ["git", "rev-list", "--reverse", "--first-parent", f"{against}..{commit}"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return [against, *(commit[:8] for commit in listed)]


def examined(differences: Sequence[Difference], commits: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Of every kind: how many there are, and the commits at which the earlier answer to its first and last one ends;
    none where the two validators, asked again, answer otherwise than the record says."""
    kinds: dict[str, list[Difference]] = defaultdict(list)
    for one in differences:
        kinds[one.kind].append(one)
    chosen = {f"{one.part}: {one.name}": one for some in kinds.values() for one in (some[0], some[-1])}
    schedules = {name: document(one.part, one.name) for name, one in chosen.items()}

    def ask(commit: str, names: list[str]) -> dict[str, Answer]:
        with worktree(commit) as tree:
            return {name: _server(tree).ask(schedules[name]) for name in names}

    earlier, last = ask(commits[0], list(chosen)), ask(commits[-1], list(chosen))
    cases = {name: one.was for name, one in chosen.items() if (earlier[name], last[name]) == (one.was, one.now)}
    found: dict[str, set[str]] = defaultdict(set)
    for name, commit in ends(cases, commits, ask).items():
        found[chosen[name].kind].add(commit)
    return {kind: {"count": len(some), "ends at": sorted(found[kind])} for kind, some in kinds.items()}


def page(record: Mapping[str, Any], name: str) -> str:
    """The kinds by the commits at which they begin, most differences first."""
    groups: dict[tuple[str, ...], list[tuple[int, str]]] = defaultdict(list)
    for kind, found in record["kinds"].items():
        groups[tuple(found["ends at"])].append((found["count"], kind))
    run = record["run"]
    text = (
        f"# Why {len(record['differences']):,} answers differ from those of {record['against']}\n\n"
        f"Record: `{name}`, commit {run['commit']}. Two differences of every kind were bisected.\n\n"
        "| differences | kinds | since | reason |\n|---|---|---|---|\n"
    )
    for commits, kinds in sorted(groups.items(), key=lambda item: -sum(count for count, _ in item[1])):
        names = "; ".join(f"{kind} ({count:,})" for count, kind in sorted(kinds, reverse=True))
        reasons = " ".join(REASONS[commit] for commit in commits) or "Asked again, the two validators do not differ so."
        text += f"| {sum(count for count, _ in kinds):,} | {names} | {', '.join(commits)} | {reasons} |\n"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, required=True, help="JSON file with differences")
    options = parser.parse_args()
    record = json.loads(options.record.read_text())
    if "kinds" not in record:
        differences = [Difference.of(line) for line in record["differences"]]
        record["kinds"] = examined(differences, between(record["against"], record["run"]["commit"]))
        options.record.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    print(page(record, options.record.name), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
