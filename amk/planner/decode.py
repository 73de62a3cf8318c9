"""Model + target + settings -> schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from amk.models.matrices import MatrixName, matrices_of, matrix, share_table
from amk.models.model_spec import ModelSpec
from amk.planner.buffers import global_buffers, handoffs_of, of_run
from amk.planner.champions import champion_of
from amk.planner.fetches import require_whole_fetches
from amk.planner.fit import choose_context
from amk.planner.formats import BF16, Chunks, Formats, Layered, Runs, formats, label_of, layered
from amk.planner.program import BEGUN, Author
from amk.planner.settings import (
    FAST,
    LONG_RINGS,
    NARROW_STEP,
    SMALL_COPY,
    Settings,
    cut_of,
    has_tags,
    is_signalled,
    k_splits_of,
    kv_block,
    parts_of,
    reducible,
    splits_of,
    turns_of,
    with_handoff,
)
from amk.planner.shares import act_handoff, attention_tables, head_handoff, loads, row_tables
from amk.planner.staging import head_layout
from amk.planner.steps import RunOfLayers
from amk.planner.storage import SharedPlan, Shares, choose_chunks, choose_parts, copied, shared_plan
from amk.planner.tuned import even_groups, tuned
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.memory import Counter
from amk.schedule_ir.ops.attend import LANE_DIMS
from amk.schedule_ir.sampling import LAST
from amk.schedule_ir.schedule import MAX_BATCH, MAX_LIVE, MAX_ROWS, KvLayout, Launch, Program, Role, Schedule
from amk.targets.target import Target
from amk.weights.weight_format import Chunk, FormatName

REGISTER_UNIT, PARTS = 8, 4
"""Registers are allocated to a thread in multiples of 8, in one of the four parts of an SM (CUDA occupancy rules)."""
Refills = dict[MatrixName, int]
PACED: dict[MatrixName, Callable[[int], int]] = {"qkv": lambda most: most, "o": lambda most: max(1, most // 2)}
"""Refills that short products hold back where they are paced, of so many that a long one does: behind O they go out at
two steps, behind QKV at four."""
NARROWER: tuple[FormatName, ...] = ("int8", "int4-g128")
"""Formats that are named when a model does not fit, widest first."""


@dataclass(frozen=True)
class Sized:
    """A plan before its steps are written: `settings` have no open choice that sizes depend on.

    runs: formats by runs of layers, chunks: the same with widths. rows: tables of row groups, tables: with attention's.
    """

    settings: Settings
    workers: int
    runs: Layered
    chunks: Runs
    kv: KvLayout
    rows: Shares
    tables: Shares
    shared: SharedPlan


def plan(
    model: ModelSpec,
    target: Target,
    *,
    settings: Settings = FAST,
    formats: Formats | Layered = BF16,
    max_context: int | None = None,
    workers: int | None = None,
) -> Schedule:
    """The decode schedule of `model` on `target`.

    max_context: cache positions; default min(the model's, 32,768, what fits). workers: default `choose_workers`.
    formats: the format of every matrix, or that by runs of layers. The numbers of the fast plan are those of `tuned`.
    Raises AmkError AMK011 (exit 2) with the sum and the shortfall when the model does not fit or has more KV heads than
    there are workers, AMK401 when shared memory does not hold it. Where a search on this GPU found a faster plan than
    those numbers give, it is that one (champions.py).
    """
    runs = layered(model, formats)
    champion = champion_of(model, target, runs, settings) if workers is None else None
    if champion is not None:
        sized = _sized(model, target, settings, runs, max_context, workers, champion.settings)
        if (edited := champion.edited(_scheduled(model, target, sized))) is not None:
            return edited
    return _scheduled(model, target, _sized(model, target, settings, runs, max_context, workers))


def _sized(
    model: ModelSpec, target: Target, settings: Settings, runs: Layered, max_context: int | None, workers: int | None,
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> Sized:  # fmt: skip
    """Shares, chunks, context and shared memory; raises what `plan` says. changes: of the settings that are best.

    The sums of lm_head for a batch lie in global memory where shared memory does not hold them.
    """
    chosen = changes.get("workers", settings.workers) if workers is None else workers
    count = choose_workers(model, target, settings.batch, settings.ctas_per_sm) if chosen is None else chosen
    _require_batch(settings)
    if model.layers and model.head_dim % LANE_DIMS:
        message = f"{model.name} has heads of {model.head_dim} elements, of which attention reads {LANE_DIMS} at a time"
        raise AmkError(Diagnostic("AMK011", message))
    if model.slice is not None:
        settings = _of_slice(model, settings)
    _require_places(count, model, target, settings)
    settings = replace(tuned(settings, model, target, runs, count, max_context), **changes)
    settings = with_handoff(settings, model, count)
    try:
        return _laid_out(model, target, settings, runs, max_context, count)
    except AmkError as error:
        if settings.vectors == 1 or settings.head_sums == "global" or error.diagnostics[0].code != "AMK401":
            raise
    return _laid_out(model, target, replace(settings, head_sums="global"), runs, max_context, count)


def _laid_out(
    model: ModelSpec, target: Target, settings: Settings, runs: Layered, max_context: int | None, count: int
) -> Sized:
    """AMK401 unless shared memory holds two slots of every ring."""
    _require_pairs(model, settings, runs)
    rows = row_tables(model, count, runs, settings.row_groups, settings.k_splits)
    parts = settings.act_parts if settings.act_parts > 1 else choose_parts(model, target, settings, rows, runs)
    settings = replace(settings, k_parts=parts)
    chunks = choose_chunks(model, target, settings, rows, runs)
    _require_parts(model, settings, chunks)
    context = choose_context(
        model, target, settings, count, chunks, max_context, lambda: _narrower(model, target, settings, count)
    )
    kv = kv_layout(model, settings, count, context)
    _require_room(settings.rows, kv)
    load = loads(model, runs, rows, settings.k_splits)
    heads = -(-settings.batch * model.kv_heads // kv.turns) if model.layers else 0
    tables = rows | attention_tables(heads, kv.splits, load, settings.attends)
    shared = shared_plan(model, target, settings, chunks, tables)
    return Sized(settings, count, runs, chunks, kv, rows, tables, shared)


def _scheduled(model: ModelSpec, target: Target, sizes: Sized) -> Schedule:
    """The schedule of these sizes; AMK406 where shares are no whole fetches."""
    settings, count, kv, tables, shared = sizes.settings, sizes.workers, sizes.kv, sizes.tables, sizes.shared
    handoff = head_handoff(model, tables) if settings.head_handoff else None
    acts = act_handoff(model, sizes.rows, settings.act_parts) if settings.act_parts > 1 else None
    strong = ends_fenced(settings, tables, model, len(sizes.runs))
    loops = loops_of(model, settings, target, sizes.runs, sizes.chunks, tables, shared.stream.slots)
    deltas = (handoff.delta if handoff else None), (acts.delta if acts else None)
    author = _author(model, sizes, deltas, loops[0], strong)
    stored = label_of(sizes.runs) if kv.dtype == "bf16" else f"{label_of(sizes.runs)}-kv-{kv.dtype}"
    stored = stored if settings.batch == 1 else f"{stored}-batch-{settings.batch}"
    stored = f"{stored}-live" if settings.live else stored
    stored = stored if settings.rows == 1 else f"{stored}-rows-{settings.rows}"
    stored = f"{stored}-accepts" if settings.accepts else stored
    stored = f"{stored}-tree" if settings.tree else stored
    stored = f"{stored}-headless" if settings.headless else stored
    if model.slice is not None and model.layers:
        stored = f"{stored}-layers-{model.slice.first}-to-{model.slice.first + model.layers - 1}"
    if model.slice is not None and model.slice.head:
        stored = f"{stored}-head"
    warps = -(-settings.warps * settings.ctas_per_sm // PARTS)
    registers = target.regs_per_sm // PARTS // (warps * 32) // REGISTER_UNIT * REGISTER_UNIT
    return Schedule(
        name=f"{model.name}-{target.name}-{stored}"[:64],
        plan=settings.plan,
        model=model,
        target=target,
        batch=settings.batch,
        live=settings.live,
        rows=settings.rows,
        accepts=settings.accepts,
        tree=settings.tree,
        headless=settings.headless,
        launch=Launch(
            workers=count, warps=settings.warps, shared_bytes=shared.bytes, registers=min(registers, 255),
            max_tokens=settings.max_tokens, ctas_per_sm=settings.ctas_per_sm,
        ),
        kv=kv,
        roles=(Role(name="all", first=0, count=settings.warps), Role(name="w0", first=0, count=1)),
        tables=tables | (handoff.tables if handoff else {}) | (acts.tables if acts else {}),
        buffers=(*global_buffers(model, kv, settings, count, sizes.chunks), *shared.buffers),
        counters=counters(model, settings, [run.count for run in loops], strong),
        streams=(shared.stream,),
        programs=(Program(name="decode", first=0, count=count, body=author.body(loops)),),
    )  # fmt: skip


def _author(
    model: ModelSpec, sizes: Sized, deltas: tuple[int | None, int | None], first: RunOfLayers, strong: frozenset[str]
) -> Author:
    """Who writes the steps, beginning with the run `first`; deltas: of the hand-offs by head and of the activations."""
    settings, workers, tables = sizes.settings, sizes.workers, sizes.tables
    rows = {n.removesuffix(".count"): 8 * max(c) for n, c in tables.items() if n.endswith(".count")}
    rows |= {"o": rows["hidden"], "down": rows["hidden"]}
    # A worker without rows of some matrix is held back by hints alone, so then they must be exact.
    exact = any(matrix(model, name).groups < workers for name in matrices_of(model))
    if exact and settings.handoff == "narrow":
        # Its next activations are not behind everybody's reads of these: no words of it are waited for.
        message = f"{workers} workers do not all own rows of every matrix, so fences and words do not order activations"
        raise AmkError(Diagnostic("AMK406", message, help="fence all vectors, or none"))
    slack = 0 if exact else settings.hint_slack
    reduced = sizes.kv.splits if reducible(settings, model, sizes.kv.splits) else None
    require_whole_fetches(model, settings, workers, reduced is not None, sizes.runs)
    return Author(
        model,
        settings,
        workers,
        rows,
        *deltas,
        slack,
        reduced,
        head_layout(sizes.runs, settings.vectors),
        first,
        strong,
    )


def loops_of(
    model: ModelSpec, settings: Settings, target: Target, formats: Layered, chunks: Runs, tables: Shares, slots: int
) -> list[RunOfLayers]:
    """What each layer loop is about."""
    found: list[RunOfLayers] = []
    for number, ((count, forms), (_, each)) in enumerate(zip(formats, chunks, strict=True)):
        held = held_back(model, settings, target, each, tables, slots)
        first = first_refills(model, settings, each, tables, slots, held)
        start = sum(run.count for run in found)
        after = formats[number + 1][1] if number + 1 < len(formats) else None
        found.append(RunOfLayers(number, start, count, forms, held, first, after))
    return found


def _narrower(model: ModelSpec, target: Target, settings: Settings, workers: int) -> list[Runs]:
    """Chunks of the same plan in formats of fewer bytes, widest first."""
    every = [layered(model, formats(form)) for form in NARROWER]
    return [choose_chunks(model, target, settings, row_tables(model, workers, each), each) for each in every]


def _require_batch(settings: Settings) -> None:
    """AMK016 unless the batch, or the rows of a sequence, can be decoded with these settings."""
    batch, rows = settings.batch, settings.rows
    if not 1 <= batch <= MAX_BATCH:
        raise AmkError(Diagnostic("AMK016", f"a batch has 1 to {MAX_BATCH} sequences, {batch} were asked for"))
    if not 1 <= rows <= MAX_ROWS:
        raise AmkError(Diagnostic("AMK016", f"a step has 1 to {MAX_ROWS} rows, {rows} were asked for"))
    if batch > 1 and rows > 1:
        raise AmkError(Diagnostic("AMK016", f"a step has several rows of one sequence, the batch has {batch}"))
    if settings.live and batch > MAX_LIVE:
        raise AmkError(Diagnostic("AMK016", f"1 to {MAX_LIVE} sequences are live, {batch} were asked for"))
    if settings.live and batch == 1:
        raise AmkError(Diagnostic("AMK016", "a single sequence is live, and only sequences of a batch come and go"))
    if settings.accepts and rows == 1:
        raise AmkError(Diagnostic("AMK016", "a step of one row accepts no guesses", help="use --rows 2 or more"))
    if settings.tree and (rows == 1 or settings.accepts or settings.sampling != "greedy"):
        message = "a tree is of several rows, of which the host accepts and chooses"
        raise AmkError(Diagnostic("AMK016", message, help="use --rows 2 or more, --sampling greedy, no --accepts"))
    if settings.headless and (rows == 1 or settings.accepts or settings.tree or settings.sampling != "greedy"):
        message = "without output head a step reads several given rows, and chooses nothing"
        raise AmkError(
            Diagnostic("AMK016", message, help="use --rows 2 or more, --sampling greedy, no --accepts or --tree")
        )
    _require_products(settings)


def _require_products(settings: Settings) -> None:
    """AMK016 unless a step of so many tokens can be multiplied with these settings."""
    of_one = {
        "the input of one sequence is staged as a whole, not in x_parts": settings.x_parts > 1,
        "every worker has all columns of one sequence's products, so k_splits is 1": settings.k_splits > 1,
    }
    of_several = {
        "attention waits for the rows of its head": settings.head_handoff,
        "parts of down wait for their own columns": settings.act_parts > 1,
    }
    found = [reason for reason, holds in (of_one if settings.vectors == 1 else of_several).items() if holds]
    if found and settings.vectors == 1:
        raise AmkError(Diagnostic("AMK016", found[0]))
    if found:
        step = f"a batch of {settings.batch}" if settings.rows == 1 else f"a step of {settings.rows} rows"
        raise AmkError(Diagnostic("AMK016", f"{step} is not decoded where {found[0]}"))


def _require_room(rows: int, kv: KvLayout) -> None:
    """AMK016 unless the rows of a step lie in the cache, and in two blocks of it at most."""
    if rows > kv.block:
        message = f"a step of {rows} rows lies in more than two blocks of {kv.block} positions"
        raise AmkError(Diagnostic("AMK016", message, help=f"let kv_block be {rows} or more"))
    if rows > kv.context:
        message = f"a step of {rows} rows has no room in a cache of {kv.context} positions"
        raise AmkError(Diagnostic("AMK016", message, help=f"use --max-context {rows} or more"))


def _of_slice(model: ModelSpec, settings: Settings) -> Settings:
    """Settings of a slice of layers, which is launched for one token at a time; AMK016 for what a slice cannot be."""
    reasons = {
        f"{model.family} norms hidden states as a whole": model.graph.norm != "rms",
        f"a step reads {settings.vectors} tokens": settings.vectors > 1,
        f"tokens are chosen by {settings.sampling}": settings.sampling != "greedy",
    }
    if found := [reason for reason, holds in reasons.items() if holds]:
        raise AmkError(Diagnostic("AMK016", f"a slice of layers is not planned where {found[0]}"))
    if not model.layers:  # nor hand-offs within them
        settings = replace(settings, head_handoff=False, act_parts=1)
    return replace(settings, max_tokens=1)


def _require_parts(model: ModelSpec, settings: Settings, runs: Runs) -> None:
    """AMK016 for parts of one vector's `down` in codes. AMK016 for parts of norms that are staged as a whole or whose
    words carry the tag of one layer. AMK406 unless columns come in whole chunks for every part, of `down` where parts
    wait for their own.
    """
    if settings.x_parts > 1 and (model.graph.norm != "rms" or has_tags(settings, "h_out")):
        raise AmkError(Diagnostic("AMK016", "an input is staged in x_parts where RMSNorms read hidden states of bf16"))
    if settings.vectors == 1 and any(
        cut_of(settings, name) > 1 and chunks[name].format != "bf16" for _, chunks in runs for name in ("o", "down")
    ):  # fmt: skip
        message = f"down is not done in {cut_of(settings, 'down')} parts where its weights are codes"
        raise AmkError(Diagnostic("AMK016", message))
    for name in matrices_of(model):
        cut, columns = cut_of(settings, name), matrix(model, name).k
        width = max(chunks[name].columns for _, chunks in runs)
        if cut > 1 and any(columns % (cut * chunks[name].columns) for _, chunks in runs):
            message = f"{cut} parts of {columns:,} columns are no whole chunks of {width} columns"
            raise AmkError(Diagnostic("AMK406", message))


def _require_pairs(model: ModelSpec, settings: Settings, formats: Layered) -> None:
    """AMK016 unless chunks can have so many row groups."""
    if settings.row_groups == 1:
        return
    reasons = {
        f"a step reads {settings.vectors} tokens": settings.vectors <= NARROW_STEP,
        "weights are codes": any(form != "bf16" for _, forms in formats for form in forms.values()),
        "a matrix has an odd number of them": not even_groups(model),
    }
    if found := [reason for reason, holds in reasons.items() if holds]:
        raise AmkError(Diagnostic("AMK016", f"chunks have no two row groups where {found[0]}"))


def _require_places(workers: int, model: ModelSpec, target: Target, settings: Settings) -> None:
    """AMK011 unless every KV head of a sequence, or of every live one, and every share of columns has a worker, AMK402
    unless every worker has its place on an SM."""
    heads, ctas = settings.batch * model.kv_heads * (model.layers > 0), settings.ctas_per_sm
    heads = -(-heads // turns_of(settings, model, workers))
    if workers < heads:
        message = f"{heads} KV heads need as many workers, there are {workers}: each has workers of its own"
        raise AmkError(Diagnostic("AMK011", message))
    if workers < settings.k_splits:
        raise AmkError(Diagnostic("AMK011", f"{workers} workers are fewer than {settings.k_splits} shares of columns"))
    if workers > target.sms * ctas:
        raise AmkError(Diagnostic("AMK402", f"{workers} workers, {target.name} has {target.sms} SMs x {ctas}"))


def choose_workers(model: ModelSpec, target: Target, batch: int = 1, ctas: int = 1) -> int:
    """`ctas` per SM. A model with fewer row groups than that has as many as all own rows of both QKV and gate-up, and
    in a batch at least one for every KV head of every sequence. The output head alone has as many as own rows.
    """
    qkv, gate_up = (matrix(model, name).groups for name in ("qkv", "gate_up"))
    places = target.sms * ctas
    if not model.layers:
        return min(matrix(model, "lm_head").groups, places)
    if gate_up >= places:
        return places
    return min(qkv, gate_up) if batch == 1 else min(max(min(qkv, gate_up), batch * model.kv_heads), places)


def held_back(
    model: ModelSpec, settings: Settings, target: Target, chunks: Chunks, tables: Shares, slots: int
) -> Refills:
    """Refills that the product of each matrix defers: `held_refills` of a ring, where an agent drains twice as many.

    Behind a full ring of requests, what a worker publishes and polls waits for microseconds. A product of few chunks
    has drained its ring before it could hold anything back. What is carried through a product leaves it a slot.
    """
    most = int(slots * settings.held_refills)
    if not target.has("bulk_copy") or not settings.run_ahead or not most:
        return {}
    found: Refills = {}
    for name, chunk in chunks.items():
        least = drained(model, settings, chunk, tables, name)
        if least >= 2 * most:
            found[name] = most
        elif settings.paced and name in PACED and least >= PACED[name](most):
            found[name] = PACED[name](most)
    if settings.carried is not None:
        found |= dict.fromkeys((model.graph.additions[-1], "qkv"), min(int(slots * settings.carried), slots - 1))
    return found


def first_refills(
    model: ModelSpec, settings: Settings, chunks: Chunks, tables: Shares, slots: int, counts: Refills
) -> Refills:
    """How many of the refills held back go out as soon as the product's result is published: half of them.

    The others wait for the next input, which would queue behind them. All at once where half measured worse: after long
    bf16 products in small copies (amk/lowering/LADDER.md).
    """
    found: Refills = {}
    plain = all(chunk.format == "bf16" for chunk in chunks.values())
    for name, count in counts.items():
        long = drained(model, settings, chunks[name], tables, name) >= LONG_RINGS * slots
        share = 1.0 if plain and long and copied(settings, ((model.layers, chunks),)) < 2 * SMALL_COPY else 0.5
        found[name] = round(count * (share if settings.first_refills is None else settings.first_refills))
        if (settings.paced and name in PACED) or (settings.carried is not None and name == "qkv"):
            found[name] = int(not settings.refill_late)
    return found


def drained(model: ModelSpec, settings: Settings, chunk: Chunk, tables: Shares, name: MatrixName) -> int:
    """Chunks of one product, or of a part of it, that the least busy agent drains."""
    splits = k_splits_of(settings, name)
    groups = min(tables[f"{share_table(name, splits)}.count"]) // settings.row_groups
    across = matrix(model, name).k_chunks(chunk.columns) // (parts_of(settings, name) * splits)
    return groups * across // settings.warps


def kv_layout(model: ModelSpec, settings: Settings, workers: int, context: int) -> KvLayout:
    splits = splits_of(settings, model, workers, context)
    turns = turns_of(settings, model, workers)
    block = kv_block(settings, model, turns)
    return KvLayout(context=context, block=block, splits=splits, dtype=settings.kv_dtype, turns=turns)


def ends_fenced(settings: Settings, tables: Shares, model: ModelSpec, runs: int) -> frozenset[str]:
    """The counters of a plan with tagged words that are fenced all the same: `best`, where a worker owns neither hidden
    nor gate-up rows. Not everybody looks for the other words of a worker, and for its candidates nobody where the token
    is given, so words alone do not put its read of the launch state before worker 0's store of it. In a slice of layers
    or without output head it is the counter of the last hidden state.
    """
    if not model.layers:
        return frozenset()
    last = of_run("h_out", runs - 1) if model.slice is not None or settings.headless else "best"
    shares = zip(tables["hidden.count"], tables["gate_up.count"], strict=True)
    return frozenset({last} if settings.handoff == "tagged" and not all(map(any, shares)) else ())


def counters(
    model: ModelSpec, settings: Settings, layers: Sequence[int], strong: frozenset[str]
) -> tuple[Counter, ...]:
    """One counter per hand-off and layer, so that only the token edge needs epoch separation; layers: of each run."""
    if not model.layers:
        return (Counter(name=BEGUN, shape=(1,), handoff="fenced"),)
    heads = model.kv_heads if settings.head_handoff else 1
    shapes: dict[str, tuple[int, ...]] = {}
    crossing = ("attn", *(name for name in ("h_mid", "act", "h_out") if name in handoffs_of(model.graph)))
    for run, count in enumerate(layers):
        shapes |= {of_run("qkv", run): (count, heads), of_run("split", run): (count, settings.batch * model.kv_heads)}
        shapes |= {} if model.slice is not None or settings.headless else {"best": (1,)}
        shapes |= {of_run(n, run): (count,) for n in crossing}
        if settings.act_parts > 1:
            shapes[of_run("act", run)] = (count, settings.act_parts)
        if settings.x_parts > 1:
            shapes["embedded"] = (1,)
    if settings.sampling != "greedy":
        shapes["draw"] = (1,)

    def kind(name: str) -> Literal["fenced", "hint"]:
        return "hint" if has_tags(settings, name) and name not in strong else "fenced"

    out = tuple(
        Counter(name=name, shape=shape, handoff=kind(name))
        for name, shape in shapes.items()
        if is_signalled(settings, name)
    )
    return out if settings.sampling == "greedy" else (*out, Counter(name="census", shape=(LAST,)))
