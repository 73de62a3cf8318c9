"""Today's validator against that of an earlier commit: equal status, code and place of the first finding.

    python -m tests.validator.frozen COMMIT --record FILE [--only PART...] [--seconds S] [--jobs N] [--tree FOLDER]

The earlier one comes from a git worktree that the command makes and removes, or from a folder with the files of that
commit; both live in processes that judge many schedules. Slices of all parts take turns; the same command goes on where
the record ends (see `tests.long_run`).

files          adversarial/ with twins, 10 files a slice
matrix         a plan of every model on every target, formats and the naive plan in turn
neighbourhood  50 edits of a base, 500 of each
whole          some 250 edits of a base that e3c703bd calls SAFE, their whole neighbourhoods
full-size      a mutant of llama3-8b
mutants        100 mutants of small plans
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from amk.adversary.cases import repaired
from amk.adversary.classes.table import CLASSES
from amk.adversary.confusion import mutation
from amk.adversary.edits import Json
from amk.adversary.neighbourhood.bases import SMALL_BASES, base
from amk.adversary.neighbourhood.search import ordered
from amk.adversary.neighbourhood.survey import Survey
from amk.adversary.suite import folder
from amk.models.model import load_model, shipped_models
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import PRESETS
from amk.report.diagnostic import AmkError
from amk.targets.target import load_target, targets
from amk.validator.program.system import System
from amk.weights.weight_format import FORMATS
from tests import long_run
from tests.adversarial.full_size import PLANS, drawn
from tests.validator import frozen_verdicts
from tests.validator.frozen_verdicts import answer

ROOT = Path(__file__).parents[2]
FILES, EDITS, MUTANTS = 10, 50, 100
"""Cases of a slice."""
EARLIER = (
    "slice of layers", "sm_80", "refills held back", "fenced, heads apart", "int8, fp8 cache", "int4 with zeros",
    "LayerNorm, parallel", "batch, parts of down", "live batch, fenced, head norms", "two programs", "drawing, fenced",
)  # fmt: skip
"""Bases that are SAFE for the validator of e3c703bd, too; it does not know what the others have."""
STRIDE = 144
"""Slices of a whole neighbourhood, each every so many-th edit."""
Case = tuple[str, Json]
"""What it is called, and the document."""


def _document(subject: Any) -> Json:
    return subject.to_json() if isinstance(subject, System) else json.loads(subject.model_dump_json())


def _files(number: int) -> Iterator[Case]:
    for file in sorted(folder().rglob("*.json"))[number * FILES : (number + 1) * FILES]:
        case = json.loads(file.read_text())
        yield file.stem, case.get("schedule") or case["system"]
        yield f"{file.stem}, repaired", case["twin"] if "system" in case else repaired(case)


@cache
def _cells() -> list[tuple[str, str, str, str]]:
    """model, target, format, plan."""
    pairs = [(model, target.name) for model in shipped_models() for target in targets()]
    kinds = [*((weights, "fast") for weights in FORMATS), ("bf16", "naive")]
    return [(*pair, *kinds[n % len(kinds)]) for n, pair in enumerate(pairs)]


def _matrix(number: int) -> Iterator[Case]:
    model, target, weights, preset = _cells()[number]
    try:
        schedule = plan(
            load_model(model), load_target(target), settings=PRESETS[preset],
            formats=formats(weights),  # type: ignore[arg-type]
        )  # fmt: skip
    except AmkError:
        return
    yield f"{model} {target} {weights} {preset}", _document(schedule)


def _neighbourhood(number: int) -> Iterator[Case]:
    at = number // len(SMALL_BASES) * EDITS
    return _edits(sorted(SMALL_BASES)[number % len(SMALL_BASES)], slice(at, at + EDITS))


def _whole(number: int) -> Iterator[Case]:
    return _edits(EARLIER[number // STRIDE], slice(number % STRIDE, None, STRIDE))


def _edits(name: str, some: slice) -> Iterator[Case]:
    survey = Survey(base(name))
    for change in ordered(name)[some]:
        if (document := survey.edited(change)) is not None:
            yield f"{name} {change.key}", document


def _full_size(number: int) -> Iterator[Case]:
    kind = PLANS[number % len(PLANS)]
    yield f"class {kind}, full/{number}", _document(drawn(kind, f"full/{number}", load_model("llama3-8b"))[0])


def _mutants(number: int) -> Iterator[Case]:
    for n in range(number * MUTANTS, (number + 1) * MUTANTS):
        case = mutation(CLASSES[n % len(CLASSES)].number, f"frozen/{n // len(CLASSES)}")
        yield f"class {case.number}, {case.seed}", _document(case.subject)


PARTS: dict[str, tuple[Callable[[int], Iterator[Case]], int]] = {
    "files": (_files, 20),
    "matrix": (_matrix, len(_cells())),
    "neighbourhood": (_neighbourhood, 10 * len(SMALL_BASES)),
    "whole": (_whole, STRIDE * len(EARLIER)),
    "full-size": (_full_size, 500),
    "mutants": (_mutants, 2002),
}
"""The cases of a slice, and how many slices there are."""


def slices(parts: tuple[str, ...]) -> list[tuple[str, int]]:
    """All slices of the parts, in turn: after a share of them, that share of each part is done."""
    every = [((n + 0.5) / PARTS[part][1], part, n) for part in parts for n in range(PARTS[part][1])]
    return [(part, n) for _, part, n in sorted(every)]


@dataclass
class _Server:
    """The validator of another tree."""

    process: subprocess.Popen[str]

    def ask(self, document: Json) -> frozen_verdicts.Answer:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(document) + "\n")
        self.process.stdin.flush()
        found: frozen_verdicts.Answer = json.loads(self.process.stdout.readline())
        return found


@cache
def _server(tree: Path) -> _Server:
    """One for each process."""
    command = [sys.executable, "-P", frozen_verdicts.__file__]
    others = [path] if (path := os.environ.get("PYTHONPATH")) else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tree), *others])}
    return _Server(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=tree)
    )


def compared(parts: tuple[str, ...], tree: Path, number: int) -> dict[str, Any]:
    """One slice, judged by both."""
    part, n = slices(parts)[number]
    counts, differences = Counter[str](), []
    for name, document in PARTS[part][0](n):
        before, now = _server(tree).ask(document), answer(document)
        counts["late" if "late" in (before[0], now[0]) else now[0]] += 1
        if before != now and "late" not in (before[0], now[0]):
            differences.append(f"{part}: {name}: was {before}, is {now}")
    return {part: dict(counts) | {"cases": sum(counts.values())}, "differences": differences}


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """The files of the commit, for as long as they are needed."""
    with tempfile.TemporaryDirectory(prefix="amk-frozen-") as name:
        tree = Path(name) / "tree"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", "-q", tree, commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="whose validator is the measure")
    parser.add_argument("--record", type=Path, required=True, help="JSON file to continue")
    parser.add_argument("--only", choices=sorted(PARTS), nargs="+", default=list(PARTS), help="these parts")
    parser.add_argument("--tree", type=Path, help="the files of the commit, where there is no git")
    long_run.arguments(parser)
    options = parser.parse_args()
    parts = tuple(options.only)
    with nullcontext(options.tree) if options.tree else worktree(options.commit) as tree:
        run = long_run.Run("frozen", partial(compared, parts, tree), options.record, len(slices(parts)), guess=5.0)
        run.record["against"] = options.commit
        return long_run.go([run], options)


if __name__ == "__main__":
    sys.exit(main())
