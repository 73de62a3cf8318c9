"""Devices never wait for the gate, several share the work, and what a lost one had is measured elsewhere."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from amk.agent.device.measure import Fault, Job, Samples
from amk.agent.device.noise import Noise
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.gate import Ready
from amk.agent.journal.inbox import Suggestion
from amk.agent.journal.state import START
from amk.agent.propose.base import Context
from amk.agent.propose.local import Local
from amk.agent.propose.random_draw import RandomDraw
from amk.agent.propose.replay import Replay
from amk.agent.run import device_queue
from amk.report.diagnostic import AmkError
from tests.agent.conftest import MakeLoop

SECONDS = 20.0


@dataclass
class Gated(SimulatedBackend):
    """A device whose first pilot ends only when another proposal has passed the gate."""

    passed: threading.Event = field(default_factory=threading.Event)
    waited: list[bool] = field(default_factory=list)

    def measure(self, job: Job, incumbent: Ready, candidate: Ready) -> Samples | Fault:
        if job.index == 0 and job.phase == "pilot":
            self.waited.append(self.passed.wait(SECONDS))
        return super().measure(job, incumbent, candidate)


def test_the_next_proposal_is_gated_while_the_device_measures(make_loop: MakeLoop) -> None:
    backend = Gated("h200")
    loop = make_loop(RandomDraw(), backend, evals=3)

    def watch(state: object) -> None:
        if sum(t.gated is not None and t.gated.verdict == "passed" for t in loop.state.trials) >= 2:
            backend.passed.set()

    loop.watch = watch
    loop.run()
    assert backend.waited == [True] and loop.state.evals == 3


@dataclass
class Noted(SimulatedBackend):
    """A device that notes how long each of its measurements took."""

    worked: dict[tuple[int, str], float] = field(default_factory=dict)

    def measure(self, job: Job, incumbent: Ready, candidate: Ready) -> Samples | Fault:
        found = super().measure(job, incumbent, candidate)
        self.worked[job.index, job.phase] = found.seconds
        return found


def test_a_measurement_is_not_charged_for_a_proposer_that_thinks(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody takes a result while the driver proposes; the device was done long before. The clock moves by thinking
    alone."""
    now = 0.0

    class Slow(RandomDraw):
        def ask(self, context: Context) -> Sequence[Suggestion]:
            nonlocal now
            while any(queue.busy and not queue.ready for queue in loop._device_queues):
                time.sleep(0.001)
            now += 100.0
            return super().ask(context)

    backend = Noted("h200")
    loop = make_loop(Slow(), backend, evals=2)
    monkeypatch.setattr(device_queue, "time", SimpleNamespace(monotonic=lambda: now))
    loop.run()
    charged = {(t.index, phase): m.seconds for t in loop.state.trials for phase, m in t.measured.items()}
    assert len(charged) >= 2
    assert all(seconds == pytest.approx(backend.worked[what], abs=1e-6) for what, seconds in charged.items())


@dataclass
class Named(SimulatedBackend):
    """A device with a name, which takes `seconds` for a measurement and is lost when `life` measurements are over. It
    waits for `beside` where that has made few, so that a thread that stands still is given its share."""

    number: int = 0
    life: int = 10**9
    seconds: float = 0.0
    beside: "Named | None" = None
    ran: list[tuple[int, str, str]] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)

    @property
    def device(self) -> str:
        return f"device-{self.number}"

    def measure(self, job: Job, incumbent: Ready, candidate: Ready) -> Samples | Fault:
        self.threads.add(threading.get_ident())
        self.ran.append((job.index, job.phase, incumbent.candidate.key))
        time.sleep(self.seconds)
        until = time.monotonic() + 60
        while self._is_ahead and time.monotonic() < until:
            time.sleep(0.001)
        if len(self.ran) > self.life:
            return Fault("device_lost", "2 canaries failed")
        return super().measure(job, incumbent, candidate)

    @property
    def _is_ahead(self) -> bool:
        other = self.beside
        return other is not None and len(other.ran) < min(6, other.life + 1, len(self.ran) - 2)


@pytest.mark.turns(12)
def test_two_devices_share_the_work(make_loop: MakeLoop) -> None:
    first, second = (Named("h200", 1, number=i, seconds=0.01) for i in (1, 2))
    first.beside, second.beside = second, first
    loop = make_loop(RandomDraw(), first, evals=16)
    loop.backends = (first, second)
    loop.run()
    assert loop.state.evals == 16 and set(loop.state.calibrated) == {"device-1", "device-2"}
    done = [{(index, phase) for index, phase, _ in device.ran if index != START} for device in (first, second)]
    assert not done[0] & done[1], "one device makes a comparison, though a pilot and its paired test may be on two"
    assert len({index for index, _ in done[0] | done[1]}) == 16 and min(map(len, done)) >= 4
    assert len(first.threads) == len(second.threads) == 1


def test_what_beat_an_old_incumbent_must_beat_the_new_one(make_loop: MakeLoop) -> None:
    """Two good proposals start together; the one that ends later is tested again, against the one that was kept."""
    quick = Named("h200", noise=Noise("quiet"), number=1)
    slow = Named("h200", noise=Noise("quiet"), number=2, seconds=0.15)
    base = {"warps": 8, "slots": 4}
    loop = make_loop(Replay((base | {"run_ahead": True}, base | {"run_ahead": True, "warps": 10})), quick)
    loop.backends = (quick, slow)
    loop.run()
    kept = [t for t in loop.state.trials if t.decided is not None and t.decided.outcome == "kept"]
    assert kept
    for trial in kept:
        earlier = [
            other.index for other in kept if loop_order(loop.state, other.index) < loop_order(loop.state, trial.index)
        ]
        against = earlier[-1] if earlier else START
        assert trial.measured["paired test"].against == trial.measured["confirm"].against == against
    scores = [mark.score for mark in loop.state.curve]
    assert scores == sorted(scores, reverse=True)


def loop_order(state: object, index: int) -> int:
    return [mark.index for mark in state.curve].index(index)  # type: ignore[attr-defined]


@pytest.mark.turns(4)
def test_the_others_go_on_when_a_device_is_lost(make_loop: MakeLoop) -> None:
    first, second = Named("h200", number=1, life=3), Named("h200", number=2, seconds=0.005)
    second.beside = first
    loop = make_loop(Local(), first, evals=8)
    loop.backends = (first, second)
    loop.run()
    assert loop.state.evals == 8 and list(loop.state.quarantined) == ["device-1"] and not loop.state.leases
    assert not loop.state.open_trials


def test_the_last_device_ends_the_run(make_loop: MakeLoop) -> None:
    devices = [Named("h200", number=i, life=2) for i in (1, 2)]
    loop = make_loop(Local(), devices[0], evals=8)
    loop.backends = tuple(devices)
    with pytest.raises(AmkError, match="AMK707"):
        loop.run()
    assert set(loop.state.quarantined) == {"device-1", "device-2"} and loop.state.finished is None
