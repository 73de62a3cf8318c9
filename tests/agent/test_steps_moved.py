"""The drawing of steps that moved: what an edit moves, adds or removes is what it shows."""

import re
from itertools import pairwise

import pytest

from amk.agent.gate.candidate import Candidate, Workshop
from amk.agent.report.steps_moved import layer_of, steps_moved, unlike
from amk.models.model import load_model
from amk.schedule_ir.edits import kinds
from amk.schedule_ir.edits.apply import apply
from amk.schedule_ir.edits.kinds import Edit, Place
from amk.schedule_ir.schedule import Schedule
from amk.simulator.predict import Prediction, predict
from amk.targets.target import load_target


@pytest.fixture(scope="module")
def start() -> Schedule:
    workshop = Workshop(load_model("smollm2-135m"), load_target("h200"), 256)
    candidate = workshop.make(workshop.space("fast").start)
    assert isinstance(candidate, Candidate)
    return candidate.schedule


def foreseen(schedule: Schedule, *edits: Edit) -> Prediction:
    return predict(apply(schedule, edits).schedule if edits else schedule, 128)


def names(keys: set[tuple[str, tuple[str, ...], tuple[str, ...], int]]) -> set[str]:
    return {name for name, *_ in keys}


def test_an_equal_layer_has_no_drawing(start: Schedule) -> None:
    assert steps_moved(foreseen(start), foreseen(start)) == ""


def test_a_step_that_moved_has_a_line_and_the_others_stay(start: Schedule) -> None:
    move = kinds.Move(node="decode/t/l/merge", to=Place(at="before", of="decode/t/l/store_rows"))
    before, after = foreseen(start), foreseen(start, move)
    moved, gone, new = unlike(*([bar.key for bar in layer_of(each)] for each in (before, after)))
    assert names(moved) == {"merge"} and not gone and not new
    drawn = steps_moved(before, after)
    assert drawn.count("<line") == 1 and "merge" in drawn
    bars = [len(layer_of(each)) for each in (before, after)]
    assert drawn.count("<rect") == sum(bars) and bars[0] == bars[1] > 10


def test_a_step_that_is_gone_stands_out_in_the_start_alone(start: Schedule) -> None:
    before, after = foreseen(start), foreseen(start, kinds.Remove(node="decode/t/l/merge"))
    moved, gone, new = unlike(*([bar.key for bar in layer_of(each)] for each in (before, after)))
    assert (names(moved), names(gone), names(new)) == (set(), {"merge"}, set())
    assert len(re.findall('class="gone"', steps_moved(before, after))) == 1


def test_bars_follow_each_other(start: Schedule) -> None:
    bars = layer_of(foreseen(start))
    assert all(a.start <= b.start and a.end >= a.start for a, b in pairwise(bars))
    assert bars[-1].end > 1.0 and len({bar.key for bar in bars}) == len(bars)
