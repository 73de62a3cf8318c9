"""What footprints are made of: the bytes that an op touches, and the parts of a schedule that say which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from amk.models.matrices import MATRICES, Matrix, MatrixName, matrix
from amk.models.model_spec import ModelSpec
from amk.schedule_ir.memory import Buffer, Stream

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
    rows_each: int = 1
    live: bool = False
    role_first: Mapping[str, int] = field(default_factory=dict)
    context: int = 1
    accepts: bool = False
    tree: bool = False
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
        """Chunks that a row group of matrix `name` of that layer takes in `stream`."""
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
    ) -> list[Access]:
        """The accesses to elements [lo, hi) of every row of `buffer`, one for each token of a step.

        A row has `width` elements of the value (as many as the row, unless given), of which these are
        [origin, origin + hi - lo), by default [lo, hi).
        """
        first = lo if origin is None else origin
        if self.folded and self.vectors > 1:
            step = self.row(buffer, 1) * self.buffers[buffer].item_bytes
            shift = step if width is None else width * self.buffers[buffer].item_bytes
            found = self.span(kind, buffer, lo, hi, value, first)
            return [access._replace(times=self.vectors, step=step, shift=shift) for access in found]
        out: list[Access] = []
        for s in range(self.vectors):
            at = self.row(buffer, s)
            out += self.span(kind, buffer, at + lo, at + hi, value, first + (at if width is None else s * width))
        return out

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
        return [] if ssq is None else self.rows("read", ssq, 0, agents, ("ssq", norm))

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
