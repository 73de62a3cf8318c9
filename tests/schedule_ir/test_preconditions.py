"""What the device code relies on: plans meet all of it, and each single need is refused somewhere close to a plan."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from amk.adversary.edits import at, steps
from amk.lowering.emit import emit
from amk.models.matrices import K_SPLIT, MATRICES
from amk.models.model_spec import LayerSlice, ModelSpec
from amk.planner import decode
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST, PHASED, Settings
from amk.schedule_ir.expr import Env
from amk.schedule_ir.launch_needs import static_needs, unmet
from amk.schedule_ir.ops import OPS, Geometry, Op
from amk.schedule_ir.ops.precondition import Site
from amk.schedule_ir.schedule import Schedule, steps_of
from amk.targets.target import load_target
from amk.weights.weight_format import FORMATS, Chunk
from tests.engine.tiny import NEOX
from tests.tiny import BIASED, NORMED, PLAIN, VARIANTS, tiny

Document = dict[str, Any]
CENTRED = tiny(**NEOX | {"heads": 2, "kv_heads": 2})


def plan_of(model: ModelSpec = PLAIN, settings: Settings = FAST, gpu: str = "h200", **more: Any) -> Schedule:
    return plan(model, load_target(gpu), settings=settings, max_context=256, workers=6, **more)


BASES: dict[str, Callable[[], Schedule]] = {
    "fast": plan_of,
    "normed": lambda: plan_of(NORMED),
    "biased": lambda: plan_of(BIASED, PHASED),
    "l4": lambda: plan_of(gpu="l4"),
    "tagged": lambda: plan_of(settings=replace(FAST, handoff="tagged")),
    "drawing": lambda: plan_of(settings=replace(FAST, sampling="top-k-top-p")),
    "batch": lambda: plan_of(settings=replace(FAST, batch=3)),
    "rows": lambda: plan_of(settings=replace(FAST, rows=4)),
    "headless": lambda: plan_of(settings=replace(FAST, rows=4, headless=True)),
    "parts": lambda: plan_of(
        settings=replace(FAST, warps=2, rows=8, handoff="mixed", chunk_bytes=512, x_parts=2, k_parts=2)
    ),
    "divided": lambda: plan_of(
        settings=replace(FAST, warps=2, rows=3, handoff="mixed", chunk_bytes=512, kv_block=8, k_splits=2)
    ),
    "int8": lambda: plan_of(settings=replace(FAST, scales_apart=True), formats=formats("int8")),
    "refilled": lambda: plan_of(tiny(hidden=512, ffn=4096, heads=8)),
    "int4": lambda: plan_of(formats=formats("int4-g64")),
    "LayerNorm": lambda: plan_of(CENTRED),
    "LayerNorm, codes": lambda: plan_of(CENTRED, formats=formats("int8")),
    "slice": lambda: plan_of(PLAIN.sliced(1, 2)),
    "output head": lambda: plan_of(PLAIN.sliced(2, 2, head=True)),
    "slice, codes": lambda: plan_of(PLAIN.sliced(0, 2), formats=formats("int4-g64-zp")),
}
"""Together they have every op and every operand."""


@cache
def base(name: str) -> Schedule:
    return BASES[name]()


def wanted(schedule: Schedule) -> set[str]:
    return {found.need for found in unmet(schedule)}


@pytest.mark.parametrize("name", BASES)
def test_plans_meet_all_of_it(name: str) -> None:
    assert wanted(base(name)) == set()


@pytest.mark.parametrize("model", VARIANTS, ids=lambda model: model.name)
@pytest.mark.parametrize("gpu", ["h200", "l4", "b200"])
def test_plans_of_all_variants_do(model: ModelSpec, gpu: str) -> None:
    assert wanted(plan_of(model, gpu=gpu)) == set()


def other_models(geo: Geometry) -> Iterator[Geometry]:
    """The same of a model with one number or part changed, of another family, of a slice for a whole and of a whole for
    a slice."""
    yield replace(geo, model=CENTRED if geo.model.graph.norm == "rms" else PLAIN)
    slices = [LayerSlice(first=0, of=geo.model.layers + 1), LayerSlice(first=1, of=geo.model.layers + 1, head=True)]
    for part in (None, *slices) if geo.model.slice else slices:
        yield replace(geo, model=geo.model.model_copy(update={"slice": part}))
    numbers = ("hidden", "ffn", "heads", "kv_heads", "head_dim")
    changes: list[Document] = [{key: getattr(geo.model, key) + add} for key in numbers for add in (1, 2, 4, 2**20)]
    changes += [{"heads": 3, "head_dim": 63}]
    option = "parallel" if geo.model.family == "gpt_neox" else "qk_norm"
    changes += [{key: not getattr(geo.model, key)} for key in ("qkv_bias", option)]
    for change in changes:
        yield replace(geo, model=geo.model.model_copy(update=change))


def other_geometries(op: Op, geo: Geometry) -> Iterator[Geometry]:
    """The same with one or two numbers of the model, the cache, a role, a stream or a buffer of the op changed."""
    yield from other_models(geo)
    for value in (1, 3, 256, 2**26):
        yield replace(geo, kv_block=value)
        yield replace(geo, kv_splits=value)
    for size in (1, 3, 7, 24):
        yield replace(geo, role_size=geo.role_size | {op.role: size})
    yield replace(geo, role_first=geo.role_first | {op.role: 1})
    yield replace(geo, batch=2)
    yield replace(geo, batch=2, live=True)
    yield replace(geo, rows_each=2)
    yield replace(geo, tree=not geo.tree)
    yield replace(geo, headless=not geo.headless)
    for stream in geo.streams.values():
        yield from (replace(geo, streams={stream.name: stream.model_copy(update={"role": r})}) for r in geo.role_size)
        yield replace(geo, streams={stream.name: stream.model_copy(update={"chunk_rows": 16})})
        yield replace(geo, streams={stream.name: stream.model_copy(update={"engine": "cp_async"})})
        yield replace(geo, streams={"before": stream.model_copy(update={"name": "before"}), **geo.streams})
        for chunk in (Chunk(format=f, columns=n, apart=a) for f in FORMATS for n in (32, 96) for a in (False, True)):
            changed = stream.model_copy(update={"chunks": dict.fromkeys(MATRICES, chunk)})
            yield replace(geo, streams={stream.name: changed})
    for buffer in (geo.buffers[name] for name in vars(op).values() if isinstance(name, str) and name in geo.buffers):
        changes: list[Document] = [{"tagged": not buffer.tagged}, {"dtype": "f32"}, {"dtype": "digits"}]
        for change in (*changes, {"shape": (7 * 9,)}, {"tagged": not buffer.tagged, "shape": (7 * 9,)}):
            other = geo.buffers | {buffer.name: buffer.model_copy(update=change)}
            yield replace(geo, buffers=other)
            yield replace(geo, buffers=other, batch=2)
            yield from other_models(replace(geo, buffers=other)) if list(change) == ["tagged"] else ()


NAMED = (
    "bias", "q_norm", "k_norm", "also", "scales", "sums", "row_scales", "ssq", "h", "prompt", "position", "residual",
)  # fmt: skip
"""Fields that name a buffer, or none."""


def other_ops(op: Op, geo: Geometry) -> Iterator[Op]:
    """The op with one field changed."""
    for key, value in vars(op).items():
        if isinstance(value, int):
            least = int(key in ("k_parts", "k_splits"))
            yield from (op.model_copy(update={key: n}) for n in (least, value + 1, 3, 8, 1000))
        elif key in NAMED:
            names = [name for name in ("h_out", "norm") if name in geo.buffers]
            yield from (op.model_copy(update={key: name}) for name in (None, *names))


def sites_of(schedule: Schedule) -> Iterator[tuple[Op, Site, list[Site]]]:
    """An op of each kind, where it stands, and sites close to that."""
    geo, plain = schedule.geometry(), {name: np.array(column) for name, column in schedule.tables.items()}
    # an op may be changed to one whose columns are divided
    tables = dict.fromkeys((f"{K_SPLIT}.first", f"{K_SPLIT}.count", f"{K_SPLIT}.index"), plain["hidden.count"]) | plain
    few = Env({"t": 0, "n": 0, "l": 0}, np.arange(schedule.launch.workers), tables=tables)
    many = replace(few, tables={name: column + 2**18 for name, column in tables.items()})
    for op in {step.op.op: step.op for program in schedule.programs for step in steps_of(program.body)}.values():
        sites = [Site(op, few, other) for other in other_geometries(op, geo)]
        sites += [Site(other, few, each) for other in other_ops(op, geo) for each in (geo, replace(geo, batch=2))]
        yield op, Site(op, few, geo), [*sites, Site(op, many, geo), Site(op, replace(few, loops={"l": 0}), geo)]


def refused(schedule: Schedule) -> Iterator[str]:
    """The needs of ops that some change refuses."""
    for op, here, sites in sites_of(schedule):
        for need in type(op).needs:
            assert np.all(need.holds.value(here))
            if not all(np.all(need.holds.value(site)) for site in sites):
                yield f"{op.op}.{need.name}"


@pytest.mark.turns(16)
def test_each_need_of_an_op_is_refused_close_to_a_plan() -> None:
    wanted_of_all = {f"{name}.{need.name}" for name, op in OPS.items() for need in op.needs}
    assert wanted_of_all - {need for name in BASES for need in refused(base(name))} == set()


def test_a_statement_says_the_same_in_both_languages() -> None:
    """What the emitted code asserts is the need with the numbers of the plan in place of its names."""
    for name in BASES:
        schedule = base(name)
        geo, env = schedule.geometry(), Env({"t": 0, "n": 0, "l": 0}, 0)
        for op in (step.op for program in schedule.programs for step in steps_of(program.body)):
            for need in static_needs(op):
                text = need.holds.shown(Site(op, env, geo))
                text = text.replace("&&", " and ").replace("||", " or ").replace("/", "//").replace("!!", "")
                text = re.sub(r"!(?!=)", " not ", text)
                names = {
                    word: value_of(word, Site(op, env, geo))
                    for word in set(re.findall(r"[A-Z]\w*(?:::\w+)+|\bk[A-Z]\w*", text))
                }
                for word in sorted(names, key=len, reverse=True):
                    text = re.sub(rf"(?<![\w:]){word}\b", str(names[word]), text)
                assert eval(text, {"true": True, "false": False}), need


def value_of(name: str, site: Site) -> int | bool:
    """A constant of the emitted code, by its own rule: from the plan's structs."""
    plain = {
        "Plan::kHidden": site.geo.model.hidden, "Plan::kFfn": site.geo.model.ffn, "Plan::kHeads": site.geo.model.heads,
        "Plan::kKvHeads": site.geo.model.kv_heads, "Plan::kHeadDim": site.geo.model.head_dim,
        "Plan::kKvBlock": site.geo.kv_block, "Plan::kKvSplits": site.geo.kv_splits, "Plan::kBatch": site.geo.vectors,
        "kAgents": site.geo.role_size[site.op.role],
    }  # fmt: skip
    if name in plain:
        return plain[name]
    if name.startswith("Matrix::"):
        chunk, shape = site.chunk, site.geo.matrix(site.matrix)
        found: dict[str, int | bool] = {
            "Matrix::kK": shape.k, "Matrix::kColumns": chunk.columns, "Matrix::kChunks": shape.k_chunks(chunk.columns),
            "Matrix::Weights::kPlain": chunk.format == "bf16",
        }  # fmt: skip
        return found[name]
    field = re.sub(r"(?<!^)(?=[A-Z])", "_", name.removeprefix("k").removeprefix("Has")).lower()
    value = getattr(site.op, field)
    return value is not None if name.startswith("kHas") else int(value)


