"""What a proof needs besides order and values: rings, positions, the launch, registers.

Each `check_*` raises `Rejected`; the numbers are those of the list in `certificate`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from amk.checker.footprints import EVERYWHERE, WRITE
from amk.checker.parts import ARRAY, HI, LO, STEP, TIMES, VALUE, spread
from amk.checker.programs import TOKENS, Program, require
from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.ops.attention import agent_positions, of_turn, owns_position
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.refill import RefillOp
from amk.schedule_ir.ops.staging import Staging
from amk.schedule_ir.schedule import MAX_LIVE, Schedule, registers_read
from amk.targets.target import MAX_THREADS_PER_BLOCK, RESERVED_SMEM_PER_BLOCK, STATIC_SMEM_PER_BLOCK

I64 = npt.NDArray[np.int64]
WARP: Final = 32
WHO, ITEM, DOES = 0, 1, 6
"""Columns of a row of `footprints`: the worker, the item, read or write."""
REGISTER_UNIT: Final = 256
SHARED_UNIT: Final = 128
TWO_BARRIERS_A_BLOCK: Final = frozenset({(8, 0), (9, 0), (10, 0), (10, 3)})
RING_LEMMA: Final = frozenset(
    {
        "87693d558d21cd7a03dce7fd5c6573a2c37329740e5ca6136a6b580672b93d77",
        "973ccb64035eaa068c325deac10afedea8af958a35346f33f9294b4e3c1d4c5d",
        "e69966c27d20fea31bb5f580a0e83957a4751625662a616b00c97bcca3dddfff",
        "ebf2c479e4d5b05889524bd4ec52244874e383f70608a629a4fb3aed6faed99e",
        "f6318113bb57a6cd534c029e2fe60f25416c7fd797b086948e2e5579f9e1ef29",
    }
)
"""sha256 of the five scripts of the ring lemma, which does not depend on the schedule."""


def check_fields(schedule: Schedule, programs: list[Program]) -> None:
    """(3) An op orders what a warp does to one array by way of one field; of two fields only where it says so."""
    written = {b.name for b in schedule.buffers if b.role != "constant"}
    for op in {id(item.step.op): item.step.op for p in programs for item in p.items}.values():
        named: dict[str, set[str]] = {}
        for field, value in op:
            if isinstance(value, str) and value in written and field not in ("op", "role", "stream"):
                named.setdefault(value, set()).add(field)
        several = [fields for fields in named.values() if len(fields) > 1]
        require(all(fields <= op.in_place for fields in several), f"race: two fields of {op.op} name one array")


def check_scales(schedule: Schedule, programs: list[Program], rows: I64) -> None:
    """(4) What is staged with scales is one value only if it is staged alike: so many blocks share a scale, from the
    beginning of an agent's share on. Who reads numbers and scales does not say of which."""
    number, names = {b.name: n for n, b in enumerate(schedule.buffers)}, set[str]()
    staged: set[tuple[int, int, int]] = set()
    for program in programs:
        ops = [item.step.op for item in program.items]
        names |= {op.scales for op in ops if isinstance(op, Staging) and op.scales is not None}
        ways = [
            (op.scale_run, len(warps)) if isinstance(op, Staging) else (0, 0)
            for op, warps in zip(ops, program.roles, strict=True)
        ]
        here = (rows[:, WHO] >= program.workers.start) & (rows[:, WHO] < program.workers.stop)
        writes = rows[here & (rows[:, DOES] == WRITE) & np.isin(rows[:, ARRAY], [number[name] for name in names])]
        for value, item in np.unique(writes[:, [VALUE, ITEM]], axis=0).tolist():
            staged.add((value, *ways[item]))
    require(len({value for value, *_ in staged}) == len(staged), "value: staged with scales of other runs")


