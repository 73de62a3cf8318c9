"""Which matrix is stored in which format, and how wide its chunks are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from math import gcd

from amk.models.matrices import LAYERED, MATRICES, ROWS_PER_GROUP, MatrixName, label, matrix
from amk.models.model_spec import ModelSpec
from amk.report.diagnostic import AmkError, Diagnostic
from amk.weights.weight_format import Chunk, FormatName, weight_format

Formats = Mapping[MatrixName, FormatName]
Layered = tuple[tuple[int, Formats], ...]
"""Runs of layers, in order: how many, and the formats of their matrices. lm_head, which belongs to none, has the same
format in all of them.
"""
Chunks = dict[MatrixName, Chunk]
Runs = tuple[tuple[int, Chunks], ...]
"""The same with chunks."""

SMALLEST_CHUNK = 512
"""Bytes of codes: one tile."""


def formats(layers: FormatName = "bf16", lm_head: FormatName | None = None) -> dict[MatrixName, FormatName]:
    """The same format for every matrix of the layers, and one for lm_head (the same unless given)."""
    return dict.fromkeys(MATRICES, layers) | {"lm_head": lm_head or layers}


BF16 = formats()


def layered(model: ModelSpec, formats: Formats | Layered) -> Layered:
    """`formats` by runs of layers; ValueError unless these are all layers of the model, with one format of lm_head."""
    if not isinstance(formats, tuple):
        return ((model.layers, formats),)
    counts = [count for count, _ in formats]
    if sum(counts) != model.layers or min(counts) < min(model.layers, 1):
        raise ValueError(f"the runs have {counts} layers, {model.name} has {model.layers}")
    if len({forms["lm_head"] for _, forms in formats}) != 1:
        raise ValueError("lm_head belongs to no layer and has one format")
    return formats


def runs_of(layers: Sequence[Formats]) -> Layered:
    """The formats of every layer, as runs of layers that are alike."""
    return tuple((len(list(alike)), formats) for formats, alike in groupby(layers))


def label_of(formats: Layered) -> str:
    """A short name of the formats."""
    return label(formats[0][1]) if len(formats) == 1 else LAYERED


def chunk_widths(model: ModelSpec, chunk_bytes: int, names: tuple[MatrixName, ...] = MATRICES) -> list[int]:
    """Columns a bf16 chunk may have, widest first: they divide the k of `names`, by 32, at most `chunk_bytes`.

    AMK011 if there is none: the tensor-core tile is 32 columns wide.
    """
    common = gcd(*(matrix(model, name).k for name in names))
    widest = chunk_bytes // (2 * ROWS_PER_GROUP)
    fits = [w for w in range(32, widest + 1, 32) if common % w == 0]
    if not fits:
        message = f"no chunk of 32 columns divides the widths of {model.name} (their common divisor is {common})"
        raise AmkError(Diagnostic("AMK011", message))
    return fits[::-1]


def chunk_choices(
    model: ModelSpec, chunk_bytes: int, formats: Formats | Layered, scales_apart: bool = False, parts: int = 1
) -> list[Runs]:
    """Chunks of every matrix with at most `chunk_bytes` of codes each, largest first; parts: of the columns of `down`,
    each of whole chunks where that is possible.
    """
    runs = layered(model, formats)
    plain = tuple(name for name in MATRICES if any(forms[name] == "bf16" for _, forms in runs))
    if plain:
        limits = [(2 * ROWS_PER_GROUP * w, w) for w in chunk_widths(model, chunk_bytes, plain)]
    else:
        limits = [(chunk_bytes >> n, 0) for n in range(8) if chunk_bytes >> n >= SMALLEST_CHUNK]
    return [
        tuple((count, _chunks(model, forms, limit, width, scales_apart, parts)) for count, forms in runs)
        for limit, width in limits or [(SMALLEST_CHUNK, 0)]
    ]


def _chunks(model: ModelSpec, forms: Formats, limit: int, width: int, scales_apart: bool, parts: int) -> Chunks:
    """Chunks of `width` columns in bf16, of at most `limit` bytes of codes in other formats."""
    return {
        name: Chunk(format="bf16", columns=width)
        if forms[name] == "bf16"
        else _chunk(model, name, forms[name], limit, scales_apart, parts if name == "down" else 1)
        for name in MATRICES
    }


def _chunk(
    model: ModelSpec, name: MatrixName, form_name: FormatName, limit: int, scales_apart: bool, parts: int
) -> Chunk:
    """The widest chunk, of those with the least padding behind a row or, in several parts, behind each of them."""
    form, shape = weight_format(form_name), matrix(model, name)
    most = max(limit * 8 // (ROWS_PER_GROUP * form.bits), form.unit)
    widths = range(form.unit, most + 1, form.unit)
    part = -(-shape.k // parts)
    columns = min(widths, key=lambda width: (-(-part // width) * width, -width))
    return Chunk(format=form_name, columns=columns, apart=scales_apart and form.per_row)
