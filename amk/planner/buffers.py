"""Global allocations of a plan."""

from __future__ import annotations

from amk.models.graph import Graph
from amk.models.matrices import (
    ROWS_PER_GROUP,
    MatrixName,
    matrices_of,
    matrix,
    scale_buffer,
    scale_shape,
    vectors,
)
from amk.models.model_spec import ModelSpec
from amk.planner.formats import Runs
from amk.planner.settings import Settings, crossing_dtype, has_tags, k_splits_of, per_vector, sum_slots
from amk.planner.storage import packed_bytes
from amk.schedule_ir.expr import Expr
from amk.schedule_ir.memory import Buffer, Dtype
from amk.schedule_ir.ops.attention import TREE_WORDS
from amk.schedule_ir.ops.begin import state_words
from amk.schedule_ir.ops.select import request_words
from amk.schedule_ir.references import lacking
from amk.schedule_ir.sampling import LAST, PARAMETERS, TALLY
from amk.schedule_ir.schedule import KvLayout

HEAD_SUMS = "head_part"
"""Partial sums of lm_head in global memory."""


def global_buffers(model: ModelSpec, kv: KvLayout, settings: Settings, workers: int, chunks: Runs) -> list[Buffer]:
    """Every global allocation: constants, state that survives launches, hand-offs, and sums that stay in L2."""
    kept = [*constants(model, kv, settings, chunks), *state(model, kv, settings)]
    return [*kept, *handoffs(model, kv, settings, workers, len(chunks)), *head_sums(model, settings, workers)]


