"""The noise of a card is kept while it is young, and of that card only."""

from dataclasses import dataclass

import pytest

from amk.agent.decide import calibration
from amk.agent.device.measure import Fault, Job, Samples
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.gate import Ready
from amk.agent.journal.events import Limits, SessionStarted
from amk.agent.propose.replay import Replay
from amk.report.diagnostic import AmkError
from tests.agent.conftest import MakeLoop


@dataclass
class Card(SimulatedBackend):
    name: str = "GPU-1"

    @property
    def card(self) -> str:
        return self.name


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("name", "later", "measured"),
    [("GPU-1", 60.0, 1), ("GPU-1", calibration.HOLDS + 60, 2), ("GPU-1", -60.0, 2), ("GPU-2", 60.0, 2), ("", 60.0, 2)],
)
def test_a_resumed_run_measures_the_noise_of_another_card_or_after_an_hour(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch, name: str, later: float, measured: int
) -> None:
    first = make_loop(Replay(({"run_ahead": True},)), Card("h200"))
    first.run()
    (before,) = first.state.calibrations
    now = before.at + later
    monkeypatch.setattr(calibration.time, "time", lambda: now)
    first.note(
        SessionStarted(
            session=2, device="simulated-h200", backend="simulated h200", simulated=True, limits=Limits(evals=9)
        )
    )
    first.journal.close()
    second = make_loop(Replay(()), Card("h200", name=name))
    second.run()
    after = second.state.calibrations[-1]
    assert len({c.at for c in second.state.calibrations}) == measured
    assert after.session == 2 and after.card == name and (after.mad == before.mad) == (measured == 1)


@dataclass
class Lopsided(SimulatedBackend):
    """A card on which the second of two programs is always 2% faster."""

    def measure(self, job: Job, incumbent: Ready, candidate: Ready) -> Samples | Fault:
        found = super().measure(job, incumbent, candidate)
        assert isinstance(found, Samples)
        faster = [(a1, tuple(0.98 * t for t in b1), tuple(0.98 * t for t in b2), a2) for a1, b1, b2, a2 in found.rounds]
        return Samples(tuple(faster), found.seconds)


def test_a_card_that_tells_a_program_from_itself_is_not_used(make_loop: MakeLoop) -> None:
    loop = make_loop(Replay(({"run_ahead": True},)), Lopsided("h200"))
    with pytest.raises(AmkError, match=r"the same program beside itself differs by \+(1\.[89]|2\.)"):
        loop.run()
    assert loop.state.evals == 0 and not loop.state.calibrations
