"""One layer of the fast structure: private weight streams, a warp that only synchronises, counters per head.

Eight warps (`math`) multiply. Each drains its own ring, which runs ahead of everything, and never touches a counter.
The ninth warp (`sync`) has no weights: it adds up the partial sums, publishes the rows, signals, and polls for what the
worker needs next. The two meet at named barriers: 1 for all nine warps, 2 for the eight that stage the vector.

Attention is served by (kv head, split) pairs, one per worker. A worker waits for the rows of its own head only: every
head has a counter, and the table `qkv.to.<head>` says what each worker adds to it. With 64 rows a worker, worker w owns
exactly query head w, or the key or value rows of one kv head, so every head has four producers.
"""

from __future__ import annotations

from amk.models.matrices import MatrixName
from amk.models.model_spec import ModelSpec
from amk.schedule_ir.expr import Expr
from amk.schedule_ir.memory import Buffer, Counter
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
    name="one-layer", source="made up to write a schedule by hand", layers=1, hidden=512, ffn=1024, heads=8, kv_heads=4,
    head_dim=64, vocab=1024, max_context=256, rms_eps=1e-5, rope_theta=10_000.0,
)  # fmt: skip
WORKERS, MATH, SPLITS, PRODUCERS = 16, 8, 4, 4
KV = KvLayout(context=256, block=16, splits=SPLITS)
MAX_TOKENS = 64

ALL = barrier("all", 1, MATH + 1)
STAGED = barrier("math", 2, MATH)


def schedule(gpu: str = "h200") -> Schedule:
    target = load_target(gpu)
    shared, end = shared_buffers(MODEL, KV, MATH, groups=16)
    return Schedule(
        name="sync-agent",
        model=MODEL,
        target=target,
        launch=Launch(workers=WORKERS, warps=MATH + 1, shared_bytes=end, registers=168, max_tokens=MAX_TOKENS),
        kv=KV,
        roles=(
            Role(name="all", first=0, count=MATH + 1),
            Role(name="math", first=0, count=MATH),
            Role(name="sync", first=MATH, count=1),
        ),
        tables=row_tables(MODEL, WORKERS, WORKERS) | attention_tables() | producer_tables(),
        buffers=(*host_buffers(MODEL, KV, MAX_TOKENS), *handoffs(), *shared),
        counters=(
            Counter(name="qkv", shape=(1, MODEL.kv_heads)),
            *(Counter(name=name, shape=(1,)) for name in ("attn", "h_mid", "act", "h_out", "best")),
        ),
        streams=(weight_stream(target, "math"),),
        programs=(Program(name="decode", first=0, count=WORKERS, body=body()),),
    )


