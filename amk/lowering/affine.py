"""What registers of a kernel hold where they are read, as sums of products with constants.

A form maps leaves to factors; leaf "" stands for 1. Leaves are names of variables and special registers, results of
instructions that are not linear (equal ones of equal forms where they are functions), and "phi": a register at a place
that several definitions reach. Equal forms hold equal values in one pass of the loops around.
Assumptions: a definition that a guard may skip does not hide those before it. Sums and products with constants are
taken modulo 2^64. Of the width of an instruction only this is kept: 32 or 64 bits; what is narrower, saturates, carries
    or takes the upper half of a product is no sum.
Cost: linear in the blocks for every register and block that is asked for.
"""

from __future__ import annotations

import re

from amk.lowering.ptx_code import Code, Kernel

Form = dict[str, int]
_COPIES = re.compile(r"mov\.[bsu](?:32|64)|cvta(?:\.to)?\.\w+(?:::\w+)?\.u64|cvt(?:\.[su](?:32|64)){2}")
_SUMS = re.compile(r"(?:(?:add|sub)\.[su]|neg\.s|(?:shl|or|not)\.b|(?:mul|mad)\.(?:lo|wide)\.[su])(?:32|64)")
_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?")
_MODULUS = 1 << 64
_DEPTH = 100
"""Definitions that are looked through on the way to one; beyond, a result stands for itself."""
_FUNCTIONS = re.compile(
    r"(?:add|sub|mul|mad|div|rem|min|max|abs|neg|and|or|xor|not|sh[lrf]|selp|setp|cvt|mov|prmt|bf[ei]|popc|clz)\b"
)


def constant(form: Form) -> int | None:
    """The value of a form without leaves, signed; None if it has some."""
    return form.get("", 0) if form.keys() <= {""} else None


def added(a: Form, b: Form, factor: int = 1) -> Form:
    """a + factor * b."""
    total = {leaf: _signed(a.get(leaf, 0) + factor * b.get(leaf, 0)) for leaf in a | b}
    return {leaf: value for leaf, value in total.items() if value}


def scaled(a: Form, factor: int) -> Form:
    return added({}, a, factor)


def only_leaf(form: Form) -> str:
    """The leaf of a form that is one leaf; else empty."""
    return next(iter(form)) if list(form.values()) == [1] and "" not in form else ""


def _signed(value: int) -> int:
    value %= _MODULUS
    return value - _MODULUS if value >= _MODULUS // 2 else value


