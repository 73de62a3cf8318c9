"""What the device code of an op relies on, as data: named predicates over a step, its workers and the schedule.

A `Need` is a truth made of `Term`s. A term has a value at a `Site` (an integer, or one for each worker) and, where it
does not depend on the worker, its text in C++: the name of the constant that the emitted code computes with, else its
number. So one statement is what judges evaluate and what the kernel repeats as a `static_assert`.

Terms are total: at every site whose names exist they have a value. Cost: microseconds for each need of a step.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from amk.models.matrices import ROWS_PER_GROUP, MatrixName, scale_buffer, share_table
from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Buffer, Geometry
from amk.schedule_ir.sampling import LAST
from amk.weights.weight_format import Chunk

INDEX = 2**31
"""The device counts elements of a buffer with signed 32-bit integers."""


class Subject(Protocol):
    """The op that a need is about. Its other fields are looked up by name."""

    @property
    def role(self) -> str: ...
    @property
    def sums_of(self) -> MatrixName | None: ...
    @property
    def of_split(self) -> bool: ...


@dataclass(frozen=True)
class Site:
    """A step where it runs: env has the loop variables and, as an array, the workers that run it."""

    op: Subject
    env: Env
    geo: Geometry

    def buffer(self, field: str) -> Buffer | None:
        """The buffer that a field names; None if it names none."""
        name = getattr(self.op, field, None)
        return None if name is None else self.geo.buffers[name]

    @property
    def matrix(self) -> MatrixName:
        """The matrix that the op multiplies, or whose rows it has."""
        name: MatrixName = getattr(self.op, "matrix", None) or self.op.sums_of or "lm_head"
        return name

    @property
    def shares(self) -> str:
        """The tables of the rows of that matrix that the op has."""
        return share_table(self.matrix, getattr(self.op, "k_splits", 1) if self.op.of_split else 1)

    @property
    def chunk(self) -> Chunk:
        """What a chunk of that matrix is in this layer."""
        stream = self.geo.streams[getattr(self.op, "stream")]  # noqa: B009
        return stream.chunk(self.matrix, self.env.eval_int(getattr(self.op, "layer", 0)))


class Term:
    """value(site): an integer, a truth, or an array of them. shown(site): the same in C++, None if workers differ."""

    def __init__(self, value: Callable[[Site], Any], name: str | None = None, varies: bool = False) -> None:
        self.value, self.varies, self.named = value, varies, name is not None
        self.shown: Callable[[Site], str] = lambda site: name or _literal(value(site))

    def _with(self, other: Term | int, fn: Callable[[Any, Any], Any], sign: str) -> Term:
        right = other if isinstance(other, Term) else number(other)
        found = Term(lambda site: fn(self.value(site), right.value(site)), varies=self.varies or right.varies)
        found.named = self.named or right.named
        found.shown = lambda site: f"({self.shown(site)} {sign} {right.shown(site)})"
        return found

    def __add__(self, other: Term | int) -> Term:
        return self._with(other, operator.add, "+")

    def __mul__(self, other: Term | int) -> Term:
        return self._with(other, operator.mul, "*")

    def __floordiv__(self, other: Term | int) -> Term:
        return self._with(other, operator.floordiv, "/")

    def __mod__(self, other: Term | int) -> Term:
        return self._with(other, _rest, "%")

    def __lt__(self, other: Term | int) -> Term:
        return self._with(other, operator.lt, "<")

    def __le__(self, other: Term | int) -> Term:
        return self._with(other, operator.le, "<=")

    def __and__(self, other: Term) -> Term:
        return self._with(other, operator.and_, "&&")

    def __or__(self, other: Term) -> Term:
        return self._with(other, operator.or_, "||")

    def __invert__(self) -> Term:
        found = Term(lambda site: np.logical_not(self.value(site)), varies=self.varies)
        found.named, found.shown = self.named, lambda site: f"!{self.shown(site)}"
        return found

    def equals(self, other: Term | int) -> Term:
        return self._with(other, operator.eq, "==")

    def multiple_of(self, other: Term | int) -> Term:
        """Whether it is one."""
        return (self % other).equals(0)


class Need(NamedTuple):
    """What must hold where the op runs. name: unique within an op. message: what holds, as a clause."""

    name: str
    holds: Term
    message: str


def _literal(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool | np.bool_) else str(value)


def _rest(value: Any, unit: int) -> Any:
    """Of a division; all of the value where nothing divides it."""
    return value % unit if unit else value


def number(value: int) -> Term:
    """A constant."""
    return Term(lambda _: value)


def plan(value: Callable[[Geometry], int], name: str) -> Term:
    """A constant of the whole kernel, `Plan::name`."""
    return Term(lambda site: value(site.geo), f"Plan::{name}")


HIDDEN = plan(lambda geo: geo.model.hidden, "kHidden")
FFN = plan(lambda geo: geo.model.ffn, "kFfn")
HEADS = plan(lambda geo: geo.model.heads, "kHeads")
KV_HEADS = plan(lambda geo: geo.model.kv_heads, "kKvHeads")
DIM = plan(lambda geo: geo.model.head_dim, "kHeadDim")
BLOCK = plan(lambda geo: geo.kv_block, "kKvBlock")
SPLITS = plan(lambda geo: geo.kv_splits, "kKvSplits")
BATCH = plan(lambda geo: geo.vectors, "kBatch")
ROWS = Term(lambda site: site.geo.rows_each)
LAYERS = Term(lambda site: site.geo.model.layers > 0)
LIVE = Term(lambda site: site.geo.live)
TREE = Term(lambda site: site.geo.tree)
ROWS_WITHOUT_HEAD = Term(lambda site: site.geo.headless and site.geo.rows_each > 1)
SLICED = Term(lambda site: site.geo.model.slice is not None)
HEADED = Term(lambda site: site.geo.model.has_head)
AGENTS = Term(lambda site: site.geo.role_size[site.op.role], "kAgents")

K = Term(lambda site: site.geo.matrix(site.matrix).k, "Matrix::kK")
COLUMNS = Term(lambda site: site.chunk.columns, "Matrix::kColumns")
K_CHUNKS = Term(lambda site: site.geo.matrix(site.matrix).k_chunks(site.chunk.columns), "Matrix::kChunks")
CODES = Term(lambda site: site.chunk.format != "bf16", "!Matrix::Weights::kPlain")
UNIT = Term(lambda site: site.chunk.weights.unit)
APART = Term(lambda site: site.chunk.apart)
ROW_GROUPS = Term(lambda site: site.geo.streams[getattr(site.op, "stream")].row_groups)  # noqa: B009
STREAM_AGENTS = Term(lambda site: site.geo.role_size[site.geo.streams[getattr(site.op, "stream")].role])  # noqa: B009

ALONE = BATCH.equals(1)


def own(field: str) -> Term:
    """An integer of the op."""
    return Term(lambda site: getattr(site.op, field), "k" + "".join(part.capitalize() for part in field.split("_")))


def has(field: str) -> Term:
    """Whether an optional buffer is named."""
    camel = "".join(part.capitalize() for part in field.split("_"))
    return Term(lambda site: getattr(site.op, field) is not None, f"kHas{camel}")


def lacks(field: str) -> Term:
    """Whether an optional buffer is left out."""
    camel = "".join(part.capitalize() for part in field.split("_"))
    return Term(lambda site: getattr(site.op, field) is None, f"!kHas{camel}")


def as_model(field: str, part: str) -> Need:
    """The buffer is named if and only if the model has that part."""
    model = Term(lambda site: bool(getattr(site.geo.model, part)))
    return Need(field.replace("_", "-"), has(field).equals(model), f"{field} is named if and only if the model has it")


def biased() -> Need:
    """Biases are named if and only if the product has them, per the model's graph."""
    graph = Term(lambda site: bool(site.geo.model.graph.products[site.matrix].biases))
    return Need("bias", has("bias").equals(graph), "biases are named if and only if the model's product has them")


