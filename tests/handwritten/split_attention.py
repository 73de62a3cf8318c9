"""Split-KV attention by workers that do nothing else, over a loop of tokens.

Two programs. Workers 0 to 7 run `rows`: they own every row of every matrix and no attention. Workers 8 to 15 run
`attention`: each serves one (kv head, split) of the cache in all layers and tokens, with four warps, and owns no rows,
so it leaves out every step that multiplies.

Queries, keys and values, the partial results of the splits and the candidates of the next token cross as tagged words:
who needs a word re-reads it until it carries the reader's own tag, and no counter stands between. What words do not
say: a split that owns no position yet has nothing to write, so nobody would wait for its worker; yet it reads the
queries, and they must not be overwritten before. `attn` counts all attention workers, active or not, and holds the row
workers back. A hint would do for the words; it is fenced, because a token that the prompt gives is not chosen, nobody
looks at candidates then, and worker 0 must not store the next launch's state before all have loaded this one's.
`best` saves polling, and keeps one token's signals of the attention workers from the next token's, which words do not:
they order no signals. Its signal follows a barrier, so that it speaks for all four warps and not for the first alone;
separation does not need that. What row workers alone exchange stands behind fenced counters.
"""

from __future__ import annotations

from amk.models.matrices import MatrixName
from amk.models.model_spec import ModelSpec
from amk.schedule_ir.expr import Expr
from amk.schedule_ir.memory import Buffer, Counter, Dtype
from amk.schedule_ir.ops import AnyOp, SignalOp
from amk.schedule_ir.ops.add_residual import AddResidualOp
from amk.schedule_ir.ops.argmax_rows import ArgmaxRowsOp
from amk.schedule_ir.ops.attend import AttendOp
from amk.schedule_ir.ops.begin import BeginOp
from amk.schedule_ir.ops.combine import CombineOp, share_heads
from amk.schedule_ir.ops.embed import EmbedOp
from amk.schedule_ir.ops.finish import FinishOp
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.merge import MergeOp
from amk.schedule_ir.ops.rope_append import RopeAppendOp
from amk.schedule_ir.ops.select import SelectOp
from amk.schedule_ir.ops.stage import StageOp
from amk.schedule_ir.ops.stage_norm import StageNormOp
from amk.schedule_ir.ops.store_rows import StoreRowsOp
from amk.schedule_ir.ops.swiglu import SwigluOp
from amk.schedule_ir.schedule import KvLayout, Launch, Loop, Node, Program, Role, Schedule, Signal, Step
from amk.targets.target import load_target
from tests.handwritten.parts import (
    LAYER,
    barrier,
    host_buffers,
    row_tables,
    shared_buffers,
    step,
    wait,
    weight_stream,
)  # fmt: skip

MODEL = ModelSpec(
    name="two-layers", source="made up to write a schedule by hand", layers=2, hidden=256, ffn=512, heads=4, kv_heads=2,
    head_dim=64, vocab=512, max_context=256, rms_eps=1e-5, rope_theta=10_000.0,
)  # fmt: skip
ROWS, SPLITS = 8, 4
SERVING = MODEL.kv_heads * SPLITS
WORKERS = ROWS + SERVING
WARPS, ATTENDING = 8, 4
KV = KvLayout(context=256, block=16, splits=SPLITS)
MAX_TOKENS = 64

MEET = barrier("all", 1, WARPS)
MEET_FOUR = barrier("four", 2, ATTENDING)


def schedule(gpu: str = "h200") -> Schedule:
    target = load_target(gpu)
    shared, end = shared_buffers(MODEL, KV, WARPS, groups=16)
    return Schedule(
        name="split-attention",
        model=MODEL,
        target=target,
        launch=Launch(workers=WORKERS, warps=WARPS, shared_bytes=end, registers=255, max_tokens=MAX_TOKENS),
        kv=KV,
        roles=(
            Role(name="all", first=0, count=WARPS),
            Role(name="four", first=0, count=ATTENDING),
            Role(name="first", first=0, count=1),
        ),
        tables=row_tables(MODEL, ROWS, WORKERS) | attention_tables(),
        buffers=(*host_buffers(MODEL, KV, MAX_TOKENS), *words(), *fenced(), *shared),
        counters=(
            Counter(name="attn", shape=(MODEL.layers,)),
            *(Counter(name=name, shape=(MODEL.layers,)) for name in ("h_mid", "act", "h_out")),
            Counter(name="best", shape=(1,)),
        ),
        streams=(weight_stream(target, "all"),),
        programs=(
            Program(name="rows", first=0, count=ROWS, body=rows_program()),
            Program(name="attention", first=ROWS, count=SERVING, body=attention_program()),
        ),
    )  # fmt: skip


