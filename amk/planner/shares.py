"""Who owns what: row groups per worker, attention heads and splits, per-head hand-off weights."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from amk.schedule_ir.matrices import MATRICES, ROWS_PER_GROUP, matrix
from amk.schedule_ir.model_spec import ModelSpec

Table = tuple[int, ...]


def even_shares(groups: int, workers: int) -> tuple[Table, Table]:
    """(first, count) of contiguous shares that differ by at most one group."""
    bounds = [groups * w // workers for w in range(workers + 1)]
    return tuple(bounds[:-1]), tuple(b - a for a, b in pairwise(bounds))


def row_tables(model: ModelSpec, workers: int) -> dict[str, Table]:
    """first/count tables of every matrix; o and down share `hidden`, so a worker keeps its residual rows to itself."""
    tables: dict[str, Table] = {}
    for name in MATRICES:
        key = "hidden" if name in ("o", "down") else name
        tables[f"{key}.first"], tables[f"{key}.count"] = even_shares(matrix(model, name).groups, workers)
    return tables


def attention_tables(model: ModelSpec, workers: int, splits: int) -> dict[str, Table]:
    """attn.head, attn.split: worker w serves head w // splits; left-over workers serve none and wait like head 0."""
    served = model.kv_heads * splits
    head = [w // splits if w < served else -1 for w in range(workers)]
    return {
        "attn.head": tuple(head),
        "attn.split": tuple(w % splits if w < served else 0 for w in range(workers)),
        "attn.gate": tuple(max(h, 0) for h in head),
    }


@dataclass(frozen=True)
class HeadHandoff:
    """tables[k][w]: what worker w adds to head k's counter; every head's sum is `delta`."""

    tables: dict[str, Table]
    delta: int


def head_handoff(model: ModelSpec, tables: dict[str, Table]) -> HeadHandoff:
    """Signals of the qkv rows per kv head: each worker that owns a row of the head adds 1, and the last one the rest.

    The rest makes all sums equal, so one affine threshold serves every head.
    """
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
    rows = [
        (f * ROWS_PER_GROUP, (f + c) * ROWS_PER_GROUP)
        for f, c in zip(tables["qkv.first"], tables["qkv.count"], strict=True)
    ]
    owners = [[w for w, (a, b) in enumerate(rows) if any(max(a, lo) < min(b, hi) for lo, hi in s)] for s in spans]
    delta = max(len(o) for o in owners)
    out: dict[str, Table] = {}
    for k, own in enumerate(owners):
        adds = [0] * len(rows)
        for w in own:
            adds[w] = 1
        adds[own[-1]] += delta - len(own)
        out[f"qkv.to.{k}"] = tuple(adds)
    return HeadHandoff(out, delta)
