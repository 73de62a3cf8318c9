"""Geometry shared by the attention ops: which worker owns which positions.

Cache positions are dealt in blocks of geo.kv_block, block b of every head to split b % geo.kv_splits. Worker tables
attn.head and attn.split name the (kv head, split) a worker serves; head -1 means none. In a batch every sequence has
kv heads of its own: head s * kv_heads + h is kv head h of sequence s (`Geometry.caches` in all). A split therefore owns
the same positions in every token, so cache rows never cross workers inside a launch.
"""

from __future__ import annotations

from amk.schedule_ir.expr import Env
from amk.schedule_ir.ops.base import Geometry, split

PARTIAL_EXTRA = 4
"""f32 words after the head_dim outputs of one partial: running maximum, sum of weights, two of padding."""


def place(env: Env) -> tuple[int, int]:
    """(kv head, split) of the worker; head is -1 when it takes no part."""
    return env.number("attn.head"), env.number("attn.split")


def active_splits(pos: int, geo: Geometry) -> int:
    """Number of splits that own at least one of positions 0..pos; they are splits 0..n-1."""
    return min(geo.kv_splits, pos // geo.kv_block + 1)


def owns_position(pos: int, split_index: int, geo: Geometry) -> bool:
    return (pos // geo.kv_block) % geo.kv_splits == split_index


def agent_positions(pos: int, split_index: int, agent: int, agents: int, geo: Geometry) -> list[tuple[int, int]]:
    """Runs [lo, hi) of positions <= pos that `agent` reads: its contiguous share of every block of the split."""
    a0, a1 = split(geo.kv_block, agents, agent)
    runs = []
    for lap in range((pos // geo.kv_block - split_index) // geo.kv_splits + 1):
        first = (split_index + lap * geo.kv_splits) * geo.kv_block
        lo, hi = first + a0, min(first + a1, pos + 1)
        if lo < hi:
            runs.append((lo, hi))
    return runs


def group_size(geo: Geometry) -> int:
    """Query heads per kv head."""
    return geo.model.heads // geo.model.kv_heads


def partial_width(geo: Geometry) -> int:
    return geo.model.head_dim + PARTIAL_EXTRA
