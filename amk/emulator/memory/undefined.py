"""Which bytes of a lane's register are undefined.

`poison` has a bit for each lane that has such a byte; it is all that most instructions look at. Where it is set,
`defined` has a bit for each byte that is. Moves, packing, selections, logic, shifts, permutations and integer
conversions keep bytes apart; any other instruction makes of an undefined byte an undefined result. Compilers need that:
they pack two halves of which they read one, and leave the other what it was.
"""

from __future__ import annotations

from amk.emulator.arithmetic.bits import M32, compiled, separate
from amk.emulator.memory.cells import at, byte_at, byte_to, to
from amk.emulator.memory.state import DEFINED, ROWS, poison_of, registers_of
from amk.emulator.ptx import isa
from amk.emulator.ptx.isa import SIGNED

AND, OR, XOR, NOT, SELP, LOP3 = isa.AND, isa.OR, isa.XOR, isa.NOT, isa.SELP, isa.LOP3
MOV, SHL, SHR, PRMT, CVT_II = isa.MOV, isa.SHL, isa.SHR, isa.PRMT, isa.CVT_II
ALL = 255


@compiled
def part_of(grid: int, warp: int, row: int, lane: int) -> int:
    """The number of the byte of `defined` that is a lane's register's."""
    return 32 * (at(grid, ROWS) * warp + row) + lane


@compiled
def undefined_of(grid: int, warp: int, row: int, lane: int) -> int:
    """A bit for each undefined byte; bytes above the register's width may count."""
    if not at(poison_of(grid, warp), row) >> lane & 1:
        return 0
    return ALL & ~byte_at(at(grid, DEFINED), part_of(grid, warp, row, lane))


@separate
def keep(grid: int, warp: int, row: int, lane: int, undefined: int) -> None:
    """From here on these bytes of a lane's register are undefined, and no others."""
    poison = poison_of(grid, warp)
    if undefined & ALL:
        to(poison, row, at(poison, row) | 1 << lane)
        byte_to(at(grid, DEFINED), part_of(grid, warp, row, lane), ALL & ~undefined)
    else:
        to(poison, row, at(poison, row) & ~(1 << lane))


@separate
def nothing_defined(grid: int, warp: int, row: int, mask: int) -> None:
    for lane in range(32):
        if mask >> lane & 1:
            byte_to(at(grid, DEFINED), part_of(grid, warp, row, lane), 0)


@compiled
def mark(grid: int, warp: int, row: int, mask: int, bad: int) -> None:
    """Lanes of `mask` have written a register; in those of `bad` no byte is defined."""
    poison = poison_of(grid, warp)
    to(poison, row, at(poison, row) & ~mask | bad & mask)
    if bad & mask:
        nothing_defined(grid, warp, row, bad & mask)


@separate
def undefined_result(operation: int, mode: int, a: int, b: int, c: int, e: int, va: int, vb: int, vc: int) -> int:
    """The undefined bytes of a result; a, b, c, e: those of the operands, of which va, vb, vc are the values."""
    bits = mode & 255
    inside = (1 << (bits + 7 >> 3)) - 1
    if operation == SELP:
        return ALL if c else (a if vc & 1 else b) & inside
    if operation in (MOV, NOT):
        return a & inside
    if operation == XOR:
        return (a | b) & inside
    if operation in (AND, OR):
        return undecided(a, b, va, vb, operation == AND, min(bits, 8)) & inside
    if operation == LOP3:
        return ALL if e else (a | b | c) & 15
    if operation == PRMT:
        return ALL if c else permuted_bytes(a & 15 | (b & 15) << 4, vc)
    if operation in (SHL, SHR):
        return ALL if b else shifted_bytes(operation == SHL, mode & SIGNED != 0, bits, a & inside, vb & M32)
    if operation == CVT_II:
        return converted_bytes(mode, a)
    return ALL


@compiled
def undecided(a: int, b: int, va: int, vb: int, both: bool, bits: int) -> int:
    """Of `and` (both) and `or`: undefined bytes whose other side does not decide alone."""
    ones, found = (1 << bits) - 1, 0
    alone = 0 if both else ones
    for byte in range(8):
        if (a | b) >> byte & 1:
            by_a = not a >> byte & 1 and va >> 8 * byte & ones == alone
            by_b = not b >> byte & 1 and vb >> 8 * byte & ones == alone
            if not by_a and not by_b:
                found |= 1 << byte
    return found


@compiled
def permuted_bytes(undefined: int, selector: int) -> int:
    found = 0
    for place in range(4):
        found |= (undefined >> (selector >> 4 * place & 7) & 1) << place
    return found


@compiled
def shifted_bytes(left: bool, signed: bool, bits: int, a: int, by: int) -> int:
    """What comes in is zeros, or copies of the sign; a shift that is no number of bytes mixes neighbours."""
    size, whole, crossed = bits >> 3, min(by, bits) >> 3, 1 if min(by, bits) & 7 else 0
    inside = (1 << size) - 1
    if left:
        return (a << whole | a << whole + crossed) & inside
    found = a >> whole | a >> whole + crossed
    if signed and a >> size - 1 & 1:
        found |= inside & ~((1 << max(size - whole - crossed, 0)) - 1)
    return found


@compiled
def converted_bytes(mode: int, a: int) -> int:
    """Integer to integer: low bytes, extended by zeros or by the sign; saturation looks at all."""
    into, of = (mode & 255) >> 3, (mode >> 10 & 255) >> 3
    found = a & (1 << of) - 1
    if mode & 1 << 20:
        return ALL if found else 0
    if mode >> 10 & SIGNED and found >> of - 1 & 1:
        found |= ALL & ~((1 << of) - 1)
    found &= (1 << into) - 1
    if mode & SIGNED and found >> into - 1 & 1:
        found |= ALL & ~((1 << into) - 1)
    return found


@separate
def carried(grid: int, warp: int, word: int, mask: int) -> None:
    """Mark the result of a lane-wise instruction of which an operand is not defined; its result is not yet written."""
    registers, row = registers_of(grid, warp), at(word, 3)
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        a = undefined_of(grid, warp, at(word, 4), lane)
        b = undefined_of(grid, warp, at(word, 5), lane)
        c = undefined_of(grid, warp, at(word, 6), lane)
        e = undefined_of(grid, warp, at(word, 7), lane)
        found = 0
        if a | b | c | e:
            va, vb = at(registers, 32 * at(word, 4) + lane), at(registers, 32 * at(word, 5) + lane)
            vc = at(registers, 32 * at(word, 6) + lane)
            found = undefined_result(at(word, 0), at(word, 2), a, b, c, e, va, vb, vc)
        keep(grid, warp, row, lane, found)
