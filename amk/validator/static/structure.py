"""Static facts that the other checks build on: shares, shapes, counter indices, barriers.

Properties, each with its code:
    AMK101/102  the row groups of every matrix, and the (kv head, split) pairs of attention, have exactly one owner;
                in a batch every sequence has kv heads of its own
    AMK103      counter indices lie in the counter's shape, host-filled buffers have the shape that the ops index
    AMK404      a barrier is joined by exactly the warps of its role, and an id belongs to one role
    AMK405      chunks tile every matrix, and are made of whole tiles and groups of their format, one kind in all
                iterations of a step; a product's vector is staged in the layout that the format multiplies, with the
                scales and sums of its blocks; scales stand apart from chunks only where a row has one, and the product
                reads those of its matrix, which nothing writes
    AMK106      numbers that repeat a fact of the schedule (agents of a sum, candidates) agree with it

Index and share expressions are affine, so their extremes over the layers lie at the first and the last layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise

from amk.models.matrices import K_SPLIT, MATRICES, MatrixName, matrix, scale_buffer, scale_shape, share_table, vectors
from amk.report.diagnostic import Diagnostic
from amk.report.schema import finding
from amk.schedule_ir.expr import Env
from amk.schedule_ir.layout import k_splits
from amk.schedule_ir.memory import Stream
from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.ops.attention import TREE_WORDS
from amk.schedule_ir.ops.base import LEFT, Op, multiplied, rows_held
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.select import request_words
from amk.schedule_ir.ops.stage import StageOp
from amk.schedule_ir.ops.staging import Staging
from amk.schedule_ir.sampling import PARAMETERS
from amk.schedule_ir.schedule import MAX_LIVE, Schedule, mode_of
from amk.validator.program.trace import Path, all_sites
from amk.validator.static.outside import reach
from amk.weights.weight_format import Chunk


def check_structure(schedule: Schedule) -> list[Diagnostic]:
    """All findings; an empty list lets the other checks rely on the properties above."""
    checks = (
        _row_shares, _attention_shares, _shapes, _header, _sequences, _parts, _splits, _chunks, _changes, _staged,
        _barriers, _indices, _repeated_numbers,
    )  # fmt: skip
    return [diagnostic for check in checks for diagnostic in check(schedule)]


def _row_shares(schedule: Schedule) -> Iterator[Diagnostic]:
    """Each matrix: the shares [first, first + count) of the workers partition [0, groups); where columns are divided,
    those of the workers with the same share of them do."""
    everybody = range(schedule.launch.workers)
    for name in MATRICES:
        yield from _partition(schedule, share_table(name), everybody, name, name)
    for name, splits in k_splits(schedule).items():
        index = schedule.tables[f"{K_SPLIT}.index"]
        for worker in everybody:
            if not 0 <= index[worker] < splits:
                message = f"worker {worker} has share {index[worker]} of {splits} of the columns of {name}"
                yield finding("AMK103", message, ("tables", f"{K_SPLIT}.index", worker))
        for number in range(splits):
            workers = [worker for worker in everybody if index[worker] == number]
            yield from _partition(schedule, K_SPLIT, workers, name, f"share {number} of the columns of {name}")


def _partition(schedule: Schedule, key: str, workers: Iterable[int], name: MatrixName, of: str) -> Iterator[Diagnostic]:
    groups = matrix(schedule.model, name).groups
    first, count = schedule.tables[f"{key}.first"], schedule.tables[f"{key}.count"]
    path = ("tables", f"{key}.first")
    least = min((count[w] for w in workers), default=0)
    if least < 0:
        yield finding("AMK101", f"a worker owns {least} row groups of {of}", ("tables", f"{key}.count"))
        return
    shares = sorted((first[w], first[w] + count[w], w) for w in workers if count[w])
    shares = [(0, 0, -1), *shares, (groups, groups, -1)]
    for (_, end, left), (start, stop, right) in pairwise(shares):
        if start > end:
            yield finding("AMK101", f"row groups {end}..{start - 1} of {of} have no owner", path)
        elif start < end:
            twice = f"row groups {start}..{(min(end, stop) if right >= 0 else end) - 1} of {of}"
            message = f"{twice} are owned by workers {left} and {right}" if right >= 0 else f"{twice} do not exist"
            yield finding("AMK102" if right >= 0 else "AMK103", message, path)


def _attention_shares(schedule: Schedule) -> Iterator[Diagnostic]:
    """Every (kv head, split) that can own a position is served by exactly one worker: those of the first turn, and with
    them the heads that are a turn or several further on."""
    heads, kv = schedule.turn_heads, schedule.kv
    served: dict[tuple[int, int], int] = {}
    for worker, pair in enumerate(zip(schedule.tables["attn.head"], schedule.tables["attn.split"], strict=True)):
        if pair[0] == -1:
            continue
        if not (0 <= pair[0] < heads and 0 <= pair[1] < kv.splits):
            of = f"{heads} heads{' of a turn' if kv.turns > 1 else ''}, {kv.splits} splits"
            message = f"worker {worker} serves kv head {pair[0]}, split {pair[1]} of {of}"
            yield finding("AMK103", message, ("tables", "attn.head", worker))
        elif pair in served:
            message = f"workers {served[pair]} and {worker} both serve kv head {pair[0]}, split {pair[1]}"
            yield finding("AMK102", message, ("tables", "attn.head", worker), "both would append the same cache rows")
        else:
            served[pair] = worker
    used = min(kv.splits, -(-kv.context // kv.block))
    missing = [(h, s) for h in range(heads) for s in range(used) if (h, s) not in served]
    if missing:
        message = f"kv head {missing[0][0]}, split {missing[0][1]} is served by no worker"
        yield finding("AMK101", message, ("tables", "attn.head"), f"{len(missing)} such pairs own cache positions")


def _shapes(schedule: Schedule) -> Iterator[Diagnostic]:
    """Buffers that the ops index by layer, position or token have the extent that those can reach."""
    model, kv = schedule.model, schedule.kv
    cache = (model.layers, schedule.caches, kv.context, model.head_dim)
    each, texts = ((n,) * (n > 1) for n in (schedule.vectors, schedule.batch))
    wanted: dict[str, tuple[int, ...]] = {
        "embedding": (model.vocab, model.hidden),
        "rope": (kv.context, model.head_dim),
        "request": (request_words(schedule.batch),),
        "sampling": (*texts, len(PARAMETERS)),
        "prompt": (*texts, kv.context),
        "tree": (schedule.rows, TREE_WORDS),
        "state": (len(schedule.state_words),),
        "output": (schedule.launch.max_tokens, *each),
        "k_cache": cache,
        "v_cache": cache,
        "logits": (*each, model.vocab),
        "position": (1,),
        "hidden_in": (*each, model.hidden),
        "hidden_out": (*each, model.hidden),
        **vectors(model),
        **{scale_buffer(name): scale_shape(model, name) for name in MATRICES},
    }
    for i, buffer in enumerate(schedule.buffers):
        shape = wanted.get(buffer.name)
        if shape is not None and buffer.shape != shape:
            message = f"'{buffer.name}' has shape {list(buffer.shape)}, the model and plan need {list(shape)}"
            yield finding("AMK103", message, ("buffers", i, "shape"))


def _header(schedule: Schedule) -> Iterator[Diagnostic]:
    """What a step reads, as the header says it."""
    if schedule.live and schedule.batch == 1:
        yield finding("AMK106", "a single sequence is live", ("live",), "it has the one position that there is")
    if schedule.live and schedule.batch > MAX_LIVE:
        yield finding("AMK106", f"{schedule.batch} sequences are live", ("live",), f"at most {MAX_LIVE} are")
    if schedule.kv.turns > 1 and (schedule.batch == 1 or schedule.live):
        message = f"a worker serves KV heads in {schedule.kv.turns} turns"
        yield finding("AMK106", message, ("kv", "turns"), "those of several turns are of sequences at one position")
    if schedule.accepts and schedule.rows == 1:
        yield finding("AMK106", "a step of one row accepts guesses", ("accepts",), "guesses are rows behind the first")
    if schedule.tree and (schedule.rows == 1 or schedule.accepts or mode_of(schedule) != "greedy"):
        message = "a step of one row, or one that accepts or draws by itself, has a tree of rows"
        yield finding("AMK106", message, ("tree",), "which nodes count is up to the host")
    chosen = schedule.accepts or schedule.tree or mode_of(schedule) != "greedy"
    if schedule.headless and (schedule.rows == 1 or chosen or schedule.model.slice is not None):
        message = "a step of one row or of a slice, or one that accepts, draws or has a tree, is without output head"
        yield finding("AMK106", message, ("headless",), "without it rows are given, and nothing is chosen")
    if schedule.batch > 1 and schedule.rows > 1:
        message = f"a step reads {schedule.rows} rows of {schedule.batch} sequences"
        yield finding("AMK106", message, ("rows",), "several rows are those of one sequence")


def _sequences(schedule: Schedule) -> Iterator[Diagnostic]:
    """In a step of several tokens, what holds a row for each has as many rows, and every op works for all of them."""
    if schedule.vectors == 1:
        return
    together = f"{schedule.batch} sequences" if schedule.rows == 1 else f"{schedule.rows} rows of a sequence"
    shapes = {b.name: b.shape for b in schedule.buffers}
    for site in all_sites(schedule):
        op, path = site.step.op, (*site.path, "op")
        if op.op in ALONE:
            message = f"{op.op} serves one token, a step has {together}"
            yield finding("AMK106", message, path, f"in a step of several {ALONE[op.op]}")
        if getattr(op, "scales", None) is not None:
            message = f"{op.op} has x in blocks, a step has {together}"
            yield finding("AMK106", message, path, "blocks are those of one token")
        for field in type(op).model_fields:
            held = rows_held(op, field, schedule.batch, schedule.vectors)
            name = getattr(op, field) if held > 1 else None
            if name is not None and (len(shapes[name]) < 2 or shapes[name][0] != held):
                message = f"'{name}' has shape {list(shapes[name])}, {field} needs a row for each of {held}"
                yield finding("AMK103", message, (*path, field), f"a step has {together}")


ALONE = {"combine": "splits are reduced, then staged"}
"""Ops that work for a single token only, and what stands in their place."""


def _parted(schedule: Schedule) -> Iterator[tuple[Op, str, int, Path]]:
    """The steps that may do a part of a product's columns, each with the matrix, as far as it says, and the parts."""
    for site in all_sites(schedule):
        op = site.step.op
        if "k_parts" in type(op).model_fields:
            yield op, _product(op) or "", getattr(op, "k_parts"), (*site.path, "op")  # noqa: B009


