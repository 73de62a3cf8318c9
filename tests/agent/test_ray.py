"""A local Ray cluster with two device servers whose workers are real processes; one of them is killed."""

import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from amk.agent.device import audit
from amk.agent.device.gpu_backend import GpuBackend
from amk.agent.device.measure import Backend, Fault, Job, Samples
from amk.agent.device.supervisor import Supervisor
from amk.agent.gate.gate import Ready
from amk.agent.propose.random_draw import RandomDraw
from amk.report.diagnostic import AmkError
from tests.agent import fake_worker
from tests.agent.conftest import MakeLoop

pytest.importorskip("ray", reason="the back end for many machines needs ray")
from amk.agent.device import ray_backend

SECRET = "sk-secret-of-the-driver"
PATIENCE = 120.0
"""Seconds for what ends by itself, on a busy machine too."""


def fake_server(folder: str, way: str) -> Backend:
    """A server's back end: a supervised worker process, without a GPU. Leaves its pid and its environment behind."""
    audit.IDLE_SECONDS = PATIENCE  # this is a process of its own
    place = Path(folder) / str(os.getpid())
    place.write_text(repr(dict(os.environ)) + Path("/proc/self/environ").read_text())
    command = [sys.executable, fake_worker.__file__, way, str(place) + ".worker"]
    supervisor = Supervisor(Path(folder) / f"{os.getpid()}.log", command=command, open_seconds=PATIENCE, grace=0.3)
    return GpuBackend(supervisor, f"fake {os.getpid()}", PATIENCE, PATIENCE, PATIENCE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Started where somebody left a folder called amk."""
    before = dict(os.environ)
    os.environ.update({"PYTHONPATH": ":".join(sys.path), "ANTHROPIC_API_KEY": SECRET, "RAY_USAGE_STATS_ENABLED": "0"})
    hostile = tmp_path_factory.mktemp("hostile")
    (hostile / "amk").mkdir()
    (hostile / "amk" / "__init__.py").write_text("raise RuntimeError('the amk of the working directory')")
    with contextlib.ExitStack() as stack:
        with contextlib.chdir(hostile):
            stack.enter_context(ray_backend.cluster(ray_backend.LOCAL))
            assert Path.cwd() == hostile
        assert os.environ["ANTHROPIC_API_KEY"] == SECRET, "the driver keeps its key"
        yield
    os.environ.clear()
    os.environ.update(before)


def pids(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


@pytest.mark.turns(12)
def test_a_killed_server_loses_nothing(cluster: None, tmp_path: Path, make_loop: MakeLoop) -> None:
    folder = tmp_path / "servers"
    folder.mkdir()
    servers = ray_backend.device_servers(functools.partial(fake_server, str(folder), "environment"), 2, gpus=0)
    loop = make_loop(RandomDraw(), servers[0], evals=14)
    loop.backends = tuple(servers)
    victims: list[int] = []

    def watch(state: object) -> None:
        if not victims and loop.state.evals >= 2:
            victims.append(pids(folder)[0])
            os.kill(victims[0], signal.SIGKILL)

    loop.watch = watch
    loop.run()
    assert victims and len(pids(folder)) == 3, "the killed device server was started again"
    assert loop.state.evals == 14 and not loop.state.leases and not loop.state.open_trials
    assert {t.faults[-1].fault for t in loop.state.trials if t.faults} <= {"crashed"}
    assert len(loop.state.calibrated) == 2
    for path in folder.iterdir():
        assert SECRET not in path.read_text(), path.name
    for server in servers:
        server.close()


@pytest.mark.turns(4)
def test_a_stopped_search_leaves_its_server(cluster: None, tmp_path: Path, make_loop: MakeLoop) -> None:
    (server,) = ray_backend.device_servers(functools.partial(fake_server, str(tmp_path), "spin"), 1, gpus=0)
    loop = make_loop(RandomDraw(), server, evals=6)
    threading.Timer(2.0, server.stop).start()
    began = time.monotonic()
    with pytest.raises(AmkError, match="AMK707"):
        loop.run()
    assert time.monotonic() - began < PATIENCE / 2
    server.close()


@pytest.mark.turns(4)
def test_a_server_that_stands_still_is_ended_and_started_again(
    cluster: None, tmp_path: Path, make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    (server,) = ray_backend.device_servers(functools.partial(fake_server, str(tmp_path), "honest"), 1, gpus=0)
    loop = make_loop(RandomDraw(), server, evals=2)
    victims: list[int] = []
    measure, seconds = server.measure, server.round_seconds

    def stopped(job: Job, *programs: Ready) -> Samples | Fault:
        """No time is left to the server that stands still, and as long as it takes to the one that comes."""
        stands_still = victims and len(pids(tmp_path)) == 1
        server.round_seconds = -server.open_seconds if stands_still else seconds
        return measure(job, *programs)

    monkeypatch.setattr(server, "measure", stopped)

    def watch(state: object) -> None:
        if not victims and loop.state.evals >= 1:
            victims.append(pids(tmp_path)[0])
            os.kill(victims[0], signal.SIGSTOP)

    loop.watch = watch
    loop.run()
    faults = [fault for trial in loop.state.trials for fault in trial.faults]
    assert [fault.fault for fault in faults] == ["crashed"] and "did not answer in" in faults[0].detail
    assert victims and len(pids(tmp_path)) == 2
    server.close()


@pytest.mark.turns(4)
def test_no_gpus_is_said(cluster: None) -> None:
    with pytest.raises(AmkError, match="AMK708"):
        ray_backend.device_servers(functools.partial(fake_server, ".", "honest"))


@pytest.mark.turns(12)
def test_no_cluster_is_said() -> None:
    with pytest.raises(AmkError, match="AMK708"), ray_backend.cluster("127.0.0.1:1"):
        raise AssertionError("nothing listens there")
