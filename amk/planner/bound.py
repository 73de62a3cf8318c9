"""A time that no completion of a prefix can beat, in the simulator's own terms.

    bound(prefix) = max(floor, drain(prefix))

drain: the busiest warp drains its chunks of every gemv, and while a step waits for one gemv it drains no other. What is
not decided yet counts as its cheapest value: more warps are never slower to drain, nor are larger chunks or no fence.
The memory's own time is the floor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from amk.models.matrices import MATRICES, ROWS_PER_GROUP, matrix
from amk.models.model_spec import ModelSpec
from amk.planner.decode import choose_workers
from amk.planner.formats import Layered
from amk.planner.settings import SMALL_COPY, Settings
from amk.planner.space import ALLOWED
from amk.simulator.constants import Constants
from amk.targets.target import Target
from amk.weights.weight_format import weight_format

MOST_CTAS = max(v for v in ALLOWED["ctas_per_sm"] if isinstance(v, int))
MOST_WARPS = max(v for v in ALLOWED["warps"] if isinstance(v, int))


def drain_ms(
    model: ModelSpec,
    target: Target,
    formats: Layered,
    constants: Constants,
    settings: Mapping[str, Any],
    batch: int = 1,
) -> float:
    """Lower bound in ms; `settings` are the decided knobs, batch the sequences that are decoded together."""
    ctas = settings.get("ctas_per_sm", MOST_CTAS)
    workers = settings.get("workers") or choose_workers(model, target, batch, ctas)
    if "workers" not in settings:
        workers = target.sms * ctas
    warps = settings.get("warps", MOST_WARPS)
    fence = constants.refill_fence_us if settings.get("refill_fence") and target.has("bulk_copy") else 0.0
    total = 0.0
    for name in MATRICES:
        shape = matrix(model, name)
        groups = -(-shape.groups // workers)
        handled = groups * ROWS_PER_GROUP * shape.k * 2 / warps
        us = handled / (constants.chunk_gbps * 1e3)
        if settings.get("chunk_bytes"):
            bits = min(weight_format(forms[name]).bits for _, forms in formats)
            limit = settings["chunk_bytes"] or 2 * SMALL_COPY
            columns = max(limit * 8 // (ROWS_PER_GROUP * bits), 1)
            us += groups * shape.k / columns / warps * (constants.chunk_us + fence)
        total += us * (model.layers if shape.per_layer else 1)
    return total / 1e3


def decided(settings: Settings, names: Sequence[str]) -> dict[str, Any]:
    """The knobs `names` of `settings`."""
    return {name: getattr(settings, name) for name in names}
