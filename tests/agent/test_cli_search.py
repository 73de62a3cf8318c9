"""The commands of the search, end to end on the simulator."""

import json
import os
import re
import shutil
import signal
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from amk import cli
from amk.agent.device.devices import LocalGpu, local_gpus, matching, same_model, visible
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.candidate import Candidate
from amk.agent.gate.gate import Gate, not_compiled
from amk.agent.journal import store
from amk.agent.journal.copies import DATABASE, MIRROR
from amk.agent.journal.events import Limits
from amk.agent.journal.state import START, State
from amk.agent.journal.store import Journal, read_state
from amk.agent.propose import beam, structure
from amk.agent.propose.base import Proposer
from amk.agent.propose.talk import Cassette
from amk.agent.run import manifest, reports, runs, session
from amk.agent.run.device_queue import DeviceQueue
from amk.agent.run.loop import Loop
from amk.agent.run.session import LlmOptions
from amk.models.model import models_directory
from amk.planner.settings import STARTS
from amk.planner.space import Space
from amk.schedule_ir.codec import load_schedule
from amk.targets.target import load_target
from tests.agent.conftest import fences_kept
from tests.agent.llm_stub import message, uses
from tests.agent.searches import summed_up

ABLATIONS = Path(__file__).parents[1] / "records/speed/h200-ablations.json"
NEAR = 8
SEARCH = ["autoresearch", "--model", "smollm2-135m", "--gpu", "h200", "--start", "naive", "--max-context", "2048"]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs in a folder of the test, with a quick certifier, no compiler, a beam and climbs that simulate few plans, and
    few plans near every other."""
    near = Space.neighbours
    monkeypatch.setattr(Space, "neighbours", lambda self, settings: islice(near(self, settings), NEAR))
    monkeypatch.setenv("AMK_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(session, "gate_of", lambda workshop, jobs, runs: Gate(workshop, fences_kept, not_compiled))
    monkeypatch.setattr("amk.agent.run.export.installed", lambda: fences_kept)
    monkeypatch.setattr(session, "local_gpus", list)
    monkeypatch.setattr(beam, "EXPANSIONS", 4)
    monkeypatch.setattr(structure, "CLIMBS", 4)
    return tmp_path


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = cli.main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.turns(12)
def test_search_runs_report_export_resume(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By knobs, whose plans are SAFE whatever the quick certifier lets pass, because the export proves its best."""
    code, out, err = run([*SEARCH, "--evals", "8", "--proposer", "knobs"], capsys)
    assert (
        code == 0
        and out.startswith("simulated: ")
        and "error of such predictions: " in out
        and "simulated: ended: 8 evaluations are used up" in out
    )
    assert all("simulated" in line for line in err.splitlines()) and "each change of the best is taken out" in err
    _, out, _ = run(["runs", "--format", "json"], capsys)
    (row,) = json.loads(out)["runs"]
    assert row["state"] == "finished" and row["evaluations"] == 8 and row["back_end"] == "simulated h200"
    name = row["run"]
    assert run(["report", name[:16], "-o", str(data / "r.html")], capsys)[0] == 0
    assert "simulated" in (data / "r.html").read_text()
    code, out, _ = run(["report", name, "--text", "--bounds", str(ABLATIONS)], capsys)
    assert code == 0 and "above the floor" in out and "No row of " in out, "of this model none was ablated"
    assert re.search(r"^kind +at the best .* refused by +simulated +most gained$", out, re.MULTILINE)
    assert re.search(r"^place +changes .* open ", out, re.MULTILINE) and "not exhausted: " in out
    assert "AMK001" in run(["report", name, "--text", "--bounds", str(data / "no.json")], capsys)[2]
    best = data / "best.schedule.json"
    assert run(["export", name, "-o", str(best)], capsys)[0] == 0
    assert load_schedule(best)[0].plan == "search" and (data / "best.schedule.verdict.json").is_file()
    assert run(["check-certificate", str(best), str(data / "best.schedule.certificate.json")], capsys)[0] == 0
    code, out, _ = run([*SEARCH, "--resume"], capsys)
    assert code == 0 and "is finished" in out and "ended: 8 evaluations" in out
    code, _, err = run([*SEARCH, "--resume", name, "--evals", "10"], capsys)
    assert code == 0 and "goes on after 8 evaluations" in err
    assert not re.search(r"#[0-7] ", err) and "#8 " in err, "what was shown before is not shown again"
    (row,) = json.loads(run(["runs", "--format", "json"], capsys)[1])["runs"]
    assert row["evaluations"] == 10
    table = data / "lessons.json"
    assert run(["export", name, "--transfer", str(table)], capsys)[0] == 0
    lessons = json.loads(table.read_text())
    assert lessons["lessons"][0]["model"] == "smollm2-135m"
    lessons["lessons"][0]["knobs"] = {"wide_epilogue": 32}
    table.write_text(json.dumps(lessons))
    elsewhere = ["autoresearch", "--model", "smollm2-135m", "--gpu", "l4", "--start", "naive", "--max-context", "2048"]
    assert run([*elsewhere, "--evals", "3", "--transfer", str(table)], capsys)[0] == 0
    (row,) = [each for each in json.loads(run(["runs", "--format", "json"], capsys)[1])["runs"] if each["gpu"] == "l4"]
    assert "transfer" in [each["proposer"] for each in row["proposers"]], "two arms are tried before it"
    assert run([*elsewhere, "--resume", row["run"], "--transfer", str(table)], capsys)[0] == 2


