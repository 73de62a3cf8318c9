"""What the schedule declares: buffers, counters, weight streams.

Everything a kernel can wait for, overwrite or run out of is one of these; see schedule.py for what uses them.
"""

from __future__ import annotations

from math import prod
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from amk.models.matrices import MATRICES, MatrixName
from amk.report.name import Name as Name
from amk.report.schema import unless
from amk.schedule_ir.expr import Expr
from amk.schedule_ir.outside import Descriptor, Wrapping
from amk.weights.weight_format import Chunk, plain_chunk

Dtype = Literal["f32", "bf16", "u32", "i32", "fp8", "digits", "halves"]
"""digits, halves: numbers in blocks of 64 that share a scale (block_point.py)."""
ITEM_BYTES: dict[str, int] = {"f32": 4, "bf16": 2, "u32": 4, "i32": 4, "fp8": 1, "digits": 2, "halves": 2}

Dim = Annotated[int, Field(ge=1, le=2**40)]


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

    `fenced`: red.release / ld.acquire, a wait orders everything its signals follow before everything after it. `hint`:
    relaxed on both sides, a wait blocks but makes nothing visible; it says when tagged words are worth reading, and
    when nobody looks for them any more. Values count from `init` over all launches; nothing is ever reset while a
    kernel runs. compare other than lag is outside the class.
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
    chunk_rows: Literal[8] = 8
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
    def chunk_bytes(self) -> int:
        largest = max(chunk.bytes for name in MATRICES for chunk in self.kinds(name))
        return -(-largest // self.chunk_align) * self.chunk_align
