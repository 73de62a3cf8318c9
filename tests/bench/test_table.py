"""The table of cases: what is met, what is not, and what does not count; drawn charts."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from amk.bench.table.plot import charts
from amk.bench.table.record import Record, row_of
from amk.bench.table.row import Key, Row
from amk.bench.table.table import HEADER, OTHERS, Table, as_json, cells, judge, load_table, others
from amk.bench.tools.times import Power, Times
from amk.report.chart import Chart, Series, svg
from amk.report.diagnostic import AmkError
from amk.targets.target import load_target
from amk.weights.weight_format import weight_format

BASE = Key("llama3-8b", "h200", "bf16", "fast", 128, 4, 50, ("pdl-graph",))
CASES = {
    "gpu": "h200", "steps": 50, "tokens": 4,
    "cases": [
        {"case": "one", "model": "llama3-8b", "pos": 128, "context": 512, "target_ms": 3.7, "stretch_ms": 3.45},
        {"case": "eight", "model": "llama3-8b", "pos": 128, "context": 512, "target_ms": 4.1, "stretch_ms": 3.9},
    ],
}  # fmt: skip
TABLE = Table.model_validate(CASES)
KEYS = {"one": BASE, "eight": replace(BASE, batch=8)}


def row(key: Key, ms: float, *, correct: bool = True) -> Row:
    times = {"pdl-graph": Times(2 * ms, ms, 3 * ms)}
    return Row(key, Times(ms, ms, ms), times, 15 * 10**9, 4650.0, 1e-3, 2e-3, 1e-6, True, True, correct)


def test_the_time_is_the_median_of_the_runs() -> None:
    rows = [row(replace(BASE, run=i + 1), ms) for i, ms in enumerate((3.5, 3.9, 3.6))]
    rows += [row(replace(BASE, batch=8), 4.2), row(replace(BASE, model="llama3.1-8b"), 1.0)]
    one, eight = judge(TABLE, KEYS, rows)
    assert one.ms == 3.6 and len(one.rows) == 3
    assert one.reaches(one.target_ms) is True and one.reaches(one.stretch_ms) is False
    assert eight.ms == 4.2 and eight.reaches(eight.target_ms) is False
    assert one.beaten() == {"pdl-graph": pytest.approx(2.0)}
    assert len(cells(one)) == len(HEADER)
    assert "NOT MET" in cells(eight) and "met" in cells(one)
    assert as_json(one)["target_met"] is True and len(as_json(one)["runs"]) == 3


def test_runs_without_baselines_count_and_the_fuller_row_of_a_run_is_taken() -> None:
    bare = replace(row(replace(BASE, baselines=()), 3.9), baselines={})
    rows = [row(BASE, 3.6), bare, replace(bare, key=replace(bare.key, run=2))]
    one = judge(TABLE, KEYS, rows)[0]
    assert [r.times.ms for r in one.rows] == [3.6, 3.9]
    assert one.beaten() == {"pdl-graph": pytest.approx(2.0)}


def test_what_fails_a_gate_meets_nothing() -> None:
    wrong, fast = (judge(TABLE, KEYS, [entry])[0] for entry in (row(BASE, 3.5, correct=False), row(BASE, 3.1)))
    assert wrong.reaches(wrong.target_ms) is False and "differ" in cells(wrong)[-1]
    assert fast.reaches(fast.target_ms) is False and cells(fast)[-1] == "faster than its floor"


def test_a_baseline_that_was_left_out_says_why() -> None:
    missing = replace(row(BASE, 3.5), left_out={"compile": "does not fit"})
    there = replace(missing, key=replace(BASE, run=2), baselines={"compile": Times(7.0, 7.0, 7.0)}, left_out={})
    none, one = judge(TABLE, KEYS, [missing])[0], judge(TABLE, KEYS, [missing, there])[0]
    assert "compile left out" in cells(none)[-2] and none.left_out() == {"compile": "does not fit"}
    assert "left out" not in cells(one)[-2] and one.left_out() == {}
    assert row_of(missing.record()) == missing


def test_the_floor_is_what_l2_cannot_hold_over_the_ceiling_of_the_same_run() -> None:
    entry, l2 = row(BASE, 3.5), load_target("h200").l2_bytes
    assert entry.floor_ms == pytest.approx((15e9 - l2) / 4650e6)
    assert entry.of_ceiling == pytest.approx(15e9 / 4650e6 / 3.5)
    slower = replace(row(replace(BASE, run=2), 3.6), ceiling_gbps=4400.0)
    both = judge(TABLE, KEYS, [entry, slower])[0]
    assert both.floor_ms == pytest.approx((entry.floor_ms + slower.floor_ms) / 2)
    assert replace(entry, bytes=10**6).floor_ms == 0


def test_a_token_that_fp64_would_not_choose_stands_in_the_row_and_fails_no_gate() -> None:
    other = replace(row(replace(BASE, run=3), 3.5), argmax_agrees=False)
    found = judge(TABLE, KEYS, [row(BASE, 3.5), other])[0]
    assert cells(found)[-1] == "ok; argmax differs from fp64 in run 3" and found.reaches(found.target_ms) is True
    assert as_json(found)["notes"] == ["argmax differs from fp64 in run 3"]
    assert cells(judge(TABLE, KEYS, [row(BASE, 3.5)])[0])[-1] == "ok"


def test_power_clocks_cards_and_variants_come_back_from_the_record(tmp_path: Path) -> None:
    power = Power(1.25, 610.0, 1965.0, 1800.0, 3201.0, ("power cap",))
    entry = replace(
        row(BASE, 3.5), power={"amk": power}, uuid="ab" * 16, variants={"compile": {"library products, SDPA": 4.4}}
    )
    file = tmp_path / "rows.json"
    Record.open(file).add(entry, {})
    assert Record.open(file).rows() == [entry]
    found = judge(TABLE, KEYS, [entry, replace(entry, key=replace(BASE, run=2), uuid="cd" * 16)])[0]
    assert found.cards == 2 and dict(zip(HEADER, cells(found), strict=True))["throttled"] == "power cap"
    assert dict(zip(HEADER, cells(found), strict=True))["mJ"] == "1250.0"
    assert judge(TABLE, KEYS, [row(BASE, 3.5)])[0].cards is None


def test_energy_is_the_median_of_all_runs_and_a_throttled_one_is_seen() -> None:
    powers = [Power(j, 600.0, mhz, mhz, 3201.0, why) for j, mhz, why in ((1, 1980, ()), (3, 1900, ("power cap",)))]
    powers.append(Power(2.0, 600.0, 1980.0, 1980.0, 3201.0, ("heat", "power cap")))
    entries = [replace(row(replace(BASE, run=n), 3.5), power={"amk": each}) for n, each in enumerate(powers, 1)]
    found = dict(zip(HEADER, cells(judge(TABLE, KEYS, entries)[0]), strict=True))
    assert (found["mJ"], found["MHz"], found["throttled"]) == ("2000.0", "1980", "power cap, heat")
    assert judge(TABLE, KEYS, [row(BASE, 3.5)])[0].power() is None


def test_a_record_holds_what_is_not_a_number(tmp_path: Path) -> None:
    drawn = {"amk": Power(math.nan, math.inf, 1980, 1980, 2619)}
    entry = replace(row(BASE, 3.5, correct=False), error=math.nan, kl=math.inf, torch_error=-math.inf, power=drawn)
    file = tmp_path / "rows.json"
    Record.open(file).add(entry, {})
    again = Record.open(file).find(BASE)
    assert again is not None and math.isnan(again.error) and again.kl == math.inf and again.torch_error == -math.inf
    assert math.isnan(again.power["amk"].joules) and again.power["amk"].watts == math.inf
    Record.open(file).add(row(replace(BASE, run=2), 3.6), {})
    assert len(Record.open(file).rows()) == 2


def test_other_programs_say_how_they_were_timed_and_where_they_are_from() -> None:
    table = load_table("h200")
    lines = others(table)
    assert all(len(line) == len(OTHERS) for line in lines)
    assert {line[3] for line in lines} <= {"measured", "published"}
    assert all(line[5].startswith("https://") and line[4] for line in lines)
    assert {"HazyResearch megakernel", "vLLM 0.23"} <= {line[1] for line in lines}
    best = judge(table, {}, [])[0].best_other()
    assert best is not None and best.ms == min(other.ms for other in table.cases[0].others)


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_every_quantised_case_has_a_rival_of_its_own_format(name: str) -> None:
    for case in load_table(name).cases:
        codes = weight_format(case.dtype).codes
        assert codes == "bf16" or codes in case.baselines


def test_what_was_not_measured_is_open() -> None:
    one, eight = judge(TABLE, KEYS, [])
    assert one.reaches(one.target_ms) is None and eight.reaches(eight.target_ms) is None
    assert cells(one)[-1] == "not measured"


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_the_shipped_table_is_planned_as_it_says(name: str) -> None:
    table = load_table(name)
    assert len({case.case for case in table.cases}) == len(table.cases)
    for case in table.cases:
        assert case.stretch_ms < case.target_ms and case.pos < case.context
        if case.settings.get("batch", 1) == 1:
            schedule = case.schedule(table.gpu)
            assert schedule.kv.context == case.context
            assert schedule.weights_label.startswith(case.dtype)
    with pytest.raises(AmkError, match="AMK005"):
        table.cases[0].model_copy(update={"settings": {"magic": 1}}).schedule(name)


def test_charts_against_position_and_batch() -> None:
    entries = [row(replace(BASE, pos=pos), 3 + pos / 1000) for pos in (0, 128, 2047)]
    entries += [row(replace(BASE, batch=batch), 3 + batch / 10) for batch in (4, 8)]
    found = charts(entries)
    assert [chart.x_label for chart in found] == ["position", "position", "position", "batch"]
    against = found[-1].series
    assert [s.name for s in against] == ["amk", "pdl-graph", "floor"]
    assert [x for x, _ in against[0].points] == [1, 4, 8]
    text = svg([Chart("<b>", "x", "y", (Series("a&b", ((0.0, 1.0), (8.0, 2.0))),), x_log=True)])
    assert "&lt;b&gt;" in text and "a&amp;b" in text and text.count("<circle") == 2
