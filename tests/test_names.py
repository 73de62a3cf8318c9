"""Names in the code are the field's words, and those of functions and classes are nouns or verbs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.test_imports import ROOT

PARTICIPLES = {
    "asked", "done", "felt", "found", "given", "gone", "held", "kept", "known", "left", "looked", "made", "meant",
    "needed", "said", "seen", "taken", "thought", "told", "wanted",
}  # fmt: skip
"""No name by themselves: of what, and by whom, is to be said."""
PRIVATE = re.compile(
    r"(^|_)(crew|team|squad|abreast|envelope|knot|withheld|shortened|rival|station|rig|surroundings|quotient_system|"
    r"screen|raced)s?(_|$)"
)
"""Words that this project made up or used otherwise than others do; amk/README.md has those that stand for them."""
EXCEPT = frozenset(
    {("agent/journal/events.py", "Asked"), ("planner/program.py", "given"), ("planner/search.py", "Found")}
)
"""An event of the journal is past. Those of the planner are to be renamed."""


def definitions() -> Iterator[tuple[str, str]]:
    """(file, name) of every class, of functions of modules, and of methods."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            for inner in (node, *(node.body if isinstance(node, ast.ClassDef) else ())):
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield path.relative_to(ROOT).as_posix(), inner.name


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def test_no_function_or_class_is_a_bare_participle() -> None:
    found = [(file, name) for file, name in definitions() if snake(name).strip("_") in PARTICIPLES]
    assert sorted(set(found) - EXCEPT) == []
    assert set(found) >= EXCEPT


def test_no_function_or_class_has_a_private_word() -> None:
    assert [(file, name) for file, name in definitions() if PRIVATE.search(snake(name))] == []