def _product(op: Op) -> MatrixName | None:
    """The matrix, as far as the op says; what a vector is staged in parts for shows in the values that are read."""
    return "down" if isinstance(op, StageOp) else multiplied(op)


def _divided(schedule: Schedule) -> dict[str, set[int]]:
    """Into how many parts steps say that they divide a worker's columns of each matrix."""
    counts: dict[str, set[int]] = {}
    for _, name, parts, _ in _parted(schedule):
        counts.setdefault(name, set()).add(parts)
    return counts


def _splits(schedule: Schedule) -> Iterator[Diagnostic]:
    """All steps of a product divide its columns among as many workers."""
    wanted = k_splits(schedule)
    for site in all_sites(schedule):
        op = site.step.op
        if "k_splits" in type(op).model_fields and (name := _product(op)):
            here, there = getattr(op, "k_splits"), wanted.get(name, 1)  # noqa: B009
            if here != there:
                message = f"{op.op} counts {here} shares of the columns of {name}, the products {there}"
                yield finding("AMK405", message, (*site.path, "op"), "all steps of a product divide its columns alike")


def _parts(schedule: Schedule) -> Iterator[Diagnostic]:
    """A part is one of them, and all steps of a product divide its columns alike. What a vector is staged in shows in
    the values that a product reads."""
    counts = _divided(schedule)
    for op, name, parts, path in _parted(schedule):
        part = getattr(op, "k_part", 0)
        if part >= parts:
            yield finding("AMK405", f"{op.op} is part {part} of {parts}", path)
        elif name and counts[name] != {parts}:
            message = f"{op.op} counts {parts} parts, the steps of the product {sorted(counts[name])}"
            yield finding("AMK405", message, path, "all steps of a product divide its columns alike")


