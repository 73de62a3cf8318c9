"""Is the schedule well-formed: names, arities, scopes, partitions.

What is refused here cannot be given a meaning at all (exit 2); what means something wrong is the validator's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import get_args

from amk.models.matrices import K_SPLIT, bias_buffer
from amk.models.model_spec import ModelSpec
from amk.report.diagnostic import Diagnostic, Where, because
from amk.report.schema import closest, json_pointer
from amk.schedule_ir.expr import AGENT, CONST, WORKER, Expr, symbols
from amk.schedule_ir.ops.base import BufferField, Op, multiplied
from amk.schedule_ir.schedule import Loop, Node, Schedule, Signal, Step, Wait, steps_of
from amk.weights.codes import Staged

Path = tuple[str | int, ...]

RESERVED = frozenset({CONST, WORKER, AGENT, "t", "l", "n"})
MAX_FINDINGS = 20
MAX_ENTRY = 2**24
"""Of a table: 8 terms of that times the largest coefficient of an expression stay far inside 64 bits."""
MAX_INSTANCES = 2**22
"""Counter instances of all families; each check keeps a number for every one of them."""
WIDE = ("f32", "bf16")
"""What hidden states and attention outputs may cross between workers as."""
STAGED = get_args(Staged)

SHARED: dict[str, tuple[str | None, str | None, str | None]] = {
    "state": ("global", "i32", "state"),
    "table": ("global", "bf16", "embedding"),
    "norm": ("global", "f32", "norm"),
    "bias": ("global", "f32", None),
    "rope": ("global", "f32", "rope"),
    "q_norm": ("global", "f32", "q_norm"),
    "k_norm": ("global", "f32", "k_norm"),
    "request": ("global", "i32", "request"),
    "prompt": ("global", "i32", "prompt"),
    "output": ("global", "i32", "output"),
    "k_cache": ("global", "cache", "k_cache"),
    "v_cache": ("global", "cache", "v_cache"),
    "logits": ("global", "f32", "logits"),
    "x": ("shared", "staged", None),
    "also": ("shared", "staged", None),
    "scales": ("shared", "f32", None),
    "sums": ("shared", "f32", None),
    "row_scales": ("global", "f32", None),
    "ssq": ("shared", "f32", None),
    "residual": ("shared", "f32", None),
    "part": (None, "f32", None),
    "q": ("shared", "f32", None),
    "partial": ("shared", "f32", None),
    "out": ("global", "f32", None),
    "qkv": ("global", "f32", None),
    "split_partial": ("global", None, None),
    "split_scale": ("global", "f32", None),
    "h": ("global", None, None),
    "act": ("global", "bf16", None),
    "best_value": ("global", "f32", None),
    "best_index": ("global", "i32", None),
    "sampling": ("global", "i32", "sampling"),
    "draw_value": ("global", "f32", None),
    "draw_index": ("global", "i32", None),
    "counted": ("global", "i32", None),
    "pick": ("shared", "i32", None),
    "tally": ("shared", "i32", None),
    "gathered": ("shared", "i32", None),
    "mix": ("shared", "f32", None),
    "attn": ("global", None, None),
}
"""Fields that several ops have -> space, dtype, and the buffer it must be; `bias` must be that of the op's matrix."""

OPTIONAL = frozenset({"norm_shift", "q_norm", "k_norm", "sampling"})
"""Buffers of parts that a model or a plan may lack."""

TEXT = frozenset({"embedding", "request", "prompt", "output"})
"""Buffers of tokens, which a slice of layers lacks."""
IN_LAYERS = frozenset({"position", "k_cache", "v_cache", "rope"})
"""Buffers that a slice lacks that has no layers."""
BETWEEN = frozenset({"position", "hidden_in", "hidden_out"})
"""Buffers of slices, which a whole model lacks."""


