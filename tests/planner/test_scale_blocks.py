"""Plans in which runs of blocks share a scale: safe as they are, and refused where a vector has no scales."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace

import pytest

from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST
from amk.schedule_ir.ops.staging import RunStaging, ScaleBlocks
from amk.schedule_ir.schedule import Schedule, steps_of
from amk.targets.target import load_target
from amk.validator.export.certificate import NotSafe
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.verify import verify
from amk.weights.weight_format import FormatName
from tests.tiny import PLAIN


def planned(form: FormatName, scale_blocks: ScaleBlocks) -> Schedule:
    settings = replace(FAST, scale_blocks=scale_blocks, kv_splits=1)
    return plan(PLAIN, load_target("h200"), settings=settings, formats=formats(form), max_context=256)


def runs(schedule: Schedule) -> set[int]:
    ops = [step.op for step in steps_of(schedule.programs[0].body)]
    return {op.scale_blocks for op in ops if isinstance(op, RunStaging)}


def test_a_plan_for_codes_has_runs_of_blocks_and_is_safe() -> None:
    schedule = planned("int4-g128", 16)
    assert runs(schedule) == {16}
    assert verify(schedule).safe


def test_vectors_in_bf16_have_no_scales_to_share() -> None:
    schedule = planned("bf16", 16)
    assert runs(schedule) == {1}
    document = json.dumps(schedule.model_dump(mode="json"))
    changed = Schedule.model_validate_json(document.replace('"op": "stage",', '"op": "stage", "scale_blocks": 4,'))
    assert runs(changed) == {1, 4}
    assert "AMK407" in {diagnostic.code for diagnostic in verify(changed).diagnostics}


def test_numbers_of_one_staging_never_meet_scales_of_another() -> None:
    """A vector staged again with other runs, beside the same scales: validator and checker each refuse it."""
    document = planned("int4-g128", 2).model_dump(mode="json")
    (loop,) = (node for node in document["programs"][0]["body"] if node.get("var") == "t")
    (layer,) = (node for node in loop["body"] if node.get("var") == "l")
    (at,) = (n for n, step in enumerate(layer["body"]) if step["op"]["op"] == "stage")
    again, meeting = deepcopy(layer["body"][at]), deepcopy(layer["body"][at + 1])
    again["op"] |= {"x": "x_twin", "scale_blocks": 1}
    layer["body"][at + 1 : at + 1] = [meeting, again]
    twin = next(deepcopy(buffer) for buffer in document["buffers"] if buffer["name"] == "x_digits")
    document["buffers"].append(twin | {"name": "x_twin", "offset": document["launch"]["shared_bytes"]})
    document["launch"]["shared_bytes"] += 1024
    changed = Schedule.model_validate_json(json.dumps(document))
    assert "AMK106" in {diagnostic.code for diagnostic in verify(changed).diagnostics}
    with pytest.raises(NotSafe, match="scales of other runs"):
        certify_schedule(changed)
