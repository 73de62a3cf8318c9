"""Candidate edits of everything that is no wait, signal or order: buffers, counters, fields, tables, launch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from amk.adversary.edits import Edit, Json
from amk.models.matrices import MATRICES, matrix
from amk.repair.scene import Candidate, Scene
from amk.targets.target import STATIC_SMEM_PER_BLOCK

ALIGN = 128


def launch(scene: Scene) -> Iterator[Candidate]:
    """A cooperative launch of one CTA an SM, with the shared memory that the buffers need."""
    now = scene.document["launch"]
    ends = [int(b["offset"]) + _bytes(scene, i) for i, b in _shared(scene)]
    need = -(-max(ends, default=0) // ALIGN) * ALIGN
    changes = {"cooperative": True, "ctas_per_sm": 1, "shared_bytes": need}
    for name, value in changes.items():
        if now[name] != value:
            yield Candidate(f"launch with {name} = {value}", [Edit("replace", ("launch", name), value)])
    limit = scene.schedule.target.smem_per_block - STATIC_SMEM_PER_BLOCK
    most = next((i for i, b in _shared(scene) if b["name"] == scene.document["streams"][0]["ring"]), None)
    if need > limit and most is not None:
        slots = scene.document["streams"][0]["slots"]
        yield Candidate("a shorter ring", [Edit("replace", ("streams", 0, "slots"), max(slots - 1, 1))])


def counters(scene: Scene) -> Iterator[Candidate]:
    """Counters start at 0, are fenced, seen by the whole GPU, and one a layer."""
    for i, counter in enumerate(scene.document["counters"]):
        for name, value in (("init", 0), ("scope", "gpu"), ("handoff", "fenced")):
            if counter[name] != value:
                text = f"counter '{counter['name']}' with {name} {value}"
                yield Candidate(text, [Edit("replace", ("counters", i, name), value)])
    for i, counter in enumerate(scene.document["counters"]):
        for d, size in enumerate(counter["shape"]):
            for wanted in (scene.schedule.model.layers, scene.schedule.model.kv_heads, size + 1):
                if wanted > size:
                    shape = [*counter["shape"][:d], wanted, *counter["shape"][d + 1 :]]
                    text = f"counter '{counter['name']}' with shape {shape}"
                    yield Candidate(text, [Edit("replace", ("counters", i, "shape"), shape)])


def streams(scene: Scene) -> Iterator[Candidate]:
    """The ring is fenced, fits its buffer, and belongs to the role that drains it."""
    size = {b["name"]: _bytes(scene, i) for i, b in enumerate(scene.document["buffers"])}
    for i, stream in enumerate(scene.document["streams"]):
        if not stream["refill_fence"]:
            yield Candidate("fence the refill of the ring", [Edit("replace", ("streams", i, "refill_fence"), True)])
        source = next(j for j, b in enumerate(scene.document["buffers"]) if b["name"] == stream["source"])
        if scene.document["buffers"][source]["role"] != "constant":
            text = f"'{stream['source']}' as a constant, written before the launch only"
            yield Candidate(text, [Edit("replace", ("buffers", source, "role"), "constant")])
        agents = scene.role_size(stream["role"])
        fits = size[stream["ring"]] // (agents * scene.schedule.streams[i].chunk_bytes)
        if stream["full"] is not None:
            fits = min(fits, size[stream["full"]] // (8 * agents))
        if 0 < fits != stream["slots"]:
            yield Candidate(f"a ring of {fits} slots", [Edit("replace", ("streams", i, "slots"), fits)])


def plain_operations(scene: Scene) -> Iterator[Candidate]:
    """What amk does not generate, and a schedule only says, becomes what it does: plain stores, barriers, copies."""
    for path, step in scene.near:
        for where, part, field, usual in ((path, step, "stores", "plain"), ((*path, "op"), step["op"], "kind", "sync")):
            if part.get(field, usual) != usual:
                text = f"{field} = {usual} in {scene.step_name(path)}"
                yield Candidate(text, [Edit("remove", (*where, field))])
    for i, stream in enumerate(scene.document["streams"]):
        if "descriptor" in stream:
            yield Candidate("copies by address", [Edit("remove", ("streams", i, "descriptor"))])


def overlaps(scene: Scene) -> Iterator[Candidate]:
    """A shared buffer that overlaps another, or is misaligned, moves to free bytes or to the next aligned offset."""
    shared = list(_shared(scene))
    spans = {i: (int(b["offset"]), int(b["offset"]) + _bytes(scene, i)) for i, b in shared}
    for i, buffer in shared:
        lo, hi = spans[i]
        clash = any(j != i and lo < end and start < hi for j, (start, end) in spans.items())
        if not clash and lo % ALIGN == 0:
            continue
        for start, end in _free(scene, list(spans.values())):
            at = -(-start // ALIGN) * ALIGN
            if at + hi - lo <= end and at != lo:
                text = f"'{buffer['name']}' at offset {at}"
                yield Candidate(text, [Edit("replace", ("buffers", i, "offset"), at)])
                break
        wanted = -(-lo // ALIGN) * ALIGN
        if wanted != lo:
            text = f"'{buffer['name']}' at offset {wanted}"
            yield Candidate(text, [Edit("replace", ("buffers", i, "offset"), wanted)])


def buffers(scene: Scene) -> Iterator[Candidate]:
    """A shared buffer moves behind everything else."""
    end = max((int(b["offset"]) + _bytes(scene, i) for i, b in _shared(scene)), default=0)
    end = -(-end // ALIGN) * ALIGN
    for i, buffer in _shared(scene):
        grown = end + -(-_bytes(scene, i) // ALIGN) * ALIGN
        edits = [Edit("replace", ("buffers", i, "offset"), end), Edit("replace", ("launch", "shared_bytes"), grown)]
        yield Candidate(f"'{buffer['name']}' at offset {end}, behind everything else", edits)


def tags(scene: Scene) -> Iterator[Candidate]:
    """Words carry a tag that differs from step to step: those of other buffers, and one a layer."""
    layers = scene.schedule.model.layers
    used = [b["tag"] for b in scene.document["buffers"] if b["tag"] is not None]
    common = sorted(({"t": layers, "l": 1, "1": 1}, *used), key=lambda tag: -used.count(tag))
    for i, buffer in enumerate(scene.document["buffers"]):
        if buffer["space"] != "global" or buffer["role"] != "scratch":
            continue
        for tag in common:
            if buffer["tag"] != tag or not buffer["tagged"]:
                edits = [Edit("replace", ("buffers", i, "tagged"), True), Edit("replace", ("buffers", i, "tag"), tag)]
                yield Candidate(f"tag the words of '{buffer['name']}' with {tag}", edits)


def shapes(scene: Scene) -> Iterator[Candidate]:
    """A buffer is as large as its siblings or as a dimension of the model."""
    model = scene.schedule.model
    sizes = (
        model.hidden,
        model.ffn,
        model.q_dim,
        model.q_dim + 2 * model.kv_dim,
        model.vocab,
        scene.schedule.kv.context,
    )
    for i, buffer in enumerate(scene.document["buffers"]):
        for d, size in enumerate(buffer["shape"]):
            for wanted in sorted({s for s in sizes if s > size}):
                shape = [*buffer["shape"][:d], wanted, *buffer["shape"][d + 1 :]]
                yield Candidate(
                    f"'{buffer['name']}' with shape {shape}", [Edit("replace", ("buffers", i, "shape"), shape)]
                )


def fields(scene: Scene) -> Iterator[Candidate]:
    """A field of an op near the finding: what other steps have there, the size of a role, or another buffer."""
    others: dict[str, list[Any]] = {}
    for _, step in scene.near:
        for name, value in step["op"].items():
            if name != "op" and value not in others.setdefault(name, []):
                others[name].append(value)
    for (path, step), name in itertools.product(scene.near, others):
        if (value := step["op"].get(name)) is None:
            continue
        for new in _alternatives(scene, name, value, others[name]):
            if new != value:
                text = f"{name} = {new} in {scene.step_name(path)}"
                yield Candidate(text, [Edit("replace", (*path, "op", name), new)])


def _alternatives(scene: Scene, name: str, value: Json, others: list[Any]) -> list[Any]:
    """Values of the same type that other steps have, the layer at hand, sizes of roles, buffers of the same space."""
    values: list[Any] = [{"l": 1}] if name == "layer" else []
    values += [other for other in others if type(other) is type(value)]
    if isinstance(value, int):
        sizes = [int(r["count"]) for r in scene.document["roles"]]
        values += [*sizes, *(size * scene.schedule.launch.workers for size in sizes)]
    if isinstance(value, str):
        space = {b["name"]: b["space"] for b in scene.document["buffers"]}
        values += [other for other in space if value in space and space[other] == space[value]]
    return values


def shares(scene: Scene) -> Iterator[Candidate]:
    """Shares without gaps and overlaps, even shares, each pair of attention once."""
    yield from _shares(scene)
    yield from _pairs(scene)


def tables(scene: Scene) -> Iterator[Candidate]:
    """Single entries, those of tables that waits and signals use first."""
    document = scene.document["tables"]
    mentioned = {name for kind in ("waits", "signals") for _, entry in scene.entries(kind) for name in _symbols(entry)}
    for name in [*(n for n in document if n in mentioned), *(n for n in document if n not in mentioned)]:
        column = document[name]
        for i, value in enumerate(column[:64]):
            for new in sorted({*column, value - 1, value + 1} - {value})[:6]:
                yield Candidate(f"{name}[{i}] = {new}", [Edit("replace", ("tables", name, i), new)])


def _symbols(entry: Json) -> set[str]:
    exprs = [*entry["index"], entry.get("at_least", 0), entry.get("add", 0)]
    return {name for expr in exprs if isinstance(expr, dict) for name in expr}


def _shares(scene: Scene) -> Iterator[Candidate]:
    document, workers = scene.document["tables"], scene.schedule.launch.workers
    groups = {("hidden" if m in ("o", "down") else m): matrix(scene.schedule.model, m).groups for m in MATRICES}
    for key, total in groups.items():
        first, count = f"{key}.first", f"{key}.count"
        if first not in document or count not in document:
            continue
        sums = [sum(document[count][:w]) for w in range(workers)]
        ends = [*document[first][1:], total]
        gaps = [end - start for start, end in zip(document[first], ends, strict=True)]
        even = [total * (w + 1) // workers - total * w // workers for w in range(workers)]
        starts = [total * w // workers for w in range(workers)]
        changes = {
            f"{first} as the sums of {count}": {first: sums},
            f"{count} up to the next {first}": {count: gaps},
            f"even shares of {key}": {first: starts, count: even},
        }
        for text, new in changes.items():
            if any(document[name] != column for name, column in new.items()):
                yield Candidate(text, [Edit("replace", ("tables", name), column) for name, column in new.items()])


def _pairs(scene: Scene) -> Iterator[Candidate]:
    """A worker that serves a pair of attention that another serves, gets one that none serves."""
    document, kv = scene.document["tables"], scene.schedule.kv
    pairs = list(zip(document["attn.head"], document["attn.split"], strict=True))
    every = [(h, s) for h in range(scene.schedule.turn_heads) for s in range(kv.splits)]
    missing = [pair for pair in every if pair not in pairs]
    for w, pair in enumerate(pairs):
        if pairs.count(pair) > 1 or (missing and pair not in every):
            for head, split in missing[:4]:
                edits = [
                    Edit("replace", ("tables", "attn.head", w), head),
                    Edit("replace", ("tables", "attn.split", w), split),
                ]
                yield Candidate(f"worker {w} serves head {head}, split {split}", edits)


def _shared(scene: Scene) -> Iterator[tuple[int, Json]]:
    for i, buffer in enumerate(scene.document["buffers"]):
        if buffer["space"] == "shared" and buffer["offset"] is not None:
            yield i, buffer


def _bytes(scene: Scene, index: int) -> int:
    return scene.schedule.buffers[index].bytes


def _free(scene: Scene, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Intervals of the launch's shared memory that no buffer uses."""
    gaps, at = [], 0
    for start, end in sorted(spans):
        if start > at:
            gaps.append((at, start))
        at = max(at, end)
    gaps.append((at, max(at, int(scene.document["launch"]["shared_bytes"]))))
    return gaps
