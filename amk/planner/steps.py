"""The vocabulary of a plan's steps: products, publications, waits, barriers, refills."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from amk.models.graph import Graph
from amk.models.matrices import MatrixName, scale_buffer
from amk.models.model_spec import ModelSpec
from amk.planner.buffers import HEAD_SUMS, handed, of_run, state_name
from amk.planner.formats import Formats
from amk.planner.settings import Settings, down_apart, has_tags, is_bare, is_signalled, k_splits_of, parts_of
from amk.planner.staging import DOWN, DOWN_SUMS, Read, Written, read_by, staged_for
from amk.schedule_ir.expr import Expr
from amk.schedule_ir.ops import AnyOp, BarrierOp, SignalOp, WaitOp
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.prefetch_cache import PrefetchCacheOp
from amk.schedule_ir.ops.refill import RefillOp
from amk.schedule_ir.ops.staging import ScaleBlocks
from amk.schedule_ir.schedule import Signal, Step, Wait
from amk.weights.codes import Staged
from amk.weights.weight_format import WeightFormat, weight_format

LAYER: Expr = {"l": 1}
"""The number of the layer within its loop, and of the counter's instance."""


APART = ("h_mid", "act", "h_out")
"""Counters behind which no warp writes shared memory that another one may still read. Elsewhere it does: arrays of
attention overlay those of products, and a token's first sums of squares those of the token before.
"""


LAST_TURN = 2
"""Paced refills of QKV go out behind the rotation, behind the splits, and where attention's result is there."""


class Sums(TypedDict):
    """Fields of the ops that add up partial sums."""

    stream: str
    part: str


class Squares(TypedDict):
    """Fields of the ops that divide by the root mean square."""

    ssq: str | None
    ssq_agents: int


class Scaled(TypedDict):
    """Fields of the ops that stage runs of blocks."""

    scale_blocks: ScaleBlocks


@dataclass(frozen=True)
class RunOfLayers:
    """Layers [start, start + count), one loop: formats, refills held back and how many of them go out first.

    after: the formats of the run behind it.
    """

    number: int
    start: int
    count: int
    formats: Formats
    deferred: dict[MatrixName, int]
    first: dict[MatrixName, int]
    after: Formats | None = None

    def format(self, name: MatrixName) -> WeightFormat:
        return weight_format(self.formats[name])


def refilled(most: int) -> list[Step]:
    """Let so many copies that were held back go out."""
    return [Step(op=RefillOp(role="all", stream="weights", most=most))] if most else []


