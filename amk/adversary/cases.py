"""Well-formed unsafe schedules, each made from a safe plan by a few edits, with what must be found and why.

A case file holds the bad schedule, what `verify` must say, the reason in words, and the edits that repair it; the
repaired schedule must be SAFE. `make_cases` builds all of them from planner output for a tiny model; labels are checked
by the tests, where every witness is replayed.
"""

from __future__ import annotations

import json
from pathlib import Path

from amk.adversary.edits import Edit, Json, apply
from amk.adversary.fact_recipes import FACTS, LEGAL
from amk.adversary.frame_recipes import FRAME
from amk.adversary.guess_recipes import GUESSES
from amk.adversary.means_recipes import MEANS
from amk.adversary.mistakes import Mistake
from amk.adversary.order_recipes import ORDER
from amk.adversary.outside_recipes import EXTENSIONS, OUTSIDE
from amk.adversary.recipe import BASES, Recipe, base_schedule
from amk.adversary.row_recipes import ROWS
from amk.adversary.split_recipes import SPLITS
from amk.adversary.tree_recipes import TREES
from amk.adversary.turn_recipes import TURNS
from amk.schedule_ir.codec import CASE

FORMAT = CASE
RECIPES = [*ORDER, *MEANS, *FRAME, *FACTS, *OUTSIDE, *EXTENSIONS, *LEGAL, *GUESSES, *TREES, *ROWS, *SPLITS, *TURNS]


def make_case(recipe: Recipe) -> Json:
    """The case as it stands in its file."""
    document, repair = apply(base_schedule(recipe.base), recipe.make(base_schedule(recipe.base)))
    return new_case(recipe.name, recipe.mistake, recipe.status, recipe.expect, recipe.because, document, repair)


def new_case(
    name: str, mistake: Mistake, status: str, expect: str, because: str, document: Json, repair: list[Edit]
) -> Json:
    """A case from its parts; `repair` are the edits that undo the mistake."""
    return {
        "format": FORMAT,
        "name": name,
        "class": mistake.label,
        "status": status,
        "expect": expect,
        "because": because,
        "repair": [{"do": e.do, "path": list(e.path), "value": e.value} for e in repair],
        "schedule": document,
    }


def case_text(case: Json) -> str:
    """The head indented, what is judged on one line each."""
    long = [k for k in ("schedule", "system", "twin") if k in case]
    head = {k: v for k, v in case.items() if k not in long}
    lines = [f' "{k}": ' + json.dumps(case[k], separators=(",", ":")) for k in long]
    return json.dumps(head, indent=1)[:-2] + ",\n" + ",\n".join(lines) + "\n}\n"


def repaired(case: Json) -> Json:
    """The safe twin of a case."""
    edits = [Edit(e["do"], tuple(e["path"]), e["value"]) for e in case["repair"]]
    return apply(case["schedule"], edits)[0]


def write_cases(folder: Path) -> int:
    """One file per recipe; returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    for recipe in RECIPES:
        (folder / f"{recipe.name}.json").write_text(case_text(make_case(recipe)), encoding="ascii")
    return len(RECIPES)


__all__ = ["BASES", "FORMAT", "RECIPES", "Recipe", "base_schedule", "make_case", "repaired", "write_cases"]
