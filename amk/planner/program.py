"""The decode step as steps and loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from amk.planner.buffers import HEAD_SUMS, of_run
from amk.planner.draw import draw_steps
from amk.planner.formats import Formats
from amk.planner.settings import Settings, has_tags
from amk.planner.staging import Written, layout, read_by, staged_for
from amk.schedule_ir.expr import Expr
from amk.schedule_ir.matrices import MatrixName, scale_buffer
from amk.schedule_ir.model_spec import ModelSpec
from amk.schedule_ir.ops import AnyOp, BarrierOp, SignalOp, WaitOp
from amk.schedule_ir.ops.add_residual import AddResidualOp
from amk.schedule_ir.ops.argmax_rows import ArgmaxRowsOp
from amk.schedule_ir.ops.attend import AttendOp
from amk.schedule_ir.ops.begin import BeginOp
from amk.schedule_ir.ops.combine import CombineOp, share_heads
from amk.schedule_ir.ops.embed import EmbedOp
from amk.schedule_ir.ops.finish import FinishOp
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.merge import MergeOp
from amk.schedule_ir.ops.prefetch_cache import PrefetchCacheOp
from amk.schedule_ir.ops.reduce_splits import ReduceSplitsOp
from amk.schedule_ir.ops.refill import RefillOp
from amk.schedule_ir.ops.rope_append import RopeAppendOp
from amk.schedule_ir.ops.select import SelectOp
from amk.schedule_ir.ops.stage import StageOp
from amk.schedule_ir.ops.stage_attention import StageAttentionOp
from amk.schedule_ir.ops.stage_norm import StageNormOp
from amk.schedule_ir.ops.store_rows import StoreRowsOp
from amk.schedule_ir.ops.swiglu import SwigluOp
from amk.schedule_ir.schedule import Loop, Node, Signal, Step, Wait
from amk.schedule_ir.weight_format import Staged, WeightFormat, weight_format

LAYER: Expr = {"l": 1}
"""The number of the layer within its loop, and of the counter's instance."""


APART = ("h_mid", "act", "h_out")
"""Counters behind which no warp writes shared memory that another one may still read. Elsewhere it does: arrays of
attention overlay those of products, and a token's first sums of squares those of the token before.
"""


class SplitBuffers(TypedDict):
    """Fields of the ops that write or read the splits of attention."""

    split_partial: str
    split_scale: str


@dataclass(frozen=True)
class RunOfLayers:
    """Layers [start, start + count), one loop: formats, refills held back and how many of them go out first.

    after: the formats of the run behind it.
    """

    number: int
    start: int
    count: int
    wanted: Formats
    held: dict[MatrixName, int]
    first: dict[MatrixName, int]
    after: Formats | None = None

    def format(self, name: MatrixName) -> WeightFormat:
        return weight_format(self.wanted[name])


def refilled(most: int) -> list[Step]:
    """Let so many copies that were held back go out."""
    return [Step(op=RefillOp(role="all", stream="weights", most=most))] if most else []


