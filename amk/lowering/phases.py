"""A token of a schedule as separate kernels: what the persistent kernel's hand-offs would cost as kernel boundaries.

The steps between two hand-offs become one kernel. A hand-off is a step that waits, or that reads tagged words which a
step before it writes: all of that is then the end of the kernel before, so waits and signals are left out, tagged words
become plain ones, and a ring holds the weights of its kernel only. What a worker keeps in shared memory across a
hand-off (its rows of the residual stream) is carried in global memory, a slice a worker.

This is a baseline (the same ops on the same rows, in another frame), not a way to run a schedule: nothing here is
proved, and the order of kernels on a stream is all that synchronises them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from amk.lowering import refusal
from amk.schedule_ir.expr import Env
from amk.schedule_ir.layout import DrainKey, StreamLayout, stream_layout
from amk.schedule_ir.memory import Buffer
from amk.schedule_ir.ops import AnyOp, BarrierOp, SignalOp, WaitOp
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.refill import RefillOp
from amk.schedule_ir.schedule import Loop, Node, Schedule, Step

Steps = tuple[Step, ...]

SYNCHRONISING = (WaitOp, SignalOp, RefillOp)
"""Steps that separate kernels do not have: they wait, signal, or refill rings that run on."""


@dataclass(frozen=True)
class Piece:
    """Steps of one layer: that of the kernel's launch plus `ahead`."""

    ahead: int
    steps: Steps


@dataclass(frozen=True)
class Phase:
    """One kernel. name: of its first op that does work."""

    name: str
    pieces: tuple[Piece, ...]

    def ops(self) -> Iterator[tuple[int, AnyOp]]:
        """(layers ahead, op) in order, barriers included."""
        yield from ((piece.ahead, step.op) for piece in self.pieces for step in piece.steps)

    def gemvs(self) -> list[tuple[int, GemvOp]]:
        return [(ahead, op) for ahead, op in self.ops() if isinstance(op, GemvOp)]


@dataclass(frozen=True)
class Phases:
    """kernels: each once. launches: (kernel, layer) in the order of one token. carried: shared buffers that live across
    kernels."""

    kernels: tuple[Phase, ...]
    launches: tuple[tuple[int, int], ...]
    carried: frozenset[str]


def phases(schedule: Schedule) -> Phases:
    """The kernels of `schedule`. AMK601 unless it is one program of a token loop around one layer loop that waits, for
    one sequence.
    """
    if schedule.vectors > 1:
        raise refusal.unsupported("AMK601", f"a step of {schedule.vectors} tokens is not cut into kernels")
    before, head, layer, tail, after = _shape(schedule)
    first, inner, last = (_cut(schedule, nodes) for nodes in (head, layer.body, tail))
    if len(inner) < 2:
        raise refusal.unsupported("AMK601", "a layer without a hand-off is not cut into kernels")
    layers = layer.count or 1
    bodies: list[list[Piece]] = [[Piece(0, part)] for part in first[:-1]]
    launches = [(i, 0) for i in range(len(bodies))]
    opening, joint, closing = len(bodies), len(bodies) + len(inner) - 1, len(bodies) + len(inner)
    bodies.append([Piece(0, first[-1]), Piece(0, inner[0])])
    bodies += [[Piece(0, part)] for part in inner[1:-1]]
    bodies.append([Piece(0, inner[-1]), Piece(1, inner[0])])
    bodies.append([Piece(0, inner[-1]), Piece(0, last[0])])
    bodies += [[Piece(0, part)] for part in last[1:]]
    for at in range(layers):
        launches.append((opening if at == 0 else joint, max(0, at - 1)))
        launches += [(opening + i, at) for i in range(1, len(inner) - 1)]
    launches += [(i, layers - 1) for i in range(closing, len(bodies))]
    bodies[-1].append(Piece(0, after))
    kernels = tuple(_phase([Piece(0, before), *pieces]) for pieces in bodies)
    if layers == 1:  # no layer follows another
        kernels, launches = _without(kernels, launches, joint)
    return Phases(kernels, tuple(launches), _carried(schedule, kernels))


