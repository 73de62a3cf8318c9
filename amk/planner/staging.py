"""The shared arrays of staged vectors: which layouts a plan needs, where they lie, and which of them an op names.

Every layout of a vector has an array of its own; they lie on the same bytes, since a product's vector is gone when the
next one is staged. Only lm_head's may be staged together with another, that of the next layer's QKV: when the two
differ, lm_head has an array behind it.
"""

from __future__ import annotations

from typing import TypedDict

from amk.planner.formats import Formats
from amk.schedule_ir.block_point import BLOCK, whole_blocks
from amk.schedule_ir.matrices import MATRICES, MatrixName, matrix
from amk.schedule_ir.memory import Buffer
from amk.schedule_ir.model_spec import ModelSpec
from amk.schedule_ir.weight_format import Staged, weight_format

NAMES: dict[Staged, str] = {"bf16": "x", "digits": "x_digits", "halves": "x_halves"}
HEAD, SCALES, SUMS = "x_head", "x_scales", "x_sums"


class Read(TypedDict):
    """Fields of a product."""

    x: str
    scales: str | None
    sums: str | None


class Written(Read):
    """Fields of an op that stages."""

    also: str | None


def layout(name: MatrixName, wanted: Formats) -> Staged:
    return weight_format(wanted[name]).staged


def apart(wanted: Formats) -> bool:
    """Has lm_head's vector an array of its own."""
    return layout("lm_head", wanted) != layout("qkv", wanted)


def array(name: MatrixName, wanted: Formats) -> str:
    return HEAD if name == "lm_head" and apart(wanted) else NAMES[layout(name, wanted)]


def read_by(name: MatrixName, wanted: Formats) -> Read:
    """What the product of matrix `name` reads."""
    blocks, sums = layout(name, wanted) != "bf16", weight_format(wanted[name]).sums
    return Read(x=array(name, wanted), scales=SCALES if blocks else None, sums=SUMS if sums else None)


def staged_for(wanted: Formats, *names: MatrixName) -> Written:
    """What an op writes whose vector the matrices `names`, one or two, multiply."""
    reads = [read_by(name, wanted) for name in names]
    arrays = list(dict.fromkeys(read["x"] for read in reads))
    scales = next((r["scales"] for r in reads if r["scales"]), None)
    sums = next((r["sums"] for r in reads if r["sums"]), None)
    return Written(x=arrays[0], also=arrays[1] if len(arrays) > 1 else None, scales=scales, sums=sums)


def staged_arrays(model: ModelSpec, wanted: Formats, batch: int = 1, k_parts: int = 1) -> list[Buffer]:
    """The arrays at their places from byte 0 on; k_parts: steps that the product of `down` is done in."""
    sizes: dict[str, tuple[Staged, int]] = {}
    blocks = sums = 0
    for name in MATRICES:
        read, k = read_by(name, wanted), -(-matrix(model, name).k // (k_parts if name == "down" else 1))
        count = k if read["scales"] is None else whole_blocks(k) * BLOCK
        sizes[read["x"]] = layout(name, wanted), max(count, sizes.get(read["x"], ("bf16", 0))[1])
        blocks = max(blocks, whole_blocks(k) if read["scales"] else 0)
        sums = max(sums, whole_blocks(k) if read["sums"] else 0)
    first = whole_blocks(model.hidden) * BLOCK * 2
    out = [_shared(x, form, count, first if x == HEAD else 0, batch) for x, (form, count) in sizes.items()]
    for x, count in ((SCALES, blocks), (SUMS, sums)):
        if count:
            out.append(_shared(x, "f32", count, free_from(out)))
    return out


def free_from(buffers: list[Buffer]) -> int:
    """The first place for another array."""
    return max(-(-((b.offset or 0) + b.bytes) // 128) * 128 for b in buffers)


def _shared(name: str, dtype: str, count: int, offset: int, batch: int = 1) -> Buffer:
    """In a batch, rows are 64 bytes apart modulo 128: what lanes read together lies in different banks."""
    shape = (count,) if batch == 1 else (batch, -(-count // 64) * 64 + 32)
    return Buffer.model_validate({"name": name, "space": "shared", "dtype": dtype, "shape": shape, "offset": offset})
