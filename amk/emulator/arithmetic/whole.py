"""Integer and logical instructions of one lane."""

from __future__ import annotations

from amk.emulator.arithmetic.bits import M32, below, compiled, separate, shifted_right, sign_extended, zero_extended
from amk.emulator.ptx import isa
from amk.emulator.ptx.isa import EQ, GE, GT, LE, LT, NE, SIGNED

# numba takes module constants of this module as constants; an attribute of another module costs a look-up in typing.
MOV, ADD, SUB, MUL_LO, MUL_HI, MUL_WIDE = isa.MOV, isa.ADD, isa.SUB, isa.MUL_LO, isa.MUL_HI, isa.MUL_WIDE
MAD_LO, MAD_HI, MAD_WIDE, DIV, REM = isa.MAD_LO, isa.MAD_HI, isa.MAD_WIDE, isa.DIV, isa.REM
MIN, MAX, ABS, NEG, AND, OR, XOR, NOT = isa.MIN, isa.MAX, isa.ABS, isa.NEG, isa.AND, isa.OR, isa.XOR, isa.NOT
SHL, SHR, SELP, BFE, BFI, POPC, CLZ, BREV = isa.SHL, isa.SHR, isa.SELP, isa.BFE, isa.BFI, isa.POPC, isa.CLZ, isa.BREV
BFIND, PRMT, LOP3, SHF_L, SHF_R, SETP, CVT_II = (
    isa.BFIND, isa.PRMT, isa.LOP3, isa.SHF_L, isa.SHF_R, isa.SETP, isa.CVT_II,
)  # fmt: skip
DP2A, DP4A, SIGNED_BYTES, HIGH_HALF = isa.DP2A, isa.DP4A, isa.SIGNED_BYTES, isa.HIGH_HALF


@compiled
def high_product(a: int, b: int, signed: bool) -> int:
    """The upper 64 of the 128 bits of a * b."""
    a_low, b_low, a_high, b_high = a & M32, b & M32, shifted_right(a, 32), shifted_right(b, 32)
    low = a_low * b_low
    middle = a_high * b_low + shifted_right(low, 32)
    other = a_low * b_high + (middle & M32)
    high = a_high * b_high + shifted_right(middle, 32) + shifted_right(other, 32)
    if signed:
        high -= (b if a < 0 else 0) + (a if b < 0 else 0)
    return high


@separate
def product(operation: int, bits: int, signed: bool, a: int, b: int) -> int:
    if operation in (MUL_HI, MAD_HI):
        return high_product(a, b, signed) if bits == 64 else (a * b) >> bits
    return a * b