OF_A_TEXT = Need("text", ~SLICED, "a slice of layers is given a hidden state and no tokens")
PER_TOKEN = Need("loop", Term(lambda site: "n" in site.env.loops), "the step is in the loop over tokens")
OF_A_SLICE = Need("slice", SLICED, "only a slice of layers is given a hidden state, and gives one")


def normed_by(kind: str) -> Need:
    """The op is about norms of this kind, and the model has no others. What it leaves is named like what the op for the
    other kind leaves: the value is that of the model's norm by whichever op is the model's."""
    return Need(
        "norm-kind", Term(lambda site: site.geo.model.graph.norm == kind), f"the norms of the model are of kind {kind}"
    )


TAKING_OP = Need(
    "taken",
    Term(lambda site: site.geo.model.graph.products[site.matrix].taken_by == getattr(site.op, "op")),  # noqa: B009
    "the rows of the product are taken by the op that the model's graph names",
)


def wide(field: str) -> Term:
    """Elements of one fetch of a hand-off: 16 bytes with tags, four elements without."""

    def elements(site: Site) -> int:
        buffer = site.buffer(field)
        return 4 if buffer is None or not buffer.tagged else 16 // buffer.item_bytes

    return Term(elements)


def row(field: str) -> Term:
    """Elements from one sequence's row of a buffer to the next."""

    def elements(site: Site) -> int:
        buffer = site.buffer(field)
        return 0 if buffer is None else buffer.elements // site.geo.vectors

    return Term(elements)


def is_a(field: str, *dtypes: str) -> Term:
    """Whether the buffer has one of these dtypes; what is not named has none."""

    def holds(site: Site) -> bool:
        buffer = site.buffer(field)
        return buffer is not None and buffer.dtype in dtypes

    return Term(holds)


def untagged(field: str) -> Term:
    """Whether the buffer is without tags, or not named."""

    def holds(site: Site) -> bool:
        buffer = site.buffer(field)
        return buffer is None or not buffer.tagged

    return Term(holds)


