"""The choices a plan is made of; the rest follows from model and target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from amk.models.matrices import MatrixName, matrices_of, matrix
from amk.models.model_spec import ModelSpec
from amk.schedule_ir.ops.attention import QUERY_TILE, sharers, tile_columns
from amk.schedule_ir.ops.reduce_splits import sliceable
from amk.schedule_ir.ops.staging import ScaleBlocks
from amk.schedule_ir.sampling import Mode
from amk.schedule_ir.schedule import CacheDtype
from amk.targets.target import Target
from amk.weights.weight_format import FormatName

Handoff = Literal["fenced", "tagged", "mixed", "narrow"]
"""How activations cross SMs: by counters behind a release fence, by tagged words, or so where few workers read them
(mixed), or everywhere but in the widest vector, the input of `down`, where tags double the most bytes (narrow)."""

FEW_READ = ("qkv", "split", "split_partial", "split_scale")
"""Buffers and counters of what a KV head's workers hand to each other; all else that crosses is read by everybody."""

SUMS_OF_SHARES = ("sums_o", "sums_down")
"""Sums over shares of a product's columns: always tagged words, which few workers read, without a counter."""

WITHOUT_RELAXED_WAIT: dict[str, tuple[str, ...]] = {
    "all": (),
    "many": FEW_READ,
    "few": (*FEW_READ, "h_mid", "h_out"),
    "act": (*FEW_READ, "h_mid", "h_out", "attn"),
}
"""Words that are looked for without a hint, by `hints`."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One point of the plan space."""

    plan: Literal["fast", "naive", "search", "custom"] = "fast"
    warps: int = 8
    """Agents per worker."""
    slots: int | None = None
    """Ring depth per warp; None: as much as shared memory holds, at most `max_ring_bytes`."""
    max_ring_bytes: int = 216 * 1024
    chunk_bytes: int | None = None
    """Upper bound of one copy's codes; None: `chunk_bytes_of`."""
    kv_block: int | None = None
    """Positions per attention block; None: 128, or 64 where rows are wide."""
    handoff: Handoff | None = None
    """None: `handoff_of`."""
    head_handoff: bool = False
    """Attention waits for its head's rows only."""
    wide_epilogue: int = 64
    """All warps add up partial sums where a worker has more output rows than this."""
    run_ahead: bool = True
    refill_fence: bool = True
    max_tokens: int = 1024
    sampling: Mode = "greedy"
    """How a token is chosen. Other modes than greedy add steps; their parameters are run-time values."""
    kv_dtype: CacheDtype = "bf16"
    """What the KV cache holds."""
    workers: int | None = None
    """None: `ctas_per_sm` for each SM, fewer for small models."""
    ctas_per_sm: int = 1
    """Workers that share an SM, its shared memory and its registers."""
    kv_splits: int | None = None
    """Most splits of a head's cache; None: one for every worker."""
    hint_slack: int = 8
    """A hint says that looking is worth while when all producers but one in so many have signalled; 0: all."""
    act_slack: int | None = None
    """The same for the activations; None: `hint_slack`."""
    hints: Literal["all", "many", "few", "act"] = "all"
    """Which tagged words have hints. "many": those that everybody reads; "few": of these all but hidden states; "act":
    activations and candidates. Others are looked for at once."""
    prefetch_cache: bool = True
    """Ask for earlier keys and values before the query is there."""
    held_refills: float = 2 / 3
    """Share of a ring that a long product refills only after its result is published."""
    first_refills: float | None = None
    """Share of the refills held back that go out right after publication, the others once the next input is there;
    None: as `decode.first_refills` says."""
    paced: bool = False
    """The products of QKV and O hold refills back as well, which go out one by one between the steps that follow."""
    carried: float | None = None
    """Share of a ring that a layer's last product holds back and owes through QKV; it goes out one by one between the
    steps of attention."""
    reduce_from: int | None = 8
    """From this many splits on, the workers of a kv head reduce them, a slice each, before everybody reads the result;
    None: everybody reads all splits."""
    overlay: bool = True
    """Arrays that are never live together share bytes."""
    handoff_dtype: Literal["bf16", "f32"] | None = None
    """Of hidden states and attention outputs that cross SMs; None: bf16 in tagged words, f32 elsewhere."""
    batch: int = 1
    """Sequences that are decoded together; with several, splits are always reduced."""
    live: bool = False
    """Each sequence has a position of its own."""
    rows: int = 1
    """Consecutive tokens of a sequence that a step reads; with several, splits are always reduced."""
    accepts: bool = False
    """Rows behind the first are guesses, and the next step goes on behind the last right one."""
    tree: bool = False
    """Rows are nodes of a tree."""
    headless: bool = False
    """All rows are given, and no step has an output head or chooses a token."""
    k_parts: int | None = None
    """Steps that the product of `down` is done in, so that its input fits; None: as few as leave comfortable rings."""
    x_parts: int = 1
    """The same of all other products. With several, the embedding is handed over like a hidden state, so that every
    norm is staged where it is read."""
    act_parts: int = 1
    """Parts that the product of `down` is done in, each of which waits for the activations of its own columns only."""
    k_splits: int = 1
    """Workers that the columns of o and `down` are divided among; `k_parts` counts the steps of a worker's share."""
    scales_apart: bool = False
    """Chunks hold no scales where a row has one."""
    refill_first: bool = False
    """The refills that a product held back go out before its result is published, not after it."""
    refill_early: bool = False
    """The rest of them go out before the next input is staged, not after it."""
    refill_late: bool = False
    """Those of short products that are paced begin behind what reads the result, not behind its publication."""
    prefetch_at: Literal["layer", "product", "published"] = "layer"
    """Earlier keys and values are asked for before the first product of a layer, between that and its publication, or
    behind both."""
    attends: Literal["first", "spread", "light"] = "first"
    """The workers that serve a KV head are neighbours from the first worker on, or as far apart as can be, or
    neighbours of those that stream the fewest bytes."""
    pollers: Literal["one", "all"] = "one"
    """One warp of a worker looks whether tagged words are worth looking for, and the others meet it at a barrier; or
    all warps look for hidden states and activations, and none waits for another."""
    hint_at: Literal["published", "summed", "drained"] = "published"
    """Where a worker signals a hint: behind what writes its tagged words, before that, or, after a product, before its
    warps have met. A hint orders nothing, so it may come early."""
    head_sums: Literal["shared", "global"] = "shared"
    """Where the partial sums of lm_head lie. In shared memory they take several times what those of a layer do, for
    each sequence, bytes that rings lack in all layers; in global memory they stay in L2."""
    scale_blocks: ScaleBlocks = 1
    """Neighbouring blocks of a staged vector, in a warp's share, that have one scale."""
    row_groups: Literal[1, 2] = 1
    """Of a chunk; what is read of x is multiplied with all of them. Two take bf16 and more than 8 vectors."""

    @property
    def vectors(self) -> int:
        """Tokens that a step reads."""
        return self.batch * self.rows