@dataclass(frozen=True)
class Writer:
    """Writes steps of one program; every method returns them in program order.

    run: the layers that are written about. head: `staging.head_layout`. strong: counters behind fences where the others
    are hints.
    """

    model: ModelSpec
    settings: Settings
    workers: int
    rows: dict[str, int]
    head_delta: int | None
    act_delta: int | None
    slack: int
    splits: int | None
    head: Staged | None
    run: RunOfLayers
    strong: frozenset[str] = frozenset()

    @property
    def graph(self) -> Graph:
        return self.model.graph

    @property
    def spreads(self) -> bool:
        """Whether what QKV owes goes out between the steps of attention."""
        return self.settings.paced or self.settings.carried is not None

    @property
    def layer(self) -> Expr:
        """The number of the layer."""
        return {"l": 1, "1": self.run.start} if self.run.start else LAYER

    def own(self, name: str) -> str:
        """The counter or buffer of this run that hands on what `name` says."""
        return of_run(name, self.run.number)

    def written_for(self, *names: MatrixName) -> Written:
        found = staged_for(self.head, self.settings.vectors, *((name, self.run.formats) for name in names))
        return Written(x=DOWN, also=None, scales=None, sums=None) if self.apart(names[0]) else found

    def read_by(self, name: MatrixName) -> Read:
        found = read_by(name, self.run.formats, self.head, self.settings.vectors)
        return Read(x=DOWN, scales=None, sums=None) if self.apart(name) else found

    def apart(self, name: MatrixName) -> bool:
        """Whether the product of a matrix has arrays of its own."""
        return name == "down" and down_apart(self.model, self.settings)

    def scaled(self, written: Written) -> Scaled:
        """How many blocks share a scale where the vector has scales."""
        return Scaled(scale_blocks=1 if written["scales"] is None else self.settings.scale_blocks)

    def barrier(self) -> Step:
        return Step(op=BarrierOp(role="all", id=1, agents=self.settings.warps))

    def wait(self, counter: str, index: tuple[Expr, ...], delta: int | None = None) -> list[Step]:
        """One poller per worker, then everybody; or everybody polls, where nobody overwrites what others still read."""
        amount = delta or self.workers
        relaxed, apart = self.is_relaxed(counter), counter.partition(".")[0] in APART
        if is_bare(self.settings, counter):
            return [] if apart else [self.barrier()]
        slack = self.slack_of(counter)
        early = min(amount // slack, amount - 1) if relaxed and slack else 0
        wait = Wait(
            counter=counter, index=index, at_least={"t": amount, "1": amount - early},
            order="relaxed" if relaxed else "acquire",
        )  # fmt: skip
        if relaxed and self.settings.pollers == "all" and apart:
            return [Step(op=WaitOp(role="all"), waits=(wait,))]
        return [Step(op=WaitOp(role="w0"), waits=(wait,)), self.barrier()]

    def slack_of(self, counter: str) -> int:
        """That of the counter's hints; none where hints must be exact."""
        own = self.settings.act_slack if self.slack and counter.partition(".")[0] == "act" else None
        return self.slack if own is None else own

    def gemv(self, name: MatrixName, part: int = 0) -> list[Step]:
        """The product with `part` of the columns; refills are held back behind the last."""
        layer: Expr = 0 if name == "lm_head" else self.layer
        parts = self.parts(name)
        op = GemvOp(
            role="all", matrix=name, layer=layer, stream="weights", part=self.sums(name),
            deferred=self.deferred(name) if part == parts - 1 else 0, k_part=part, k_parts=parts,
            k_splits=self.k_splits(name),
            row_scales=scale_buffer(name) if self.settings.scales_apart and self.run.format(name).per_row else None,
            **self.read_by(name),
        )  # fmt: skip
        meet = [] if part == parts - 1 and self.is_announced_early(name) else [self.barrier()]
        return [self.barrier(), Step(op=op), *meet]

    def parts(self, name: MatrixName) -> int:
        """Steps that the product is done in."""
        return parts_of(self.settings, name)

    def k_splits(self, name: MatrixName) -> int:
        """Workers that the columns are divided among."""
        return k_splits_of(self.settings, name)

    def sums(self, name: MatrixName) -> str:
        """The buffer of the partial sums of matrix `name`."""
        if self.apart(name):
            return DOWN_SUMS
        return HEAD_SUMS if name == "lm_head" and self.settings.head_sums == "global" else "part"

    def of_sums(self, name: MatrixName) -> Sums:
        """The partial sums of the product of matrix `name`."""
        return Sums(stream="weights", part=self.sums(name))

    def squares(self) -> Squares:
        """What the rows are divided by: nothing, where the norm was applied as a whole."""
        rms = self.graph.norm == "rms"
        return Squares(ssq="ssq" if rms else None, ssq_agents=self.settings.warps if rms else 0)

    def deferred(self, name: MatrixName) -> int:
        return self.run.deferred.get(name, 0)

    def is_announced_early(self, name: MatrixName) -> bool:
        """Whether a worker says that a result of the product of `name` is coming before its warps have met."""
        counter = self.handed(name)
        if counter is None or is_bare(self.settings, counter) or self.k_splits(name) > 1:
            return False
        return self.settings.hint_at == "drained" and self.is_relaxed(counter)

    def handed(self, name: MatrixName) -> str | None:
        """The counter and buffer that hand on what becomes of the product; None for what its owner keeps, or a caller
        is given."""
        return None if name == "lm_head" and self.model.slice is not None else handed(self.graph, name)

    def state(self, number: int) -> str:
        """The counter and buffer of the hidden state behind so many additions of a layer."""
        return state_name(self.graph, number)

    def published(self, name: MatrixName, op: AnyOp, signals: tuple[Signal, ...]) -> list[Step]:
        """Publish what `op` makes of the product of `name`, and let part of what that held back go out."""
        first = refilled(self.run.first.get(name, 0))
        result = self.publish(op, signals)
        if self.is_announced_early(name):
            result.insert(1, self.barrier())
        return [*first, *result] if self.settings.refill_first else [*result, *first]

    def staged(self, name: MatrixName | None, *steps: Step) -> list[Step]:
        """Stage the next input, and let the rest of what `name` held back go out, unless it is owed through the next
        product. Behind it, so that what is read does not queue behind copies, unless the settings say otherwise.
        """
        if name is None or (self.settings.carried is not None and name == self.graph.additions[-1]):
            return list(steps)
        rest = refilled(self.deferred(name) - self.run.first.get(name, 0))
        return [*rest, *steps] if self.settings.refill_early else [*steps, *rest]

    def paced(self, name: MatrixName | None, turn: int, *steps: Step) -> list[Step]:
        """`steps`, and behind them a refill that `name` holds back; behind the last turn all that are left."""
        if name is None or not self.spreads:
            return list(steps)
        left = self.deferred(name) - self.run.first.get(name, 0) - turn
        return [*steps, *refilled(max(0, left if turn == LAST_TURN else min(left, 1)))]

    def asked_at(self, place: str) -> list[Step]:
        """Ask for earlier keys and values, if this is the place."""
        if not self.settings.prefetch_cache or self.settings.prefetch_at != place:
            return []
        return [Step(op=PrefetchCacheOp(role="all", layer=self.layer, k_cache="k_cache", v_cache="v_cache"))]

    def role(self, name: MatrixName) -> str:
        """Which agents sum the partials of matrix `name`: few rows are summed by warp 0, which needs no barrier."""
        return "all" if self.rows[name] * self.settings.vectors > self.settings.wide_epilogue else "w0"

    def signal(self, counter: str, index: tuple[Expr, ...] = (0,), add: Expr = 1) -> Signal:
        return Signal(counter=counter, index=index, add=add, order="relaxed" if self.is_relaxed(counter) else "release")

    def is_relaxed(self, counter: str) -> bool:
        """Whether the counter only says when to look for tagged words."""
        return has_tags(self.settings, counter) and counter not in self.strong

    def publish(self, op: AnyOp, signals: tuple[Signal, ...]) -> list[Step]:
        """Run `op`, then signal once per worker, if anybody waits for that. A fenced signal needs every writer behind
        it, a hint nobody; so it may come first.
        """
        signals = tuple(signal for signal in signals if is_signalled(self.settings, signal.counter))
        if signals and self.settings.hint_at != "published" and all(signal.order == "relaxed" for signal in signals):
            return [Step(op=SignalOp(role="w0"), signals=signals), Step(op=op)]
        if op.role == "w0" or not signals:
            return [Step(op=op, signals=signals)]
        meet = [] if all(signal.order == "relaxed" for signal in signals) else [self.barrier()]
        return [Step(op=op), *meet, Step(op=SignalOp(role="w0"), signals=signals)]
