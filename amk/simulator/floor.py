"""The speed of light of a decode step: bytes that must cross the memory bus, over what the bus can carry."""

from __future__ import annotations

from amk.schedule_ir.memory import ITEM_BYTES
from amk.schedule_ir.schedule import Schedule
from amk.simulator.constants import Constants


def moved_bytes(schedule: Schedule, pos: int) -> int:
    """Bytes a token at `pos` must read: the packed weights, and the cache up to and including `pos`."""
    model = schedule.model
    weights = sum(b.bytes for b in schedule.buffers if b.name in {s.source for s in schedule.streams})
    return weights + 2 * model.layers * schedule.caches * (pos + 1) * model.head_dim * ITEM_BYTES[schedule.kv.dtype]


def simulated_floor_ms(schedule: Schedule, pos: int, constants: Constants | None = None) -> float:
    """(bytes - L2 capacity) / read ceiling in ms: no prediction is below it. A ceiling that was assumed is replaced by
    the rate of the constants, which may have been learned from a card."""
    target = schedule.target
    if constants is None or target.read_ceiling_measured:
        return _ms(schedule, pos, target.read_ceiling_gbps)
    return _ms(schedule, pos, constants.read_gbps)


def floor_ms(schedule: Schedule, pos: int) -> float:
    """The same for what was measured: a ceiling that was assumed is replaced by the data sheet's rate, because a result
    below an assumption proves nothing."""
    target = schedule.target
    rate = target.read_ceiling_gbps if target.read_ceiling_measured else target.hbm_gbps
    return _ms(schedule, pos, rate)


def _ms(schedule: Schedule, pos: int, gbps: float) -> float:
    return max(0, moved_bytes(schedule, pos) - schedule.target.l2_bytes) / (gbps * 1e6)
