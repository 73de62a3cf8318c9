"""What ops have in common that leave a whole hidden state in shared memory, with the moments for LayerNorm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, BufferField, Geometry, Memory, Op

HIDDEN_FIELDS: Mapping[str, BufferField] = {
    "hidden": BufferField("shared", "f32", each=True),
    "moments": BufferField("shared", "f32", each=True),
}
"""moments: f32 [agents, 2], mean and sum of squared deviations from it, a pair for each agent's share of hidden."""


class Hidden(Op):
    """An op that leaves shares of a hidden state, with their moments."""

    leaves: ClassVar[str | None] = "moment_agents"
    own_fields: ClassVar[Mapping[str, BufferField]] = HIDDEN_FIELDS
    in_flight: ClassVar[int] = 8192
    hidden: Name
    moments: Name

    def _writes(self, geo: Geometry, agent: int, lo: int, hi: int, state: int) -> list[Access]:
        return [
            *geo.rows("write", self.hidden, lo, hi, ("hidden", state), geo.model.hidden),
            *geo.slots("write", self.moments, 2 * agent, 2 * agent + 2, ("moments", state), 2),
        ]

    def _leave(self, geo: Geometry, mem: Memory, agent: int, lo: int, h: NDArray[Any], sequence: int) -> None:
        h = np.asarray(h, np.float32)
        mean = np.mean(h, dtype=np.float32)
        mem.write(self.hidden, geo.row(self.hidden, sequence) + lo, h)
        squares = np.sum(np.square(h - mean), dtype=np.float32)
        mem.write(self.moments, geo.row(self.moments, sequence) + 2 * agent, [mean, squares])
