"""What a launch relies on beyond order and values, decided by the checker for itself.

`needs_unmet` has the names of all that does not hold: `op.need` for what ops declare (`op_needs`), and for what host,
packed weights and repeated fields rely on the names of the checks here. It reads a schedule that is well-formed
(`references`) and no larger than `programs.require_small` lets it be. It shares the declarations with the validator,
and the order of packed weights with the host that packs them; what holds is decided here, by plain loops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from amk.checker.op_needs import WORD_LIMIT, Facts, Place, fails
from amk.models.matrices import MATRICES, MatrixName, matrices_of, matrix, scale_buffer, scale_shape, vectors
from amk.schedule_ir.expr import Expr
from amk.schedule_ir.memory import Buffer, Stream
from amk.schedule_ir.ops.attention import TREE_WORDS
from amk.schedule_ir.ops.base import LEFT, PER_SEQUENCE, PER_VECTOR
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.select import request_words
from amk.schedule_ir.sampling import LAST, PARAMETERS, ROUNDS
from amk.schedule_ir.schedule import MAX_LIVE, Node, Program, Schedule, Step, steps_of

FETCH_BYTES: Final = 16
MBARRIER_BYTES: Final = 8
COUNTED_IN_64_BITS: Final = frozenset({"embedding", "k_cache", "v_cache"})
"""Beside the source of the packed weights."""
CONSTANTS: Final = frozenset(
    {"embedding", "rope", "request", "prompt", "position", "hidden_in", "tree", "sampling", "norm", "norm_shift"}
)
ROUNDS_OF_MODE: Final = {
    "temperature": (LAST, LAST), "top-k": (0, ROUNDS), "top-p": (ROUNDS, LAST), "top-k-top-p": (0, LAST),
}  # fmt: skip
"""Where the search of a cut begins, which is the round of `peak`, and where it is over, which is that of `draw`."""
Drain = tuple[MatrixName, int, int]
"""A product of a token: matrix, layer, and part of the columns."""


def needs_unmet(schedule: Schedule) -> Iterator[str]:
    """The name of each that does not hold, perhaps more than once; none, if all hold."""
    facts = Facts(schedule)
    yield from _header(schedule)
    yield from _host_buffers(facts)
    yield from (need for buffer in schedule.buffers for need in _buffer(facts, buffer))
    yield from _tables(schedule)
    yield from _stream(facts)
    yield from _repeated(facts)
    yield from _choice(schedule)
    yield from _rows(facts)
    for program in schedule.programs:
        yield from _steps(facts, program, program.body, inside=False, count=0)


def _header(schedule: Schedule) -> Iterator[str]:
    """What a step reads is something that the host and the kernel know."""
    several, draws = schedule.rows > 1, mode(schedule) != "greedy"
    if schedule.live and not 1 < schedule.batch <= MAX_LIVE:
        yield "live"
    if schedule.kv.turns > 1 and (schedule.batch == 1 or schedule.live):
        yield "turns"
    if several and schedule.batch > 1:
        yield "rows"
    if schedule.accepts and not several:
        yield "accepts"
    if schedule.tree and (not several or schedule.accepts or draws):
        yield "tree"
    chooses = schedule.accepts or schedule.tree or draws
    if schedule.headless and (not several or chooses or schedule.model.slice is not None):
        yield "headless"


def mode(schedule: Schedule) -> str:
    """How tokens are chosen, by the rounds at which searches begin and end: without any greedily; by the mode with all
    rounds where they are those of no mode."""
    bounds = {kind: {op.round for op in _ops(schedule) if op.op == kind} for kind in ("peak", "draw")}
    if not bounds["peak"] and not bounds["draw"]:
        return "greedy"
    exact = (m for m, (start, end) in ROUNDS_OF_MODE.items() if bounds == {"peak": {start}, "draw": {end}})
    return next(exact, "top-k-top-p")


def _ops(schedule: Schedule) -> Iterator[Any]:
    return (step.op for program in schedule.programs for step in steps_of(program.body))


def _choice(schedule: Schedule) -> Iterator[str]:
    """Every warp chooses as the host takes the schedule to do."""
    meant = mode(schedule)
    start, end = ROUNDS_OF_MODE.get(meant, (LAST, LAST))
    for op in _ops(schedule):
        if op.op == ("select_draw" if meant == "greedy" else "select"):
            yield f"{op.op}.choice"
        if (op.op == "peak" and op.round != start) or (op.op == "draw" and op.round != end):
            yield f"{op.op}.round"


def _host_buffers(facts: Facts) -> Iterator[str]:
    """What the host fills, keeps or reads has the size that it gives it, dimensions of 1 left aside. What else steps
    use is neither filled nor kept by anybody."""
    shapes = host_shapes(facts.schedule)
    constants = CONSTANTS | vectors(facts.schedule.model).keys() | set(map(scale_buffer, MATRICES))
    for buffer in facts.schedule.buffers:
        shape = shapes.get(buffer.name)
        if shape is None:
            packed = any(buffer.name == stream.source for stream in facts.schedule.streams)
            if buffer.name in facts.names and buffer.role != "scratch" and not packed:
                yield "host-buffer"
            continue
        role = "constant" if buffer.name in constants else "state"
        if buffer.role != role or [n for n in buffer.shape if n != 1] != [n for n in shape if n != 1]:
            yield "host-buffer"
    for name in _scales_apart(facts.schedule):
        if scale_buffer(name) not in facts.buffers:
            yield "host-buffer"


def host_shapes(schedule: Schedule) -> dict[str, tuple[int, ...]]:
    """Of every buffer that the host may know by name."""
    model, kv = schedule.model, schedule.kv
    cache = (model.layers, schedule.batch * model.kv_heads, kv.context, model.head_dim)
    tokens = schedule.batch * schedule.rows
    return {
        "embedding": (model.vocab, model.hidden),
        "rope": (kv.context, model.head_dim),
        "request": (request_words(schedule.batch),),
        "prompt": (schedule.batch, kv.context),
        "position": (1,),
        "hidden_in": (tokens, model.hidden),
        "hidden_out": (tokens, model.hidden),
        "tree": (schedule.rows, TREE_WORDS),
        "sampling": (schedule.batch, len(PARAMETERS)),
        "state": (len(schedule.state_words),),
        "output": (schedule.launch.max_tokens, tokens),
        "logits": (tokens, model.vocab),
        "k_cache": cache,
        "v_cache": cache,
        **vectors(model),
        **{scale_buffer(name): scale_shape(model, name) for name in _scales_apart(schedule)},
    }


def _scales_apart(schedule: Schedule) -> set[MatrixName]:
    """The matrices with chunks that have no scales in them."""
    streams = schedule.streams
    return {n for n in matrices_of(schedule.model) for s in streams for chunk in s.kinds(n) if chunk.apart}


def _buffer(facts: Facts, buffer: Buffer) -> Iterator[str]:
    """If steps use it: a place where it is read in whole fetches, indices of 32 bits (of global memory, as shared
    memory is smaller), tags where words are handed over."""
    if buffer.name not in facts.names:
        return
    barriers = {stream.full for stream in facts.schedule.streams}
    if buffer.space == "shared":
        unit = MBARRIER_BYTES if buffer.name in barriers else FETCH_BYTES
        if (buffer.offset or 0) % unit or (buffer.offset or 0) % buffer.align:
            yield "aligned"
    packed = {stream.source for stream in facts.schedule.streams}
    far = buffer.space == "shared" or buffer.name in COUNTED_IN_64_BITS | packed
    if not far and buffer.elements >= WORD_LIMIT:
        yield "index"
    if buffer.tagged != (buffer.tag is not None):
        yield "tag"
    if buffer.tagged and (buffer.space != "global" or buffer.role != "scratch"):
        yield "tag"


def _tables(schedule: Schedule) -> Iterator[str]:
    """Workers have row groups that exist, shares that exist, and serve heads and splits that exist."""
    tables = schedule.tables
    names: list[tuple[str, MatrixName]] = [(_shares(name, 1), name) for name in MATRICES]
    names += [("k_split", name) for name in MATRICES if _division(schedule, name)[1] > 1]
    for table, name in names:
        groups = matrix(schedule.model, name).groups
        for first, count in zip(tables[f"{table}.first"], tables[f"{table}.count"], strict=True):
            if not 0 <= first <= first + count <= groups:
                yield "groups"
        splits = _division(schedule, name)[1]
        if table == "k_split" and not all(0 <= index < splits for index in tables["k_split.index"]):
            yield "groups"
    for head, split in zip(tables["attn.head"], tables["attn.split"], strict=True):
        if not (-1 <= head < schedule.turn_heads and 0 <= split < schedule.kv.splits):
            yield "served"


def _stream(facts: Facts) -> Iterator[str]:
    """One stream carries the packed weights, which are all there, each chunk once, in one order."""
    schedule = facts.schedule
    if len(schedule.streams) != 1:
        yield "stream"
    for stream in schedule.streams:
        source = facts.buffers[stream.source]
        others = {*host_shapes(schedule), *map(scale_buffer, MATRICES)}
        if stream.source in others or source.space != "global" or source.role != "constant":
            yield "source"
        kinds = (chunk for name in MATRICES for chunk in stream.kinds(name))
        if any(chunk.apart and not chunk.weights.per_row for chunk in kinds):
            yield "apart"
        yield from _packed(facts, stream, source)


def _packed(facts: Facts, stream: Stream, source: Buffer) -> Iterator[str]:
    """Chunks are packed in the order of the program that has the most drains. Where there is no one order, how many
    there are is not asked."""
    schedule = facts.schedule
    sequences = [list(_drains(program.body, stream.name)) for program in schedule.programs]
    order = max(sequences, key=len)
    if not all(_follows(schedule, *each, order) for each in zip(schedule.programs, sequences, strict=True)):
        yield "drains"
        return
    outside = (node for program in schedule.programs for node in program.body if isinstance(node, Step))
    if any(step.op.op == "gemv" for step in outside) or len(set(order)) < len(order):
        yield "drains"
    packed = sum(map(sum, _chunks(facts, stream, [*order, *_unread(schedule, order)])))
    if packed * stream.chunk_bytes > source.bytes:
        yield "weights"
    most = max(max(agents) for agents in _chunks(facts, stream, order))
    if packed >= WORD_LIMIT or most * schedule.launch.max_tokens >= WORD_LIMIT:
        yield "chunks"


def _drains(body: tuple[Node, ...], stream: str, layer: int = 0, inside: bool = False) -> Iterator[Drain]:
    """The products of a token, in order; inside: the loop over tokens."""
    for node in body:
        if not isinstance(node, Step):
            for k in range(node.count or 1) if inside else (0,):
                yield from _drains(node.body, stream, k, True)
        elif isinstance(node.op, GemvOp) and node.op.stream == stream:
            yield node.op.matrix, _value(node.op.layer, layer), node.op.k_part


def _value(expr: Expr, layer: int) -> int:
    """Of an expression in the layer alone."""
    return expr if isinstance(expr, int) else expr.get("1", 0) + expr.get("l", 0) * layer


def _follows(schedule: Schedule, program: Program, sequence: list[Drain], order: list[Drain]) -> bool:
    """Whether the program drains what its workers have rows of in the order that chunks are packed in."""
    workers = range(program.first, program.first + program.count)
    counts = {name: schedule.tables[f"{_shares(name, _division(schedule, name)[1])}.count"] for name, *_ in set(order)}
    mine = {name for name, column in counts.items() if any(column[worker] for worker in workers)}
    same = [drain for drain in sequence if drain[0] in mine] == [drain for drain in order if drain[0] in mine]
    return same and set(sequence) <= set(order)


def _shares(name: MatrixName, splits: int) -> str:
    """The tables of the row groups that workers have of the matrix, its columns divided among so many workers."""
    if splits > 1:
        return "k_split"
    return "hidden" if name in ("o", "down") else name


def _division(schedule: Schedule, name: MatrixName) -> tuple[int, int]:
    """(parts, workers) that products of the matrix divide its columns among."""
    ops = [op for op in _ops(schedule) if op.op == "gemv" and op.matrix == name]
    return max((op.k_parts for op in ops), default=1), max((op.k_splits for op in ops), default=1)


def _unread(schedule: Schedule, order: list[Drain]) -> list[Drain]:
    """What is packed and no step reads: without output head lm_head, in as many parts as QKV."""
    if not schedule.headless or not any(name == "qkv" for name, *_ in order):
        return []
    return [("lm_head", 0, part) for part in range(_division(schedule, "qkv")[0])]


def _chunks(facts: Facts, stream: Stream, order: list[Drain]) -> list[list[int]]:
    """[workers][agents] chunks of these products."""
    schedule, agents = facts.schedule, len(facts.warps[stream.role])
    shares = Counter((name, _across(schedule, stream, name, layer)) for name, layer, _ in order)
    found = [[0] * agents for _ in range(schedule.launch.workers)]
    for (name, across), times in shares.items():
        column = schedule.tables[f"{_shares(name, _division(schedule, name)[1])}.count"]
        for mine, count in zip(found, column, strict=True):
            chunks = count // stream.row_groups * across
            for a in range(agents):
                mine[a] += times * (chunks * (a + 1) // agents - chunks * a // agents)
    return found


def _across(schedule: Schedule, stream: Stream, name: MatrixName, layer: int) -> int:
    """Chunks beside each other of a part of a worker's share of the columns."""
    parts, splits = _division(schedule, "qkv" if schedule.headless and name == "lm_head" else name)
    return -(-matrix(schedule.model, name).k // stream.chunk(name, layer).columns) // (parts * splits)


def _repeated(facts: Facts) -> Iterator[str]:
    """Fields that say what other steps do say what they do: by how many agents parts are left (of all workers, where
    they are candidates), and how the columns of a product are divided."""
    ops = list(_ops(facts.schedule))
    for field in LEFT:
        each = facts.schedule.launch.workers if field == "candidates" else 1
        agents = {each * len(facts.warps[op.role]) for op in ops if op.leaves == field} or {0}
        if any(field in type(op).model_fields and agents != {getattr(op, field)} for op in ops):
            yield "counts"
    for field in ("k_parts", "k_splits"):
        divisions: dict[str, set[int]] = {}
        for op in ops:
            name = "down" if op.op == "stage" else getattr(op, "matrix", op.sums_of)
            if field in type(op).model_fields and name is not None:
                divisions.setdefault(name, set()).add(getattr(op, field))
        if any(len(each) > 1 for each in divisions.values()):
            yield "counts"


def _rows(facts: Facts) -> Iterator[str]:
    """A buffer with a row for each token of a step, or for each sequence, is that many rows of equal length."""
    schedule = facts.schedule
    tokens = schedule.batch * schedule.rows
    for op in _ops(schedule):
        for field in type(op).model_fields:
            own = op.own_fields.get(field)
            each = tokens if field in PER_VECTOR or (own is not None and own.each) else 1
            each = schedule.batch if field in PER_SEQUENCE else each
            buffer = facts.buffers.get(getattr(op, field)) if each > 1 and getattr(op, field) is not None else None
            if buffer is not None and (buffer.elements < each or buffer.elements % each):
                yield "whole-rows"


def _steps(facts: Facts, program: Program, body: tuple[Node, ...], inside: bool, count: int) -> Iterator[str]:
    """What ops declare, for the workers of the program, in every layer of the loop around them (count; 0: none)."""
    for node in body:
        if isinstance(node, Step):
            yield from _step(facts, program, node.op, inside, range(max(count, 1)))
        else:
            yield from _steps(facts, program, node.body, True, node.count or 0)


def _step(facts: Facts, program: Program, op: Any, inside: bool, rounds: range) -> Iterator[str]:
    model, workers = facts.schedule.model, range(program.first, program.first + program.count)
    norms = len(model.graph.norms) * model.layers + 1
    for field, end in (("layer", max(model.layers, 1)), ("index", norms)):
        if field in type(op).model_fields:
            values = [_value(getattr(op, field), k) for k in rounds]
            if not all(0 <= value < end for value in values):
                yield f"{op.op}.{field}"
    place = Place(facts, op, workers, inside)
    if "stream" in type(op).model_fields and op.op != "refill":
        layers = (_value(getattr(op, "layer", 0), k) for k in rounds)
        first, *others = dict.fromkeys(place.stream.chunk(place.name, layer) for layer in layers)
        if others:
            yield f"{op.op}.alike"
        place = replace(place, chunk=first)
    for need in type(op).needs:
        if fails(place, need.name):
            yield f"{op.op}.{need.name}"
