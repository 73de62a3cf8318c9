"""The ring of a stream in the compiled kernel: mbarriers, copies, and which slot is waited for, read and refilled.

Property, with F the first mbarrier of the warp, S its first slot, b the bytes of a chunk:
    init        mbarrier s is F + 8 s, for every slot, with one arrival; F is where the schedule has it
    copy        expects b bytes on F + 8 s and copies b bytes of packed weights into S + b s, completing on F + 8 s
    due         a copy is issued where a count is 1 or more, the chunks that are left. What else decides a refill and
                changes with the passes of the loop around it does not begin to hold in a later one
    drain       the wait ends only when the copy has landed (`wait_loops`). The slot of mbarrier F + 8 s is read at
                S + b s, before the warp's barrier and not behind it. It is refilled there unless refills are owed
    cp.async    the pieces of a group, of 16 bytes a lane, are b bytes side by side, in shared memory and in the packed
                weights; the slot that is refilled is the one that was read, behind the barrier at which lanes that have
                waited for their own copies meet; groups: see `copy_groups`
Not read: that s runs through the slots in turn, the parity, and which slot's turn it is where refills are owed.
"""

from __future__ import annotations

from collections.abc import Sequence

from amk.lowering.affine import Form, added, constant, only_leaf, scaled
from amk.lowering.conditions import conditions
from amk.lowering.copy_groups import check_groups
from amk.lowering.deferred_refills import carries
from amk.lowering.readback import Instruction, Kind
from amk.lowering.skeleton import Part
from amk.lowering.symbolic import Reading
from amk.schedule_ir.memory import Stream

_MBARRIER_BYTES = 8
_PIECE = 512
"""Bytes that a warp copies with one cp.async."""


def check_ring(reading: Reading) -> None:
    """AMK609 for the first instruction of the ring that is not as above."""
    stream = reading.schedule.streams[0]
    ring = _BulkRing(reading, stream) if stream.engine == "bulk" else _CopyRing(reading, stream)
    for part, instructions in reading.by_part:
        ring.check(part, instructions)
    if stream.engine != "bulk":
        check_groups(reading, stream)


class _Ring:
    def __init__(self, reading: Reading, stream: Stream) -> None:
        self.reading, self.stream = reading, stream
        self.role = next(r for r in reading.schedule.roles if r.name == stream.role)
        self.offsets = {b.name: b.offset or 0 for b in reading.schedule.buffers if b.space == "shared"}

    def memory(self, one: Instruction, number: int) -> Form:
        """The address in an operand, with registers that were only passed on replaced by what they were made from."""
        return self.resolved(self.reading.values.address(self.reading.code(one), number))

    def operand(self, one: Instruction, number: int) -> Form:
        return self.reading.values.operand(self.reading.code(one), number)

    def resolved(self, form: Form) -> Form:
        total: Form = {}
        for leaf, factor in form.items():
            total = added(total, self._origin(leaf), factor)
        return total

    def _origin(self, leaf: str) -> Form:
        """What a variable was set to that is void in warps without a ring."""
        others = self.reading.values.origins(leaf)
        set_to = [form for form in others if "shared" in form]
        void = all(constant(form) is not None for form in others if form not in set_to)
        return set_to[0] if len(set_to) == 1 and void else {leaf: 1}

    def weights(self, part: Part, one: Instruction, number: int) -> None:
        """The operand is an address in the packed weights."""
        base, _ = self.reading.code(one).memory(number)
        roots = self.reading.roots.of_register(base)
        if {self.reading.buffer_names.get(root) for root in roots} != {self.stream.source}:
            raise self.reading.refused(part.label, one, "copies from elsewhere than the packed weights")

    def due(self, part: Part, one: Instruction, before: Instruction | None, drains: bool) -> None:
        """before: what synchronises before the copy's first instruction. drains: it refills a slot that was drained."""
        reading, places = self.reading, [self.reading.kernel.by_line[one.line]]
        if before is not None and before.kind is Kind.PROXY_FENCE_SHARED:
            places.append(reading.kernel.by_line[before.line])
        least = [form for at in places for each in conditions(reading, at) if (form := each.at_least()) is not None]
        if not any(only_leaf(added(form, {"": 1})) for form in least):
            raise reading.refused(part.label, one, "is executed without a chunk that is left")
        for form in least if drains else ():
            steps = [(factor, reading.values.recurrence(leaf)) for leaf, factor in form.items() if leaf]
            if sum(factor * found[1] for factor, found in steps if found is not None) > 0:
                raise reading.refused(part.label, one, "is executed in the last passes of a loop, not in the first")

    def reads(self, slot: Form, first: int, last: int) -> list[int]:
        """Loads of shared memory between two places of the text whose address grows by a chunk with each slot."""
        leaves = set(slot) - {""}
        found = []
        for at in range(first + 1, last):
            one = self.reading.kernel.code[at]
            if one.opcode.startswith("ld.shared"):
                form = self.resolved(self.reading.values.address(one))
                if any(form.get(leaf, 0) == slot[leaf] * self.stream.chunk_bytes for leaf in leaves):
                    found.append(at)
        return found

    def drained(self, part: Part, slot: Form, wait: Instruction, barrier: Instruction, end: int) -> None:
        """The slot is read between the wait and the barrier, and not from there to `end`."""
        place = self.reading.kernel.by_line
        if not set(slot) - {""}:
            return  # of a ring of one slot: nothing tells its loads from others
        if not self.reads(slot, place[wait.line], place[barrier.line]):
            raise self.reading.refused(part.label, barrier, "gives back a slot that was not read since the wait")
        if late := self.reads(slot, place[barrier.line], end):
            code = self.reading.kernel.code[late[0]]
            raise self.reading.refused(part.label, code, "reads a slot after it was given back")


