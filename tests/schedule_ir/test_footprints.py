"""Footprints are what the proof trusts, so every op's `accesses` is held against its `reference`.

For each step of several small plans, each worker, agent, layer and position: the reference reads only declared bytes
(and all of them, unless the choice depends on data), writes exactly the declared bytes, and its result does not change
when everything outside the declared reads becomes NaN.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import amk.schedule_ir.ops as ops_package
from amk.lowering.headers import read_header
from amk.models.matrices import MatrixName
from amk.planner.formats import formats
from amk.schedule_ir.expr import Env
from amk.schedule_ir.ops import OPS, Geometry
from amk.schedule_ir.ops.base import Access, Op
from amk.schedule_ir.ops.begin import pos_register, token_register
from amk.schedule_ir.ops.staging import Staging, x_places
from amk.schedule_ir.sampling import Sampling
from amk.schedule_ir.schedule import Node, Schedule, Step
from tests.engine.tiny import NEOX, tiny_model, tiny_plan

Array = NDArray[Any]
POSITIONS = (0, 7, 8, 9, 47)
SELECTED = ("prompt", "best_value", "best_index", "draw_value", "draw_index")
CHOSEN_BY_DATA = {
    *((op, "embedding") for op in ("embed", "embed_hidden", "embed_rows")),
    *((op, "prompt") for op in ("begin", "advance")),  # at the position that the state says
    *((op, b) for op in ("select", "select_draw") for b in SELECTED),
}
"""(op, buffer) whose declared reads are every byte that some token could select."""


def narrow_chunks(schedule: Schedule) -> Schedule:
    """Chunks that do not divide k: the last chunk of a row is padded."""
    (stream,) = schedule.streams
    return schedule.model_copy(update={"streams": (stream.model_copy(update={"chunk_k": 64}),)})


PLANS = {
    "groups of two": lambda: tiny_plan(tiny_model()),
    "fenced": lambda: tiny_plan(tiny_model(), handoff="fenced"),
    "no grouping": lambda: tiny_plan(tiny_model(heads=2, kv_heads=2), workers=5),
    "groups of three": lambda: tiny_plan(tiny_model(heads=3, kv_heads=1, hidden=96), workers=2, warps=4),
    "groups of four": lambda: tiny_plan(tiny_model(heads=8, head_dim=16), workers=3, warps=2),
    "idle agents": lambda: tiny_plan(tiny_model(layers=1, vocab=21), workers=13, warps=8, chunk_bytes=1024),
    "bias and head norms": lambda: tiny_plan(tiny_model(qkv_bias=True, qk_norm=True)),
    "one at a time": lambda: tiny_plan(
        tiny_model(), handoff="fenced", head_handoff=False, run_ahead=False, wide_epilogue=0
    ),
    "splits reduced": lambda: tiny_plan(tiny_model(), workers=8, kv_block=8, reduce_from=2),
    "splits reduced, fenced": lambda: tiny_plan(
        tiny_model(), workers=9, kv_block=8, reduce_from=2, handoff="fenced"
    ),
    "refills held back": lambda: tiny_plan(tiny_model(), warps=2, slots=2, chunk_bytes=512, held_refills=0.5),
    "rows, all in parts": lambda: tiny_plan(
        tiny_model(ffn=256), warps=4, rows=8, kv_block=8, handoff="mixed", x_parts=2, k_parts=4
    ),
    "rows, columns of o and down divided": lambda: tiny_plan(
        tiny_model(ffn=256), workers=5, warps=4, rows=8, kv_block=8, handoff="mixed", x_parts=2, k_parts=2, k_splits=2
    ),
    "columns divided among four": lambda: tiny_plan(tiny_model(ffn=256), workers=8, batch=2, k_splits=4, warps=2),
    "drawing": lambda: tiny_plan(tiny_model(), sampling="top-k-top-p"),
    "rows that accept guesses, drawn": lambda: tiny_plan(
        tiny_model(layers=1), workers=4, warps=2, rows=3, accepts=True, sampling="top-k-top-p"
    ),
    "four nodes of a tree": lambda: tiny_plan(tiny_model(layers=1, qk_norm=True), warps=2, rows=4, tree=True),
    "three rows without output head": lambda: tiny_plan(tiny_model(layers=1), warps=2, rows=3, headless=True),
    "drawing, idle agents": lambda: tiny_plan(tiny_model(layers=1, vocab=21), workers=5, warps=4, sampling="top-p"),
    "live batch of two that draws": lambda: tiny_plan(
        tiny_model(layers=1), workers=5, warps=2, batch=2, live=True, sampling="top-k-top-p"
    ),
    "batch of three": lambda: tiny_plan(tiny_model(qkv_bias=True), workers=13, batch=3),
    "batch of two, fenced": lambda: tiny_plan(
        tiny_model(heads=3, kv_heads=1, hidden=96, layers=1), workers=6, warps=2, batch=2, handoff="fenced"
    ),
    "batch of five in three turns, a warp left over": lambda: tiny_plan(tiny_model(layers=1), workers=4, batch=5),
    "batch of five in more turns than warps, fp8 cache": lambda: tiny_plan(
        tiny_model(layers=1, qk_norm=True), workers=4, warps=2, batch=5, kv_dtype="fp8", handoff="fenced"
    ),
    "down in parts": lambda: tiny_plan(tiny_model(), k_parts=3, warps=2),
    "four rows, two splits": lambda: tiny_plan(tiny_model(), workers=8, rows=4, kv_splits=2, kv_block=4),
    "three rows, a group of three": lambda: tiny_plan(
        tiny_model(heads=3, kv_heads=1, hidden=96, qkv_bias=True), workers=5, warps=2, rows=3, kv_block=4
    ),
    "eight rows, fenced, warps left over": lambda: tiny_plan(
        tiny_model(heads=6, kv_heads=2, hidden=192, qk_norm=True), workers=4, warps=4, rows=8, handoff="fenced"
    ),
    "batch of two, down in parts": lambda: tiny_plan(tiny_model(), workers=4, batch=2, k_parts=3),
    "sums of lm_head in global memory": lambda: tiny_plan(tiny_model(), head_sums="global"),
    "batch of two, sums of lm_head in global memory": lambda: tiny_plan(
        tiny_model(), workers=4, batch=2, head_sums="global"
    ),
    "fp8 cache": lambda: tiny_plan(tiny_model(), kv_dtype="fp8"),
    "digits": lambda: tiny_plan(tiny_model(ffn=160), weights=formats("int8"), chunk_bytes=1024),
    "digits and sums, lm_head bf16": lambda: tiny_plan(tiny_model(hidden=96), weights=formats("int4-g64-zp", "bf16")),
    "halves, lm_head digits": lambda: tiny_plan(tiny_model(hidden=96), weights=formats("fp8", "int4-g64"), warps=5),
    "digits, splits reduced": lambda: tiny_plan(
        tiny_model(), workers=8, kv_block=8, reduce_from=2, weights=formats("int8-g64", "fp8")
    ),
    "LayerNorm, parallel": lambda: tiny_plan(tiny_model(**NEOX)),
    "LayerNorm, parallel, digits": lambda: tiny_plan(
        tiny_model(**NEOX, ffn=160), weights=formats("int8"), chunk_bytes=1024
    ),
    "LayerNorm, one after the other, batch of two, fenced": lambda: tiny_plan(
        tiny_model(**NEOX | {"parallel": False, "qkv_bias": False, "activation": "gelu-tanh"}),
        workers=13, batch=2, handoff="fenced",
    ),
    "shares that cut runs of eight": lambda: tiny_plan(tiny_model(hidden=96), warps=8),
    "batch of two, shares that cut runs": lambda: tiny_plan(tiny_model(hidden=96), batch=2, warps=8),
    "slice of layers": lambda: tiny_plan(tiny_model(qk_norm=True).sliced(1, 2)),
    "output head": lambda: tiny_plan(tiny_model().sliced(2, 2, head=True)),
    "last layer and output head, digits": lambda: tiny_plan(
        tiny_model(hidden=96).sliced(1, 2, head=True), weights=formats("int4-g64-zp")
    ),
    "slice of layers, digits and sums": lambda: tiny_plan(
        tiny_model(hidden=96).sliced(0, 2), weights=formats("int4-g64-zp")
    ),
    "padded chunks": lambda: narrow_chunks(tiny_plan(tiny_model(hidden=96, ffn=160), workers=3)),
}  # fmt: skip


@cache
def planned(name: str) -> Schedule:
    return PLANS[name]()


@dataclass
class Recorder:
    """Memory of one worker that notes which elements were touched."""

    arrays: dict[str, Array]
    regs: dict[str, int]
    geo: Geometry
    reads: dict[str, set[int]] = field(default_factory=dict)
    writes: dict[str, set[int]] = field(default_factory=dict)

    def read(self, buffer: str, lo: int, hi: int) -> Array:
        assert 0 <= lo <= hi <= self.arrays[buffer].size
        self.reads.setdefault(buffer, set()).update(range(lo, hi))
        return self.arrays[buffer][lo:hi]

    read_int = read

    def write(self, buffer: str, lo: int, data: Any, run: int = 1) -> None:
        values = np.asarray(data)
        assert 0 <= lo <= lo + values.size <= self.arrays[buffer].size
        self.writes.setdefault(buffer, set()).update(range(lo, lo + values.size))
        self.arrays[buffer][lo : lo + values.size] = values

    def tile(self, stream: str, name: MatrixName, layer: int, group: int, k_chunk: int) -> Array:
        """The same finite weights for the same chunk, zeros past the matrix's end."""
        width, shape = self.geo.columns(stream, name, layer), self.geo.matrix(name)
        rows, columns = np.arange(8) + 8 * group, np.arange(width) + k_chunk * width
        tile = np.sin(rows[:, None] * 31.0 + columns + 7 * layer).astype(np.float32)
        return np.where((rows < shape.rows)[:, None] & (columns < shape.k), tile, np.float32(0))


