"""The decode step as steps and loops: a phase for every node of the model's graph, in the graph's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from amk.models.graph import Attention, Norm, Product
from amk.models.matrices import ADDED, MatrixName, bias_buffer
from amk.planner.buffers import sums_of
from amk.planner.draw import draw_steps
from amk.planner.settings import NARROW_STEP, has_tags, in_place, is_bare
from amk.planner.staging import Written, layout, staged_for
from amk.planner.steps import LAYER, RunOfLayers, Writer
from amk.schedule_ir.expr import Expr
from amk.schedule_ir.ops import OPS, AnyOp, SignalOp, WaitOp
from amk.schedule_ir.ops.add_sums import AddSumsOp
from amk.schedule_ir.ops.advance import AdvanceOp
from amk.schedule_ir.ops.argmax_rows import ArgmaxRowsOp
from amk.schedule_ir.ops.attend import AttendOp
from amk.schedule_ir.ops.begin import BeginOp
from amk.schedule_ir.ops.combine import CombineOp, share_heads
from amk.schedule_ir.ops.embed import EmbedOp
from amk.schedule_ir.ops.embed_hidden import EmbedHiddenOp
from amk.schedule_ir.ops.embed_rows import EmbedRowsOp
from amk.schedule_ir.ops.finish import FinishOp
from amk.schedule_ir.ops.give_hidden import GiveHiddenOp
from amk.schedule_ir.ops.give_logits import GiveLogitsOp
from amk.schedule_ir.ops.layer_norm import LayerNormOp
from amk.schedule_ir.ops.merge import MergeOp
from amk.schedule_ir.ops.reduce_splits import ReduceSplitsOp
from amk.schedule_ir.ops.rope_append import RopeAppendOp
from amk.schedule_ir.ops.select import SelectOp
from amk.schedule_ir.ops.stage import StageOp
from amk.schedule_ir.ops.stage_attention import StageAttentionOp
from amk.schedule_ir.ops.stage_hidden import StageHiddenOp
from amk.schedule_ir.ops.stage_norm import StageNormOp
from amk.schedule_ir.ops.store_sums import StoreSumsOp
from amk.schedule_ir.ops.take_hidden import TakeHiddenOp
from amk.schedule_ir.schedule import Loop, Node, Signal, Step, Wait

BEGUN = "begun"
"""The counter of workers that have read the launch state, of the output head alone."""


class SplitBuffers(TypedDict):
    """Fields of the ops that write or read the splits of attention."""

    split_partial: str
    split_scale: str


@dataclass(frozen=True)
class Author(Writer):
    """Writes the phases of a program. held: the product before a phase, whose last refills have not gone out yet."""

    def product(self, node: Product, ring: MatrixName | None) -> list[Step]:
        """Stage what the product reads, multiply, and hand on what becomes of the rows."""
        first = node.then == "rows"
        multiplied = [step for part in range(self.parts(node.matrix)) for step in self.multiplied(node, ring, part)]
        return [
            *(self.asked_at("layer") if first else ()),
            *multiplied,
            *(self.asked_at("product") if first else ()),
            *self.summed(node.matrix),
            *self.published(node.matrix, self.result(node), self.signals(node)),
            *(self.asked_at("published") if first else ()),
        ]

    def multiplied(self, node: Product, ring: MatrixName | None, part: int) -> list[Step]:
        """The product with one part of its columns."""
        ring, parts = None if part else ring, self.parts(node.matrix)
        if isinstance(node.reads, Norm):
            return [*self.norm(node.reads, ring, part), *self.gemv(node.matrix, part)]
        if node.reads == "attn":
            return [*self.attended(node.matrix, ring, part), *self.gemv(node.matrix, part)]
        act, fields = self.own("act"), self.written_for(node.matrix)
        whole = self.act_delta is None
        ready = self.wait(act, (LAYER,)) if whole else self.wait(act, (LAYER, part), self.act_delta)
        op = StageOp(
            role="all", layer=self.layer, act=act, k_part=part, k_parts=parts, k_splits=self.k_splits(node.matrix),
            **self.scaled(fields), **fields
        )  # fmt: skip
        stage = Step(op=op)
        return [
            *(() if whole and part else ready),
            *self.staged(ring, stage),
            *self.gemv(node.matrix, part),
        ]

    def norm(self, norm: Norm, ring: MatrixName | None, part: int) -> list[Step]:
        """Stage a part of a norm. An RMSNorm of the state that a layer is given was staged at the end of the layer
        before, unless it is in parts; of LayerNorm the state itself is there, once for all norms that read it."""
        at = self.graph.norms.index(norm)
        fields = self.written_for(self.graph.reader(norm))
        if not self.whole_norms:
            h = self.handed_state(norm.reads)
            stage = self.normed(self.norm_index(at), h, fields, part)
            ready = self.wait(h, (LAYER,)) if at and not part else ()
            return [*ready, *self.staged(ring, stage)] if at or self.rereads else []
        step = self.layer_normed(self.graph.reader(norm), self.layer, fields)
        if at and norm.reads == self.graph.norms[at - 1].reads:
            return self.staged(ring, step)
        return [*(self.hidden(norm.reads, ring) if at else ()), self.barrier(), step]

    def hidden(self, number: int, ring: MatrixName | None) -> list[Step]:
        """Stage the hidden state behind `number` additions of the layer as it is, with its moments."""
        h, added = self.own(self.state(number)), self.graph.additions[number - 1]
        stage = StageHiddenOp(role="all", matrix=added, layer=self.layer, h=h, hidden="hidden", moments="moments")
        return [*self.wait(h, (LAYER,)), *self.staged(ring, Step(op=stage))]

    def layer_normed(self, matrix: MatrixName, layer: Expr, fields: Written) -> Step:
        op = LayerNormOp(
            role="all", matrix=matrix, layer=layer, hidden="hidden", moments="moments",
            moment_agents=self.settings.warps, norm="norm", shift="norm_shift", **fields,
        )  # fmt: skip
        return Step(op=op)

    def result(self, node: Product) -> AnyOp:
        """What becomes of the product's rows: the op that the graph names, whose fields are filled in by name."""
        handed = self.handed(node.matrix)
        out = None if handed is None else self.own(handed)
        fields = {
            "matrix": node.matrix, "layer": self.layer, "residual": "residual", "out": out, "act": out, "h": out,
            "bias": bias_buffer(node.matrix) if node.biases else None,
            "k_parts": self.parts(node.matrix),
            "k_sums": self.own(sums_of(node.matrix)), "k_splits": self.k_splits(node.matrix),
            **self.of_sums(node.matrix), **self.squares(), **dict(node.settings),
        }  # fmt: skip
        op = OPS[node.taken_by] if self.k_splits(node.matrix) == 1 else AddSumsOp
        return op.model_validate(
            {"role": self.role(node.matrix), **{name: fields[name] for name in op.model_fields if name in fields}}
        )

    def summed(self, name: MatrixName) -> list[Step]:
        """Publish the sums over the worker's share of the columns, where these are divided."""
        if self.k_splits(name) == 1 or name not in ADDED:
            return []
        store = StoreSumsOp(
            role="all", matrix=name, layer=self.layer, k_sums=self.own(sums_of(name)), k_parts=self.parts(name),
            k_splits=self.k_splits(name), **self.of_sums(name),
        )  # fmt: skip
        return [Step(op=store)]

    def signals(self, node: Product) -> tuple[Signal, ...]:
        """That the result is there: to all, to the heads that read it, or to the parts of the next product that do.

        None of a sum that its owner keeps."""
        handed = self.handed(node.matrix)
        if handed is None:
            return ()
        counter = self.own(handed)
        if node.then == "rows" and self.head_delta is not None:
            heads = range(self.model.kv_heads)
            return tuple(self.signal(counter, (LAYER, k), {f"qkv.to.{k}": 1}) for k in heads)
        if node.then == "activation" and self.act_delta is not None:
            parts = range(self.parts("down"))
            return tuple(self.signal(counter, (LAYER, part), {f"act.to.{part}": 1}) for part in parts)
        return (self.signal(counter, (LAYER, 0) if node.then == "rows" else (LAYER,)),)

    def attention(self, node: Attention, ring: MatrixName | None) -> list[Step]:
        """Rotate, append to the cache and attend; publish the split's partials."""
        gate: Expr = {"attn.gate": 1} if self.head_delta else 0
        tree = "tree" if self.settings.tree else None
        rope = RopeAppendOp(
            role="all", layer=self.layer, qkv=self.own("qkv"), rope="rope", q_norm="q_norm" if node.q_norm else None,
            k_norm="k_norm" if node.k_norm else None, q="q", k_cache="k_cache", v_cache="v_cache",
            tree=tree,
        )  # fmt: skip
        partial = "q" if in_place(self.model, self.settings) else "att"
        attend = AttendOp(
            role="all", layer=self.layer, q="q", k_cache="k_cache", v_cache="v_cache", partial=partial, tree=tree
        )
        merge = MergeOp(
            role="all", layer=self.layer, partial=partial, attend_agents=self.settings.warps, **self.splits_at(),
        )  # fmt: skip
        rotated = [Step(op=rope)] if self.spreads else self.staged(ring, Step(op=rope))
        attended = [Step(op=attend)]
        if self.settings.refill_late:
            attended = self.paced(ring, 0, *attended)
        else:
            rotated = self.paced(ring, 0, *rotated)
        return [
            *self.wait(self.own("qkv"), (LAYER, gate), self.head_delta),
            *rotated,
            self.barrier(),
            *attended,
            self.barrier(),
            *self.reduced(merge, ring),
        ]

    def splits_at(self) -> SplitBuffers:
        return SplitBuffers(split_partial=self.own("split_partial"), split_scale=self.own("split_scale"))

    def reduced(self, merge: MergeOp, ring: MatrixName | None) -> list[Step]:
        """Publish the split's partials; where there are many splits, reduce them among the workers of the kv head."""
        if self.splits is None:
            return self.paced(ring, 1, *self.publish(merge, (self.signal(self.own("attn"), (LAYER,)),)))
        own: tuple[Expr, ...] = (LAYER, {"attn.gate": 1})
        role = "all" if self.settings.rows > 1 or self.settings.vectors > NARROW_STEP else "w0"
        reduce = ReduceSplitsOp(role=role, layer=self.layer, attn=self.own("attn"), **self.splits_at())
        return [
            *self.paced(ring, 1, *self.publish(merge, (self.signal(self.own("split"), own, {"attn.serves": 1}),))),
            *self.wait(self.own("split"), own, self.splits),
            *self.publish(reduce, (self.signal(self.own("attn"), (LAYER,)),)),
        ]

    def attended(self, name: MatrixName, ring: MatrixName | None, part: int) -> list[Step]:
        """Stage a part of the output of attention, adding up its splits unless their workers did."""
        fields = self.written_for(name)
        heads = share_heads(
            self.model.heads,
            self.model.head_dim,
            self.settings.warps,
            layout(name, self.run.formats, self.settings.vectors) != "bf16",
        )
        combine = CombineOp(role="all", layer=self.layer, heads=heads, mix="mix", **self.splits_at(), **fields)
        staged = StageAttentionOp(
            role="all", layer=self.layer, attn=self.own("attn"), k_part=part, k_parts=self.parts(name),
            k_splits=self.k_splits(name), **self.scaled(fields), **fields,
        )  # fmt: skip
        stage = Step(op=combine if self.splits is None else staged)
        if part:
            return [stage]
        return [*self.paced("qkv", 2, *self.wait(self.own("attn"), (LAYER,))), *self.staged(ring, stage)]

    def norm_index(self, number: int) -> Expr:
        """The number of norm `number` of the layer, those of the next one counted on."""
        each = len(self.graph.norms)
        return {"l": each, "1": each * self.run.start + number}

    def normed(self, index: Expr, h: str, fields: Written, part: int = 0) -> Step:
        """Stage a part of a norm."""
        parts, scaled = self.settings.x_parts, self.scaled(fields)
        op = StageNormOp(
            role="all", index=index, h=h, norm="norm", ssq="ssq", k_part=part, k_parts=parts, **scaled, **fields
        )
        return Step(op=op)

    def end(self, ring: MatrixName | None) -> list[Step]:
        """Stage what the next layer reads first, or lm_head; where they do so themselves, wait for it."""
        if self.whole_norms:
            return self.hidden(len(self.graph.additions), ring)
        last = self.handed_state(len(self.graph.additions))
        ready = self.wait(last, (LAYER,))
        if self.rereads:
            return ready
        stage = self.normed(self.norm_index(len(self.graph.norms)), last, self.next_input())
        return [*ready, *self.staged(ring, stage)]

    @property
    def rereads(self) -> bool:
        """Whether every norm is staged where it is read, a part at a time."""
        return self.settings.x_parts > 1

    def handed_state(self, number: int) -> str:
        """The counter and buffer of the hidden state behind so many additions of the layer. The state that a layer is
        given is in that of the last one."""
        return self.own(self.state(number or len(self.graph.additions)))

    def next_input(self) -> Written:
        """For QKV of the next layer, in this run or the one behind it, or for lm_head behind the last."""
        if self.run.after is None and (not self.model.has_head or self.settings.headless):
            return self.written_for("qkv")
        if self.run.after is None:
            return self.written_for("qkv", "lm_head")
        return staged_for(self.head, self.settings.vectors, ("qkv", self.run.formats), ("qkv", self.run.after))

    def choice(self) -> list[Step]:
        """The next token, or the next given ones."""
        if self.settings.headless:
            return [*self.meeting(), Step(op=AdvanceOp(role="all", prompt="prompt", output="output"))]
        best = ArgmaxRowsOp(
            role="all", logits="logits", best_value="best_value", best_index="best_index", **self.of_sums("lm_head"),
            **self.squares(), k_parts=self.parts("lm_head"),
        )  # fmt: skip
        steps = [
            *(step for part in range(self.parts("lm_head")) for step in self.headed(part)),
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

    def meeting(self) -> list[Step]:
        """Where every warp looks for the words of the last hidden state by itself, another of its worker may still add
        to what the next step overwrites: they meet."""
        last = self.state(len(self.graph.additions))
        alone = is_bare(self.settings, last) or (has_tags(self.settings, last) and self.settings.pollers == "all")
        return [self.barrier()] if alone else []

    def headed(self, part: int) -> list[Step]:
        """Multiply lm_head with a part of its columns."""
        fields, last = self.written_for("lm_head"), self.graph.additions[-1]
        if self.whole_norms:
            return [self.barrier(), self.layer_normed("lm_head", 0, fields), *self.gemv("lm_head")]
        if not self.rereads:
            return self.gemv("lm_head")
        stage = self.normed(len(self.graph.norms) * self.model.layers, self.handed_state(0), fields, part)
        return [*self.staged(None if part else last, stage), *self.gemv("lm_head", part)]

    @property
    def whole_norms(self) -> bool:
        """Whether norms are applied as a whole before a product, not in part by those who read its rows."""
        return self.graph.norm == "layer"

    def slice_output(self) -> list[Step]:
        """What a slice leaves: the hidden state behind its last layer, or the logits behind that.

        Of the output head alone nobody reads what others write. Worker 0 stores the launch state all the same, so it
        waits until all have read it.
        """
        if not self.model.has_head:
            return [self.barrier(), Step(op=GiveHiddenOp(role="all", residual="residual", hidden_out="hidden_out"))]
        logits = GiveLogitsOp(
            role="all", logits="logits", **self.of_sums("lm_head"), **self.squares(), k_parts=self.parts("lm_head")
        )
        end = [Step(op=logits), self.barrier()]
        if self.model.layers:
            return [*self.gemv("lm_head"), *end]
        begun = Wait(counter=BEGUN, index=(0,), at_least={"t": self.workers, "1": self.workers})
        return [
            self.barrier(),
            Step(op=SignalOp(role="w0"), signals=(Signal(counter=BEGUN),)),
            *self.gemv("lm_head"),
            Step(op=WaitOp(role="w0"), waits=(begun,)),
            *end,
        ]

    def embedded(self) -> list[Step]:
        """What the first layer reads of the token's row, or of what a slice is given, and the residual."""
        if self.rereads:
            rows = EmbedRowsOp(role="all", table="embedding", residual="residual", h=self.handed_state(0))
            return [*self.publish(rows, (self.signal("embedded"),)), *self.wait("embedded", (0,))]
        if self.model.slice is not None:
            take = TakeHiddenOp(
                role="all", hidden_in="hidden_in", norm="norm", ssq="ssq",
                residual="residual" if self.model.layers else None,
                **self.written_for("qkv" if self.model.layers else "lm_head"),
            )  # fmt: skip
            return [Step(op=take)]
        if self.whole_norms:
            whole = EmbedHiddenOp(
                role="all", table="embedding", hidden="hidden", moments="moments", residual="residual"
            )
            return [Step(op=whole)]
        embed = EmbedOp(
            role="all", table="embedding", norm="norm", ssq="ssq", residual="residual", **self.written_for("qkv")
        )
        return [Step(op=embed)]

    def layers(self) -> Loop:
        body: list[Step] = []
        held: MatrixName | None = self.graph.additions[-1] if self.rereads else None
        for node in self.graph.nodes:
            if isinstance(node, Attention):
                body += self.attention(node, held)
                held = None
            else:
                body += self.product(node, held)
                held = node.matrix
        return Loop(var="l", count=self.run.count, body=(*body, *self.end(held)))

    def body(self, runs: Sequence[RunOfLayers]) -> tuple[Node, ...]:
        """The whole program; `runs` are all layers."""
        embed = replace(self, run=runs[0]).embedded()
        loops = [replace(self, run=run).layers() for run in runs if run.count]
        last, sliced = replace(self, run=runs[-1]), self.model.slice is not None
        prompt, position = "prompt" if self.settings.rows > 1 else None, "position" if sliced and loops else None
        return (
            Step(op=BeginOp(role="all", state="state", prompt=prompt, position=position)),
            Loop(var="t", count=None, body=(*embed, *loops, *(last.slice_output() if sliced else last.choice()))),
            Step(op=FinishOp(role="w0", state="state")),
        )
