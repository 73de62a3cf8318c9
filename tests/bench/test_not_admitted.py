"""Machine code is loaded by the engine, which takes admitted kernels only; what loads other code says so."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
DRIVER, ENGINE = "amk.lowering.launch", "amk/engine/backends/cuda_engine.py"
NOT_ADMITTED = {
    "amk/bench/table/ablated.py",
    "amk/bench/tools/ceiling.py",
    "amk/bench/calibration/micro.py",
    "amk/bench/baselines/phase_graph.py",
    "amk/engine/device_packing.py",
    "amk/prefill/device_matrices.py",
}


def loads(text: str) -> bool:
    """Whether the source takes what loads machine code, or the driver's module itself."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            if names & {DRIVER, f"{DRIVER}.Module", f"{DRIVER}.*"}:
                return True
        elif isinstance(node, ast.Import) and any(alias.name == DRIVER for alias in node.names):
            return True
    return False


def test_nothing_else_loads_code() -> None:
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "amk").rglob("*.py") if loads(path.read_text())}
    assert files == NOT_ADMITTED | {ENGINE}


def test_the_driver_s_module_alone_asks_the_driver() -> None:
    words = ("cuLaunch", "cuModuleLoad", "cuLibraryLoad")
    asked = [p for p in (ROOT / "amk").rglob("*.py") if any(word in p.read_text() for word in words)]
    assert [str(path.relative_to(ROOT)) for path in asked] == ["amk/lowering/launch.py"]


def test_every_way_to_take_it_is_found() -> None:
    assert loads(f"from {DRIVER} import Device, Module as other") and loads(f"import {DRIVER} as other")
    assert loads("def late():\n    from amk.lowering import launch") and loads(f"from {DRIVER} import *")
    assert not loads(f"from {DRIVER} import Device")


def test_what_loads_other_code_says_so() -> None:
    page = (ROOT / "amk/bench/README.md").read_text()
    section = page.partition("## Code that is not admitted\n")[2].partition("\n## ")[0]
    for file in NOT_ADMITTED:
        assert "not admitted" in (ast.get_docstring(ast.parse((ROOT / file).read_text())) or "")
        assert f"{Path(file).name})" in section
    assert section.count("](") == len(NOT_ADMITTED)
