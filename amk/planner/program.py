"""The decode step as steps and loops."""

from __future__ import annotations

from dataclasses import dataclass

from amk.planner.draw import draw_steps
from amk.planner.formats import Formats
from amk.planner.settings import Settings
from amk.planner.staging import layout, read_by, staged_for
from amk.schedule_ir.expr import Expr
from amk.schedule_ir.matrices import MatrixName
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

LAYER: Expr = {"l": 1}


@dataclass(frozen=True)
class Author:
    """Writes the step list of one program; every method returns steps in program order.

    strong: counters behind fences where the others are hints.
    """

    model: ModelSpec
    settings: Settings
    workers: int
    rows: dict[str, int]
    head_delta: int | None
    held: dict[MatrixName, int]
    first: dict[MatrixName, int]
    slack: int
    splits: int | None
    wanted: Formats
    strong: frozenset[str] = frozenset()

    def barrier(self) -> Step:
        return Step(op=BarrierOp(role="all", id=1, agents=self.settings.warps))

    def wait(self, counter: str, index: tuple[Expr, ...], delta: int | None = None) -> list[Step]:
        """One poller per worker, then everybody."""
        amount = delta or self.workers
        hint = self.hints(counter)
        early = amount // self.slack if hint and self.slack else 0
        wait = Wait(
            counter=counter, index=index, at_least={"t": amount, "1": amount - early},
            order="relaxed" if hint else "acquire",
        )  # fmt: skip
        return [Step(op=WaitOp(role="w0"), waits=(wait,)), self.barrier()]

    def gemv(self, name: MatrixName, part: int = 0, parts: int = 1) -> list[Step]:
        """The product with `part` of the columns; refills are held back behind the last."""
        layer: Expr = 0 if name == "lm_head" else LAYER
        op = GemvOp(
            role="all", matrix=name, layer=layer, stream="weights", part="part",
            deferred=self.deferred(name) if part == parts - 1 else 0, k_part=part, k_parts=parts,
            **read_by(name, self.wanted),
        )  # fmt: skip
        return [self.barrier(), Step(op=op), self.barrier()]

    def deferred(self, name: MatrixName) -> int:
        return self.held.get(name, 0)

    def refill(self, name: MatrixName) -> list[Step]:
        """Part of what the product of `name` held back goes out once its result is published."""
        first = self.first.get(name, 0)
        return [Step(op=RefillOp(role="all", stream="weights", most=first))] if first else []

    def refill_rest(self, name: MatrixName) -> list[Step]:
        """The rest, once the next product's input is there: what is read until then does not queue behind it."""
        rest = self.deferred(name) - self.first.get(name, 0)
        return [Step(op=RefillOp(role="all", stream="weights", most=rest))] if rest else []

    def role(self, name: MatrixName) -> str:
        """Which agents sum the partials of matrix `name`: few rows are summed by warp 0, which needs no barrier."""
        return "all" if self.rows[name] * self.settings.batch > self.settings.wide_epilogue else "w0"

    @property
    def tagged(self) -> bool:
        return self.settings.handoff == "tagged"

    def signal(self, counter: str, index: tuple[Expr, ...] = (0,), add: Expr = 1) -> Signal:
        return Signal(counter=counter, index=index, add=add, order="relaxed" if self.hints(counter) else "release")

    def hints(self, counter: str) -> bool:
        """Whether the counter only says when to look for tagged words."""
        return self.tagged and counter not in self.strong

    def publish(self, op: AnyOp, signals: tuple[Signal, ...]) -> list[Step]:
        """Run `op`, then signal once per worker. A fenced signal needs every writer behind it, a hint nobody."""
        if op.role == "w0":
            return [Step(op=op, signals=signals)]
        meet = [] if all(signal.order == "relaxed" for signal in signals) else [self.barrier()]
        return [Step(op=op), *meet, Step(op=SignalOp(role="w0"), signals=signals)]

    def qkv(self) -> list[Step]:
        op = StoreRowsOp(
            role=self.role("qkv"), layer=LAYER, stream="weights", part="part", ssq="ssq",
            ssq_agents=self.settings.warps, bias="qkv_bias" if self.model.qkv_bias else None, out="qkv",
        )  # fmt: skip
        if self.head_delta is None:
            return [*self.gemv("qkv"), *self.publish(op, (self.signal("qkv", (LAYER, 0)),)), *self.refill("qkv")]
        signals = tuple(self.signal("qkv", (LAYER, k), {f"qkv.to.{k}": 1}) for k in range(self.model.kv_heads))
        return [*self.gemv("qkv"), *self.publish(op, signals), *self.refill("qkv")]

    def attention(self) -> list[Step]:
        norm = self.model.qk_norm
        gate: Expr = {"attn.gate": 1} if self.head_delta else 0
        rope = RopeAppendOp(
            role="all", layer=LAYER, qkv="qkv", rope="rope", q_norm="q_norm" if norm else None,
            k_norm="k_norm" if norm else None, q="q", k_cache="k_cache", v_cache="v_cache",
        )  # fmt: skip
        attend = AttendOp(role="all", layer=LAYER, q="q", k_cache="k_cache", v_cache="v_cache", partial="att")
        merge = MergeOp(
            role="all", layer=LAYER, partial="att", attend_agents=self.settings.warps, split_partial="split_partial",
            split_scale="split_scale",
        )  # fmt: skip
        return [
            *self.wait("qkv", (LAYER, gate), self.head_delta),
            Step(op=rope),
            *self.refill_rest("qkv"),
            self.barrier(),
            Step(op=attend),
            self.barrier(),
            *self.reduced(merge),
        ]

    def reduced(self, merge: MergeOp) -> list[Step]:
        """Publish the split's partials; where there are many splits, reduce them among the workers of the kv head."""
        if self.splits is None:
            return self.publish(merge, (self.signal("attn", (LAYER,)),))
        own: tuple[Expr, ...] = (LAYER, {"attn.gate": 1})
        reduce = ReduceSplitsOp(
            role="w0", layer=LAYER, split_partial="split_partial", split_scale="split_scale", attn="attn"
        )
        return [
            *self.publish(merge, (self.signal("split", own, {"attn.serves": 1}),)),
            *self.wait("split", own, self.splits),
            *self.publish(reduce, (self.signal("attn", (LAYER,)),)),
        ]

    def output(self) -> list[Step]:
        fields = staged_for(self.wanted, "o")
        heads = share_heads(
            self.model.heads, self.model.head_dim, self.settings.warps, layout("o", self.wanted) != "bf16"
        )
        combine = CombineOp(
            role="all", layer=LAYER, split_partial="split_partial", split_scale="split_scale", heads=heads, mix="mix",
            **fields,
        )  # fmt: skip
        staged = StageAttentionOp(role="all", layer=LAYER, attn="attn", **fields)
        return [
            *self.wait("attn", (LAYER,)),
            Step(op=combine if self.splits is None else staged),
            *self.gemv("o"),
            *self.residual("o", "h_mid"),
        ]

    def residual(self, name: MatrixName, h: str) -> list[Step]:
        assert name in ("o", "down")
        op = AddResidualOp(
            role=self.role(name), matrix=name, layer=LAYER, stream="weights", part="part", residual="residual", h=h,
            k_parts=self.k_parts if name == "down" else 1,
        )  # fmt: skip
        return [*self.publish(op, (self.signal(h, (LAYER,)),)), *self.refill(name)]

    def mlp(self) -> list[Step]:
        swiglu = SwigluOp(
            role=self.role("gate_up"), layer=LAYER, stream="weights", part="part", ssq="ssq",
            ssq_agents=self.settings.warps, act="act",
        )  # fmt: skip
        return [
            *self.wait("h_mid", (LAYER,)),
            self.normed({"l": 2, "1": 1}, "h_mid", "gate_up"),
            *self.refill_rest("o"),
            *self.gemv("gate_up"),
            *self.publish(swiglu, (self.signal("act", (LAYER,)),)),
            *self.refill("gate_up"),
            *self.wait("act", (LAYER,)),
            *(step for part in range(self.k_parts) for step in self.down(part)),
            *self.residual("down", "h_out"),
            *self.wait("h_out", (LAYER,)),
            self.normed({"l": 2, "1": 2}, "h_out", "qkv", "lm_head"),
            *self.refill_rest("down"),
        ]

    def down(self, part: int) -> list[Step]:
        """Stage part of the activation and multiply it."""
        fields = staged_for(self.wanted, "down")
        stage = StageOp(role="all", layer=LAYER, act="act", k_part=part, k_parts=self.k_parts, **fields)
        rest = [] if part else self.refill_rest("gate_up")
        return [Step(op=stage), *rest, *self.gemv("down", part, self.k_parts)]

    @property
    def k_parts(self) -> int:
        return self.settings.k_parts or 1

    def normed(self, index: Expr, h: str, *readers: MatrixName) -> Step:
        fields = staged_for(self.wanted, *readers)
        return Step(op=StageNormOp(role="all", index=index, h=h, norm="norm", ssq="ssq", **fields))

    def head(self) -> list[Step]:
        best = ArgmaxRowsOp(
            role="all", stream="weights", part="part", ssq="ssq", ssq_agents=self.settings.warps, logits="logits",
            best_value="best_value", best_index="best_index",
        )  # fmt: skip
        steps = [
            *self.gemv("lm_head"),
            *self.publish(best, (self.signal("best"),)),
            *self.refill("lm_head"),
            *self.wait("best", (0,)),
            *self.refill_rest("lm_head"),
        ]
        if self.settings.sampling != "greedy":
            return [*steps, *draw_steps(self)]
        select = SelectOp(
            role="all", candidates=self.workers * self.settings.warps, best_value="best_value",
            best_index="best_index", request="request", prompt="prompt", output="output",
        )  # fmt: skip
        return [*steps, Step(op=select)]

    def body(self) -> tuple[Node, ...]:
        fields = staged_for(self.wanted, "qkv")
        embed = EmbedOp(role="all", table="embedding", norm="norm", ssq="ssq", residual="residual", **fields)
        cache = PrefetchCacheOp(role="all", layer=LAYER, k_cache="k_cache", v_cache="v_cache")
        early = [Step(op=cache)] if self.settings.prefetch_cache else []
        layer = Loop(
            var="l", count=self.model.layers, body=(*early, *self.qkv(), *self.attention(), *self.output(), *self.mlp())
        )
        return (
            Step(op=BeginOp(role="all", state="state")),
            Loop(var="t", count=None, body=(Step(op=embed), layer, *self.head())),
            Step(op=FinishOp(role="w0", state="state")),
        )
