"""The back end without a GPU: the simulator, plus noise, under the measurement protocol of the real one."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from dataclasses import dataclass, field

from amk.agent.device.measure import ABBA, Block, Fault, Job, Samples, hopeless
from amk.agent.device.noise import Noise
from amk.agent.gate.gate import Ready
from amk.report.diagnostic import AmkError
from amk.simulator.predict import Simulator

KEPT_TIMES = 4096


@dataclass
class SimulatedBackend:
    """`seed` fixes the noise of every measurement, whichever process takes it."""

    target: str
    seed: int = 0
    model: Simulator = field(default_factory=Simulator)
    noise: Noise = field(default_factory=Noise)
    simulated: bool = True
    _times: OrderedDict[str, Block] = field(default_factory=OrderedDict)

    @property
    def label(self) -> str:
        return f"simulated {self.target}"

    @property
    def device(self) -> str:
        return f"simulated-{self.target}"

    @property
    def card(self) -> str:
        return self.device

    def measure(self, job: Job, incumbent: Ready, candidate: Ready) -> Samples | Fault:
        try:
            times = {"a": self.times(job, incumbent), "b": self.times(job, candidate)}
        except AmkError as error:  # a verdict of SAFE that the simulator contradicts
            return Fault("stuck", str(error))
        key = zlib.crc32(f"{candidate.candidate.key}:{job.phase}".encode())
        rounds: list[tuple[Block, Block, Block, Block]] = []
        factors = self.noise.factors(self.seed, (key, abs(job.index + 1)), 4 * job.rounds)
        for number in range(job.rounds):
            noise = factors[4 * number : 4 * number + 4]
            a1, b1, b2, a2 = (tuple(ms * f for ms in times[which]) for which, f in zip(ABBA, noise, strict=True))
            rounds.append((a1, b1, b2, a2))
            if hopeless(job, rounds):
                break
        seconds = sum(sum(block) for r in rounds for block in r) * job.steps / 1e3
        return Samples(tuple(rounds), seconds)

    def times(self, job: Job, ready: Ready) -> Block:
        """ms per token at each position, without noise."""
        key = ready.candidate.key
        if key not in self._times:
            self._times[key] = self.model.steps_ms(ready.candidate.schedule, job.positions)
            if len(self._times) > KEPT_TIMES:
                self._times.popitem(last=False)
        return self._times[key]

    def stop(self) -> None:
        """A measurement is over at once anyway."""

    def close(self) -> None:
        """Nothing is held."""
