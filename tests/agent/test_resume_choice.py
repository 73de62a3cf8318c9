"""Which run `--resume` takes where none is named: runs of all kinds, in every order."""

from __future__ import annotations

import argparse
import tempfile
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from amk.agent.device.simulated import SimulatedBackend
from amk.agent.journal.events import Finished, Limits, RunStarted
from amk.agent.journal.store import Journal
from amk.agent.run import session
from amk.commands import autoresearch, autoresearch_resume
from amk.report.diagnostic import AmkError
from tests.agent.conftest import start_run

KINDS = {"m-": (False, False), "m+": (False, True), "s-": (True, False), "s+": (True, True)}
"""(simulated, finished)."""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AMK_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def asked(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    autoresearch.add_arguments(parser)
    return parser.parse_args(["--model", "smollm2-135m", "--gpu", "h200", "--resume", *words])


@cache
def started() -> dict[str, Any]:
    """What the first event of a run says."""
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder)) as journal:
        start_run(journal, SimulatedBackend("h200", 1), Limits(evals=3))
        assert journal.state.run is not None
        return journal.state.run.model_dump() | {"start": "fast", "context": 8192}


def begin(folder: Path, kind: str, **changes: Any) -> None:
    simulated, finished = KINDS[kind]
    with Journal(folder) as journal:
        journal.append(RunStarted(**started() | {"simulated": simulated} | changes))
        if finished:
            journal.append(Finished(reason="3 evaluations are used up"))


def taken(options: argparse.Namespace, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    folder = autoresearch_resume.chosen(options)
    assert folder is not None
    return folder.name.partition("-")[2], capsys.readouterr().err


@pytest.mark.parametrize("here", [True, False], ids=["with the card", "without"])
def test_an_unfinished_run_of_the_kind_that_goes_on_here_else_the_newest(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], here: bool
) -> None:
    """The card is there: measured runs go on, and a simulated one, whose candidates are then measured, is taken only
    where it is the newest. Without it simulated runs go on, and a measured one is taken where there is no other."""
    monkeypatch.setattr(session, "is_here", lambda target: here)
    mine = "m" if here else "s"
    for count in (1, 2, 3, 4):
        for number, order in enumerate(permutations(KINDS, count)):
            place = runs / f"{count} {number}"
            monkeypatch.setenv("AMK_RUNS", str(place))
            for age, kind in enumerate(order):  # the newest last
                begin(place / f"{age}-{kind}", kind)
            newest = order[::-1]
            expected = f"{mine}-" if f"{mine}-" in order else newest[0]
            if not here and f"{mine}-" not in order:
                expected = next((kind for kind in newest if kind[0] == mine), newest[0])
            name, said = taken(asked(), capsys)
            assert name == expected, order
            assert f"takes {order.index(expected)}-{expected}, " in said and ("only one" in said) == (count == 1)
            assert ("measured, " if expected[0] == "m" else "simulated, ") in said
            assert ("interrupted" if expected[1] == "-" else "finished") in said
            assert (f"unfinished and {'measured' if mine == 'm' else 'simulated'}" in said) == (count > 1)


def test_a_run_of_something_else_is_passed_over_and_one_that_is_open_comes_last(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "is_here", lambda target: True)
    begin(runs / "1-right", "m+", dtype="int8", seed=4)
    begin(runs / "2-other dtype", "m-")
    begin(runs / "3-open", "m-", dtype="int8")
    begin(runs / "4-other seed", "m-", seed=5, dtype="int8")
    begin(runs / "0-other head", "m+", dtype="int8", lm_head_dtype="bf16")
    with Journal(runs / "3-open"):
        assert taken(asked("--dtype", "int8", "--seed", "4"), capsys)[0] == "right"
        assert taken(asked("--dtype", "int8"), capsys)[0] == "other seed", "a seed that is not given asks for nothing"
        assert taken(asked(), capsys)[0] == "other seed"
        assert taken(asked("--lm-head-dtype", "bf16"), capsys)[0] == "other head"
    assert taken(asked("--seed", "5"), capsys)[0] == "other seed"
    assert taken(asked("--dtype", "fp8"), capsys) == ("other seed", ""), "how it differs is said where it is opened"
    with pytest.raises(AmkError, match="AMK701"):
        autoresearch_resume.chosen(asked("--gpu", "l4"))