def check_rings(schedule: Schedule, rows: I64) -> None:
    """(5) rows: all accesses of workers' memories; nothing of a ring or its mbarriers is among their bytes."""
    buffers = {b.name: b for b in schedule.buffers}
    roles = {r.name: r.count for r in schedule.roles}
    taken: list[tuple[int, int]] = []
    for stream in schedule.streams:
        bulk, slots = stream.engine == "bulk", roles[stream.role] * stream.slots
        require(buffers[stream.source].role == "constant", "ring: its source is written")
        require(stream.descriptor == "none", "ring: copied by a tensor map that changes")
        require(not bulk or (stream.refill_fence and stream.full is not None), "ring: refilled without a fence")
        for name, unit, align in ((stream.ring, stream.chunk_bytes, 16), (stream.full, 8, 8)):
            if name is not None:
                lo, size = buffers[name].offset or 0, buffers[name].bytes
                require(buffers[name].space == "shared" and size >= slots * unit, f"ring: '{name}' is too small")
                require(lo % align == 0 and unit % align == 0, "ring: misaligned")
                taken.append((lo, lo + size))
                others = [b for b in schedule.buffers if b.space == "shared" and b.name != name]
                ranges = [(b.name, b.offset or 0, (b.offset or 0) + b.bytes) for b in others]
                for other, start, end in ranges:
                    require(start >= lo + size or lo >= end, f"ring: '{name}' and '{other}' overlap")
    private = rows[np.array([b.space == "shared" for b in schedule.buffers])[rows[:, ARRAY]]]
    end = private[:, HI] + (private[:, TIMES] - 1) * private[:, STEP]
    for n, (lo, hi) in enumerate(taken):
        require(all(lo >= end or start >= hi for start, end in taken[:n]), "ring: two in the same bytes")
        require(((end <= lo) | (private[:, LO] >= hi)).all(), "ring: an op touches its bytes")


def check_refills(schedule: Schedule, programs: list[Program]) -> None:
    """(5) An agent never waits for a copy that it has not issued. It issues copies in the order of its drains, and owes
    at most what it owed before a product, or what that defers if that is more, less what `refill` issues. While a slot
    is not owed, the next chunk is there or on its way."""
    warps = {r.name: (r.first, r.count) for r in schedule.roles}
    for stream in schedule.streams:
        able = stream.engine == "bulk" and stream.run_ahead
        for program in programs:
            owed = 0
            for op in (item.step.op for item in program.items):
                if isinstance(op, RefillOp) and op.stream == stream.name:
                    require(warps[op.role] == warps[stream.role], "ring: refilled by others than its owners")
                    owed = max(0, owed - op.most)
                elif isinstance(op, GemvOp) and op.stream == stream.name:
                    require(owed < stream.slots, "ring: drained while all of its slots may be owed")
                    possible = not op.deferred or (able and op.deferred <= stream.slots)
                    require(possible, "ring: more refills deferred than it can do without")
                    owed = max(owed, op.deferred)


