"""Since when a schedule is answered otherwise: differences that `tests.validator.frozen` recorded, judged once more.

    python -m tests.validator.frozen_differences COMMIT --record FILE [--tree FOLDER]

Each schedule is made again from its name and judged by today's validator and by that of COMMIT, one between the two
that the record compares. What COMMIT answers as today's one changed before COMMIT, what it answers as the earlier one
changed after it. The record keeps how many of each kind there are. The command runs where the record was made: other
commits plan and edit otherwise, and then today's answer is `not as recorded`.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from amk.adversary.confusion import mutation
from amk.adversary.edits import Edit, Json, apply
from amk.adversary.neighbourhood.bases import MADE, base
from amk.models.model import load_model
from tests.adversarial.full_size import drawn
from tests.validator.frozen import PARTS, _document, _server, worktree
from tests.validator.frozen_verdicts import Answer, answer

LINE = re.compile(r"([\w-]+): (.*): was (\[.*\]), is (\[.*\])")


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
    made, slices = PARTS[part]
    return {name: document for number in range(slices) for name, document in made(number)}


def document(part: str, name: str) -> Json:
    """The schedule that a slice calls so."""
    if part == "neighbourhood":
        of = max((known for known in MADE if name.startswith(f"{known} ")), key=len)
        edits = [Edit(do, tuple(path), value) for do, path, value in json.loads(name[len(of) + 1 :])]
        return apply(base(of), edits)[0]
    if part in ("mutants", "full-size"):
        number, seed = name.removeprefix("class ").split(", ")
        if part == "full-size":
            return _document(drawn(int(number), seed, load_model("llama3-8b"))[0])
        return _document(mutation(int(number), seed.removesuffix(f"/{number}")).subject)
    return _named(part)[name]


def told(difference: Difference, tree: Path) -> str:
    """What the validator of the tree says of it."""
    case = document(difference.part, difference.name)
    if answer(case) != difference.now:
        return "not as recorded"
    between = _server(tree).ask(case)
    return {str(difference.now): "as the newer", str(difference.was): "as the earlier"}.get(str(between), "otherwise")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="whose validator is asked")
    parser.add_argument("--record", type=Path, required=True, help="JSON file with differences")
    parser.add_argument("--tree", type=Path, help="the files of the commit, where there is no git")
    options = parser.parse_args()
    record = json.loads(options.record.read_text())
    counts: dict[str, Counter[str]] = {}
    with nullcontext(options.tree) if options.tree else worktree(options.commit) as tree:
        for difference in map(Difference.of, record["differences"]):
            counts.setdefault(difference.kind, Counter())[told(difference, tree)] += 1
    record["asked again"] = record.get("asked again", {}) | {options.commit: dict(sorted(counts.items()))}
    options.record.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record["asked again"][options.commit], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