def attention_tables() -> dict[str, tuple[int, ...]]:
    """Worker w serves split w % 4 of kv head w // 4."""
    head = tuple(w // SPLITS for w in range(WORKERS))
    return {"attn.head": head, "attn.split": tuple(w % SPLITS for w in range(WORKERS)), "attn.gate": head}


def producer_tables() -> dict[str, tuple[int, ...]]:
    """qkv.to.k[w] = 1 if the 64 qkv rows of worker w belong to kv head k: queries, then keys, then values."""
    served = [w // MODEL.group for w in range(MODEL.heads)] + 2 * list(range(MODEL.kv_heads))
    return {f"qkv.to.{k}": tuple(int(head == k) for head in served) for k in range(MODEL.kv_heads)}


def handoffs() -> list[Buffer]:
    """What crosses workers, behind fenced counters."""
    shapes = {
        "qkv": (MODEL.q_dim + 2 * MODEL.kv_dim,), "split_partial": (MODEL.heads, SPLITS, MODEL.head_dim),
        "split_scale": (MODEL.heads, SPLITS, 2), "h_mid": (MODEL.hidden,), "h_out": (MODEL.hidden,),
        "best_value": (WORKERS,),
    }  # fmt: skip
    plain = [Buffer(name=n, space="global", dtype="f32", shape=s) for n, s in shapes.items()]
    act = Buffer(name="act", space="global", dtype="bf16", shape=(MODEL.ffn,))
    return [*plain, act, Buffer(name="best_index", space="global", dtype="i32", shape=(WORKERS,))]


def body() -> tuple[Node, ...]:
    embed = EmbedOp(role="math", table="embedding", norm="norm", x="x", ssq="ssq", residual="residual")
    layer = Loop(var="l", count=MODEL.layers, body=(*rows_of_heads(), *attention(), *output(), *mlp()))
    return (
        step(BeginOp(role="all", state="state")),
        Loop(var="t", count=None, body=(step(embed), STAGED, layer, *head())),
        step(FinishOp(role="sync", state="state")),
    )


def gemv(name: MatrixName) -> list[Step]:
    """Multiply, then hand the partial sums to the sync warp."""
    layer: Expr = 0 if name == "lm_head" else LAYER
    return [step(GemvOp(role="math", matrix=name, layer=layer, stream="weights", x="x", part="part")), ALL]


def polled(counter: str, index: tuple[Expr, ...], per_token: int = WORKERS) -> list[Step]:
    """The sync warp polls, the barrier tells the others."""
    return [wait("sync", counter, index, per_token), ALL]


def rows_of_heads() -> list[Step]:
    store = StoreRowsOp(
        role="sync", layer=LAYER, stream="weights", part="part", ssq="ssq", ssq_agents=MATH, out="qkv"
    )  # fmt: skip
    signals = [Signal(counter="qkv", index=(LAYER, k), add={f"qkv.to.{k}": 1}) for k in range(MODEL.kv_heads)]
    return [*gemv("qkv"), step(store, *signals), *polled("qkv", (LAYER, {"attn.gate": 1}), PRODUCERS)]


def attention() -> list[Step]:
    rope = RopeAppendOp(
        role="math", layer=LAYER, qkv="qkv", rope="rope", q="q", k_cache="k_cache", v_cache="v_cache"
    )  # fmt: skip
    attend = AttendOp(role="math", layer=LAYER, q="q", k_cache="k_cache", v_cache="v_cache", partial="att")
    merge = MergeOp(
        role="sync", layer=LAYER, partial="att", attend_agents=MATH, split_partial="split_partial",
        split_scale="split_scale",
    )  # fmt: skip
    published = step(merge, Signal(counter="attn", index=(LAYER,)))
    return [step(rope), STAGED, step(attend), ALL, published, *polled("attn", (LAYER,))]


def output() -> list[Step]:
    combine = CombineOp(
        role="math", layer=LAYER, split_partial="split_partial", split_scale="split_scale",
        heads=share_heads(MODEL.heads, MODEL.head_dim, MATH), mix="mix", x="x",
    )  # fmt: skip
    return [step(combine), STAGED, *gemv("o"), *residual("o", "h_mid")]


def residual(name: MatrixName, h: str) -> list[Step]:
    assert name in ("o", "down")
    op = AddResidualOp(
        role="sync", matrix=name, layer=LAYER, stream="weights", part="part", residual="residual", h=h
    )  # fmt: skip
    return [step(op, Signal(counter=h, index=(LAYER,))), *polled(h, (LAYER,))]


def mlp() -> list[Step]:
    swiglu = SwigluOp(role="sync", layer=LAYER, stream="weights", part="part", ssq="ssq", ssq_agents=MATH, act="act")
    before, after = (
        StageNormOp(role="math", index={"l": 2, "1": k}, h=h, norm="norm", x="x", ssq="ssq")
        for k, h in ((1, "h_mid"), (2, "h_out"))
    )
    return [
        step(before), STAGED, *gemv("gate_up"), step(swiglu, Signal(counter="act", index=(LAYER,))),
        *polled("act", (LAYER,)), step(StageOp(role="math", layer=LAYER, act="act", x="x")), STAGED, *gemv("down"),
        *residual("down", "h_out"), step(after), STAGED,
    ]  # fmt: skip


def head() -> list[Step]:
    best = ArgmaxRowsOp(
        role="sync", stream="weights", part="part", ssq="ssq", ssq_agents=MATH, logits="logits",
        best_value="best_value", best_index="best_index",
    )  # fmt: skip
    select = SelectOp(
        role="all", candidates=WORKERS, best_value="best_value", best_index="best_index", request="request",
        prompt="prompt", output="output",
    )  # fmt: skip
    return [*gemv("lm_head"), step(best, Signal(counter="best")), *polled("best", (0,)), step(select)]
