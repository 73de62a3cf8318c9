"""A recorded table with edits: runs find there what was measured, and nothing else."""

from dataclasses import replace
from typing import Any

import pytest

from amk.agent.device.measure import Job
from amk.agent.gate.candidate import Candidate, Impossible
from amk.agent.gate.design import Design
from amk.agent.gate.gate import Ready
from tests.agent.edits_table import OnTable, TableWorkshop, designs, fastest, measured, workshop_for

PROBLEM = ("smollm2-135m", "h200", "bf16")
MERGE_GOES = '{"do": "remove", "node": "decode/t/l/merge"}'
WAIT_GOES = '{"do": "remove", "node": "decode/t/l/wait.attn"}'


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    start = workshop_for(PROBLEM).space("fast").start
    knobs, edits = {"run_ahead": not start.run_ahead}, [MERGE_GOES, WAIT_GOES]
    rows = [measured(PROBLEM, design) for design in designs(start, knobs, edits)]
    return {"problem": PROBLEM, "start": "fast", "knobs": knobs, "edits": edits, "rows": rows}


def test_a_table_has_every_subset_of_edits_on_every_plan(table: dict[str, Any]) -> None:
    workshop = TableWorkshop(table)
    assert len(workshop.rows) == len(table["rows"]) == 2 * 4
    assert {design.edits for design in workshop.rows} == {(), (MERGE_GOES,), (WAIT_GOES,), (MERGE_GOES, WAIT_GOES)}
    verdicts = {design: row["verdict"].split()[0] for design, row in workshop.rows.items()}
    start = workshop.table.start
    assert verdicts[Design(start)] == verdicts[Design(start, (WAIT_GOES,))] == "SAFE"  # that wait orders nothing
    assert verdicts[Design(start, (MERGE_GOES,))] == "UNSAFE"  # nobody writes what is read


def test_what_is_not_in_the_table_cannot_be_made(table: dict[str, Any]) -> None:
    workshop = TableWorkshop(table)
    outside = Design(replace(workshop.table.start, head_handoff=not workshop.table.start.head_handoff))
    assert isinstance(workshop.make(outside), Impossible)
    both = [
        workshop.make(Design(workshop.table.start, edits))
        for edits in ((WAIT_GOES, MERGE_GOES), (MERGE_GOES, WAIT_GOES))
    ]
    assert both[0] == both[1]


def test_a_run_gets_the_recorded_verdict_and_times(table: dict[str, Any]) -> None:
    problem = OnTable(TableWorkshop(table))
    for design, row in problem.workshop.rows.items():
        candidate = problem.workshop.make(design)
        if isinstance(candidate, Candidate):
            judgement = problem.certify(candidate.schedule)
            assert " ".join((judgement.outcome, *judgement.codes)) == row["verdict"]
            if "ms" in row:
                ready = Ready(candidate, b"", judgement)
                assert problem.backend(0).times(Job(0, "pilot", 1, 0, 0, (128, 2048), 0), ready) == tuple(row["ms"])
    assert fastest(table)["fastest"] >= fastest(table)["fastest_plan"] >= 1.0
