"""What a simulated search can bring: said before, it stops where it cannot rank, and a card measures its list first."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk import cli
from amk.agent.decide import headroom
from amk.agent.decide.headroom import CANDIDATES, candidates, expected, foretold
from amk.agent.decide.keep import paired_test
from amk.agent.device.measure import Job
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.gate import Gate, not_compiled
from amk.agent.journal.events import Noted
from amk.agent.journal.store import Journal, read_state
from amk.agent.propose import transfer
from amk.agent.propose.local import Local
from amk.agent.propose.transfer import Lesson, Lessons
from amk.agent.report import results
from amk.agent.run import session
from amk.commands.measured_runs import measured_runs
from amk.simulator.agreement import agreement
from amk.simulator.predict import step_ms
from amk.targets.target import Target
from tests.agent.conftest import MakeLoop
from tests.agent.rules import fences_kept

MEASURED = Path(__file__).parents[1] / "simulator" / "measurements"
SEARCH = [
    "autoresearch", "--model", "smollm2-135m", "--gpu", "h200", "--start", "naive", "--max-context", "1024",
    "--proposer", "local", "--no-prior",
]  # fmt: skip


def test_expected_value_is_the_mean_of_the_gains_that_one_would_keep() -> None:
    draws = np.random.default_rng(0).standard_normal(400_000) * headroom.ERROR
    for gain in (-0.1, -0.01, 0.0, 0.02, 0.2):
        assert expected(gain) == pytest.approx(np.maximum(draws + gain, 0).mean(), abs=2e-4)


def test_the_error_is_that_of_todays_constants() -> None:
    """Of the set of which it is largest: constants that are fitted again change it."""
    found = measured_runs([str(MEASURED / "h200-kernels4-qwen2.5-1.5b.json")])
    of_set = agreement([(run.name, run.ms, step_ms(run.schedule, run.pos)) for run in found])
    assert round(of_set.median_error, 3) == headroom.ERROR > headroom.LEAST_ERROR


@pytest.mark.parametrize(
    ("change", "error_words", "helps"),
    [
        ({"target": "l4"}, "no plan was ever measured on l4", "(--dtype int8, int4-g128)"),
        ({"target": "h100"}, "of this kind (bf16, one sequence) on h100: median error ", "(--dtype int8, int4-g128)"),
        ({"batch": 32}, "no plan of this kind (bf16, a batch of more than 16) was ever", "(--dtype int8, int4-g128)"),
        ({"dtype": "fp8"}, "of this kind (codes, one sequence) on h200: median error ", "(--dtype int4-g128)"),
        ({"dtype": "int4-g128"}, "of this kind (codes, one sequence) on h200", "`amk calibrate --learn` here)"),
    ],
)  # fmt: skip
def test_what_is_known_and_what_helps_is_of_the_run(
    make_loop: MakeLoop, change: dict[str, Any], error_words: str, helps: str
) -> None:
    loop = make_loop(Local(), evals=1)
    loop.run()
    run, ms = loop.state.run, loop.state.calibrations[-1].incumbent_ms
    assert run is not None
    loop.state.run = run.model_copy(update={"floor_ms": tuple(0.99 * each for each in ms), **change})
    _, error, near = foretold(loop.state)
    assert f"; here: {error_words}" in error and near.endswith(helps)
    assert f"`amk bench --gpu {loop.state.run.target} --share`" in near


def test_the_error_is_that_of_every_position(make_loop: MakeLoop) -> None:
    loop = make_loop(Local(), evals=1)
    loop.run()
    run = loop.state.run
    assert run is not None
    short, long = (run.model_copy(update={"target": "h200", "positions": (pos,)}) for pos in (128, 16_384))
    both = run.model_copy(update={"target": "h200", "positions": (1, 128, 16_384)})
    assert "long context" not in headroom.known_error_of(short) and "long context" in headroom.known_error_of(long)
    assert headroom.known_error_of(both) == f"{headroom.known_error_of(short)}; {headroom.known_error_of(long)}"


@pytest.mark.turns(16)
@pytest.mark.parametrize(("share", "near"), [(0.99, True), (0.1, False)])
def test_a_simulated_search_near_the_floor_stops_with_candidates(make_loop: MakeLoop, share: float, near: bool) -> None:
    """The floor at `share` of the start's time."""
    loop = make_loop(Local(), evals=14)
    run = loop.state.run
    assert run is not None and isinstance(loop.backends[0], SimulatedBackend)
    times = loop.backends[0].times(Job(0, "pilot", 1, 0, 0, run.positions, 0), loop.incumbent())
    loop.state.run = run.model_copy(update={"floor_ms": tuple(share * ms for ms in times)})
    said: list[str] = []
    loop.watch = lambda state: said.extend(foretold(state) if not said else ())
    reason = loop.run()
    assert ("candidates are to be measured" in reason) == near and (loop.state.evals < 14) == near
    listed = candidates(loop.state)
    assert len(listed) >= CANDIDATES and [w.value for w in listed] == sorted((w.value for w in listed), reverse=True)
    (percent,) = re.findall(r"^headroom: ([\d.]+)% ", said[0])
    assert float(percent) == pytest.approx(100 * (1 - share), abs=0.2) and len(said) == 2 + near
    assert any(line.startswith("METRIC speed_of_light=") for line in results.metrics(loop.state))
    for device, calibrated in loop.state.calibrated.items():
        loop.state.calibrated[device] = calibrated.model_copy(update={"mad": 0.00342})
    ruling = paired_test([-0.008] * 24, loop.state.noise, 24, 0)
    assert "+1.03% that a keep needs" in ruling.reason and "a keep needs +1.03%" in foretold(loop.state)[0]


