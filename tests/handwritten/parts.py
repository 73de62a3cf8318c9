"""What both schedules declare alike: shares, the buffers that the host fills or reads, one worker's shared memory."""

from __future__ import annotations

from itertools import accumulate

from amk.models.matrices import MATRICES, ROWS_PER_GROUP, matrix
from amk.models.model_spec import ModelSpec
from amk.schedule_ir.expr import Expr
from amk.schedule_ir.memory import Buffer, Dtype, Stream
from amk.schedule_ir.ops import AnyOp, BarrierOp, WaitOp
from amk.schedule_ir.ops.combine import share_heads
from amk.schedule_ir.schedule import KvLayout, Signal, Step, Wait
from amk.targets.target import Target

LAYER: Expr = {"l": 1}
CHUNK_K = 128
SLOTS = 4


def row_tables(model: ModelSpec, owners: int, workers: int) -> dict[str, tuple[int, ...]]:
    """Workers 0..owners-1 own equal shares of the row groups of every matrix, the others none."""
    tables = {}
    for key, name in (("qkv", "qkv"), ("hidden", "o"), ("gate_up", "gate_up"), ("lm_head", "lm_head")):
        groups = matrix(model, name).groups  # type: ignore[arg-type]
        counts = [groups * (w + 1) // owners - groups * w // owners for w in range(owners)] + [0] * (workers - owners)
        tables[f"{key}.first"] = (0, *accumulate(counts[:-1]))
        tables[f"{key}.count"] = tuple(counts)
    return tables


def host_buffers(model: ModelSpec, kv: KvLayout, max_tokens: int) -> list[Buffer]:
    """Constants and state, under the names by which the host fills and reads them."""
    cache = (model.layers, model.kv_heads, kv.context, model.head_dim)
    chunks = sum(
        matrix(model, n).groups * matrix(model, n).k_chunks(CHUNK_K) * (1 if n == "lm_head" else model.layers)
        for n in MATRICES
    )
    constants: dict[str, tuple[Dtype, tuple[int, ...]]] = {
        "weights": ("bf16", (chunks * ROWS_PER_GROUP * CHUNK_K,)),
        "embedding": ("bf16", (model.vocab, model.hidden)),
        "norm": ("f32", (2 * model.layers + 1, model.hidden)),
        "rope": ("f32", (kv.context, model.head_dim)),
        "request": ("i32", (5,)),
        "prompt": ("i32", (kv.context,)),
    }
    state: dict[str, tuple[Dtype, tuple[int, ...]]] = {
        "state": ("i32", (4,)),
        "output": ("i32", (max_tokens,)),
        "k_cache": ("bf16", cache),
        "v_cache": ("bf16", cache),
        "logits": ("f32", (model.vocab,)),
    }
    found = [
        Buffer(name=n, space="global", dtype=d, shape=s, role="constant", align=128) for n, (d, s) in constants.items()
    ]
    return found + [Buffer(name=n, space="global", dtype=d, shape=s, role="state") for n, (d, s) in state.items()]


def shared_buffers(model: ModelSpec, kv: KvLayout, math: int, groups: int) -> tuple[list[Buffer], int]:
    """One worker's shared memory and its size. math: warps that multiply; groups: most row groups of a worker."""
    heads = model.heads // model.kv_heads
    wanted: list[tuple[str, Dtype, tuple[int, ...]]] = [
        ("x", "bf16", (max(model.hidden, model.q_dim, model.ffn),)),
        ("part", "f32", (groups + math, ROWS_PER_GROUP)),
        ("att", "f32", (math, heads, model.head_dim + 4)),
        ("q", "f32", (heads, model.head_dim)),
        ("residual", "f32", (groups * ROWS_PER_GROUP,)),
        ("ssq", "f32", (math,)),
        ("mix", "f32", (math, share_heads(model.heads, model.head_dim, math), kv.splits, 2)),
        ("ring", "bf16", (math, SLOTS, ROWS_PER_GROUP * CHUNK_K)),
        ("full", "u32", (math, SLOTS, 2)),
    ]
    buffers, end = [], 0
    for name, dtype, shape in wanted:
        buffers.append(Buffer(name=name, space="shared", dtype=dtype, shape=shape, offset=end, align=128))
        end = -(-(end + buffers[-1].bytes) // 128) * 128
    return buffers, end


def weight_stream(target: Target, role: str) -> Stream:
    """One private ring per warp of the role: bulk copies where the GPU has them."""
    bulk = target.has("bulk_copy")
    return Stream(
        name="weights", source="weights", ring="ring", full="full" if bulk else None, role=role, slots=SLOTS,
        chunk_k=CHUNK_K, engine="bulk" if bulk else "cp_async", refill_fence=bulk,
    )  # fmt: skip


def step(op: AnyOp, *signals: Signal) -> Step:
    return Step(op=op, signals=signals)


def barrier(role: str, number: int, warps: int) -> Step:
    return Step(op=BarrierOp(role=role, id=number, agents=warps))


def wait(role: str, counter: str, index: tuple[Expr, ...], per_token: int) -> Step:
    """Every counter of these schedules gains the same number per token, so the threshold is that many tokens' worth."""
    threshold: Expr = {"t": per_token, "1": per_token}
    return Step(op=WaitOp(role=role), waits=(Wait(counter=counter, index=index, at_least=threshold),))
