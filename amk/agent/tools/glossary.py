"""The terms of a schedule and the limits of a GPU, for whoever is to edit one."""

from __future__ import annotations

import json
from typing import Any, Final, get_args

from amk.schedule_ir.edits import kinds
from amk.targets.target import (
    MAX_REGISTERS_PER_THREAD,
    MAX_THREADS_PER_BLOCK,
    RESERVED_SMEM_PER_BLOCK,
    Target,
)

TERMS: Final = {
    "worker": "one thread block that stays on an SM for the whole launch; programs are run by ranges of workers",
    "warp, role": "a role names warps of a worker (first, count); a step's op says which role runs it",
    "step": "an op with operands, waits and signals, that all warps of a role run",
    "barrier": "a barrier of a worker's warps; it orders shared memory, nothing between workers",
    "counter": "32-bit numbers in device memory; a signal adds (release), a wait looks until at_least (acquire)",
    "hand-off": "a vector that some workers write and others read, and what orders the two: a counter or flag words",
    "flag word, tagged buffer": "a value and a tag in one store; a buffer of them: readers poll for the awaited tag",
    "stream": "weights on their way through a ring of slots in shared memory",
    "ring, slots, run_ahead": "refills go ahead of use by as many slots; run_ahead lets them pass a layer's end",
    "refill_fence": "orders the reads of a slot before it is refilled; a ring without it needs another order",
    "delayed refill": "a refill that a product leaves to a later step (held_refills)",
    "share": "the rows of a matrix that a worker computes; tables NAME.first and NAME.count hold them",
    "phase": "the steps between two hand-offs; a layer's phases are qkv, attention, o, gate_up, down",
    "floor": "the least time that reading a token's bytes takes, less those that the L2 can hold",
    "position": "number of cached tokens; the objective is the mean over several",
}
CLASSES: Final[dict[str, type[Any]]] = {
    cls.model_fields["do"].default: cls for cls in get_args(get_args(kinds.Edit)[0]) if cls is not kinds.Knobs
}
"""Kinds of edit by the word in `do`."""


def hardware(target: Target) -> dict[str, Any]:
    """Limits of the GPU; bytes and 10^9 bytes per second."""
    known = target.model_dump(mode="json", exclude={"sources", "aliases"})
    return known | {
        "max_threads_per_block": MAX_THREADS_PER_BLOCK, "max_registers_per_thread": MAX_REGISTERS_PER_THREAD,
        "reserved_smem_per_block": RESERVED_SMEM_PER_BLOCK,
    }  # fmt: skip


def of_kind(kind: str) -> str:
    """What an edit of this kind does, its fields, and one example of each place. KeyError if there is none."""
    schema = CLASSES[kind].model_json_schema()
    return json.dumps({"does": CLASSES[kind].__doc__, "fields": schema.get("properties"),
                       "definitions": schema.get("$defs", {})})  # fmt: skip
