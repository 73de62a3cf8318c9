"""What is on its way through the gate, and what came through and may run.

Judgements end in any order; the driver takes them in the order of the proposals, so that what is proposed next never
depends on how long something took.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass, field

from amk.agent.candidate import Candidate
from amk.agent.gate import Gate, Judged, Ready
from amk.agent.gate_pool import GatePool


@dataclass
class Pipeline:
    gate: Gate
    ready: dict[int, Ready] = field(default_factory=dict)
    _pending: dict[int, tuple[Candidate, Future[Judged]]] = field(default_factory=dict)

    def enter(self, index: int, candidate: Candidate) -> None:
        self._pending[index] = candidate, self.gate.submit(index, candidate)

    def pending(self, index: int) -> bool:
        """Whether the judgement of `index` was not taken yet."""
        return index in self._pending

    def done(self, index: int) -> bool:
        return self._pending[index][1].done()

    @property
    def futures(self) -> list[Future[Judged]]:
        return [future for _, future in self._pending.values()]

    def take(self, index: int) -> Judged:
        """The judgement, waited for."""
        candidate, future = self._pending.pop(index)
        try:
            gated, ready = future.result()
        except BrokenExecutor:
            assert isinstance(self.gate, GatePool)
            lost = [(other, made) for other, (made, there) in self._pending.items() if failed(there)]
            gated, ready = self.gate.again(index, candidate)
            for other, made in lost:
                self.enter(other, made)
        if ready is not None:
            self.ready[index] = ready
        return gated, ready

    def keep(self, indices: Iterable[int]) -> None:
        """Forget the programs of all others."""
        wanted = set(indices)
        self.ready = {index: ready for index, ready in self.ready.items() if index in wanted}


def failed(future: Future[Judged]) -> bool:
    """Whether it will never have a result."""
    return not future.done() or future.cancelled() or future.exception() is not None
