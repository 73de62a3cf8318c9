"""Signals: the first interrupts at once, what is held is finished, and the handlers of before come back."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

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


SEARCH = (
    "-m", "amk", "autoresearch", "--model", "smollm2-135m", "--gpu", "h200", "--start", "naive", "--max-context",
    "1024", "--proposer", "local", "--no-prior", "--minutes", "9",
)  # fmt: skip


@pytest.mark.turns(6)
def test_a_search_answers_sigterm_within_a_second_and_says_what_it_reached(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": ":".join(filter(None, sys.path)), "AMK_RUNS": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, *SEARCH],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
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
