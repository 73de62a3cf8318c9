"""How many of a split's blocks attention holds in registers at a time: more bytes in flight, nearer the read rate."""

from __future__ import annotations

from amk.schedule_ir.memory import ITEM_BYTES
from amk.schedule_ir.schedule import Schedule

QUARTER = 4
"""Cache rows may take a quarter of a thread's registers: with more, nothing is left for sums, weights and addresses."""

PIECE = 16
"""Positions of a block that a warp takes at a time in a step of several rows; of a larger share, one block."""


def blocks_together(schedule: Schedule, agents: int) -> int:
    """Two where their rows fit, else one; `agents` share a block. See ops/attend.cuh for the shape of a lane's rows."""
    share = -(-schedule.kv.block // agents)
    if schedule.rows > 1 and share > PIECE:
        return 1
    loads = -(-share // 8) * 2 * -(-schedule.model.head_dim // 64)
    registers = 2 * loads * 8 * ITEM_BYTES[schedule.kv.dtype] // 4
    return 2 if 2 * registers * QUARTER <= schedule.launch.registers + 1 else 1
