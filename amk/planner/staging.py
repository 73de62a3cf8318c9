"""The shared arrays of staged vectors: which layouts a plan needs, where they lie, and which of them an op names.

Every layout of a vector has an array of its own; they lie on the same bytes, since a product's vector is gone when the
next one is staged. Only what QKV and lm_head multiply may be staged in two layouts at once: for the next layer and for
lm_head, or for the next layer of either of two runs of layers. Where there are two, lm_head's has an array behind the
other, which QKV of the same layout reads too, and all are whole blocks.
"""

from __future__ import annotations

from itertools import product
from typing import TypedDict

from amk.models.matrices import MatrixName, matrices_of, matrix
from amk.models.model_spec import ModelSpec
from amk.planner.formats import Formats, Layered, layered
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.memory import Buffer
from amk.weights.block_point import BLOCK, whole_blocks
from amk.weights.codes import Staged
from amk.weights.weight_format import weight_format

NAMES: dict[Staged, str] = {"bf16": "x", "digits": "x_digits", "halves": "x_halves"}
HEAD, SCALES, SUMS = "x_head", "x_scales", "x_sums"
DOWN, DOWN_SUMS = "x_down", "part_down"
"""What `down` reads, and its sums, where its parts are wider than those of all others."""


class Read(TypedDict):
    """Fields of a product."""

    x: str
    scales: str | None
    sums: str | None


class Written(Read):
    """Fields of an op that stages."""

    also: str | None


def layout(name: MatrixName, formats: Formats, vectors: int) -> Staged:
    return weight_format(formats[name]).staged(vectors)


def head_layout(formats: Layered, vectors: int) -> Staged | None:
    """The layout of lm_head's vector if it has an array of its own: if QKV of some layers multiplies another one.

    AMK016 for more than two layouts.
    """
    kinds = [layout("lm_head", formats[0][1], vectors), *(layout("qkv", forms, vectors) for _, forms in formats)]
    if len(set(kinds)) > 2:
        message = f"QKV and lm_head multiply vectors in {len(set(kinds))} layouts: {', '.join(sorted(set(kinds)))}"
        raise AmkError(Diagnostic("AMK016", message, help="two layouts are staged at once, no more"))
    return kinds[0] if len(set(kinds)) == 2 else None


def array(name: MatrixName, forms: Formats, head: Staged | None, vectors: int) -> str:
    """The array that the product of matrix `name` reads; head: as `head_layout` says."""
    own = layout(name, forms, vectors)
    return HEAD if name in ("qkv", "lm_head") and own == head else NAMES[own]


def read_by(name: MatrixName, forms: Formats, head: Staged | None, vectors: int) -> Read:
    """What the product of matrix `name` reads."""
    blocks, sums = layout(name, forms, vectors) != "bf16", weight_format(forms[name]).sums(vectors)
    return Read(x=array(name, forms, head, vectors), scales=SCALES if blocks else None, sums=SUMS if sums else None)


def staged_for(head: Staged | None, vectors: int, *readers: tuple[MatrixName, Formats]) -> Written:
    """What an op writes whose vector these matrices, with their formats, multiply."""
    reads = [read_by(name, forms, head, vectors) for name, forms in readers]
    arrays = list(dict.fromkeys(read["x"] for read in reads))
    scales = next((r["scales"] for r in reads if r["scales"]), None)
    sums = next((r["sums"] for r in reads if r["sums"]), None)
    return Written(x=arrays[0], also=arrays[1] if len(arrays) > 1 else None, scales=scales, sums=sums)


def staged_arrays(
    model: ModelSpec, formats: Formats | Layered, vectors: int = 1, k_parts: int = 1, x_parts: int = 1
) -> list[Buffer]:
    """The arrays at their places from byte 0 on; k_parts, x_parts: steps that the product of `down`, and those of all
    others, are done in."""
    runs = layered(model, formats)
    head = head_layout(runs, vectors)
    sizes: dict[str, tuple[Staged, int]] = {}
    blocks = sums = 0
    for (_, forms), name in product(runs, matrices_of(model)):
        read = read_by(name, forms, head, vectors)
        k = -(-matrix(model, name).k // (k_parts if name == "down" else x_parts))
        count = k if read["scales"] is None and head is None else whole_blocks(k) * BLOCK
        sizes[read["x"]] = layout(name, forms, vectors), max(count, sizes.get(read["x"], ("bf16", 0))[1])
        blocks = max(blocks, whole_blocks(k) if read["scales"] else 0)
        sums = max(sums, whole_blocks(k) if read["sums"] else 0)
    first = whole_blocks(model.hidden) * BLOCK * 2
    out = [shared(x, form, count, first if x == HEAD else 0, vectors) for x, (form, count) in sizes.items()]
    for x, count in ((SCALES, blocks), (SUMS, sums)):
        if count:
            out.append(shared(x, "f32", count, free_from(out)))
    return out


def free_from(buffers: list[Buffer]) -> int:
    """The first place for another array."""
    return max(-(-((b.offset or 0) + b.bytes) // 128) * 128 for b in buffers)


def shared(name: str, dtype: str, count: int, offset: int, vectors: int = 1) -> Buffer:
    """Of several vectors, rows are 64 bytes apart modulo 128: what lanes read together lies in different banks."""
    shape = (count,) if vectors == 1 else (vectors, -(-count // 64) * 64 + 32)
    return Buffer.model_validate({"name": name, "space": "shared", "dtype": dtype, "shape": shape, "offset": offset})
