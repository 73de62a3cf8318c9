"""Instructions as rows of numbers, and where variables lie: what `program.assemble` puts in order.

A register, an immediate and a special register are all rows of a warp's register file; an instruction names rows.

    column  0        operation
            1        guard: 2 * row + negated, or -1
            2, 3     mode, result
            4..7     sources
            8, 9     second result, negated source
            10..15   up to three addresses as (row, offset)

Loads and stores have their values in 3..6. Tensor core instructions have d in 3..6, a in 7..10, b in 11..12, c in
13..16.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from amk.emulator.ptx import isa
from amk.emulator.ptx.parse import TYPE_BYTES, Address, Bits, Function, Instruction, Module, Operand, Variable
from amk.emulator.refusal import bad_ptx, unknown_instruction

COLUMNS = 18
ZERO, SINK = 0, 1
"""Rows: a constant zero; where results go that nobody reads."""

SPECIAL = (
    "%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x",
    "%nctaid.y", "%nctaid.z", "%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid", "%lanemask_eq",
    "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge", "%dynamic_smem_size", "%total_smem_size",
)  # fmt: skip
FIRST_SPECIAL = 2
CLOCKS = {"%clock": 0, "%clock64": 0, "%clock_hi": 1, "%globaltimer": 2, "%globaltimer_lo": 2}

STATIC_SHARED_AT = 1024
"""Where static shared memory begins: an address below it is a null pointer's neighbour."""

GLOBAL_BASE = 1 << 44
SHARED_WINDOW = 1 << 42
PARAM_WINDOW = 1 << 41
CONST_WINDOW = 1 << 40
"""Generic addresses; those of global memory are the same in both spaces."""

STRENGTHS = {"weak": isa.WEAK, "relaxed": isa.RELAXED, "acquire": isa.ACQUIRE, "release": isa.RELEASE,
             "volatile": isa.VOLATILE, "nc": isa.NON_COHERENT}  # fmt: skip
SCOPES = {"cta": isa.CTA, "cluster": isa.CTA, "gpu": isa.GPU, "sys": isa.SYS}
SPACES = {"global": isa.GLOBAL, "shared": isa.SHARED, "shared::cta": isa.SHARED, "const": isa.CONST, "param": isa.PARAM}
CACHES = {"ca", "cg", "cs", "lu", "cv", "wb", "wt"}
ATOMICS = {
    "add": isa.A_ADD, "or": isa.A_OR, "and": isa.A_AND, "xor": isa.A_XOR, "min": isa.A_MIN, "max": isa.A_MAX,
    "exch": isa.A_EXCH, "cas": isa.A_CAS, "inc": isa.A_INC, "dec": isa.A_DEC,
}  # fmt: skip


@cache
def form_table() -> dict[str, isa.Form]:
    return isa.forms()


