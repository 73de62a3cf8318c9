"""Rules and arithmetic, from the definitions: what must hold of a schedule as written, whatever the interleaving."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from amk.judges.oracle.flatten import Spelled
from amk.judges.oracle.touched import COUNTING
from amk.models.matrices import MATRICES, MatrixName, matrix
from amk.schedule_ir.expr import coefficient
from amk.schedule_ir.memory import Buffer
from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.ops.base import Op
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.refill import RefillOp
from amk.schedule_ir.schedule import Loop, Node, Schedule, Step, registers_read
from amk.targets.target import MAX_THREADS_PER_BLOCK, RESERVED_SMEM_PER_BLOCK, STATIC_SMEM_PER_BLOCK

HALF_WORD = 2**31
WARP_REGISTERS = 256
NO_BUFFERS = frozenset({"op", "role", "stream", "matrix", "kind"})
"""Fields of ops whose text names no buffer."""


def broken_rules(spelled: Spelled) -> Iterator[str]:
    """Everything that is wrong without running anything; the first one decides."""
    schedule = spelled.schedule
    yield from _resident(schedule)
    yield from _shared(schedule)
    yield from _rings(schedule)
    yield from _chunks(schedule)
    yield from _tiles(schedule)
    yield from _meetings(schedule)
    yield from _touches(schedule)
    yield from _counters(spelled)
    yield from _growth(schedule)
    yield from _graph(spelled)
    yield from _registers(spelled)
    yield from _held_back(spelled)


def policies(schedule: Schedule) -> Iterator[str]:
    """What is policy rather than proof, or not what runs are made of here: neither SAFE nor UNSAFE may be said."""
    yield from _of_the_first_launch(schedule)
    for step in (step for program in schedule.programs for step in steps(program.body)):
        if any(wait.compare != ">=" or wait.data for wait in step.waits):
            yield "a wait does not stay true"
        if step.when or any(signal.action != "add" for signal in step.signals):
            yield "what a signal does depends on what others did"
    for stream in schedule.streams:
        if stream.engine == "bulk" and not stream.refill_fence:
            yield f"stream {stream.name} refills slots by the async proxy without a proxy fence"
        if any(b.name == stream.source and b.role != "constant" for b in schedule.buffers):
            yield f"the source of stream {stream.name}, which runs ahead, is not constant"


def _of_the_first_launch(schedule: Schedule) -> Iterator[str]:
    """What is counted or waited for once per launch is another value in the next one; one launch is all that is run."""
    inside = [s for p in schedule.programs for n in p.body if isinstance(n, Loop) for s in steps(n.body)]
    outside = [n for p in schedule.programs for n in p.body if isinstance(n, Step)]
    awaited = {wait.counter for step in (*inside, *outside) for wait in step.waits}
    if any(step.waits for step in outside):
        yield "a wait outside the token loop asks for no more in later launches"
    if any(signal.counter in awaited and signal.add for step in outside for signal in step.signals):
        yield "what is counted outside the token loop is counted once per launch"


def steps(body: tuple[Node, ...]) -> Iterator[Step]:
    for node in body:
        if isinstance(node, Loop):
            yield from steps(node.body)
        else:
            yield node


def _resident(schedule: Schedule) -> Iterator[str]:
    """All workers at once on the target: threads, registers in units of 256 a warp and a quarter for each part of the
    SM, shared memory with its reserve in units of 128 bytes, barriers up to the largest number."""
    launch, target = schedule.launch, schedule.target.as_known()
    if not launch.cooperative:
        yield "only a cooperative launch promises that all workers run"
    if launch.workers > target.sms * launch.ctas_per_sm:
        yield "more workers than the target holds"
    threads, n = launch.warps * 32, launch.ctas_per_sm
    per_warp = -(-launch.registers * 32 // WARP_REGISTERS) * WARP_REGISTERS
    if threads > MAX_THREADS_PER_BLOCK or n * threads > target.max_threads_per_sm:
        yield "too many threads"
    quarter, warps = target.regs_per_sm // 4, n * launch.warps
    if sum(quarter // per_warp for _ in range(4)) < warps or n > target.max_blocks_per_sm:
        yield "too many registers or blocks"
    block = launch.shared_bytes + STATIC_SMEM_PER_BLOCK + RESERVED_SMEM_PER_BLOCK
    if n * len(range(0, block, 128)) * 128 > target.smem_per_sm:
        yield "too much shared memory for one SM"
    ops = [step.op for program in schedule.programs for step in steps(program.body)]
    most = max((op.id for op in ops if isinstance(op, BarrierOp)), default=0)
    each = 2 if target.arch in ("sm_80", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_103", "sm_103a") else 1
    if n * (most + 1) > each * target.max_blocks_per_sm:
        yield "too many named barriers for one SM"
    for stream in schedule.streams:
        if {"bulk": "bulk_copy"}.get(stream.engine, "cp_async") not in target.features:
            yield "the target lacks the copy engine"


def _shared(schedule: Schedule) -> Iterator[str]:
    if sum(b.bytes for b in schedule.buffers if b.space == "global") > schedule.target.as_known().hbm_bytes:
        yield "the buffers exceed device memory"
    if schedule.launch.shared_bytes + STATIC_SMEM_PER_BLOCK > schedule.target.as_known().smem_per_block:
        yield "a block has less shared memory"
    for buffer in schedule.buffers:
        if buffer.space == "shared":
            if (buffer.offset or 0) + buffer.bytes > schedule.launch.shared_bytes:
                yield f"{buffer.name} ends behind the launch's shared memory"
            if (buffer.offset or 0) % buffer.align:
                yield f"{buffer.name} is misaligned"


def _span(buffer: Buffer) -> range:
    return range(buffer.offset or 0, (buffer.offset or 0) + buffer.bytes)


def _rings(schedule: Schedule) -> Iterator[str]:
    """Every slot of every warp has its bytes and its mbarrier to itself for the whole launch."""
    by_name = {b.name: b for b in schedule.buffers}
    size = {r.name: r.count for r in schedule.roles}
    for stream in schedule.streams:
        slots = size[stream.role] * stream.slots
        ring = by_name[stream.ring]
        full = by_name[stream.full] if stream.full else None
        if slots * stream.chunk_bytes > ring.bytes or (full and slots * 8 > full.bytes):
            yield "the slots need more memory than the ring has"
        if (ring.offset or 0) % 16 or stream.chunk_bytes % 16 or (full and (full.offset or 0) % 8):
            yield "a copy or its barrier is misaligned"
        taken = [b for b in (ring, full) if b]
        for own in taken:
            for other in schedule.buffers:
                if other.space == "shared" and other is not own and _meet(_span(own), _span(other)):
                    yield f"{other.name} lies in memory that copies fill at any time"
        landing = {stream.ring, stream.full} - {None}
        fields = (pair for program in schedule.programs for step in steps(program.body) for pair in step.op)
        if any(value in landing for field, value in fields if isinstance(value, str) and field not in NO_BUFFERS):
            yield "an op has its data where copies land at any time"
        if len(taken) == 2 and ring is full:
            yield "a ring is its own mbarriers"


def _chunks(schedule: Schedule) -> Iterator[str]:
    """A row of bf16 is whole chunks; of codes the packing fills the last one."""
    kinds = [(name, kind) for stream in schedule.streams for name in MATRICES for kind in stream.kinds(name)]
    for name, kind in kinds:
        if kind.format == "bf16" and matrix(schedule.model, name).k % kind.columns:
            yield "chunks do not tile a matrix"
        if kind.columns % kind.weights.unit:
            yield "a chunk ends within a tile or a group of codes"


def _tiles(schedule: Schedule) -> Iterator[str]:
    """Every row group that a worker multiplies exists; otherwise its copies read behind the packed weights."""
    shares: list[tuple[MatrixName, str, int]] = [
        (name, "hidden" if name in ("o", "down") else name, 1) for name in MATRICES
    ]
    ops = (step.op for program in schedule.programs for step in steps(program.body))
    shares += [(op.matrix, "k_split", op.k_splits) for op in ops if isinstance(op, GemvOp) and op.k_splits > 1]
    for name, share, splits in shares:
        first, count = schedule.tables[f"{share}.first"], schedule.tables[f"{share}.count"]
        groups = matrix(schedule.model, name).groups
        if any(c and not 0 <= f <= f + c <= groups for f, c in zip(first, count, strict=True)):
            yield f"a worker owns row groups of {name} that do not exist"
        if splits > 1 and any(not 0 <= index < splits for index in schedule.tables["k_split.index"]):
            yield f"a worker multiplies columns of {name} that do not exist"


def _meet(one: range, two: range) -> bool:
    return one.start < two.stop and two.start < one.stop


def _meetings(schedule: Schedule) -> Iterator[str]:
    """A barrier is joined by exactly the warps of its role, a ring used by its own only; an id belongs to one role."""
    size = {r.name: r.count for r in schedule.roles}
    warps = {r.name: range(r.first, r.first + r.count) for r in schedule.roles}
    rings = {s.name: s.role for s in schedule.streams}
    left = {parts: _leavers(schedule, counted, parts, size) for counted, parts in COUNTED}
    for program in schedule.programs:
        roles: dict[int, set[str]] = {}
        for step in steps(program.body):
            if isinstance(step.op, BarrierOp):
                roles.setdefault(step.op.id, set()).add(step.op.role)
                if step.op.agents != size[step.op.role]:
                    yield "a barrier counts other warps than join it"
            if not _adds_all(step.op, left):
                yield "a sum leaves out, or invents, parts"
            if isinstance(step.op, GemvOp):
                owner = next(s.role for s in schedule.streams if s.name == step.op.stream)
                if owner != step.op.role:
                    yield "a ring is drained by other warps than own it"
            if isinstance(step.op, RefillOp) and warps[step.op.role] != warps[rings[step.op.stream]]:
                yield "a ring is refilled by other warps than own it"
        if any(len(names) > 1 for names in roles.values()):
            yield "two roles share a barrier"


COUNTED = (("ssq_agents", "ssq"), ("moment_agents", "moments"))
"""Field that counts parts, and field of where they lie: who counts none leaves one for each of its warps."""


def _leavers(schedule: Schedule, counted: str, parts: str, size: dict[str, int]) -> set[int]:
    """How many warps the steps have that leave such parts."""
    ops = (step.op for program in schedule.programs for step in steps(program.body))
    return {size[op.role] for op in ops if getattr(op, parts, None) is not None and not hasattr(op, counted)}


def _adds_all(op: Op, left: dict[str, set[int]]) -> bool:
    """Sums of squares and moments are those of all warps that left one; whoever reads none counts none."""
    for counted, parts in COUNTED:
        there = left[parts] if getattr(op, parts, None) is not None else {0}
        if hasattr(op, counted) and {getattr(op, counted)} != there:
            return False
    return True


def _touches(schedule: Schedule) -> Iterator[str]:
    """All that is done to a counter is strong and of one size; stores, barriers and copies are the usual ones."""
    if any(stream.descriptor != "none" for stream in schedule.streams):
        yield "copies go by a tensor map that changes"
    for program in schedule.programs:
        for step in steps(program.body):
            if any(wait.touch != "strong" for wait in step.waits) or any(s.touch != "strong" for s in step.signals):
                yield "a counter is touched by an operation that races with the others"
            if step.stores != "plain":
                yield "results may not be in memory, or race with each other"
            if isinstance(step.op, BarrierOp) and step.op.kind != "sync":
                yield "who only arrives at a barrier has acquired nothing"


def _counters(spelled: Spelled) -> Iterator[str]:
    schedule = spelled.schedule
    shape = {c.name: c.shape for c in schedule.counters}
    scope = {c.name: c.scope for c in schedule.counters}
    users: dict[object, set[int]] = {}
    for segment in spelled.segments:
        for (name, index), _amount, _ in (*segment.waits, *segment.signals):
            if name not in shape:
                continue
            users.setdefault((name, index), set()).add(segment.worker)
            if any(not 0 <= i < n for i, n in zip(index, shape[name], strict=True)):
                yield f"there is no {name}{list(index)}"
        if any(amount < 0 for _, amount, _ in segment.signals):
            yield "a signal decrements"
    for (name, _), workers in users.items():  # type: ignore[misc]
        if scope[name] == "cta" and len(workers) > 1:
            yield f"{name} crosses workers with the scope of a block"
    if any(c.init >= HALF_WORD for c in schedule.counters):
        yield "a counter starts beyond what the wrapping comparison can tell apart"
    if any(amount >= HALF_WORD for segment in spelled.segments for _, amount, _ in segment.signals):
        yield "a signal adds more than the comparison can tell apart"


def _growth(schedule: Schedule) -> Iterator[str]:
    """Thresholds from token to token."""
    written = (wait.at_least for program in schedule.programs for step in steps(program.body) for wait in step.waits)
    if any(coefficient(level, "t") >= HALF_WORD for level in written):
        yield "a threshold grows by more per token than the comparison can tell apart"


def _graph(spelled: Spelled) -> Iterator[str]:
    """No worker runs an op of the model more often than the model has it; what is missing shows in the data. Ops that
    touch nothing and count nothing (waits, refills, prefetches) may run as often as they like."""
    layers = spelled.schedule.model.layers
    once = {"begin", "finish"}
    known: dict[int, _Named | None] = {}
    for span in spelled.walks:
        seen: Counter[tuple[str, str, int, int]] = Counter()
        for segment in spelled.segments[span.start : span.stop]:
            for visit in segment.visits:
                step = id(visit.step)
                if step not in known:
                    known[step] = _named(visit.step.op)
                if (named := known[step]) is not None:
                    name, which, base, each = named
                    seen[name, which, base + each * visit.loops.get("l", 0), visit.token] += 1
        for (name, which, where, token), times in seen.items():
            if times > 1 or (name in once) != (token < 0):
                yield f"{name} {which} of index {where} runs {times} times in token {token}"
            if where >= 0 and where > 2 * layers:
                yield f"{name} of index {where} does not exist"


_Named = tuple[str, str, int, int]


def _named(op: Op) -> _Named | None:
    """Name, matrix with the part of its columns or the round of a search, and the layer as base + each * l (-1 without
    one); None for an op that touches nothing."""
    if type(op).accesses is Op.accesses:
        return None
    expr = getattr(op, "layer", getattr(op, "index", None))
    base, each = (-1, 0) if expr is None else (coefficient(expr, "1"), coefficient(expr, "l"))
    which = [getattr(op, "matrix", ""), *(f"part {part}" for part in (getattr(op, "k_part", 0),) if part)]
    which += [f"round {op.round}"] if hasattr(op, "round") else []
    return op.op, " ".join(filter(None, which)), base, each


def _registers(spelled: Spelled) -> Iterator[str]:
    """Every warp counts tokens in its own registers: loaded by `begin`, moved on by `select`, right at every use."""
    tagged = {b.name for b in spelled.schedule.buffers if b.tagged}
    reads: dict[int, bool] = {}
    for span in spelled.walks:
        loaded, count, seen = False, 0, False
        for segment in spelled.segments[span.start : span.stop]:
            for visit in segment.visits:
                seen = seen or visit.token >= 0
                name, step = visit.step.op.op, id(visit.step)
                behind = seen or name == "finish"  # which says what the launch leaves
                wanted = visit.token if visit.token >= 0 else spelled.tokens * behind
                if step not in reads:
                    reads[step] = bool(registers_read(visit.step, tagged))
                if name == "begin":
                    loaded, count = True, 0
                elif reads[step] and (not loaded or count != wanted):
                    yield f"{name} uses registers that hold another token's values"
                count += name in COUNTING


def _held_back(spelled: Spelled) -> Iterator[str]:
    """Whenever a warp waits for a chunk of a product, there is a slot whose copy it issued. With a product's chunks it
    issues copies, but not with the last ones, until as many are missing as the product defers: all but one of them
    when it waits for the last chunk."""
    slots = {s.name: s.slots for s in spelled.schedule.streams}
    for span in spelled.walks:
        held: Counter[str] = Counter()
        for segment in spelled.segments[span.start : span.stop]:
            for visit in segment.visits:
                op = visit.step.op
                if isinstance(op, RefillOp):
                    held[op.stream] -= min(op.most, held[op.stream])
                elif isinstance(op, GemvOp):
                    if max(held[op.stream], op.deferred - 1) >= slots[op.stream]:
                        yield f"a product on {op.stream} waits for copies that its own warp holds back"
                    held[op.stream] = max(held[op.stream], op.deferred)