class Values:
    """Forms of a kernel's registers. meaning: the instruction behind a leaf that is the result of one."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.forms: dict[tuple[int, str], Form] = {}
        self.numbers: dict[str, str] = {}
        self.meaning: dict[str, Code] = {}
        self.joined: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.measured: set[str] = set()
        self.depth = 0

    def operand(self, code: Code, number: int) -> Form:
        """What an operand of an instruction holds there."""
        return self.of(code.operands[number], code.at)

    def address(self, code: Code, number: int | None = None) -> Form:
        """The address in an instruction's first memory operand, or in the given one."""
        base, offset = code.address if number is None else code.memory(number)
        return added(self.of(base, code.at), {"": offset})

    def of(self, operand: str, at: int) -> Form:
        """The form of a register that is read at a place, of an immediate, or of the name of a variable."""
        if _INTEGER.fullmatch(operand):
            digits = operand.rstrip("U")
            value = int(digits, 0) if "x" in digits.lower() else int(digits)
            return {"": value} if value else {}
        if operand not in self.kernel.definitions:
            return {operand: 1}
        places = self.kernel.reaching(operand, at)
        if len(places) == 1:
            return self.result(places[0], operand)
        if (argument := self._argument(operand, places)) is not None:
            return argument
        leaf = self._leaf(f"phi {operand} {places}", "phi")
        self.joined[leaf] = (operand, places)
        return {leaf: 1}

    def _argument(self, register: str, places: tuple[int, ...]) -> Form | None:
        """The launch's argument that every definition loads: some compilations load one again instead of keeping it."""
        loads = [self.kernel.code[place] for place in places]
        if not all(load.opcode.startswith("ld.param") and self._is_fixed(self.address(load)) for load in loads):
            return None
        forms = [self.result(place, register) for place in places]
        return forms[0] if all(form == forms[0] for form in forms) else None

    def _is_fixed(self, address: Form) -> bool:
        """Whether it is that of a variable, with no index."""
        return not (address.keys() & (self.joined.keys() | self.meaning.keys()))

    def alternatives(self, leaf: str) -> list[Form]:
        """What the definitions that meet in a "phi" leave, the leaf itself left out."""
        register, places = self.joined.get(leaf, ("", ()))
        found: list[Form] = []
        for place in places:
            form = self.result(place, register)
            if form not in (*found, {leaf: 1}):
                found.append(form)
        return found

    def origins(self, leaf: str) -> list[Form]:
        """What the definitions leave that meet in a "phi", or in one that it copies."""
        found: list[Form] = []
        seen, stack = {leaf}, [leaf]
        while stack:
            for form in self.alternatives(stack.pop()):
                copied = only_leaf(form)
                if copied not in self.joined:
                    found += [form] if form not in found else []
                elif copied not in seen:
                    seen.add(copied)
                    stack.append(copied)
        return found

    def recurrence(self, leaf: str) -> tuple[Form, int, str] | None:
        """(start, step, name of the passes) of a "phi" that is set in one block and counted on in another.

        Variables of equal names have passed equally many steps: their starts stand in one block, as do their steps.
        """
        register, places = self.joined.get(leaf, ("", ()))
        forms = [self.result(place, register) for place in places]
        counted = [n for n, form in enumerate(forms) if form.get(leaf) == 1 and form.keys() == {leaf, ""}]
        if len(places) != 2 or len(counted) != 1 or any(self.kernel.code[place].guard for place in places):
            return None
        step, start = counted[0], 1 - counted[0]
        blocks = [self.kernel.block(places[n]) for n in (start, step)]
        if leaf in forms[start] or blocks[0] == blocks[1]:
            return None
        return forms[start], forms[step][""], f"passes {blocks[0]} {blocks[1]}"

    def counted(self, form: Form) -> Form:
        """The form with variables of loops as start + step * passes."""
        total: Form = {}
        for leaf, factor in form.items():
            found = self.recurrence(leaf)
            total = added(total, {leaf: 1} if found is None else added(found[0], {found[2]: found[1]}), factor)
        return total

    def result(self, place: int, register: str) -> Form:
        """What the instruction at a place leaves in one of the registers that it writes."""
        if (place, register) not in self.forms:
            code = self.kernel.code[place]
            if self.depth > _DEPTH:
                return {self._leaf(f"place {place} {register}", "value"): 1}
            self.depth += 1
            form = self._linear(code) if not code.guard and code.operands[0] == register else None
            self.forms[place, register] = self._opaque(code, register) if form is None else form
            self.depth -= 1
        return self.forms[place, register]

    def _linear(self, code: Code) -> Form | None:
        if code.opcode == "and.b32" and (warps := self._warp_bits(code)) is not None:
            return warps
        if _COPIES.fullmatch(code.opcode):
            return None if code.operands[1].startswith("{") else self.operand(code, 1)
        if not _SUMS.fullmatch(code.opcode):
            return None
        return _LINEAR[code.opcode.split(".")[0]](self, [self.operand(code, n) for n in range(1, len(code.operands))])

    def _warp_bits(self, code: Code) -> Form | None:
        """The thread, shifted to the right or not, with the bits of its lane cleared: a multiple of its warp, which
        some instruction has computed before."""
        thread, mask, shift = self.operand(code, 1), constant(self.operand(code, 2)), 0
        shifted = self.meaning.get(only_leaf(thread))
        if shifted is not None and shifted.opcode == "shr.u32":
            thread, shift = self.operand(shifted, 1), constant(self.operand(shifted, 2)) or 0
        if thread != {"%tid.x": 1} or mask is None or not 0 <= shift < 5:
            return None
        lowest = 32 >> shift
        if mask < 0 or mask % lowest or mask < self.kernel.threads - 32 >> shift or (mask + lowest) & mask:
            return None  # of a warp that there is some bits are left out
        for one in self.kernel.code:
            if one.opcode == "shr.u32" and [self.operand(one, n) for n in (1, 2)] == [thread, {"": 5}]:
                return scaled(self.result(one.at, one.results[0]), lowest)
        return None

    def most(self, form: Form, within: frozenset[str] = frozenset()) -> int | None:
        """The largest value of a sum of masked registers; None if it is not known, or a part may be negative."""
        total = form.get("", 0)
        if min(form.values(), default=0) < 0:
            return None
        for leaf in form.keys() - {""}:
            most = self._most_of(leaf, within)
            if most is None:
                return None
            total += form[leaf] * most
        return total

    def _most_of(self, leaf: str, within: frozenset[str]) -> int | None:
        if leaf in within:
            return 0  # a copy of itself
        if leaf in self.joined:
            if leaf in self.measured:
                return None
            self.measured.add(leaf)
            each = [self.most(form, within | {leaf}) for form in self.alternatives(leaf)]
            self.measured.discard(leaf)
            return max((most for most in each if most is not None), default=None) if None not in each else None
        code = self.meaning.get(leaf)
        mask = constant(self.operand(code, 2)) if code and code.opcode.startswith("and.b") else None
        return mask if mask is not None and mask >= 0 else None

    def _opaque(self, code: Code, register: str) -> Form:
        """A leaf named by operation and forms of operands; of what is not a function of them, by the place."""
        number = code.results.index(register)
        if code.opcode.startswith(("ld.const", "ld.param")):
            text = f"{code.opcode} {sorted(self.address(code).items())} {number}"
        elif _FUNCTIONS.match(code.opcode) and not code.guard:
            forms = [sorted(self.of(source, code.at).items()) for source in code.sources]
            text = f"{code.opcode} {forms} {number}"
        else:
            text = f"place {code.at} {number}"
        leaf = self._leaf(text, "value")
        self.meaning.setdefault(leaf, code)
        return {leaf: 1}

    def _leaf(self, text: str, kind: str) -> str:
        return self.numbers.setdefault(text, f"{kind} {len(self.numbers)}")


