"""Files of the package import each other in one direction only."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "amk"


def modules(root: Path) -> dict[str, Path]:
    """Module name -> file."""
    found = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path) -> Iterator[str]:
    """What a file imports: at its top, within functions, and for type checkers alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None and not node.level, f"{path}: imports are absolute"
            yield from (part for alias in node.names for part in (f"{node.module}.{alias.name}", node.module))


def graph(root: Path) -> dict[str, set[str]]:
    """Module -> modules that it imports. A name taken out of a module is an import of that module."""
    known = modules(root)
    names = {module: list(imported(path)) for module, path in known.items()}
    return {module: {name for name in found if name in known} - {module} for module, found in names.items()}


@pytest.mark.turns(4)
def test_no_files_import_each_other_in_a_circle() -> None:
    found = graph(ROOT)
    assert len(found) > 100
    TopologicalSorter(found).prepare()


@pytest.mark.parametrize(
    "upper",
    [
        "from amk.low import thing",
        "from amk import low",
        "import amk.low",
        "def late():\n    from amk.low import thing",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from amk.low import thing",
    ],
)
def test_a_circle_is_found_however_it_is_written(tmp_path: Path, upper: str) -> None:
    root = tmp_path / "amk"
    root.mkdir()
    (root / "__init__.py").write_text("")
    (root / "high.py").write_text(upper)
    (root / "low.py").write_text("thing = 1")
    TopologicalSorter(graph(root)).prepare()
    (root / "low.py").write_text("from amk.high import late")
    with pytest.raises(CycleError):
        TopologicalSorter(graph(root)).prepare()


def module_by_name(node: ast.AST) -> str | None:
    """The module of a call `import_module("...")`: what such a module has, no type checker sees."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "import_module":
        (argument,) = node.args
        return argument.value if isinstance(argument, ast.Constant) else None
    return None


def taken_by_name(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of what a file takes out of modules imported by name, at once or through a variable."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text if "import_module(" in text else "")
    for scope in (tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))):
        assigned = [node for node in ast.walk(scope) if isinstance(node, ast.Assign) and module_by_name(node.value)]
        module_of = {ast.unparse(node.targets[0]): module_by_name(node.value) for node in assigned}
        for node in ast.walk(scope):
            if isinstance(node, ast.Attribute):
                module = module_by_name(node.value) or module_of.get(ast.unparse(node.value))
                if module is not None:
                    yield module, node.attr


def test_what_is_taken_out_of_a_module_by_name_is_in_it() -> None:
    files = modules(ROOT)
    taken = {(module, name) for path in files.values() for module, name in taken_by_name(path) if module in files}
    assert len(taken) > 10
    missing = {(module, name) for module, name in taken if name not in names_of(files[module])}
    assert missing == set()


def names_of(path: Path) -> set[str]:
    """What a module binds at its top."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        else:
            found |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found
