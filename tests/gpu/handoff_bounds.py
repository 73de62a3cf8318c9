"""What structures with other hand-offs could gain, from a record of `probe_handoffs`: needs no GPU.

    python -m tests.gpu.handoff_bounds tests/records/speed/h100-handoffs.json

A bound replaces the measured time of each hand-off of a layer by that of the structure, and takes all of it to be on
the critical path; it is at most what a kernel gained without waits and staging. The hand-offs are those beside idle
memory: a kernel's rings are full or empty while it waits, and beside streams that never pause a hand-off takes five to
fifteen times as long as its waits are worth. The prediction is a third of the bound: so much came of earlier ones.
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
    """A case of the table with its time; exposed: what it gains without waits and staging, which no hand-off can beat
    (of ablations; None: not measured). ms."""

    name: str
    model: str
    batch: int
    ms: float
    exposed: float | None = None


class Handoffs:
    """Microseconds that a hand-off adds to a round while nothing else is in flight, by kernel, cluster and words."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.resident = {each["cluster"]: each["resident"] for each in record["residency"]}
        self.rows = [r for r in record["rows"] if "us" in r and r["slots"] == 0]

    def round(self, kernel: str, words: int, cluster: int, **more: Any) -> float:
        """Of the nearest sizes measured, in between by size."""
        wanted = {"kernel": kernel, "cluster": cluster} | more
        found = {r["words"]: r["us"] for r in self.rows if all(r[name] == value for name, value in wanted.items())}
        sizes = sorted(found)
        if not sizes or not sizes[0] <= words <= sizes[-1]:
            raise KeyError(f"{kernel} of {words} words in clusters of {cluster}")
        return float(np.interp(words, sizes, [found[size] for size in sizes]))

    def us(self, kernel: str, words: int, cluster: int = 1, **more: Any) -> float:
        return self.round(kernel, words, cluster, **more) - self.round("local", words, 1)

    def words(self, words: int) -> float:
        """Tagged words as they are handed over today."""
        return self.us("words", words, slack=16)

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
    gain = model.layers * structure(h, model, cluster) / 1e3
    return gain if row.exposed is None else min(gain, row.exposed)


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
    h = Handoffs(record)
    lines = [
        "| case, ms | structure | blocks of a cluster | bound, ms | predicted, ms | go |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        for name, structure, clusters in SINGLE if row.batch == 1 else BATCHES:
            for cluster in clusters:
                gain = bound_ms(h, row, structure, cluster)
                word, shown = verdict(h, row, structure, cluster, gain), str(cluster) if cluster > 1 else "-"
                came = f"{max(gain, 0) * CAME_OF_EARLIER:.3f}"
                lines.append(f"| {row.name}, {row.ms:.3f} | {name} | {shown} | {gain:+.3f} | {came} | {word} |")
    return "\n".join(lines)


ROWS = (
    Row("llama3.2-1b int8", "llama3.2-1b", 1, 0.414, 0.433 - 0.322),
    Row("llama3.2-1b bf16", "llama3.2-1b", 1, 0.665, 0.665 - 0.576),
    Row("llama3-8b int4-g128", "llama3-8b", 1, 1.220, 1.262 - 0.991),
    Row("llama3-8b int8", "llama3-8b", 1, 1.919, 1.992 - 1.737),
    Row("llama3-8b bf16, batch 8", "llama3-8b", BATCH, 3.939),
)
"""Of an H200: h200-table.json, h200-ablations.json."""


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), ROWS))