def _shape(schedule: Schedule) -> tuple[Steps, Steps, Loop, Steps, Steps]:
    """Steps before the token loop, of a token before the layers, the layer loop, of a token after it, after all."""
    problem = refusal.unsupported("AMK601", "only one program of tokens and layers is cut into kernels")
    if len(schedule.programs) != 1:
        raise problem
    body = schedule.programs[0].body
    loops = [node for node in body if isinstance(node, Loop)]
    inner = [node for loop in loops for node in loop.body if isinstance(node, Loop)]
    if len(loops) != 1 or len(inner) != 1 or any(isinstance(node, Loop) for node in inner[0].body):
        raise problem
    before, after = _around(body, loops[0])
    head, tail = _around(loops[0].body, inner[0])
    return before, head, inner[0], tail, after


def _around(body: tuple[Node, ...], loop: Loop) -> tuple[Steps, Steps]:
    at = body.index(loop)
    return _steps(body[:at]), _steps(body[at + 1 :])


def _steps(nodes: Iterable[Node]) -> Steps:
    return tuple(node for node in nodes if isinstance(node, Step))


def _cut(schedule: Schedule, nodes: Iterable[Node]) -> list[Steps]:
    """The steps between hand-offs: a step that takes one begins a part."""
    tagged = [buffer.name for buffer in schedule.buffers if buffer.tagged]
    touched = _Touched(schedule)
    parts: list[list[Step]] = [[]]
    handed: set[str] = set()
    for step in _steps(nodes):
        named = {value for field, value in vars(step.op).items() if value in tagged and field != "matrix"}
        if step.waits or handed & named:
            parts.append([])
            handed = set()
        parts[-1].append(step)
        handed |= {name for name in named if touched.writes(step.op, name)}
    return [tuple(part) for part in parts]


def _phase(pieces: list[Piece]) -> Phase:
    """The pieces without synchronisation between workers, and without barriers that separate nothing."""
    kept: list[Piece] = []
    met = True
    for piece in pieces:
        steps: list[Step] = []
        for step in piece.steps:
            if isinstance(step.op, SYNCHRONISING) or (isinstance(step.op, BarrierOp) and met):
                continue
            met = isinstance(step.op, BarrierOp) or (met and step.op.op == "begin")
            steps.append(Step(op=step.op.model_copy(update={"deferred": 0}) if _defers(step.op) else step.op))
        kept.append(Piece(piece.ahead, tuple(steps)))
    while kept[-1].steps and isinstance(kept[-1].steps[-1].op, BarrierOp):
        kept[-1] = Piece(kept[-1].ahead, kept[-1].steps[:-1])
    named = [op for piece in kept for op in (s.op for s in piece.steps) if not isinstance(op, BarrierOp)]
    label = next(op for op in named if op.op != "begin")
    return Phase(label.op, tuple(piece for piece in kept if piece.steps))


def _defers(op: AnyOp) -> bool:
    return isinstance(op, GemvOp) and op.deferred > 0


def _without(
    kernels: tuple[Phase, ...], launches: list[tuple[int, int]], index: int
) -> tuple[tuple[Phase, ...], list[tuple[int, int]]]:
    left = tuple(kernel for i, kernel in enumerate(kernels) if i != index)
    return left, [(kernel - (kernel > index), layer) for kernel, layer in launches]