def test_the_source_asserts_what_is_constant() -> None:
    source = emit(base("fast"))
    assert 'static_assert(((Plan::kHeadDim % 8) == 0), "a lane reads 8 dims");' in source
    assert source.count("static_assert") > 50


def changed(name: str, change: Callable[[Document], object]) -> Schedule:
    found: Document = json.loads(base(name).model_dump_json())
    change(found)
    return Schedule.model_validate_json(json.dumps(found))


def of_buffer(name: str, **fields: object) -> Callable[[Document], object]:
    return lambda document: next(b for b in document["buffers"] if b["name"] == name).update(fields)


def stream_of(**fields: object) -> Callable[[Document], object]:
    return lambda document: document["streams"][0].update(fields)


def entry(table: str, value: int) -> Callable[[Document], object]:
    return lambda document: document["tables"][table].__setitem__(0, value)


def short_of_a_drain(document: Document) -> None:
    """Two programs, of which one leaves a product out."""
    whole = document["programs"][0]
    tokens = next(i for i, node in enumerate(whole["body"]) if "body" in node)
    other = json.loads(json.dumps(whole)) | {"name": "other", "first": 1, "count": whole["count"] - 1}
    body = other["body"][tokens]["body"]
    body.remove(next(node for node in body if node.get("op", {}).get("op") == "gemv"))
    document["programs"] = [whole | {"count": 1}, other]


