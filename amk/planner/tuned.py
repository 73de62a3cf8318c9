"""The numbers of a preset for a model: those of the fast plan, as they were measured on an H200
(amk/lowering/LADDER.md), and the warps of the naive one.

A kind is how many rings a worker drains in the longest product of a layer, and the format of the layers' weights. Where
nothing was measured, and where a setting was chosen by hand, the settings stay what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, replace
from typing import Any

from amk.models.matrices import ROWS_PER_GROUP, MatrixName, matrices_of, matrix
from amk.models.model_spec import ModelSpec
from amk.planner.fetches import fewest_warps
from amk.planner.formats import Layered
from amk.planner.settings import FAST, LONG_RINGS, NAIVE, NARROW_STEP, SMALL_COPY, Settings, reducible, splits_of
from amk.planner.space import FIXED
from amk.schedule_ir.ops.precondition import MAX_PARTS
from amk.targets.target import Target
from amk.weights.weight_format import FormatName, weight_format

Changes = Mapping[str, Any]

EAGER: Changes = {"hint_slack": 4, "wide_epilogue": 0}
"""Look for words when three of four workers have signalled, and let all warps sum partials."""

ANNOUNCED: Changes = {**EAGER, "hint_at": "drained"}
"""For bf16: likewise, and a worker says that its result is coming before its warps have met."""

WITHOUT_FENCES: Changes = {**ANNOUNCED, "handoff": "tagged"}
"""For bf16 where the longest product fits in the rings: words, though a worker may have no rows of some matrix. Raced
on an H100 and an H200: 0.78 to 0.89 of the time with fences, and better than as many workers as have rows."""

REDUCED = 16
"""Most splits of the cache that a KV head's workers are given to reduce, where they cannot reduce as many as there are
workers. Measured on an H200 for smollm2-135m: 12 splits instead of 44 take 0.91 and 0.63 of the time at positions 1 and
8,191."""

LARGE_COPIES: Changes = {"chunk_bytes": 2 * SMALL_COPY}
"""In such a model: copies of 3 KB instead of 1.5 gain 3% at position 1 and 2% at 8,191."""

SHORT_HOLD: Changes = {"held_refills": 1 / 3, "first_refills": 1 / 4}
REFILLED: Changes = {"chunk_bytes": 2 * SMALL_COPY, "refill_first": True, "refill_early": True}
"""What a product held back is asked for before its result is published and before the next input is staged: where a
product ends before a ring is drained often, and a worker's next one is short."""

SOON: Changes = {"hint_slack": 2, "wide_epilogue": 128, "kv_block": 64}
"""Look for words when half of the workers have signalled, and read the cache in short blocks."""

HALF_HOLD: Changes = {"held_refills": 1 / 2, "first_refills": 1 / 4}
"""For codes of eight bits in short products; in long ones nothing was better than what large bf16 models have."""

CARRIED: Changes = {"chunk_bytes": SMALL_COPY, "carried": 1 / 3}
"""What `down` holds back goes out in small copies between the steps of attention. Either alone gains 1.8% at most, both
together 4.9% (measured on an H100)."""

AT_ONCE: Changes = {"hints": "act", "act_slack": 1}
"""Where a layer takes 20 us, all words but activations are looked for without a hint, and those when one is there."""

SHORT_CODES: Changes = {
    **EAGER, **HALF_HOLD, **CARRIED, **AT_ONCE, "scales_apart": True, "hint_slack": 2, "kv_block": 64,
}  # fmt: skip
"""For int8 in short products: copies are codes only. Hints when a result is there, and short blocks of the cache, gain
2 to 3% together over hints before the warps have met (measured on an H100 and an H200)."""

ONE_SCALE: Changes = {"scale_blocks": 16}
"""For codes: a warp seeks one scale for up to 1,024 columns that it stages together. Raced with a row's scale and a
group's, of 8 and of 4 bits: 1.4 to 3.4%, and as accurate."""