def _chunks(schedule: Schedule) -> Iterator[Diagnostic]:
    """bf16 chunks tile a row exactly; others are whole tiles and whole groups, the last one padded by the packing."""
    counts, splits = _divided(schedule), k_splits(schedule)
    parts = {name: max(counts.get(name, {1})) * splits.get(name, 1) for name in MATRICES}
    for i, stream in enumerate(schedule.streams):
        for name in MATRICES:
            path: Path = ("streams", i, "chunks", name) if name in stream.chunks else ("streams", i, "chunk_k")
            yield from _tiled(schedule, name, stream.chunk(name), parts[name], path)
        for at, change in enumerate(stream.later):
            for name, chunk in change.chunks.items():
                yield from _tiled(schedule, name, chunk, parts[name], ("streams", i, "later", at, "chunks", name))


def _tiled(schedule: Schedule, name: MatrixName, chunk: Chunk, parts: int, path: Path) -> Iterator[Diagnostic]:
    k = matrix(schedule.model, name).k
    if chunk.format == "bf16" and k % chunk.columns:
        message = f"{name} has {k} columns, no multiple of the {chunk.columns} columns of a chunk"
        yield finding("AMK405", message, path)
    elif parts > 1 and k % (chunk.columns * parts):
        message = f"{name} has {k} columns, no multiple of {parts} parts of whole chunks"
        yield finding("AMK405", message, path)
    elif chunk.columns % chunk.weights.unit:
        message = f"chunks of {name} have {chunk.columns} columns, no multiple of {chunk.weights.unit}"
        yield finding("AMK405", message, path, f"{chunk.format} weights come in tiles and groups")
    elif chunk.apart and not chunk.weights.per_row:
        message = f"the scales of {name} stand apart from its chunks"
        yield finding("AMK405", message, path, f"a row of {chunk.format} weights has more than one, or none")