def lacking(model: ModelSpec, headless: bool) -> frozenset[str]:
    """Buffers by name that a schedule of the model has no use for."""
    if model.slice is None:
        return BETWEEN | (frozenset({"logits"}) if headless else frozenset())
    end = "hidden_out" if model.has_head else "logits"
    return TEXT | {end} | (frozenset() if model.layers else IN_LAYERS)


def check_references(schedule: Schedule) -> list[Diagnostic]:
    """Everything that keeps the schedule from having a meaning; empty if well-formed."""
    found: list[Diagnostic] = []
    for check in (_unique, _tables, _roles, _buffers, _counters, _streams, _partition, _programs):
        for diagnostic in check(schedule):
            found.append(diagnostic)
            if len(found) >= MAX_FINDINGS:
                return found
    return found


def _at(code: str, message: str, path: Path, help: str | None = None) -> Diagnostic:
    return Diagnostic(code, message, where=Where(path=json_pointer(path)), help=help)


def _missing(kind: str, name: str, names: Iterable[str], path: Path) -> Diagnostic:
    return _at("AMK009", f"there is no {kind} '{name}'", path, closest(name, names))


def _unique(schedule: Schedule) -> Iterator[Diagnostic]:
    for field in ("roles", "buffers", "counters", "streams", "programs", "pools"):
        seen: set[str] = set()
        for i, entry in enumerate(getattr(schedule, field)):
            if entry.name in seen:
                yield _at("AMK007", f"the name '{entry.name}' is used twice in {field}", (field, i, "name"))
            seen.add(entry.name)


def _tables(schedule: Schedule) -> Iterator[Diagnostic]:
    workers = schedule.launch.workers
    needed = {f"{m}.{end}" for m in ("qkv", "hidden", "gate_up", "lm_head") for end in ("first", "count")}
    ops = (step.op for program in schedule.programs for step in steps_of(program.body))
    if any(getattr(op, "k_splits", 1) > 1 for op in ops):
        needed |= {f"{K_SPLIT}.{end}" for end in ("first", "count", "index")}
    for name in sorted((needed | {"attn.head", "attn.split"}) - set(schedule.tables)):
        yield _missing("table", name, schedule.tables, ("tables",))
    for name, column in schedule.tables.items():
        if name in RESERVED:
            yield _at("AMK007", f"a table cannot be called '{name}', expressions use that symbol", ("tables", name))
        if len(column) != workers:
            message = f"table '{name}' has {len(column)} entries, the launch has {workers} workers"
            yield _at("AMK005", message, ("tables", name))
        if column and max(max(column), -min(column)) > MAX_ENTRY:
            yield _at("AMK005", f"table '{name}' holds an entry beyond {MAX_ENTRY:,}", ("tables", name))


def _roles(schedule: Schedule) -> Iterator[Diagnostic]:
    for i, role in enumerate(schedule.roles):
        if role.first + role.count > schedule.launch.warps:
            message = f"role '{role.name}' ends at warp {role.first + role.count}, a worker has {schedule.launch.warps}"
            yield _at("AMK005", message, ("roles", i))


def _buffers(schedule: Schedule) -> Iterator[Diagnostic]:
    for i, buffer in enumerate(schedule.buffers):
        if (buffer.offset is None) == (buffer.space == "shared"):
            message = f"buffer '{buffer.name}': shared buffers have an offset, global ones have none"
            yield _at("AMK005", message, ("buffers", i))
        if buffer.bytes > 2**42:
            yield _at("AMK005", f"buffer '{buffer.name}' has {buffer.bytes:,} bytes", ("buffers", i, "shape"))
    known = {b.name for b in schedule.buffers}
    by_name = BETWEEN | {name for _, _, name in SHARED.values() if name}
    needed = sorted(by_name - known - OPTIONAL - lacking(schedule.model, schedule.headless))
    for name in needed:
        yield _missing("buffer", name, known, ("buffers",))