def either(first: Term, *others: Term) -> Term:
    """Whether one of them holds."""
    for other in others:
        first = first | other
    return first


def fits_index(field: str) -> Term:
    """Whether elements of the buffer are counted in 32 bits."""

    def holds(site: Site) -> bool:
        buffer = site.buffer(field)
        return buffer is None or buffer.elements < INDEX

    return Term(holds)


def owned_chunks() -> Term:
    """Chunks that each worker drains in the step, at most: of all columns."""

    def chunks(site: Site) -> Any:
        return site.env.symbol(f"{site.shares}.count") * K_CHUNKS.value(site)

    return Term(chunks, varies=True)


def ascending_rows() -> Term:
    """Whether each worker's rows of the matrix are behind those of the workers before it: all workers of the launch,
    whoever runs the step."""

    def holds(site: Site) -> bool:
        first, count = (site.env.tables[f"{site.shares}.{part}"] for part in ("first", "count"))
        return bool(np.all(np.diff(first[count > 0]) > 0))

    return Term(holds)


def whole_chunks() -> Term:
    """Whether each worker has whole chunks of row groups."""

    def holds(site: Site) -> Any:
        each = site.geo.streams[getattr(site.op, "stream")].row_groups  # noqa: B009
        return site.env.symbol(f"{site.shares}.count") % each == 0

    return Term(holds, varies=True)


def owners_of_ring() -> Term:
    """Whether the step is run by exactly the warps that own the stream's rings."""

    def holds(site: Site) -> bool:
        geo = site.geo
        role = geo.streams[getattr(site.op, "stream")].role  # noqa: B009
        owners, mine = ((geo.role_first[name], geo.role_size[name]) for name in (role, site.op.role))
        return owners == mine

    return Term(holds)


def only_stream() -> Term:
    """Whether the stream is the one that the kernel has a ring for."""
    return Term(lambda site: getattr(site.op, "stream") == next(iter(site.geo.streams)))  # noqa: B009


def bulk_copies() -> Term:
    """Whether the stream's chunks come by bulk copies."""
    return Term(lambda site: site.geo.streams[getattr(site.op, "stream")].engine == "bulk")  # noqa: B009


def own_scales() -> Term:
    """Whether the scales of rows, where they stand apart, are those of the op's matrix."""
    return Term(lambda site: getattr(site.op, "row_scales") in (None, scale_buffer(site.matrix)))  # noqa: B009


def staged_as() -> Term:
    """Whether x has the layout that the matrix's codes are multiplied with, and what stands beside it."""

    def holds(site: Site) -> bool:
        form, x, vectors = site.chunk.weights, site.buffer("x"), site.geo.vectors
        layout = form.staged(vectors)
        beside = layout == "bf16" or getattr(site.op, "scales") is not None  # noqa: B009
        beside &= not form.sums(vectors) or getattr(site.op, "sums") is not None  # noqa: B009
        return x is not None and x.dtype == layout and beside

    return Term(holds)


def sliced(field: str) -> Term:
    """Whether a global buffer is equal slices of whole row groups, one for each worker."""

    def holds(site: Site) -> bool:
        buffer, group = site.buffer(field), ROWS_PER_GROUP * site.geo.vectors
        return buffer is None or buffer.space == "shared" or buffer.elements % (site.geo.workers * group) == 0

    return Term(holds)


SUMS: tuple[Need, ...] = (
    Need("stream", only_stream(), "the kernel has one stream"),
    Need(
        "slices",
        sliced("part") & untagged("part"),
        "sums in global memory are equal slices of whole row groups, without tags",
    ),
    # floor((m + 1/2) / chunks) is computed in float32, whose error must stay below 1 / (2 chunks)
    Need(
        "quotients", owned_chunks() * STREAM_AGENTS <= 2**20, "a worker has few enough chunks to divide by in float32"
    ),
)
"""What ops rely on that leave partial sums or add them up."""

SSQ = Need(
    "squares",
    ~own("ssq_agents").multiple_of(4) | ALONE | row("ssq").multiple_of(4),
    "sums of squares are read four at a time",
)
RESCALED = Need(
    "rescaled",
    has("ssq").equals(Term(lambda site: site.geo.model.graph.norm == "rms")),
    "rows are divided by the root mean square if and only if the norm leaves that to them",
)
MAX_PARTS = 32
"""Steps that a product is done in, at most."""
PARTS = Need("parts", K_CHUNKS.multiple_of(own("k_parts")), "the parts are equal numbers of chunks")
MAX_SPLITS = 16
"""Workers that the columns of a product are divided among, at most."""
SPLIT_PARTS = Need(
    "parts", K_CHUNKS.multiple_of(own("k_parts") * own("k_splits")), "the parts are equal numbers of chunks"
)


def whole_sums(field: str) -> Need:
    """What an op relies on that reads or writes sums of two words (`ranking.split_sums`)."""
    return Need(f"{field}-rows", ALONE | row(field).multiple_of(2), "every sequence's row is whole sums of two words")


ROUND = Need("round", own("round") < LAST, "the round is one of a search")