LATE_CACHE: Changes = {"prefetch_cache": False}
"""Nothing is asked for ahead of attention's own loads."""

CODES_ONLY: Changes = {"scales_apart": True, "hint_slack": 2, **LATE_CACHE}
"""For codes of eight bits in long products: copies are whole lines without padding, and eight warps have rings of
192 KB instead of 165. Words are looked for when half of the workers have signalled."""

BARE_CODES: Changes = {"scales_apart": True}
"""For codes whose rows have one scale, in batches: whole lines, and a slot more where eight warps have seven."""

PACED: Changes = {"paced": True}
"""In long products: with refills of the short ones spread over the steps behind them, polls and words find short
queues."""

FEW_BARE: Changes = {"hints": "many"}
"""Words that the few workers of a KV head hand to each other are looked for without a hint."""

LATE: Changes = {**PACED, "refill_late": True}
"""Refills of short products begin behind what reads their result: what is published and looked for waits for none."""

LONG_HALF_CODES: Changes = {**LATE, **FEW_BARE, **LATE_CACHE, "hint_slack": 2, "hint_at": "drained"}
"""For codes of four bits in long products."""

CARRIED_HALF_CODES: Changes = {
    **LONG_HALF_CODES, "chunk_bytes": 2 * SMALL_COPY, "carried": 2 / 3, "prefetch_cache": True,
}  # fmt: skip
"""Where these drain few rings: what `down` holds back goes out between the steps of attention, the cache is asked for
before, and copies are of 4 KB of codes. llama3-8b gains 1.5 to 2% at position 128 and up to 1.6% at 8,184; llama3-70b
loses 0.6% (measured on H200s)."""

MOST_CARRIED_RINGS = 16
"""A worker drains 8 rings in gate-up of llama3-8b, 33 in that of llama3-70b."""

BATCHED: Changes = {**FEW_BARE, "handoff": "mixed", "handoff_dtype": "bf16", "hint_at": "drained", **LATE_CACHE}
"""Where a worker has no rows of some matrix, words stay among the few that read them; for all others see below."""

PARTED_BATCH = 4
"""From this batch on the product of `down` is done in parts: rings of 112 KB or more instead of 64 to 96."""

SPLITS = (4, 2, 1)
"""Workers that the columns of o and `down` are divided among where inputs are staged in parts, the best first: an SM
then stages a fourth of these inputs."""

SHARE_COLUMNS = 512
"""Most columns of a part of such a share of `down`: of 32 rows, 896 took 1.03 times as long."""

SHARES: Changes = {"k_splits": SPLITS[0], "k_parts": 1}
"""A share of the columns of `down` is as wide as a part of them. Eight tokens of llama3.2-1b take 0.945 of the time.
Not for rows that only read a prompt: they do with the packed weights of one row. Nor for parallel blocks, whose fewer
hand-offs do not order a worker without rows before those who overwrite what it reads."""

ROWS_SLACK = 2
"""Rows of these that are verified wait until half of the workers have signalled: 0.981 to 0.989 of the time."""

DIVIDED: Changes = {**SHARES, "refill_first": True, "x_parts": 2}
"""Of nine sequences and more whose inputs may be staged as a whole. With refills that go out before a result is
published a batch of 16 takes 0.993 of the time, with the other inputs in halves, so that rings are longer, 0.99."""

IN_PARTS: Changes = {"k_parts": 4}
HALVED: Changes = {"k_parts": 2, "head_sums": "global"}
HALVED_BATCHES = range(PARTED_BATCH, 7)
"""Where the sums of lm_head are elsewhere, halves leave these rings about as long as quarters do."""

ALL_WORDS: Changes = {"handoff": "tagged"}
"""Of two or three sequences fences cost more than the tags of all vectors do; where nothing else was measured, also for
bf16 where the longest product fits in the rings: by the simulator smollm2-135m takes 0.84 to 0.89 of the time on an
A100-80GB, an L40S and an RTX 4090."""

