"""Reading a file that `amk verify --witness` wrote, or anything that claims to be one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.report.json_file import read_json
from amk.validator.evidence.confirm import FORMAT
from amk.validator.evidence.witness import MalformedWitness, Witness, witness_from_json
from amk.validator.program.system import MalformedSystem, System, from_json

MAX_BYTES = 512 * 2**20


@dataclass(frozen=True, eq=False)
class WitnessFile:
    """raw: the JSON object; schedule: the hash that it says it was made for, if it says one."""

    raw: dict[str, Any]
    system: System
    witness: Witness

    @property
    def schedule(self) -> str | None:
        digest = self.raw.get("schedule")
        return digest if isinstance(digest, str) else None


def read_witness(path: Path) -> WitnessFile:
    """AMK005 (exit 2) for anything that is not a system with a witness of it; AMK00x for what is not JSON."""
    raw = read_json(path, MAX_BYTES)
    where = Where(file=str(path))
    if not isinstance(raw, dict) or raw.get("format") != FORMAT or "system" not in raw or "witness" not in raw:
        raise AmkError(Diagnostic("AMK005", f"not a witness file: expected format {FORMAT}", where=where))
    try:
        system = from_json(raw["system"])
        return WitnessFile(raw, system, witness_from_json(raw["witness"], system))
    except (MalformedSystem, MalformedWitness) as error:
        raise AmkError(Diagnostic("AMK005", str(error), where=where)) from error
