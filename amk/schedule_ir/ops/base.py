"""What an op is: typed fields, byte-exact footprint, numpy reference.

`accesses` is trusted by the proof, so it is tested against `reference`: over poisoned memory the reference changes
exactly the written bytes and does not depend on any byte outside the reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from amk.models.matrices import K_SPLIT, ROWS_PER_GROUP, MatrixName, share_table
from amk.schedule_ir.expr import WORKER, Env
from amk.schedule_ir.memory import Access as Access
from amk.schedule_ir.memory import BufferField as BufferField
from amk.schedule_ir.memory import Frozen, Name
from amk.schedule_ir.memory import Geometry as Geometry
from amk.schedule_ir.memory import ValueKey as ValueKey
from amk.schedule_ir.ops.precondition import Need

F32 = NDArray[np.float32]
FloatArray = NDArray[np.floating[Any]]

Count = Annotated[int, Field(ge=0, le=2**20)]
"""A small number in an op; addresses made with it stay inside 64 bits."""

PER_VECTOR = (
    "x", "ssq", "residual", "h", "qkv", "out", "act", "attn", "logits", "best_value", "best_index", "pick", "tally",
    "gathered", "counted", "draw_value", "draw_index",
)  # fmt: skip
"""Fields of ops whose buffers hold a row for each token of a step."""
PER_SEQUENCE = ("prompt", "sampling")
"""Fields of ops whose buffers hold a row for each sequence."""
LEFT = ("attend_agents", "candidates", "gather_agents", "moment_agents", "ssq_agents", "tally_agents")
"""Fields of ops that say how many agents left a part in an earlier one; `candidates` are those of all workers."""


FETCH_BYTES = 4
"""Bytes that a read of an element of a hand-off costs at least: a lane fetches four elements at a time, but for rows of
a batch (`Op.by_rows`)."""


class Work(NamedTuple):
    """What one agent does in one step, in bytes: reads of cached global memory, reads of memory that no cache holds
    (and in how many spans), global writes, and everything together that passes through its registers. Near, what the
    step hands between workers counts by its fetches of four elements, of 16 bytes each, however short they are."""

    near: int
    far: int
    spans: int
    writes: int
    handled: int


class Memory(Protocol):
    """What a reference may touch: elements of buffers as seen by one (worker, agent), and that agent's registers."""

    regs: dict[str, int]

    def read(self, buffer: str, lo: int, hi: int) -> FloatArray: ...
    def read_int(self, buffer: str, lo: int, hi: int) -> NDArray[np.int64]: ...
    def write(self, buffer: str, lo: int, data: Any, run: int = 1) -> None:
        """run: neighbouring blocks that share a scale, where the buffer holds blocks."""
        ...

    def tile(self, stream: str, name: MatrixName, layer: int, group: int, k_chunk: int) -> FloatArray:
        """Weights of one chunk, [8, columns], zero padded."""
        ...


class Op(Frozen):
    """Base of all ops. Subclasses set `op` (the discriminator) and override accesses and reference.

    registers: those of `STATE` that the op reads; the epoch is also read with every tag. in_flight: bytes of global
    loads that an agent has outstanding before it uses the first of them.
    """

    in_flight: ClassVar[int] = 4096
    sums_of: ClassVar[MatrixName | None] = None
    """The matrix whose partial sums the op adds up, where no field says so."""
    registers: ClassVar[tuple[str, ...]] = ()
    perhaps: ClassVar[tuple[str, ...]] = ()
    """Fields whose buffers are read only if the data say so: nobody may rely on a wait for words there."""
    meets: ClassVar[int] = 0
    """How often in a row the lanes of a warp meet within the op; once more, each time that it adds up `sums`."""
    in_place: ClassVar[frozenset[str]] = frozenset()
    """Fields that may name one buffer: a lane is done with what it reads of the one where it writes the other."""
    needs: ClassVar[tuple[Need, ...]] = ()
    """What the device code relies on beyond names, dtypes and the bounds of `accesses`."""
    of_split: ClassVar[bool] = False
    """Whether the rows of the op are those of the worker's share of the columns, where these are divided."""
    leaves: ClassVar[str | None] = None
    """The field of later ops, among `LEFT`, that says how many agents left a part in this one."""
    own_fields: ClassVar[Mapping[str, BufferField]] = {}
    """Fields that name buffers and are not in references.py, which has those that many ops have."""
    role: Name
    if TYPE_CHECKING:
        op: str  # the discriminator, which every subclass declares with a default of its own

    def accesses(self, env: Env, geo: Geometry) -> list[Access]:
        """Every byte touched by agent env.agent of worker env.worker (both scalars) in this step."""
        return []

    def touched(self, env: Env, geo: Geometry) -> list[Access]:
        """The accesses that take time: `accesses`, unless that bounds a place known at run time only."""
        return self.accesses(env, geo)

    def by_rows(self, geo: Geometry) -> bool:
        """Whether a lane fetches 16 bytes of a hand-off without tags at a time, whatever the type of its elements."""
        return False

    def work(self, env: Env, geo: Geometry) -> Work:
        """Cost of the step for agent env.agent, from its footprint. State (the cache) is read from far memory."""
        near = far = spans = written = handled = 0
        for access in self.touched(env, geo):
            buffer, size = geo.buffers[access.buffer], access.hi - access.lo
            handled += size
            if buffer.space == "shared":
                continue
            if access.kind == "write":
                written += size
            elif buffer.role == "state":
                far += size
                spans += 1
            else:
                least = 1 if buffer.role != "scratch" or self.by_rows(geo) else FETCH_BYTES // buffer.item_bytes
                near += size * max(1, least)
        return Work(near, far, spans, written, handled)

    def reference(self, env: Env, geo: Geometry, mem: Memory) -> None:
        """Do what the device body does, in numpy, for one agent."""

    def numbers(self, geo: Geometry) -> dict[str, int]:
        """Constants of the device code that follow from the model and are no fields: `kName` for `name`."""
        return {}

    @classmethod
    def activated(cls, rows: F32, settings: Mapping[str, int]) -> F32:
        """What an activation makes of whole rows [tokens, rows of the product], the tensors one after the other."""
        raise TypeError(f"{cls.__name__} is no activation")

    @classmethod
    def activated_in_torch(cls, rows: Any, settings: Mapping[str, int], functional: Any) -> Any:
        """`activated` of a tensor, by `functional`, which is torch.nn.functional. An activation without it leaves
        prompts to the kernel."""
        raise TypeError(f"{cls.__name__} has no form in torch")


