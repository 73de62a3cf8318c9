"""Who owns what: row groups per worker, attention heads and splits, per-head hand-off weights."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from amk.models.matrices import ADDED, K_SPLIT, MATRICES, ROWS_PER_GROUP, MatrixName, matrix, share_table
from amk.models.model_spec import ModelSpec
from amk.planner.formats import BF16, Formats, Layered, layered
from amk.weights.weight_format import weight_format

Table = tuple[int, ...]

OWNED: dict[str, MatrixName] = {
    "hidden": "o", K_SPLIT: "o", "gate_up": "gate_up", "qkv": "qkv", "lm_head": "lm_head"
}  # fmt: skip
"""Share tables and the matrix whose row groups they count; o and down share one."""


def row_tables(
    model: ModelSpec,
    workers: int,
    formats: Formats | Layered = BF16,
    together: int = 1,
    k_splits: int = 1,
) -> dict[str, Table]:
    """first/count tables of every matrix; o and down share `hidden`, so a worker keeps its residual rows to itself.

    Every worker gets the same number of groups. The left-over ones go to those who stream the fewest bytes a token so
    far, heaviest matrix first. Rings run ahead across phases, so a worker's sum counts, not each phase.
    together: groups that one worker owns together, whose number divides that of every matrix. k_splits: workers that
    the columns of o and down are divided among: worker w has share w % k_splits of them.
    """
    load = [0] * workers
    tables: dict[str, Table] = {}
    for key, bits_per_row in sorted(streamed_bits(model, formats, k_splits).items(), key=lambda item: -item[1]):
        groups = matrix(model, OWNED[key]).groups
        splits = k_splits if key == K_SPLIT else 1
        first, counts = [0] * workers, [0] * workers
        for index in range(splits):
            found = _shared_out(groups // together, load[index::splits])
            counts[index::splits] = [together * count for count in found]
            first[index::splits] = [0, *accumulate(counts[index::splits])][:-1]
        load = [have + count * bits_per_row for have, count in zip(load, counts, strict=True)]
        tables[f"{key}.first"], tables[f"{key}.count"] = tuple(first), tuple(counts)
        if key == K_SPLIT:
            tables[f"{key}.index"] = tuple(worker % splits for worker in range(workers))
    return tables


def streamed_bits(model: ModelSpec, formats: Formats | Layered = BF16, k_splits: int = 1) -> dict[str, int]:
    """Bits of a row of each share table that are streamed for a token, divided by the number of layers."""
    runs = layered(model, formats)
    bits = {
        name: matrix(model, name).k * sum(count * weight_format(forms[name]).bits for count, forms in runs)
        for name in MATRICES
    }
    added = sum(bits[name] // k_splits for name in ADDED)
    return {
        "hidden": 0,
        share_table("o", k_splits): added,
        "gate_up": bits["gate_up"],
        "qkv": bits["qkv"],
        "lm_head": bits["lm_head"] // max(model.layers, 1),
    }


def loads(model: ModelSpec, formats: Formats | Layered, tables: dict[str, Table], k_splits: int) -> list[int]:
    """What every worker streams of all matrices, in the unit of `streamed_bits`."""
    each = streamed_bits(model, formats, k_splits)
    columns = [[weight * n for n in tables[f"{k}.count"]] for k, weight in each.items()]
    return [sum(worker) for worker in zip(*columns, strict=True)]


def _shared_out(groups: int, load: list[int]) -> Table:
    """Equal counts, one more for the least loaded."""
    each, left = divmod(groups, len(load))
    lightest = set(sorted(range(len(load)), key=lambda w: (load[w], w))[:left])
    return tuple(each + (w in lightest) for w in range(len(load)))


def attention_tables(
    heads: int, splits: int, load: list[int], attends: Literal["first", "spread", "light"] = "first"
) -> dict[str, Table]:
    """attn.head, attn.split: which of its heads' splits each worker serves; left-over workers serve none, head is -1,
    and wait like head 0.

    heads: KV heads of all sequences, of several turns those of the first. load: what each worker streams. attends: as
    `Settings` says.

    attn.serves: 1 for those that serve a head.
    """
    served, workers = heads * splits, len(load)
    order = sorted(range(workers), key=lambda w: (load[w], w)) if attends == "light" else range(workers)
    places = [(n % heads, n // heads) if attends == "spread" else (n // splits, n % splits) for n in range(served)]
    place = dict(zip(sorted(order[:served]), places, strict=True))
    head = [place.get(w, (-1, 0))[0] for w in range(workers)]
    return {
        "attn.head": tuple(head),
        "attn.split": tuple(place.get(w, (-1, 0))[1] for w in range(workers)),
        "attn.gate": tuple(max(h, 0) for h in head),
        "attn.serves": tuple(int(h >= 0) for h in head),
    }


@dataclass(frozen=True)
class PartHandoff:
    """A hand-off in parts: tables[k][w] is what worker w adds to part k's counter; every part's sum is `delta`."""

    tables: dict[str, Table]
    delta: int


Rows = tuple[int, int]


def head_handoff(model: ModelSpec, tables: dict[str, Table]) -> PartHandoff:
    """Signals of the qkv rows per kv head."""
    dim, group = model.head_dim, model.heads // model.kv_heads
    q, kv = model.heads * dim, model.kv_heads * dim
    spans = []
    for k in range(model.kv_heads):
        spans.append(
            [
                (k * group * dim, (k + 1) * group * dim),
                (q + k * dim, q + (k + 1) * dim),
                (q + kv + k * dim, q + kv + (k + 1) * dim),
            ]
        )
    return _part_handoff("qkv", spans, _rows(tables, "qkv", ROWS_PER_GROUP))


def act_handoff(model: ModelSpec, tables: dict[str, Table], parts: int) -> PartHandoff:
    """Signals of the activations per part of the columns of `down`; with a gate a row group has half as many."""
    spans = [[(model.ffn * p // parts, model.ffn * (p + 1) // parts)] for p in range(parts)]
    each = ROWS_PER_GROUP * model.ffn // matrix(model, "gate_up").rows
    return _part_handoff("act", spans, _rows(tables, "gate_up", each))


def _rows(tables: dict[str, Table], name: str, each: int) -> list[Rows]:
    """The rows of every worker, `each` of a row group."""
    return [(f * each, (f + c) * each) for f, c in zip(tables[f"{name}.first"], tables[f"{name}.count"], strict=True)]


def _part_handoff(name: str, spans: list[list[Rows]], rows: list[Rows]) -> PartHandoff:
    """Each worker that owns a row of a part adds 1, and the last one the rest: it makes all sums equal, so that one
    affine threshold serves every part."""
    owners = [[w for w, (a, b) in enumerate(rows) if any(max(a, lo) < min(b, hi) for lo, hi in s)] for s in spans]
    delta = max(len(o) for o in owners)
    out: dict[str, Table] = {}
    for k, own in enumerate(owners):
        adds = [0] * len(rows)
        for w in own:
            adds[w] = 1
        adds[own[-1]] += delta - len(own)
        out[f"{name}.to.{k}"] = tuple(adds)
    return PartHandoff(out, delta)