def attention_tables() -> dict[str, tuple[int, ...]]:
    """Worker 8 + 4 h + s serves split s of kv head h; head -1 serves none."""
    served = range(SERVING)
    return {
        "attn.head": (*([-1] * ROWS), *(k // SPLITS for k in served)),
        "attn.split": (*([0] * ROWS), *(k % SPLITS for k in served)),
    }


def words() -> list[Buffer]:
    """Tagged hand-offs. A layer writes each word once, so the tag counts layers; candidates count tokens."""
    per_layer: Expr = {"t": MODEL.layers, "l": 1, "1": 1}
    shapes: dict[str, tuple[Dtype, tuple[int, ...], Expr]] = {
        "qkv": ("f32", (MODEL.q_dim + 2 * MODEL.kv_dim,), per_layer),
        "split_partial": ("bf16", (MODEL.heads, SPLITS, MODEL.head_dim), per_layer),
        "split_scale": ("f32", (MODEL.heads, SPLITS, 2), per_layer),
        "best_value": ("f32", (WORKERS,), {"t": 1, "1": 1}),
        "best_index": ("i32", (WORKERS,), {"t": 1, "1": 1}),
    }
    return [Buffer(name=n, space="global", dtype=d, shape=s, tagged=True, tag=tag) for n, (d, s, tag) in shapes.items()]


def fenced() -> list[Buffer]:
    return [
        Buffer(name="h_mid", space="global", dtype="f32", shape=(MODEL.hidden,)),
        Buffer(name="h_out", space="global", dtype="f32", shape=(MODEL.hidden,)),
        Buffer(name="act", space="global", dtype="bf16", shape=(MODEL.ffn,)),
    ]


def rows_program() -> tuple[Node, ...]:
    embed = EmbedOp(role="all", table="embedding", norm="norm", x="x", ssq="ssq", residual="residual")
    layer = Loop(var="l", count=MODEL.layers, body=(*rows_of_heads(), *output(), *mlp()))
    return (
        step(BeginOp(role="all", state="state")),
        Loop(var="t", count=None, body=(step(embed), layer, *gemv("lm_head"), *chosen("all", MEET))),
        step(FinishOp(role="first", state="state")),
    )


def attention_program() -> tuple[Node, ...]:
    layer = Loop(var="l", count=MODEL.layers, body=(*attention(),))
    return (
        step(BeginOp(role="four", state="state")),
        Loop(var="t", count=None, body=(layer, MEET_FOUR, *chosen("four", MEET_FOUR))),
    )


def attention() -> list[Step]:
    """Four warps wait for their head's words, append the row if it is theirs, attend, and one signals for all."""
    rope = RopeAppendOp(
        role="four", layer=LAYER, qkv="qkv", rope="rope", q="q", k_cache="k_cache", v_cache="v_cache"
    )  # fmt: skip
    attend = AttendOp(role="four", layer=LAYER, q="q", k_cache="k_cache", v_cache="v_cache", partial="att")
    merge = MergeOp(
        role="four", layer=LAYER, partial="att", attend_agents=ATTENDING, split_partial="split_partial",
        split_scale="split_scale",
    )  # fmt: skip
    done = Step(op=SignalOp(role="first"), signals=(Signal(counter="attn", index=(LAYER,)),))
    return [step(rope), MEET_FOUR, step(attend), MEET_FOUR, step(merge), done]


def gemv(name: MatrixName) -> list[Step]:
    layer: Expr = 0 if name == "lm_head" else LAYER
    return [MEET, step(GemvOp(role="all", matrix=name, layer=layer, stream="weights", x="x", part="part")), MEET]


def rows_of_heads() -> list[Step]:
    store = StoreRowsOp(role="all", layer=LAYER, stream="weights", part="part", ssq="ssq", ssq_agents=WARPS, out="qkv")
    return [*gemv("qkv"), step(store)]


def output() -> list[Step]:
    combine = CombineOp(
        role="all",
        layer=LAYER,
        split_partial="split_partial",
        split_scale="split_scale",
        heads=share_heads(MODEL.heads, MODEL.head_dim, WARPS),
        mix="mix",
        x="x",
    )
    looked = [wait("first", "attn", (LAYER,), SERVING), MEET]
    return [*looked, step(combine), *gemv("o"), *residual("o", "h_mid")]


def published(op: AnyOp, counter: str) -> list[Step]:
    """All warps write, one releases what all have written, one acquires for all."""
    signal = Step(op=SignalOp(role="first"), signals=(Signal(counter=counter, index=(LAYER,)),))
    return [step(op), MEET, signal, wait("first", counter, (LAYER,), ROWS), MEET]


def residual(name: MatrixName, h: str) -> list[Step]:
    assert name in ("o", "down")
    op = AddResidualOp(role="all", matrix=name, layer=LAYER, stream="weights", part="part", residual="residual", h=h)
    return published(op, h)


def mlp() -> list[Step]:
    swiglu = SwigluOp(role="all", layer=LAYER, stream="weights", part="part", ssq="ssq", ssq_agents=WARPS, act="act")
    before, after = (
        StageNormOp(role="all", index={"l": 2, "1": k}, h=h, norm="norm", x="x", ssq="ssq")
        for k, h in ((1, "h_mid"), (2, "h_out"))
    )
    stage = StageOp(role="all", layer=LAYER, act="act", x="x")
    return [
        step(before), *gemv("gate_up"), *published(swiglu, "act"), step(stage), *gemv("down"),
        *residual("down", "h_out"), step(after),
    ]  # fmt: skip


def chosen(role: str, meet: Step) -> list[Step]:
    """One candidate per worker; those without rows offer one that never wins. Then every warp goes on to the token."""
    best = ArgmaxRowsOp(
        role="first", stream="weights", part="part", ssq="ssq", ssq_agents=WARPS, logits="logits",
        best_value="best_value", best_index="best_index",
    )  # fmt: skip
    select = SelectOp(
        role=role, candidates=WORKERS, best_value="best_value", best_index="best_index", request="request",
        prompt="prompt", output="output",
    )  # fmt: skip
    return [step(best, Signal(counter="best")), wait("first", "best", (0,), WORKERS), meet, step(select)]
