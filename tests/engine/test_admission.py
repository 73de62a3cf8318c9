"""A schedule that is not SAFE does not run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from amk.cli import main
from amk.engine.admission import admit
from amk.engine.checkpoint import open_checkpoint
from amk.engine.load import plan_for_cpu
from amk.report.diagnostic import AmkError, Exit
from amk.schedule_ir.codec import save_schedule
from amk.schedule_ir.schedule import Loop, Node, Schedule, Step
from tests.engine.tiny import tiny_model, tiny_plan


def without(schedule: Schedule, unwanted: Callable[[Step], bool]) -> Schedule:
    """The schedule with some of its steps left out."""

    def body(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        kept = (n for n in nodes if isinstance(n, Loop) or not unwanted(n))
        return tuple(n.model_copy(update={"body": body(n.body)}) if isinstance(n, Loop) else n for n in kept)

    programs = tuple(p.model_copy(update={"body": body(p.body)}) for p in schedule.programs)
    return schedule.model_copy(update={"programs": programs})


def test_plans_are_admitted() -> None:
    for handoff in ("fenced", "tagged"):
        admit(tiny_plan(tiny_model(), handoff=handoff))


def test_a_race_is_refused_with_the_code_of_unsafe() -> None:
    with pytest.raises(AmkError) as caught:
        admit(
            without(tiny_plan(tiny_model(), handoff="fenced"), lambda step: any(w.counter == "act" for w in step.waits))
        )
    assert caught.value.exit_code == Exit.UNSAFE
    assert caught.value.diagnostics


@pytest.mark.checkpoint
def test_generate_refuses_before_anything_runs(
    smollm2_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = plan_for_cpu(open_checkpoint(smollm2_path).spec, 64)
    file = tmp_path / "unsafe.json"
    save_schedule(without(schedule, lambda step: any(s.counter == "attn" for s in step.signals)), file)
    words = ["generate", "--model", str(smollm2_path), "--prompt", "Hi", "--device", "cpu", "--schedule", str(file)]
    assert main(words) == Exit.UNSAFE
    captured = capsys.readouterr()
    assert captured.out == "" and "error[AMK" in captured.err