def rows_held(op: Op, field: str, batch: int, vectors: int) -> int:
    """Rows of the field's buffer: one for each of `vectors` tokens of a step, or of `batch` sequences, else one."""
    own = type(op).own_fields.get(field)
    if field in PER_VECTOR or (own is not None and own.each):
        return vectors
    return batch if field in PER_SEQUENCE else 1


def multiplied(op: Op) -> MatrixName | None:
    """The matrix that an op with a stream multiplies, or whose partial sums it adds up."""
    name: MatrixName | None = getattr(op, "matrix", op.sums_of)
    return name if "stream" in type(op).model_fields else None


def split(total: int, parts: int, index: int) -> tuple[int, int]:
    """The index-th of `parts` contiguous shares of range(total); shares differ by at most one."""
    return total * index // parts, total * (index + 1) // parts


def owned_groups(env: Env, name: MatrixName, k_splits: int = 1) -> tuple[int, int]:
    """(first row group, number of row groups) of matrix `name` that the worker owns, where its columns are divided
    among `k_splits` workers."""
    shares = share_table(name, k_splits)
    return env.number(f"{shares}.first"), int(env.number(f"{shares}.count"))


def owned_count(env: Env, name: MatrixName, k_splits: int = 1) -> int:
    """Number of row groups of matrix `name` that the worker owns; reads nothing else of the worker."""
    return int(env.number(f"{share_table(name, k_splits)}.count"))


def owned_split(env: Env, k_splits: int) -> int:
    """The number of the worker's share of the columns, of `k_splits`."""
    return env.number(f"{K_SPLIT}.index") if k_splits > 1 else 0


def part_columns(k: int, env: Env, part: int, parts: int, splits: int = 1) -> tuple[int, int]:
    """(first column, number of columns) of part `part` of the `parts` of the worker's share, one of `splits`, of `k`
    columns. Shares are equal."""
    if splits > 1:
        size = k // (parts * splits)
        return (owned_split(env, splits) * parts + part) * size, size
    first, end = split(k, parts, part)
    return first, end - first


def owned_rows(env: Env, geo: Geometry, name: MatrixName, k_splits: int = 1) -> tuple[int, int]:
    """Logical rows [lo, hi) of matrix `name` that the worker owns, padding rows excluded."""
    first, count = owned_groups(env, name, k_splits)
    rows = geo.matrix(name).rows
    return min(first * ROWS_PER_GROUP, rows), min((first + count) * ROWS_PER_GROUP, rows)


def agent_rows(env: Env, geo: Geometry, role: str, name: MatrixName, k_splits: int = 1) -> tuple[range, int, int]:
    """The agent's share of the worker's row groups of matrix `name`, numbered from the worker's first one on, and the
    logical rows [lo, hi) in it."""
    first, count = owned_groups(env, name, k_splits)
    g0, g1 = split(count, geo.role_size[role], int(env.agent))
    end = owned_rows(env, geo, name, k_splits)[1]
    return range(g0, g1), min((first + g0) * ROWS_PER_GROUP, end), min((first + g1) * ROWS_PER_GROUP, end)


