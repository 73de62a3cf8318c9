"""The record of a neighbourhood search, made from the file that the search adds to.

python -m tests.adversarial.neighbourhood_record edits.jsonl tests/records/proof/neighbourhood.json
python -m tests.adversarial.neighbourhood_record pairs.jsonl tests/records/proof/neighbourhood-pairs.json COMMAND

Of a file of pairs (`--pairs`) each pair counts for the fields of both of its edits.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from amk.adversary.neighbourhood.bases import SMALL_BASES, base
from amk.adversary.neighbourhood.ledger import Ledger, Line, counts
from amk.adversary.neighbourhood.mutator import Neighbourhood, schema_of_schedules
from amk.commands.neighbourhood import summary

AND = " and "
"""Between the fields of a pair."""


def record(ledger: Ledger, command: str) -> dict[str, Any]:
    """Counts by field and verdict, the account, kinds of holes with an example each, and how much of it all that is."""
    found = summary(ledger)
    schema = schema_of_schedules()
    whole = {name: sum(1 for _ in Neighbourhood(base(name), schema).changes()) for name in SMALL_BASES}
    pairs = any(AND in line.field for line in ledger.lines)
    if pairs:
        found["fields"] = counts([replace(line, field=f) for line in ledger.lines for f in line.field.split(AND)])
        found["account"] = [{k: v for k, v in row.items() if k != "fields"} for row in found["account"]]
    return {
        "format": 1,
        "name": "pairs of edits" if pairs else "neighbourhood",
        "edits": found["edits"],
        "edits_there_are": "pairs are drawn" if pairs else whole,
        "totals": found["totals"],
        "bases": found["bases"],
        "fields": found["fields"],
        "account": found["account"],
        "holes": _kinds([line for line in ledger.lines if line.outcome.hole]),
        "run": {
            "command": command,
            "commit": ", ".join(sorted({line.commit for line in ledger.lines if line.commit})),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "hardware": f"{os.cpu_count()} cores, {platform.machine()}, no GPU used",
            "seconds": round(sum(sum(line.outcome.seconds.values()) for line in ledger.lines)),
        },
    }


def _kinds(holes: list[Line]) -> list[dict[str, Any]]:
    count = Counter((line.outcome.hole, line.field) for line in holes)
    example = {(line.outcome.hole, line.field): line for line in reversed(holes)}
    return [
        {
            "passes": who, "field": field, "edits": number, "judge": example[who, field].outcome.judge,
            "example": f"{example[who, field].base}: {example[who, field].edits[:300]}",
        }
        for (who, field), number in count.most_common()
    ]  # fmt: skip


if __name__ == "__main__":
    ledger_file, target = Path(sys.argv[1]), Path(sys.argv[2])
    document = record(
        Ledger(ledger_file), " ".join(sys.argv[3:]) or f"amk adversarial --neighbourhood {ledger_file.name}"
    )
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, target)
