"""A worker that was killed beside the night is no measurement, and what was measured is on disk."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from amk.agent.device.measure import Fault, Job, Samples
from amk.agent.device.noise import Noise
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.gate import Ready
from amk.targets.target import load_target
from tests.agent import aa_night

PAIRS = 6
POSITIONS = (128,)


@dataclass
class Troubled(SimulatedBackend):
    """`faults` by (pair, attempt)."""

    faults: dict[tuple[int, int], Fault] = field(default_factory=dict)

    def measure(self, job: Job, incumbent: Ready, candidate: Ready) -> Samples | Fault:
        return self.faults.get((job.index, job.attempt)) or super().measure(job, incumbent, candidate)


def night(faults: dict[tuple[int, int], Fault]) -> aa_night.Night:
    ready = aa_night.subject(load_target("h200"), "smollm2-135m", simulated=True)
    return aa_night.Night(Troubled("h200", 1, noise=Noise("heavy", 0.006), faults=faults), ready, POSITIONS)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aa_night, "PAUSE", 0.0)


def test_a_killed_worker_costs_a_retry_and_changes_nothing_else() -> None:
    killed = Fault("crashed", "the worker was ended by SIGKILL")
    saved: list[int] = []
    undisturbed = night({}).run(PAIRS, lambda result: saved.append(result["pairs"]))
    disturbed = night({(-1, 1): killed, (2, 1): killed, (2, 2): killed}).run(PAIRS, lambda result: None)
    assert saved == list(range(1, PAIRS + 1))
    assert disturbed.pop("retries") == {"crashed: the worker was ended by SIGKILL": 3}
    assert undisturbed.pop("retries") == {} and disturbed == undisturbed


@pytest.mark.parametrize(
    "faults",
    [
        {(2, 1): Fault("below_floor", "too fast", suspect=True)},
        {(2, 1): Fault("device_lost", "2 canaries failed")},
        {(2, attempt): Fault("crashed", "SIGSEGV") for attempt in range(1, aa_night.ATTEMPTS + 1)},
    ],
)
def test_what_is_no_accident_ends_the_night_after_the_pairs_before_it(faults: dict[tuple[int, int], Fault]) -> None:
    saved: list[int] = []
    with pytest.raises(RuntimeError, match="pair 2"):
        night(faults).run(PAIRS, lambda result: saved.append(result["pairs"]))
    assert saved == [1, 2]


def test_the_command_keeps_none_and_writes_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "night.json"
    monkeypatch.setattr("sys.argv", ["aa_night", "--simulated", "--pairs", "3", "--record", str(record)])
    assert aa_night.main() == 0
    found = json.loads(record.read_text())
    assert (found["pairs"], found["pairs asked for"], found["kept"], found["retries"]) == (3, 3, 0, {})
