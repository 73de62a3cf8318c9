"""Where two layers stand for more, or one worker for its class: what only the others show is seen by validator and by
checker, each of which is asked by itself."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amk.adversary.cases import RECIPES, make_case, repaired
from amk.adversary.edits import steps
from amk.adversary.neighbourhood.bases import STAND_FOR_MORE, base
from amk.checker.layers import short
from amk.judges.oracle.judge import rule
from amk.schedule_ir.schedule import Schedule
from amk.validator.induction import layers
from amk.validator.verify import verify
from tests.checker.offer import certificate_of, reasons
from tests.validator.plans import from_document

Document = dict[str, Any]
Change = Callable[[Document], object]
ONE_TOKEN = Path(__file__).parents[1] / "data" / "launch-of-one-token.json"
FENCED, PARTS = "four layers, fenced, room", "three layers of rows in parts"


def _shape(counter: str, size: int) -> Change:
    def change(document: Document) -> None:
        next(c for c in document["counters"] if c["name"] == counter)["shape"][0] = size

    return change


def _outside(field: str, old: int, new: int) -> Change:
    """A number outside the loops that means in the short schedule what the old one means in the whole."""

    def change(document: Document) -> None:
        fields = [step["op"] for _, step in steps(document) if step["op"].get(field) == old]
        assert fields
        for op in fields:
            op[field] = new

    return change


def _index(counter: str, index: Any) -> Change:
    """Everybody who signals the counter also signals this instance."""

    def change(document: Document) -> None:
        step = next(s for _, s in steps(document) if any(e["counter"] == counter for e in s["signals"]))
        step["signals"].append({"counter": counter, "index": [index], "add": 1, "order": "release"})

    return change


CHANGES: list[tuple[str, Change]] = [
    *((FENCED, _shape(counter, 2)) for counter in ("qkv", "attn", "h_mid", "act", "h_out")),
    (FENCED, _shape("attn", 3)),
    (PARTS, _outside("index", 6, 4)),
    (FENCED, _outside("layer", 0, 1)),
    *((FENCED, _index("h_mid", {"l": 1, symbol: 2})) for symbol in ("attn.serves", "worker", "agent")),
    *((FENCED, _index(counter, {"l": 1, "worker": 2})) for counter in ("attn", "act", "h_out")),
]


@pytest.mark.turns(12)
@pytest.mark.parametrize(("name", "change"), CHANGES, ids=range(len(CHANGES)))
def test_what_few_layers_do_not_show_is_refused_by_both(name: str, change: Change) -> None:
    document = copy.deepcopy(base(name))
    before = from_document(document)
    assert layers.reduce_layers(before) is not before and short(before) is not before
    twin = certificate_of(before)
    assert isinstance(twin, dict) and reasons(before, twin) == ["", ""]
    change(document)
    after = from_document(document)
    assert verify(after).status == "UNSAFE"
    assert "" not in reasons(after, twin)


@pytest.mark.parametrize("name", STAND_FOR_MORE)
def test_abstractions_do_something_in_these_bases(name: str) -> None:
    """Fewer layers are looked at than there are, or order within a worker needs its counters."""
    schedule = from_document(copy.deepcopy(base(name)))
    verdict = verify(schedule)
    assert verdict.safe
    fewer = verdict.stats["layers checked"] < schedule.model.layers
    assert fewer or verdict.stats["classes"] == schedule.launch.workers


BY_ITSELF = (
    "signal-of-later-layers", "signal-of-layers-by-worker", "ordered-for-some-workers", "overwritten-behind-a-reader",
)  # fmt: skip


@pytest.mark.parametrize("name", BY_ITSELF)
def test_cases_are_refused_by_the_checker_alone(name: str) -> None:
    case = make_case(next(recipe for recipe in RECIPES if recipe.name == name))
    wrong, right = (Schedule.model_validate_json(json.dumps(d)) for d in (case["schedule"], repaired(case)))
    twin = certificate_of(right)
    assert isinstance(twin, dict) and reasons(right, twin) == ["", ""]
    assert "" not in reasons(wrong, twin)


def test_two_tokens_do_not_speak_for_one_that_nothing_orders() -> None:
    """Two programs. A warp that reads the launch state before the loop is ordered before the store of it behind the
    loop by a wait of the second token only."""
    wrong = Schedule.model_validate_json(ONE_TOKEN.read_text())
    assert rule(wrong, 1).status == "UNSAFE" and rule(wrong, 2).status == rule(wrong, 4).status == "SAFE"
    assert verify(wrong).status == "UNSAFE"
    assert reasons(wrong) == ["race: in a launch of one token"]
    document = json.loads(ONE_TOKEN.read_text())
    meet = {"op": {"op": "barrier", "role": "all", "id": 1, "agents": 2}, "waits": [], "signals": []}
    document["programs"][1]["body"][1]["body"].insert(0, meet)
    right = from_document(document)
    assert rule(right, 1).status == rule(right, 4).status == "SAFE" and verify(right).safe
    assert reasons(right) == [""]