class _Touched:
    """What workers read and write in an op."""

    def __init__(self, schedule: Schedule) -> None:
        self.geometry, self.workers = schedule.geometry(), schedule.launch.workers
        self.tables = {name: np.array(values) for name, values in schedule.tables.items()}

    def by(self, op: AnyOp, worker: int, layer: int = 0) -> tuple[set[str], set[str]]:
        """(buffers that a worker reads, that it writes)."""
        loops = {"t": 0, "n": 0, "l": layer}
        accesses = [
            access
            for agent in range(self.geometry.role_size[op.role])
            for access in op.accesses(Env(loops=loops, worker=worker, agent=agent, tables=self.tables), self.geometry)
        ]
        read, written = ({a.buffer for a in accesses if a.kind == kind} for kind in ("read", "write"))
        return read, written

    def writes(self, op: AnyOp, buffer: str) -> bool:
        """Whether some worker writes it: of attention, only those with a head do."""
        return any(buffer in self.by(op, worker)[1] for worker in range(self.workers))


def _carried(schedule: Schedule, kernels: tuple[Phase, ...]) -> frozenset[str]:
    """Shared buffers that some kernel reads bytes of before it has written them, as the first worker does."""
    shared = {b.name for b in schedule.buffers if b.space == "shared"}
    touched = _Touched(schedule)
    found: set[str] = set()
    for kernel in kernels:
        there: set[str] = set()
        for ahead, op in kernel.ops():
            read, written = touched.by(op, 0, ahead)
            found |= (read & shared) - there
            there |= written
    return frozenset(found)


def plain_buffers(schedule: Schedule, carried: frozenset[str]) -> tuple[Buffer, ...]:
    """The global buffers of the kernels: hand-offs without tags, and a slice a worker of what is carried."""
    found = []
    for buffer in schedule.buffers:
        if buffer.space == "global":
            found.append(buffer.model_copy(update={"tagged": False, "tag": None}))
        elif buffer.name in carried:
            shape = (schedule.launch.workers, buffer.elements)
            found.append(buffer.model_copy(update={"space": "global", "shape": shape, "offset": None}))
    return tuple(found)


@dataclass(frozen=True)
class Chunks:
    """Where a kernel's weights stand in the packed buffer, for every (worker, agent), flat: chunk
    base + layer * per_layer + at is the first of `count`."""

    at: tuple[int, ...]
    count: tuple[int, ...]


def chunks_of(schedule: Schedule, phases: Phases, number: int) -> Chunks | None:
    """The weights of kernel `number`; None if it has no products.

    AMK901 if they are not one run of chunks that moves by layers.
    """
    gemvs = phases.kernels[number].gemvs()
    if not gemvs:
        return None
    layout = stream_layout(schedule, schedule.streams[0])
    step = per_layer(schedule, layout)
    offsets = set()
    for layer in (layer for kernel, layer in phases.launches if kernel == number):
        drains = [(op.matrix, _layer(op, layer + ahead), op.k_part) for ahead, op in gemvs]
        first = layout.drains.index(drains[0])
        if layout.drains[first : first + len(drains)] != tuple(drains):
            raise refusal.internal(f"kernel {phases.kernels[number].name} does not drain a run of chunks")
        before = _sum(layout, layout.drains[:first])
        offsets.add(tuple((before - layer * step).tolist()))
    if len(offsets) != 1:
        raise refusal.internal(f"the chunks of kernel {phases.kernels[number].name} do not move by layers")
    count = _sum(layout, tuple((op.matrix, 0, op.k_part) for _, op in gemvs))
    return Chunks(offsets.pop(), tuple(count.tolist()))


def per_layer(schedule: Schedule, layout: StreamLayout) -> np.ndarray:
    """Chunks of a layer, [workers * agents]."""
    return _sum(layout, tuple(drain for drain in layout.drains if drain[0] != "lm_head" and drain[1] == 0))


def _layer(op: GemvOp, layer: int) -> int:
    return Env(loops={"t": 0, "n": 0, "l": layer}, worker=0).eval_int(op.layer)


def _sum(layout: StreamLayout, drains: tuple[DrainKey, ...]) -> np.ndarray:
    total = np.zeros(layout.base.size, np.int64)
    for name, layer, _ in drains:
        total += layout.counts[name, layer].reshape(-1)
    return total
