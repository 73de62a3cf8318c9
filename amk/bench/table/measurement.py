"""What is to be measured: a schedule, a position and baselines, with the key of the row that it becomes."""

from __future__ import annotations

from dataclasses import dataclass

from amk.bench.table.row import Key
from amk.schedule_ir.schedule import Schedule


@dataclass(frozen=True)
class Measurement:
    schedule: Schedule
    key: Key


def measurement(
    schedule: Schedule, pos: int, *, tokens: int = 4, steps: int = 50, baselines: tuple[str, ...] = (), run: int = 1
) -> Measurement:
    """tokens of each launch: fewer where the cache ends, or the plan has no room for them."""
    tokens = max(1, min(tokens, schedule.kv.context - pos, schedule.launch.max_tokens))
    name, target = schedule.model.name, schedule.target.name
    key = Key(
        name, target, schedule.weights_label, schedule.plan, pos, tokens, steps, baselines, run, schedule.batch
    )  # fmt: skip
    return Measurement(schedule, key)