WORDS: Changes = {"handoff": "narrow"}
"""Of more, they cost more than the tags of all vectors but the activations do."""

SMALL_COPIES: Changes = {"chunk_bytes": SMALL_COPY, "first_refills": 1.0}
ALL_LOOK: Changes = {"pollers": "all"}
"""For flag words in batches of five and more, where it was measured to gain; of four it gains too little."""

WIDE_BATCH = 8
"""From this batch on only copies of 2 KB leave so much; beside the multiplications of this many they cost nothing."""

WIDE_STEP: Changes = {**BATCHED, **SMALL_COPIES, "head_sums": "global"}
"""Where x takes so much room that the sums of lm_head lie elsewhere, and no vector is twice as wide for its tags."""

PAIRS: Changes = {"row_groups": 2}
"""Of bf16, where reading x from shared memory takes longer than copies do."""

MANY_COLUMNS = 32
"""From here on it does: measured at 32 and 64."""

LONG_PAIRS: Changes = {**PAIRS, "chunk_bytes": 4096, "slots": 2, "held_refills": 0.0}
"""Slots go back before their weights are multiplied, so two are enough: half as many copies, releases and waits. No
product holds refills back: all of its parts are one loop then, and the kernel has a seventh less code."""

MOST_COLUMNS = 64
"""The most columns for which that was measured."""

X_BYTES = 132 * 1024
"""Of an input that is staged as a whole: 16 columns of 4,096 were measured, with rings of 64 KB beside it."""

PART_BYTES = 64 * 1024
"""A larger one is staged in parts of at most so much, that of `down` in parts that are no wider. What 256 threads have
in flight at once is as much."""

BYTES_A_COLUMN = 2 * ROWS_PER_GROUP
"""Of a copy of bf16."""

NARROW_HEAD = 64
"""With wider heads none of these was measured to gain."""

LONG_CONTEXT = 8192
"""With more positions attention's loads are what counts, and nothing is to be read ahead of them."""

CONTEXT = 32_768
"""Positions of a plan for which none are asked for."""


def tuned(
    settings: Settings, model: ModelSpec, target: Target, wanted: Layered, workers: int, context: int | None
) -> Settings:
    """`settings`, of which no knob was chosen, with what is best for the model; context: as asked for."""
    if settings.plan == "naive" and not chosen(settings, NAIVE):
        return replace(settings, warps=fewest_warps(settings, model))
    if settings.plan != "fast" or chosen(settings, FAST):
        return settings
    rings = rings_drained(model, workers)
    layers = {form for _, forms in wanted for name, form in forms.items() if name != "lm_head"}
    small = rings < 1 and settings.vectors == 1 and layers == {"bf16"}
    splits = reduced_splits(settings, model, workers, context)
    if not target.has("bulk_copy"):
        return replace(settings, **splits, **(ALL_WORDS if small else {}))
    if rings < 1:
        words = {**WITHOUT_FENCES, **few_splits(settings, model, workers, context)} if small else {}
        return replace(settings, **{**splits, **words})
    if settings.vectors > 1:
        lines = BARE_CODES if all(weight_format(form).per_row for form in layers) else {}
        plain = all(form == "bf16" for _, forms in wanted for form in forms.values())
        parted = in_parts(settings.vectors, model)
        if rings < LONG_RINGS and not parted:
            alone = (settings.rows == 1 or settings.accepts or settings.tree) and not model.parallel
            divided = settings.vectors == WIDE_BATCH and alone and plain and divisible(model, workers)
            early: Changes = {} if settings.rows == 1 else {"hint_slack": ROWS_SLACK}
            return replace(settings, **SHARES, **early) if divided else settings
        found = batched(settings.vectors, model, workers, plain, settings.rows)
        paired = LONG_PAIRS if settings.vectors >= MOST_COLUMNS else PAIRS
        pairs = paired if settings.vectors >= MANY_COLUMNS and parted and plain and even_groups(model) else {}
        return replace(settings, **{**found, **lines, **pairs})
    settings = replace(settings, **splits)
    most = splits_of(settings, model, workers, context or min(CONTEXT, model.max_context))
    found = changes(layers, rings, model, reducible(settings, model, most))
    ahead = found.get("refill_early") or found.get("prefetch_cache")
    late = LATE_CACHE if ahead and (context or CONTEXT) > LONG_CONTEXT else {}
    return replace(settings, **{**found, **late})