def choosing_once(document: Document) -> None:
    """Behind the loop over tokens."""
    program = document["programs"][0]
    tokens = next(node["body"] for node in program["body"] if "body" in node)
    place = next(i for i, node in enumerate(tokens) if node.get("op", {}).get("op") == "select")
    program["body"].append(tokens.pop(place))


CHANGES: list[tuple[str, Callable[[Document], object]]] = [
    ("host-buffer", of_buffer("output", shape=[1023])),
    ("host-buffer", of_buffer("output", role="scratch")),
    ("host-buffer", of_buffer("k_cache", shape=[2, 2, 512, 64])),
    ("host-buffer", of_buffer("norm", shape=[4, 128])),
    ("host-buffer", of_buffer("prompt", shape=[255])),
    ("host-buffer", of_buffer("h_out", role="constant")),
    ("aligned", of_buffer("ssq", align=1, offset=8)),
    ("aligned", of_buffer("ssq", align=24, offset=24)),
    ("index", of_buffer("h_mid", shape=[2**31])),
    ("tag", of_buffer("qkv", tag=None, tagged=True)),
    ("tag", of_buffer("logits", tagged=True, tag={"t": 1, "1": 1})),
    ("groups", entry("lm_head.count", 1000)),
    ("groups", entry("qkv.first", -1)),
    ("served", entry("attn.head", 7)),
    ("served", entry("attn.split", -1)),
    ("stream", lambda document: document["streams"].append(document["streams"][0] | {"name": "other"})),
    ("source", stream_of(source="embedding")),
    ("source", of_buffer("weights", role="scratch")),
    ("weights", of_buffer("weights", shape=[1024])),
    ("apart", stream_of(chunks={"o": {"format": "int8-g64", "columns": 64, "apart": True}})),
    ("chunks", lambda document: (entry("lm_head.count", 2**24)(document), document["launch"].update(max_tokens=2**20))),
    ("counts", lambda document: document["roles"][0].update(count=document["roles"][0]["count"] - 1)),
    ("drains", short_of_a_drain),
    ("select.loop", choosing_once),
    ("gemv.alike", stream_of(later=[{"first": 1, "chunks": {"o": {"format": "bf16", "columns": 32}}}])),
]


