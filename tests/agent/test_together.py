"""Changes that miss the threshold of a keep alone are made to the best at once, and kept by the same rule as all."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log1p
from pathlib import Path

import numpy as np
import pytest

from amk.agent.decide.keep import MIN_GAIN
from amk.agent.device.measure import Block, Job
from amk.agent.device.noise import Noise
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.gate import Ready
from amk.agent.journal.inbox import Suggestion
from amk.agent.propose import singles
from amk.agent.propose.base import Context
from amk.agent.propose.combine import RIDGE
from amk.agent.propose.replay import Replay
from amk.agent.propose.singles import Singles
from amk.agent.propose.together import Change, Together, fitted, gained
from amk.agent.report.edits_table import kinds_of, what_is_left
from amk.agent.run.reports import left_of, report_of
from amk.schedule_ir.edits.directed import KINDS
from tests.agent.conftest import MakeLoop

EDIT = {"do": "remove", "node": "decode/t/l/wait.qkv"}
TEXT = json.dumps(EDIT, sort_keys=True)
KNOB, OTHER, WORSE = {"run_ahead": True}, {"wide_epilogue": 16}, {"head_handoff": True}
AHEAD = Change((("run_ahead", False, True),), ())
WIDE = Change((("wide_epilogue", 0, 16),), ())
UNAWAITED = Change((), (TEXT,))
QUIET = Noise("quiet")
POINTS = (KNOB, {"edits": [TEXT]}, OTHER, WORSE)


@dataclass
class Adding(SimulatedBackend):
    """A device on which changes add up: each of three gains 0.3%, another loses as much."""

    def times(self, job: Job, ready: Ready) -> Block:
        settings, edits = ready.candidate.settings, ready.candidate.edits
        gain = 0.003 * (
            settings.run_ahead + (settings.wide_epilogue in (16, 32)) + (TEXT in edits) - settings.head_handoff
        )
        return tuple(exp(-gain) for _ in job.positions)


@dataclass
class Hindering(Adding):
    """The two knobs that gain alone lose together."""

    def times(self, job: Job, ready: Ready) -> Block:
        settings = ready.candidate.settings
        both = settings.run_ahead and settings.wide_epilogue == 16
        return tuple(ms * exp(0.015 * both) for ms in super().times(job, ready))


@dataclass
class Helping(Adding):
    """Of two knobs one loses alone and the other does nothing, and together they gain 0.4%."""

    def times(self, job: Job, ready: Ready) -> Block:
        settings = ready.candidate.settings
        both = settings.head_handoff and settings.wide_epilogue == 64
        return tuple(ms * exp(-0.007 * both) for ms in super().times(job, ready))


def device() -> Adding:
    return Adding("h200", noise=QUIET, simulated=False)


@dataclass
class Then:
    """What was recorded, and then the proposer under test."""

    name: str = "replay"

    def ask(self, context: Context) -> Sequence[Suggestion]:
        return Replay(POINTS).ask(context) or Together().ask(context)


def test_three_near_misses_are_kept_together(make_loop: MakeLoop) -> None:
    loop = make_loop(Then(), device(), evals=5)
    loop.run()
    *alone, both = loop.state.trials
    assert [t.decided.outcome for t in alone if t.decided] == ["rejected"] * 4, "none of them is kept alone"
    assert both.proposed.proposer == "together" and both.decided is not None and both.decided.outcome == "kept"
    assert both.proposed.edits == (TEXT,) and "+0.69% in sum" in both.proposed.why
    changes = loop.space.changes(loop.history.settings[both.index], loop.space.start)
    assert changes == {**KNOB, **OTHER}, "and what lost is not among them"
    assert loop.state.best == both.index and list(Together().ask(loop.context())) == []


def test_what_a_change_is_worth_is_fitted_to_all_that_have_it(make_loop: MakeLoop, tmp_path: Path) -> None:
    """Drawn towards zero by three tenths of a measurement, and less where more trials have it."""
    loop = make_loop(Replay(POINTS), device(), evals=4)
    loop.run()
    alone = {change: gain for gain, change, _ in gained(loop.context())}
    assert set(alone) == {AHEAD, WIDE, UNAWAITED}
    assert all(abs(gain - 0.003 / 1.3) < 1e-4 for gain in alone.values())
    more = make_loop(Replay((*POINTS, {**WORSE, **OTHER})), device(), evals=5, folder=tmp_path / "more")
    more.run()
    assert alone[WIDE] < {change: gain for gain, change, _ in gained(more.context())}[WIDE] < 0.003


def test_changes_apart_and_together_are_fitted_as_all_at_once() -> None:
    rng = np.random.default_rng(0)
    rows = [(float(rng.normal()), [n]) for n in (0, 0, 1, 2, 2, 3, 5)] + [(0.5, [1, 3]), (0.25, [3, 4])]
    matrix = np.zeros((len(rows), 6))
    for row, (_, parts) in enumerate(rows):
        matrix[row, parts] = 1.0
    gains = np.array([gain for gain, _ in rows])
    whole = np.linalg.solve(matrix.T @ matrix + RIDGE * np.eye(6), matrix.T @ gains)
    assert fitted(6, rows) == pytest.approx(list(whole))
    assert fitted(2, rows[:3]) == pytest.approx([sum(gains[:2]) / (2 + RIDGE), gains[2] / (1 + RIDGE)])


def test_a_combination_that_lost_lowers_its_parts(make_loop: MakeLoop) -> None:
    """Where both together lose, they are not proposed with a third; the third keeps its worth."""
    loop = make_loop(Replay((*POINTS, {**KNOB, **OTHER})), Hindering("h200", noise=QUIET, simulated=False), evals=5)
    loop.run()
    assert not loop.state.curve
    worth = {change: gain for gain, change, _ in gained(loop.context())}
    assert UNAWAITED in worth and max(worth.get(AHEAD, 0.0), worth.get(WIDE, 0.0)) < 0.001 < worth[UNAWAITED]
    assert list(Together().ask(loop.context())) == []


def test_two_that_help_each_other_are_a_change_by_themselves(make_loop: MakeLoop) -> None:
    """What they gain together is not told by what they gain alone; with a third they come to a keep."""
    points = (KNOB, WORSE, {"wide_epilogue": 64}, {**WORSE, "wide_epilogue": 64})
    loop = make_loop(Replay(points), Helping("h200", noise=QUIET, simulated=False), evals=4)
    loop.run()
    assert not loop.state.curve
    worth = {change: gain for gain, change, _ in gained(loop.context())}
    pair = Change((("head_handoff", False, True), ("wide_epilogue", 0, 64)), ())
    assert set(worth) == {AHEAD, pair} and worth[pair] == pytest.approx(0.004 / 1.3, abs=1e-4)
    (asked,) = Together().ask(loop.context())
    assert {name: asked.settings[name] for name in (*KNOB, *WORSE)} == {**KNOB, **WORSE}


def test_a_change_is_of_the_value_that_it_was_measured_from(make_loop: MakeLoop) -> None:
    """Two other values of a knob that gained are no two changes of one plan."""
    points = ({"wide_epilogue": 32}, *POINTS, {**KNOB, **OTHER})
    loop = make_loop(Replay(points), device(), evals=6)
    loop.run()
    assert -loop.state.best_score >= log1p(MIN_GAIN)
    assert [change for _, change, _ in gained(loop.context())] == [UNAWAITED]


def test_a_sum_below_what_a_keep_needs_is_not_tried(make_loop: MakeLoop) -> None:
    loop = make_loop(Replay((KNOB, WORSE)), device(), evals=2)
    loop.run()
    assert list(Together().ask(loop.context())) == [], "one change alone is no combination"


def test_what_was_kept_is_built_upon(make_loop: MakeLoop) -> None:
    """Of what the best has nothing is left to combine, and one change is none."""
    loop = make_loop(Replay((*POINTS, {**KNOB, **OTHER})), device(), evals=5)
    loop.run()
    assert -loop.state.best_score >= log1p(MIN_GAIN), "the pair was kept"
    assert [change for _, change, _ in gained(loop.context())] == [UNAWAITED]
    assert list(Together().ask(loop.context())) == []


def test_the_report_tells_what_was_tried_and_what_was_not(make_loop: MakeLoop, tmp_path: Path) -> None:
    """Where a search ended by its budget: kinds of edits, changes that gained, and what they may come to."""
    begun = make_loop(folder=tmp_path / "start")
    single = next(each.single for each in Singles().survey(begun.context()) if each.single.kind == "remove barrier")
    loop = make_loop(Replay((*POINTS, {"edits": list(single.edits)})), device(), evals=5)
    loop.run()
    context = loop.context()
    near = list(Singles().survey(context, decided=True))
    rows = {row.name: row for row in kinds_of(loop.state, near)}
    assert set(rows) == {*KINDS, singles.KNOB}
    barriers = rows["remove barrier"].singles
    assert barriers.total() - barriers["open"] == 1 and barriers["open"] > 1
    text = what_is_left(loop.state, left_of(loop.state, context))
    assert re.search(r"not exhausted: \d+ plans of .* open; \d+ of \d+ single changes .* not tried; 4 comb", text)
    assert "3 changes gained, and are not in the best, where a keep needs +0.50%" in text
    assert "0 were proposed and 4 were not: +0.69% at most" in text, "three, and each two of them"
    assert "wide_epilogue=16" in text and "Never proposed: " in text
    shown = [re.sub(r"\d+ plans of", "plans of", page) for page in (text, report_of(loop.state))]
    assert shown[0] in shown[1], "how many plans are open is counted by what was planned so far"
