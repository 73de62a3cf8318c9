"""What structures with other hand-offs could gain, from a record of `probe_handoffs`: needs no GPU.

    python -m tests.gpu.handoff_bounds tests/records/speed/h100-handoffs.json

A bound replaces the measured time of each hand-off of a layer by that of the structure, and takes all of it to be on
the critical path. The prediction is a third of the larger bound: so much came of earlier ones.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from amk.models.model import load_model
from amk.models.model_spec import ModelSpec

SMALL = 256
"""Words of what the workers of one KV head hand each other: queries, keys and values; sums of splits."""
BATCH, MOST_SLOTS = 8, 12
CAME_OF_EARLIER = 1 / 3
WORTH = 0.01
"""A structure is begun where the prediction is so much of a token's time."""


@dataclass(frozen=True)
class Row:
    """A case of the table with its time, ms."""

    name: str
    model: str
    batch: int
    ms: float


class Handoffs:
    """Microseconds that a hand-off adds to a round, by kernel, cluster and words.

    bursts: beside rings that are filled once a round, where a round lasts as long as the memory needs for that at
    least; else beside idle memory.
    """

    def __init__(self, record: dict[str, Any], bursts: bool) -> None:
        self.bursts = bursts
        self.resident = {each["cluster"]: each["resident"] for each in record["residency"]}
        wanted = (MOST_SLOTS, True) if bursts else (0, False)
        self.rows = [r for r in record["rows"] if "us" in r and (r["slots"], r.get("bursts", False)) == wanted]

    def round(self, kernel: str, words: int, cluster: int, **more: Any) -> float:
        """Of the nearest sizes measured, in between by size."""
        wanted = {"kernel": kernel, "cluster": cluster} | more
        found = {r["words"]: r["us"] for r in self.rows if all(r[name] == value for name, value in wanted.items())}
        sizes = sorted(found)
        if not sizes or not sizes[0] <= words <= sizes[-1]:
            raise KeyError(f"{kernel} of {words} words in clusters of {cluster}")
        return float(np.interp(words, sizes, [found[size] for size in sizes]))

    def us(self, kernel: str, words: int, cluster: int = 1, **more: Any) -> float:
        base = self.round("local", words, cluster if self.bursts else 1)
        return self.round(kernel, words, cluster, **more) - base

    def words(self, words: int) -> float:
        """Tagged words as they are handed over today."""
        return self.us("words", words)

    def sums(self, words: int) -> float:
        """Counting words to which every SM adds, the faster way."""
        return min(self.us("counting", words, adders=0), self.us("counting_bulk", words, adders=0))


def vectors(model: ModelSpec) -> tuple[int, int, int, int]:
    """Words that all SMs read in a layer: attention, both residuals, activations; two numbers in bf16 a word."""
    return (model.hidden // 2, model.hidden // 2, model.hidden // 2, model.ffn // 2)


def shared_staging(h: Handoffs, model: ModelSpec, cluster: int) -> float:
    return sum(h.words(n) - h.us("gather", n, cluster) for n in vectors(model))


def down_by_columns(h: Handoffs, model: ModelSpec, cluster: int) -> float:
    """The hand-off of the activations is no more, the residual is a sum over all SMs."""
    return h.words(model.ffn // 2) + h.words(model.hidden // 2) - h.sums(model.hidden)


def head_clusters(h: Handoffs, model: ModelSpec, cluster: int) -> float:
    """QKV, attention and O of a KV head in a cluster: the clusters add to the residual, two hand-offs of all remain."""
    before = 2 * h.words(SMALL) + 2 * h.words(model.hidden // 2)
    return before - 2 * h.us("inside", SMALL, cluster) - h.us("counting", model.hidden, adders=8)


def batch_multicast(h: Handoffs, model: ModelSpec, cluster: int) -> float:
    """A batch of 8: 64 KB of plain rows, of which each block of a cluster copies a part to all."""
    size = BATCH * model.hidden // 2
    three, act = h.words(size), h.us("plain", size) * model.ffn / model.hidden
    return 3 * three + act - (3 + model.ffn / model.hidden) * h.us("multicast", size, cluster)


def no_handoffs(h: Handoffs, model: ModelSpec, cluster: int) -> float:
    return 2 * h.words(SMALL) + sum(h.words(n) for n in vectors(model))


Structure = Callable[[Handoffs, ModelSpec, int], float]
SINGLE: tuple[tuple[str, Structure, tuple[int, ...]], ...] = (
    ("no hand-off at all", no_handoffs, (1,)),
    ("staging shared in a cluster", shared_staging, (2, 4, 8, 16)),
    ("counting words, `down` by columns", down_by_columns, (1,)),
    ("a cluster of 16 for each KV head", head_clusters, (16,)),
)
BATCHES: tuple[tuple[str, Structure, tuple[int, ...]], ...] = (
    ("staging by multicast in a cluster", batch_multicast, (1, 2, 4, 8, 16)),
)


def bound_ms(h: Handoffs, row: Row, structure: Structure, cluster: int) -> float:
    """What a token gains at most; negative where the structure costs time even so."""
    model = load_model(row.model)
    return model.layers * structure(h, model, cluster) / 1e3


def verdict(h: Handoffs, row: Row, structure: Structure, cluster: int, gain: float) -> str:
    if structure is no_handoffs:
        return "a bound, not a design"
    heads = load_model(row.model).kv_heads
    if structure is head_clusters and h.resident[cluster] < heads:
        return f"no: {h.resident[cluster]} clusters are resident, the model has {heads} KV heads"
    if gain <= 0:
        return "no: it costs more than it saves"
    share = gain * CAME_OF_EARLIER / row.ms
    return f"go: {share:.1%} predicted" if share >= WORTH else f"no: {share:.1%} predicted"


def table(record: dict[str, Any], rows: Sequence[Row]) -> str:
    idle, bursts = (Handoffs(record, which) for which in (False, True))
    lines = ["| case, ms | structure | blocks of a cluster | bound beside idle memory, ms | beside bursts, ms | go |"]
    lines.append("|---|---|---|---|---|---|")
    for row in rows:
        for name, structure, clusters in SINGLE if row.batch == 1 else BATCHES:
            for cluster in clusters:
                gains = [bound_ms(h, row, structure, cluster) for h in (idle, bursts)]
                told = verdict(idle, row, structure, cluster, max(gains))
                shown = str(cluster) if cluster > 1 else "-"
                lines.append(
                    f"| {row.name}, {row.ms:.3f} | {name} | {shown} | {gains[0]:+.3f} | {gains[1]:+.3f} | {told} |"
                )
    return "\n".join(lines)


ROWS = (
    Row("llama3.2-1b int8", "llama3.2-1b", 1, 0.418),
    Row("llama3.2-1b bf16", "llama3.2-1b", 1, 0.657),
    Row("llama3-8b int4-g128", "llama3-8b", 1, 1.233),
    Row("llama3-8b int8", "llama3-8b", 1, 1.953),
    Row("llama3-8b bf16, batch 8", "llama3-8b", BATCH, 3.939),
)
"""Of one H200."""


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), ROWS))