def head_sums(model: ModelSpec, settings: Settings, workers: int) -> list[Buffer]:
    """The slots of every worker's row groups."""
    if settings.head_sums == "shared" or settings.headless:
        return []
    each = settings.row_groups
    groups = -(-matrix(model, "lm_head").groups // (workers * each)) * each
    shape = workers, sum_slots(settings, groups), *per_vector(settings), ROWS_PER_GROUP
    return [Buffer(name=HEAD_SUMS, space="global", dtype="f32", shape=shape, align=128)]


def constants(model: ModelSpec, kv: KvLayout, settings: Settings, chunks: Runs) -> list[Buffer]:
    def constant(name: str, dtype: Dtype, *shape: int, align: int = 16) -> Buffer:
        return Buffer(name=name, space="global", dtype=dtype, shape=shape, role="constant", align=align)

    norms = [name for name in vectors(model) if name in ("norm", "norm_shift")]
    unused = lacking(model, settings.headless)
    known = [
        constant("weights", "bf16", packed_bytes(model, chunks) // 2, align=128),
        constant("embedding", "bf16", model.vocab, model.hidden),
        *(constant(name, "f32", *vectors(model)[name]) for name in norms),
        constant("rope", "f32", kv.context, model.head_dim),
        constant("request", "i32", request_words(settings.batch)),
        constant("prompt", "i32", *((settings.batch,) * (settings.batch > 1)), kv.context),
        constant("position", "i32", 1),
        constant("hidden_in", "f32", model.hidden),
    ]
    out = [buffer for buffer in known if buffer.name not in unused]
    for name in matrices_of(model):
        if any(run[name].apart for _, run in chunks):
            out.append(constant(scale_buffer(name), "f32", *scale_shape(model, name)))
    if settings.tree:
        out.append(constant("tree", "i32", settings.rows, TREE_WORDS))
    if settings.sampling != "greedy":
        out.append(constant("sampling", "i32", *((settings.batch,) * (settings.batch > 1)), len(PARAMETERS)))
    return out + [constant(name, "f32", *shape) for name, shape in vectors(model).items() if name not in norms]


def state(model: ModelSpec, kv: KvLayout, settings: Settings) -> list[Buffer]:
    cache = (max(model.layers, 1), settings.batch * model.kv_heads, kv.context, model.head_dim)
    each, unused = per_vector(settings), lacking(model, settings.headless)

    def in_state(name: str, dtype: Dtype, *shape: int) -> Buffer:
        return Buffer(name=name, space="global", dtype=dtype, shape=shape, role="state")

    known = [
        in_state("state", "i32", len(state_words(settings.batch, settings.live))),
        in_state("output", "i32", settings.max_tokens, *each),
        in_state("k_cache", kv.dtype, *cache),
        in_state("v_cache", kv.dtype, *cache),
        in_state("hidden_out", "f32", model.hidden),
        in_state("logits", "f32", *each, model.vocab),
    ]
    return [buffer for buffer in known if buffer.name not in unused]


def of_run(name: str, run: int) -> str:
    """The name of what the steps of a layer hand on: every run of layers has its own, so that a tag or a counter's
    index grows with the layers of one loop."""
    return f"{name}.{run}" if run else name


def state_name(graph: Graph, number: int) -> str:
    """The counter and buffer of the hidden state behind so many additions of a layer."""
    return "h_out" if number == len(graph.additions) else "h_mid"


def sums_of(name: MatrixName) -> str:
    """The buffer of the sums over all shares of a matrix's columns."""
    return f"sums_{name}"


def handed(graph: Graph, name: MatrixName) -> str | None:
    """The counter and buffer that hand on what becomes of a product; None for a sum that its owner keeps."""
    then = graph.products[name].then
    if then != "residual":
        return {"rows": "qkv", "activation": "act", "logits": "best"}[then]
    number = graph.additions.index(name)
    return state_name(graph, number + 1) if graph.published[number] else None


def handoffs_of(graph: Graph) -> set[str]:
    """All of these."""
    return {counter for name in graph.products if (counter := handed(graph, name)) is not None}


def handoffs(model: ModelSpec, kv: KvLayout, settings: Settings, workers: int, runs: int = 1) -> list[Buffer]:
    """What crosses SMs, in `runs` runs of layers. Hidden states and attention outputs are f32, or bf16, which halves
    what every SM reads; the residual stream itself stays fp32 with its owner.
    """
    wide: Dtype = crossing_dtype(settings)
    per_layer: Expr = {"t": max(model.layers, 1), "l": 1, "1": 1}
    candidates = workers * settings.warps

    def crossing(name: str, dtype: Dtype, *shape: int, tag: Expr = per_layer) -> Buffer:
        tagged = has_tags(settings, name)
        return Buffer(name=name, space="global", dtype=dtype, shape=shape, tagged=tagged, tag=tag if tagged else None)

    each, heads = per_vector(settings), settings.vectors * model.heads
    layer = [
        crossing("qkv", "f32", *each, model.q_dim + 2 * model.kv_dim),
        crossing("split_partial", wide, heads, kv.splits, model.head_dim),
        crossing("split_scale", "f32", heads, kv.splits, 2),
        crossing("attn", wide, *each, model.q_dim),
        *(crossing(h, wide, *each, model.hidden) for h in ("h_mid", "h_out") if h in handoffs_of(model.graph)),
        crossing("act", "bf16", *each, model.ffn),
        *(
            crossing(sums_of(name), "f32", *each, splits * model.hidden)
            for name in matrices_of(model)
            if (splits := k_splits_of(settings, name)) > 1
        ),
    ]
    runs = runs if model.layers else 0
    of_layers = [b.model_copy(update={"name": of_run(b.name, run)}) for run in range(runs) for b in layer]
    if model.slice is not None or settings.headless:
        return of_layers
    crossed = [
        *of_layers,
        crossing("best_value", "f32", *each, candidates, tag={"t": 1, "1": 1}),
        crossing("best_index", "i32", *each, candidates, tag={"t": 1, "1": 1}),
    ]
    if settings.sampling == "greedy":
        return crossed
    # One place per round: what a slow reader still reads is not what the next round writes.
    counted = Buffer(name="counted", space="global", dtype="i32", shape=(*each, LAST, workers, TALLY))
    draws = [
        crossing("draw_value", "f32", *each, candidates, tag={"t": 1, "1": 1}),
        crossing("draw_index", "i32", *each, candidates, tag={"t": 1, "1": 1}),
    ]
    return [*crossed, counted, *draws]
