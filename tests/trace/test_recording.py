"""Recordings: the marks mean what the lowering writes, and the tables add up."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk.lowering.emit import trace_length, traced_steps
from amk.report.diagnostic import AmkError
from amk.report.timeline import MalformedTimeline
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.schedule import Loop
from amk.trace.from_recording import of_recording
from amk.trace.phases import Measured, phase_names, token_items
from amk.trace.recording import Recording, read_recording
from tests.trace.recordings import synthetic_recording
from tests.validator.plans import SMALL, small_plan

SCHEDULE = small_plan()
RECORDING = synthetic_recording(SCHEDULE)


@pytest.mark.parametrize("preset", SMALL)
def test_steps_are_those_that_the_kernel_marks(preset: str) -> None:
    schedule = small_plan(SMALL[preset])
    measured = Measured(schedule, synthetic_recording(schedule))
    roles = {r.name: range(r.first, r.first + r.count) for r in schedule.roles}
    body = next(node.body for node in schedule.programs[0].body if isinstance(node, Loop))
    for warp in range(schedule.launch.warps):
        marked = traced_steps(body, lambda role, warp=warp: warp in roles[role])  # type: ignore[misc]
        items = measured.items(0)
        assert [items[i].step.op.op for i in measured.steps(0, warp)] == [label.split()[0] for label in marked]
        assert len(marked) + 1 <= trace_length(schedule)


def test_times_of_all_kinds_add_up_to_the_token() -> None:
    measured = Measured(SCHEDULE, RECORDING)
    longest = 0.0
    for worker in range(SCHEDULE.launch.workers):
        ends = [
            measured.marks[worker, w, len(measured.steps(worker, w))] - measured.marks[worker, w, 0]
            for w in range(SCHEDULE.launch.warps)
        ]
        assert measured.time(None)[worker] == pytest.approx(np.mean(ends))
        longest = max(longest, *ends)
    assert longest == pytest.approx(RECORDING.token_us, rel=0.01)
    phases, steps, _ = measured.tables()
    assert sum(float(us) for _, us in steps.rows) == pytest.approx(float(phases.rows[-1][1]))
    products = [name.split(": ")[1] for name, _ in steps.rows if ": gemv " in str(name)]
    assert products == [f"gemv {name}" for name in ("qkv", "o", "gate_up", "down", "lm_head")]
    assert [row[0] for row in phases.rows] == ["qkv", "o", "gate_up", "down", "lm_head", "end", "sum"]
    for column in (1, 2, 3, 6):
        total = sum(float(row[column]) for row in phases.rows[:-1])
        assert total == pytest.approx(float(phases.rows[-1][column]))


def test_phases_end_with_their_gemv() -> None:
    names = phase_names(token_items(SCHEDULE, 0))
    ops = [item.step.op for item in token_items(SCHEDULE, 0)]
    drains = [(op.matrix, name) for op, name in zip(ops, names, strict=True) if isinstance(op, GemvOp)]
    assert len(drains) == 4 * SCHEDULE.model.layers + 1 and all(matrix == name for matrix, name in drains)
    assert names[-1] == "end"


def test_bytes_in_flight_start_full_and_end_empty() -> None:
    rate, flying = Measured(SCHEDULE, RECORDING).series()
    stream = SCHEDULE.streams[0]
    full = SCHEDULE.launch.workers * SCHEDULE.roles[0].count * stream.slots * stream.chunk_bytes / 1e6
    assert 0 < flying.points[0][1] <= full and flying.points[-1][1] == pytest.approx(0)
    step = rate.points[1][0] - rate.points[0][0]
    total = sum(Measured(SCHEDULE, RECORDING).bytes.values())
    assert sum(value for _, value in rate.points) * step * 1e3 == pytest.approx(total)


def test_resident_bytes_are_told_from_those_that_arrive() -> None:
    """A drain finds at most a ring of its own chunks there: all of a short one, a ring's worth of a long one."""
    measured = Measured(SCHEDULE, RECORDING)
    stream = SCHEDULE.streams[0]
    drains = {"qkv": SCHEDULE.model.layers, "lm_head": 1}
    for name, count in drains.items():
        rings = count * SCHEDULE.launch.workers * SCHEDULE.roles[0].count * stream.slots * stream.chunk(name).bytes
        assert 0 < measured.resident[name] <= min(rings, measured.bytes[name])
    phases, *_ = measured.tables()
    at = {title: n for n, title in enumerate(phases.header)}
    for row in phases.rows:
        drained, held = float(row[at["MB drained"]]), float(row[at["of it resident at most"]])
        assert float(row[at["GB/s arriving at least"]]) == pytest.approx(1e3 * (drained - held) / float(row[1]))
        assert float(row[at["GB/s drained"]]) == pytest.approx(1e3 * drained / float(row[1]))
    asked = SCHEDULE.model_copy(update={"streams": (stream.model_copy(update={"run_ahead": False}),)})
    assert not Measured(asked, RECORDING).resident


def test_counters_may_wrap_and_start_anywhere() -> None:
    shifted = Recording.model_validate(RECORDING.model_dump() | {"marks": _moved(RECORDING, 2**31 + 12345)})
    assert np.array_equal(shifted.cycles(), RECORDING.cycles())


def _moved(recording: Recording, by: int) -> str:
    marks = np.frombuffer(base64.b64decode(recording.marks), "<u4")
    return base64.b64encode((marks + np.uint32(by)).astype("<u4").tobytes()).decode()


def test_a_recording_is_drawn_with_tables_and_series() -> None:
    timeline = of_recording(SCHEDULE, RECORDING, every_warp=True)
    assert len(timeline.tracks) == SCHEDULE.launch.workers * SCHEDULE.launch.warps
    measured = Measured(SCHEDULE, RECORDING)
    assert len(timeline.spans) == sum(
        len(measured.steps(w, a)) for w in range(SCHEDULE.launch.workers) for a in range(SCHEDULE.launch.warps)
    )
    assert (len(timeline.series), len(timeline.tables)) == (2, 3) and timeline.microseconds == 1.0
    assert timeline.end == pytest.approx(RECORDING.token_us)
    assert len(of_recording(SCHEDULE, RECORDING, [2]).tracks) == 2


def test_marks_that_go_back_are_refused() -> None:
    marks = np.frombuffer(base64.b64decode(RECORDING.marks), "<u4").copy().reshape(RECORDING.shape)
    marks[0, 0, 3] -= np.uint32(10**6)
    bad = RECORDING.model_copy(update={"marks": base64.b64encode(marks.tobytes()).decode()})
    with pytest.raises(MalformedTimeline):
        of_recording(SCHEDULE, bad)


@pytest.mark.parametrize(
    "change",
    [
        {"schedule": "0" * 64},
        {"schedule": "x"},
        {"shape": [1, 1, 2]},
        {"shape": [4, 4, 10**9]},
        {"marks": "!!!"},
        {"marks": "AAAA"},
        {"token_us": 0},
        {"token_us": 1e300},
        {"format": "y"},
        {"more": 1},
    ],
)
def test_what_is_no_recording_of_the_schedule_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "raw.json"
    file.write_text(RECORDING.model_dump_json())
    assert read_recording(file, SCHEDULE) == RECORDING
    file.write_text(json.dumps(json.loads(RECORDING.model_dump_json()) | change))
    with pytest.raises(AmkError):
        read_recording(file, SCHEDULE)