def _product(values: Values, forms: list[Form]) -> Form | None:
    left, right = constant(forms[0]), constant(forms[1])
    if right is not None:
        return scaled(forms[0], right)
    return scaled(forms[1], left) if left is not None else None


def _multiply_add(values: Values, forms: list[Form]) -> Form | None:
    product = _product(values, forms)
    return added(product, forms[2]) if product is not None else None


def _shifted(values: Values, forms: list[Form]) -> Form | None:
    places = constant(forms[1])
    return scaled(forms[0], 1 << places) if places is not None and 0 <= places < 64 else None


def _joined_bits(values: Values, forms: list[Form]) -> Form | None:
    """a | b where no bit can be set in both: one is below a power of two that the other is a multiple of."""
    for low, high in (forms, forms[::-1]):
        most = values.most(low)
        if most is not None and all(factor % (1 << most.bit_length()) == 0 for factor in high.values()):
            return added(low, high)
    return None


_LINEAR = {
    "add": lambda _, f: added(f[0], f[1]),
    "sub": lambda _, f: added(f[0], f[1], -1),
    "neg": lambda _, f: scaled(f[0], -1),
    "not": lambda _, f: added({"": -1}, f[0], -1),
    "shl": _shifted,
    "mul": _product,
    "mad": _multiply_add,
    "or": _joined_bits,
}
