"""Constants that were learned from a card elsewhere: a search uses them wherever it simulates, and keeps them."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from amk import cli
from amk.agent.decide.headroom import foretold, known_error_of
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.candidate import Candidate, Workshop, workshop_of
from amk.agent.gate.gate import Gate, not_compiled, simulated
from amk.agent.journal.events import Limits
from amk.agent.journal.inbox import INBOX, Inbox
from amk.agent.journal.state import START, State
from amk.agent.journal.store import read_state
from amk.agent.propose import beam, structure
from amk.agent.run import reports, session
from amk.agent.run.runs import Plan
from amk.agent.tools.desk import Desk
from amk.agent.tools.trial import DesignRequest, looked_at
from amk.bench.table.measurement import Measurement, measurement
from amk.bench.table.row import Row
from amk.bench.tools.times import Times
from amk.commands import learned
from amk.commands.bench_share import share
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.settings import FAST, NAIVE
from amk.simulator.calibrate import Fit, Run, fit
from amk.simulator.constants import FILE_BYTES, Constants, constants_for, load_constants, save_constants
from amk.simulator.predict import Simulator, step_ms
from amk.targets.target import Target, load_target
from tests.agent.conftest import CONTEXT, looped
from tests.agent.rules import fences_kept
from tests.agent.test_together import POINTS, QUIET, Adding, Then

L4 = load_target("l4")
SLOWER = 6.0
"""What a hand-off takes on the card, over what the simulator thinks."""
SEARCH = [
    "autoresearch", "--model", "smollm2-135m", "--gpu", "l4", "--start", "naive", "--max-context", "1024",
]  # fmt: skip
PROVENANCE = {"commit": "0123", "date": "2026-01-01", "amk": "0.1.0", "hardware": {"name": "NVIDIA L4", "uuid": "GPU"}}


def slower(factor: float = SLOWER) -> Constants:
    known = constants_for(L4)
    return known.model_copy(update={"hop_us": known.hop_us * factor, "l2_us": known.l2_us * factor})


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs lie. No GPU is here, the gate is quick, the simulator is asked about few plans."""
    monkeypatch.setenv("AMK_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(session, "gate_of", lambda workshop, jobs, runs: Gate(workshop, fences_kept, not_compiled))
    monkeypatch.setattr(session, "local_gpus", list)
    monkeypatch.setattr(beam, "EXPANSIONS", 3)
    monkeypatch.setattr(structure, "CLIMBS", 3)
    return tmp_path / "runs"


@pytest.fixture
def constants_file(tmp_path: Path) -> Path:
    path = tmp_path / "given.json"
    save_constants(slower(), path)
    return path


def newest(runs: Path) -> Path:
    return max(runs.iterdir(), key=lambda folder: folder.stat().st_mtime_ns)


def times(state: State, constants: Constants | None, index: int = START) -> tuple[float, ...]:
    """Simulated ms of the start, or of a trial."""
    assert state.run is not None
    candidate = reports.candidate_of(state, index)
    assert isinstance(candidate, Candidate)
    return Simulator(constants).steps_ms(candidate.schedule, state.run.positions)


def measured(case: Measurement) -> Row:
    ms = step_ms(case.schedule, case.key.pos, slower())
    return Row(
        key=case.key, times=Times(ms, ms, ms), baselines={}, bytes=1, ceiling_gbps=250.0, error=0.0, torch_error=0.0,
        kl=0.0, argmax_agrees=True, reproducible=True, correct=True,
    )  # fmt: skip


def fit_two(runs: Sequence[Run], start: Constants, progress: Callable[[str], None]) -> Fit:
    return fit(runs, start, ("hop_us", "l2_us"), progress, spread=3.0)  # all of them take half a minute


@pytest.mark.turns(12)
def test_from_a_card_elsewhere_to_a_search_without_one(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `amk bench --share` wrote teaches constants, by which a search is timed, told of, and gone on with."""
    model, sent, file = load_model("smollm2-135m"), tmp_path / "l4.json", tmp_path / "l4-constants.json"
    cases = [measurement(plan(model, L4, settings=settings, max_context=2048), 1500) for settings in (FAST, NAIVE)]
    share(Namespace(share=sent, sign=None), cases, [measured(case) for case in cases], PROVENANCE)
    monkeypatch.setattr(learned, "fit_few", fit_two)
    assert cli.main(["calibrate", "--gpu", "l4", "--learn", str(sent), "-o", str(file)]) == 0
    constants = load_constants(file)
    assert constants.origin.startswith("2 measurements of l4.json; mean error ")
    capsys.readouterr()
    assert cli.main([*SEARCH, "--proposer", "local", "--evals", "2", "--constants", str(file)]) == 0
    printed, folder = capsys.readouterr(), newest(runs)
    state = read_state(folder)
    assert state.run is not None and state.run.constants == constants
    assert constants.origin in printed.err and constants.origin in known_error_of(state.run)
    assert any(constants.origin in line for line in foretold(state)) and "error of such predictions: " in printed.out
    expected, own = times(state, constants), times(state, None)
    assert all(a > 1.05 * b for a, b in zip(expected, own, strict=True))
    assert state.calibrations[0].incumbent_ms == pytest.approx(expected, rel=0.03)
    assert constants.origin in (folder / reports.REPORT).read_text()

    file.unlink()  # the run has what was in it
    assert cli.main([*SEARCH, "--resume", folder.name, "--evals", "3"]) == 0
    state = read_state(folder)
    assert state.evals == 3 and state.session is not None and state.session.session == 2
    pilot = state.trials[2].measured["pilot"]
    assert pilot.candidate_ms == pytest.approx(times(state, constants, 2), rel=0.02)
    assert pilot.candidate_ms != pytest.approx(times(state, None, 2), rel=0.04)


@pytest.mark.turns(12)
def test_a_run_keeps_its_constants(
    runs: Path, constants_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others are refused before anything is written; on the card the run that goes on has them too."""
    first = [*SEARCH, "--proposer", "random", "--evals", "1"]
    assert cli.main([*first, "--constants", str(constants_file)]) == 0
    folder = newest(runs)
    assert cli.main(first) == 0
    plain = newest(runs)
    assert plain != folder
    before = [read_state(each).events for each in (folder, plain)]
    other = constants_file.with_name("other.json")
    save_constants(slower(2.0), other)
    capsys.readouterr()
    for run, file, words in (
        (folder, other, "constants that were given"),
        (plain, constants_file, "constants of the target"),
    ):
        assert cli.main([*SEARCH, "--resume", run.name, "--evals", "2", "--constants", str(file)]) == 2
        message = capsys.readouterr().err
        assert "error[AMK701]" in message and words in message and file.name in message
    assert [read_state(each).events for each in (folder, plain)] == before
    assert cli.main([*SEARCH, "--resume", folder.name, "--evals", "2", "--constants", str(constants_file)]) == 0

    def cards(target: Target, seed: int, *_: object) -> tuple[SimulatedBackend, ...]:
        return (SimulatedBackend(target.name, seed, simulated=False),)

    monkeypatch.setattr(session, "is_here", lambda target: True)
    monkeypatch.setattr(session, "backends_for", cards)
    assert cli.main([*SEARCH, "--resume", folder.name]) == 0
    run = read_state(newest(runs)).run
    assert run is not None and not run.simulated and run.constants == slower()


def wrong_target(file: Path) -> None:
    save_constants(constants_for(load_target("h200")), file)


def no_constants(file: Path) -> None:
    file.write_text('{"target": "l4", "hop_us": 1.0}')


def no_json(file: Path) -> None:
    file.write_text("hop_us = 1")


def long(file: Path) -> None:
    save_constants(slower().model_copy(update={"sources": {"all": "x" * FILE_BYTES}}), file)


@pytest.mark.parametrize(
    "make",
    [wrong_target, no_constants, no_json, long, Path.mkdir, lambda file: None],
    ids=["another target", "no constants", "no json", "too long", "a folder", "no file"],
)
@pytest.mark.parametrize(
    "words",
    [
        [*SEARCH, "--evals", "1"],
        ["plan", "--model", "smollm2-135m", "--gpu", "l4", "--search", "--expansions", "1"],
    ],
    ids=["autoresearch", "plan"],
)
def test_what_are_no_constants_of_the_target_is_refused_before_a_run(
    make: Callable[[Path], None], words: list[str], runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wrong.json"
    make(file)
    assert cli.main([*words, "--constants", str(file)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error[AMK0") and "wrong.json" in message and not runs.exists()


@pytest.fixture
def given_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may look up the constants of a target."""

    def never(target: Target) -> NoReturn:
        raise AssertionError("a part of the search uses the constants of the target")

    monkeypatch.setattr("amk.simulator.predict.constants_for", never)
    monkeypatch.setattr("amk.planner.search.constants_for", never)


@pytest.mark.turns(12)
@pytest.mark.parametrize(("proposer", "evals"), [("beam", 2), ("structure", 4), ("portfolio", 5)])
def test_no_part_of_a_search_asks_with_other_constants(
    proposer: str, evals: int, runs: Path, constants_file: Path, given_alone: None
) -> None:
    """Proposers, device, report, tools, and what is noted beside a measurement."""
    options = ["--proposer", proposer, "--evals", str(evals), "--constants", str(constants_file)]
    assert cli.main([*SEARCH, *options]) == 0
    folder = newest(runs)
    state = read_state(folder)
    assert state.run is not None and state.evals == evals
    assert proposer == "portfolio" or {t.proposed.proposer for t in state.trials} == {proposer}
    start, model = reports.candidate_of(state, START), workshop_of(state.run).simulator
    assert start is not None
    point = state.run.settings
    looked = partial(looked_at, workshop=workshop_of(state.run))
    found = looked(DesignRequest(run=state.run, settings=point, edits=(), compile=False))
    assert found.simulated_ms == pytest.approx(times(state, slower()), rel=1e-4)
    foretold = simulated(model, start.schedule)
    assert foretold is not None and foretold.ms == step_ms(start.schedule, 128, slower())
    desk = Desk("llm", Inbox(folder / INBOX), lambda: state, look=looked)
    assert slower().origin in desk.read_times(-1) and "group 0 of " in desk.read_timeline(-1)
    assert desk.try_design({}, [], -1).simulated_gain == pytest.approx(0.0, abs=1e-4)


def test_near_misses_are_joined_by_the_constants_of_the_run(tmp_path: Path, given_alone: None) -> None:
    constants = slower().model_copy(update={"target": "h200"})
    workshop = Workshop(load_model("smollm2-135m"), load_target("h200"), CONTEXT, simulator=Simulator(constants))
    loop = looped(workshop, tmp_path, Then(), Adding("h200", noise=QUIET), evals=5)
    loop.run()
    assert len(loop.state.trials) >= len(POINTS), "and then what is faster by the simulator is asked for"


def test_a_judging_process_has_the_constants_of_the_run(constants_file: Path) -> None:
    constants = load_constants(constants_file)
    workshop = workshop_of(
        Plan("smollm2-135m", "l4", 512, "fast", 0, "random", None, Limits(evals=1), constants=constants)
    )
    kind, parts = workshop.__reduce__()
    assert kind(*parts).simulator.constants == slower()