@dataclass
class Encoder:
    module: Module
    function: Function
    rows: dict[str, int] = field(default_factory=dict)
    immediates: dict[int, int] = field(default_factory=dict)
    constants: list[tuple[int, int]] = field(default_factory=list)
    names: list[str] = field(default_factory=lambda: ["0", "_", *SPECIAL])
    shared: dict[str, int] = field(default_factory=dict)
    addresses: dict[str, int] = field(default_factory=dict)
    line: int = 0
    opcode: str = ""

    def __post_init__(self) -> None:
        self.rows = {"_": SINK} | {name: FIRST_SPECIAL + n for n, name in enumerate(SPECIAL)}
        for name in self.function.registers:
            self.rows[name] = len(self.names)
            self.names.append(name)
        self.static_shared = self._lay_out_shared()
        self.const = self._lay_out("const", 0)
        self.globals = self._lay_out_globals()
        offset = 0
        for parameter in self.function.parameters:
            offset = -(-offset // parameter.align) * parameter.align
            self.addresses[parameter.name] = offset
            offset += parameter.size
        self.parameters = offset

    def _lay_out_shared(self) -> int:
        at, dynamic = STATIC_SHARED_AT, 1
        outside = [v for v in self.module.variables if v.space == "shared"]
        for variable in [*self.function.shared, *outside]:
            if variable.dynamic:
                dynamic = max(dynamic, variable.align)
                continue
            at = -(-at // variable.align) * variable.align
            self.addresses[variable.name] = at
            at += variable.size
        at = -(-at // max(dynamic, 16)) * max(dynamic, 16)
        for variable in outside:
            if variable.dynamic:
                self.addresses[variable.name] = at
        return at

    def _lay_out(self, space: str, at: int) -> bytes:
        content = b""
        for variable in self.module.variables:
            if variable.space == space:
                content += bytes(-len(content) % variable.align)
                self.addresses[variable.name] = at + len(content)
                content += variable.data or bytes(variable.size)
        return content

    def _lay_out_globals(self) -> tuple[tuple[Variable, int], ...]:
        """Module variables at the bottom of global memory, each with a gap behind it."""
        placed, at = [], GLOBAL_BASE
        used = {
            operand
            for instruction in self.function.code
            for operand in instruction.operands
            if isinstance(operand, str)
        }
        for variable in self.module.variables:
            if variable.space == "global" and variable.name in used:
                self.addresses[variable.name] = at
                placed.append((variable, at))
                at += -(-variable.size // 256) * 256 + 256
        return tuple(placed)

    def fail(self) -> Exception:
        return unknown_instruction(self.line, self.opcode)

    def immediate(self, value: int) -> int:
        value &= (1 << 64) - 1
        if value == 0:
            return ZERO
        if value not in self.immediates:
            self.immediates[value] = len(self.names)
            self.constants.append((len(self.names), value))
            self.names.append(str(value))
        return self.immediates[value]

    def row(self, operand: Operand) -> int:
        if isinstance(operand, int):
            return self.immediate(operand)
        if isinstance(operand, Bits):
            return self.immediate(operand.value)
        if isinstance(operand, str):
            if operand in self.rows:
                return self.rows[operand]
            if operand in self.addresses:
                return self.immediate(self.addresses[operand])
            if operand.startswith("%"):
                raise unknown_instruction(self.line, f"{self.opcode} with {operand}")
            raise bad_ptx(self.line, f"{operand} is not declared")
        raise self.fail()

    def address(self, operand: Operand) -> tuple[int, int]:
        if not isinstance(operand, Address):
            raise bad_ptx(self.line, f"{self.opcode} needs an address")
        if operand.base in self.addresses:
            return self.immediate(self.addresses[operand.base] + operand.offset), 0
        if not operand.base:
            return self.immediate(operand.offset), 0
        return self.row(operand.base), operand.offset

    def bits_of(self, operand: Operand) -> int:
        kind = self.function.registers.get(operand, "b64") if isinstance(operand, str) else "b64"
        return 1 if kind == "pred" else 8 * TYPE_BYTES[kind]

    def encode(self, instruction: Instruction) -> list[int]:
        self.line, self.opcode = instruction.line, instruction.opcode
        words = [0, -1, 0] + [ZERO] * (COLUMNS - 3)
        if instruction.predicate:
            words[1] = 2 * self.row(instruction.predicate) + int(instruction.negated)
        head = instruction.opcode.split(".", 1)[0]
        if head in ("ld", "st", "atom", "red"):
            self.access(words, head, instruction)
        elif head == "cvta":
            self.conversion_of_address(words, instruction)
        elif head != "mov" or not self.special_move(words, instruction):
            form = form_table().get(instruction.opcode)
            if form is None:
                raise self.fail()
            self.fill(words, form, instruction)
        return words

    def special_move(self, words: list[int], instruction: Instruction) -> bool:
        """Moves between a register and several, and those that read a clock."""
        if len(instruction.operands) != 2:
            raise self.fail()
        to, of = instruction.operands
        if isinstance(of, str) and of in CLOCKS:
            words[0], words[2], words[3] = isa.CLOCK, CLOCKS[of] | self.bits_of(to) << 8, self.row(to)
            return True
        if isinstance(to, tuple) or isinstance(of, tuple):
            many, one = (to, of) if isinstance(to, tuple) else (of, to)
            assert isinstance(many, tuple)
            whole = {"mov.b32": 32, "mov.b64": 64, "mov.u32": 32, "mov.u64": 64}.get(self.opcode)
            if whole is None or len(many) not in (2, 4):
                raise self.fail()
            words[0] = isa.UNPACK if many is to else isa.PACK
            words[2] = whole // len(many) | len(many) << 8
            words[4 if many is to else 3] = self.row(one)
            words[10 : 10 + len(many)] = [self.row(part) for part in many]
            return True
        return False

    def conversion_of_address(self, words: list[int], instruction: Instruction) -> None:
        forms = {
            "cvta.to.global.u64": 0, "cvta.global.u64": 0, "cvta.to.shared.u64": -SHARED_WINDOW,
            "cvta.shared.u64": SHARED_WINDOW, "cvta.param.u64": PARAM_WINDOW, "cvta.to.param.u64": -PARAM_WINDOW,
            "cvta.const.u64": CONST_WINDOW, "cvta.to.const.u64": -CONST_WINDOW,
        }  # fmt: skip
        if instruction.opcode not in forms or len(instruction.operands) != 2:
            raise self.fail()
        to, of = instruction.operands
        words[0], words[2] = isa.ADD, 64
        words[3], words[4], words[5] = self.row(to), self.row(of), self.immediate(forms[instruction.opcode])

    def access(self, words: list[int], head: str, instruction: Instruction) -> None:  # noqa: C901
        """ld, st, atom, red; the mode is space, strength, scope, bytes, count, sign, width of the result, operation."""
        strength, scope, space, count, operation, kind = isa.WEAK, isa.CTA, isa.GENERIC, 1, -1, ""
        if head in ("atom", "red"):
            strength, scope = isa.RELAXED, isa.GPU
        for part in instruction.opcode.split(".")[1:]:
            if part in STRENGTHS:
                strength = STRENGTHS[part]
            elif part in SCOPES:
                scope = SCOPES[part]
            elif part in SPACES:
                space = SPACES[part]
            elif part in TYPE_BYTES:
                kind = part
            elif part in ("v2", "v4"):
                count = int(part[1])
            elif head in ("atom", "red") and part in ATOMICS:
                operation = ATOMICS[part]
            elif not (part in CACHES or part.startswith(("L1::", "L2::"))):
                raise self.fail()
        operands = list(instruction.operands)
        if "cache_hint" in instruction.opcode:
            operands.pop()
        bytes_each = TYPE_BYTES.get(kind, 0)
        if bytes_each == 0 or kind == "pred" or (head in ("atom", "red") and operation < 0):
            raise self.fail()
        signed = int(kind[0] == "s")
        words[2] = space | strength << 4 | scope << 8 | bytes_each << 12 | count << 16 | signed << 20
        if head in ("atom", "red"):
            self.atomic(words, head, operation, kind, operands)
            return
        if len(operands) != 2:
            raise self.fail()
        value, place = (operands[0], operands[1]) if head == "ld" else (operands[1], operands[0])
        values = list(value) if isinstance(value, tuple) else [value]
        if len(values) != count:
            raise self.fail()
        words[0] = isa.LD if head == "ld" else isa.ST
        words[2] |= int(self.bits_of(values[0]) == 64) << 21
        words[3 : 3 + count] = [self.row(each) for each in values]
        words[10], words[11] = self.address(place)

    def atomic(self, words: list[int], head: str, operation: int, kind: str, operands: list[Operand]) -> None:
        if kind in ("f16", "bf16", "f16x2", "bf16x2", "f64", "b8", "b16", "u16", "s16"):
            raise self.fail()
        if kind == "f32":
            if operation != isa.A_ADD:
                raise self.fail()
            operation = isa.A_FADD
        words[0] = isa.ATOM
        words[2] |= operation << 22 | int(head == "red") << 27
        result: Operand = operands.pop(0) if head == "atom" else "_"
        if len(operands) != (3 if operation == isa.A_CAS else 2):
            raise self.fail()
        words[3] = self.row(result)
        words[10], words[11] = self.address(operands[0])
        words[4] = self.row(operands[1])
        if operation == isa.A_CAS:
            words[5] = self.row(operands[2])

    def fill(self, words: list[int], form: isa.Form, instruction: Instruction) -> None:  # noqa: C901
        words[0], words[2] = form.operation, form.mode
        words[3] = SINK if form.operation == isa.LD else words[3]
        operands = list(instruction.operands)
        if form.operands.endswith("*"):
            operands = operands[: len(form.operands) - 1 - form.operands.count("z")]
        if instruction.opcode.endswith("cache_hint") and form.operation == isa.CP_ASYNC:
            operands = operands[:-1]
        if form.operation == isa.MMA:
            self.tensor_core(words, operands)
            return
        source, place = 4, 10
        for letter in form.operands:
            if letter in "z*":
                continue
            if not operands:
                if letter in "o_" or (letter == "a" and form.operation in (isa.BAR_SYNC, isa.BAR_ARRIVE)):
                    if letter == "a":
                        words[source] = -1
                    continue
                raise self.fail()
            operand = operands.pop(0)
            if letter == "d":
                words[3] = self.row(operand)
            elif letter in "sp":
                first, second = operand if isinstance(operand, tuple) else (operand, "_")
                words[3], words[8] = self.row(first), self.row(second)
            elif letter == "L":
                words[3] = self.label(operand)
            elif letter == "M":
                words[place], words[place + 1] = self.address(operand)
                place += 2
            elif letter == "_":
                if operand != "_":
                    raise unknown_instruction(self.line, f"{self.opcode} with a state as its result")
            elif letter == "Q" and isinstance(operand, tuple) and operand[0] == "!":
                words[source], words[9] = self.row(operand[1]), 1
                source += 1
            elif letter != "o":
                words[source] = self.row(operand)
                source += 1
            elif form.operation == isa.CP_ASYNC:
                raise unknown_instruction(self.line, f"{self.opcode} with a size of the source")
            elif form.operation == isa.MBAR_ARRIVE:
                words[source] = self.row(operand)
        if operands:
            raise self.fail()
        if form.operation == isa.CVT_II:
            words[2] |= self.bits_of(instruction.operands[0]) << 24
        if form.operation == isa.MBAR_ARRIVE and form.mode == 0 and words[4] == ZERO:
            words[4] = self.immediate(1)

    def label(self, operand: Operand) -> int:
        """The instruction's number in the text; `assemble` turns it into a place of the layout."""
        if not isinstance(operand, str) or operand not in self.function.labels:
            raise bad_ptx(self.line, f"no label {operand}")
        return self.function.labels[operand]

    def tensor_core(self, words: list[int], operands: list[Operand]) -> None:
        sizes = (4, 4, 2, 4)
        at = 3
        if len(operands) != 4:
            raise self.fail()
        for operand, size in zip(operands, sizes, strict=True):
            if not isinstance(operand, tuple) or len(operand) != size:
                raise self.fail()
            words[at : at + size] = [self.row(part) for part in operand]
            at += size
