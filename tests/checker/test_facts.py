"""What the checker says of the fields of ops, by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amk.checker.certificate import Proof, check_certificate
from amk.checker.facts import check_fields
from amk.checker.programs import Rejected, programs_of
from amk.planner.decode import plan
from amk.planner.settings import FAST, Settings
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Loop, Node, Schedule, Step
from amk.targets.target import load_target
from tests.engine.tiny import tiny_model

PARTS: Settings = replace(FAST, warps=2, rows=8, handoff="mixed", chunk_bytes=512, x_parts=2, k_parts=4)


def made(settings: Settings = PARTS) -> Schedule:
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
    schedule = made()
    attend = next(i.step.op for p in programs_of(schedule) for i in p.items if i.step.op.op == "attend")
    assert dict(attend)["q"] == dict(attend)["partial"]
    check_fields(schedule, programs_of(schedule))


@pytest.mark.parametrize(
    ("op", "field", "name"),
    [("add_residual", "part", "residual"), ("swiglu", "act", "part"), ("stage_norm", "x", "ssq")],
)
def test_two_fields_of_another_op_with_one_array_are_refused(op: str, field: str, name: str) -> None:
    schedule = with_field(made(), op, field, name)
    with pytest.raises(Rejected, match=f"two fields of {op}"):
        check_fields(schedule, programs_of(schedule))


def test_partials_in_place_of_queries_that_warps_share_are_refused() -> None:
    """With four warps two share the positions of each query vector."""
    schedule = made(replace(PARTS, warps=4))
    schedule = with_field(with_field(schedule, "attend", "partial", "q"), "merge", "partial", "q")
    found = check_certificate(schedule, schedule_hash(schedule), {"format": "amk.certificate/5"})
    assert not found.accepted
    with pytest.raises(Rejected, match="needs: attend"):
        Proof(schedule)
