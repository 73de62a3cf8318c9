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
    "step": "one op with the hand-offs that it waits for and gives",
    "barrier": "a barrier of a worker's warps; it orders shared memory, nothing between workers",
    "counter": "32-bit numbers in device memory; a signal adds (release), a wait looks until at_least (acquire)",
    "hand-off": "what one worker writes and another reads, ordered by a signal and a wait on one counter",
    "tagged words": "activations whose every word carries the tag of its round, so that readers need no counter",
    "stream": "weights on their way through a ring of slots in shared memory",
    "ring, slots, run_ahead": "refills go ahead of use by as many slots; run_ahead lets them pass a layer's end",
    "refill_fence": "orders the reads of a slot before it is refilled; a ring without it needs another order",
    "held refills (deferred)": "refills that a step leaves to later ones, so that its own reads come first",
    "share": "row groups of a matrix that a worker computes; tables NAME.first and NAME.count hold them",
    "phase": "steps between two waits; a layer's phases are qkv, attention, o, gate_up, down",
    "floor": "bytes of a step over the memory's bandwidth: no schedule is faster",
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
