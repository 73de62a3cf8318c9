"""Children get no key and nothing of the working directory, whoever starts them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

from tests.test_imports import ROOT

PARENT = """
import os, sys
from amk.processes import process_pool

def told():
    return dict(os.environ), os.getcwd()

if __name__ == "__main__":
    with process_pool(1) as pool:
        environment, folder = pool.submit(told).result()
    assert "ANTHROPIC_API_KEY" not in environment and environment["LANG"] == "C", environment
    assert os.environ["ANTHROPIC_API_KEY"] == "sk-secret" and "PYTHONSAFEPATH" not in os.environ
    assert folder == os.getcwd()
"""


def test_a_pool_has_no_key_and_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    """Started as the console script is, whose own path has the folder of the script, not the working directory."""
    scripts, hostile = tmp_path / "bin", tmp_path / "hostile"
    scripts.mkdir()
    (scripts / "parent.py").write_text(PARENT)
    for package in ("amk", "multiprocessing"):
        (hostile / package).mkdir(parents=True)
        (hostile / package / "__init__.py").write_text("raise SystemExit('imported from the working directory')")
    environment = {"PYTHONPATH": str(ROOT.parent), "ANTHROPIC_API_KEY": "sk-secret", "LANG": "C"}
    environment["PATH"] = os.environ["PATH"]
    done = subprocess.run(
        [sys.executable, str(scripts / "parent.py")], cwd=hostile, env=environment, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_all_children_are_started_by_the_same_rules() -> None:
    """No other file makes a context of multiprocessing, or runs a module by `-m`."""
    found = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Constant) and node.value == "-m")
        or (
            isinstance(node, ast.Name | ast.alias) and "get_context" in (getattr(node, "id", getattr(node, "name", "")))
        )
        or (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("ProcessPoolExecutor"))
    }
    assert found == {"processes.py"}
