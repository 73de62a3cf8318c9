"""Faults of real worker processes: the loop goes on, or stops with the reason; nothing of the worker is left."""

import os
import sys
import threading
import time
from dataclasses import dataclass, replace
from math import log
from pathlib import Path

import pytest

from amk.agent.device import audit
from amk.agent.device.gpu_backend import ROUNDS_IN_PLACE, GpuBackend
from amk.agent.device.measure import Fault, Job, Samples
from amk.agent.device.supervisor import Supervisor
from amk.agent.gate.candidate import Candidate, Workshop
from amk.agent.gate.certify import Judgement
from amk.agent.gate.gate import Ready
from amk.planner.settings import FAST, NAIVE
from tests.agent import fake_worker

POSITIONS = (1, 128, 2047)
PATIENCE = 120.0
"""Seconds for what ends by itself, on a busy machine too."""
SOON = 1.2
LATE = ("spin", "deaf_spin", "stop", "child")
"""Ways that end at their deadline alone, which is soon."""


@dataclass
class Bench:
    backend: GpuBackend
    incumbent: Ready
    candidate: Ready
    memory: Path

    def compare(self, phase: str = "paired test", rounds: int = 3) -> Samples | Fault:
        job = Job(0, phase, 1, rounds, 4, POSITIONS, 1)  # type: ignore[arg-type]
        return self.backend.measure(job, self.incumbent, self.candidate)


@pytest.fixture
def bench(tmp_path: Path, workshop: Workshop, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret-of-the-driver")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sk-secret-too")
    candidates = [workshop.make(s) for s in (NAIVE, FAST)]
    ready = [Ready(m, b"cubin", Judgement("SAFE")) for m in candidates if isinstance(m, Candidate)]
    memory = tmp_path / "memory"
    command = [sys.executable, fake_worker.__file__, request.param, str(memory)]
    monkeypatch.setattr(audit, "IDLE_SECONDS", PATIENCE)
    supervisor = Supervisor(
        tmp_path / "worker.log", command=command, host_bytes=250 << 20, open_seconds=PATIENCE, grace=0.3
    )
    block_seconds = SOON if request.param in LATE else PATIENCE
    backend = GpuBackend(supervisor, "fake", load_seconds=PATIENCE, check_seconds=PATIENCE, block_seconds=block_seconds)
    yield Bench(backend, *ready, memory)
    backend.close()