@pytest.mark.turns(4)
def test_a_limit_that_is_not_given_stays_what_it_was(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What changed is said and written down; what was not asked for is neither lifted nor lowered."""
    code, _, err = run([*SEARCH, "--evals", "2", "--max-calls", "9", "--minutes", "60"], capsys)
    assert code == 0 and "no language model proposes (--proposer llm), so --max-calls is not used" in err
    (folder,) = (data / "runs").iterdir()
    for words, changed, limits in (
        (["--evals", "3"], ("evaluations: 2 -> 3",), Limits(evals=3, calls=9, minutes=60)),
        (
            ["--evals", "4", "--max-dollars", "6", "--max-tokens", "50", "--max-calls", "1"],
            ("evaluations: 3 -> 4", "dollars: 0 -> 6", "tokens: no limit -> 50", "calls: 9 -> 1"),
            Limits(evals=4, dollars=6, tokens=50, calls=1, minutes=60),
        ),
    ):
        code, _, err = run([*SEARCH, "--resume", folder.name, *words], capsys)
        session = read_state(folder).session
        assert code == 0 and session is not None and session.changed == changed and session.limits == limits
        assert all(line in err for line in changed)
    code, out, _ = run([*SEARCH, "--resume", folder.name, "--max-dollars", "7"], capsys)
    assert code == 0 and "is finished, and keeps its limits (dollars: 6 -> 7 " in out and "--evals 5 or more" in out
    assert read_state(folder).evals == 4 and read_state(folder).limits.dollars == 6
    (folder / DATABASE).write_bytes(b"")
    code, out, err = run([*SEARCH, "--resume", folder.name, "--minutes", "90"], capsys)
    assert code == 0 and "minutes: 60 -> 90" in out and "events were read back from journal.jsonl" in err
    code, _, err = run([*SEARCH, "--resume", folder.name, "--max-dollars", "-1"], capsys)
    assert code == 2 and "--max-dollars: " in err


@pytest.mark.turns(12)
def test_advice_outlasts_a_resume_from_elsewhere(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is not given again stays; what is given replaces it, and what is empty ends it."""
    programs: list[str] = []

    def proposer_for(name: str, journal: Journal, options: LlmOptions, *_: object) -> Proposer:
        programs.append(options.program)
        return session.offline("local")

    monkeypatch.setattr(session, "proposer_for", proposer_for)
    here, there = data / "here", data / "there"
    for folder in (here, there):
        folder.mkdir()
    (here / "program.md").write_text("fewer registers\n\x1b[2J")
    (there / "other.md").write_text("more of them")
    (there / "none.md").touch()
    model = ["--proposer", "llm", "--llm-model", "claude-haiku-4-5", "--max-dollars", "1"]
    monkeypatch.chdir(here)
    code, _, err = run([*SEARCH, *model, "--evals", "1"], capsys)
    assert code == 0 and "2 lines of advice" in err
    (folder,) = (data / "runs").iterdir()
    monkeypatch.chdir(there)
    for number, words in enumerate(((), ("--program", "other.md"), (), ("--program", "none.md"), ())):
        assert run([*SEARCH, "--resume", folder.name, "--evals", str(2 + number), *words], capsys)[0] == 0
    assert programs == ["fewer registers\n\\x1b[2J"] * 2 + ["more of them"] * 2 + [""] * 2


@pytest.mark.turns(12)
def test_a_run_that_is_resumed_stays_what_it_is(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is asked for beside a run must be what the run is of; what is left at its default asks for nothing."""
    assert run([*SEARCH, "--evals", "1", "--seed", "3"], capsys)[0] == 0
    (folder,) = (data / "runs").iterdir()
    before = (folder / MIRROR).read_bytes()
    resumed = ["autoresearch", "--resume", folder.name, "--evals", "2", "--gpu", "h200", "--model", "smollm2-135m"]
    for asked in (
        ("--model", "llama3-8b"), ("--gpu", "l4"), ("--start", "phased"), ("--proposer", "structure"), ("--seed", "4"),
        ("--batch", "2"), ("--dtype", "int8"), ("--max-context", "1024"), ("--no-prior",),
    ):  # fmt: skip
        code, _, err = run([*resumed, *asked], capsys)
        assert (
            code == 2 and "AMK701" in err and f"is of {asked[0]} " in err and (folder / MIRROR).read_bytes() == before
        )
    assert run(resumed, capsys)[0] == 0 and read_state(folder).evals == 2
    _, _, err = run(["export", folder.name, "-o", str(data / "best.schedule.json")], capsys)
    assert ("nothing was kept" in err) is (read_state(folder).best == START)


@pytest.mark.turns(12)
def test_a_run_of_a_file_is_found_again(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By any of the names that lead to the model, from wherever."""
    place = data / ("a" * 90)
    place.mkdir()
    shutil.copy(models_directory() / "smollm2-135m.json", place / "small.json")
    monkeypatch.chdir(place)
    words = ["autoresearch", "--gpu", "h200", "--start", "naive", "--max-context", "2048", "--model"]
    for _ in range(2):
        assert run([*words, "small.json", "--evals", "1"], capsys)[0] == 0
    assert len({each.name[-4:] for each in (data / "runs").iterdir()}) == 2, "a long path ends no name"
    monkeypatch.chdir(data)
    assert run([*words, f"{'a' * 90}/small.json", "--resume", "--evals", "2"], capsys)[0] == 0
    assert run([*words, "SmolLM2-135M", "--evals", "1"], capsys)[0] == 0
    assert run([*words, "smollm2-135m", "--resume", "--evals", "2"], capsys)[0] == 0


@pytest.mark.turns(4)
def test_a_run_of_which_nothing_is_left_is_not_begun_anew(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SEARCH, "--evals", "2"], capsys)[0] == 0
    (folder,) = (data / "runs").iterdir()
    for name in (DATABASE, MIRROR):
        (folder / name).write_bytes(b"")
    code, _, err = run([*SEARCH, "--resume", folder.name], capsys)
    assert code == 2 and "AMK704" in err and not (folder / MIRROR).read_bytes()


@pytest.mark.turns(12)
@pytest.mark.parametrize("place", [(Loop, "_take"), (session, "proposer_for"), (runs, "begin")])
def test_an_interrupted_search_leaves_a_report_and_says_how_to_go_on(
    place: tuple[Any, str], data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it was."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*place, interrupted)
        code, _, err = run([*SEARCH, "--evals", "2"], capsys)
    (line,) = [line for line in err.splitlines() if line.startswith("interrupted")]
    assert code == 130 and "Traceback" not in err
    (folder,) = (data / "runs").iterdir()
    assert "smollm2-135m" in (folder / reports.REPORT).read_text()
    code, out, _ = run(line.partition("amk ")[2].split(), capsys)
    assert code == 0 and "after 2 evaluations" in out


def test_an_interrupt_before_the_first_event_leaves_nothing(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the devices are opened, or before there is a journal."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for module in (session, runs):
        with monkeypatch.context() as patch:
            patch.setattr(module, "backends_for" if module is session else "create", interrupted)
            code, _, err = run([*SEARCH, "--evals", "2"], capsys)
        assert code == 130 and err.splitlines() == ["interrupted: nothing was begun"]
        assert not list((data / "runs").glob("*"))


def test_an_interrupt_when_all_is_over_does_not_say_that_nothing_was_begun(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("amk.commands.autoresearch._say_best", interrupted)
    code, _, err = run([*SEARCH, "--evals", "1"], capsys)
    assert code == 130 and "nothing was begun" not in err and list((data / "runs").glob("*/report.html"))


def test_a_signal_while_the_run_is_begun_waits_for_its_first_events(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze = manifest.freeze

    def told_to_end() -> dict[str, str]:
        os.kill(os.getpid(), signal.SIGTERM)
        return freeze()

    with monkeypatch.context() as patch:
        patch.setattr(manifest, "freeze", told_to_end)
        code, _, err = run([*SEARCH, "--evals", "2"], capsys)
    (folder,) = (data / "runs").iterdir()
    assert code == 128 + signal.SIGTERM and "go on with" in err and (folder / reports.REPORT).is_file()
    assert read_state(folder).session is not None


@dataclass
class Card(SimulatedBackend):
    """One of two cards of a machine."""

    number: int = 0

    @property
    def device(self) -> str:
        return f"card {self.number}"


@pytest.mark.turns(4)
def test_a_signal_while_the_journal_is_opened_is_answered_with_a_report(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run([*SEARCH, "--evals", "1"], capsys)[0] == 0
    (folder,) = (data / "runs").iterdir()
    (folder / reports.REPORT).unlink()
    opened, read = store.folded, store.read_state(folder)

    def told_to_end(*arguments: Any) -> State:
        os.kill(os.getpid(), signal.SIGTERM)
        return opened(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("amk.commands.autoresearch_resume.read_state", lambda folder: read)
        patch.setattr(store, "folded", told_to_end)
        assert run([*SEARCH, "--resume", folder.name, "--evals", "2"], capsys)[0] == 128 + signal.SIGTERM
    assert (folder / reports.REPORT).is_file() and read_state(folder).evals == 1


@pytest.mark.turns(12)
def test_a_search_in_slices_on_two_cards(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three slices, the second of which is cut short, each compared; the other card measures its noise first."""
    card, taken = 0, 0
    monkeypatch.setattr(session, "backends_for", lambda target, seed, *_: (Card(target.name, seed, number=card),))
    words = [*SEARCH, "--no-prior", "--compare", "fast"]
    assert run([*words, "--evals", "6"], capsys)[0] == 0
    plain = Loop._take

    def cut_short(self: Loop, queue: DeviceQueue) -> None:
        nonlocal taken
        taken += 1
        if taken > 3:
            raise KeyboardInterrupt
        plain(self, queue)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_take", cut_short)
        assert run([*words, "--resume", "--evals", "12"], capsys)[0] == 130
    card = 1
    assert run([*words, "--resume", "--evals", "18"], capsys)[0] == 0
    (folder,) = (data / "runs").iterdir()
    state, found = read_state(folder), summed_up(read_state(folder))
    assert state.evals == 18 and found["sessions"] == 3 and found["devices"] == ["card 0", "card 1"]
    assert [c.session for c in state.calibrations] == [1, 2, 3] and state.calibrations[0].at == state.calibrations[1].at
    assert state.calibrations[2].at > state.calibrations[0].at, "another card: its noise was measured"
    assert len(found["compared_before"]) == 1 and found["commands"][2].endswith("--resume --compare fast")
    assert found["live_model_calls"] == 0 and found["prior"] is False


@pytest.mark.turns(12)
def test_a_search_for_a_batch(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every plan, the one that it is compared with too, decodes as many sequences; a resumed run keeps their number. By
    knobs, as above."""
    words = [*SEARCH, "--batch", "2", "--compare", "fast", "--proposer", "knobs"]
    assert run([*words, "--evals", "2"], capsys)[0] == 0
    assert run([*SEARCH, "--compare", "fast", "--resume", "--evals", "4"], capsys)[0] == 0
    (folder,) = (data / "runs").iterdir()
    state = read_state(folder)
    assert state.run is not None and state.run.batch == 2 and state.evals == 4 and len(state.references) == 2
    candidate = reports.workshop_of(state).make(STARTS["fast"])
    assert isinstance(candidate, Candidate) and candidate.schedule.batch == 2
    assert " --batch 2 --start naive " in summed_up(state)["commands"][0]
    assert run(["export", folder.name, "-o", str(data / "best.json")], capsys)[0] == 0
    assert load_schedule(data / "best.json")[0].batch == 2
    assert run(["report", folder.name, "-o", str(data / "r.html")], capsys)[0] == 0
    assert "<td>sequences at a time</td><td>2</td>" in (data / "r.html").read_text()
    for words, said in (
        (["--batch", "4"], "is of --batch 2, not 4"),
        (["--dtype", "int8"], "is of --dtype bf16, not int8"),
    ):
        code, _, err = run([*SEARCH, *words, "--resume", "--evals", "6"], capsys)
        assert code == 2 and said in err and read_state(folder).evals == 4
    assert run([*SEARCH, "--batch", "65", "--evals", "2"], capsys)[0] == 2


@pytest.mark.turns(12)
def test_runs_are_replayed_from_another(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run([*SEARCH, "--evals", "4"], capsys)
    name = json.loads(run(["runs", "--format", "json"], capsys)[1])["runs"][0]["run"]
    run([*SEARCH, "--evals", "4", "--proposer", "replay", "--replay-run", name], capsys)
    rows = json.loads(run(["runs", "--format", "json"], capsys)[1])["runs"]
    assert len(rows) == 2 and rows[0]["best"] == rows[1]["best"]


@pytest.mark.turns(12)
def test_answers_of_another_run_are_replayed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a new run; the tools run again, and nobody is called. A refusal that was recorded delays no later answer."""
    pytest.importorskip("anthropic")
    llm = [*SEARCH, "--proposer", "llm", "--llm-model", "claude-haiku-4-5"]
    assert run([*SEARCH, "--evals", "1"], capsys)[0] == 0
    (folder,) = (data / "runs").iterdir()
    assert "no language model answered" in run([*llm, "--llm-replay", folder.name], capsys)[2]
    assert "names a RUN" in run([*llm, "--llm-replay"], capsys)[2]
    _, _, submitted, _ = uses(("submit_proposal", {"changes": {"wide_epilogue": 16}, "why": "w", "parent": -1}))
    tape = Cassette(folder / session.CASSETTE, replay=False)
    tape.record(1, 1, "-", message("", stop="refusal"))
    for turn, answer in enumerate((submitted, message("done")), 1):
        tape.record(2, turn, "-", answer)
    assert run([*llm, "--llm-replay", folder.name, "--evals", "4"], capsys)[0] == 0
    (new,) = set((data / "runs").iterdir()) - {folder}
    state = read_state(new)
    assert [asked.outcome for asked in state.conversations] == ["refusal", "answered"] and state.calls == 0
    assert [t.proposed.settings["wide_epilogue"] for t in state.trials if t.proposed.proposer == "llm"] == [16]
    code, _, err = run([*llm, "--resume", new.name, "--llm-replay", folder.name], capsys)
    assert code == 2 and "none in one that is resumed" in err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["report", "nope"], "AMK701"),
        (["export", "../../x", "-o", "x"], "AMK701"),
        ([*SEARCH, "--resume"], "AMK701"),
        ([*SEARCH, "--evals", "0"], "AMK005"),
        ([*SEARCH, "--minutes", "-1"], "AMK005"),
        ([*SEARCH, "--max-dollars", "nan"], "AMK005"),
        ([*SEARCH, "--batch", "99"], "AMK011"),
        ([*SEARCH, "--max-context", "1"], "AMK005"),
        ([*SEARCH, "--proposer", "llm"], "AMK706"),
        ([*SEARCH, "--proposer", "llm", "--llm-model", "mystery", "--max-dollars", "1"], "AMK706"),
        ([*SEARCH, "--llm-model", "claude-haiku-4-5", "--max-dollars", "1"], "AMK005"),
        ([*SEARCH, "--program", "README.md"], "AMK005"),
        ([*SEARCH, "--proposer", "replay"], "AMK005"),
        (["autoresearch", "--model", "nope", "--gpu", "h200"], "AMK010"),
    ],
)
def test_bad_input_is_one_diagnostic(
    data: Path, words: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(words, capsys)
    assert status == 2 and out == "" and f"error[{code}]" in err and "Traceback" not in err
    assert not (data / "runs").exists()


def test_the_named_gpu_is_found_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "0000:18:00.0"
    folder.mkdir()
    (folder / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 1\nGPU UUID: \t GPU-1f\n")
    gpus = local_gpus(tmp_path)
    assert gpus == [LocalGpu(0, "NVIDIA H200", "GPU-1f")]
    assert matching(load_target("h200"), gpus) == gpus[:1] and not matching(load_target("l4"), gpus)
    assert local_gpus(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("setting", "uuids"),
    [(None, "ab"), ("1", "b"), ("1,0", "ba"), ("GPU-b", "b"), ("1,7,0", "b"), ("", ""), ("-1", ""), ("GPU-", "")],
)
def test_cards_are_told_apart_as_cuda_numbers_them(setting: str | None, uuids: str) -> None:
    """A search on the second card that took itself for one on the first would keep the noise of the first."""
    gpus = [LocalGpu(0, "NVIDIA H200", "GPU-a"), LocalGpu(1, "NVIDIA H200", "GPU-b")]
    assert visible(gpus, setting) == [LocalGpu(n, "NVIDIA H200", f"GPU-{u}") for n, u in enumerate(uuids)]


@pytest.mark.parametrize(
    ("title", "name", "same"),
    [
        ("NVIDIA A100 80GB", "NVIDIA A100-SXM4-80GB", True),
        ("NVIDIA A100 40GB", "NVIDIA A100-SXM4-80GB", False),
        ("NVIDIA H100 SXM 80GB", "NVIDIA H100 80GB HBM3", True),
        ("NVIDIA H100 SXM 80GB", "NVIDIA H100 PCIe", False),
        ("NVIDIA L4", "NVIDIA L40S", False),
        ("NVIDIA L4", "NVIDIA L4", True),
    ],
)
def test_names_of_drivers(title: str, name: str, same: bool) -> None:
    assert same_model(title, name) is same
