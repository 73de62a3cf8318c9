"""Real planner output for small test targets: 2 to 8 SMs, 1 to 2 layers; what the generators mutate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from amk.adversary.edits import Edit, Json, Path, steps
from amk.adversary.recipe import TINY
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.settings import FAST, PHASED, Settings
from amk.targets.target import load_target

CONTEXT = 12
SETTINGS: dict[str, Settings] = {
    "fenced": replace(PHASED, wide_epilogue=4096),
    "wide": replace(PHASED, wide_epilogue=0),
    "heads": replace(PHASED, wide_epilogue=4096, head_handoff=True),
    "tagged": replace(FAST, handoff="tagged"),
}
FENCED = ("fenced", "fenced", "wide", "heads")
SHAPES = ((2, 2, 1), (2, 2, 1), (2, 2, 2), (2, 1, 2), (3, 2, 1), (4, 1, 1), (4, 2, 1), (5, 1, 1), (8, 1, 1))
"""(workers, warps, layers); small ones are drawn more often."""


SHARES = tuple(f"{key}.count" for key in ("qkv", "hidden", "gate_up", "lm_head"))
"""Tables that say how many row groups of a product each worker has."""


@dataclass(frozen=True)
class Subject:
    """A safe plan as JSON, and its size. The document is shared: edit copies."""

    document: Json
    kind: str
    workers: int
    warps: int
    layers: int


_MODEL: ContextVar[ModelSpec | None] = ContextVar("_MODEL", default=None)


@contextmanager
def full_size(model: ModelSpec) -> Iterator[None]:
    """Inside, every subject is the plan of this model for a whole h200, whatever size is asked for."""
    token = _MODEL.set(model)
    try:
        yield
    finally:
        _MODEL.reset(token)


def subject(kind: str, workers: int, warps: int, layers: int, gpu: str = "h200", ffn: int = TINY.ffn) -> Subject:
    """The plan of a tiny model on a target of as many SMs as the plan has workers; or see `full_size`."""
    model = _MODEL.get()
    return _small(kind, workers, warps, layers, gpu, ffn) if model is None else _full(kind, model)


@lru_cache(maxsize=32)
def _full(kind: str, model: ModelSpec) -> Subject:
    schedule = plan(model, load_target("h200"), settings=SETTINGS[kind])
    document = json.loads(schedule.model_dump_json())
    return Subject(document, kind, schedule.launch.workers, schedule.launch.warps, model.layers)


@lru_cache(maxsize=512)
def _small(kind: str, workers: int, warps: int, layers: int, gpu: str, ffn: int) -> Subject:
    target = load_target(gpu).model_copy(update={"sms": workers, "name": f"{gpu}-of-{workers}-sms"})
    model = TINY.model_copy(update={"layers": layers, "max_context": CONTEXT, "ffn": ffn})
    settings = replace(SETTINGS[kind], warps=warps, kv_block=4)
    schedule = plan(model, target, settings=settings, workers=workers)
    return Subject(json.loads(schedule.model_dump_json()), kind, workers, warps, layers)


def draw(
    rng: Random, kinds: tuple[str, ...] = FENCED, least: int = 2, warps: int | None = None, layers: int | None = None
) -> Subject:
    """A random subject of one of these kinds with at least this many workers."""
    shapes = [s for s in SHAPES if s[0] >= least and warps in (None, s[1]) and layers in (None, s[2])]
    return subject(rng.choice(kinds), *rng.choice(shapes))


def bodies(document: Json) -> list[Path]:
    """Paths of every step list."""
    return sorted({path[:-1] for path, _ in steps(document)}, key=str)


def waits(document: Json) -> list[tuple[Path, Json]]:
    """Every wait with its path."""
    return [((*p, "waits", i), w) for p, s in steps(document) for i, w in enumerate(s["waits"])]


def signals(document: Json) -> list[tuple[Path, Json]]:
    """Every signal with its path."""
    return [((*p, "signals", i), w) for p, s in steps(document) for i, w in enumerate(s["signals"])]


def users(document: Json, counter: str) -> tuple[list[Path], list[Path]]:
    """Paths of the waits for a counter and of the signals to it."""
    return (
        [p for p, w in waits(document) if w["counter"] == counter],
        [p for p, s in signals(document) if s["counter"] == counter],
    )


def move(document: Json, path: Path, by: int) -> list[Edit]:
    """The step some places earlier or later in its own list, as far as the list goes."""
    body: Json = document
    for part in path[:-1]:
        body = body[part]
    place = min(max(int(path[-1]) + by, 0), len(body) - 1)
    return [Edit("remove", path), Edit("insert", (*path[:-1], place), body[int(path[-1])])]


def split_programs(document: Json, first: int) -> list[Edit]:
    """Workers 0..first-1 and the others run copies of the one program, `programs/0` and `programs/1`."""
    program = document["programs"][0]
    rest = program | {"name": "other", "first": first, "count": program["count"] - first}
    return [Edit("replace", ("programs", 0), program | {"count": first}), Edit("insert", ("programs", 1), rest)]


def table(document: Json, name: str, column: list[int]) -> Edit:
    """A new or changed table."""
    if name in document["tables"]:
        return Edit("replace", ("tables", name), column)
    return Edit("replace", ("tables",), document["tables"] | {name: column})


def reshare(document: Json, key: str, counts: list[int]) -> list[Edit]:
    """Other numbers of row groups per worker, in order, with shared memory for the largest share of any product."""
    firsts = [sum(counts[:i]) for i in range(len(counts))]
    edits = [Edit("replace", ("tables", f"{key}.count"), counts), Edit("replace", ("tables", f"{key}.first"), firsts)]
    end = -(-document["launch"]["shared_bytes"] // 128) * 128
    others = [max(column) for name, column in document["tables"].items() if name in SHARES and name != f"{key}.count"]
    warps, most = document["launch"]["warps"], max(*counts, *others)
    for i, buffer in enumerate(document["buffers"]):
        wanted = {"residual": [max(counts) * 8], "part": [most + warps, 8]}.get(buffer["name"])
        if wanted is None or (buffer["name"] == "residual" and key != "hidden"):
            continue
        edits.append(Edit("replace", ("buffers", i, "offset"), end))
        edits.append(Edit("replace", ("buffers", i, "shape"), wanted))
        end += -(-4 * wanted[0] * (8 if len(wanted) > 1 else 1) // 128) * 128
    return [*edits, Edit("replace", ("launch", "shared_bytes"), end)]