def _changes(schedule: Schedule) -> Iterator[Diagnostic]:
    """Chunks change in ascending layers, never those of lm_head, and never between two iterations of a step."""
    for i, stream in enumerate(schedule.streams):
        firsts = [change.first for change in stream.later]
        if any(a >= b for a, b in pairwise([0, *firsts])) or any("lm_head" in c.chunks for c in stream.later):
            message = f"chunks of '{stream.name}' change from layers {firsts} on"
            yield finding("AMK405", message, ("streams", i, "later"), "layers ascend, and lm_head belongs to none")
    streams = {s.name: s for s in schedule.streams}
    for site in all_sites(schedule):
        op, name = site.step.op, multiplied(site.step.op)
        if name is None or site.layers is None:
            continue
        stream = streams[getattr(op, "stream")]  # noqa: B009
        layers = [Env(loops={"t": 0, "l": n}, worker=0).eval_int(getattr(op, "layer", 0)) for n in (0, site.layers - 1)]
        between = [c.first for c in stream.later if min(layers) < c.first <= max(layers) and name in c.chunks]
        if between:
            message = f"{op.op} of {name} runs for layers {min(layers)} to {max(layers)}, chunks change at {between}"
            yield finding("AMK405", message, (*site.path, "op"), "a step is code for one kind of chunk")


