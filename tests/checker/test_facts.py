"""What the checker says of the fields of ops, by itself."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from amk.adversary.cases import RECIPES, make_case, repaired
from amk.checker.certificate import Proof, check_certificate
from amk.checker.facts import check_fields, check_registers
from amk.checker.programs import Rejected, programs_of
from amk.judges.judge import judge
from amk.judges.oracle.judge import rule
from amk.planner.decode import plan
from amk.planner.settings import FAST, Settings
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Loop, Node, Schedule, Step
from amk.targets.target import load_target
from tests.checker.offer import reasons
from tests.engine.tiny import tiny_model
from tests.validator.plans import from_document

PARTS: Settings = replace(FAST, warps=2, rows=8, handoff="mixed", chunk_bytes=512, x_parts=2, k_parts=4)


def plan_of(settings: Settings = PARTS) -> Schedule:
    return plan(tiny_model(ffn=256), load_target("h200"), settings=settings, max_context=64, workers=4)


def with_field(schedule: Schedule, op: str, field: str, name: str) -> Schedule:
    """The schedule whose steps of an op name another buffer."""

    def changed(node: Node) -> Node:
        if isinstance(node, Step):
            return (
                node if node.op.op != op else node.model_copy(update={"op": node.op.model_copy(update={field: name})})
            )
        return node.model_copy(update={"body": tuple(map(changed, node.body))})

    programs = tuple(p.model_copy(update={"body": tuple(map(changed, p.body))}) for p in schedule.programs)
    assert any(isinstance(node, Loop) for node in programs[0].body)
    return schedule.model_copy(update={"programs": programs})


def test_attention_alone_may_have_one_array_for_two_fields() -> None:
    schedule = plan_of()
    attend = next(i.step.op for p in programs_of(schedule) for i in p.items if i.step.op.op == "attend")
    assert dict(attend)["q"] == dict(attend)["partial"]
    check_fields(schedule, programs_of(schedule))


@pytest.mark.parametrize(
    ("op", "field", "name"),
    [("add_residual", "part", "residual"), ("swiglu", "act", "part"), ("stage_norm", "x", "ssq")],
)
def test_two_fields_of_another_op_with_one_array_are_refused(op: str, field: str, name: str) -> None:
    schedule = with_field(plan_of(), op, field, name)
    with pytest.raises(Rejected, match=f"two fields of {op}"):
        check_fields(schedule, programs_of(schedule))


def test_partials_in_place_of_queries_that_warps_share_are_refused() -> None:
    """With four warps two share the positions of each query vector."""
    schedule = plan_of(replace(PARTS, warps=4))
    schedule = with_field(with_field(schedule, "attend", "partial", "q"), "merge", "partial", "q")
    found = check_certificate(schedule, schedule_hash(schedule), {"format": "amk.certificate/5"})
    assert not found.accepted
    with pytest.raises(Rejected, match="needs: attend"):
        Proof(schedule)


def test_a_launch_leaves_the_registers_of_its_last_token() -> None:
    """One worker, whose warps have all loaded the state when it is overwritten: nothing races, and every byte of the
    state has the value that is meant, by its name. It is the state that the launch began with."""
    case = make_case(next(recipe for recipe in RECIPES if recipe.name == "finish-before-the-loop"))
    wrong, right = (from_document(document) for document in (case["schedule"], repaired(case)))
    assert reasons(right) == [""] and reasons(wrong) == ["registers: not loaded, or of another token"]
    assert {rule(wrong, tokens).status for tokens in (1, 2, 4)} == {"UNSAFE"}
    assert judge(wrong, 2).kind == "state" and judge(right, 2).status == "not refuted"


def test_registers_behind_the_loop_are_not_those_before_it() -> None:
    """A warp that only meets the others in the loop, and stores what it had loaded before it."""
    document = json.loads(plan_of(replace(PARTS, rows=1, x_parts=1, k_parts=1)).model_dump_json())
    document["launch"]["warps"] = 3
    document["roles"] += [{"name": "third", "first": 2, "count": 1}, {"name": "three", "first": 0, "count": 3}]
    before, tokens, behind = document["programs"][0]["body"]
    before["op"]["role"] = "three"
    meet = {"op": {"op": "barrier", "role": "three", "id": 9, "agents": 3}, "waits": [], "signals": []}
    tokens["body"].append(meet)
    right = from_document(document)
    check_registers(right, programs_of(right))
    behind["op"]["role"] = "third"
    wrong = from_document(document)
    with pytest.raises(Rejected, match="registers"):
        check_registers(wrong, programs_of(wrong))
