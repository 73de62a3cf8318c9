"""What a launch relies on beyond order and values: the needs of every op, and of the schedule as a whole.

The device code, the host and the packed weights assume it; nothing of it depends on who runs when. `unmet` decides all
of it for one schedule that is well-formed (references.py), by evaluating data: needs of ops at each of their steps
(ops/precondition.py), and the tables below. Cost: milliseconds, linear in steps and workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import lcm
from typing import Final, NamedTuple

import numpy as np

from amk.models.matrices import (
    K_SPLIT,
    MATRICES,
    MatrixName,
    matrices_of,
    matrix,
    scale_buffer,
    scale_shape,
    share_table,
    vectors,
)
from amk.schedule_ir.expr import Env
from amk.schedule_ir.layout import k_splits, stream_layout
from amk.schedule_ir.memory import Buffer, Stream
from amk.schedule_ir.ops.attention import TREE_WORDS
from amk.schedule_ir.ops.base import LEFT, Op, multiplied, rows_held
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.precondition import INDEX, Need, Site
from amk.schedule_ir.ops.select import Selection, request_words
from amk.schedule_ir.sampling import PARAMETERS, SEARCHES
from amk.schedule_ir.schedule import MAX_LIVE, Loop, Node, Schedule, Step, mode_of

Path = tuple[str | int, ...]
SHARED_ALIGNMENT: Final = 16
"""Of shared buffers: lanes read and write 16 bytes at a time."""
FAR: Final = frozenset({"embedding", "k_cache", "v_cache"})
"""Buffers whose elements the device counts in 64 bits, beside the packed weights."""

Shape = Callable[[Schedule], tuple[int, ...]]


def _cache(s: Schedule) -> tuple[int, ...]:
    return s.model.layers, s.caches, s.kv.context, s.model.head_dim


HOST: Final[dict[str, tuple[str, Shape]]] = {
    "state": ("state", lambda s: (len(s.state_words),)),
    "embedding": ("constant", lambda s: (s.model.vocab, s.model.hidden)),
    "rope": ("constant", lambda s: (s.kv.context, s.model.head_dim)),
    "request": ("constant", lambda s: (request_words(s.batch),)),
    "prompt": ("constant", lambda s: (s.batch, s.kv.context)),
    "tree": ("constant", lambda s: (s.rows, TREE_WORDS)),
    "output": ("state", lambda s: (s.launch.max_tokens, s.vectors)),
    "k_cache": ("state", _cache),
    "v_cache": ("state", _cache),
    "logits": ("state", lambda s: (s.vectors, s.model.vocab)),
    "sampling": ("constant", lambda s: (s.batch, len(PARAMETERS))),
    "position": ("constant", lambda s: (1,)),
    "hidden_in": ("constant", lambda s: (s.vectors, s.model.hidden)),
    "hidden_out": ("state", lambda s: (s.vectors, s.model.hidden)),
}
"""Buffers that the host fills or reads by name: what becomes of them between launches, and their shape, but for
dimensions of 1. The norms and biases of the model come with them."""


class Unmet(NamedTuple):
    """Something that the device code relies on and that does not hold. need: `op.name`, or the name of a check here.
    message: what should hold, as a clause."""

    path: Path
    need: str
    message: str


def unmet(schedule: Schedule) -> Iterator[Unmet]:
    """Everything that does not hold; nothing, if the device code may rely on what it does."""
    for check in (_host_buffers, _buffers, _tables, _streams, _counts, _choice, _sequences, _rows, _steps):
        yield from check(schedule)


def host_buffers(schedule: Schedule) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Role and shape of every buffer that the host may know; dimensions of 1 may be others in a schedule."""
    own = {name: ("constant", shape) for name, shape in vectors(schedule.model).items()}
    return {name: (role, shape(schedule)) for name, (role, shape) in HOST.items()} | _scales(schedule) | own


def _scales(schedule: Schedule) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {
        scale_buffer(name): ("constant", scale_shape(schedule.model, name))
        for name in matrices_of(schedule.model)
        if any(chunk.apart for stream in schedule.streams for chunk in stream.kinds(name))
    }