def _counters(schedule: Schedule) -> Iterator[Diagnostic]:
    total = 0
    for i, counter in enumerate(schedule.counters):
        total += counter.count
        if total > MAX_INSTANCES:
            message = f"up to '{counter.name}' counters have {total:,} instances, at most {MAX_INSTANCES:,} are allowed"
            yield _at("AMK005", message, ("counters", i, "shape"))
            return


def _streams(schedule: Schedule) -> Iterator[Diagnostic]:
    buffers = {b.name: b for b in schedule.buffers}
    for i, stream in enumerate(schedule.streams):
        for field in ("source", "ring", "full"):
            name = getattr(stream, field)
            if name is not None and name not in buffers:
                yield _missing("buffer", name, buffers, ("streams", i, field))
        if stream.role not in {r.name for r in schedule.roles}:
            yield _missing("role", stream.role, (r.name for r in schedule.roles), ("streams", i, "role"))
        if (stream.full is None) == (stream.engine == "bulk"):
            message = f"stream '{stream.name}': bulk copies need mbarriers in 'full', cp_async has none"
            yield _at("AMK005", message, ("streams", i, "full"))


def _partition(schedule: Schedule) -> Iterator[Diagnostic]:
    at = 0
    for i, program in enumerate(schedule.programs):
        if program.first != at:
            message = f"program '{program.name}' starts at worker {program.first}, expected {at}"
            facts = (
                because("programs divide the workers between them, in their order: every worker runs exactly one"),
            )
            yield Diagnostic("AMK005", message, where=Where(path=json_pointer(("programs", i, "first"))), facts=facts)
        at = program.first + program.count
    if at != schedule.launch.workers:
        message = f"the programs end at worker {at}, the launch has {schedule.launch.workers}"
        yield _at("AMK005", message, ("programs",))


class _Names:
    """What steps may name."""

    def __init__(self, schedule: Schedule) -> None:
        self.roles, self.streams = {r.name for r in schedule.roles}, {s.name for s in schedule.streams}
        self.buffers, self.counters = {b.name: b for b in schedule.buffers}, {c.name: c for c in schedule.counters}
        self.pools, self.tables = {p.name: p.units for p in schedule.pools}, schedule.tables
        self.cache = (schedule.kv.dtype,)


def _programs(schedule: Schedule) -> Iterator[Diagnostic]:
    names = _Names(schedule)
    for i, program in enumerate(schedule.programs):
        path: Path = ("programs", i, "body")
        if sum(isinstance(node, Loop) for node in program.body) != 1:
            yield _at("AMK005", f"program '{program.name}' needs exactly one loop at its top: the token loop", path)
        yield from _nodes(names, program.body, path, ())


def _nodes(names: _Names, body: tuple[Node, ...], path: Path, scope: tuple[str, ...]) -> Iterator[Diagnostic]:
    for i, node in enumerate(body):
        here = (*path, i)
        if isinstance(node, Step):
            yield from _step(names, node, here, scope)
            continue
        expected = "t" if not scope else "l"
        if node.var != expected or len(scope) > 1:
            yield _at("AMK005", "loops are one token loop 't' with layer loops 'l' directly inside", (*here, "var"))
        elif (node.count is None) != (node.var == "t"):
            yield _at("AMK005", "the token loop has count null, a layer loop has a number", (*here, "count"))
        else:
            yield from _nodes(names, node.body, (*here, "body"), (*scope, node.var))


