"""What the schedule declares: buffers, counters, weight streams, and the bytes that an op touches.

Everything a kernel can wait for, overwrite or run out of is one of these; see schedule.py for what uses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from amk.models.matrices import MATRICES, ROWS_PER_GROUP, Matrix, MatrixName, matrix
from amk.models.model_spec import ModelSpec
from amk.report.schema import Name as Name
from amk.report.schema import unless
from amk.schedule_ir.expr import Expr
from amk.weights.weight_format import Chunk, plain_chunk

Dtype = Literal["f32", "bf16", "u32", "i32", "fp8", "digits", "halves"]
"""digits, halves: numbers in blocks of 64 that share a scale (block_point.py)."""
ITEM_BYTES: dict[str, int] = {"f32": 4, "bf16": 2, "u32": 4, "i32": 4, "fp8": 1, "digits": 2, "halves": 2}

Dim = Annotated[int, Field(ge=1, le=2**40)]

MOST_AGENTS = 32
"""Of a worker."""

Descriptor = Literal["none", "modified"]
"""modified: copies by a tensor map that the kernel changes, without the fence for tensor maps (breaks M12)."""
Wrapping = Literal["lag", "unsigned"]
"""How a 32-bit counter that has wrapped is compared: by the sign of the difference, or as it stands."""


class Frozen(BaseModel):
    """Base of every IR object: immutable, strict, no unknown fields."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Buffer(Frozen):
    """A block of memory. Global buffers get one allocation each; shared ones live at `offset` in every worker.

    role: constant = written before the launch, never in it; state = survives launches; scratch = anything else.
    tagged: every aligned 8-byte word holds 4 bytes of data (one 32-bit element or two bf16) and a 32-bit tag, so an
    element takes twice its dtype's bytes. A step in iteration (t, l) writes words with tag(t, l), and a step that reads
    a word re-reads it until the tag is the reader's own tag(t, l): every word is its own counter, owned by whoever
    writes it, and orders that word and nothing else.
    """

    name: Name
    space: Literal["global", "shared"]
    dtype: Dtype
    shape: tuple[Dim, ...] = Field(min_length=1, max_length=4)
    role: Literal["constant", "state", "scratch"] = "scratch"
    offset: int | None = Field(default=None, ge=0, le=2**31)
    align: int = Field(default=16, ge=1, le=1024)
    tagged: bool = False
    tag: Expr | None = None

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype] * (2 if self.tagged else 1)

    @property
    def bytes(self) -> int:
        return self.elements * self.item_bytes


class Counter(Frozen):
    """A family of increment-only counters.

    `fenced`: red.release / ld.acquire, a wait orders everything its signals follow before everything after it. `hint`,
    a relaxed wait: relaxed on both sides, it blocks but makes nothing visible; it says when tagged words are worth
    reading, and when nobody looks for them any more. Values count from `init` over all launches; nothing is ever reset
    while a kernel runs. compare other than lag is outside the class.
    """

    name: Name
    shape: tuple[Dim, ...] = Field(default=(1,), max_length=3)
    scope: Literal["gpu", "sys", "cta"] = "gpu"
    handoff: Literal["fenced", "hint"] = "fenced"
    init: int = Field(default=0, ge=0, le=2**31)
    compare: Wrapping = unless("lag")

    @property
    def count(self) -> int:
        return prod(self.shape)


Alignment = Literal[16, 128]
"""Of copies: what a bulk copy needs, and a line of the caches."""


class LayerChunks(Frozen):
    """What the chunks of these matrices are from layer `first` on."""

    first: int = Field(ge=1, le=100_000)
    chunks: dict[MatrixName, Chunk] = Field(min_length=1)


