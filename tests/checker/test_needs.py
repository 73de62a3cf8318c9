"""Validator and checker decide alike what a launch relies on, each by code of its own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from amk.adversary.edits import Json, steps
from amk.adversary.neighbourhood.bases import SMALL_BASES, base
from amk.checker.certificate import Proof
from amk.checker.needs import needs_unmet
from amk.checker.op_needs import RULES, Facts, Place, fails
from amk.checker.programs import Rejected
from amk.schedule_ir.ops import OPS
from amk.schedule_ir.ops.merge import MergeOp
from amk.schedule_ir.ops.precondition import LIVE, Need, Site
from amk.schedule_ir.schedule import Schedule
from tests.checker.two_evaluators import both, changes, compared
from tests.schedule_ir.test_preconditions import BASES, sites_of
from tests.schedule_ir.test_preconditions import base as plan_named

EACH, PARTS = 150, 4


@pytest.mark.parametrize("name", SMALL_BASES)
def test_plans_meet_all_of_it(name: str) -> None:
    assert both(Schedule.model_validate_json(json.dumps(base(name)))) == (frozenset(), frozenset())


@pytest.mark.turns(48)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", SMALL_BASES)
def test_both_decide_alike_after_a_single_edit(name: str, part: int) -> None:
    counts = Counter[str]()
    edits = changes(name)[part * EACH : (part + 1) * EACH]
    assert list(compared(name, edits, counts)) == []
    assert counts["met"] and counts["unmet"]


def beside_a_fetch(document: Json) -> None:
    """A multiple of its alignment that is none of 16 bytes."""
    x = next(b for b in document["buffers"] if b["name"] == "x")
    x |= {"offset": 5352, "align": 24}
    document["launch"]["shared_bytes"] = 6144


def of_no_moments(document: Json) -> None:
    """A norm of a hidden state that nobody leaves, of no shares."""
    for program in document["programs"]:
        tokens = next(node for node in program["body"] if "body" in node)
        for body in (tokens["body"], *(node["body"] for node in tokens["body"] if "body" in node)):
            body[:] = [n for n in body if n.get("op", {}).get("op") not in ("embed_hidden", "stage_hidden")]
    for _, step in steps(document):
        if step["op"]["op"] == "layer_norm":
            step["op"]["moment_agents"] = 0


SEVERAL: dict[str, tuple[str, Callable[[Json], None]]] = {
    "aligned": ("fenced", beside_a_fetch),
    "layer_norm.equal": ("LayerNorm, parallel", of_no_moments),
}
"""Edits of several places, by what they leave unmet: each passed one of the two, or stopped it, at some time."""


@pytest.mark.parametrize("need", SEVERAL)
def test_both_decide_alike_after_several_edits(need: str) -> None:
    name, change = SEVERAL[need]
    document = json.loads(json.dumps(base(name)))
    change(document)
    schedule = Schedule.model_validate_json(json.dumps(document))
    assert both(schedule) == (frozenset({need}), frozenset({need}))
    with pytest.raises(Rejected, match=f"needs: {need}"):
        Proof(schedule)


def place_of(site: Site) -> Place:
    """The site as the checker's rules read it, of a schedule of which there is no more than its geometry."""
    geo, op, tables = site.geo, cast(Any, site.op), site.env.tables
    schedule = SimpleNamespace(
        model=geo.model, buffers=tuple(geo.buffers.values()), streams=tuple(geo.streams.values()), rows=geo.rows_each,
        roles=tuple(SimpleNamespace(name=n, first=geo.role_first[n], count=c) for n, c in geo.role_size.items()),
        kv=SimpleNamespace(block=geo.kv_block, splits=geo.kv_splits, turns=geo.kv_turns), batch=geo.batch,
        launch=SimpleNamespace(workers=geo.workers), tables={name: list(map(int, c)) for name, c in tables.items()},
        live=geo.live, tree=geo.tree, headless=geo.headless,
    )  # fmt: skip
    chunk = site.chunk if getattr(op, "stream", None) is not None else None
    return Place(Facts(cast(Any, schedule)), op, range(geo.workers), "n" in site.env.loops, chunk)


@pytest.mark.turns(6)
@pytest.mark.parametrize("name", BASES)
def test_each_rule_decides_what_the_declared_term_does(name: str) -> None:
    """Close to a plan, where every term is once false."""
    for op, _, sites in sites_of(plan_named(name)):
        for place, site in ((place_of(site), site) for site in sites):
            for need in type(op).needs:
                assert fails(place, need.name) == (not np.all(need.holds.value(site))), (op.op, need.name, site)


def test_every_declared_need_has_a_rule_and_no_other() -> None:
    assert {op: rules.keys() for op, rules in RULES.items()} == {
        name: {need.name for need in op.needs} for name, op in OPS.items() if op.needs
    }


def test_a_need_without_a_rule_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it says."""
    schedule = Schedule.model_validate_json(json.dumps(base("splits reduced")))
    monkeypatch.setattr(MergeOp, "needs", (*MergeOp.needs, Need("new", ~LIVE, "a clause")))
    assert set(needs_unmet(schedule)) == {"merge.new"}