def check_positions(schedule: Schedule, programs: list[Program]) -> None:
    """(7) for every position of the context, by the arithmetic that the ops use."""
    kv, geometry = schedule.kv, schedule.geometry()
    served = [p for p in zip(schedule.tables["attn.head"], schedule.tables["attn.split"], strict=True) if p[0] != -1]
    used = min(kv.splits, -(-kv.context // kv.block))
    heads = schedule.turn_heads  # and in turn n those n * heads behind them
    wanted = {(head, split) for head in range(heads) for split in range(used)}
    require(len(set(served)) == len(served) and wanted <= set(served), "positions: a split without one owner")
    inside = all(0 <= h < heads and 0 <= s < kv.splits for h, s in served)
    require(inside, "positions: no such head or split")
    require(kv.turns == 1 or (schedule.batch > 1 and not schedule.live), "positions: turns are of sequences at one")
    require(not schedule.live or schedule.batch <= MAX_LIVE, "positions: more than a lane each")
    roles = {len(p.roles[j]) for p in programs for j, i in enumerate(p.items) if i.step.op.op == "attend"}
    for agents in {of_turn(role, geometry) for role in roles}:
        reader = np.zeros(kv.context, np.int64)
        for split, agent in ((split, agent) for split in range(kv.splits) for agent in range(agents)):
            for lo, hi in agent_positions(kv.context - 1, split, agent, agents, geometry):
                reader[lo:hi] += 1
                require(owns_position(lo, split, geometry) and owns_position(hi - 1, split, geometry), "positions")
        require((reader == 1).all(), "positions: a row is read twice or never")


def check_sequences(schedule: Schedule, rows: I64) -> None:
    """(7) A position is one sequence's business: bytes that are written at some positions of a sequence only, are
    touched by workers of that sequence only. Then any positions of the sequences are a product of cases of each."""
    if not schedule.live:
        return
    sequence = np.array(schedule.sequences)
    for number in range(len(schedule.buffers)):
        mine = rows[rows[:, 3] == number]
        moving = mine[(mine[:, 9] != EVERYWHERE) & (mine[:, 6] == WRITE)]
        bounds = np.unique(mine[:, 4:6])
        least, most = np.full(len(bounds), schedule.batch), np.full(len(bounds), -1)
        row, atom = spread(*np.searchsorted(bounds, mine[:, 4:6]).T)
        np.minimum.at(least, atom, sequence[mine[row, 0]])
        np.maximum.at(most, atom, sequence[mine[row, 0]])
        _, atom = spread(*np.searchsorted(bounds, moving[:, 4:6]).T)
        require((least[atom] == most[atom]).all(), "positions: what moves with one sequence is another's too")


def check_launch(schedule: Schedule, programs: list[Program]) -> None:
    """(8) Every worker is resident, with the registers and shared memory that the schedule allows the kernel; there is
    device memory for all buffers, and the copy engine. The file's limits count up to what is known of the GPU."""
    launch, target = schedule.launch, schedule.target.as_known()
    threads, ctas = launch.warps * WARP, launch.ctas_per_sm
    require(launch.cooperative, "launch: not cooperative")
    registers = -(-launch.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    barriers = 1 + max(
        (op.id for op in (i.step.op for p in programs for i in p.items) if isinstance(op, BarrierOp)), default=0
    )
    fits = launch.workers <= target.sms * ctas and threads <= MAX_THREADS_PER_BLOCK
    shared = launch.shared_bytes + STATIC_SMEM_PER_BLOCK
    fits &= ctas * -(-(shared + RESERVED_SMEM_PER_BLOCK) // SHARED_UNIT) * SHARED_UNIT <= target.smem_per_sm
    fits &= ctas * threads <= target.max_threads_per_sm
    # a warp has its registers in one of the four parts of an SM: the fullest part holds this many
    fits &= -(-ctas * launch.warps // 4) * registers <= target.regs_per_sm // 4
    plenty = 2 if target.capability in TWO_BARRIERS_A_BLOCK else 1
    fits &= ctas * barriers <= plenty * target.max_blocks_per_sm
    require(fits and ctas <= target.max_blocks_per_sm, "launch: not resident")
    require(shared <= target.smem_per_block, "launch: too much shared memory")
    require(sum(b.bytes for b in schedule.buffers if b.space == "global") <= target.hbm_bytes, "launch: device memory")
    engines = {"bulk_copy" if stream.engine == "bulk" else "cp_async" for stream in schedule.streams}
    require(engines <= set(target.features), "launch: no such copy engine")
    for buffer in (b for b in schedule.buffers if b.space == "shared"):
        require((buffer.offset or 0) % buffer.align == 0, "shared memory: misaligned")
        require((buffer.offset or 0) + buffer.bytes <= launch.shared_bytes, "shared memory: out of bounds")


def check_registers(schedule: Schedule, programs: list[Program]) -> None:
    """(10) Along each warp: registers are loaded once, before the tokens, and used only while they are this token's;
    before the loop the first one's, behind it and by `finish` those behind the last one."""
    tagged = {b.name for b in schedule.buffers if b.tagged}
    for program, warp in ((p, warp) for p in programs for warp in range(p.warps)):
        moved = -1  # not loaded; then the token whose registers these are
        begun = next((j for j, item in enumerate(program.items) if item.token >= 0), 0)
        mine = (j for j, role in enumerate(program.roles) if warp in role)
        for j, item in ((j, program.items[j]) for j in mine):
            if item.step.op.op == "begin":
                require(item.token < 0 and moved == -1, "registers: loaded again")
                moved = 0
            elif registers_read(item.step, tagged):
                left = j >= begun or item.step.op.op == "finish"
                meant = item.token if item.token >= 0 else TOKENS if left else 0
                require(moved == meant, "registers: not loaded, or of another token")
            moved += item.step.op.op in ("select", "select_draw", "give_hidden", "give_logits", "advance")
