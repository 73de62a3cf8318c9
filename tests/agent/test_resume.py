"""`kill -9` at random moments, then resume: nothing acknowledged is lost, nothing is done twice."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from amk.agent.journal.copies import MIRROR
from amk.agent.journal.state import State
from amk.agent.journal.store import read_state
from tests.agent import hazards, kills, search_program
from tests.cases import cases

EVALS = 10
KILLS = cases(3, 6)


def start(folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    return subprocess.Popen([sys.executable, search_program.__file__, str(folder), str(EVALS)], env=environment)


def lines(folder: Path) -> int:
    with contextlib.suppress(OSError):
        return (folder / MIRROR).read_bytes().count(b"\n")
    return 0


def fates(state: State) -> list[tuple[object, ...]]:
    return [
        (
            t.proposed.proposer,
            tuple(t.proposed.settings.items()),
            t.gated and t.gated.verdict,
            t.decided and t.decided.reason,
        )
        for t in state.trials
    ]


@pytest.mark.turns(16)
def test_killed_at_random_moments_the_run_ends_with_all_evaluations_and_loses_nothing(tmp_path: Path) -> None:
    rng = random.Random(11)
    folder, survived = tmp_path / "killed", []
    for _ in range(KILLS):
        process, before = start(folder), lines(folder)
        target = before + rng.randint(1, 18)
        while process.poll() is None and lines(folder) < target:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.004)
        process.send_signal(signal.SIGKILL)
        process.wait()
        survived.append(read_state(folder))
    assert start(folder).wait() == 0
    final = read_state(folder)
    search_program.main(tmp_path / "whole", EVALS)
    whole = read_state(tmp_path / "whole")
    # The noise of the card is measured once, so that what a gain must reach is the same in every session.
    assert final.evals == whole.evals == EVALS and fates(final) == fates(whole)
    assert {c.mad for c in final.calibrations} == {c.mad for c in whole.calibrations}
    for state in survived:  # what one process had written, every later one has
        known = fates(state)
        assert all(fates(final)[t.index] == known[t.index] for t in state.trials if t.closed)
        assert state.events <= final.events
    assert not final.leases and final.finished is not None
    measured = [(t.index, phase) for t in final.trials for phase in t.measured]
    assert len(measured) == len(set(measured))
    keys = [t.key for t in final.trials if t.evaluated]
    assert len(keys) == len(set(keys))


@pytest.mark.turns(16)
def test_driver_supervisor_and_worker_are_killed_and_nothing_is_lost() -> None:
    """The short form of `python -m tests.agent.kills`."""
    each, evals = cases(1, 2), cases(5, 8)
    found = kills.campaign(each, 3, evals=evals)
    assert found["differences"] == [] and found["kills"] == {"driver": each, "supervisor": each, "worker": each}
    assert found["evaluations"] >= evals and sum(found["last event at a kill"].values()) >= 3 * each


@pytest.mark.turns(16)
def test_a_search_stands_the_hazards_of_a_night() -> None:
    """The short form of `python -m tests.agent.hazards`, which has to fork before it has threads."""
    program = "import json; from tests.agent import hazards; print(json.dumps(hazards.campaign(19, 2)))"
    words = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["differences"] == [] and sum(found["hazards"].values()) == 2


def test_slices_of_hazards_have_all_shares() -> None:
    drawn = [hazards.orders(number, hazards.HAZARDS) for number in range(2 * hazards.SLICES)]
    for ten in (drawn[: hazards.SLICES], drawn[hazards.SLICES :]):
        assert Counter(kind for each in ten for kind in each) == hazards.SHARES


def test_a_finished_run_resumes_to_nothing(tmp_path: Path) -> None:
    search_program.main(tmp_path, 3)
    before = read_state(tmp_path)
    search_program.main(tmp_path, 3)
    after = read_state(tmp_path)
    assert after.evals == before.evals and len(after.trials) == len(before.trials)
