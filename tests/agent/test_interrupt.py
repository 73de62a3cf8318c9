"""Signals: the first interrupts at once, what is held is finished, and the handlers of before come back."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from amk.agent.journal.store import read_state
from amk.agent.run.interrupt import SIGNALS, Interrupts


@pytest.mark.parametrize("signum", SIGNALS)
def test_every_signal_interrupts_what_is_not_held(signum: int, capfd: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    written = []
    with Interrupts() as interrupts:
        interrupts.check()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signum)
        with interrupts.hold():
            os.kill(os.getpid(), signum)
            written.append("report")
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signum)
    assert interrupts.count == 3 and interrupts.code == 128 + signum and written == ["report"]
    assert capfd.readouterr().err.count("interrupted") == 3
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_what_the_process_was_started_to_ignore_stays_ignored() -> None:
    """As nohup does, and a shell with what it runs in the background."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not interrupts.count and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


SEARCH = (
    "-m", "amk", "autoresearch", "--model", "smollm2-135m", "--gpu", "h200", "--start", "naive", "--max-context",
    "1024", "--proposer", "local", "--no-prior", "--minutes", "9",
)  # fmt: skip


def started(folder: Path, *, ignoring: str = "") -> subprocess.Popen[str]:
    """A search as a process of its own, whose runs lie in the folder; ignoring: a signal, as the shell names it."""
    environment = os.environ | {"PYTHONPATH": ":".join(filter(None, sys.path)), "AMK_RUNS": str(folder)}
    words = ["sh", "-c", f"trap '' {ignoring}; exec \"$@\"", "sh"] if ignoring else []
    return subprocess.Popen(
        [*words, sys.executable, *SEARCH], env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def signals_of(process: subprocess.Popen[str], what: str) -> set[int]:
    """Numbers of the signals that a process catches (SigCgt) or ignores (SigIgn)."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    mask = int(text.partition(f"{what}:")[2].split()[0], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def wait_until_handled(process: subprocess.Popen[str]) -> None:
    """Python handles SIGINT itself from early on, SIGTERM nobody but amk."""
    while signal.SIGTERM not in signals_of(process, "SigCgt"):
        assert process.poll() is None
        time.sleep(0.002)


@pytest.mark.turns(12)
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_any_time_of_the_start_is_answered(signum: int, tmp_path: Path) -> None:
    """Either nothing was begun, and nothing lies there, or there are a journal, a report, and how to go on."""
    answers = []
    for number, seconds in enumerate((0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 1.6, 2.0)):
        folder = tmp_path / str(number)
        folder.mkdir()
        process = started(folder)
        try:
            wait_until_handled(process)
            time.sleep(seconds)
            process.send_signal(signum)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
        assert "Traceback" not in err
        # an interrupt while CPython runs generated code makes it end itself by SIGINT, though it was handled
        assert process.returncode in (128 + signum, -signal.SIGINT), err
        runs = list(folder.iterdir())
        answers.append("nothing was begun" in err)
        assert answers[-1] is not ("go on with: amk autoresearch" in err)
        assert answers[-1] is not bool(runs)
        for run in runs:
            assert (run / "report.html").stat().st_size and read_state(run).run is not None
    assert answers[0]


@pytest.mark.turns(4)
def test_a_process_that_ignores_a_signal_begins_nonetheless(tmp_path: Path) -> None:
    process = started(tmp_path, ignoring="HUP")
    try:
        wait_until_handled(process)
        assert signal.SIGHUP in signals_of(process, "SigIgn")
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None and process.stderr.readline().startswith("run ")
        assert signal.SIGHUP in signals_of(process, "SigIgn")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.turns(6)
def test_a_search_answers_sigterm_within_a_second_and_says_what_it_reached(tmp_path: Path) -> None:
    process = started(tmp_path)
    watchdog = threading.Timer(120, process.kill)
    watchdog.start()
    assert process.stderr is not None and process.stdout is not None
    said = []
    try:
        while not any(path.stat().st_size for path in tmp_path.glob("*/results.tsv")):
            time.sleep(0.05)
            assert process.poll() is None
        process.terminate()
        began, answered = time.monotonic(), None
        for line in process.stderr:
            said.append(line)
            if answered is None and line.startswith("interrupted: "):
                answered = time.monotonic() - began
        out = process.stdout.read()
        assert process.wait() == 128 + signal.SIGTERM and answered is not None and answered < 1.0
    finally:
        watchdog.cancel()
        process.kill()
    assert said[-1].startswith("interrupted; go on with: ") and list(tmp_path.glob("*/report.html"))
    assert "METRIC speedup=" in out and "METRIC evaluations=" in out