def _host_buffers(schedule: Schedule) -> Iterator[Unmet]:
    scales, wanted = _scales(schedule), host_buffers(schedule)
    found = {buffer.name for buffer in schedule.buffers}
    used = _used(schedule)
    for name in sorted(scales.keys() - found):
        yield Unmet(("buffers",), "host-buffer", f"there is a buffer '{name}' for scales that stand apart")
    for i, buffer in enumerate(schedule.buffers):
        if buffer.name in wanted:
            role, shape = wanted[buffer.name]
            if buffer.role != role or _plain(buffer.shape) != _plain(shape):
                message = f"'{buffer.name}' is a {role} buffer of shape {list(shape)} for the host"
                yield Unmet(("buffers", i), "host-buffer", message)
        elif buffer.role != "scratch" and buffer.name in used - {stream.source for stream in schedule.streams}:
            message = f"the host knows the {buffer.role} buffer '{buffer.name}' by its name"
            yield Unmet(("buffers", i, "role"), "host-buffer", message)


def _used(schedule: Schedule) -> set[str]:
    """Names in fields of ops and of streams."""
    named = {value for _, step, _, _ in _sites(schedule) for _, value in step.op if isinstance(value, str)}
    return named | {value for stream in schedule.streams for _, value in stream if isinstance(value, str)}


