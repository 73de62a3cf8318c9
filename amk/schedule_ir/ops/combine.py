"""Stage the attention output: combine the splits of every head."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import ITEM_BYTES, Name
from amk.schedule_ir.ops.attend import merge_partials
from amk.schedule_ir.ops.attention import active_splits, partial_width
from amk.schedule_ir.ops.base import Access, Count, Geometry, Memory, Work
from amk.schedule_ir.ops.precondition import AGENTS, ALONE, DIM, HEADS, Need, Site, Term, has, own, wide
from amk.schedule_ir.ops.staging import Staging, staged_share

LANES, OUTPUTS = 32, 4
"""Of a warp; of a lane's fetch."""
PIECES, FETCHES = 4, 20
"""A lane takes up to so many pieces of its share at once, one if they are not whole heads apart, and fetches from all
splits that it has registers for."""


def share_heads(heads: int, dim: int, agents: int, blocks: bool = False) -> int:
    """Most query heads that one of `agents` shares of heads * dim outputs touches; blocks: staged in blocks."""
    shares = [staged_share(heads * dim, blocks, agents, agent) for agent in range(agents)]
    return max(-(-hi // dim) - lo // dim for lo, hi in shares)


def _heads_of_share() -> Term:
    def most(site: Site) -> int:
        model, blocks = site.geo.model, getattr(site.op, "scales") is not None  # noqa: B009
        return share_heads(model.heads, model.head_dim, site.geo.role_size[site.op.role], blocks)

    return Term(most)


class CombineOp(Staging):
    """x[i] = combined attention output i, for this agent's share of q_dim elements, splits in index order.

    mix, f32 [agents, heads, splits, 2], is where the agent keeps (weight, sum of weights) of each split of the heads
    its share touches, at most `heads` of them; nobody else reads it.
    """

    registers: ClassVar[tuple[str, ...]] = ("pos",)
    in_flight: ClassVar[int] = 2048
    meets: ClassVar[int] = 3
    """Two pieces of two splits, 16 bytes of each a lane."""

    needs: ClassVar[tuple[Need, ...]] = (
        *Staging.needs,
        Need("one-sequence", ALONE, "in a batch splits are reduced"),
        Need("fetches", DIM.multiple_of(wide("split_partial")), "a head is whole fetches"),
        Need(
            "shares",
            has("scales") | (HEADS * DIM).multiple_of(wide("split_partial") * AGENTS),
            "every warp's share is whole fetches",
        ),
        Need("room", _heads_of_share() <= own("heads"), "mix has room for all heads of a share"),
    )
    op: Literal["combine"] = "combine"
    layer: Expr
    split_partial: Name
    split_scale: Name
    heads: Count
    mix: Name

    def _outputs(self, env: Env, geo: Geometry) -> tuple[int, int]:
        return self._staged_share(geo.model.heads * geo.model.head_dim, env, geo)

    def _share(self, env: Env, geo: Geometry) -> list[tuple[int, int, int]]:
        """(query head, first dim, end dim) pieces of the agent's share."""
        dim = geo.model.head_dim
        lo, hi = self._outputs(env, geo)
        return [(h, max(lo - h * dim, 0), min(hi - h * dim, dim)) for h in range(lo // dim, -(-hi // dim)) if lo < hi]

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        layer, dim = env.eval_int(self.layer), geo.model.head_dim
        out: list[Access] = []
        for local, (head, d0, d1) in enumerate(self._share(env, geo)):
            mixed = (int(env.agent) * self.heads + local) * geo.kv_splits * 2
            out += geo.span("write", self.mix, mixed, mixed + 2 * active_splits(env.pos, geo), None)
            for s in range(active_splits(env.pos, geo)):
                row = head * geo.kv_splits + s
                out += geo.span("read", self.split_partial, row * dim + d0, row * dim + d1, ("part", layer))
                out += geo.span("read", self.split_scale, row * 2, row * 2 + 2, ("scale", layer))
        return out + self._staged(geo, *self._outputs(env, geo), ("xo", layer), geo.model.q_dim)

    def work(self, env: Env, geo: Geometry) -> Work:
        """Also what a lane leaves out: splits are taken several at a time, those that own no position too."""
        work, (lo, hi) = super().work(env, geo), self._outputs(env, geo)
        whole = LANES * OUTPUTS % geo.model.head_dim == 0
        pieces = max(1, min(PIECES if whole else 1, -(-(hi - lo) // (LANES * OUTPUTS))))
        active, batch = active_splits(env.pos, geo), min(FETCHES // pieces, geo.kv_splits)
        each = (hi - lo) * ITEM_BYTES[geo.buffers[self.split_partial].dtype]
        idle = -(-active // batch) * batch - active
        return work._replace(handled=work.handled + idle * each)

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        dim, width = geo.model.head_dim, partial_width(geo)
        splits = active_splits(env.pos, geo)
        outputs = [np.zeros(0, np.float32)]
        for local, (head, d0, d1) in enumerate(self._share(env, geo)):
            parts = np.zeros((splits, width), np.float32)
            for s in range(splits):
                row = head * geo.kv_splits + s
                parts[s, d0:d1] = mem.read(self.split_partial, row * dim + d0, row * dim + d1)
                parts[s, dim : dim + 2] = mem.read(self.split_scale, row * 2, row * 2 + 2)
            merged = merge_partials(parts, dim)
            weights = np.exp(parts[:, dim] - merged[dim]) / merged[dim + 1]
            mixed = (int(env.agent) * self.heads + local) * geo.kv_splits * 2
            mem.write(self.mix, mixed, np.stack([weights, parts[:, dim + 1]], axis=1).reshape(-1))
            outputs.append(merged[d0:d1] / merged[dim + 1])
        self._stage(geo, mem, self._outputs(env, geo)[0], np.concatenate(outputs))