@pytest.mark.parametrize(("need", "change"), CHANGES, ids=[f"{n}-{need}" for n, (need, _) in enumerate(CHANGES)])
def test_needs_of_the_schedule(need: str, change: Callable[[Document], object]) -> None:
    assert need in wanted(changed("fast", change))


LONG: list[tuple[str, ModelSpec, Settings, int]] = [
    ("stage_norm.one-batch", PLAIN, replace(FAST, handoff="fenced"), 4 * 32 * 8),
    ("stage_norm.one-batch", PLAIN, replace(FAST, handoff="tagged", handoff_dtype="f32"), 2 * 32 * 8),
    ("stage_norm.one-batch", PLAIN, replace(FAST, handoff="fenced", rows=4), 4 * 32 * 8),
    ("take_hidden.one-batch", PLAIN.sliced(0, 1), replace(FAST, handoff="fenced"), 4 * 32 * 8),
    ("layer_norm.scales", CENTRED, replace(FAST, handoff="fenced"), 2048),
]


@pytest.mark.parametrize(("need", "model", "settings", "most"), LONG, ids=range(len(LONG)))
def test_the_longest_share_of_a_norm(
    need: str, model: ModelSpec, settings: Settings, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the planner refuses of itself."""
    monkeypatch.setattr(decode, "require_whole_fetches", lambda *_: None)
    form = formats("int8" if model is CENTRED else "bf16")
    for hidden in (most * 2, most * 2 + 128):
        longer = model.model_copy(update={"hidden": hidden})
        found = wanted(plan_of(longer, replace(settings, warps=2), formats=form))
        assert (need in found) == (hidden > 2 * most)


OF_THE_GRAPH = ("text", "slice", "norm-kind", "taken")
"""Needs that say which models have the op."""
ALIKE = (
    {"embed", "embed_rows", "embed_hidden"}, {"embed", "stage_norm"}, {"take_hidden", "stage_norm"},
    {"combine", "stage_attention"}, {"argmax_rows", "give_logits"}, {"add_residual", "add_sums"},
)  # fmt: skip
"""Ops that leave the same under one name, in models that have both. `peak` and `narrow`, `select` and `select_draw` are
told apart by how the schedule chooses tokens (below)."""
CHOOSING = {"pick", "output"}


def makers(schedule: Schedule) -> dict[str, dict[str, Op]]:
    """By name of a value: the ops that write it somewhere, each with one of its steps."""
    geo, tables = schedule.geometry(), {name: np.array(column) for name, column in schedule.tables.items()}
    found: dict[str, dict[str, Op]] = {}
    for op in {step.op.op: step.op for program in schedule.programs for step in steps_of(program.body)}.values():
        places = [(w, a) for w in range(schedule.launch.workers) for a in range(geo.role_size[op.role])]
        for worker, agent in places:
            for access in op.accesses(Env({"t": 0, "n": 0, "l": 0}, worker, agent, tables=tables), geo):
                if access.kind == "write" and access.value is not None:
                    found.setdefault(access.value[0], {})[op.op] = op
    return found


def test_a_value_is_made_by_the_op_that_the_model_has_for_it() -> None:
    """Values have names, and whoever reads one asks for the name. An op of another graph leaves another value under the
    same name: its needs refuse it."""
    used = {name: makers(base(name)) for name in BASES}
    every: dict[str, dict[str, Op]] = {}
    for found in used.values():
        for family, ops in found.items():
            every[family] = every.get(family, {}) | ops
    assert {"embed", "take_hidden", "stage_norm", "layer_norm"} == every["xn"].keys()
    refused = set[str]()
    for name in BASES:
        env, geo = Env({"t": 0, "n": 0, "l": 0}, np.arange(6)), base(name).geometry()
        for family in every.keys() - CHOOSING:
            mine = used[name].get(family, {}).keys()
            for kind, op in every[family].items():
                own = (need for need in type(op).needs if need.name in OF_THE_GRAPH)
                if not all(np.all(need.holds.value(Site(op, env, geo))) for need in own):
                    refused.add(kind)
                elif mine and kind not in mine:
                    assert any(kind in alike and mine & alike for alike in ALIKE), (name, family, kind)
    assert refused >= {"embed", "take_hidden", "stage_norm", "layer_norm", "swiglu", "gelu"}


def test_the_device_finds_the_norm_of_every_layer() -> None:
    """That before lm_head is one, whatever layer a step names."""
    schedule = base("LayerNorm")
    geo, layers = schedule.geometry(), schedule.model.layers
    ops = [step.op for program in schedule.programs for step in steps_of(program.body) if step.op.op == "layer_norm"]
    assert layers > 1 and "lm_head" in {getattr(op, "matrix") for op in ops}  # noqa: B009
    for op in ops:
        matrix, found = getattr(op, "matrix"), op.numbers(geo)  # noqa: B009
        norms = [geo.norm_of(matrix, layer) for layer in range(layers)]
        assert [found["norm"] + found["norms"] * layer for layer in range(layers)] == norms


def op_with(kind: str, **fields: object) -> Callable[[Document], object]:
    """The first op of that kind has these fields."""
    return lambda document: next(s["op"] for _, s in steps(document) if s["op"]["op"] == kind).update(fields)


def step_again(kind: str, **fields: object) -> Callable[[Document], object]:
    """The first step of that kind is there twice, and the second has these fields."""

    def change(document: Document) -> None:
        (*body, place), step = next((path, s) for path, s in steps(document) if s["op"]["op"] == kind)
        at(document, tuple(body)).insert(place + 1, step | {"op": step["op"] | fields, "waits": [], "signals": []})

    return change


GREEDILY = {"best_value": "best_value", "best_index": "best_index"}
CHOICE: list[tuple[str, str, Callable[[Document], object]]] = [
    ("select.choice", "drawing", op_with("select_draw", op="select", **GREEDILY)),
    ("select_draw.choice", "fast", op_with("select", op="select_draw", **GREEDILY)),
    ("peak.round", "drawing", step_again("peak", round=14)),
    ("peak.round", "drawing", op_with("peak", round=3)),
    ("draw.round", "drawing", step_again("draw", round=7)),
]


@pytest.mark.parametrize(("need", "name", "change"), CHOICE, ids=range(len(CHOICE)))
def test_tokens_are_chosen_in_one_way(need: str, name: str, change: Callable[[Document], object]) -> None:
    """Whoever leaves out a filter, or a draw, leaves values of the same names."""
    assert need in wanted(changed(name, change))


def test_a_chunk_has_one_place() -> None:
    """The second drain of a product would find chunks elsewhere than the first."""

    def twice(document: Document) -> None:
        step_again("gemv")(document)
        weights = next(b for b in document["buffers"] if b["name"] == "weights")
        weights["shape"] = [2 * n for n in weights["shape"]]

    def before(document: Document) -> None:
        """Whatever its chunks, they are drained once in a launch."""
        (*body, place), step = next((path, s) for path, s in steps(document) if s["op"].get("matrix") == "lm_head")
        at(document, tuple(body)).pop(place)
        document["programs"][0]["body"].insert(1, step)

    assert "drains" in wanted(changed("fast", twice)) and "drains" in wanted(changed("fast", before))


OF_ROWS: list[tuple[str, Callable[[Document], object]]] = [
    ("rows", lambda document: document.update(batch=2)),
    ("whole-rows", of_buffer("ssq", shape=[3])),
    ("whole-rows", of_buffer("qkv", shape=[5, 255])),
    ("whole-rows", of_buffer("x", shape=[3, 289])),
]


@pytest.mark.parametrize(("need", "change"), OF_ROWS)
def test_rows_of_a_step_are_whole_and_of_one_sequence(need: str, change: Callable[[Document], object]) -> None:
    assert need in wanted(changed("rows", change))