def _plain(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without dimensions of 1."""
    return tuple(size for size in shape if size != 1)


def _buffers(schedule: Schedule) -> Iterator[Unmet]:
    sources, used = {stream.source for stream in schedule.streams}, _used(schedule)
    for i, buffer in enumerate(schedule.buffers):
        if buffer.name not in used:
            continue
        if buffer.space == "shared" and (buffer.offset or 0) % lcm(buffer.align, _alignment(buffer, schedule)):
            yield Unmet(("buffers", i, "offset"), "aligned", f"'{buffer.name}' begins at a multiple of its alignment")
        if buffer.space == "global" and buffer.name not in FAR | sources and buffer.elements >= INDEX:
            yield Unmet(("buffers", i, "shape"), "index", f"elements of '{buffer.name}' are counted in 32 bits")
        if buffer.tagged != (buffer.tag is not None):
            yield Unmet(("buffers", i, "tag"), "tag", f"'{buffer.name}' has a tag if and only if it is tagged")
        if buffer.tagged and (buffer.space, buffer.role) != ("global", "scratch"):
            yield Unmet(("buffers", i, "tagged"), "tag", f"'{buffer.name}' has tags, so it is global scratch memory")


def _alignment(buffer: Buffer, schedule: Schedule) -> int:
    """mbarriers are words of 8 bytes, nothing else is read in more than 16 at a time."""
    return 8 if buffer.name in {stream.full for stream in schedule.streams} else SHARED_ALIGNMENT


def _tables(schedule: Schedule) -> Iterator[Unmet]:
    for name in dict.fromkeys(share_table(name) for name in MATRICES):
        first, count = (np.array(schedule.tables[f"{name}.{end}"]) for end in ("first", "count"))
        groups = matrix(schedule.model, "o" if name == "hidden" else name).groups  # type: ignore[arg-type]
        if ((first < 0) | (count < 0) | (first + count > groups)).any():
            message = f"a worker's row groups of {name} are among the matrix's {groups}"
            yield Unmet(("tables", f"{name}.count"), "groups", message)
    for name, splits in k_splits(schedule).items():
        first, count, index = (np.array(schedule.tables[f"{K_SPLIT}.{end}"]) for end in ("first", "count", "index"))
        if ((first < 0) | (count < 0) | (first + count > matrix(schedule.model, name).groups)).any():
            message = f"a worker's row groups of {name} are among the matrix's {matrix(schedule.model, name).groups}"
            yield Unmet(("tables", f"{K_SPLIT}.count"), "groups", message)
        if ((index < 0) | (index >= splits)).any():
            message = f"a worker's share of the columns of {name} is one of {splits}"
            yield Unmet(("tables", f"{K_SPLIT}.index"), "groups", message)
    head, split = (np.array(schedule.tables[f"attn.{end}"]) for end in ("head", "split"))
    if ((head < -1) | (head >= schedule.turn_heads) | (split < 0) | (split >= schedule.kv.splits)).any():
        heads, splits = schedule.turn_heads, schedule.kv.splits
        message = f"a worker serves one of {heads} heads (-1: none) and one of {splits} splits"
        yield Unmet(("tables", "attn.head"), "served", message)


def _streams(schedule: Schedule) -> Iterator[Unmet]:
    buffers = {buffer.name: buffer for buffer in schedule.buffers}
    if len(schedule.streams) != 1:
        yield Unmet(("streams",), "stream", "the kernel has one stream")
    for i, stream in enumerate(schedule.streams):
        at, source = ("streams", i), buffers[stream.source]
        if stream.source in HOST or stream.source in vectors(schedule.model) or stream.source.startswith("scales."):
            yield Unmet((*at, "source"), "source", f"'{stream.source}' is filled with packed weights")
        if (source.role, source.space) != ("constant", "global"):
            yield Unmet((*at, "source"), "source", f"'{stream.source}' is a constant of global memory")
        for name in MATRICES:
            if any(chunk.apart and not chunk.weights.per_row for chunk in stream.kinds(name)):
                yield Unmet((*at, "chunks"), "apart", f"scales of {name} that stand apart are one for each row")
        yield from _packed(schedule, stream, source, at)


def _packed(schedule: Schedule, stream: Stream, source: Buffer, at: Path) -> Iterator[Unmet]:
    """The packed weights are all there, in one order, and chunks are counted in 32 bits."""
    try:
        layout = stream_layout(schedule, stream)
    except ValueError as error:
        yield Unmet(at, "drains", f"all programs drain the chunks in one order: {error}")
        return
    for path, step, loops, _ in _sites(schedule):
        if isinstance(step.op, GemvOp) and "t" not in loops:
            yield Unmet((*path, "op"), "drains", "chunks come in the order of a token: products are in its loop")
    if len(set(layout.drains)) < len(layout.drains):
        yield Unmet(at, "drains", "a product drains its chunks once in a token: each has one place")
    total = int(layout.places.sum())
    if total * stream.chunk_bytes > source.bytes:
        message = f"'{source.name}' has room for {total:,} chunks of {stream.chunk_bytes} bytes"
        yield Unmet((*at, "source"), "weights", message)
    if total >= INDEX or int(layout.totals.max()) * schedule.launch.max_tokens >= INDEX:
        yield Unmet(at, "chunks", "the chunks of a launch are counted in 32 bits")


def _counts(schedule: Schedule) -> Iterator[Unmet]:
    """Fields that repeat what other steps do agree with them."""
    roles = {role.name: role.count for role in schedule.roles}
    ops = [(path, step.op) for path, step, _, _ in _sites(schedule)]
    for field in LEFT:
        each = schedule.launch.workers if field == "candidates" else 1
        left = {roles[op.role] * each for _, op in ops if op.leaves == field}
        for path, op in ops:
            if field in type(op).model_fields and (left or {0}) != {getattr(op, field)}:
                message = f"{field} is the number of agents that leave a part: {sorted(left)}"
                yield Unmet((*path, "op", field), "counts", message)
    parts: dict[MatrixName, set[int]] = {}
    for _, op in ops:
        if "k_parts" in type(op).model_fields and (name := _parted(op)) is not None:
            parts.setdefault(name, set()).add(getattr(op, "k_parts"))  # noqa: B009
    for name in (name for name, each in parts.items() if len(each) > 1):
        yield Unmet(("programs",), "counts", f"the columns of {name} are in as many parts for all ops")
    splits = k_splits(schedule)
    for path, op in ops:
        name = _parted(op)
        if "k_splits" in type(op).model_fields and name and getattr(op, "k_splits") != splits.get(name, 1):  # noqa: B009
            yield Unmet((*path, "op", "k_splits"), "counts", f"all ops divide the columns of {name} alike")


def _choice(schedule: Schedule) -> Iterator[Unmet]:
    """All warps choose tokens in one way, which is what the host is told that the schedule does (`mode_of`). Whoever
    starts a search at another round, or ends it there, leaves out a filter under the name of a search that has it."""
    mode = mode_of(schedule)
    rounds = SEARCHES.get(mode, range(0))
    for path, step, _, _ in _sites(schedule):
        op = step.op
        if isinstance(op, Selection) and (op.candidate == "best") != (mode == "greedy"):
            yield Unmet((*path, "op"), f"{op.op}.choice", f"the token is chosen as in mode {mode}")
        for kind, end in (("peak", rounds.start), ("draw", rounds.stop)):
            if op.op == kind and vars(op)["round"] != end:
                yield Unmet((*path, "op", "round"), f"{kind}.round", f"the rounds are those of mode {mode}")


def _sequences(schedule: Schedule) -> Iterator[Unmet]:
    if schedule.live and schedule.batch == 1:
        yield Unmet(("live",), "live", "a single sequence has the one position that there is")
    if schedule.live and schedule.batch > MAX_LIVE:
        yield Unmet(("live",), "live", f"at most {MAX_LIVE} sequences are live")
    if schedule.kv.turns > 1 and (schedule.batch == 1 or schedule.live):
        yield Unmet(("kv", "turns"), "turns", "KV heads of several turns are those of sequences at one position")


def _rows(schedule: Schedule) -> Iterator[Unmet]:
    """What holds a row for each token of a step, or for each sequence, is that many whole rows. Where a row begins is
    found by dividing: rows would overlap if something were left over, and if a row had no element all were the first.
    """
    if schedule.batch > 1 and schedule.rows > 1:
        yield Unmet(("rows",), "rows", "several rows of a step are those of one sequence")
    if schedule.accepts and schedule.rows == 1:
        yield Unmet(("accepts",), "accepts", "guesses are rows of a step behind its first")
    if schedule.tree and (schedule.rows == 1 or schedule.accepts or mode_of(schedule) != "greedy"):
        yield Unmet(("tree",), "tree", "a tree is of several rows, and the host chooses which of them count")
    chosen = schedule.accepts or schedule.tree or mode_of(schedule) != "greedy"
    if schedule.headless and (schedule.rows == 1 or chosen or schedule.model.slice is not None):
        yield Unmet(("headless",), "headless", "without output head rows are given, and nothing is chosen")
    buffers = {buffer.name: buffer for buffer in schedule.buffers}
    for path, step, _, _ in _sites(schedule):
        for field in type(step.op).model_fields:
            held = rows_held(step.op, field, schedule.batch, schedule.vectors)
            name = getattr(step.op, field) if held > 1 else None
            if name is not None and buffers[name].elements % held:
                yield Unmet((*path, "op", field), "whole-rows", f"'{name}' is {held} whole rows")


def _parted(op: Op) -> MatrixName | None:
    """The matrix whose columns come in parts, as far as the op says."""
    return "down" if op.op == "stage" else multiplied(op)


def _steps(schedule: Schedule) -> Iterator[Unmet]:
    geo, tables = schedule.geometry(), {name: np.array(column) for name, column in schedule.tables.items()}
    streams = {stream.name: stream for stream in schedule.streams}
    for path, step, loops, workers in _sites(schedule):
        op = step.op
        each = [Env({**loops, "l": n}, 0) for n in range(loops["l"])] if "l" in loops else [Env(loops, 0)]
        if (name := multiplied(op)) is not None:
            stream = streams[getattr(op, "stream")]  # noqa: B009
            if len({stream.chunk(name, env.eval_int(getattr(op, "layer", 0))) for env in each}) > 1:
                yield Unmet((*path, "op"), f"{op.op}.alike", "a step in a loop is code for one kind of chunk")
        for field, end in (("layer", max(schedule.model.layers, 1)), ("index", vectors(schedule.model)["norm"][0])):
            if field in type(op).model_fields and not all(0 <= env.eval_int(getattr(op, field)) < end for env in each):
                yield Unmet((*path, "op", field), f"{op.op}.{field}", f"the {field} is one of {end}")
        site = Site(op, Env(each[0].loops, np.array(workers), tables=tables), geo)
        for need in type(op).needs:
            if not np.all(need.holds.value(site)):
                yield Unmet((*path, "op"), f"{op.op}.{need.name}", need.message)


def _sites(schedule: Schedule) -> Iterator[tuple[Path, Step, dict[str, int], range]]:
    """(path, step, loop variables, workers) of each step as written; of a layer loop the variable is the count."""

    def walk(body: tuple[Node, ...], path: Path, loops: dict[str, int]) -> Iterator[tuple[Path, Step, dict[str, int]]]:
        for i, node in enumerate(body):
            if isinstance(node, Loop):
                inside = loops | ({"t": 0, "n": 0} if node.var == "t" else {"l": node.count or 1})
                yield from walk(node.body, (*path, i, "body"), inside)
            else:
                yield (*path, i), node, loops

    for n, program in enumerate(schedule.programs):
        for path, step, loops in walk(program.body, ("programs", n, "body"), {}):
            yield path, step, loops, range(program.first, program.first + program.count)


def static_needs(op: Op) -> tuple[Need, ...]:
    """Those that the emitted code can repeat: none of their terms differs between workers, one is a constant there."""
    return tuple(need for need in type(op).needs if need.holds.named and not need.holds.varies)


__all__ = ["HOST", "Unmet", "host_buffers", "static_needs", "unmet"]
