"""What a prediction's error is known from: kinds of plans, and errors that were measured for each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Schedule
from amk.simulator.kinds import Errors, errors_of, errors_on, kind_of, known_error, named_kind, saved, stored_errors
from amk.simulator.predict import step_ms
from amk.targets.target import load_target
from tests.simulator import row_errors
from tests.tiny import tiny

MODEL = tiny("small", hidden=512, ffn=1024, heads=8, kv_heads=4, vocab=4096)


def small(batch: int = 1, form: str = "bf16", gpu: str = "h200", rows: int = 1) -> Schedule:
    settings = replace(FAST, batch=batch, rows=rows)
    return plan(MODEL, load_target(gpu), settings=settings, formats=formats(form), max_context=16384)  # type: ignore[arg-type]


def test_kinds_are_what_changes_where_the_time_goes() -> None:
    assert kind_of(small(), 128) == "bf16, one sequence"
    assert kind_of(small(), 8192) == "bf16, one sequence, long context"
    assert kind_of(small(form="int8"), 128) == "codes, one sequence"
    assert kind_of(small(batch=4), 128) == "bf16, a batch"
    assert [named_kind(True, 1, 128, rows) for rows in (2, 16, 17)] == [
        "bf16, 2 to 16 rows", "bf16, 2 to 16 rows", "bf16, more than 16 rows",
    ]  # fmt: skip
    assert "compared" in known_error(small(rows=8, form="int8"), 128)


def test_errors_have_a_median_a_worst_and_a_sign() -> None:
    one, eight = small(), small(batch=8)
    found = errors_of([(one, 0, 1.0, 1.1), (one, 0, 2.0, 1.8), (one, 0, 1.0, 1.2), (eight, 0, 1.0, 1.0)])
    own = found["bf16, one sequence"]
    assert (own.runs, own.median, own.worst, own.bias) == (3, 0.1, 0.2, 0.1)
    assert found["bf16, a batch"].worst == 0
    errors = Errors.model_validate_json(saved({"h200": found}, "made here"))
    more = Errors.model_validate_json(saved({"h100": found}, "made there", errors))
    assert set(more.kinds) == {"h100", "h200"} and more.sources == {"h200": "made here", "h100": "made there"}
    assert "median error 10.0%, worst 20.0%, bias +10.0% (3 runs)" in known_error(one, 0, errors)
    assert "ever compared" in known_error(small(form="int8"), 0, errors)
    elsewhere = known_error(small(gpu="l4"), 0, errors)
    assert (
        "ever measured on l4" in elsewhere and "(bf16, one sequence) plans were off by up to 20% on h200" in elsewhere
    )
    assert known_error(small(gpu="l4", form="int8"), 0, errors).endswith("the error is not known")


def test_the_shipped_errors_are_of_measured_targets_only() -> None:
    kinds = stored_errors().kinds
    assert set(kinds) == {"h100", "h200"}
    assert {"bf16, one sequence", "codes, one sequence", "bf16, a batch", "bf16, 2 to 16 rows"} <= set(kinds["h200"])


def test_the_page_has_the_shipped_errors() -> None:
    text = (Path(__file__).parents[2] / "amk" / "simulator" / "README.md").read_text(encoding="utf-8")
    for kind, own in stored_errors().kinds["h200"].items():
        row = f"| {kind} | {own.runs} | {own.median:.1%} | {own.worst:.1%} | {own.bias:+.1%} |"
        assert row in text, row


def test_errors_of_rows_are_those_of_the_recorded_steps() -> None:
    """Of the smallest plan: the larger ones take seconds each."""
    source = stored_errors().sources["h200"].partition("row_errors ")[2]
    assert source.count("h200-divided-columns.json#third card, 8e76fe79") == 2
    record = Path(__file__).parents[1] / "records" / "speed" / "h200-divided-columns.json"
    steps = row_errors.steps_of(f"{record}#third card, 8e76fe79, llama3.2-1b")
    steps = [step for step in steps if step["plan"] == "rows 8"]
    schedule = row_errors.planned("llama3.2-1b", "h200", 8)
    off = [abs(step_ms(schedule, step["pos"]) / step["ms"] - 1) for step in steps]
    own = stored_errors().kinds["h200"]["bf16, 2 to 16 rows"]
    assert len(off) == 3 and max(off) <= own.worst + 1e-4 < 0.1


def test_a_recorded_row_is_of_its_batch_and_formats(tmp_path: Path) -> None:
    from amk.bench.table.record import Record
    from amk.bench.table.row import Key, Row
    from amk.bench.tools.times import Times
    from amk.commands.measured_runs import measured_runs

    times, file = Times(1.0, 1.0, 1.0), tmp_path / "rows.json"
    keys = [
        Key("llama3.2-1b", "h200", "bf16", "fast", 128, 4, 50, (), batch=4),
        Key("llama3.2-1b", "h200", "int4-g128-zp-head-bf16", "fast", 16384, 4, 50, ()),
        Key("llama3.2-1b", "h200", "int8-kv-fp8", "fast", 128, 4, 50, ()),
    ]
    for key in keys:
        Record.open(file).add(Row(key, times, {}, 10**9, 4600.0, 1e-3, 2e-3, 1e-6, True, True, True), {})
    found = measured_runs([str(file)])
    assert [(r.schedule.batch, r.schedule.weights_label, r.pos) for r in found] == [
        (key.batch, key.dtype, key.pos) for key in keys
    ]
    assert found[1].schedule.kv.context > 16384
    file.write_text(file.read_text().replace("int8-kv-fp8", "int9"))
    with pytest.raises(AmkError, match="AMK005"):
        measured_runs([str(file)])


def test_tables_of_simulated_times_end_with_errors() -> None:
    known, unknown = errors_on(("h200", "l4", "h200")).splitlines()
    assert all(str(error) in known for error in stored_errors().kinds["h200"].values())
    assert unknown == "* Error on l4: not known, no plan was ever measured there."
