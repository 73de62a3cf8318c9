"""The journal: durable, exclusive, tamper-evident; the state is a fold of it."""

import json
import os
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amk.agent.events import (
    EVENT,
    AnyEvent,
    Decided,
    Gated,
    LeaseReserved,
    Limits,
    LlmReserved,
    LlmSettled,
    Measured,
    Proposed,
)
from amk.agent.journal import DATABASE, MIRROR, Journal, read_state
from amk.agent.state import fold
from amk.report.diagnostic import AmkError


def proposed(index: int) -> Proposed:
    return Proposed(index=index, proposer="p", settings={"warps": 8})


def story(choices: list[int]) -> list[AnyEvent]:
    """A possible history: every number decides how one proposal goes."""
    events: list[AnyEvent] = []
    for i, choice in enumerate(choices):
        events.append(proposed(i))
        if choice == 0:
            events.append(Gated(index=i, verdict="unsafe", key=f"k{i}", codes=("AMK201",)))
            continue
        events.append(Gated(index=i, verdict="passed", key=f"k{i}"))
        events.append(LeaseReserved(index=i, phase="screen", attempt=1, device="d", seconds=1.0))
        events.append(
            Measured(
                index=i,
                phase="screen",
                attempt=1,
                seconds=0.5,
                log_ratios=(-0.1,),
                candidate_ms=(1.0,),
                incumbent_ms=(1.1,),
                against=-1,
                device="d",
            )
        )
        outcome = "kept" if choice > 5 else "rejected"
        events.append(
            Decided.model_validate({"index": i, "outcome": outcome, "reason": "r", "log_gain": 0.1, "score": -0.1 * i})
        )
        events.append(LlmReserved(call=i + 1, attempt=1, model="m", dollars=0.1, tokens=10))
        if choice % 2:
            events.append(
                LlmSettled(
                    call=i + 1,
                    attempt=1,
                    dollars=0.05,
                    input_tokens=3,
                    output_tokens=2,
                    cached_tokens=0,
                    outcome="answered",
                    live=True,
                )
            )
    return events


@given(st.lists(st.integers(0, 9), max_size=12), st.data())
@settings(max_examples=60, deadline=None)
def test_folding_is_incremental_and_survives_json(choices: list[int], data: st.DataObject) -> None:
    events = [(e, float(i)) for i, e in enumerate(story(choices))]
    whole = fold(events)
    cut = data.draw(st.integers(0, len(events)))
    part = fold(events[:cut])
    for event, elapsed in events[cut:]:
        part.apply(EVENT.validate_json(event.model_dump_json()), elapsed)
    assert part == whole
    assert whole.evals == sum(c > 0 for c in choices) and not whole.leases
    assert whole.dollars + whole.dollars_reserved <= 0.1 * len(choices) + 1e-9
    assert len(whole.llm_open) == sum(c > 0 and c % 2 == 0 for c in choices)


def test_reopening_gives_the_same_state_and_mirror(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for event in story([1, 0, 7]):
            journal.append(event)
        state = journal.state
    with Journal(tmp_path) as again:
        assert again.state == state == read_state(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / MIRROR).read_text().splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, state.events + 1))


@pytest.mark.parametrize("damage", ["", '{"seq": 3, "el', "drop"])
def test_the_mirror_is_repaired_from_the_table(tmp_path: Path, damage: str) -> None:
    with Journal(tmp_path) as journal:
        for event in story([1, 2]):
            journal.append(event)
    mirror = tmp_path / MIRROR
    whole = mirror.read_text()
    lines = whole.splitlines(keepends=True)
    mirror.write_text("".join(lines[:-2]) if damage == "drop" else "".join(lines[:2]) + damage)
    Journal(tmp_path).close()
    assert mirror.read_text() == whole


EDITS = (
    "UPDATE events SET body = replace(body, '\"p\"', '\"q\"') WHERE seq = 1",
    "DELETE FROM events WHERE seq = 2",
    "UPDATE events SET elapsed = 0.5 WHERE seq = 3",
)


@pytest.mark.parametrize("statement", EDITS)
def test_an_edited_journal_is_refused(tmp_path: Path, statement: str) -> None:
    with Journal(tmp_path) as journal:
        for event in story([1, 1]):
            journal.append(event)
    with sqlite3.connect(tmp_path / DATABASE) as database:
        database.execute(statement)
    for opened in (Journal, read_state):
        with pytest.raises(AmkError, match="AMK704"):
            opened(tmp_path)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(AmkError, match="AMK705"):
        Journal(tmp_path)
    Journal(tmp_path).close()


def test_work_time_adds_up_over_sessions_and_never_runs_back(tmp_path: Path) -> None:
    now = [100.0]
    with Journal(tmp_path, lambda: now[0]) as journal:
        now[0] = 130.0
        journal.append(proposed(0))
    now[0] = 5.0
    with Journal(tmp_path, lambda: now[0]) as journal:
        assert journal.elapsed == 30.0
        now[0] = 3.0
        assert journal.elapsed == 30.0
        now[0] = 15.0
        assert journal.elapsed == 40.0


def test_a_full_disk_stops_with_the_reason_and_keeps_what_was_written(tmp_path: Path) -> None:
    script = f"""
import resource, signal, sys
from pathlib import Path
from amk.agent.events import Proposed
from amk.agent.journal import Journal
from amk.report.diagnostic import AmkError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = Journal(Path({str(tmp_path)!r}))
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
for i in range(1000):
    try:
        journal.append(Proposed(index=i, proposer="p", settings={{"a": "x" * 2000}}))
    except AmkError as error:
        print(error.diagnostics[0].code, i)
        sys.exit(error.exit_code)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": ":".join(sys.path)})  # fmt: skip
    assert done.returncode == 2, done.stderr
    code, count = done.stdout.split()
    assert code == "AMK702" and int(count) > 5
    assert len(read_state(tmp_path).trials) in (int(count), int(count) + 1)
    Journal(tmp_path).close()


def test_an_unwritable_place_is_one_diagnostic(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AmkError, match="AMK702"):
        Journal(tmp_path / "file" / "run")


def test_limits_are_not_negative() -> None:
    assert resource.RLIMIT_FSIZE >= 0
    with pytest.raises(ValueError):
        Limits(dollars=-1.0)
