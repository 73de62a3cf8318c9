"""Devices of a Ray cluster. The only import of ray.

A device server is an actor that holds one GPU and does nothing but supervise a worker process of its own, which may die
at any time. The unit of work is a whole paired comparison, so the two programs always meet on one physical device. A
device server that dies is restarted by Ray; the measurement it had is lost and repeated.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError

from amk.agent.device.devices import local_gpus, same_model
from amk.agent.device.measure import Backend, Fault, Job, Samples
from amk.agent.gate.gate import Ready
from amk.processes import worker_environment
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.targets.target import Target

RESTARTS = 3
OPEN_SECONDS = 300.0
ROUND_SECONDS = 40.0
"""Of a round, beside what opening takes. The server's own deadlines are tighter: this is for one that keeps none."""
POLL_SECONDS = 0.5
CONNECT_SECONDS = 10.0
LOCAL = "local"
"""The address that means: start a cluster of this machine's GPUs, which ends with the search."""

MakeBackend = Callable[[], Backend]


def gpu_of_actor(target: Target) -> Backend:
    """The back end of the GPU that Ray gave to this process; AMK708 if it is not the target."""
    from amk.agent.device.gpu_backend import GpuBackend
    from amk.agent.device.supervisor import Supervisor

    ordinals = [int(each) for each in ray.get_gpu_ids()]
    gpus = [gpu for gpu in local_gpus() if gpu.ordinal in ordinals]
    if len(gpus) != 1 or not same_model(target.title, gpus[0].name):
        names = [gpu.name for gpu in gpus] or "no GPU"
        raise AmkError(Diagnostic("AMK708", f"{target.title} is wanted, the device server holds {names}"))
    log = Path(tempfile.mkdtemp(prefix="amk-device-server-")) / "worker.log"
    # Ray shows this process its own GPU only, so the worker's is the first.
    return GpuBackend(Supervisor(log, 0), gpus[0].name, card=gpus[0].uuid)


class DeviceServer:
    """What runs on the cluster. Its environment is cut down before anything else, so its worker cannot see a key."""

    def __init__(self, make: MakeBackend) -> None:
        kept = worker_environment(os.environ)
        for name in [name for name in os.environ if name not in kept and not name.startswith("RAY_")]:
            del os.environ[name]
        self.backend = make()

    def describe(self) -> tuple[str, str, str, bool]:
        node = ray.get_runtime_context().get_node_id()[:8]
        return self.backend.label, f"{self.backend.device} on node {node}", self.backend.card, self.backend.simulated

    def measure(self, job: Job, incumbent: Ready, candidate: Ready) -> Samples | Fault:
        return self.backend.measure(job, incumbent, candidate)

    def stop(self) -> None:
        self.backend.stop()


@dataclass
class RayBackend:
    """One device server, seen from the driver."""

    actor: Any
    label: str
    device: str
    card: str
    simulated: bool
    open_seconds: float = OPEN_SECONDS
    round_seconds: float = ROUND_SECONDS
    _stopped: bool = field(default=False)

    def measure(self, job: Job, incumbent: Ready, candidate: Ready) -> Samples | Fault:
        """What the server measured; `crashed` if it died, or was ended because it did not answer in time, and is
        restarted; `device_lost` if it is gone for good."""
        answer = self.actor.measure.remote(job, incumbent, candidate)
        seconds = self.open_seconds + job.rounds * self.round_seconds
        until = time.monotonic() + seconds
        while not self._stopped:
            try:
                found: Samples | Fault = ray.get(answer, timeout=POLL_SECONDS)
                return found
            except GetTimeoutError:
                if time.monotonic() < until:
                    continue
                ray.kill(self.actor, no_restart=False)
                return self._after_death(GetTimeoutError(f"it did not answer in {seconds:.0f} s"))
            except RayActorError as error:
                return self._after_death(error)
            except RayError as error:
                return Fault("crashed", f"the device server did not answer: {first_line(error)}")
        return Fault("stopped", "the search ends")

    def _after_death(self, error: RayError) -> Fault:
        """Whether Ray brings the device server back, waited for: until then it fails whatever it is asked."""
        until = time.monotonic() + self.open_seconds
        while not self._stopped and (left := until - time.monotonic()) > 0:
            try:
                ray.get(self.actor.describe.remote(), timeout=left)
            except ActorUnavailableError:
                time.sleep(POLL_SECONDS)
            except (RayError, GetTimeoutError):
                break
            else:
                return Fault("crashed", f"the device server was restarted: {first_line(error)}")
        if self._stopped:
            return Fault("stopped", "the search ends")
        return Fault("device_lost", f"the device server is gone: {first_line(error)}")

    def stop(self) -> None:
        self._stopped = True
        self.actor.stop.remote()

    def close(self) -> None:
        ray.kill(self.actor)


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


@contextlib.contextmanager
def cluster(address: str) -> Iterator[None]:
    """Connect to `address`, or start a local cluster; AMK708 if there is none. Secrets stay in this process, and an
    empty folder is the working directory meanwhile: Ray lets its actors import what lies there."""
    secret = {name: value for name, value in os.environ.items() if name not in worker_environment(os.environ)}
    kept = {name for name in secret if name.startswith("RAY_")}
    for name in secret.keys() - kept:
        del os.environ[name]
    try:
        _answers(address)
        with tempfile.TemporaryDirectory() as empty, contextlib.chdir(empty):
            ray.init(None if address == LOCAL else address, log_to_driver=False, include_dashboard=False)
    except (RayError, ConnectionError, OSError, RuntimeError, ValueError) as error:
        message = f"no Ray cluster at {address}: {first_line(error)}"
        raise AmkError(
            Diagnostic("AMK708", message, help="start one with `ray start --head`, or use --ray local")
        ) from error
    finally:
        os.environ.update(secret)
    try:
        yield
    finally:
        ray.shutdown()


def _answers(address: str) -> None:
    """OSError if nothing listens at host:port; Ray itself would end this process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


def device_servers(make: MakeBackend, count: int | None = None, gpus: float = 1) -> list[RayBackend]:
    """`count` servers that hold `gpus` GPUs each (default: as many as the cluster has); AMK708 if there are fewer."""
    have = int(ray.cluster_resources().get("GPU", 0) / gpus) if gpus else (count or 0)
    wanted = have if count is None else count
    if not wanted or wanted > have:
        message = f"the Ray cluster has {have} free GPUs, {wanted or 'at least one'} wanted"
        raise AmkError(Diagnostic("AMK708", message), Exit.NO_GPU)
    remote = ray.remote(DeviceServer).options(num_gpus=gpus, num_cpus=0.5, max_restarts=RESTARTS, max_concurrency=2)
    actors = [remote.remote(make) for _ in range(wanted)]
    found = []
    for actor in actors:
        try:
            label, device, card, simulated = ray.get(actor.describe.remote(), timeout=OPEN_SECONDS)
        except (RayError, GetTimeoutError) as error:
            raise AmkError(
                Diagnostic("AMK708", f"a device server cannot be opened: {first_line(error)}"), Exit.NO_GPU
            ) from error
        found.append(RayBackend(actor, label, device, card, simulated))
    return found
