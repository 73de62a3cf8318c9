"""The journal: durable, exclusive, tamper-evident; the state is a fold of it."""

import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from amk.agent.journal.copies import DAMAGED, DATABASE, MIRROR, SHM, WAL, read_mirror, read_table
from amk.agent.journal.events import (
    EVENT,
    AnyEvent,
    Decided,
    Finished,
    Gated,
    LeaseReserved,
    Limits,
    LlmReserved,
    LlmSettled,
    Measured,
    Proposed,
)
from amk.agent.journal.state import State, fold
from amk.agent.journal.store import CHECKPOINT, Journal, read_state
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
        events.append(LeaseReserved(index=i, phase="pilot", attempt=1, device="d", seconds=1.0))
        events.append(
            Measured(
                index=i,
                phase="pilot",
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


@pytest.mark.turns(4)
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
    assert mirror.read_text().startswith(whole)


EDITS = (
    "UPDATE events SET body = replace(body, '\"p\"', '\"q\"') WHERE seq = 1",
    "INSERT INTO events SELECT 99, wall, elapsed, body, chain FROM events WHERE seq = 5",
    "UPDATE events SET elapsed = elapsed + 0.5 WHERE seq = 3",
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


def written(folder: Path, choices: list[int]) -> State:
    """A run whose driver was killed: nothing was closed."""
    if (pid := os.fork()) == 0:
        journal = Journal(folder)
        for event in story(choices):
            journal.append(event)
        os._exit(0)
    os.waitpid(pid, 0)
    return read_state(folder)


def shorten(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def within_a_line(path: Path, size: int) -> None:
    """Cut at about `size` bytes, ten after the start of a line: where lines end depends on the times in them."""
    shorten(path, path.read_bytes().index(b"\n", size) + 11)


def drop_log(folder: Path) -> None:
    for name in (WAL, SHM):
        (folder / name).unlink()


def drop_rows(folder: Path, which: str = "> 20") -> None:
    with closing(sqlite3.connect(folder / DATABASE)) as database, database:
        database.execute(f"DELETE FROM events WHERE seq {which}")


LOSSES: dict[str, Callable[[Path], object]] = {
    "no log": drop_log,
    "empty table": lambda folder: shorten(folder / DATABASE, 0),
    "no table": lambda folder: (folder / DATABASE).unlink(),
    "no table, no log": lambda folder: (drop_log(folder), (folder / DATABASE).unlink()),
    "half a table": lambda folder: (drop_log(folder), shorten(folder / DATABASE, 20_000)),
    "a table of another kind": lambda folder: (drop_log(folder), (folder / DATABASE).write_bytes(b"x" * 9000)),
    "a page of zeros": lambda folder: zeros(folder / DATABASE, 8192, 4096),
    "last rows deleted": drop_rows,
    "a row deleted": lambda folder: drop_rows(folder, "= 2"),
    "no mirror": lambda folder: (folder / MIRROR).unlink(),
    "empty mirror": lambda folder: shorten(folder / MIRROR, 0),
    "cut mirror": lambda folder: within_a_line(folder / MIRROR, 5000),
    "a row deleted, and a mirror that was one event behind": lambda folder: (drop_rows(folder, "= 2"), behind(folder)),
    "a row deleted, and a mirror that was within an event": lambda folder: (
        drop_rows(folder, "= 2"),
        behind(folder, 9),
    ),
    "an edited mirror": lambda folder: replace(folder / MIRROR, b'"p"', b'"q"'),
}


def behind(folder: Path, torn: int = 0) -> None:
    """The driver was killed between the two copies: the mirror has not the last event, or `torn` bytes of it."""
    *lines, last, _ = (folder / MIRROR).read_bytes().split(b"\n")
    (folder / MIRROR).write_bytes(b"\n".join([*lines, last[:torn]]))


def zeros(path: Path, at: int, count: int) -> None:
    drop_log(path.parent)
    data = path.read_bytes()
    path.write_bytes(data[:at] + bytes(count) + data[at + count :])


def replace(path: Path, old: bytes, new: bytes) -> None:
    path.write_bytes(path.read_bytes().replace(old, new))


@pytest.mark.turns(4)
@pytest.mark.parametrize("loss", LOSSES)
def test_what_one_copy_lost_is_read_back_from_the_other(tmp_path: Path, loss: str) -> None:
    """After a kill; and nothing that was there is gone: what was replaced lies beside, byte for byte."""
    before = written(tmp_path, [1, 2, 7] * 9)
    LOSSES[loss](tmp_path)
    left = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.name in (DATABASE, MIRROR)}
    assert read_state(tmp_path).trials == before.trials
    with Journal(tmp_path) as journal:
        assert journal.state.trials == before.trials and journal.state.events in (before.events, before.events + 1)
        assert journal.state.repairs == (["; ".join(journal.repairs)] if journal.repairs else [])
        repaired = bool(journal.repairs)
    kept = [p.read_bytes() for p in (tmp_path / DAMAGED).rglob("*") if p.is_file()]
    for name, data in left.items():
        now = (tmp_path / name).read_bytes()
        whole = now.startswith(data) if name == MIRROR else not repaired or "mirror" in loss
        assert whole or data in kept or not data, name
    with Journal(tmp_path) as journal:
        assert journal.repairs == [] and journal.state.trials == before.trials
    assert read_table(tmp_path).rows == read_mirror(tmp_path).rows


def both(*damages: str) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        for damage in damages:
            LOSSES[damage](folder)

    return work


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (both("half a table", "cut mirror"), "the mirror within event"),
        (both("no table", "no mirror"), "the table is gone"),
        (both("last rows deleted", "an edited mirror"), "the mirror has 180 lines"),
        (lambda folder: other_end(folder), "differ from event 21 on"),
        (lambda folder: (drop_rows(folder, "= 150"), within_a_line(folder / MIRROR, 5000)), "event 150 is missing"),
        (lambda folder: (drop_rows(folder, "IN (2, 179)"), behind(folder), behind(folder)), "event 2 is missing"),
    ],
)
def test_what_cannot_be_told_is_refused_and_left_as_it_is(
    tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    written(tmp_path, [1, 2, 7] * 9)
    damage(tmp_path)
    left = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(AmkError, match="AMK704") as caught:
        Journal(tmp_path)
    assert words in str([(d.message, d.facts) for d in caught.value.diagnostics])
    now = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert all(now.get(name, b"") == left.get(name, b"") for name in (DATABASE, WAL, MIRROR)) and DAMAGED not in now


def other_end(folder: Path) -> None:
    """Two stories after event 20, each with a valid chain: a copy of the table went its own way."""
    drop_rows(folder)
    mirror = (folder / MIRROR).read_bytes()
    (folder / MIRROR).unlink()
    with Journal(folder) as journal:
        journal.append(Finished(reason="another end"))
    (folder / MIRROR).write_bytes(mirror)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    written(folder, [1, 2, 7] * 9)
    return folder


@pytest.mark.turns(4)
@given(st.sampled_from([MIRROR, DATABASE, WAL]), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_any_cut_of_one_copy_loses_nothing(killed: Path, name: str, share: float) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(shutil.copytree(killed, Path(place) / "run"))
        shorten(folder / name, int(share * (folder / name).stat().st_size))
        with Journal(folder) as journal:
            assert len(journal.state.trials) == 27
        assert read_table(folder).rows == read_mirror(folder).rows


def test_little_depends_on_the_log(tmp_path: Path) -> None:
    """Without log and mirror at most CHECKPOINT events are gone, and a closed journal needs neither."""
    count = written(tmp_path, [1, 2, 7] * 30).events
    drop_log(tmp_path)
    assert count - len(read_table(tmp_path).rows) <= CHECKPOINT
    Journal(tmp_path).close()
    assert not (tmp_path / WAL).exists() or not (tmp_path / WAL).stat().st_size


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
from amk.agent.journal.events import Proposed
from amk.agent.journal.store import Journal
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


@pytest.mark.parametrize(("word", "phase"), [("screen", "pilot"), ("race", "paired test"), ("confirm", "confirm")])
def test_phases_are_read_by_every_word_that_journals_have_for_them(word: str, phase: str) -> None:
    event = {"kind": "faulted", "index": 0, "phase": word, "attempt": 1, "seconds": 0.1, "fault": "", "device": "0"}
    assert EVENT.validate_python(event).model_dump()["phase"] == phase  # type: ignore[union-attr]
    with pytest.raises(ValidationError):
        EVENT.validate_python(event | {"phase": "sprint"})
