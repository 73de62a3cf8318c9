"""What is on its way through the gate, and what came through and may run.

Judgements end in any order; the driver takes them in the order of the proposals, so that what is proposed next never
depends on how long something took.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from amk.agent.gate.candidate import Candidate
from amk.agent.gate.gate import Gate, Judged, Ready
from amk.agent.journal.events import Gated
from amk.agent.journal.state import START


@dataclass
class Pipeline:
    gate: Gate
    ready: dict[int, Ready] = field(default_factory=dict)
    _pending: dict[int, Future[Judged]] = field(default_factory=dict)

    def enter(self, index: int, candidate: Candidate) -> None:
        self._pending[index] = self.gate.submit(index, candidate)

    def pending(self, index: int) -> bool:
        """Whether the judgement of `index` was not taken yet."""
        return index in self._pending

    def is_done(self, index: int) -> bool:
        return self._pending[index].done()

    @property
    def futures(self) -> list[Future[Judged]]:
        return list(self._pending.values())

    def take(self, index: int) -> Judged:
        """The judgement, waited for."""
        gated, ready = self._pending.pop(index).result()
        if ready is not None:
            self.ready[index] = ready
        return gated, ready

    def told_apart(self, index: int, judged: Judged, indices: Mapping[str, int]) -> Judged:
        """An edited schedule that is SAFE and lowers to a kernel known before is a duplicate of it.

        indices: proposals, or START, by kernel.
        """
        gated, ready = judged
        first = index if ready is None or gated.kernel in (None, gated.key) else indices.get(gated.kernel or "", index)
        if first == index:
            return judged
        self.ready.pop(index, None)
        what = "the start schedule" if first == START else f"proposal {first}"
        detail = f"lowers to the kernel of {what}"
        return Gated(index=index, verdict="duplicate", key=gated.key, detail=detail), None

    def keep(self, indices: Iterable[int]) -> None:
        """Forget the programs of all others."""
        wanted = set(indices)
        self.ready = {index: ready for index, ready in self.ready.items() if index in wanted}