def _staged(schedule: Schedule) -> Iterator[Diagnostic]:
    """What a product reads is what its matrix's format multiplies; who writes blocks writes their scales."""
    dtypes = {b.name: b.dtype for b in schedule.buffers}
    streams = {s.name: s for s in schedule.streams}
    for site in all_sites(schedule):
        op, path = site.step.op, (*site.path, "op")
        if isinstance(op, GemvOp):
            form = streams[op.stream].chunk(op.matrix, op.layer_at({"t": 0, "l": 0})).weights
            layout = form.staged(schedule.vectors)
            if dtypes[op.x] != layout:
                message = f"{op.matrix} multiplies {layout}, '{op.x}' holds {dtypes[op.x]}"
                yield finding("AMK405", message, (*path, "x"))
            yield from _row_scales(schedule, op, streams[op.stream], path)
            wanted = {"scales": layout != "bf16", "sums": form.sums(schedule.vectors)}
        elif isinstance(op, Staging):
            blocks = any(name is not None and dtypes[name] != "bf16" for name in (op.x, op.also))
            wanted = {"scales": blocks, "sums": blocks and op.sums is not None}
        else:
            continue
        for field, needed in wanted.items():
            if (getattr(op, field) is not None) != needed:
                message = f"{op.op} {'lacks' if needed else 'has no use for'} {field} of blocks"
                yield finding("AMK405", message, path)


def _row_scales(schedule: Schedule, op: GemvOp, stream: Stream, path: Path) -> Iterator[Diagnostic]:
    """A product whose chunks are codes only reads the scales of its matrix, which the host fills; no other does."""
    apart, name = stream.chunk(op.matrix, op.layer_at({"t": 0, "l": 0})).apart, scale_buffer(op.matrix)
    if op.row_scales != (name if apart else None):
        message = f"the product of {op.matrix} {'lacks' if apart else 'has no use for'} the scales of its rows"
        yield finding("AMK405", message, (*path, "row_scales"), f"the host fills '{name}'" if apart else "")
    elif apart and next(b for b in schedule.buffers if b.name == name).role != "constant":
        yield finding("AMK405", f"'{name}' is no constant", (*path, "row_scales"), "the host fills it before launches")


def _barriers(schedule: Schedule) -> Iterator[Diagnostic]:
    """agents = size of the role, so that a round ends when all have arrived and not before; one role per id."""
    size = {r.name: r.count for r in schedule.roles}
    users: dict[tuple[int, int], str] = {}
    for site in all_sites(schedule):
        op = site.step.op
        if not isinstance(op, BarrierOp):
            continue
        path = (*site.path, "op")
        if op.agents != size[op.role]:
            message = f"barrier {op.id} counts {op.agents} warps, role '{op.role}' has {size[op.role]}"
            hint = "the warps that arrive can never be enough" if op.agents > size[op.role] else "some leave early"
            yield finding("AMK404", message, path, hint)
        program = int(site.path[1])
        if users.setdefault((program, op.id), op.role) != op.role:
            message = f"barrier {op.id} is used by roles '{users[program, op.id]}' and '{op.role}'"
            yield finding("AMK404", message, path, "arrivals of one role would count for the other")


def _indices(schedule: Schedule) -> Iterator[Diagnostic]:
    shapes = {c.name: c.shape for c in schedule.counters}
    for site in all_sites(schedule):
        for path, use in site.uses:
            for dim, expr in zip(shapes[use.counter], use.index, strict=True):
                low, high = reach(schedule, site, expr)
                if low < 0 or high >= dim:
                    message = f"index {low}..{high} of '{use.counter}' is outside 0..{dim - 1}"
                    yield finding("AMK103", message, (*path, "index"))


@cache
def _numbers_in(kind: type[Op]) -> tuple[str, ...]:
    return tuple(name for name in LEFT if name in kind.model_fields)


def _repeated_numbers(schedule: Schedule) -> Iterator[Diagnostic]:
    size = {r.name: r.count for r in schedule.roles}
    writers: dict[str, set[int]] = {name: set() for name in LEFT}
    for site in all_sites(schedule):
        op = site.step.op
        if op.leaves is not None:
            writers[op.leaves].add(size[op.role] * (schedule.launch.workers if op.leaves == "candidates" else 1))
    for site in all_sites(schedule):
        for field in _numbers_in(type(site.step.op)):
            value, sizes = getattr(site.step.op, field), writers[field] or {0}
            if value is not None and sizes != {value}:
                message = f"{field} is {value}, the steps that write these parts have {sorted(sizes)}"
                yield finding("AMK106", message, (*site.path, "op", field))
