"""Default plans of real models, shrunk so that the emulator runs them with the geometry that their op bodies have.

A default plan is what `amk plan` gives a model on its GPU. Its kernel has constants that no tiny model's kernel has:
columns that a warp stages, rows that it stages together, lanes that share a row, parts of an input, splits of a cache.
`shrunk` plans models of fewer layers, heads, rows and columns with the settings of the default plan, and takes those
whose kernels have most of these constants between them (`traits`) and whose run the emulator can afford.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import lcm
from typing import Any

from pydantic import ValidationError

from amk.lowering.emit import emit
from amk.models.matrices import matrices_of, matrix
from amk.models.model import load_model
from amk.models.model_spec import ModelSpec
from amk.planner.champions import champion_of
from amk.planner.decode import Sized, _scheduled, _sized, plan
from amk.planner.formats import formats, layered
from amk.planner.settings import FAST, Settings, turns_of
from amk.report.diagnostic import AmkError
from amk.schedule_ir.edits.apply import apply
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.weights.weight_format import FORMATS, FormatName, weight_format

MOST_WORK = 6_000_000
"""Warp instructions of a step that are worth their time, by `work`."""
MOST_CLOCKS = 5_400_000_000
"""Bytes of clocks, by `clocks`; the emulator gives races up where they need more than a quarter of its memory."""
MOST_WARPS = 256
MOST_TURNS = 64
"""Turns in which a worker serves KV heads."""
MANY_SPLITS = 8
"""Splits of the cache that stand for more: from here on the planner has them reduced."""
MOST_CHOSEN = 4
"""Shrunk plans of a default plan."""
WIDE = 10
"""Row groups of a worker that stand for more."""
OF_SIZE = {
    "kHRow", "kAttnRow", "kQkvRow", "kOutRow", "kActRow", "kLogitsRow", "kPromptRow", "kBestIndexRow", "kBestValueRow",
    "kCandidates", "kKPart", "kDeferred", "kFirst", "kMost", "kSumsRow", "kKSumsRow", "kXRow", "kCut",
    "kCountedRow", "kTallyRow", "kGatheredRow", "kRound", "kNorm", "kNorms", "kHiddenRow", "kResidualRow",
}  # fmt: skip
"""Constants that only say how large a model or a grid is, or which part a step is of."""


Candidate = tuple[ModelSpec, Settings, int, int]
"""A shape, settings, workers and positions of the cache."""


@dataclass(frozen=True)
class Default:
    """The default plan of a model on a GPU for what is asked of it; forms: formats of layers and lm_head."""

    model: str
    gpu: str = "h200"
    forms: tuple[FormatName, FormatName] = ("bf16", "bf16")
    request: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        words = [self.model, self.gpu, *dict.fromkeys(self.forms)]
        return " ".join([*words, *(f"{key}={value}" for key, value in self.request)])

    @property
    def settings(self) -> Settings:
        return replace(FAST, **dict(self.request))


@cache
def sized(default: Default) -> tuple[Sized, tuple[Any, ...]]:
    """What the planner decided, and the edits of the champion where there is one."""
    model, target = load_model(default.model), load_target(default.gpu)
    runs = layered(model, formats(*default.forms))
    champion = champion_of(model, target, runs, default.settings)
    if champion is not None:
        found = _sized(model, target, default.settings, runs, None, None, champion.settings)
        if champion.edited(_scheduled(model, target, found)) is not None:
            return found, champion.edits
    return _sized(model, target, default.settings, runs, None, None), ()


@cache
def whole(default: Default) -> Schedule:
    """The default plan itself."""
    model, target = load_model(default.model), load_target(default.gpu)
    return plan(model, target, settings=default.settings, formats=formats(*default.forms))


STRUCT = re.compile(r"^struct S(\d+) \{\n(.*?)^\};", re.M | re.S)
CALL = re.compile(r"amk::ops::(\w+)<S(\d+)")
CONSTANTS = re.compile(r"static constexpr (?:int|bool) (k[^;]+);")
NUMBER = re.compile(r"static constexpr int (k\w+) = (\d+);")
MATRIX = re.compile(r"using Matrix = Plan::(\w+?)(?:Split)?;")
RING = re.compile(r"using Ring = (amk::\w+)<(\d+), (\d+), (.*)>;")
IN_PARTS = ("kKParts", "kKSplits")
"""Numbers of parts: one, or several."""
IN_COLUMNS = {"stage_norm": "hidden", "stage_attention": "q_dim", "stage": "ffn", "layer_norm": "hidden"}
OF_HEADS = ("rope_append", "attend", "merge", "reduce_splits", "stage_splits")
OF_TEXTS = ("begin", "select", "finish", "advance", "embed")


def traits(schedule: Schedule) -> frozenset[str]:
    """One for each op with its constants: what its body is compiled for, apart from the size of model and grid."""
    text, model = emit(schedule), schedule.model
    ops = {number: op for op, number in CALL.findall(text)}
    chunks = {name: schedule.streams[0].chunk(name, 0) for name in matrices_of(model)}
    heads = (model.head_dim, model.group, schedule.kv.block, schedule.kv.turns, schedule.kv.dtype)
    ring = RING.search(text)
    assert ring is not None
    found = set()
    for number, body in STRUCT.findall(text):
        if (op := ops.get(number)) is None:
            continue
        words = [word.partition(" = ") for line in CONSTANTS.findall(body) for word in line.split(", ")]
        numbers = {name: value for name, _, value in words}
        said = {name: value for name, value in numbers.items() if name not in OF_SIZE}
        said["vectors"] = str(schedule.vectors)
        said |= {name: "several" for name in IN_PARTS if int(said.get(name, 1)) > 1}
        cut = int(numbers.get("kKParts", 1)) * int(numbers.get("kKSplits", 1))
        if op in IN_COLUMNS:
            said["columns"] = str(getattr(model, IN_COLUMNS[op]) // cut)
        if owner := MATRIX.search(body):
            name = {"Qkv": "qkv", "O": "o", "GateUp": "gate_up", "Down": "down", "LmHead": "lm_head"}[owner[1]]
            chunk = chunks[name]
            said |= {"matrix": name, "width": str(chunk.columns), "format": chunk.format}
            if op == "gemv":
                said["ring"] = ring[1]
                said["columns"] = str(matrix(model, name).k // cut)
                found.add(f"gemv of {name}: defers {int(numbers.get('kDeferred', 0)) > 0}")
            elif rows_of_worker(schedule, name) > 64:
                said["rows"] = "many"
        if op.startswith((*OF_HEADS, *OF_TEXTS)):
            said |= {"live": str(schedule.live), "accepts": str(schedule.accepts)}
        if op.startswith(OF_HEADS):
            said["heads"] = str(heads)
            said |= {"splits": str(min(schedule.kv.splits, MANY_SPLITS)), "rows": str(schedule.rows)}
        found.add(f"{op}: " + ", ".join(f"{name} {value}" for name, value in sorted(said.items())))
    return frozenset(found | {f"ring: {ring.groups()}"})


def rows_of_worker(schedule: Schedule, name: str) -> int:
    table = {"o": "hidden", "down": "hidden"}.get(name, name)
    return 8 * max(schedule.tables[f"{table}.count"])


def work(schedule: Schedule) -> int:
    """About how many warp instructions a step takes."""
    model, vectors = schedule.model, schedule.vectors
    tiles = sum(
        matrix(model, name).groups * matrix(model, name).k // 32 * (1 if name == "lm_head" else model.layers)
        for name in matrices_of(model)
    )
    if schedule.headless:
        tiles -= matrix(model, "lm_head").groups * model.hidden // 32
    staged = (3 * model.hidden + model.q_dim + model.ffn) * vectors * schedule.launch.workers // 128
    return tiles * (14 + 9 * -(-vectors // 8)) + 25 * staged


def candidates(default: Default) -> Iterator[Candidate]:
    """Shapes and settings with what the default plan has of each, from most to little."""
    sizes, _ = sized(default)
    model, kv = load_model(default.model), sizes.kv
    settings = replace(
        sizes.settings, plan="search", workers=None, slots=sizes.shared.stream.slots, chunk_bytes=most_bytes(sizes),
        kv_block=kv.block, kv_splits=kv.splits,
    )  # fmt: skip
    context = max(2 * kv.block * kv.splits, 2 * settings.rows, 128)
    for (kv_heads, workers), (hidden, x_parts) in product(_grids(sizes, model), _widths(sizes, model)):
        for ffn, parts, splits in _depths(sizes, model, workers):
            shape = model.model_copy(
                update={
                    "layers": 1, "hidden": hidden, "ffn": ffn, "heads": kv_heads * model.group, "kv_heads": kv_heads,
                    "vocab": 8 * min(max(sizes.rows["lm_head.count"]), WIDE) * workers, "bos": None, "eos": (),
                    "name": "shrunk", "tied_embeddings": False, "max_context": context,
                }
            )  # fmt: skip
            chosen = replace(settings, k_parts=parts if settings.k_parts else None, k_splits=splits, x_parts=x_parts)
            turns = turns_of(chosen, shape, workers)
            if turns <= MOST_TURNS:
                yield shape, chosen if turns == kv.turns else replace(chosen, kv_block=None), workers, context


def _grids(sizes: Sized, model: ModelSpec) -> list[tuple[int, int]]:
    """(KV heads, workers): as many workers as serve so many heads in the default plan, and fewer."""
    settings, kv = sizes.settings, sizes.kv
    several, grids = settings.batch > 1, dict[tuple[int, int], None]()
    for kv_heads in sorted({n for n in (1, 2, 4, 8, model.kv_heads) if n <= model.kv_heads}):
        served = (-(-settings.batch * kv_heads // kv.turns) if several else kv_heads) * kv.splits
        for workers in (served, min(served, 16), 2, 4, 8, kv_heads):
            if workers >= (1 if several else kv_heads) and workers * settings.warps <= MOST_WARPS:
                grids[kv_heads, workers] = None
    return list(grids)


def _cut(sizes: Sized) -> int:
    """Columns of whole chunks of every matrix."""
    return lcm(*(chunk.columns for chunk in sizes.chunks[0][1].values()))


def _widths(sizes: Sized, model: ModelSpec) -> list[tuple[int, int]]:
    """(hidden, parts of it): the model's, few columns, and parts as wide as the model's that are fewer."""
    settings = sizes.settings
    unit = lcm(_cut(sizes) * settings.x_parts, 4 * settings.warps * settings.x_parts)
    few = [(unit * n, settings.x_parts) for n in (1, 2) if unit * n < model.hidden]
    if settings.x_parts > 2:
        few.append((2 * unit // settings.x_parts, 2))
        few += [(model.hidden // settings.x_parts * n, n) for n in (2, 4) if n < settings.x_parts]
    return [(model.hidden, settings.x_parts), *few]


def _depths(sizes: Sized, model: ModelSpec, workers: int) -> list[tuple[int, int, int]]:
    """(ffn, parts of `down`, workers that its columns are divided among): parts as wide as the model's, or about as
    many rows of gate-up for a worker."""
    k_parts, k_splits, warps = sizes.settings.k_parts or 1, sizes.settings.k_splits, sizes.settings.warps
    part = model.ffn // (k_parts * k_splits)
    shapes = {(part * n * m, n, m) for n in {min(k_parts, 2), k_parts} for m in {1, min(k_splits, 2), k_splits}}
    rows = 4 * min(max(sizes.rows["gate_up.count"]), WIDE) * workers
    for n, m in {(k_parts, k_splits), (min(k_parts, 2), k_splits), (min(k_parts, 2), 1)}:
        step = lcm(_cut(sizes) * n * m, 4 * warps)
        shapes.add((-(-rows // step) * step, n, m))
    return [(ffn, n, m) for ffn, n, m in sorted(shapes) if workers % m == 0]


def most_bytes(sizes: Sized) -> int:
    """Of a copy's codes."""
    every = [chunk for _, chunks in sizes.chunks for chunk in chunks.values()]
    return sizes.settings.row_groups * max(weight_format(c.format).bits * c.columns for c in every)


