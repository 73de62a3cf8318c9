"""Numbers within the text of pages, each read from a record."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tests.readme import records, speed

LENGTHS = (64, 512, 2048)
ROWS = "third card, 8e76fe79"
"""The run of h200-divided-columns that has the defaults of the commit that the record names."""
WHOLE = "proof/neighbourhood.json"
BATCHES = ("batch", "batch_draws", "live_batches", "rows", "sampling")


def readme() -> dict[str, str]:
    tests = record("proof/h200-gpu-tests.json")["files"]
    runs = sorted({len(line.own) for line in speed.lines([speed.RECORDS / speed.TABLES[0]])})
    return {
        "matrix": f"from {' to '.join(records.dates('proof/matrix-bf16.json') or ())}",
        "bases": str(len(record(WHOLE)["counts"]["bases"])),
        "runs": " or ".join(map(str, runs)),
        "gpu-tests": str(sum(tests[f"tests/gpu/test_{name}.py"]["outcomes"]["passed"] for name in BATCHES)),
        "first-torch": _first("amk bf16, prompt by torch"),
        "first-others": _first("transformers bf16"),
        "token": f"{_token():.1f}",
        "by-rows": by_rows(),
        "exact": str(_exact()),
    }


def adversarial() -> dict[str, str]:
    counts = record(WHOLE)["counts"]
    return {"whole": f"{counts['edits']:,} edits of {len(counts['bases'])}"}


def prefill() -> dict[str, str]:
    return {
        "by-rows": by_rows(),
        "first-torch": _first("amk bf16, prompt by torch"),
        "by-tokens": _prompts("rows 1", (512,)),
    }


def lowering() -> dict[str, str]:
    """What became of edits of the device code."""
    counts = record("proof/lowering-edits.json")["counts"]
    ends = {"equivalent": 0, "survived": 0}
    for outcome, count in counts["outcomes"].items():
        if (end := outcome.rpartition(": ")[2]) in ends:
            ends[end] += count
    changed = sum(counts["changed"].values())
    refused, equal, survived = changed - sum(ends.values()), ends["equivalent"], ends["survived"]
    text = f"{changed} edits that change the PTX {refused} are refused, {equal} proved equivalent, {survived} survived"
    return {"edits": text}


def by_rows() -> str:
    """Milliseconds of prompts of llama3-8b by steps of 64 rows."""
    return _prompts("rows 64 headless", LENGTHS)


def _prompts(plan: str, lengths: tuple[int, ...]) -> str:
    rows = record("speed/h200-divided-columns.json")["runs"][ROWS]["prompts"]
    return _listed([_one(row["ms"] for row in rows if (row["plan"], row["prompt"]) == (plan, n)) for n in lengths])


def _first(program: str) -> str:
    rows = record("speed/h200-first-token-rows.json")["rows"]
    found = [_one(r["first_ms"] for r in rows if (r["program"], r["prompt"]) == (program, n)) for n in LENGTHS]
    return _listed(found)


def _token() -> float:
    """Milliseconds of a step of llama3-8b bf16, as the table says."""
    lines = speed.lines([speed.RECORDS / speed.TABLES[0]])
    return _one(line.ms for line in lines if line.case == ("llama3-8b", "bf16", 128, 1))


def _exact() -> int:
    """How many kernels give the same logits in every bit. ValueError if one does not."""
    cases = record("proof/h200-logits-exact.json")["cases"]
    if not all(case["equal"] for case in cases.values()):
        raise ValueError("a kernel whose logits differ")
    return len(cases)


def record(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((records.RECORDS / name).read_text(encoding="utf-8"))
    return found


def _one(values: Iterable[float]) -> float:
    (value,) = values
    return value


def _listed(values: list[float]) -> str:
    words = [f"{value:,.1f}" if value < 100 else f"{value:,.0f}" for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
