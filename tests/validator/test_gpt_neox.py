"""A family with LayerNorm, biases, a parallel block and GELU: its plans are safe, and no other steps pass for them."""

from __future__ import annotations

from typing import Any

import pytest

from amk.judges.oracle.judge import Judge, start_positions
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST, NAIVE, Settings
from amk.schedule_ir.schedule import Loop, Node, Schedule, Step
from amk.targets.target import load_target
from amk.validator.export.of_schedule import evidence
from amk.validator.static.model_graph import FREE_OPS, check_model_graph
from amk.validator.verify import verify
from tests.engine.tiny import NEOX, tiny_model, tiny_plan

AFTER: dict[str, Any] = NEOX | {"parallel": False}
"""The MLP reads the state that attention was added to."""

PLANS: dict[str, Any] = {
    "parallel": lambda: tiny_plan(tiny_model(**NEOX)),
    "one after the other": lambda: tiny_plan(tiny_model(**AFTER), workers=7),
    "no biases of attention, fenced": lambda: tiny_plan(
        tiny_model(**NEOX | {"qkv_bias": False}), handoff="fenced", head_handoff=False, run_ahead=False
    ),
    "heads as they come, down in parts": lambda: tiny_plan(tiny_model(**NEOX), head_handoff=True, k_parts=3, warps=2),
    "batch of two, splits reduced": lambda: tiny_plan(tiny_model(**AFTER), workers=8, batch=2, reduce_from=2),
    "digits, formats by layer": lambda: tiny_plan(
        tiny_model(**NEOX, layers=3), chunk_bytes=1024,
        weights=((1, formats("int8", "bf16")), (2, formats("int4-g64", "bf16"))),
    ),
    "many layers": lambda: tiny_plan(tiny_model(**NEOX, layers=9)),
}  # fmt: skip


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", PLANS)
def test_plans_are_safe_and_the_checker_takes_their_certificates(name: str) -> None:
    schedule = PLANS[name]()
    verdict = verify(schedule)
    assert verdict.status == "SAFE", verdict.diagnostics
    evidence(schedule)


@pytest.mark.parametrize("name", ["parallel", "one after the other"])
def test_a_judge_that_knows_no_proof_finds_nothing_wrong(name: str) -> None:
    judge = Judge(PLANS[name](), 2)
    assert [judge.at(pos) for pos in start_positions(judge.schedule, 2)[:2]] == [None] * 2


@pytest.mark.parametrize(("model", "settings", "form"), [("410m", FAST, "bf16"), ("2.8b", NAIVE, "int8")])
def test_full_size_plans_are_safe(model: str, settings: Settings, form: Any) -> None:
    schedule = plan(load_model(f"pythia-{model}"), load_target("h200"), settings=settings, formats=formats(form))
    assert verify(schedule).status == "SAFE"


def paths(body: tuple[Node, ...], at: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """Of every step that does something in memory."""
    found: list[tuple[int, ...]] = []
    for n, node in enumerate(body):
        if isinstance(node, Loop):
            found += paths(node.body, (*at, n))
        elif node.op.op not in FREE_OPS:
            found.append((*at, n))
    return found


def step_at(body: tuple[Node, ...], path: tuple[int, ...]) -> Step:
    node = body[path[0]]
    if isinstance(node, Loop):
        return step_at(node.body, path[1:])
    return node


def replaced(body: tuple[Node, ...], path: tuple[int, ...], by: tuple[Step, ...]) -> tuple[Node, ...]:
    first, *rest = path
    node = body[first]
    new = by
    if isinstance(node, Loop):
        new = (node.model_copy(update={"body": replaced(node.body, tuple(rest), by)}),)  # type: ignore[assignment]
    return (*body[:first], *new, *body[first + 1 :])


def edited(schedule: Schedule, path: tuple[int, ...], by: tuple[Step, ...]) -> Schedule:
    first = schedule.programs[0]
    first = first.model_copy(update={"body": replaced(first.body, path, by)})
    return schedule.model_copy(update={"programs": (first, *schedule.programs[1:])})


def changed(step: Step, **fields: Any) -> tuple[Step]:
    return (step.model_copy(update={"op": step.op.model_copy(update=fields)}),)


@pytest.mark.parametrize("name", ["parallel", "one after the other", "heads as they come, down in parts"])
def test_no_step_may_be_missing_or_run_twice(name: str) -> None:
    schedule = PLANS[name]()
    assert not check_model_graph(schedule)
    body = schedule.programs[0].body
    for path in paths(body):
        step = step_at(body, path)
        for by in ((), (step, step)):
            codes = {d.code for d in check_model_graph(edited(schedule, path, by))}
            assert codes == {"AMK106"}, f"{step.op.op} {len(by)} times"


def test_every_option_of_the_graph_is_needed() -> None:
    schedule = PLANS["parallel"]()
    body, seen = schedule.programs[0].body, 0
    for path in paths(body):
        step = step_at(body, path)
        wrong = [{"bias": None}] if getattr(step.op, "bias", None) else []
        wrong += [{"tanh": True}] if step.op.op == "gelu" else []
        for fields in wrong:
            found = check_model_graph(edited(schedule, path, changed(step, **fields)))
            assert [d.code for d in found] == ["AMK106"], f"{step.op.op} {fields}"
            seen += 1
    assert seen == 5


@pytest.mark.parametrize("name", ["parallel", "one after the other"])
def test_norms_and_states_of_other_products_are_refused(name: str) -> None:
    """Another norm, another state, a sum that is not published or that nobody reads: no such schedule is SAFE."""
    schedule = PLANS[name]()
    body, tried = schedule.programs[0].body, 0
    for path in paths(body):
        step = step_at(body, path)
        fields: list[dict[str, Any]] = []
        if step.op.op == "layer_norm":
            fields = [{"matrix": other} for other in ("qkv", "gate_up", "lm_head") if other != step.op.matrix]  # type: ignore[attr-defined]
            fields += [{"moment_agents": 2}]
        elif step.op.op == "stage_hidden":
            fields = [{"matrix": {"o": "down", "down": "o"}[step.op.matrix]}]  # type: ignore[attr-defined]
        elif step.op.op == "add_residual":
            fields = [{"h": "h_out" if step.op.h is None else None}]  # type: ignore[attr-defined]
        elif step.op.op in ("store_rows", "argmax_rows"):
            fields = [{"ssq": "moments", "ssq_agents": 4}]
        for each in fields:
            verdict = verify(edited(schedule, path, changed(step, **each)))
            assert verdict.status == "UNSAFE", f"{step.op.op} {each}"
            tried += 1
    assert tried >= 14