def planned(default: Default, shape: ModelSpec, settings: Settings, workers: int, context: int) -> Schedule | None:
    """The plan, with a champion's edits where they apply; None where there is none."""
    target, kept, edits = load_target(default.gpu), formats(*default.forms), sized(default)[1]
    for slots in (settings.slots, None):
        chosen = replace(settings, slots=slots)
        try:
            schedule = plan(shape, target, settings=chosen, formats=kept, max_context=context, workers=workers)
        except (AmkError, ValidationError):
            continue
        try:
            return apply(schedule, edits).schedule if edits else schedule
        except AmkError:
            return schedule
    return None


def clocks(schedule: Schedule) -> int:
    """About how many bytes the emulator's clocks take: a vector of six words a warp for each word that is handed over,
    and for each byte that several warps read."""
    model, workers, vectors = schedule.model, schedule.launch.workers, schedule.vectors
    tagged = sum(b.elements for b in schedule.buffers if b.space == "global" and b.tagged)
    inputs = sum(b.bytes for b in schedule.buffers if b.space == "shared" and b.name in ("x", "x_down"))
    alone = workers == 1 + max(schedule.tables.get("k_split.index", (0,)))
    crossing = vectors * (4 * model.hidden + (0 if alone else 2 * model.ffn + 2 * model.q_dim))
    return 48 * workers * schedule.launch.warps * (tagged + crossing + workers * inputs + 8 * model.hidden)