def way(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("bench", names, indirect=True)


@way("honest")
def test_an_honest_worker_is_measured(bench: Bench) -> None:
    result = bench.compare()
    assert isinstance(result, Samples) and len(result.rounds) == 3
    assert result.log_ratios == pytest.approx([0.0] * 3)


@way("fast")
def test_a_faster_candidate_is_seen(bench: Bench) -> None:
    result = bench.compare()
    assert isinstance(result, Samples) and result.log_ratios[0] < -0.1


@pytest.mark.turns(4)
@way("slow_place")
def test_a_slow_place_is_not_held_against_a_program(bench: Bench) -> None:
    """Half of each round is measured in exchanged places; a pilot, which only asks whether to go on, in one."""
    for rounds in (3, ROUNDS_IN_PLACE + 1):
        result = bench.compare(rounds=rounds)
        assert isinstance(result, Samples) and len(result.rounds) == rounds
        assert result.log_ratios == pytest.approx([0.0] * rounds)
    samples = bench.compare("pilot")
    assert isinstance(samples, Samples) and samples.log_ratios == pytest.approx([log(1.5)] * 3)


FAULTS = {"spin": "deadline", "deaf_spin": "deadline", "segfault": "crashed", "exit0": "exited", "stop": "deadline",
          "memory": "memory", "raises": "block_failed"}  # fmt: skip


@pytest.mark.turns(16)
@way(*FAULTS)
def test_faults_are_named_and_survived(bench: Bench, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["bench"]
    result = bench.compare()
    assert isinstance(result, Fault) and result.kind == FAULTS[name], result
    assert not result.suspect
    job, bench.backend.block_seconds = Job(-1, "calibrate", 1, 1, 4, POSITIONS, 1), PATIENCE
    bench.backend.supervisor.command = [*bench.backend.supervisor.command[:2], "honest", str(bench.memory)]
    bench.backend.supervisor.kill()
    assert isinstance(bench.backend.measure(job, bench.incumbent, bench.incumbent), Samples)


@way("once")
def test_a_worker_that_died_once_is_replaced(bench: Bench) -> None:
    assert isinstance(bench.compare(), Fault)
    assert isinstance(bench.compare(), Samples)


@way("bad_canary")
def test_two_failed_canaries_lose_the_device(bench: Bench) -> None:
    result = bench.compare()
    assert isinstance(result, Fault) and result.kind == "device_lost" and "canaries" in result.detail


@pytest.mark.parametrize(("visible", "card"), [(None, "1"), ("3,GPU-5", "GPU-5")])
@way("honest")
def test_a_worker_sees_its_own_card_alone(
    bench: Bench, visible: str | None, card: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a program on the second of two cards that takes the default device has the first."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    bench.backend.supervisor.device = 1
    assert bench.backend.supervisor.fresh() is None
    assert bench.backend.supervisor.device_name == f"fake device {card}"


@way("no_device")
def test_a_device_that_does_not_open_is_lost(bench: Bench) -> None:
    result = bench.compare()
    assert isinstance(result, Fault) and result.kind == "device_lost"


@way("environment")
def test_the_worker_has_no_keys(bench: Bench) -> None:
    assert isinstance(bench.compare(), Samples)
    seen = bench.memory.read_text()
    assert "secret" not in seen and "ANTHROPIC" not in seen and "PATH" in seen


@pytest.mark.turns(4)
@way("child")
def test_the_whole_process_group_ends(bench: Bench) -> None:
    result = bench.compare()
    assert isinstance(result, Fault) and result.kind == "deadline"
    child = int(bench.memory.read_text())
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and alive(child):
        time.sleep(0.02)
    assert not alive(child)


@way("chatter")
def test_what_a_worker_prints_is_no_answer(bench: Bench) -> None:
    assert isinstance(bench.compare(), Samples)


@pytest.mark.turns(4)
@way("honest")
def test_a_paired_test_without_hope_ends_at_its_half(bench: Bench) -> None:
    """What it showed is kept; no program is measured in exchanged places again, and the next paired test is whole."""
    job = Job(0, "paired test", 1, 2 * ROUNDS_IN_PLACE, 4, POSITIONS, 1, half=-9.0)
    ended, whole = (bench.backend.measure(j, bench.incumbent, bench.candidate) for j in (job, replace(job, half=9.0)))
    assert isinstance(ended, Samples) and len(ended.rounds) == ROUNDS_IN_PLACE
    assert isinstance(whole, Samples) and len(whole.rounds) == 2 * ROUNDS_IN_PLACE


@way("honest")
def test_confirmation_runs_in_a_fresh_process(bench: Bench) -> None:
    assert isinstance(bench.compare("paired test"), Samples)
    starts = bench.backend.supervisor.starts
    assert isinstance(bench.compare("paired test"), Samples) and bench.backend.supervisor.starts == starts
    assert isinstance(bench.compare("confirm"), Samples) and bench.backend.supervisor.starts == starts + 1


def test_the_worker_dies_with_its_driver(tmp_path: Path) -> None:
    import signal
    import subprocess

    script = f"""
import sys, time
from pathlib import Path
from amk.agent.device.supervisor import Supervisor
s = Supervisor(Path({str(tmp_path / "log")!r}), command=[sys.executable, {fake_worker.__file__!r}, "honest", "x"])
assert s.fresh() is None
print(s._process.popen.pid, flush=True)
time.sleep(60)
"""
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    driver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment)
    assert driver.stdout is not None
    worker = int(driver.stdout.readline())
    assert alive(worker)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and alive(worker):
        time.sleep(0.02)
    assert not alive(worker)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.turns(4)
@way("spin")
def test_a_stopped_search_does_not_wait_for_its_worker(bench: Bench) -> None:
    """The question under way ends when `stop` is called from another thread, and no new worker is started."""
    bench.backend.block_seconds = PATIENCE
    threading.Timer(1.5, bench.backend.stop).start()
    began = time.monotonic()
    result = bench.compare()
    assert isinstance(result, Fault) and result.kind in ("stopped", "device_lost")
    assert time.monotonic() - began < PATIENCE / 2 and bench.backend.supervisor._process is None
