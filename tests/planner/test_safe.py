"""Plans are proved, not trusted: every variant, short and long contexts, few and many SMs; and damage is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amk.planner.decode import plan
from amk.planner.settings import FAST, PRESETS
from amk.schedule_ir.model import load_model
from amk.schedule_ir.model_spec import ModelSpec
from amk.schedule_ir.target import load_target
from amk.validator.replay import replay
from amk.validator.verify import verify
from tests.damage import raised_threshold, rewritten
from tests.tiny import PLAIN, VARIANTS

CASES = [
    *((model, gpu, context) for model in VARIANTS for gpu in ("h200", "l4") for context in (64, 1024)),
    *((load_model("smollm2-135m"), gpu, 256) for gpu in ("h200", "rtx5090")),
    (load_model("qwen2.5-0.5b"), "rtx5090", 256),
]


@pytest.mark.parametrize("preset", sorted(PRESETS))
@pytest.mark.parametrize(("model", "gpu", "context"), CASES, ids=lambda value: str(getattr(value, "name", value)))
def test_plans_are_safe(model: ModelSpec, gpu: str, context: int, preset: str) -> None:
    schedule = plan(model, load_target(gpu), settings=PRESETS[preset], max_context=context)
    verdict = verify(schedule)
    assert verdict.safe, [diagnostic.message for diagnostic in verdict.diagnostics]


IDLE = plan(PLAIN, load_target("h200"), settings=replace(FAST, handoff="tagged"), max_context=256, workers=132)
"""Most of the 132 workers own no rows of some matrix; the first and the last own none of gate-up."""


def test_idle_workers_are_held_back_by_hints() -> None:
    """Their words are overwritten only by those who have seen all hints, theirs included."""
    assert verify(IDLE).status == "SAFE"
    fenced = plan(PLAIN, load_target("h200"), settings=replace(FAST, handoff="fenced"), max_context=256, workers=132)
    assert verify(fenced).status == "SAFE"


def test_a_worker_that_publishes_nothing_is_a_race() -> None:
    """Without the hints nothing stops the others from overtaking the workers that own no rows."""
    verdict = verify(rewritten(IDLE, lambda step: None if step.waits else step))
    assert verdict.status == "UNSAFE" and verdict.diagnostics[0].code == "AMK302"
    assert verdict.evidence is not None
    assert replay(verdict.evidence.system.to_json(), verdict.evidence.witness.to_json())


@pytest.mark.parametrize("counter", ["qkv", "attn", "h_mid", "act", "h_out", "best"])
def test_a_raised_threshold_is_unsafe(counter: str) -> None:
    """The schedules that the watchdog's test runs on a GPU are the ones that the validator refuses."""
    schedule = plan(PLAIN, load_target("h200"), max_context=256)
    assert verify(raised_threshold(schedule, counter)).status == "UNSAFE"