def fresh_arrays(schedule: Schedule, seed: int) -> dict[str, Array]:
    draw = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for buffer in schedule.buffers:
        if buffer.name in ("weights", "ring", "full"):
            continue
        if buffer.dtype not in ("i32", "u32"):
            arrays[buffer.name] = draw.standard_normal(buffer.elements).astype(np.float32)
        else:
            arrays[buffer.name] = draw.integers(0, schedule.model.vocab, buffer.elements)
    for squares in ("ssq", "moments"):
        if squares in arrays:
            arrays[squares] = np.abs(arrays[squares])
    if "sampling" in arrays:
        each = [Sampling(0.8 + s, 9 + s, 0.7, 5 + s).words() for s in range(schedule.batch)]
        arrays["sampling"] = np.concatenate(each).astype(np.int64)
    return arrays


def elements(accesses: list[Access], kind: str, geo: Geometry) -> dict[str, set[int]]:
    out: dict[str, set[int]] = {}
    for a in accesses:
        size = geo.buffers[a.buffer].item_bytes
        assert a.lo % size == a.hi % size == 0 and 0 <= a.lo < a.hi <= geo.buffers[a.buffer].bytes, a
        if a.kind == kind:
            out.setdefault(a.buffer, set()).update(range(a.lo // size, a.hi // size))
    return out


def blanked(arrays: dict[str, Array], keep: dict[str, set[int]]) -> dict[str, Array]:
    """A copy in which only the elements in `keep` survive."""
    out = {}
    for name, array in arrays.items():
        kept = sorted(keep.get(name, ()))
        out[name] = np.full_like(array, np.nan if array.dtype == np.float32 else -12345)
        out[name][kept] = array[kept]
    return out


def steps(body: tuple[Node, ...], loops: dict[str, int]) -> Iterator[tuple[Step, dict[str, int]]]:
    """Every step, in the first and the last layer."""
    for node in body:
        if isinstance(node, Step):
            yield node, loops
        else:
            ends = {0, node.count - 1} if node.count else {0}
            for i in sorted(ends):
                yield from steps(node.body, loops | ({node.var: i} if node.count else {}))


def starts(schedule: Schedule) -> list[int]:
    """Those of `POSITIONS` from which the context has all rows of a step."""
    return [pos for pos in POSITIONS if pos + schedule.rows <= schedule.kv.context]


def events(schedule: Schedule, pos: int) -> Iterator[tuple[Op, Env]]:
    tables = {n: np.array(t) for n, t in schedule.tables.items()}
    sizes = {r.name: r.count for r in schedule.roles}
    for step, loops in steps(schedule.programs[0].body, {"t": 5, "n": 2}):
        if pos != POSITIONS[2] and step.op.op not in ("rope_append", "attend", "merge", "combine"):
            continue  # the others do not depend on the position
        for worker in range(schedule.launch.workers):
            for agent in range(sizes[step.op.role]):
                yield step.op, Env(loops, worker, agent, pos, tables)


def run(op: Op, env: Env, geo: Geometry, arrays: dict[str, Array], token: int, is_done: int) -> Recorder:
    tokens = {token_register(s): token + s for s in range(geo.vectors)}
    places = {pos_register(s): env.pos for s in range(geo.batch if geo.live else 1)}
    memory = Recorder(arrays, tokens | places | {"epoch": 5, "done": is_done}, geo)
    op.reference(env, geo, memory)
    return memory


def same(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


def check(op: Op, env: Env, geo: Geometry, base: dict[str, Array]) -> None:
    where = f"{op.op} worker {env.worker} agent {env.agent} pos {env.pos} {dict(env.loops)}"
    accesses = op.accesses(env, geo)
    reads, writes = elements(accesses, "read", geo), elements(accesses, "write", geo)
    # What it does not even name it cannot touch: that would be a KeyError.
    named = {value for _, value in op if isinstance(value, str)} | reads.keys() | writes.keys()
    base = {name: array for name, array in base.items() if name in named}
    full = run(op, env, geo, {n: a.copy() for n, a in base.items()}, token=3, is_done=0)
    for buffer in full.reads | reads:
        seen, declared = full.reads.get(buffer, set()), reads.get(buffer, set())
        assert seen <= declared, f"{where}: undeclared reads of {buffer}: {sorted(seen - declared)[:5]}"
        turned = geo.tree and (op.op, buffer) == ("rope_append", "rope")  # as at a place that the tree says
        if (op.op, buffer) not in CHOSEN_BY_DATA and not turned:
            assert seen == declared, f"{where}: {buffer} is never read at {sorted(declared - seen)[:5]}"
    assert {b: w for b, w in full.writes.items() if w} == writes, f"{where}: writes differ from the declared ones"
    only_reads = blanked(base, reads)
    before = {n: a.copy() for n, a in only_reads.items()}
    bare = run(op, env, geo, only_reads, token=3, is_done=0)
    assert bare.regs == full.regs, where
    for buffer, array in bare.arrays.items():
        index = sorted(writes.get(buffer, ()))
        assert same(array[index], full.arrays[buffer][index]), f"{where}: {buffer} depends on undeclared bytes"
        before[buffer][index] = array[index]
        assert same(before[buffer], array), f"{where}: {buffer} changed outside the declared writes"


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", PLANS)
def test_reference_touches_exactly_the_declared_bytes(name: str) -> None:
    schedule = planned(name)
    geo, base = schedule.geometry(), fresh_arrays(schedule, 1)
    for pos in starts(schedule):
        for op, env in events(schedule, pos):
            check(op, env, geo, base)


def test_elements_of_a_staged_vector_stand_where_the_device_puts_them() -> None:
    """x_place() of context.cuh, read from its text."""
    (expression,) = re.findall(r"int x_place\(int i\) \{ return (.*?); \}", read_header("amk/context.cuh"))
    for lo, hi in itertools.combinations(range(40), 2):
        places = sorted(eval(expression, {"i": i}) for i in range(lo, hi))
        assert places == [place for a, b in x_places(lo, hi) for place in range(a, b)], (lo, hi)


class Registers(dict[str, int]):
    """Registers that note which of them were read."""

    def __init__(self, values: dict[str, int]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> int:
        self.read.add(name)
        return super().__getitem__(name)


@pytest.mark.parametrize("name", ["groups of two", "fenced", "drawing"])
def test_ops_declare_the_registers_that_they_read(name: str) -> None:
    schedule = planned(name)
    geo, base = schedule.geometry(), fresh_arrays(schedule, 1)
    read: dict[str, set[str]] = {}
    for op, env in events(schedule, POSITIONS[2]):
        registers = Registers({"token": 3, "pos": env.pos, "epoch": 5, "done": 0})
        op.reference(env, geo, Recorder({n: a.copy() for n, a in base.items()}, registers, geo))
        read.setdefault(op.op, set()).update(registers.read)
        if op.accesses(env, geo) != op.accesses(replace(env, pos=0), geo):
            read[op.op].add("pos")
    for op, names in read.items():
        # the token is chosen or kept by a selection, not read
        assert names - ({"token"} if op.startswith("select") else set()) <= set(OPS[op].registers), op
    assert {op for op, names in read.items() if names} >= {"embed", "attend", "merge", "combine", "finish"}


def test_every_op_is_in_some_plan() -> None:
    used = {op.op for name in PLANS for op, _ in events(planned(name), POSITIONS[2])}
    assert used | {"signal"} == set(OPS), "an op that no plan uses is not tested"


@pytest.mark.parametrize("is_done", [0, 1])
@pytest.mark.parametrize("forced", [0, 9, 10])
def test_select_declares_what_either_choice_reads(forced: int, is_done: int) -> None:
    """Position 8 becomes 9: given when 10 tokens are forced, chosen otherwise."""
    schedule = planned("groups of two")
    geo, base = schedule.geometry(), fresh_arrays(schedule, 2)
    base["request"] = np.array([forced, base["best_index"][int(np.argmax(base["best_value"]))], -1, -1, -1])
    for op, env in events(schedule, 8):
        if op.op != "select":
            continue
        reads = elements(op.accesses(env, geo), "read", geo)
        memory = run(op, env, geo, blanked(base, reads), token=3, is_done=is_done)
        chosen = 3 if is_done else base["request"][1]
        expected = base["prompt"][9] if forced == 10 else chosen
        assert memory.regs == {"token": expected, "pos": 9, "epoch": 6, "done": int(is_done or forced != 10)}


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", PLANS)
def test_agents_of_a_step_write_disjoint_bytes(name: str) -> None:
    schedule = planned(name)
    geo = schedule.geometry()
    written: dict[tuple[Any, ...], set[int]] = {}
    for pos in starts(schedule):
        for op, env in events(schedule, pos):
            for buffer, places in elements(op.accesses(env, geo), "write", geo).items():
                owner = env.worker if geo.buffers[buffer].space == "shared" else -1
                taken = written.setdefault((id(op), tuple(env.loops.items()), pos, buffer, owner), set())
                assert not taken & places, f"{op.op} of worker {env.worker}, agent {env.agent} overlaps in {buffer}"
                taken |= places


def test_whole_outputs_are_covered() -> None:
    """Over all workers and agents, every row of every matrix is published."""
    for name in PLANS:
        schedule = planned(name)
        geo, model = schedule.geometry(), schedule.model
        rows: dict[tuple[str, int], set[int]] = {}
        for op, env in events(schedule, 8):
            for buffer, places in elements(op.accesses(env, geo), "write", geo).items():
                if geo.buffers[buffer].space == "global":
                    rows.setdefault((buffer, env.loops.get("l", -1)), set()).update(places)
        widths = {
            "qkv": geo.vectors * (model.heads + 2 * model.kv_heads) * model.head_dim,
            "h_mid": geo.vectors * model.hidden,
            "act": geo.vectors * model.ffn, "h_out": geo.vectors * model.hidden, "logits": geo.vectors * model.vocab,
            "hidden_out": model.hidden,
            "best_value": geo.buffers["best_value"].elements if "best_value" in geo.buffers else 0,
        }  # fmt: skip
        assert (model.layers > 0 and geo.model.graph.published[0]) == ("h_mid" in geo.buffers)
        for buffer, width in widths.items():
            assert all(places == set(range(width)) for (b, _), places in rows.items() if b == buffer)
            assert any(b == buffer for b, _ in rows) == (buffer in geo.buffers)  # nothing else is published


def test_a_wrong_footprint_is_noticed() -> None:
    """The test itself: shifting one access by an element is caught."""
    schedule = planned("groups of two")
    geo, base = schedule.geometry(), fresh_arrays(schedule, 1)
    op, env = next((o, e) for o, e in events(schedule, 8) if o.op == "stage_norm")

    class Shifted(type(op)):  # type: ignore[misc]
        def accesses(self, env: Env, geo: Geometry) -> list[Access]:
            return [a._replace(lo=a.lo + 4, hi=a.hi + 4) for a in super().accesses(env, geo)]

    with pytest.raises(AssertionError, match="undeclared reads of h_"):
        check(Shifted(**op.model_dump()), replace(env, agent=0), geo, base)


def test_every_file_of_an_op_is_found_and_has_its_device_body() -> None:
    """Nothing lists the ops: a file in the folder is enough."""
    package = Path(ops_package.__file__).parent
    declared = {
        line.split('"')[1]
        for file in package.glob("*.py")
        for line in file.read_text().splitlines()
        if "op: Literal" in line
    }
    bodies = {file.stem for file in (package.parent.parent / "lowering" / "cuda" / "ops").glob("*.cuh")}
    assert set(OPS) == declared == bodies | {"wait", "signal", "barrier"}


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", PLANS)
def test_what_is_staged_has_one_order_in_each_dtype(name: str) -> None:
    """The order of elements is no part of a content: a staged value is read by a product alone, as it was staged, and
    no other bytes hold it, or are read as one."""
    schedule = planned(name)
    geo = schedule.geometry()
    staged: set[tuple[str, str, str]] = set()
    others: set[str] = set()
    for op, env in events(schedule, POSITIONS[2]):
        vectors = {getattr(op, field_) for field_ in ("x", "also") if getattr(op, field_, None) is not None}
        for access in op.accesses(env, geo):
            if access.buffer in vectors and access.value is None:  # zeros behind the vector
                assert access.kind == "write" and geo.buffers[access.buffer].dtype == "bf16"
            elif access.buffer in vectors:
                staged.add((access.value[0], access.kind, "product" if op.op == "gemv" else "staging"))
                assert op.op == "gemv" or isinstance(op, Staging)
            elif access.value is not None:
                others.add(access.value[0])
    families = {family for family, _, _ in staged}
    assert families and not families & others
    assert staged == {(f, kind, who) for f in families for kind, who in (("write", "staging"), ("read", "product"))}
