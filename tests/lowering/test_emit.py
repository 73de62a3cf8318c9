"""The generated source: the same every time, as recorded, and with exactly the schedule's synchronisation."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amk.lowering.emit import KERNEL, emit
from amk.lowering.kernel import build
from amk.lowering.readback import Kind, count_kinds
from amk.planner.decode import plan
from amk.planner.settings import FAST, NAIVE, Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import canonical_json
from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.schedule import Loop, Node, Schedule, Step
from amk.targets.target import load_target
from tests.tiny import PLAIN, RAGGED, VARIANTS

ALLOWED = {
    "wait_counter", "wait_hint", "signal_release", "signal_relaxed", "cta_barrier", "warp_barrier", "Watchdog",
    "WatchdogLog", "watchdog_start", "cycle",
}  # fmt: skip
"""What the generator may call; what ops and rings need is inside their headers."""

GOLDEN = Path(__file__).parents[1] / "golden"


def bulk() -> Schedule:
    return plan(PLAIN, load_target("h200"), settings=FAST, max_context=256, workers=4)


def cp_async() -> Schedule:
    return plan(RAGGED, load_target("l4"), settings=NAIVE, max_context=256, workers=3)


def drawing() -> Schedule:
    return plan(RAGGED, load_target("b200"), settings=replace(FAST, sampling="top-p"), max_context=256, workers=3)


GOLDEN_KERNELS = [("plain_fast_h200", bulk), ("ragged_naive_l4", cp_async), ("ragged_top_p_b200", drawing)]


@pytest.mark.parametrize(("name", "make"), GOLDEN_KERNELS)
def test_golden(name: str, make: object, update_golden: bool) -> None:
    """After a change that is meant: pytest tests/lowering/test_emit.py --update-golden, and read the difference."""
    source = emit(make())  # type: ignore[operator]
    file = GOLDEN / f"{name}.cu"
    if update_golden:
        file.write_text(source, encoding="utf-8")
    assert source == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("model", VARIANTS, ids=lambda model: model.name)
def test_the_source_depends_on_the_schedule_alone(model: object) -> None:
    schedule = plan(model, load_target("h200"), max_context=256, workers=5)  # type: ignore[arg-type]
    again = Schedule.model_validate_json(canonical_json(schedule))
    assert emit(again) == emit(schedule)


def steps(body: tuple[Node, ...]) -> list[Step]:
    found: list[Step] = []
    for node in body:
        found += steps(node.body) if isinstance(node, Loop) else [node]
    return found


@pytest.mark.parametrize("settings", [FAST, NAIVE], ids=["fast", "naive"])
def test_the_skeleton_synchronises_as_the_schedule_says(settings: Settings) -> None:
    """One call per wait, signal and barrier of the program, and none besides the ones that start the kernel."""
    schedule = plan(PLAIN, load_target("h200"), settings=settings, max_context=256, workers=4)
    source = emit(schedule)
    body = source[source.index('extern "C"') :]
    program = steps(schedule.programs[0].body)
    assert len(re.findall(r"amk::sync::wait_(?:counter|hint)\(", body)) == sum(len(s.waits) for s in program)
    assert len(re.findall(r"amk::sync::signal_(?:release|relaxed)\(", body)) == sum(len(s.signals) for s in program)
    barriers = sum(isinstance(s.op, BarrierOp) for s in program)
    assert len(re.findall(r"amk::sync::cta_barrier<1, \d+>", body)) == barriers
    assert set(re.findall(r"amk::sync::(\w+)", source)) <= ALLOWED


@pytest.mark.turns(12)
@pytest.mark.parametrize("settings", [FAST, NAIVE], ids=["fast", "naive"])
def test_machine_code_holds_the_hand_offs_of_the_schedule(settings: Settings) -> None:
    """Read back from the PTX: a release for every release signal, an acquire for every acquire wait."""
    schedule = plan(PLAIN, load_target("h200"), settings=settings, max_context=256, workers=4)
    kinds = count_kinds(list(build(schedule).synchronisation))
    program = steps(schedule.programs[0].body)
    signals = [signal for step in program for signal in step.signals]
    waits = [wait for step in program for wait in step.waits]
    assert kinds.get(Kind.SIGNAL_RELEASE, 0) == sum(s.order == "release" for s in signals)
    assert kinds.get(Kind.SIGNAL_RELAXED, 0) == sum(s.order == "relaxed" for s in signals)
    acquires = sum(w.order == "acquire" for w in waits)
    assert (kinds.get(Kind.POLL_ACQUIRE, 0) >= acquires) if acquires else Kind.POLL_ACQUIRE not in kinds


@pytest.mark.parametrize("place", ["at_least", "add"])
def test_a_number_of_a_warp_in_what_is_counted_is_refused_by_name(place: str) -> None:
    """The validator decides it; no code is generated for it."""
    document = json.loads(canonical_json(bulk()))
    uses = [use for step in every_step(document) for use in (*step["waits"], *step["signals"]) if place in use]
    amount = uses[0][place]
    uses[0][place] = ({"1": amount} if isinstance(amount, int) else amount) | {"agent": 1}
    with pytest.raises(AmkError, match="a warp's number"):
        emit(Schedule.model_validate_json(json.dumps(document)))


def every_step(document: dict[str, Any]) -> list[dict[str, Any]]:
    left, found = [*document["programs"]], list[dict[str, Any]]()
    while left:
        node = left.pop()
        found += [node] if "op" in node else []
        left += node.get("body", [])
    return found


def test_the_kernel_has_one_name() -> None:
    assert emit(bulk()).count(f"{KERNEL}(") == 1
