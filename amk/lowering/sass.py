"""What the machine code contains that it should not: spills, calls and branches to computed addresses.

The disassembler (`nvdisasm`, from PyPI or a CUDA toolkit) is optional: without it `disassemble` returns None and the
checks rest on the compiler's own spill counts. A branch to a computed address would make the order of waits depend on
data, which the proof excludes; a switch over many cases compiles to one. Calls of fixed addresses are allowed: the slow
paths of division are subroutines.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from amk.lowering import refusal
from amk.report.diagnostic import shown

_TIMEOUT_SECONDS = 120
_SECTION = re.compile(r"^\.text\.([\w$]+):$", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[0-9T]\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)
_COMPUTED_CALL = re.compile(r"\bCALL[A-Z0-9_.]*\s+(?!`\()")


@dataclass(frozen=True)
class MachineCode:
    """One kernel's instructions by full opcode, and the counts that matter; computed_calls: those without a label."""

    opcodes: Counter[str]
    computed_calls: int = 0

    def count(self, *names: str) -> int:
        """Instructions whose opcode up to the first dot is one of `names`."""
        return sum(number for opcode, number in self.opcodes.items() if opcode.split(".")[0] in names)

    @property
    def local_loads(self) -> int:
        return self.count("LDL")

    @property
    def local_stores(self) -> int:
        return self.count("STL")

    @property
    def indirect_branches(self) -> int:
        return self.count("BRX", "BRXU", "JMX", "JMXU")

    @property
    def calls(self) -> int:
        return self.count("CALL")


def disassemble(cubin: bytes) -> str | None:
    """The listing of a cubin, or None if no disassembler is installed. Raises AMK901 if the disassembler fails."""
    tool = importlib.import_module("cuda.pathfinder").find_nvidia_binary_utility("nvdisasm")
    if tool is None:
        return None
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run(
            [tool, "-c", str(path)], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    if done.returncode != 0:
        raise refusal.internal("nvdisasm cannot read a cubin of NVRTC", shown(done.stderr.strip()))
    return done.stdout


def read_sass(listing: str) -> dict[str, MachineCode]:
    """Machine code of every kernel in a listing of `disassemble`."""
    _, *fields = _SECTION.split(listing)
    return {
        name: MachineCode(Counter(_INSTRUCTION.findall(text)), len(_COMPUTED_CALL.findall(text)))
        for name, text in zip(fields[::2], fields[1::2], strict=True)
    }


def check_sass(code: dict[str, MachineCode]) -> None:
    """Raise AMK403 for a kernel that spills, AMK205 for one that calls or branches to a computed address."""
    for name, machine in code.items():
        spills = machine.local_loads + machine.local_stores
        if spills:
            raise refusal.unsafe("AMK403", f"{name} has {spills} instructions that access spilled registers")
        if machine.computed_calls or machine.indirect_branches:
            jumps = f"{machine.computed_calls} calls and {machine.indirect_branches} branches"
            raise refusal.unsafe("AMK205", f"{name} has {jumps} to computed addresses")
