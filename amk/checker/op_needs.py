"""The preconditions of ops, each decided from its meaning at one place of the schedule.

An op declares what its device code relies on as `Need`s, with a name and a clause (`schedule_ir/ops/`). The rule here
that has the op's and the need's name is arithmetic of its own on the schedule: it evaluates none of the declared terms.
A need without a rule counts as unmet, so a new declaration is refused until there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import gcd
from typing import Any, Final

from amk.models.matrices import ROWS_PER_GROUP, Matrix, MatrixName, matrix
from amk.models.model_spec import ModelSpec
from amk.schedule_ir.memory import Buffer, Stream
from amk.schedule_ir.sampling import LAST
from amk.schedule_ir.schedule import Schedule, steps_of
from amk.weights.weight_format import Chunk

WORD_LIMIT: Final = 1 << 31
EXACT_QUOTIENT: Final = 1 << 20
"""Chunks up to which a quotient in float32 is exact."""
TILE_BYTES: Final = 512
TENSOR_COLUMNS: Final = 8
"""Tokens of a step that are columns of a tensor core's operand; more of them are its rows."""
RUN: Final = 8
"""bf16 elements of 16 bytes."""
LANES: Final = 32
BLOCK: Final = 64
"""Elements of a vector in blocks that share a scale."""
FETCHES_OF_A_NORM: Final = 8
LARGEST_PIECE, SMALLEST_PIECE, MOST_PIECES = 128, 4, 1 << 20
WARP_BLOCKS: Final = 2048
"""Elements of a warp's share of a LayerNorm in blocks, at most."""
PARTIAL_WORDS: Final = 4
"""Of a partial, behind the outputs of a head."""


@dataclass(frozen=True)
class Facts:
    """The parts of a schedule by name."""

    schedule: Schedule

    @cached_property
    def buffers(self) -> dict[str, Buffer]:
        return {buffer.name: buffer for buffer in self.schedule.buffers}

    @cached_property
    def streams(self) -> dict[str, Stream]:
        return {stream.name: stream for stream in self.schedule.streams}

    @cached_property
    def names(self) -> set[str]:
        """Whatever steps and streams name."""
        schedule = self.schedule
        users = [*schedule.streams, *(step.op for program in schedule.programs for step in steps_of(program.body))]
        return {value for user in users for _, value in user if isinstance(value, str)}

    @cached_property
    def warps(self) -> dict[str, range]:
        """Those of each role."""
        return {role.name: range(role.first, role.first + role.count) for role in self.schedule.roles}