@separate
def quotient(operation: int, bits: int, signed: bool, a: int, b: int) -> int:
    """Towards zero; of a division by zero all bits are ones, of its remainder it is the dividend."""
    if b == 0:
        return -1 if operation == DIV else a
    if signed and b == -1:
        found = -a
    elif signed or (a >= 0 and b > 0):
        found = a // b
        if found < 0 and found * b != a:
            found += 1
    elif b < 0:
        found = 0 if below(a, b) else 1
    else:
        found = (shifted_right(a, 1) // b) << 1
        if not below(a - found * b, b):
            found += 1
    return found if operation == DIV else a - found * b


@compiled
def population(word: int) -> int:
    count = 0
    while word != 0:
        word &= word - 1
        count += 1
    return count


@compiled
def leading_zeros(word: int, bits: int) -> int:
    count = 0
    while count < bits and (word >> (bits - 1 - count)) & 1 == 0:
        count += 1
    return count


@compiled
def compared(comparison: int, bits: int, signed: bool, a: int, b: int) -> bool:
    if comparison == EQ:
        return a == b
    if comparison == NE:
        return a != b
    less = below(a, b) if bits == 64 and not signed else a < b
    if comparison == LT:
        return less
    if comparison == GE:
        return not less
    more = below(b, a) if bits == 64 and not signed else b < a
    return more if comparison == GT else not more


@compiled
def permuted(a: int, b: int, selector: int) -> int:
    word, found = (a & M32) | b << 32, 0
    for place in range(4):
        nibble = (selector >> (4 * place)) & 15
        byte = (word >> (8 * (nibble & 7))) & 255
        if nibble & 8:
            byte = 255 if byte & 128 else 0
        found |= byte << (8 * place)
    return found


@compiled
def any_logic(a: int, b: int, c: int, table: int) -> int:
    found = 0
    for term in range(8):
        if (table >> term) & 1:
            found |= (a if term & 4 else ~a) & (b if term & 2 else ~b) & (c if term & 1 else ~c)
    return found


@compiled
def field(bits: int, signed: bool, a: int, at: int, length: int) -> int:
    """bfe: `length` bits of a from bit `at`; signed ones are extended by the field's last bit, or by a's."""
    at, length = at & 255, length & 255
    if length == 0:
        return 0
    word = sign_extended(a, bits) if signed else zero_extended(a, bits)
    if at >= bits:
        return -1 if signed and word < 0 else 0
    word = word >> at if signed else shifted_right(word, at)
    if length >= bits:
        return word
    return sign_extended(word, length) if signed else zero_extended(word, length)


@compiled
def with_field(bits: int, a: int, b: int, at: int, length: int) -> int:
    """bfi: b with the low `length` bits of a at bit `at`."""
    at, length = at & 255, length & 255
    if at >= bits or length == 0:
        return b
    mask = (-1 if length >= 64 else (1 << length) - 1) << at
    return (b & ~mask) | ((a << at) & mask)


@separate
def converted(mode: int, a: int) -> int:
    """Integer to integer: the low bits, or the nearest that fits (.sat), extended to the width of the register."""
    to, of, wide = mode & 255, (mode >> 10) & 255, (mode >> 24) & 255
    to_signed, of_signed = mode & SIGNED != 0, (mode >> 10) & SIGNED != 0
    word = sign_extended(a, of) if of_signed else zero_extended(a, of)
    if mode & 1 << 20:
        negative = of_signed and word < 0
        if not to_signed:
            most = -1 if to == 64 else (1 << to) - 1
            word = 0 if negative else (most if below(most, word) else word)
        else:
            most = (1 << (to - 1)) - 1 if to < 64 else 0x7FFFFFFFFFFFFFFF
            if not negative and below(most, word):
                word = most
            elif negative and word < -most - 1:
                word = -most - 1
    word = sign_extended(word, to) if to_signed else zero_extended(word, to)
    return zero_extended(word, max(wide, to))


@compiled
def bits_of(operation: int, bits: int, signed: bool, a: int, b: int, c: int, e: int) -> int:  # noqa: C901
    """One lane of an instruction that picks, moves or counts bits."""
    if operation == PRMT:
        return permuted(a, b, c)
    if operation == LOP3:
        return zero_extended(any_logic(a, b, c, e), 32)
    if operation in (SHF_L, SHF_R):
        by = min(c & M32, 32) if bits == 1 else c & 31
        if operation == SHF_L and by == 32:
            return zero_extended(a, 32)
        word = (a & M32) | b << 32
        return zero_extended(shifted_right(word << by, 32) if operation == SHF_L else shifted_right(word, by), 32)
    if operation == BFE:
        return zero_extended(field(bits, signed, a, b, c), bits)
    if operation == BFI:
        return zero_extended(with_field(bits, a, b, c, e), bits)
    if operation == POPC:
        return population(zero_extended(a, bits))
    if operation == CLZ:
        return leading_zeros(a, bits)
    if operation == BREV:
        found = 0
        for place in range(bits):
            found |= ((a >> place) & 1) << (bits - 1 - place)
        return zero_extended(found, bits)
    word = ~a if signed and (a >> (bits - 1)) & 1 else a
    return (bits - 1 - leading_zeros(word, bits)) & M32


@compiled
def dotted(operation: int, mode: int, a: int, b: int, c: int) -> int:
    """dp2a, dp4a: c and the products of the halves or bytes of a with bytes of b."""
    count, width = (2, 16) if operation == DP2A else (4, 8)
    first = 2 if mode & HIGH_HALF else 0
    for place in range(count):
        part, byte = a >> width * place, b >> 8 * (first + place)
        part = sign_extended(part, width) if mode & SIGNED else zero_extended(part, width)
        c += part * (sign_extended(byte, 8) if mode & SIGNED_BYTES else zero_extended(byte, 8))
    return zero_extended(c, 32)


@separate
def whole(operation: int, mode: int, a: int, b: int, c: int, e: int) -> int:  # noqa: C901
    """One lane of an integer or logical instruction; the result has zeros above its width."""
    bits, signed = mode & 255, mode & SIGNED != 0
    if operation == MOV:
        found = a
    elif operation == ADD:
        found = a + b
    elif operation == SUB:
        found = a - b
    elif operation == AND:
        found = a & b
    elif operation == OR:
        found = a | b
    elif operation == XOR:
        found = a ^ b
    elif operation == NOT:
        found = ~a
    elif operation == SELP:
        found = a if c & 1 else b
    elif operation == SHL:
        found = 0 if b & M32 >= bits else a << (b & M32)
    elif operation == SHR:
        by = b & M32
        if signed:
            found = sign_extended(a, bits) >> min(by, bits - 1)
        else:
            found = 0 if by >= bits else shifted_right(zero_extended(a, bits), by)
    elif operation == CVT_II:
        return converted(mode, a)
    elif operation in (DP2A, DP4A):
        return dotted(operation, mode, a, b, c)
    elif operation in (MUL_WIDE, MAD_WIDE):
        a = sign_extended(a, bits) if signed else zero_extended(a, bits)
        b = sign_extended(b, bits) if signed else zero_extended(b, bits)
        found = a * b + (c if operation == MAD_WIDE else 0)
        bits *= 2
    elif operation in (PRMT, LOP3, SHF_L, SHF_R, BFE, BFI, POPC, CLZ, BREV, BFIND):
        return bits_of(operation, bits, signed, a, b, c, e)
    else:
        a = sign_extended(a, bits) if signed else zero_extended(a, bits)
        b = sign_extended(b, bits) if signed else zero_extended(b, bits)
        if operation == SETP:
            return 1 if compared(mode >> 12, bits, signed, a, b) else 0
        if operation == MIN:
            found = a if compared(LE, bits, signed, a, b) else b
        elif operation == MAX:
            found = b if compared(LE, bits, signed, a, b) else a
        elif operation == ABS:
            found = abs(a)
        elif operation == NEG:
            found = -a
        elif operation in (DIV, REM):
            found = quotient(operation, bits, signed, a, b)
        elif operation in (MUL_LO, MUL_HI):
            found = product(operation, bits, signed, a, b)
        else:
            found = product(operation, bits, signed, a, b) + c
    return zero_extended(found, bits)