@dataclass(frozen=True)
class Author:
    """Writes the step list of one program; every method returns steps in program order.

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
    def layer(self) -> Expr:
        """The number of the layer."""
        return {"l": 1, "1": self.run.start} if self.run.start else LAYER

    def own(self, name: str) -> str:
        """The counter or buffer of this run that hands on what `name` says."""
        return of_run(name, self.run.number)

    def splits_at(self) -> SplitBuffers:
        return SplitBuffers(split_partial=self.own("split_partial"), split_scale=self.own("split_scale"))

    def written_for(self, *names: MatrixName) -> Written:
        return staged_for(self.head, *((name, self.run.wanted) for name in names))

    def barrier(self) -> Step:
        return Step(op=BarrierOp(role="all", id=1, agents=self.settings.warps))

    def wait(self, counter: str, index: tuple[Expr, ...], delta: int | None = None) -> list[Step]:
        """One poller per worker, then everybody; or everybody polls, where nobody overwrites what others still read."""
        amount = delta or self.workers
        hint = self.hints(counter)
        early = amount // self.slack if hint and self.slack else 0
        wait = Wait(
            counter=counter, index=index, at_least={"t": amount, "1": amount - early},
            order="relaxed" if hint else "acquire",
        )  # fmt: skip
        if hint and self.settings.pollers == "all" and counter.partition(".")[0] in APART:
            return [Step(op=WaitOp(role="all"), waits=(wait,))]
        return [Step(op=WaitOp(role="w0"), waits=(wait,)), self.barrier()]

    def gemv(self, name: MatrixName, part: int = 0, parts: int = 1) -> list[Step]:
        """The product with `part` of the columns; refills are held back behind the last."""
        layer: Expr = 0 if name == "lm_head" else self.layer
        op = GemvOp(
            role="all", matrix=name, layer=layer, stream="weights", part=self.sums(name),
            deferred=self.deferred(name) if part == parts - 1 else 0, k_part=part, k_parts=parts,
            row_scales=scale_buffer(name) if self.settings.scales_apart and self.run.format(name).per_row else None,
            **read_by(name, self.run.wanted, self.head),
        )  # fmt: skip
        meet = [] if part == parts - 1 and self.hints_drained(name) else [self.barrier()]
        return [self.barrier(), Step(op=op), *meet]

    def sums(self, name: MatrixName) -> str:
        """The buffer of the partial sums of matrix `name`."""
        return HEAD_SUMS if name == "lm_head" and self.settings.head_sums == "global" else "part"

    def deferred(self, name: MatrixName) -> int:
        return self.run.held.get(name, 0)

    def hints_drained(self, name: MatrixName) -> bool:
        """Whether a worker says that a result of the product of `name` is coming before its warps have met."""
        counter = {"o": "h_mid", "gate_up": "act", "down": "h_out", "lm_head": "best"}.get(name, name)
        return self.settings.hint_at == "drained" and self.hints(counter)

    def published(self, name: MatrixName, op: AnyOp, signals: tuple[Signal, ...]) -> list[Step]:
        """Publish what `op` makes of the product of `name`, and let part of what that held back go out."""
        first = refilled(self.run.first.get(name, 0))
        result = self.publish(op, signals)
        if self.hints_drained(name):
            result.insert(1, self.barrier())
        return [*first, *result] if self.settings.refill_first else [*result, *first]

    def staged(self, name: MatrixName, *steps: Step) -> list[Step]:
        """Stage the next input, and let the rest go out. Behind it, so that what is read does not queue behind copies,
        unless the settings say otherwise.
        """
        rest = refilled(self.deferred(name) - self.run.first.get(name, 0))
        return [*rest, *steps] if self.settings.refill_early else [*steps, *rest]

    def asked_at(self, place: str) -> list[Step]:
        """Ask for earlier keys and values, if this is the place."""
        if not self.settings.prefetch_cache or self.settings.prefetch_at != place:
            return []
        return [Step(op=PrefetchCacheOp(role="all", layer=self.layer, k_cache="k_cache", v_cache="v_cache"))]

    def role(self, name: MatrixName) -> str:
        """Which agents sum the partials of matrix `name`: few rows are summed by warp 0, which needs no barrier."""
        return "all" if self.rows[name] * self.settings.batch > self.settings.wide_epilogue else "w0"

    def signal(self, counter: str, index: tuple[Expr, ...] = (0,), add: Expr = 1) -> Signal:
        return Signal(counter=counter, index=index, add=add, order="relaxed" if self.hints(counter) else "release")

    def hints(self, counter: str) -> bool:
        """Whether the counter only says when to look for tagged words."""
        return has_tags(self.settings, counter) and counter not in self.strong

    def publish(self, op: AnyOp, signals: tuple[Signal, ...]) -> list[Step]:
        """Run `op`, then signal once per worker. A fenced signal needs every writer behind it, a hint nobody; so it may
        come first.
        """
        if self.settings.hint_at != "published" and all(signal.order == "relaxed" for signal in signals):
            return [Step(op=SignalOp(role="w0"), signals=signals), Step(op=op)]
        if op.role == "w0":
            return [Step(op=op, signals=signals)]
        meet = [] if all(signal.order == "relaxed" for signal in signals) else [self.barrier()]
        return [Step(op=op), *meet, Step(op=SignalOp(role="w0"), signals=signals)]

    def qkv(self) -> list[Step]:
        op = StoreRowsOp(
            role=self.role("qkv"), layer=self.layer, stream="weights", part="part", ssq="ssq",
            ssq_agents=self.settings.warps, bias="qkv_bias" if self.model.qkv_bias else None, out=self.own("qkv"),
        )  # fmt: skip
        signals = [self.signal(self.own("qkv"), (LAYER, 0))]
        if self.head_delta is not None:
            heads = range(self.model.kv_heads)
            signals = [self.signal(self.own("qkv"), (LAYER, k), {f"qkv.to.{k}": 1}) for k in heads]
        return [
            *self.asked_at("layer"),
            *self.gemv("qkv"),
            *self.asked_at("product"),
            *self.published("qkv", op, tuple(signals)),
            *self.asked_at("published"),
        ]

    def attention(self) -> list[Step]:
        norm = self.model.qk_norm
        gate: Expr = {"attn.gate": 1} if self.head_delta else 0
        rope = RopeAppendOp(
            role="all", layer=self.layer, qkv=self.own("qkv"), rope="rope", q_norm="q_norm" if norm else None,
            k_norm="k_norm" if norm else None, q="q", k_cache="k_cache", v_cache="v_cache",
        )  # fmt: skip
        attend = AttendOp(role="all", layer=self.layer, q="q", k_cache="k_cache", v_cache="v_cache", partial="att")
        merge = MergeOp(
            role="all", layer=self.layer, partial="att", attend_agents=self.settings.warps, **self.splits_at(),
        )  # fmt: skip
        return [
            *self.wait(self.own("qkv"), (LAYER, gate), self.head_delta),
            *self.staged("qkv", Step(op=rope)),
            self.barrier(),
            Step(op=attend),
            self.barrier(),
            *self.reduced(merge),
        ]

    def reduced(self, merge: MergeOp) -> list[Step]:
        """Publish the split's partials; where there are many splits, reduce them among the workers of the kv head."""
        if self.splits is None:
            return self.publish(merge, (self.signal(self.own("attn"), (LAYER,)),))
        own: tuple[Expr, ...] = (LAYER, {"attn.gate": 1})
        reduce = ReduceSplitsOp(
            role="w0",
            layer=self.layer,
            split_partial=self.own("split_partial"),
            split_scale=self.own("split_scale"),
            attn=self.own("attn"),
        )
        return [
            *self.publish(merge, (self.signal(self.own("split"), own, {"attn.serves": 1}),)),
            *self.wait(self.own("split"), own, self.splits),
            *self.publish(reduce, (self.signal(self.own("attn"), (LAYER,)),)),
        ]

    def output(self) -> list[Step]:
        fields = self.written_for("o")
        heads = share_heads(
            self.model.heads, self.model.head_dim, self.settings.warps, layout("o", self.run.wanted) != "bf16"
        )
        combine = CombineOp(
            role="all", layer=self.layer, heads=heads, mix="mix", **self.splits_at(), **fields,
        )  # fmt: skip
        staged = StageAttentionOp(role="all", layer=self.layer, attn=self.own("attn"), **fields)
        return [
            *self.wait(self.own("attn"), (LAYER,)),
            Step(op=combine if self.splits is None else staged),
            *self.gemv("o"),
            *self.residual("o", "h_mid"),
        ]

    def residual(self, name: MatrixName, h: str) -> list[Step]:
        assert name in ("o", "down")
        op = AddResidualOp(
            role=self.role(name), matrix=name, layer=self.layer, stream="weights", part="part", residual="residual",
            h=self.own(h), k_parts=self.k_parts if name == "down" else 1,
        )  # fmt: skip
        return self.published(name, op, (self.signal(self.own(h), (LAYER,)),))

    def mlp(self) -> list[Step]:
        swiglu = SwigluOp(
            role=self.role("gate_up"), layer=self.layer, stream="weights", part="part", ssq="ssq",
            ssq_agents=self.settings.warps, act=self.own("act"),
        )  # fmt: skip
        return [
            *self.wait(self.own("h_mid"), (LAYER,)),
            *self.staged("o", self.normed(1, "h_mid", self.written_for("gate_up"))),
            *self.gemv("gate_up"),
            *self.published("gate_up", swiglu, self.activated()),
            *(self.wait(self.own("act"), (LAYER,)) if self.act_delta is None else ()),
            *(step for part in range(self.k_parts) for step in self.down(part)),
            *self.residual("down", "h_out"),
            *self.wait(self.own("h_out"), (LAYER,)),
            *self.staged("down", self.normed(2, "h_out", self.next_input())),
        ]

    def down(self, part: int) -> list[Step]:
        """Stage part of the activation and multiply it."""
        fields = self.written_for("down")
        ready = [] if self.act_delta is None else self.wait(self.own("act"), (LAYER, part), self.act_delta)
        stage = StageOp(role="all", layer=self.layer, act=self.own("act"), k_part=part, k_parts=self.k_parts, **fields)
        steps = [Step(op=stage)] if part else self.staged("gate_up", Step(op=stage))
        return [*ready, *steps, *self.gemv("down", part, self.k_parts)]

    def activated(self) -> tuple[Signal, ...]:
        """Of a worker's activations: to all, or to the parts of `down` that read them."""
        act = self.own("act")
        if self.act_delta is None:
            return (self.signal(act, (LAYER,)),)
        return tuple(self.signal(act, (LAYER, part), {f"act.to.{part}": 1}) for part in range(self.k_parts))

    @property
    def k_parts(self) -> int:
        return self.settings.k_parts or 1

    def normed(self, offset: int, h: str, fields: Written) -> Step:
        index: Expr = {"l": 2, "1": 2 * self.run.start + offset}
        return Step(op=StageNormOp(role="all", index=index, h=self.own(h), norm="norm", ssq="ssq", **fields))

    def next_input(self) -> Written:
        """For QKV of the next layer, in this run or the one behind it, or for lm_head behind the last."""
        if self.run.after is None:
            return self.written_for("qkv", "lm_head")
        return staged_for(self.head, ("qkv", self.run.wanted), ("qkv", self.run.after))

    def choice(self) -> list[Step]:
        """The next token."""
        best = ArgmaxRowsOp(
            role="all", stream="weights", part=self.sums("lm_head"), ssq="ssq", ssq_agents=self.settings.warps,
            logits="logits", best_value="best_value", best_index="best_index",
        )  # fmt: skip
        steps = [
            *self.gemv("lm_head"),
            *self.published("lm_head", best, (self.signal("best"),)),
            *self.wait("best", (0,)),
            *self.staged("lm_head"),
        ]
        if self.settings.sampling != "greedy":
            return [*steps, *draw_steps(self)]
        select = SelectOp(
            role="all", candidates=self.workers * self.settings.warps, best_value="best_value",
            best_index="best_index", request="request", prompt="prompt", output="output",
        )  # fmt: skip
        return [*steps, Step(op=select)]

    def layers(self) -> Loop:
        body = (*self.qkv(), *self.attention(), *self.output(), *self.mlp())
        return Loop(var="l", count=self.run.count, body=body)

    def body(self, runs: Sequence[RunOfLayers]) -> tuple[Node, ...]:
        """The whole program; `runs` are all layers."""
        embed = EmbedOp(
            role="all", table="embedding", norm="norm", ssq="ssq", residual="residual",
            **replace(self, run=runs[0]).written_for("qkv"),
        )  # fmt: skip
        loops = [replace(self, run=run).layers() for run in runs]
        return (
            Step(op=BeginOp(role="all", state="state")),
            Loop(var="t", count=None, body=(Step(op=embed), *loops, *replace(self, run=runs[-1]).choice())),
            Step(op=FinishOp(role="w0", state="state")),
        )