@dataclass(frozen=True)
class Place:
    """An op where these workers run it. inside: in the loop over tokens. chunk: what its stream's chunks are there."""

    facts: Facts
    op: Any
    workers: range
    inside: bool
    chunk: Chunk | None = None

    @property
    def schedule(self) -> Schedule:
        return self.facts.schedule

    @property
    def model(self) -> ModelSpec:
        return self.schedule.model

    @property
    def tokens(self) -> int:
        """Tokens that a step reads."""
        return self.schedule.batch * self.schedule.rows

    @property
    def alone(self) -> bool:
        """Is it one token."""
        return self.tokens == 1

    @property
    def agents(self) -> int:
        return len(self.facts.warps[self.op.role])

    @property
    def stream(self) -> Stream:
        return self.facts.streams[self.op.stream]

    @property
    def name(self) -> MatrixName:
        """The matrix that the op multiplies, or whose rows it has."""
        name: MatrixName = getattr(self.op, "matrix", None) or self.op.sums_of or "lm_head"
        return name

    @property
    def matrix(self) -> Matrix:
        return matrix(self.model, self.name)

    @property
    def kind(self) -> Chunk:
        assert self.chunk is not None
        return self.chunk

    @property
    def across(self) -> int:
        """Chunks that a row group takes, of all columns."""
        return -(-self.matrix.k // self.kind.columns)

    @property
    def pieces(self) -> int:
        """Parts of the columns: of all workers with the same rows together."""
        return int(getattr(self.op, "k_parts", 1) * getattr(self.op, "k_splits", 1))

    @property
    def groups(self) -> list[int]:
        """Row groups of the matrix that each of the workers has."""
        divided = self.op.of_split and getattr(self.op, "k_splits", 1) > 1
        table = "k_split" if divided else {"o": "hidden", "down": "hidden"}.get(self.name, self.name)
        column = self.schedule.tables[f"{table}.count"]
        return [column[worker] for worker in self.workers]

    def has(self, field: str) -> bool:
        """Does the op name something there."""
        return getattr(self.op, field, None) is not None

    def buffer(self, field: str) -> Buffer | None:
        return self.facts.buffers[getattr(self.op, field)] if self.has(field) else None

    def row(self, field: str) -> int:
        """Elements of a token's row; 0 where nothing is named."""
        buffer = self.buffer(field)
        return buffer.elements // self.tokens if buffer else 0

    def fetch(self, field: str) -> int:
        """Elements that a lane fetches of a hand-off at once: of words with tags 16 bytes, else four."""
        buffer = self.buffer(field)
        if buffer is None or not buffer.tagged:
            return 4
        return {"f32": 2, "bf16": 4}.get(buffer.dtype, 16 // buffer.item_bytes)

    def plain(self, field: str) -> bool:
        """Has nothing that is named there tags."""
        buffer = self.buffer(field)
        return buffer is None or not buffer.tagged

    def dtype(self, field: str) -> str:
        buffer = self.buffer(field)
        return buffer.dtype if buffer else ""

    def rows_of(self, field: str, unit: int) -> bool:
        """Are the rows of several tokens whole units each."""
        return self.alone or self.row(field) % unit == 0


Rule = Callable[[Place], bool]
Rules = dict[str, Rule]


def _equal_slices(p: Place) -> bool:
    part = p.buffer("part")
    if part is None:
        return True
    whole = p.schedule.launch.workers * ROWS_PER_GROUP * p.tokens
    return not part.tagged and (part.space == "shared" or part.elements % whole == 0)


def _few_chunks(p: Place) -> bool:
    drainers = len(p.facts.warps[p.stream.role])
    return max(p.groups) * p.across * drainers <= EXACT_QUOTIENT


def _rows_in_order(p: Place) -> bool:
    """Among equal candidates the one of the first worker is taken, which has to have the lowest row."""
    tables = p.schedule.tables
    shares = zip(tables["lm_head.first"], tables["lm_head.count"], strict=True)
    owned = [first for first, count in shares if count > 0]
    return all(first < second for first, second in pairwise(owned))


def _ring_owners(p: Place) -> bool:
    return p.facts.warps[p.op.role] == p.facts.warps[p.stream.role]


def _only_stream(p: Place) -> bool:
    return bool(p.op.stream == p.schedule.streams[0].name)


def _pairs_of_groups(p: Place) -> bool:
    if p.stream.chunk_rows == ROWS_PER_GROUP:
        return True
    return p.kind.format == "bf16" and p.tokens > TENSOR_COLUMNS and all(count % 2 == 0 for count in p.groups)


def _exact_chunks(p: Place) -> bool:
    """Codes of all columns at once may end in padding; whatever else is multiplied may not."""
    padded = p.kind.format != "bf16" and p.pieces == 1
    return padded or p.matrix.k % (p.kind.columns * p.pieces) == 0


def _whole_tiles(p: Place) -> bool:
    form, columns = p.kind.weights, p.kind.columns
    return ROWS_PER_GROUP * columns * form.bits // 8 % TILE_BYTES == 0 and columns % (form.group or 1) == 0


def _operand(p: Place) -> bool:
    """Codes of one token are multiplied as integers or as f16, with a scale for each block; all else in bf16."""
    form = p.kind.weights
    if not p.alone or form.plain:
        return p.dtype("x") == "bf16"
    return p.dtype("x") == form.kind.staged and p.has("scales") and (not form.zeros or p.has("sums"))


def _taker(p: Place) -> bool:
    return bool(p.model.graph.products[p.name].taken_by == p.op.op)


def _biases(p: Place) -> bool:
    return p.has("bias") == (len(p.model.graph.products[p.name].biases) > 0)


def _rms(p: Place) -> bool:
    return p.model.graph.norm == "rms"


def _layer(p: Place) -> bool:
    return p.model.graph.norm == "layer"


def _published(p: Place) -> bool:
    """The last state of a layer is read by the norm of the next one or of the output head."""
    graph = p.model.graph
    state = 1 + [n for n, product in graph.products.items() if product.then == "residual"].index(p.name)
    last = sum(product.then == "residual" for product in graph.products.values())
    return p.has("h") == (state == last or any(norm.reads == state for norm in graph.norms))


def _whole_queries(p: Place) -> bool:
    q = p.buffer("q")
    return q is not None and q.shape[-1] >= p.model.head_dim and q.shape[-1] % 4 == 0


def _vectors_of_a_head(p: Place) -> int:
    return p.schedule.rows * (p.model.heads // p.model.kv_heads)


def _sharers(p: Place) -> int:
    """Agents that share the positions of a query vector: those of a turn, dealt to tiles of 8 vectors first where a
    step has several rows."""
    agents = p.agents // min(p.schedule.kv.turns, p.agents)
    tiles = min(-(-_vectors_of_a_head(p) // 8), agents) if p.schedule.rows > 1 else 1
    return agents // tiles


def _left_in_place(p: Place) -> bool:
    if p.op.partial != p.op.q:
        return True
    q, vectors = p.facts.buffers[p.op.q], _vectors_of_a_head(p)
    tiles = p.schedule.rows > 1 and vectors > 0 and vectors % 8 == 0
    return tiles and _sharers(p) == 1 and q.shape[-1] == p.model.head_dim + PARTIAL_WORDS


def _room_of_mix(p: Place) -> bool:
    """For the heads that any agent's share of the outputs reaches into."""
    count, dim, unit = p.model.heads * p.model.head_dim, p.model.head_dim, BLOCK if p.has("scales") else 1
    units = -(-count // unit)
    bounds = [min(units * a // p.agents * unit, count) for a in range(p.agents + 1)]
    shares = [(lo, hi) for lo, hi in pairwise(bounds) if lo < hi]
    return all((hi - 1) // dim - lo // dim + 1 <= p.op.heads for lo, hi in shares)


def _slice_of_outputs(p: Place) -> int:
    """Outputs of a worker of a head; -1 if the slices are not equal."""
    size, rest = divmod(p.model.heads // p.model.kv_heads * p.model.head_dim, p.schedule.kv.splits)
    return -1 if rest else size


def _pieces_of_slice(p: Place) -> bool:
    size = _slice_of_outputs(p)
    piece = gcd(size, p.model.head_dim, LARGEST_PIECE)
    return size >= 0 and piece >= SMALLEST_PIECE and size <= MOST_PIECES * piece


def _runs_of_blocks(p: Place) -> bool:
    """A warp fetches 2 elements a lane of each block, so a run is whole fetches if that many are."""
    run = p.op.scale_blocks
    return run == 1 or (p.has("scales") and run * BLOCK % (LANES * p.fetch(_HANDED[p.op.op])) == 0)


def _parts_of_chunks(p: Place) -> bool:
    return p.across % p.pieces == 0


SUMS: Final[Rules] = {"stream": _only_stream, "slices": _equal_slices, "quotients": _few_chunks}
PARTS: Final[Rules] = {"parts": _parts_of_chunks}
SQUARES: Final[Rules] = {"squares": lambda p: p.op.ssq_agents % 4 > 0 or p.rows_of("ssq", 4)}
RESCALED: Final[Rules] = {"rescaled": lambda p: p.has("ssq") == _rms(p)}
STAGING: Final[Rules] = {
    "batch-in-bf16": lambda p: p.alone or not (p.has("scales") or p.has("also")),
    "blocks": lambda p: p.has("scales") or p.dtype("x") == "bf16",
    "second": lambda p: p.has("scales") or not p.has("also"),
    "sums": lambda p: not p.has("sums") or (p.has("scales") and "digits" in (p.dtype("x"), p.dtype("also"))),
    "x-rows": lambda p: p.rows_of("x", RUN),
}
OF_A_TEXT: Final[Rules] = {"text": lambda p: p.model.slice is None}
OF_A_SLICE: Final[Rules] = {"slice": lambda p: p.model.slice is not None, "alone": lambda p: p.alone}
IN_TOKENS: Final[Rules] = {"loop": lambda p: p.inside}
QUERIES: Final[Rules] = {"queries": _whole_queries, "tree": lambda p: p.has("tree") == p.schedule.tree}
ROUND: Final[Rules] = {"round": lambda p: p.op.round < LAST}
PUBLISHING: Final[Rules] = {
    "pairs": lambda p: p.plain("h") or p.model.hidden % 2 == 0,
    "rows": lambda p: p.plain("h") or p.rows_of("h", 2),
}
ADDITION: Final[Rules] = PUBLISHING | {"bias": _biases, "published": _published}
ROW_OF_SUMS: Final[Rules] = {"row": lambda p: p.row("k_sums") == p.model.hidden * p.op.k_splits}
LOGITS: Final[Rules] = SUMS | SQUARES | RESCALED | PARTS | {"logits": lambda p: p.plain("logits")}
ONE_PLACE: Final[Rules] = {"candidates": lambda p: p.alone or p.row("best_index") == p.row("best_value")}
SELECTION: Final[Rules] = OF_A_TEXT | IN_TOKENS | ONE_PLACE | {
    "some": lambda p: p.op.candidates >= 1,
    "fetches": lambda p: p.alone or p.op.candidates % p.fetch("best_value") == 0,
    "rows": lambda p: p.rows_of("best_value", p.fetch("best_value")),
    "order": _rows_in_order,
}  # fmt: skip
_HANDED: Final = {"stage": "act", "stage_attention": "attn", "stage_norm": "h", "take_hidden": "hidden_in"}
"""The hand-off that an op stages."""


def _size(p: Place) -> int:
    """Elements that are staged of all parts."""
    if p.op.op == "stage_attention":
        return p.model.heads * p.model.head_dim
    return p.model.ffn if p.op.op == "stage" else p.model.hidden


def _whole_shares(p: Place) -> bool:
    """Shares in blocks are whole blocks, whatever a fetch is."""
    return p.has("scales") or _size(p) // p.pieces % (p.fetch(_HANDED[p.op.op]) * p.agents) == 0


def _one_batch(p: Place) -> bool:
    in_flight = p.agents * LANES * FETCHES_OF_A_NORM * p.fetch(_HANDED[p.op.op])
    return _size(p) // p.pieces <= in_flight


FETCHING: Final[Rules] = {
    "fetches": lambda p: _size(p) // p.pieces % p.fetch(_HANDED[p.op.op]) == 0,
    "shares": _whole_shares,
    "rows": lambda p: p.rows_of(_HANDED[p.op.op], p.fetch(_HANDED[p.op.op])),
}
IN_PARTS: Final[Rules] = FETCHING | {
    "parts": lambda p: _size(p) % p.pieces == 0,
    "part": lambda p: p.op.k_part < p.op.k_parts,
    "undivided": lambda p: p.pieces == 1 or not p.has("scales"),
    "runs-of-blocks": _runs_of_blocks,
}


def _even_rows(*fields: str) -> Rules:
    """Rows of several tokens are whole pairs."""

    def rule(field: str) -> Rule:
        return lambda p: p.rows_of(field, 2)

    return {f"{field}-rows": rule(field) for field in fields}


RULES: Final[dict[str, Rules]] = {
    "add_residual": SUMS | PARTS | ADDITION,
    "add_sums": ADDITION | ROW_OF_SUMS | _even_rows("h", "residual") | {"even": lambda p: p.model.hidden % 2 == 0},
    "advance": IN_TOKENS | {"given": lambda p: p.schedule.headless and p.schedule.rows > 1},
    "argmax_rows": LOGITS | ONE_PLACE,
    "attend": QUERIES
    | {
        "dims": lambda p: p.model.head_dim % 8 == 0,
        "in-place": _left_in_place,
        "lap": lambda p: 2 * p.schedule.kv.splits * p.schedule.kv.block * p.model.head_dim < WORD_LIMIT,
    },
    "begin": {
        "rows": lambda p: p.schedule.rows == 1 or p.has("prompt"),
        "position": lambda p: p.has("position") == (p.model.slice is not None and p.model.layers > 0),
        "live": lambda p: not (p.model.slice is not None and p.schedule.live),
    },
    "census": ROUND | _even_rows("tally") | {"logits": lambda p: p.plain("logits")},
    "combine": STAGING
    | {
        "one-sequence": lambda p: p.alone,
        "fetches": lambda p: p.model.head_dim % p.fetch("split_partial") == 0,
        "shares": lambda p: (
            p.has("scales") or p.model.heads * p.model.head_dim % (p.fetch("split_partial") * p.agents) == 0
        ),
        "room": _room_of_mix,
    },
    "draw": {"logits": lambda p: p.plain("logits")},
    "embed": STAGING | OF_A_TEXT | {"norm-kind": _rms, "pairs": lambda p: p.model.hidden % 2 == 0},
    "embed_hidden": OF_A_TEXT | {"norm-kind": _layer, "pairs": lambda p: p.model.hidden % (2 * p.agents) == 0},
    "embed_rows": OF_A_TEXT | PUBLISHING,
    "gather": ROUND | _even_rows("counted", "gathered") | {"counts": lambda p: p.plain("counted")},
    "gelu": SUMS
    | {
        "taken": _taker,
        "bias": _biases,
        "activation": lambda p: bool(p.op.tanh) == (p.model.activation == "gelu-tanh"),
        "pairs": lambda p: p.plain("act") or p.model.ffn % 2 == 0,
        "act-rows": lambda p: p.plain("act") or p.rows_of("act", 2),
    },
    "gemv": SUMS
    | PARTS
    | {
        "ring": _ring_owners,
        "whole-chunks": _exact_chunks,
        "pairs": _pairs_of_groups,
        "whole-tiles": _whole_tiles,
        "codes": lambda p: not p.alone or p.kind.format == "bf16" or p.pieces == 1,
        "runs": lambda p: p.alone or p.matrix.k % RUN == 0,
        "layout": _operand,
        "rows": lambda p: p.rows_of("x", RUN),
        "part": lambda p: p.op.k_part < p.op.k_parts,
        "scales": lambda p: p.has("row_scales") == p.kind.apart,
        "own-scales": lambda p: p.op.row_scales in (None, f"scales.{p.op.matrix}"),
    },
    "give_hidden": OF_A_SLICE,
    "give_logits": LOGITS | OF_A_SLICE | {"head": lambda p: p.model.slice is None or p.model.slice.head},
    "layer_norm": STAGING
    | {
        "norm-kind": _layer,
        "wide": lambda p: p.model.hidden % 4 == 0,
        "fours": lambda p: p.has("scales") or p.model.hidden % (4 * p.agents) == 0,
        "scales": lambda p: not p.has("scales") or p.model.hidden <= p.agents * WARP_BLOCKS,
        "equal": lambda p: p.op.moment_agents > 0 and p.model.hidden % p.op.moment_agents == 0,
    },
    "merge": {"partials": lambda p: p.op.attend_agents >= 1, "pairs": lambda p: p.model.head_dim % 2 == 0},
    "narrow": ROUND | _even_rows("gathered"),
    "peak": {
        "candidates": lambda p: p.op.candidates >= 1,
        "rows": lambda p: p.rows_of("best_value", p.fetch("best_value")),
    },
    "prefetch_cache": {"block": lambda p: 2 * p.schedule.kv.block * p.model.head_dim < WORD_LIMIT},
    "reduce_splits": {
        "slices": lambda p: _slice_of_outputs(p) >= 0,
        "pieces": _pieces_of_slice,
        "fetches": lambda p: p.fetch("split_partial") == 4,
        "pairs": lambda p: p.plain("attn") or p.dtype("attn") == "bf16",
        "rows": lambda p: p.plain("attn") or p.schedule.rows == 1 or p.row("attn") % p.fetch("attn") == 0,
    },
    "refill": {"stream": _only_stream, "ring": _ring_owners, "engine": lambda p: p.stream.engine == "bulk"},
    "report": ROUND
    | _even_rows("tally", "counted")
    | {"counts": lambda p: p.plain("counted"), "one-warp": lambda p: p.agents == 1},
    "rope_append": QUERIES
    | {
        "pairs": lambda p: p.model.head_dim % 4 == 0,
        "q-norm": lambda p: p.has("q_norm") == p.model.qk_norm,
        "k-norm": lambda p: p.has("k_norm") == p.model.qk_norm,
        "row-pairs": lambda p: p.schedule.rows == 1 or p.row("qkv") % 2 == 0,
        "rows": lambda p: p.schedule.rows <= p.schedule.kv.block,
    },
    "select": SELECTION,
    "select_draw": SELECTION,
    "stage": STAGING | IN_PARTS | {"pairs": lambda p: p.model.ffn % 2 == 0},
    "stage_attention": STAGING | IN_PARTS,
    "stage_hidden": {
        "norm-kind": _layer,
        "shares": lambda p: p.model.hidden % (p.fetch("h") * p.agents) == 0,
        "rows": lambda p: p.rows_of("h", p.fetch("h")),
    },
    "stage_norm": STAGING | IN_PARTS | {"norm-kind": _rms, "one-batch": _one_batch},
    "store_rows": SUMS | SQUARES | RESCALED | PARTS | {"bias": _biases},
    "store_sums": SUMS | PARTS | ROW_OF_SUMS,
    "swiglu": SUMS
    | SQUARES
    | PARTS
    | {
        "taken": _taker,
        "pairs": lambda p: p.plain("act") or p.model.ffn % 2 == 0,
        "rows": lambda p: p.plain("act") or p.rows_of("act", 2),
    },
    "take_hidden": STAGING
    | FETCHING
    | OF_A_SLICE
    | {
        "norm-kind": _rms,
        "one-batch": _one_batch,
        "residual": lambda p: p.has("residual") == (p.model.layers > 0),
    },
}
"""By op and by the name of the need."""


def fails(place: Place, need: str) -> bool:
    """Whether what the op declares under that name does not hold there, as far as this module knows of it."""
    rule = RULES.get(place.op.op, {}).get(need)
    return rule is None or not rule(place)
