"""What spin says of a system's Promela model."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from amk.validator.export.promela import promela
from amk.validator.program.system import System
from tests.validator.compiled_explorer import compiler


def missing() -> str | None:
    """Why spin cannot be run here; None if it can."""
    if shutil.which("spin") is None:
        return "spin is not installed"
    return None if compiler() else "spin needs a C compiler"


def spin(system: System) -> tuple[bool, bool]:
    """(stuck in some run, racy in some run)."""
    with tempfile.TemporaryDirectory(prefix="amk-spin-") as name:
        folder = Path(name)
        (folder / "x.pml").write_text(promela(system))
        for command in (["spin", "-a", "x.pml"], [str(compiler()), "-O0", "-w", "-DSAFETY", "-o", "pan", "pan.c"]):
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
        return _errors(folder, "-A"), _errors(folder, "-E")


def _errors(folder: Path, ignore: str) -> bool:
    done = subprocess.run(["./pan", ignore], cwd=folder, check=True, capture_output=True, text=True, timeout=120)
    found = re.search(r"errors: (\d+)", done.stdout)
    assert found and "max search depth too small" not in done.stdout
    return int(found.group(1)) > 0
