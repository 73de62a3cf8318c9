"""Names in the code are the field's words: those of modules, classes, their fields and functions are nouns or verbs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.test_imports import ROOT

PARTICIPLES = {
    "asked", "done", "felt", "found", "given", "gone", "held", "kept", "known", "left", "looked", "made", "meant",
    "needed", "owed", "raced", "said", "seen", "taken", "thought", "told", "wanted",
}  # fmt: skip
"""No name by themselves: of what, and by whom, is to be said."""
OF_FIELDS = PARTICIPLES | {"written"}
"""A function may be what is written of its argument."""
PRIVATE = re.compile(
    r"(^|_)(crew|team|squad|abreast|envelope|knot|withheld|shortened|rival|station|rig|surroundings|quotient_system|"
    r"screen|raced)s?(_|$)"
)
"""Words that this project made up or used otherwise than others do; amk/README.md has those that stand for them."""
EXCEPT = frozenset({("agent/journal/events.py", "Asked")})
"""An event of the journal is past."""
FIELDS_OF_FILES = frozenset(
    {
        ("adversary/neighbourhood/survey.py", "asked"), ("agent/journal/events.py", "needed"),
        ("agent/report/standing.py", "kept"), ("agent/tools/trial.py", "told"), ("agent/tools/views.py", "told"),
        ("agent/tools/views.py", "known"),
    }
)  # fmt: skip
"""Keys of JSON that people, records or other programs read."""
SIDES = ("lowering/conditions.py", "left")
"""Of a comparison, beside `right`."""


def definitions() -> Iterator[tuple[str, str]]:
    """(file, name) of every class, of functions of modules, and of methods."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            for inner in (node, *(node.body if isinstance(node, ast.ClassDef) else ())):
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield path.relative_to(ROOT).as_posix(), inner.name


def fields() -> Iterator[tuple[str, str]]:
    """(file, name) of what the bodies of classes declare or assign."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
                targets = inner.targets if isinstance(inner, ast.Assign) else [getattr(inner, "target", None)]
                for target in targets:
                    if isinstance(target, ast.Name):
                        yield path.relative_to(ROOT).as_posix(), target.id


def module_names() -> Iterator[tuple[str, str]]:
    """(file, name) of every module."""
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path.stem


def bare(names: Iterator[tuple[str, str]], words: set[str]) -> set[tuple[str, str]]:
    return {(file, name) for file, name in names if snake(name).strip("_") in words}


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def test_no_function_or_class_is_a_bare_participle() -> None:
    assert bare(definitions(), PARTICIPLES) == EXCEPT


def test_no_field_is_a_bare_participle_but_those_that_files_have() -> None:
    assert bare(fields(), OF_FIELDS) == FIELDS_OF_FILES | {SIDES}


def test_no_module_is_a_bare_participle() -> None:
    assert bare(module_names(), OF_FIELDS) == set()


def test_nothing_has_a_private_word() -> None:
    names = [*definitions(), *fields(), *module_names()]
    assert [(file, name) for file, name in names if PRIVATE.search(snake(name))] == []
