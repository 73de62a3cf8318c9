"""Names in the code are the field's words: those of modules, classes, their fields and functions are nouns or verbs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_imports import ROOT

PARTICIPLES = {
    "asked", "done", "felt", "found", "given", "gone", "held", "kept", "known", "left", "looked", "made", "meant",
    "needed", "owed", "raced", "said", "seen", "taken", "thought", "told", "wanted",
}  # fmt: skip
"""No name by themselves: of what, and by whom, is to be said."""
OF_FIELDS = PARTICIPLES | {"written"}
"""A function may be what is written of its argument."""
OF_VARIABLES = {"given", "made", "told"}
"""No names of parameters, variables and attributes either, nor in tests."""
OF_PARAMETERS = (PARTICIPLES | {"lost", "met"}) - {"left"}
"""No names of parameters, nor in tests, of functions within functions, of constants and of attributes."""
NOT_RENAMED = {
    ("amk/planner/tuned.py", "taken"), ("amk/planner/tuned.py", "wanted"),
    ("amk/validator/static/sequences.py", "_met"),
}  # fmt: skip
DECIDERS = ("validator", "checker", "judges", "emulator")
"""Packages whose constants and attributes keep their names."""
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
HYPOTHESIS = ("hypothesis", "given", None)
"""The decorator of a property test by its own name: module, name, name here."""


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def definitions() -> Iterator[tuple[str, str]]:
    """(file, name) of every class, of functions of modules, and of methods."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in parsed(path).body:
            for inner in (node, *(node.body if isinstance(node, ast.ClassDef) else ())):
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield path.relative_to(ROOT).as_posix(), inner.name


def fields() -> Iterator[tuple[str, str]]:
    """(file, name) of what the bodies of classes declare or assign."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(parsed(path)):
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
                targets = inner.targets if isinstance(inner, ast.Assign) else [getattr(inner, "target", None)]
                for target in targets:
                    if isinstance(target, ast.Name):
                        yield path.relative_to(ROOT).as_posix(), target.id


def module_names() -> Iterator[tuple[str, str]]:
    """(file, name) of every module."""
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path.stem


def bindings() -> Iterator[tuple[str, str]]:
    """(file, name) of whatever code of the package or of a test binds: every function, parameter, variable, attribute,
    and what it imports but the decorator of hypothesis."""
    for path in sorted([*ROOT.rglob("*.py"), *Path(__file__).parent.rglob("*.py")]):
        for node in ast.walk(parsed(path)):
            for name in bound(node):
                yield path.relative_to(ROOT.parent).as_posix(), name


def bound(node: ast.AST) -> list[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return [name]
        case ast.MatchMapping(rest=str(name)):
            return [name]
        case ast.Import(names=names):
            return [alias.asname or alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names):
            return [each.asname or each.name for each in names if (module, each.name, each.asname) != HYPOTHESIS]
    return []


def parameters() -> Iterator[tuple[str, str]]:
    """(file, name) of every parameter of the package and of a test, and of every function of the package."""
    for path in sorted([*ROOT.rglob("*.py"), *Path(__file__).parent.rglob("*.py")]):
        for node in ast.walk(parsed(path)):
            of_package = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and path.is_relative_to(ROOT)
            if isinstance(node, ast.arg) or of_package:
                yield path.relative_to(ROOT.parent).as_posix(), node.arg if isinstance(node, ast.arg) else node.name


def constants_and_attributes() -> Iterator[tuple[str, str]]:
    """(file, name) of what modules bind, and of every attribute that is stored, outside of DECIDERS."""
    for path in sorted(ROOT.rglob("*.py")):
        if path.relative_to(ROOT).parts[0] in DECIDERS:
            continue
        tree = parsed(path)
        stored = [
            node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        ]
        assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
        for name in (name for node in assigned for inner in ast.walk(node) for name in bound(inner)):
            yield path.relative_to(ROOT).as_posix(), name
        for node in stored:
            yield path.relative_to(ROOT).as_posix(), node.attr


def bare(names: Iterator[tuple[str, str]], words: set[str]) -> set[tuple[str, str]]:
    return {(file, name) for file, name in names if snake(name).strip("_") in words}


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def test_no_function_or_class_is_a_bare_participle() -> None:
    assert bare(definitions(), PARTICIPLES) == EXCEPT


def test_no_field_is_a_bare_participle_but_those_that_files_have() -> None:
    assert bare(fields(), OF_FIELDS) == FIELDS_OF_FILES | {SIDES}


def test_no_variable_is_a_bare_participle_but_fields_that_files_have() -> None:
    found = {(file, name) for file, name in bindings() if name.strip("_") in OF_VARIABLES}
    assert found == {(f"amk/{file}", name) for file, name in FIELDS_OF_FILES if name in OF_VARIABLES}


def test_no_parameter_is_a_bare_participle() -> None:
    assert bare(parameters(), OF_PARAMETERS) == NOT_RENAMED


def test_no_constant_or_attribute_is_a_bare_participle_but_fields_that_files_have() -> None:
    assert bare(constants_and_attributes(), OF_PARAMETERS) == {("agent/tools/trial.py", "told")}


@pytest.mark.parametrize(
    "source",
    [
        "def f(*, made): ...", "lambda made: 0", "[0 for made in ()]", "f(made := 1)", "made: int = 1", "a._made = 1",
        "def made(): ...", "class made: ...", "from a import b as made", "import made", "from a import made",
        "try: ...\nexcept E as made: ...", "with a as made: ...", "match a:\n    case made: ...",
        "match a:\n    case [*made]: ...", "match a:\n    case {**made}: ...",
        "async def made(): ...", "def f(*made): ...", "def f(**made): ...", "from b import given as made",
    ],
)  # fmt: skip
def test_every_way_to_bind_a_name_is_seen(source: str) -> None:
    assert "made" in {name.strip("_") for node in ast.walk(ast.parse(source)) for name in bound(node)}


def test_no_module_is_a_bare_participle() -> None:
    assert bare(module_names(), OF_FIELDS) == set()


def test_nothing_has_a_private_word() -> None:
    names = [*definitions(), *fields(), *module_names()]
    assert [(file, name) for file, name in names if PRIVATE.search(snake(name))] == []
