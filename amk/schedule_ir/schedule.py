"""The schedule: what every agent of every worker does, in order, and everything it can wait for.

A *worker* is one persistent CTA, an *agent* one warp of it. A program is a list of steps and loops; every agent whose
role is named runs the step as one event: its waits hold, then its accesses happen, then its signals. The outermost loop
over tokens has its count given at launch. Threshold and index expressions are affine in the loop variables:
`t` in them counts tokens since the counters were zeroed (the epoch, which is device state); `l` counts layers from
zero. Ops see `n`, the token's number within the launch.

Other kernels synchronise in ways that the exact analysis does not cover, or that a rule of the memory model forbids. A
schedule may say what it does even there: the verdict is then UNKNOWN or UNSAFE with the code of the first such
operation. Fields that hold their default are left out of the text, so schedules without any are unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Discriminator, Field, Tag

from amk.models.matrices import LAYERED, MATRICES, label
from amk.models.model_spec import ModelSpec
from amk.report.schema import unless
from amk.schedule_ir.expr import EPOCH, Expr, symbols
from amk.schedule_ir.memory import Buffer, Counter, Frozen, Name, Stream
from amk.schedule_ir.ops import AnyOp, Geometry
from amk.schedule_ir.ops.begin import done_registers, state_words
from amk.schedule_ir.sampling import SEARCHES, Mode
from amk.targets.target import Target

VERSION: Final = 2
MAX_BATCH: Final = 64
MAX_LIVE: Final = 16
"""Sequences of a batch where each has a position of its own."""
MAX_ROWS: Final = 64

Compare = Literal[">=", "==", "!=", "<"]
"""How a wait looks at its counter; only >= stays true once it is."""
Action = Literal["add", "reset", "exchange"]
"""What a signal does: add; store `add` whatever the value was; take or free a lock by compare-and-swap."""
Touch = Literal["strong", "weak", "wide"]
"""The operation on a counter: a 32-bit atomic or strong load, a plain or volatile access, one of 64 bits. Only the
first is a hand-off (rule M6); the others are a data race."""
Stores = Literal["plain", "bulk", "mixed"]
"""How an op's results reach global memory: plain stores; bulk stores of which only the reads are waited for before the
step signals (breaks rule M8); reductions of several sizes or scopes, or beside plain stores (breaks rule M10)."""


class Pool(Frozen):
    """A resource that agents take and give back, and block for while too little is left."""

    name: Name
    kind: Literal["registers", "tensor_memory"]
    units: int = Field(ge=1, le=2**20)


class Wait(Frozen):
    """counter[index] >= at_least, with the semantics of the counter's hand-off.

    compare other than >=, and data (a buffer whose first word is added to the threshold), are outside the class. touch
    other than strong breaks rule M6.
    """

    counter: Name
    index: tuple[Expr, ...] = (0,)
    at_least: Expr
    order: Literal["acquire", "relaxed"] = "acquire"
    compare: Compare = unless(">=")
    data: Name | None = unless(None)
    touch: Touch = unless("strong")


class Signal(Frozen):
    """counter[index] += add, after the accesses of the event; add 0 is no signal.

    Actions other than add are outside the class, and touch other than strong breaks rule M6.
    """

    counter: Name
    index: tuple[Expr, ...] = (0,)
    add: Expr = 1
    order: Literal["release", "relaxed"] = "release"
    action: Action = unless("add")
    touch: Touch = unless("strong")


class Step(Frozen):
    """One op run by every agent of its role.

    when (a buffer whose first word decides whether the step runs) and taking from a pool that others take from are
    outside the class. takes and gives count units of pools, taken before the op and given back after it. stores other
    than plain breaks rule M8 or M10.
    """

    op: AnyOp
    waits: tuple[Wait, ...] = Field(default=(), max_length=64)
    signals: tuple[Signal, ...] = Field(default=(), max_length=64)
    when: Name | None = unless(None)
    takes: dict[Name, int] = unless({}, max_length=8)
    gives: dict[Name, int] = unless({}, max_length=8)
    stores: Stores = unless("plain")


class Loop(Frozen):
    """body, count times; count None is the number of tokens, chosen at launch."""

    var: Literal["t", "l"]
    count: Annotated[int, Field(ge=1, le=100_000)] | None
    body: tuple[Node, ...] = Field(max_length=10_000)


def _node_kind(value: Any) -> str:
    fields = value if isinstance(value, dict) else vars(value) if isinstance(value, BaseModel) else {}
    return "loop" if "var" in fields or "body" in fields else "step"


Node = Annotated[Annotated[Step, Tag("step")] | Annotated[Loop, Tag("loop")], Discriminator(_node_kind)]


class Role(Frozen):
    """Warps [first, first + count) of a worker. A role with a stream or a shared share is indexed from 0."""

    name: Name
    first: int = Field(ge=0, le=31)
    count: int = Field(ge=1, le=32)


class Program(Frozen):
    """The step list run by workers [first, first + count). Programs stand in the order of their workers."""

    name: Name
    first: int = Field(ge=0)
    count: int = Field(ge=1)
    body: tuple[Node, ...] = Field(max_length=10_000)


class Launch(Frozen):
    """Shape of the one cooperative launch. registers is the most a thread may use for all workers to be co-resident."""

    workers: int = Field(ge=1, le=4096)
    warps: int = Field(ge=1, le=32)
    ctas_per_sm: int = Field(default=1, ge=1, le=8)
    cooperative: bool = True
    shared_bytes: int = Field(ge=0, le=2**20)
    registers: int = Field(ge=16, le=255)
    max_tokens: int = Field(default=1024, ge=1, le=2**20)


CacheDtype = Literal["bf16", "fp8"]


class KvLayout(Frozen):
    """Cache positions in blocks of `block`, dealt to `splits` splits in turn; `context` positions are allocated.

    dtype: what keys and values are rounded to as they are appended; fp8 is e4m3 with scale 1, clipped to +-448.
    turns: KV heads of a batch that a worker serves (`ops.attention`).
    """

    context: int = Field(ge=1, le=2**24)
    block: int = Field(ge=1, le=2**20)
    splits: int = Field(ge=1, le=4096)
    dtype: CacheDtype = "bf16"
    turns: int = unless(1, ge=1, le=64)


class Schedule(Frozen):
    """A decode step of `model` on `target`; in the format of `VERSION`.

    batch: sequences that are decoded together, each with tokens and caches of its own. live: each has a position of its
    own, too, so that it begins and ends when it likes; otherwise all are at the same one. rows: consecutive tokens of a
    sequence that a step reads at once, for now of one sequence. accepts: rows behind the first may be guesses, and the
    next step goes on behind the last right one; otherwise all rows are given and the next step goes on behind them.
    tree: rows are nodes of a tree whose root is the first one; a launch is told which of them each sees. headless:
    steps only read given rows into the cache; they have no output head and choose nothing.
    """

    version: Literal[2] = VERSION
    name: Name
    plan: Literal["fast", "naive", "search", "custom"] = "custom"
    model: ModelSpec
    target: Target
    dtype: Literal["bf16"] = "bf16"
    batch: int = Field(default=1, ge=1, le=MAX_BATCH)
    live: bool = unless(False)
    rows: int = unless(1, ge=1, le=MAX_ROWS)
    accepts: bool = unless(False)
    tree: bool = unless(False)
    headless: bool = unless(False)
    launch: Launch
    kv: KvLayout
    roles: tuple[Role, ...] = Field(min_length=1, max_length=32)
    tables: dict[Name, tuple[int, ...]]
    buffers: tuple[Buffer, ...] = Field(max_length=256)
    counters: tuple[Counter, ...] = Field(max_length=256)
    streams: tuple[Stream, ...] = Field(max_length=16)
    programs: tuple[Program, ...] = Field(min_length=1, max_length=4096)
    pools: tuple[Pool, ...] = unless((), max_length=8)

    @property
    def weights_label(self) -> str:
        """Short name of the formats of the streamed matrices, and of the cache unless it is bf16."""
        stream = self.streams[0]
        kinds = {name: {chunk.format for chunk in stream.kinds(name)} for name in MATRICES}
        one = all(len(formats) == 1 for formats in kinds.values())
        weights = label({name: stream.chunk(name).format for name in MATRICES}) if one else LAYERED
        return weights if self.kv.dtype == "bf16" else f"{weights}-kv-{self.kv.dtype}"

    @property
    def caches(self) -> int:
        """Caches of a layer, one for each kv head of each sequence; none where there are no layers."""
        return self.batch * self.model.kv_heads if self.model.layers else 0

    @property
    def turn_heads(self) -> int:
        """KV heads of all sequences that are served in a turn; the last turn may have fewer."""
        return -(-self.caches // self.kv.turns)

    @property
    def sequences(self) -> list[int]:
        """The sequence whose position each worker's ops see: that of its head where each has its own, else the first.

        A worker that serves no head sees the first one's, which its ops do not depend on.
        """
        if not self.live:
            return [0] * self.launch.workers
        return [max(head, 0) // self.model.kv_heads for head in self.tables["attn.head"]]

    @property
    def state_words(self) -> tuple[str, ...]:
        """Words of the launch state."""
        return state_words(self.batch, self.live)

    def all_at(self, pos: int) -> dict[str, int]:
        """Words of the launch state with every sequence at this position."""
        return {name: pos for name in self.state_words if name.partition(".")[0] == "pos"}

    @property
    def none_ended(self) -> dict[str, int]:
        """Words of the launch state that say that no sequence has ended."""
        return dict.fromkeys(done_registers(self.batch), 0)

    @property
    def vectors(self) -> int:
        """Tokens that a step reads, and so the rows of x."""
        return self.batch * self.rows

    @property
    def advances(self) -> range:
        """By how many positions a step moves its sequence."""
        return range(1 if self.accepts else self.rows, self.rows + 1)

    def geometry(self) -> Geometry:
        return Geometry(
            model=self.model,
            buffers={b.name: b for b in self.buffers},
            streams={s.name: s for s in self.streams},
            workers=self.launch.workers,
            role_size={r.name: r.count for r in self.roles},
            kv_block=self.kv.block,
            kv_splits=self.kv.splits,
            kv_turns=self.kv.turns,
            batch=self.batch,
            rows_each=self.rows,
            live=self.live,
            accepts=self.accepts,
            tree=self.tree,
            headless=self.headless,
            role_first={r.name: r.first for r in self.roles},
            context=self.kv.context,
        )


def steps_of(body: tuple[Node, ...]) -> Iterator[Step]:
    """Every step as written, in textual order."""
    for node in body:
        if isinstance(node, Step):
            yield node
        else:
            yield from steps_of(node.body)


def mode_of(schedule: Schedule) -> Mode:
    """How the schedule chooses tokens, told by the rounds between its `peak` and `draw`; greedy if it draws none.

    Rounds that belong to no mode count as the mode with all of them, which they then fail to match.
    """
    ops = [step.op for program in schedule.programs for step in steps_of(program.body)]
    first, after = ({vars(op)["round"] for op in ops if op.op == kind} for kind in ("peak", "draw"))
    if not first and not after:
        return "greedy"
    for mode, rounds in SEARCHES.items():
        if first == {rounds.start} and after == {rounds.stop}:
            return mode
    return "top-k-top-p"


def registers_read(step: Step, tagged: Collection[str]) -> set[str]:
    """Words of `STATE` that the step reads in registers: by its op, in thresholds, in tags of the buffers `tagged`."""
    op = step.op
    names = set(op.registers)
    if any(EPOCH in symbols(wait.at_least) for wait in step.waits):
        names.add("epoch")
    if tagged and any(isinstance(value, str) and value in tagged for value in vars(op).values()):
        names.add("epoch")
    return names