def chosen(settings: Settings, preset: Settings) -> bool:
    """Whether a knob differs from the preset's."""
    names = (f.name for f in fields(Settings) if f.name not in FIXED)
    return any(getattr(settings, name) != getattr(preset, name) for name in names)


def reduced_splits(settings: Settings, model: ModelSpec, workers: int, context: int | None) -> Changes:
    """The most splits of the cache that the workers of a KV head can reduce, where they cannot reduce a split each. Of
    several tokens at once the planner has no others.

    On an H200 at positions 128 and 8,184 qwen2.5-1.5b takes 0.94 and 0.58 of the time, qwen2.5-7b 0.97 and 0.84, in 4
    bits 0.93 and 0.70, qwen3-14b 0.97 and 0.92. From 8,184 on fewer of them take longer. Other GPUs were not measured.
    The cause is the same there: every SM reads what all splits left of all heads, 412 KB a layer of qwen2.5-1.5b.
    """
    if settings.vectors > 1:
        return {}
    most = splits_of(settings, model, workers, context or min(CONTEXT, model.max_context))
    fewer = [splits for splits in range(most // 2 + 1, most) if reducible(settings, model, splits)]
    return {} if reducible(settings, model, most) or not fewer else {"kv_splits": fewer[-1]}


def few_splits(settings: Settings, model: ModelSpec, workers: int, context: int | None) -> Changes:
    """For a model of few KV heads, of which the workers of one could not reduce a split for each."""
    positions = context or min(CONTEXT, model.max_context)
    most = splits_of(settings, model, workers, positions)
    fewer = [splits for splits in range(2, min(most, REDUCED + 1)) if reducible(settings, model, splits)]
    if model.head_dim > NARROW_HEAD or positions > LONG_CONTEXT or reducible(settings, model, most) or not fewer:
        return {}
    return {"kv_splits": fewer[-1], **LARGE_COPIES}


def rings_drained(model: ModelSpec, workers: int) -> float:
    """Rings of bf16 that a worker drains in gate-up, the longest product."""
    shape = matrix(model, "gate_up")
    return 2 * shape.rows * shape.k / (workers * FAST.max_ring_bytes)


def batched(batch: int, model: ModelSpec, workers: int, plain: bool, rows: int = 1) -> Changes:
    """For so many sequences of a large model. Parts of `down` are whole copies; words need rows for every worker.

    plain: all weights are bf16, whose columns are divided among workers. Sixteen rows of a sequence divide none: they
    share packed weights with eight."""
    whole = model.ffn % (IN_PARTS["k_parts"] * 2 * SMALL_COPY // BYTES_A_COLUMN) == 0
    all_own = all(matrix(model, name).groups >= workers for name in matrices_of(model))
    parts = HALVED if batch in HALVED_BATCHES else IN_PARTS if batch >= PARTED_BATCH else {}
    words = WORDS if batch >= PARTED_BATCH else ALL_WORDS
    if in_parts(batch, model):
        several = next(n for n in (4, 8, 16, 32) if n == 32 or batch * model.hidden * 2 <= n * PART_BYTES)
        for splits in SPLITS if plain and whole_copies(model.q_dim, several) else (1,):
            if workers % splits:
                continue
            if (few := parts_of_down(model, several, batch, workers, splits)) is not None:
                return {**WIDE_STEP, "x_parts": several, "k_parts": few, "k_splits": splits}
    if batch > NARROW_STEP:
        divided = plain and whole and rows == 1 and divisible(model, workers)
        return {**WIDE_STEP, **(DIVIDED if divided else IN_PARTS if whole else {})}
    return {
        **BATCHED,
        **(parts if whole else {}),
        **(SMALL_COPIES if batch >= WIDE_BATCH else {}),
        **(words if all_own else {}),
        **(ALL_LOOK if all_own and batch > PARTED_BATCH else {}),
    }


def in_parts(vectors: int, model: ModelSpec) -> bool:
    """Whether the hidden states of so many tokens are too much to be staged as a whole."""
    return vectors * model.hidden * 2 > X_BYTES


def divisible(model: ModelSpec, workers: int) -> bool:
    """Whether workers divide the columns of o and `down` evenly, in whole copies."""
    splits = SPLITS[0]
    return workers % splits == 0 and whole_copies(model.q_dim, splits) and whole_copies(model.ffn, splits)


def even_groups(model: ModelSpec) -> bool:
    """Whether chunks of two row groups fit every matrix."""
    return all(matrix(model, name).groups % 2 == 0 for name in matrices_of(model))


def whole_copies(columns: int, parts: int) -> bool:
    """Whether the parts of so many columns are whole copies."""
    return columns % (parts * (SMALL_COPY // BYTES_A_COLUMN)) == 0


def parts_of_down(model: ModelSpec, parts: int, batch: int, workers: int, splits: int) -> int | None:
    """Parts of a worker's share of the columns of `down`, which are divided among `splits`. Parts are whole copies.
    They are as few as take no more room with their sums than one of `parts` of a hidden state with the sums of gate-up.
    None if there are none."""

    def taken(name: MatrixName, columns: int, splits: int) -> int:
        slots = -(-matrix(model, name).groups * splits // workers) + FAST.warps
        return batch * (2 * (-(-columns // 64) * 64 + 32) + 4 * ROWS_PER_GROUP * slots)

    room = taken("gate_up", model.hidden // parts, 1)
    fitting = (n for n in range(1, MAX_PARTS + 1) if whole_copies(model.ffn, n * splits))
    if splits > 1:
        fitting = (n for n in fitting if model.ffn <= n * splits * SHARE_COLUMNS)
    return next((n for n in fitting if taken("down", model.ffn // (n * splits), splits) <= room), None)


def changes(layers: AbstractSet[FormatName], rings: float, model: ModelSpec, reduced: bool) -> Changes:
    """For one sequence. rings: drained in gate-up. reduced: splits are reduced before they are staged, which leaves
    registers for more warps."""
    long = rings >= LONG_RINGS
    if layers == {"bf16"}:
        short = not long and reduced and model.head_dim <= NARROW_HEAD
        if short:
            return {**ANNOUNCED, **REFILLED, **SOON, **SHORT_HOLD}
        return {**ANNOUNCED, **PACED} if long else ANNOUNCED
    return {**of_codes(layers, rings), **ONE_SCALE}


def of_codes(layers: AbstractSet[FormatName], rings: float) -> Changes:
    """What depends on the format of codes."""
    long = rings >= LONG_RINGS
    if len(layers) > 1:
        return EAGER
    if long and all(weight_format(form).bits == 8 for form in layers):
        return {**EAGER, **CODES_ONLY, **PACED}
    if layers == {"fp8"}:
        return EAGER
    if all(weight_format(form).bits == 4 for form in layers):
        half = CARRIED_HALF_CODES if rings < MOST_CARRIED_RINGS else LONG_HALF_CODES
        return {**EAGER, **SHORT_HOLD, **(half if long else {})}
    if layers == {"int8"}:
        return SHORT_CODES
    return {**EAGER, **HALF_HOLD}