FAST = Settings()
PHASED = Settings(
    plan="naive", chunk_bytes=2048, handoff="fenced", head_handoff=False, wide_epilogue=0, run_ahead=False, slots=4
)
"""Phases one after the other, with rings and attention as in the fast plan."""

UNTUNED = replace(PHASED, hint_slack=0, held_refills=0.0, first_refills=1.0, prefetch_cache=False, reduce_from=None)
"""The phased plan without any number that was tuned for the fast one."""

NAIVE = replace(UNTUNED, warps=4, slots=2, kv_splits=1)
"""One op at a time and nothing ahead of it: every mechanism that makes a plan fast is absent or at the least that works
(amk/planner/README.md). Warps: one for each scheduler of an SM, or as many as stage a hidden state (`tuned`).
"""
PRESETS = {"fast": FAST, "naive": NAIVE}

STARTS = PRESETS | {"phased": PHASED, "untuned": UNTUNED}
"""Where a search may begin."""


def parts_of(settings: Settings, name: MatrixName) -> int:
    """Steps that the product of a matrix, or of a worker's share of its columns, is done in."""
    if name == "down":
        return settings.k_parts or 1
    return -(-settings.x_parts // k_splits_of(settings, name))


def cut_of(settings: Settings, name: MatrixName) -> int:
    """Parts of all columns of a matrix, whichever worker has them."""
    return parts_of(settings, name) * k_splits_of(settings, name)


def k_splits_of(settings: Settings, name: MatrixName) -> int:
    """Workers that the columns of a matrix are divided among."""
    return settings.k_splits if name in ("o", "down") else 1


def in_place(model: ModelSpec, settings: Settings) -> bool:
    """Whether attention leaves its partials where its queries were: room is short, and no warps share positions."""
    vectors = settings.rows * model.heads // model.kv_heads
    alone = settings.rows > 1 and sharers(vectors, settings.rows, settings.warps) == 1
    return settings.x_parts > 1 and alone and vectors % QUERY_TILE == 0


def down_apart(model: ModelSpec, settings: Settings) -> bool:
    """Whether parts of the input of `down` are wider than those of all others, and have an array of their own: a worker
    has few sums of `down` beside them."""
    cut = (settings.k_parts or 1) * settings.k_splits
    return settings.x_parts > 1 and model.ffn * settings.x_parts > model.hidden * cut


def per_vector(settings: Settings) -> tuple[int, ...]:
    """The leading dimension of what every token of a step has of its own."""
    return (settings.vectors,) if settings.vectors > 1 else ()


def sum_slots(settings: Settings, groups: int) -> int:
    """Slots of a worker's partial sums of so many row groups: where the share of a warp begins within those of a chunk,
    they have sums of two warps. (One slot more than that for chunks of one row group.)"""
    return groups + max(settings.warps, settings.row_groups * (settings.warps - 1))


LONG_RINGS = 4
"""A product is long when an agent drains this many rings in it."""

NARROW_STEP = 8
"""A step of more tokens multiplies weights with 16 columns at once, and all warps reduce the splits of attention."""

SMALL_COPY = 2048
"""Bytes of a copy where nothing speaks for larger ones."""


def chunk_bytes_of(settings: Settings, model: ModelSpec, target: Target, formats: set[FormatName], workers: int) -> int:
    """The upper bound of one copy; formats: the formats of the plan.

    A larger one costs an agent less time to wait for, fence and refill; a ring of few slots is coarse, which long
    products do not notice, and codes cost little to multiply beside that. Measured on an H200:
    amk/lowering/LADDER.md.
    """
    if settings.chunk_bytes:
        return settings.chunk_bytes
    shape = matrix(model, "gate_up")
    each = shape.rows * shape.k * 2 // (workers * settings.warps)
    long = each >= LONG_RINGS * settings.max_ring_bytes // settings.warps
    if "bf16" not in formats:
        return 2 * SMALL_COPY
    large = long and formats == {"bf16"} and target.has("bulk_copy")
    return 2 * SMALL_COPY if large else SMALL_COPY


def turns_of(settings: Settings, model: ModelSpec, workers: int) -> int:
    """Turns in which workers serve the KV heads of a batch that has more of them; one elsewhere."""
    return max(1, -(-settings.batch * model.kv_heads // workers)) if settings.batch > 1 and not settings.live else 1


def kv_block(settings: Settings, model: ModelSpec, turns: int) -> int:
    """Positions per attention block. Where warps share out the query vectors of several rows, or the turns of a worker,
    fewer of them share the positions of a block, which has as many less: a warp keeps its share of them in registers.
    """
    whole = 128 if model.head_dim <= 64 else 64
    columns = tile_columns(settings.rows * model.heads // model.kv_heads, settings.rows, settings.warps)
    return settings.kv_block or max(whole // (columns * min(turns, settings.warps)), settings.rows)


def splits_of(settings: Settings, model: ModelSpec, workers: int, context: int) -> int:
    """Splits of a kv head's cache: at most one per worker and per block, and in a batch so many that can be reduced.

    One can, where attention reads the heads in whole fetches."""
    turns = turns_of(settings, model, workers)
    heads = -(-settings.batch * model.kv_heads // turns)
    most = min(workers // heads, -(-context // kv_block(settings, model, turns)))
    splits = max(1, min(most, settings.kv_splits or most))
    if settings.vectors == 1:
        return splits
    return max(n for n in range(1, splits + 1) if reducible(settings, model, n))


def reducible(settings: Settings, model: ModelSpec, splits: int) -> bool:
    """Whether so many splits are reduced by the workers of their kv head; in a batch they always have to be."""
    few = settings.reduce_from is None or splits < settings.reduce_from
    if settings.vectors == 1:
        return not few and sliceable(model.heads, model.kv_heads, model.head_dim, splits)
    return sliceable(model.heads, model.kv_heads, model.head_dim, splits, pieces=model.head_dim * model.heads)


def has_tags(settings: Settings, name: str) -> bool:
    """Whether what the buffer or counter `name` hands on is tagged words; `handoff` is decided."""
    family = name.partition(".")[0]
    if family in SUMS_OF_SHARES:
        return True
    match settings.handoff:
        case "mixed":
            return family in FEW_READ
        case "narrow":
            return family != "act"
    return settings.handoff == "tagged"


def is_bare(settings: Settings, name: str) -> bool:
    """Whether tagged words of that name are looked for without a hint; `handoff` and `hints` are decided."""
    return has_tags(settings, name) and name.partition(".")[0] in WITHOUT_RELAXED_WAIT[settings.hints]


def is_signalled(settings: Settings, name: str) -> bool:
    """Whether there is a counter of that name. Of attention's results there always is: without the signal, compilers
    move the reduction of the splits out of line, and the read-back of the kernel refuses that."""
    return not is_bare(settings, name) or name.partition(".")[0] == "attn"


def crossing_dtype(settings: Settings) -> Literal["bf16", "f32"]:
    """What hidden states and attention outputs are between SMs; `handoff` is decided."""
    return settings.handoff_dtype or ("f32" if settings.handoff == "fenced" else "bf16")


def handoff_of(settings: Settings, model: ModelSpec, workers: int) -> Handoff:
    """The hand-off of a plan. Tagged words order only those who depend on them: a worker without rows of some matrix
    reads its input and passes nothing on, and only hints hold back those who overwrite the words. That is safe, and
    not what the measured plans do.
    """
    if settings.handoff:
        return settings.handoff
    return "tagged" if all(matrix(model, name).groups >= workers for name in matrices_of(model)) else "fenced"


def with_handoff(settings: Settings, model: ModelSpec, workers: int) -> Settings:
    """The settings with their kind of hand-off. A worker without rows of some matrix is held back by hints alone, so
    then all words have them."""
    hints = settings.hints if all(matrix(model, name).groups >= workers for name in matrices_of(model)) else "all"
    return replace(settings, handoff=handoff_of(settings, model, workers), hints=hints)