class Stream(Frozen):
    """Per-agent private self-refilled rings that carry the packed weights.

    Each agent of `role` owns `slots` slots of `chunk_bytes` in shared buffer `ring`; one sequence of chunks per token,
    in the order of that agent's gemv steps, contiguous in `source`. Issue of chunk j+slots follows the drain of chunk j
    by the same agent. `full` holds one 8-byte mbarrier per slot (bulk copies only). run_ahead=False restricts the
    issue to chunks of the step being drained (no prefetch). descriptor other than none breaks rule M12.

    chunk_rows: rows of a chunk, one row group or, in bf16, two that follow each other, tile by tile of the first and
    then of the second. The pieces of a chunk are its 8 rows each.

    chunks: format and columns of the matrices that are not in bf16 with `chunk_k` columns. later: what they are from
    some layer on, in ascending order; lm_head belongs to no layer. All chunks take the bytes of the largest, so that a
    slot holds any of them, and `chunk_align` has them begin at multiples of that in `source` and in a ring that does.
    """

    name: Name
    source: Name
    ring: Name
    full: Name | None = None
    role: Name
    slots: int = Field(ge=1, le=64)
    chunk_rows: Literal[8, 16] = 8
    chunk_k: int = Field(ge=32, le=4096, multiple_of=32)
    engine: Literal["bulk", "cp_async"] = "bulk"
    run_ahead: bool = True
    refill_fence: bool = True
    descriptor: Descriptor = unless("none")
    weight_dtype: Literal["bf16"] = "bf16"
    chunks: dict[MatrixName, Chunk] = Field(default_factory=dict)
    later: tuple[LayerChunks, ...] = unless((), max_length=128)
    chunk_align: Alignment = unless(16)

    def chunk(self, name: MatrixName, layer: int = 0) -> Chunk:
        """What a chunk of matrix `name` of that layer is."""
        for change in reversed(self.later):
            if change.first <= layer and name in change.chunks and name != "lm_head":
                return change.chunks[name]
        return self.chunks.get(name) or plain_chunk(self.chunk_k)

    def kinds(self, name: MatrixName) -> tuple[Chunk, ...]:
        """Every kind of chunk of matrix `name`, those of the first layer first."""
        return tuple(dict.fromkeys(self.chunk(name, first) for first in (0, *(change.first for change in self.later))))

    @property
    def row_groups(self) -> int:
        """Row groups of a chunk."""
        return self.chunk_rows // ROWS_PER_GROUP

    @property
    def piece_bytes(self) -> int:
        """Bytes of a row group of a chunk."""
        largest = max(chunk.bytes for name in MATRICES for chunk in self.kinds(name))
        return -(-largest // self.chunk_align) * self.chunk_align

    @property
    def chunk_bytes(self) -> int:
        return self.piece_bytes * self.row_groups


ValueKey = tuple[str, int]
"""A logical value of a token: its family, and the layer, norm or hidden state that it belongs to."""


class BufferField(NamedTuple):
    """What a field of an op may name.

    space: None for either. dtype: None for f32 or bf16, staged for a layout of staged vectors, cache for that of the KV
    layout. name: the buffer it must be where the host knows it by name. each: with a row for each sequence of a batch.
    """

    space: str | None
    dtype: str | None
    name: str | None = None
    each: bool = False


class Access(NamedTuple):
    """Bytes [lo, hi) of `buffer`, holding bytes [origin, origin + hi - lo) of logical value `value` of token `t`.

    A value is that of all tokens of a step, one after the other. value is None for launch constants and for bytes
    whose content no later step depends on. Shared buffers and `private` global ones are addressed per worker.

    A read is of what was there before the step: bytes that the agent writes in the step it may read back, and only the
    write is listed.
    """

    buffer: str
    kind: Literal["read", "write"]
    lo: int
    hi: int
    value: ValueKey | None
    origin: int
    times: int = 1
    step: int = 0
    shift: int = 0
    """So often, each `step` bytes behind the one before, and `shift` bytes of the value; see `Geometry.folded`."""


@dataclass(frozen=True)
class Geometry:
    """The parts of a schedule that footprints and references need, looked up by name."""

    model: ModelSpec
    buffers: dict[str, Buffer]
    streams: dict[str, Stream]
    workers: int
    role_size: dict[str, int]
    kv_block: int
    kv_splits: int
    batch: int = 1
    kv_turns: int = 1
    rows_each: int = 1
    live: bool = False
    role_first: Mapping[str, int] = field(default_factory=dict)
    context: int = 1
    accepts: bool = False
    tree: bool = False
    headless: bool = False
    folded: bool = False
    """Does `rows` say the accesses to all rows as a single one, with `times`?"""

    @cached_property
    def _matrices(self) -> dict[MatrixName, Matrix]:
        return {name: matrix(self.model, name) for name in MATRICES}

    def matrix(self, name: MatrixName) -> Matrix:
        return self._matrices[name]

    def columns(self, stream: str, name: MatrixName, layer: int) -> int:
        """Columns of a chunk of matrix `name` of that layer in `stream`."""
        return self.streams[stream].chunk(name, layer).columns

    def k_chunks(self, stream: str, name: MatrixName, layer: int) -> int:
        """Chunks that the row groups of a chunk take in `stream`, in matrix `name` of that layer."""
        return self.matrix(name).k_chunks(self.columns(stream, name, layer))

    def norm_of(self, name: MatrixName, layer: int) -> int:
        """The number of the norm that the matrix multiplies, per the model's graph; -1 for one that multiplies none."""
        norm = self.model.graph.norm_of(name, layer, self.model.layers)
        return -1 if norm is None else norm

    @property
    def caches(self) -> int:
        """Caches of a layer: that of kv head h of sequence s is number s * kv_heads + h."""
        return self.batch * self.model.kv_heads

    @property
    def turn_heads(self) -> int:
        """KV heads of all sequences that are served in a turn; the last turn may have fewer."""
        return -(-self.caches // self.kv_turns)

    @property
    def vectors(self) -> int:
        """Tokens that a step reads, and so the rows of x: `rows_each` consecutive ones of every sequence."""
        return self.batch * self.rows_each

    def row(self, buffer: str, vector: int) -> int:
        """First element of the row of number `vector` in a buffer that holds one for each token of a step."""
        return vector * (self.buffers[buffer].elements // self.vectors)

    def rows(
        self,
        kind: Literal["read", "write"],
        buffer: str,
        lo: int,
        hi: int,
        value: ValueKey | None,
        width: int | None = None,
        origin: int | None = None,
        which: range | None = None,
    ) -> list[Access]:
        """The accesses to elements [lo, hi) of every row of `buffer`, one for each token of a step; which: of these.

        A row has `width` elements of the value (as many as the row, unless given), of which these are
        [origin, origin + hi - lo), by default [lo, hi).
        """
        first = lo if origin is None else origin
        which = range(self.vectors) if which is None else which
        if self.folded and len(which) > 1:
            each = self.row(buffer, 1)
            across, at = each if width is None else width, each * which.start
            size, begin = self.buffers[buffer].item_bytes, first + across * which.start
            found = self.span(kind, buffer, at + lo, at + hi, value, begin)
            return [a._replace(times=len(which), step=each * size, shift=across * size) for a in found]
        out: list[Access] = []
        for s in which:
            at = self.row(buffer, s)
            out += self.span(kind, buffer, at + lo, at + hi, value, first + (at if width is None else s * width))
        return out

    def slots(
        self, kind: Literal["read", "write"], buffer: str, lo: int, hi: int, value: ValueKey, each: int = 1
    ) -> list[Access]:
        """`rows` of an array in which every agent has `each` elements. An element of the value is named by its row and
        its agent, however long the rows of the array are: arrays of other lengths may lie in the same bytes."""
        return self.rows(kind, buffer, lo, hi, value, MOST_AGENTS * each)

    def text_row(self, buffer: str, vector: int) -> int:
        """First element of the row of a vector's sequence, in a buffer with one for each sequence."""
        return vector // self.rows_each * (self.buffers[buffer].elements // self.batch)

    def texts(self, buffer: str, lo: int, hi: int) -> list[Access]:
        """The reads of constants [lo, hi) of every row of `buffer`, one for each sequence."""
        if self.rows_each == 1:
            return self.rows("read", buffer, lo, hi, None)
        return self.span("read", buffer, lo, hi, None)

    def squares(self, ssq: str | None, agents: int, norm: int) -> list[Access]:
        """The reads of the sums of squares of norm number `norm`; none where the norm was applied as a whole."""
        return [] if ssq is None else self.slots("read", ssq, 0, agents, ("ssq", norm))

    def span(
        self,
        kind: Literal["read", "write"],
        buffer: str,
        lo: int,
        hi: int,
        value: ValueKey | None,
        origin: int | None = None,
    ) -> list[Access]:
        """The access to elements [lo, hi) of `buffer`, in bytes; empty when there are none. origin counts elements."""
        if hi <= lo:
            return []
        size = self.buffers[buffer].item_bytes
        return [Access(buffer, kind, lo * size, hi * size, value, (lo if origin is None else origin) * size)]