def own_sums(env: Env, geo: Geometry, part: str) -> int:
    """First element of the worker's partial sums: of its shared memory, or of its slice of a global buffer."""
    buffer = geo.buffers[part]
    return 0 if buffer.space == "shared" else int(env.number(WORKER)) * (buffer.elements // geo.workers)


@cache
def partial_slots(group: int, k_chunks: int, chunks: int, agents: int, each: int = 1) -> tuple[int, ...]:
    """Slots of the partial-sum buffer that hold contributions to a worker's local row group, in summation order; each:
    row groups of a chunk.

    Agent a drains chunks [chunks*a//agents, chunks*(a+1)//agents) of the worker's group-major chunk sequence and leaves
    its sum for local group g in slot g + a * each: unique, because along the sequence neither g // each nor a ever
    decreases.
    """
    lo, hi = group // each * k_chunks, (group // each + 1) * k_chunks
    bounds = [chunks * a // agents for a in range(agents + 1)]
    return tuple(group + a * each for a in range(agents) if max(lo, bounds[a]) < min(hi, bounds[a + 1]))


@cache
def partial_runs(groups: range, k_chunks: int, chunks: int, agents: int, each: int = 1) -> tuple[tuple[int, int], ...]:
    """The slots of several groups as maximal runs [lo, hi)."""
    runs: list[tuple[int, int]] = []
    for slot in (s for g in groups for s in partial_slots(g, k_chunks, chunks, agents, each)):
        if runs and runs[-1][1] == slot:
            runs[-1] = runs[-1][0], slot + 1
        else:
            runs.append((slot, slot + 1))
    return tuple(runs)


def partial_value(name: MatrixName, layer: int, k_splits: int = 1) -> ValueKey:
    """The partial sums of matrix `name` over all of its columns, or over the worker's share where these are divided."""
    return f"acc.{name}" if k_splits == 1 else f"acc.{name} of {k_splits}", layer


@dataclass(frozen=True)
class Partials:
    """The partial sums of the worker's rows of a matrix, which `gemv` leaves in buffer `part` in k_parts steps, over
    the worker's share of the columns, one of k_splits.
    """

    part: str
    stream: str
    name: MatrixName
    layer: int
    k_parts: int
    k_splits: int = 1

    def _chunks(self, env: Env, geo: Geometry) -> tuple[int, int, int, int]:
        """Chunks of a row group, chunks of the worker, agents that drain them, row groups of a chunk."""
        ring = geo.streams[self.stream]
        of_group = geo.k_chunks(self.stream, self.name, self.layer) // (self.k_parts * self.k_splits)
        chunks = owned_count(env, self.name, self.k_splits) // ring.row_groups * of_group
        return of_group, chunks, geo.role_size[ring.role], ring.row_groups

    def reads(self, env: Env, geo: Geometry, groups: range) -> list[Access]:
        """Every partial sum that belongs to the worker's local row groups `groups`."""
        runs = partial_runs(groups, *self._chunks(env, geo))
        size, own = ROWS_PER_GROUP * geo.vectors, own_sums(env, geo, self.part)
        value = partial_value(self.name, self.layer, self.k_splits)
        return [a for lo, hi in runs for a in geo.span("read", self.part, own + lo * size, own + hi * size, value)]

    def sums(self, env: Env, geo: Geometry, mem: Memory, groups: range) -> F32:
        """Row sums of the worker's local row groups `groups`, [vectors, len(groups) * 8], added in slot order."""
        chunks, vectors = self._chunks(env, geo), geo.vectors
        size, own = ROWS_PER_GROUP * vectors, own_sums(env, geo, self.part)
        out = np.zeros((vectors, len(groups), ROWS_PER_GROUP), np.float32)
        for i, g in enumerate(groups):
            for slot in partial_slots(g, *chunks):
                values = mem.read(self.part, own + slot * size, own + (slot + 1) * size)
                out[:, i] += values.reshape(vectors, ROWS_PER_GROUP)
        return out.reshape(vectors, -1)


def inverse_rms(geo: Geometry, mem: Memory, ssq: str, agents: int) -> F32:
    """1 / rms of each sequence's vector, [batch, 1], from the per-agent sums of squares in `ssq`, in agent order."""
    out = np.zeros((geo.vectors, 1), np.float32)
    for s in range(geo.vectors):
        total, at = np.float32(0), geo.row(ssq, s)
        for part in mem.read(ssq, at, at + agents):
            total += np.float32(part)
        out[s] = np.float32(1) / np.sqrt(total / np.float32(geo.model.hidden) + np.float32(geo.model.rms_eps))
    return out