def _step(names: _Names, step: Step, path: Path, scope: tuple[str, ...]) -> Iterator[Diagnostic]:
    yield from _op(names, step.op, (*path, "op"), scope)
    yield from _outside(names, step, path)
    entries: list[tuple[Path, Wait | Signal]] = [((*path, "waits", i), w) for i, w in enumerate(step.waits)]
    entries += [((*path, "signals", i), s) for i, s in enumerate(step.signals)]
    for here, entry in entries:
        counter = names.counters.get(entry.counter)
        if counter is None:
            yield _missing("counter", entry.counter, names.counters, (*here, "counter"))
            continue
        if len(entry.index) != len(counter.shape):
            message = f"counter '{counter.name}' has {len(counter.shape)} dimensions, got {len(entry.index)} indices"
            yield _at("AMK005", message, (*here, "index"))
        for expr in entry.index:
            yield from _scoped(names, expr, (*here, "index"), scope, {"t"})
        if isinstance(entry, Wait):
            yield from _scoped(names, entry.at_least, (*here, "at_least"), scope, set())
        else:
            yield from _scoped(names, entry.add, (*here, "add"), scope, {"t"})


def _outside(names: _Names, step: Step, path: Path) -> Iterator[Diagnostic]:
    """Names in the fields for what the analysis does not cover."""
    words = [((*path, "when"), step.when), *(((*path, "waits", i, "data"), w.data) for i, w in enumerate(step.waits))]
    for here, name in words:
        if name is not None and name not in names.buffers:
            yield _missing("buffer", name, names.buffers, here)
    for field, units in (("takes", step.takes), ("gives", step.gives)):
        for name, count in units.items():
            if name not in names.pools:
                yield _missing("pool", name, names.pools, (*path, field, name))
            elif not 0 < count <= names.pools[name]:
                has = names.pools[name]
                yield _at("AMK005", f"{field} {count} of the {has} units of '{name}'", (*path, field, name))


@cache
def buffer_fields(op: type[Op]) -> dict[str, BufferField]:
    """Its fields that name buffers, in the order of the class."""
    known = {name: BufferField(*field) for name, field in SHARED.items()} | dict(op.own_fields)
    return {name: known[name] for name in op.model_fields if name in known}


@cache
def _fields(op: type[Op]) -> tuple[str, ...]:
    """Those that name something."""
    named = {"role", "stream", "layer", "index", *buffer_fields(op)}
    return tuple(field for field in op.model_fields if field in named)


def _op(names: _Names, op: Op, path: Path, scope: tuple[str, ...]) -> Iterator[Diagnostic]:
    buffers = buffer_fields(type(op))
    for field in _fields(type(op)):
        value = getattr(op, field)
        if field == "role" and value not in names.roles:
            yield _missing("role", value, names.roles, (*path, field))
        elif field == "stream" and value not in names.streams:
            yield _missing("stream", value, names.streams, (*path, field))
        elif field in ("layer", "index"):
            yield from _scoped(names, value, (*path, field), scope, {"t", WORKER, AGENT, *names.tables})
        elif field in buffers and value is not None:
            space, dtype, name, _ = buffers[field]
            if field == "bias" and (matrix := multiplied(op)) is not None:
                name = bias_buffer(matrix)
            allowed = {None: WIDE, "staged": STAGED, "cache": names.cache}.get(dtype, (dtype,))
            buffer = names.buffers.get(value)
            if buffer is None:
                yield _missing("buffer", value, names.buffers, (*path, field))
            elif space not in (None, buffer.space) or buffer.dtype not in allowed:
                needs = f"{space or 'global or shared'} {' or '.join(allowed)}"
                message = f"'{value}' is a {buffer.space} {buffer.dtype} buffer, {field} needs {needs}"
                yield _at("AMK005", message, (*path, field))
            elif name is not None and value != name:
                message = f"{field} must be the buffer '{name}', which the host fills or reads by that name"
                yield _at("AMK009", message, (*path, field))


def _scoped(names: _Names, expr: Expr, path: Path, scope: tuple[str, ...], banned: set[str]) -> Iterator[Diagnostic]:
    if isinstance(expr, int):
        return
    own = {WORKER, AGENT, *scope} - banned
    for name in sorted(symbols(expr) - own):
        if name in banned or name not in names.tables:
            message = f"'{name}' means nothing here"
            known = ", ".join(sorted(own - set(names.tables)))
            yield _at("AMK009", message, path, f"known symbols: {known} and tables")
