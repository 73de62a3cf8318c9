"""For which adversarial cases is a fix found: `python -m tests.repair.survey SECONDS > FILE`, looked at by hand."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from amk.repair.search import find_repair
from amk.validator.verify import verify
from tests.validator.plans import from_document

FOLDER = Path(__file__).parents[2] / "adversarial"


def survey(seconds: float) -> dict[str, Any]:
    """Per case that is not SAFE: the fix, candidates tried, processor seconds; every fix is verified once more."""
    cases = {}
    for file in sorted(FOLDER.glob("*.json")):
        case = json.loads(file.read_text())
        if case["status"] == "SAFE" or "schedule" not in case:
            continue
        schedule = from_document(case["schedule"])
        began = time.process_time()
        found = find_repair(schedule, verify(schedule), seconds)
        cases[file.stem] = {
            "code": case["expect"],
            "fix": None if found is None else found.description,
            "tried": None if found is None else found.tried,
            "seconds": round(time.process_time() - began, 1),
            "safe": None if found is None else verify(from_document(found.document)).safe,
        }
        print(file.stem, cases[file.stem], file=sys.stderr, flush=True)
    fixed = [case for case in cases.values() if case["fix"] is not None]
    return {
        "command": f"python -m tests.repair.survey {seconds:g}",
        "commit": subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip(),
        "hardware": f"{os.cpu_count()} cores, {platform.machine()}, shared",
        "cases": len(cases),
        "fixed": len(fixed),
        "fixes that are not SAFE": sum(not case["safe"] for case in fixed),
        "by case": cases,
    }


if __name__ == "__main__":
    json.dump(survey(float(sys.argv[1])), sys.stdout, indent=1)
    print()