def price(schedule: Schedule) -> float:
    """What a run costs: instructions, and clocks that have a word for every warp."""
    return (work(schedule) + 300_000) * (1 + schedule.launch.workers * schedule.launch.warps / 32)


def shrunk(default: Default, others: frozenset[str] = frozenset()) -> tuple[list[Schedule], frozenset[str]]:
    """Plans that between them have most of the default plan's traits that are none of `others`; those that none has."""
    left = set(traits(whole(default)) - others)
    every: list[tuple[Schedule, frozenset[str]]] = []
    for each in candidates(default) if left else ():
        schedule = planned(default, *each)
        if schedule is not None and work(schedule) <= MOST_WORK and clocks(schedule) <= MOST_CLOCKS:
            every.append((schedule, traits(schedule)))
    chosen: list[Schedule] = []
    while len(chosen) < MOST_CHOSEN and every:
        schedule, own = max(every, key=lambda one: len(one[1] & left) / price(one[0]) ** 0.2)
        if not own & left:
            break
        chosen.append(schedule)
        left -= own
    return chosen, frozenset(left)


def asking(**settings: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(settings.items())


def defaults() -> Iterator[Default]:
    """Those most unlike the kernels of tiny models first."""
    eight = "llama3-8b"
    for batch in (16, 64, 32, 9, 17, 8, 4, 2):
        yield Default(eight, request=asking(batch=batch))
    for rows in (64, 16, 32, 8, 4, 2):
        yield Default(eight, request=asking(rows=rows))
    for rows in (64, 32, 16, 2):
        yield Default(eight, request=asking(rows=rows, headless=True))
    for form in FORMATS:
        yield Default(eight, forms=(form, form))
    yield Default(eight, forms=("int4-g128-zp", "bf16"))
    for model, gpu in MODELS:
        yield Default(model, gpu)
        for settings in ({"batch": 16}, {"batch": 8}, {"rows": 16, "headless": True}, {"rows": 8}):
            yield Default(model, gpu, request=asking(**settings))
    for form in ("int8", "int4-g128", "fp8"):
        yield from _of_codes(form)
    yield from (Default(eight, request=asking(**settings)) for settings in FURTHER)


def _of_codes(form: FormatName) -> Iterator[Default]:
    """Steps of several tokens whose weights are codes, a larger model, a smaller one and a smaller GPU."""
    kept = (form, form)
    for batch in (16, 8, 2):
        yield Default("llama3-8b", forms=kept, request=asking(batch=batch))
    for rows in (64, 8):
        yield Default("llama3-8b", forms=kept, request=asking(rows=rows))
    yield Default("llama3-70b", forms=kept)
    yield Default("llama3-70b", forms=kept, request=asking(batch=16))
    yield Default("llama3-70b", forms=kept, request=asking(rows=64))
    yield Default("llama3.2-1b", forms=kept)
    yield Default("llama3.2-1b", "l4", forms=kept)


MODELS = (
    ("llama3.2-1b", "h200"), ("smollm2-135m", "h200"), ("qwen2.5-7b", "h200"), ("qwen3-8b", "h200"),
    ("pythia-2.8b", "h200"), ("qwen2.5-1.5b", "h200"), ("qwen3-0.6b", "h200"), ("pythia-410m", "h200"),
    ("smollm2-1.7b", "h200"), ("llama2-13b", "h200"), ("qwen3-14b", "h200"), ("llama3.2-1b", "l4"),
    ("smollm2-135m", "l4"), ("llama3-8b", "a100"), ("pythia-410m", "a100"), ("llama3.2-1b", "rtx4090"),
    ("llama3-8b", "rtx5090"), ("llama3-8b", "b200"), ("llama3-8b", "h100"), ("qwen2.5-0.5b", "l4"),
)  # fmt: skip
FURTHER: tuple[dict[str, Any], ...] = (
    *({"rows": rows, kind: True} for rows in (8, 16, 64) for kind in ("tree", "accepts")),
    *({"kv_dtype": "fp8", **settings} for settings in ({}, {"batch": 16}, {"rows": 16}, {"batch": 2}, {"rows": 4})),
    *(
        {"sampling": "top-k-top-p", **settings}
        for settings in ({}, {"batch": 16}, {"batch": 64}, {"rows": 8, "accepts": True})
    ),
    *({"batch": batch, "live": True} for batch in (4, 16)),
)


def shrunk_to(default: Default, **shape: int) -> Schedule:
    """The first plan of the candidates with this hidden, ffn, kv_heads and these workers."""
    for each in candidates(default):
        sizes = {"workers": each[2], **each[0].model_dump(include={"hidden", "ffn", "kv_heads"})}
        if all(sizes[name] == value for name, value in shape.items()):
            schedule = planned(default, *each)
            if schedule is not None:
                return schedule
    raise ValueError(f"{default.name} is not shrunk to {shape}")
