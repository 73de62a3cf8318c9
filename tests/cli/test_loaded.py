"""`amk verify` loads no more than it uses.

A file counts if it has code: a package marker with nothing but a docstring is no file that somebody reads. A file is
used if one of its functions was called; the others must be here, with what they are loaded for.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from amk.report.diagnostic import Exit
from tests.validator.plans import SMALL, small_plan

CHILD = """
import ast, json, sys
from pathlib import Path
called = set()
def look(frame, event, _):
    if event == "call" and frame.f_code.co_name != "<module>":
        called.add(frame.f_code.co_filename)
sys.setprofile(look)
from amk.cli import main
code = main(["verify", sys.argv[1]])
sys.setprofile(None)
def has_code(file):
    return any(not isinstance(node, ast.Expr) for node in ast.parse(Path(file).read_text()).body)
files = {name: m.__file__ for name, m in sys.modules.items() if name.split(".")[0] == "amk" and m.__file__}
loaded = sorted(name for name, file in files.items() if has_code(file))
used = sorted(name for name in loaded if files[name] in called)
print(json.dumps([code, loaded, used]), file=sys.stderr)
"""
NAMES_ONLY = {
    "amk": "what `import amk` offers",
    "amk.version": "the number",
    "amk.report.diagnostic": "what a finding is, even if there is none",
}
MOST = 50
"""Files with code on the path of a verdict SAFE, besides those of what the schedule names: a file for each op, kind of
code and family of models."""
SHARED = {"attention", "base", "precondition", "staging"}
"""What files of ops have in common, beside them."""


@pytest.mark.parametrize("name", ["llama3-8b", "small"])
def test_a_verdict_loads_no_more_than_it_uses(name: str, tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    if name == "small":
        path.write_text(small_plan(SMALL["fast"]).model_dump_json())
    else:
        words = ["-m", "amk", "plan", "--model", name, "--gpu", "h200", "-o", str(path)]
        subprocess.run([sys.executable, *words], check=True, capture_output=True)
    done = subprocess.run([sys.executable, "-c", CHILD, str(path)], capture_output=True, text=True, check=True)
    code, loaded, used = json.loads(done.stderr.splitlines()[-1])
    assert code == Exit.SAFE
    of_schedule = {"amk.weights.codes.bf16", "amk.models.families.llama"}
    assert set(loaded) - set(used) - of_schedule <= set(NAMES_ONLY)
    assert not [module for module in loaded if module.startswith(("amk.validator.evidence", "amk.validator.export"))]
    ops = {step["op"]["op"] for step in _steps(json.loads(path.read_text())["programs"])}
    files = {m.rpartition(".")[2] for m in loaded if m.startswith("amk.schedule_ir.ops.")}
    assert files - SHARED - {"sync", "refill"} <= ops  # rings ask for refills
    of_schedule |= {f"amk.schedule_ir.ops.{file}" for file in files - SHARED}
    rest = [module for module in loaded if module not in of_schedule]
    assert len(rest) <= MOST, (len(rest), rest)


def _steps(node: object) -> list[dict[str, dict[str, str]]]:
    """Everything in a document that has an op."""
    if isinstance(node, dict):
        return [node] * ("op" in node and isinstance(node["op"], dict)) + [s for v in node.values() for s in _steps(v)]
    return [s for v in node for s in _steps(v)] if isinstance(node, list) else []
