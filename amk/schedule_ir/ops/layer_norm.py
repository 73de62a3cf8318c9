"""LayerNorm of a hidden state that is in shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from amk.models.matrices import MatrixName
from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import F32, Access, BufferField, Count, Geometry, Memory
from amk.schedule_ir.ops.hidden import HIDDEN_FIELDS
from amk.schedule_ir.ops.precondition import AGENTS, HIDDEN, Need, has, lacks, normed_by, own
from amk.schedule_ir.ops.staging import Staging

WIDE = 4
"""Elements that a lane takes at a time."""
MOST_IN_BLOCKS = 2048
"""Elements of a warp's share in blocks: each of the lanes that have a block's elements has the scale of one of them."""


class LayerNormOp(Staging):
    """x[i] = (hidden[i] - mean) / sqrt(variance + eps) * norm[n, i] + shift[n, i], a row for each sequence.

    n: the norm that `matrix` multiplies in this layer; the graph says of which hidden state it is. Mean and variance
    are those of all of hidden, from the moments of its `moment_agents` equal shares: the squared deviations within the
    shares, and those of the shares' means (Chan, Golub and LeVeque 1979).
    """

    needs: ClassVar[tuple[Need, ...]] = (
        *Staging.needs,
        normed_by("layer"),
        Need("wide", HIDDEN.multiple_of(WIDE), "elements are taken four at a time"),
        Need("fours", has("scales") | HIDDEN.multiple_of(AGENTS * WIDE), "every warp's share is whole fours"),
        Need(
            "scales",
            lacks("scales") | (HIDDEN <= AGENTS * MOST_IN_BLOCKS),
            "every block of a warp's share has a lane for its scale",
        ),
        Need("equal", HIDDEN.multiple_of(own("moment_agents")), "the moments are those of equal shares"),
    )
    own_fields: ClassVar[Mapping[str, BufferField]] = {
        **HIDDEN_FIELDS,
        "shift": BufferField("global", "f32", "norm_shift"),
    }
    op: Literal["layer_norm"] = "layer_norm"
    matrix: MatrixName
    layer: Expr
    hidden: Name
    moments: Name
    moment_agents: Count
    norm: Name
    shift: Name

    def numbers(self, geo: Geometry) -> dict[str, int]:
        """Of the norm in layer 0, and how many norms further on that of the next layer is: none for lm_head."""
        first, second = (geo.norm_of(self.matrix, layer) for layer in (0, 1))
        return {"norm": first, "norms": second - first}

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        hidden, number = geo.model.hidden, geo.norm_of(self.matrix, env.eval_int(self.layer))
        lo, hi = self._staged_share(hidden, env, geo)
        state = geo.model.graph.state_of(number)
        return [
            *geo.rows("read", self.hidden, lo, hi, ("hidden", state), hidden),
            *geo.slots("read", self.moments, 0, 2 * self.moment_agents, ("moments", state), 2),
            *geo.span("read", self.norm, number * hidden + lo, number * hidden + hi, None),
            *geo.span("read", self.shift, number * hidden + lo, number * hidden + hi, None),
            *self._staged(geo, lo, hi, ("xn", number), hidden),
        ]

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        base = geo.norm_of(self.matrix, env.eval_int(self.layer)) * geo.model.hidden
        lo, hi = self._staged_share(geo.model.hidden, env, geo)
        for s in range(geo.vectors):
            at = geo.row(self.hidden, s)
            mean, scale = self._moments(geo, mem, s)
            unit = (np.asarray(mem.read(self.hidden, at + lo, at + hi), np.float32) - mean) * scale
            norm, shift = (mem.read(name, base + lo, base + hi) for name in (self.norm, self.shift))
            self._stage(geo, mem, lo, unit * norm + shift, s)

    def _moments(self, geo: Geometry, mem: Memory, sequence: int) -> tuple[F32, F32]:
        """Mean and 1 / sqrt(variance + eps)."""
        at, hidden = geo.row(self.moments, sequence), geo.model.hidden
        pairs = np.asarray(mem.read(self.moments, at, at + 2 * self.moment_agents), np.float32).reshape(-1, 2)
        mean = np.mean(pairs[:, 0], dtype=np.float32)
        between = np.sum(np.square(pairs[:, 0] - mean), dtype=np.float32) * np.float32(hidden // len(pairs))
        squares = np.sum(pairs[:, 1], dtype=np.float32) + between
        return np.asarray(mean), np.float32(1) / np.sqrt(squares / np.float32(hidden) + np.float32(geo.model.rms_eps))
