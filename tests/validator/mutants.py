"""Mutants of the validator itself and of the checker: each edit of their source must be noticed by a test.

By hand, resumable: `python -m tests.validator.long_checks edits --record FILE`. The edits are in mutants.json: each is
a rule of `tests.validator.mutation_operators` and where it applies. Every mutant runs in a copy of the package, against
the narrowest tests that should notice it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.validator.mutation_operators import Scope, places

ROOT = Path(__file__).parents[2]
SEVERAL = 400.0
"""Seconds a mutant gets, many times what its tests take; one that does not end is noticed too, but tried again."""

ASSERTIONS = ("AssertionError", "assert ", "Failed: ")


@dataclass(frozen=True)
class Mutant:
    """The edit that `rule` makes in `function` of amk/`package`/`module`.py; `tests` are arguments of pytest.

    of: only places that mention this name count; place: which of them, and of how many.
    """

    name: str
    module: str
    function: str
    rule: str
    tests: tuple[str, ...]
    of: str = ""
    place: str = "1 of 1"
    package: str = "validator"

    @property
    def path(self) -> Path:
        """From the root of a tree."""
        return Path("amk", self.package, f"{self.module}.py")


def mutants() -> list[Mutant]:
    rows = json.loads(Path(__file__).with_suffix(".json").read_text())
    return [Mutant(**row | {"tests": tuple(row["tests"])}) for row in rows]


def source(mutant: Mutant) -> str:
    """The module with the edit made; ValueError if the place is no longer there, or no longer sure."""
    try:
        scope = Scope.named((ROOT / mutant.path).read_text(), mutant.function)
    except ValueError as error:
        raise ValueError(f"{mutant.name}: {mutant.path}: {error}") from None
    found = places(scope, mutant.rule, mutant.of)
    number, count = map(int, mutant.place.split(" of "))
    if len(found) != count:
        listed = "".join(f"\n  {k}: {place.description(scope.text)}" for k, place in enumerate(found, 1))
        where = f"{mutant.path}, {mutant.function}: {mutant.rule}{mutant.of and f', of {mutant.of}'}"
        raise ValueError(f"{mutant.name}: {where}: {len(found)} places, expected {count}{listed}")
    return found[number - 1].edited(scope.text)


def outcome(mutant: Mutant) -> str:
    """What the mutant's tests say in a copy of the tree: killed, where an assertion fails; crashed, where they end
    otherwise, in the mutant or in a test that expects something else of it; survived; hung."""
    changed = source(mutant)
    with tempfile.TemporaryDirectory(prefix="amk-mutant-") as name:
        folder = Path(name)
        for part in ("amk", "tests"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        for part in ("adversarial", "models"):
            (folder / part).symlink_to(ROOT / part)
        shutil.copy(ROOT / "pyproject.toml", folder)
        (folder / mutant.path).write_text(changed)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-rfE", "--tb=no", "-p", "no:cacheprovider"]
        found = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {"PYTHONPATH": found, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "500"}
        try:
            done = subprocess.run(
                [*command, *mutant.tests], cwd=folder, env=environment, capture_output=True, text=True, timeout=SEVERAL
            )
        except subprocess.TimeoutExpired:
            return "hung"
        if done.returncode not in (0, 1):
            raise RuntimeError(f"{mutant.name}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}")
        if done.returncode == 0:
            return "survived"
        return "killed" if asserted(done.stdout) else "crashed"


def asserted(output: str) -> bool:
    """Whether the test that pytest's summary names failed by an assertion of its own."""
    reasons = [line.partition(" - ")[2] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return bool(reasons) and all(reason.startswith(ASSERTIONS) for reason in reasons)


def edits_slice(number: int) -> dict[str, Any]:
    """One edit; one that no test notices is a difference."""
    mutant = mutants()[number]
    found = outcome(mutant)
    differences = [] if found in ("killed", "crashed") else [f"slice {number}: {mutant.name} {found}"]
    return {found: 1, "results": {mutant.name: found}, "differences": differences}
