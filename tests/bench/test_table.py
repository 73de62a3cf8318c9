"""The table of cases: what is met, what is not, and what does not count; drawn charts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amk.bench.plot import charts
from amk.bench.record import row_of
from amk.bench.row import Key, Row
from amk.bench.table import HEADER, Table, as_json, cells, judge, load_table
from amk.bench.times import Times
from amk.report.chart import Chart, Series, svg
from amk.report.diagnostic import AmkError

BASE = Key("llama3-8b", "h200", "bf16", "fast", 128, 4, 50, ("pdl-graph",))
CASES = {
    "gpu": "h200", "steps": 50, "tokens": 4,
    "cases": [
        {"case": "one", "model": "llama3-8b", "pos": 128, "context": 512, "must": 3.7, "aim": 3.45},
        {"case": "eight", "model": "llama3-8b", "pos": 128, "context": 512, "must": 1.15, "aim": 1.05, "of": "one"},
    ],
}  # fmt: skip
TABLE = Table.model_validate(CASES)
KEYS = {"one": BASE, "eight": replace(BASE, batch=8)}


def row(key: Key, ms: float, *, correct: bool = True) -> Row:
    times = {"pdl-graph": Times(2 * ms, ms, 3 * ms)}
    return Row(key, Times(ms, ms, ms), times, 15 * 10**9, 4650.0, 1e-3, 2e-3, 1e-6, True, True, correct)


def test_the_time_is_the_median_of_the_runs_and_limits_may_be_relative() -> None:
    rows = [row(replace(BASE, run=i + 1), ms) for i, ms in enumerate((3.5, 3.9, 3.6))]
    rows += [row(replace(BASE, batch=8), 4.2), row(replace(BASE, model="llama3.1-8b"), 1.0)]
    one, eight = judge(TABLE, KEYS, rows)
    assert one.ms == 3.6 and len(one.rows) == 3
    assert one.reaches(one.must) is True and one.reaches(one.aim) is False
    assert eight.must == pytest.approx(1.15 * 3.6) and eight.reaches(eight.must) is False
    assert one.beaten() == {"pdl-graph": pytest.approx(2.0)}
    assert len(cells(one)) == len(HEADER)
    assert "NOT MET" in cells(eight) and "met" in cells(one)
    assert as_json(one)["must_met"] is True and len(as_json(one)["runs"]) == 3


def test_runs_without_baselines_count_and_the_fuller_row_of_a_run_is_taken() -> None:
    bare = replace(row(replace(BASE, baselines=()), 3.9), baselines={})
    rows = [row(BASE, 3.6), bare, replace(bare, key=replace(bare.key, run=2))]
    one = judge(TABLE, KEYS, rows)[0]
    assert [r.times.ms for r in one.rows] == [3.6, 3.9]
    assert one.beaten() == {"pdl-graph": pytest.approx(2.0)}


def test_what_fails_a_gate_meets_nothing() -> None:
    wrong, fast = (judge(TABLE, KEYS, [made])[0] for made in (row(BASE, 3.5, correct=False), row(BASE, 3.1)))
    assert wrong.reaches(wrong.must) is False and "differ" in cells(wrong)[-1]
    assert fast.reaches(fast.must) is False and cells(fast)[-1] == "faster than its floor"


def test_a_baseline_that_was_left_out_says_why() -> None:
    missing = replace(row(BASE, 3.5), left_out={"compile": "does not fit"})
    there = replace(missing, key=replace(BASE, run=2), baselines={"compile": Times(7.0, 7.0, 7.0)}, left_out={})
    assert "compile: does not fit" in cells(judge(TABLE, KEYS, [missing])[0])[-2]
    assert "does not fit" not in cells(judge(TABLE, KEYS, [missing, there])[0])[-2]
    assert row_of(missing.record()) == missing


def test_what_was_not_measured_is_open() -> None:
    one, eight = judge(TABLE, KEYS, [])
    assert one.reaches(one.must) is None and eight.must is None
    assert cells(one)[-1] == "not measured"


def test_the_shipped_table_is_planned_as_it_says() -> None:
    table = load_table("h200")
    assert len({case.case for case in table.cases}) == len(table.cases)
    assert {case.of for case in table.cases} - {None} <= {case.case for case in table.cases}
    for case in table.cases:
        assert case.aim < case.must and case.pos < case.context
        if case.settings.get("batch", 1) == 1:
            schedule = case.schedule(table.gpu)
            assert schedule.kv.context == case.context
            assert schedule.weights_label.startswith(case.dtype)
    with pytest.raises(AmkError, match="AMK005"):
        table.cases[0].model_copy(update={"settings": {"magic": 1}}).schedule("h200")


def test_charts_against_position_and_batch() -> None:
    made = [row(replace(BASE, pos=pos), 3 + pos / 1000) for pos in (0, 128, 2047)]
    made += [row(replace(BASE, batch=batch), 3 + batch / 10) for batch in (4, 8)]
    found = charts(made)
    assert [chart.x_label for chart in found] == ["position", "position", "position", "batch"]
    against = found[-1].series
    assert [s.name for s in against] == ["amk", "pdl-graph", "floor"]
    assert [x for x, _ in against[0].points] == [1, 4, 8]
    text = svg([Chart("<b>", "x", "y", (Series("a&b", ((0.0, 1.0), (8.0, 2.0))),), x_log=True)])
    assert "&lt;b&gt;" in text and "a&amp;b" in text and text.count("<circle") == 2
