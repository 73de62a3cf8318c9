"""Guesses with a known share of right ones: what a step adds, and that no text changes."""

from __future__ import annotations

import pytest

from amk.bench.guesses import Case, Guessed, KnownAnswer, Row, parse, rows_of
from amk.engine.backends.cpu_engine import CpuEngine
from amk.engine.backends.rows_backend import RowsBackend
from amk.engine.backends.schedule_backend import ScheduleBackend
from tests.engine.tiny import RandomTensors, tiny_model, tiny_plan

MODEL, ROWS, NEW = tiny_model(layers=1), 3, 10
PROMPT = [5, 17, 3, 40]


def backend(accepts: bool, steps: int = 1) -> RowsBackend:
    schedule = tiny_plan(MODEL, workers=4, kv_block=4, kv_splits=2, rows=ROWS, accepts=accepts)
    return RowsBackend(CpuEngine(schedule, RandomTensors(MODEL)), steps=steps)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    plain = CpuEngine(tiny_plan(MODEL, workers=4, kv_block=4, kv_splits=2), RandomTensors(MODEL))
    guessing = [backend(accepts=False), backend(accepts=True, steps=2)]
    return rows_of(ScheduleBackend(plain), guessing, PROMPT, NEW, (0.0, 0.6, 1.0), 1)


def test_a_step_adds_what_is_right_and_one_token(rows: list[Row]) -> None:
    """Ten tokens of three rows: four steps if all guesses are right, ten if none is."""
    found = [(row.rows, row.steps, row.right) for row in rows]
    assert found == [(1, 0, None), *((ROWS, steps, right) for steps in (0, 2) for right in (0.0, 0.6, 1.0))]
    for none, some, every in (rows[1:4], rows[4:]):
        assert (none.a_step, every.a_step) == (1.0, NEW / 4)
        assert none.a_step < some.a_step < every.a_step


def test_no_text_changes(rows: list[Row]) -> None:
    assert [(row.same, row.tokens) for row in rows] == [(NEW, NEW)] * 7
    assert all(row.each_ms > 0 for row in rows)
    assert all(row.faster == pytest.approx(rows[0].each_ms / row.each_ms) for row in rows)


def test_a_text_that_differs_is_counted() -> None:
    """The answer that is expected is another one from the fourth token on."""
    guessing = backend(accepts=False)
    text = Guessed(guessing, PROMPT, NEW, KnownAnswer(len(PROMPT), (), MODEL.vocab, 0.0))
    answer = list(text())
    other = [*answer[:3], *((token + 1) % MODEL.vocab for token in answer[3:])]
    assert Case(guessing, 0.5, other, text).row(1.0, 2.0).same == 3


@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
def test_the_share_of_right_guesses(right: float) -> None:
    """Each by its place, so the same ones are right whoever asks."""
    answer = [n % 7 for n in range(2000)]
    known = KnownAnswer(4, answer, 7, right)
    guesses = known.guess([0] * 4, 2000)
    assert sum(map(int.__eq__, guesses, answer)) / 2000 == pytest.approx(right, abs=0.05)
    assert known.guess([0] * 100, 5) == guesses[96:101]
    assert known.guess([0] * 2003, 5) == guesses[1999:]


def test_bad_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--right", "1.5"], ["--rows", "1"], ["--steps", "-1"], ["--new", "x"]):
        with pytest.raises(SystemExit) as end:
            parse(["--model", "m", "--gpu", "h200", *words])
        assert end.value.code == 2
        assert words[0] in capsys.readouterr().err
