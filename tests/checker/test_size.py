"""What would take hours, or all memory, is refused before anything of it is spelled out."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from amk.adversary.edits import steps
from amk.adversary.neighbourhood.bases import base
from amk.checker import counters, footprints
from amk.checker.certificate import Proof, check_certificate
from amk.checker.programs import MAX_BLOCKS, MAX_ITEMS, MAX_STEPS, Rejected
from amk.schedule_ir.codec import schedule_hash
from tests.checker.offer import certificate_of
from tests.validator.plans import from_document

Document = dict[str, Any]


def _loops(document: Document) -> list[Document]:
    found = []
    for program in document["programs"]:
        tokens = next(node for node in program["body"] if "body" in node)
        found += [node for node in tokens["body"] if "body" in node]
    return found


def many_layers(document: Document) -> None:
    """A short text of as many steps as would take an hour to look at."""
    (loop,) = _loops(document)
    document["model"]["layers"] = loop["count"] = 4096
    loop["body"] += [copy.deepcopy(loop["body"][0]) for _ in range(MAX_STEPS // 4096)]


def many_items(document: Document) -> None:
    barrier = next(step for _, step in steps(document) if step["op"]["op"] == "barrier")
    tokens = next(node for node in document["programs"][0]["body"] if "body" in node)
    tokens["body"] += [{"var": "l", "count": MAX_ITEMS, "body": [barrier]}]


def many_blocks(document: Document) -> None:
    """Attention would name each of them."""
    context = document["kv"]["context"] = document["model"]["max_context"] = MAX_BLOCKS + 1
    document["kv"]["block"] = 1
    for buffer in document["buffers"]:
        if buffer["name"] in ("k_cache", "v_cache"):
            buffer["shape"][2] = context
        elif buffer["name"] in ("rope", "prompt"):
            buffer["shape"][0 if buffer["name"] == "rope" else -1] = context


def many_workers(document: Document) -> None:
    """That own nothing; what each knows of each is a square."""
    more = 4096 - document["launch"]["workers"]
    document["launch"]["workers"] += more
    document["programs"][0]["count"] += more
    for name, column in document["tables"].items():
        column += [-1 if name == "attn.head" else 0] * more
    for buffer in document["buffers"]:
        if buffer["name"] in ("best_value", "best_index"):
            buffer["shape"] = [8192]
    for _, step in steps(document):
        if "candidates" in step["op"]:
            step["op"]["candidates"] = 8192


CASES: list[tuple[Callable[[Document], None], str]] = [
    (many_layers, "program: too long"), (many_items, "program: too long"),
    (many_blocks, "positions: in too many blocks"), (many_workers, "schedule: too large"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "reason"), CASES, ids=[change.__name__ for change, _ in CASES])
def test_a_schedule_that_is_too_large_is_refused_at_once(change: Callable[[Document], None], reason: str) -> None:
    document = json.loads(json.dumps(base("fenced")))
    change(document)
    with pytest.raises(Rejected, match=reason):
        Proof(from_document(document))


@pytest.mark.parametrize(
    ("module", "limit"), [(counters, "ROWS"), (footprints, "ROWS"), (footprints, "ENTRIES")], ids=str
)
def test_tables_have_limits(module: Any, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, limit, 10)
    with pytest.raises(Rejected, match="too large"):
        Proof(from_document(base("fenced")))


def test_only_what_somebody_waits_for_is_claimed() -> None:
    """Each claim is looked at, so there are no more of them than waits."""
    schedule = from_document(base("fenced"))
    certificate = certificate_of(schedule)
    assert isinstance(certificate, dict)
    instance, threshold, coded = certificate["clocks"]["time"][0]
    certificate["clocks"]["time"].append([instance, threshold + 2**20, [0, sum(coded[1::2])]])
    found = check_certificate(schedule, schedule_hash(schedule), certificate)
    assert found.reason == "clocks: nobody waits for it"