class Card(SimulatedBackend):
    """A card that measures."""

    simulated = False


@pytest.mark.turns(12)
def test_a_simulated_run_is_gone_on_with_on_the_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a run of its own with the same limits, which measures the list before it proposes; tables and lines beside."""
    monkeypatch.setenv("AMK_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(session, "gate_of", lambda workshop, jobs, runs: Gate(workshop, fences_kept, not_compiled))
    monkeypatch.setattr(session, "local_gpus", list)
    assert cli.main([*SEARCH, "--evals", "4", "--max-calls", "3"]) == 0
    printed = capsys.readouterr()
    (folder,) = (tmp_path / "runs").iterdir()
    lesson = Lesson(model="llama3-8b", gpu="h200", simulated=False, gain=0.02, knobs={"wide_epilogue": 32})
    transfer.keep(folder, Lessons(lessons=(lesson,)))
    (folder / "program.md").write_text("fewer registers")
    with Journal(folder) as journal:
        for author in ("llm", "mcp"):
            journal.append(Noted(author=author, text=f"learned by {author}", evals=4))
    listed = candidates(read_state(folder))
    assert "to measure: " in printed.out and "headroom: " in printed.err and "METRIC speedup=" in printed.out
    assert "METRIC simulated=1\n" in printed.out
    lines = (folder / results.FILE).read_text().splitlines()
    assert lines[0] + "\n" == results.HEADER and len(lines) == 2 + len(read_state(folder).trials)
    assert lines[1].split("\t")[0] == "start" and lines[1].split("\t")[3] == "keep"
    assert {line.split("\t")[3] for line in lines[1:]} <= {"keep", "discard", "crash", "checks_failed"}
    assert all(0 < float(line.split("\t")[1]) <= 1 for line in lines[1:] if line.split("\t")[1])

    def cards(target: Target, seed: int, *_: object) -> tuple[Card, ...]:
        return (Card(target.name, seed, simulated=False),)

    monkeypatch.setattr(session, "is_here", lambda target: True)
    monkeypatch.setattr(session, "backends_for", cards)
    assert cli.main([*SEARCH, "--resume", folder.name]) == 0
    (new,) = set((tmp_path / "runs").iterdir()) - {folder}
    state = read_state(new)
    assert state.run is not None and not state.run.simulated and state.limits == read_state(folder).limits
    first = [t for t in state.trials if t.proposed.proposer == "simulated"]
    assert [t.index for t in first] == list(range(len(listed))) and len(listed) >= 2
    assert [t.proposed.settings for t in first] == [w.trial.proposed.settings for w in listed]
    assert "simulated" in first[0].proposed.why and "to measure" not in capsys.readouterr().out
    assert transfer.lessons_of(new) == (lesson,) and (new / "program.md").read_text() == "fewer registers"
    assert [(n.author, n.text) for n in state.notes] == [(who, f"learned by {who}") for who in ("llm", "mcp")]
