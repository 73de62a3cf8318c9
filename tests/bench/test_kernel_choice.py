"""The kernels that predictions are judged by: different, SAFE, compiled, half of them near the best."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from amk.bench.calibration.kernel_choice import APART, FAR, NEAR, chosen, kernels, read_plans, write_plans
from amk.commands.measured_runs import recorded_settings
from amk.planner.search import Problem, Search
from amk.planner.settings import FAST
from amk.planner.space import Space
from amk.report.diagnostic import AmkError
from amk.targets.target import load_target
from tests.tiny import tiny

MODEL = tiny("small", layers=2, hidden=512, ffn=1024, heads=8, kv_heads=4, vocab=4096)
SOME = [replace(FAST, plan="search", **c) for c in ({}, {"warps": 4}, {"chunk_bytes": 1024, "held_refills": 0.5})]
TARGET = load_target("h200").model_copy(update={"sms": 32})
"""Few SMs: a simulated plan costs less."""
PROBLEM = Problem(MODEL, TARGET, context=512, positions=(100,))


@pytest.mark.turns(12)
def test_the_choice_is_deterministic_varied_and_about_half_near_the_best() -> None:
    states = chosen(PROBLEM, 12, seed=1)
    assert [s.key for s in states] == [s.key for s in chosen(PROBLEM, 12, seed=1)]
    assert len({s.key for s in states}) == len(states) >= 12
    best = min(s.ms[0] for s in states)
    near = sum(s.ms[0] <= NEAR * best for s in states)
    assert 0.45 <= near / len(states) <= 0.8 and max(s.ms[0] for s in states[3:]) <= FAR * best
    space = Space.around(FAST)
    assert len({name for s in states for name in space.changes(s.settings, FAST)}) >= 8
    times = sorted(s.ms[0] for s in states[3:])
    assert all(b >= APART * a * (1 - 1e-9) for a, b in pairwise(times))


@pytest.mark.turns(16)
def test_no_kernel_is_chosen_that_was_seen() -> None:
    states = chosen(PROBLEM, 8, seed=1)
    seen = [states[0].settings, *(s.settings for s in states[3:6])]
    others = chosen(PROBLEM, 8, seed=1, others=seen)
    assert len(others) >= 8 and not {s.key for s in others} & {Search(PROBLEM).look(s).key for s in seen}  # type: ignore[union-attr]


def test_the_kernels_of_a_record_are_known_by_their_settings(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    rows = [{"row": {"key": {"model": m}, "settings": {"warps": w}}} for m, w in (("a", 2), ("b", 4), ("a", 8))]
    record.write_text(json.dumps({"rows": rows}))
    assert [s.warps for s in recorded_settings([record], "a")] == [2, 8]
    record.write_text('{"rows": [{"row": {"key": {"model": "a"}}}]}')
    with pytest.raises(AmkError) as caught:
        recorded_settings([record], "a")
    assert caught.value.diagnostics[0].code == "AMK005"


@pytest.mark.turns(4)
def test_kernels_come_compiled_and_a_plan_that_cannot_is_passed_over() -> None:
    spilling = replace(FAST, plan="search", warps=2)
    (one,) = kernels(PROBLEM, [spilling, FAST], 1, workers=1)
    assert one.number == 1 and one.settings == FAST and one.admitted.schedule.model == MODEL


def test_a_choice_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    states = [state for s in SOME if (state := Search(PROBLEM).look(s))]
    write_plans(path, PROBLEM, states)
    assert read_plans(path, PROBLEM) == [s.settings for s in states]
    text = path.read_text()
    for bad in (
        "[]",
        "{}",
        text.replace('"small"', '"other"'),
        text.replace('"warps"', '"x"'),
        text.replace("plans", "x"),
    ):
        broken = tmp_path / "broken.json"
        broken.write_text(bad)
        with pytest.raises(AmkError) as caught:
            read_plans(broken, PROBLEM)
        assert caught.value.diagnostics[0].code == "AMK005"
    with pytest.raises(AmkError):
        read_plans(path, replace(PROBLEM, context=256))