class _BulkRing(_Ring):
    def __init__(self, reading: Reading, stream: Stream) -> None:
        super().__init__(reading, stream)
        inits = [i for _, found in reading.by_part for i in found if i.kind is Kind.MBARRIER_INIT]
        self.inits = inits
        self.first = self.memory(inits[0], 0)
        full = self.offsets[stream.full or ""]
        each = added(self.first, {"shared": 1, "": full}, -1)
        chunk = scaled(each, stream.chunk_bytes // _MBARRIER_BYTES)
        self.slots = added({"shared": 1, "": self.offsets[stream.ring]}, chunk)
        self.own = each
        self.carries = carries(reading.schedule)

    def check(self, part: Part, instructions: tuple[Instruction, ...]) -> None:
        kinds = [i.kind for i in instructions]
        if Kind.MBARRIER_INIT in kinds:
            self.start(part)
        for at, one in enumerate(instructions):
            if one.kind is Kind.MBARRIER_EXPECT:
                self.due(part, one, instructions[at - 1] if at else None, Kind.MBARRIER_WAIT in kinds[:at])
                self.copy(part, one, instructions[at + 1])
            if one.kind is Kind.MBARRIER_WAIT:
                self.drain(part, instructions[at:])

    def start(self, part: Part) -> None:
        size = self.stream.slots * _MBARRIER_BYTES
        agent = added(self.own, {"": size * self.role.first})
        leaves = [factor for leaf, factor in agent.items() if leaf != ""]
        if leaves not in ([size], []) or constant({"": agent.get("", 0)}) != 0 or (not leaves and self.role.count > 1):
            raise self.reading.refused(part.label, self.inits[0], "initialises mbarriers of another place")
        numbers = []
        for one in self.inits:
            distance = constant(added(self.memory(one, 0), self.first, -1))
            numbers.append(distance)
            if constant(self.operand(one, 1)) != 1:
                raise self.reading.refused(part.label, one, "expects another number of arrivals than one")
        if numbers != [_MBARRIER_BYTES * s for s in range(self.stream.slots)]:
            raise self.reading.refused(part.label, self.inits[-1], "does not initialise one mbarrier a slot")

    def copy(self, part: Part, expect: Instruction, copy: Instruction) -> None:
        size = self.stream.chunk_bytes
        if constant(self.operand(expect, 2)) != size:
            raise self.reading.refused(part.label, expect, f"expects another number of bytes than the chunk's {size}")
        if constant(self.operand(copy, 2)) != size:
            raise self.reading.refused(part.label, copy, f"copies another number of bytes than the chunk's {size}")
        barrier = self.memory(expect, 1)
        if self.memory(copy, 3) != barrier:
            raise self.reading.refused(part.label, copy, "completes on another mbarrier than the one that expects it")
        slot = added(barrier, self.first, -1)
        place = added(self.memory(copy, 0), self.slots, -1)
        apart = added(place, scaled(slot, size // _MBARRIER_BYTES), -1)
        if self.reading.values.counted(apart):
            raise self.reading.refused(part.label, copy, "fills another slot than that of its mbarrier")
        self.weights(part, copy, 1)

    def drain(self, part: Part, rest: Sequence[Instruction]) -> None:
        """rest: the wait, the warp's barrier, the fence, what the copy expects, and what follows."""
        wait, barrier = rest[0], rest[1]
        if not self.reading.loop(wait).holds():
            raise self.reading.refused(part.label, wait, "goes on although the copy has not landed")
        expect = next(i for i in rest if i.kind is Kind.MBARRIER_EXPECT)
        if not self.carries and self.memory(wait, 1) != self.memory(expect, 1):
            raise self.reading.refused(part.label, expect, "refills another slot than the one that was waited for")
        slot = added(self.memory(wait, 1), self.first, -1)
        if any(factor % _MBARRIER_BYTES for factor in slot.values()):
            raise self.reading.refused(part.label, wait, "waits for no mbarrier of the ring")
        number = {leaf: factor // _MBARRIER_BYTES for leaf, factor in slot.items()}
        self.drained(part, number, wait, barrier, self.reading.kernel.by_line[expect.line])


class _CopyRing(_Ring):
    def check(self, part: Part, instructions: tuple[Instruction, ...]) -> None:
        group: list[Instruction] = []
        for at, one in enumerate(instructions):
            if one.kind is Kind.COPY:
                if not group:
                    self.due(part, one, None, any(i.kind is Kind.COPY_WAIT for i in instructions[:at]))
                group.append(one)
            elif one.kind is Kind.COPY_COMMIT and group:
                self.pieces(part, group)
                group = []
            elif one.kind is Kind.COPY_WAIT:
                self.drain(part, instructions[at:])

    def pieces(self, part: Part, group: list[Instruction]) -> None:
        first = [self.memory(group[0], n) for n in (0, 1)]
        for number, one in enumerate(group):
            if len(one.operands) != 3 + one.opcode.endswith("cache_hint") or constant(self.operand(one, 2)) != 16:
                raise self.reading.refused(part.label, one, "copies another number of bytes than 16 a lane")
            for operand in (0, 1):
                distance = self.reading.values.counted(added(self.memory(one, operand), first[operand], -1))
                if constant(distance) != number * _PIECE:
                    raise self.reading.refused(part.label, one, "copies pieces that are not side by side")
            self.weights(part, one, 1)
        if len(group) != -(-self.stream.chunk_bytes // _PIECE):
            raise self.reading.refused(part.label, group[-1], "copies another number of bytes than the chunk's")

    def drain(self, part: Part, rest: Sequence[Instruction]) -> None:
        wait, barrier = rest[0], rest[2]
        copy = next(i for i in rest if i.kind is Kind.COPY)
        size, filled = self.stream.chunk_bytes, self.memory(copy, 0)
        slots = {leaf: 1 for leaf, factor in filled.items() if factor == size and leaf in self.reading.values.joined}
        place = self.reading.kernel.by_line
        end = place[copy.line]
        if self.stream.slots > 1 and len(slots) != 1:
            raise self.reading.refused(part.label, copy, "fills no slot of the ring that can be told")
        if slots and (early := self.reads(slots, place[wait.line], place[rest[1].line])):
            code = self.reading.kernel.code[early[0]]
            raise self.reading.refused(part.label, code, "reads a slot before all lanes have waited for their copies")
        self.drained(part, slots, wait, barrier, end)
