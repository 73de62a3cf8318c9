"""A compiled kernel beside its schedule: forms of registers in the schedule's own words."""

from __future__ import annotations

from amk.lowering import refusal
from amk.lowering.abi import abi, member
from amk.lowering.affine import Form, Values, added, constant, only_leaf
from amk.lowering.emit import KERNEL
from amk.lowering.plan_constants import identifier
from amk.lowering.ptx_code import Code, Kernel
from amk.lowering.readback import Instruction
from amk.lowering.roots import Roots
from amk.lowering.skeleton import ByPart, Part
from amk.lowering.wait_loops import WaitLoop
from amk.report.diagnostic import AmkError, shown
from amk.schedule_ir.expr import Expr
from amk.schedule_ir.schedule import Schedule, Step

DOG = f"_ZZ{len(KERNEL)}{KERNEL}E3dog"
"""The watchdog of a block, a variable of the kernel."""


class Reading:
    """The kernel, what was found in it, and what its registers hold.

    Names of leaves: "t" the epoch (read from the state, one more with each token), "l of n" the layer in a loop over n,
    "n" the token of the launch, "worker", "lane", "warp", "table x" the worker's entry of table x, "argument x" a
    field.
    """

    def __init__(self, schedule: Schedule, kernel: Kernel, by_part: ByPart) -> None:
        self.schedule, self.kernel, self.by_part = schedule, kernel, by_part
        self.values, self.abi = Values(kernel), abi(schedule)
        self.roots = Roots(kernel, self.abi)
        self.stops = {kernel.by_line[i.line] for _, each in by_part for i in each}
        self.counters = {c.name: c for c in schedule.counters}
        self.buffers = {b.name: b for b in schedule.buffers}
        self.buffer_names = {member(b.name): b.name for b in schedule.buffers}
        self.names: dict[str, str] = {}

    def refused(self, label: str, one: Instruction | Code, why: str) -> AmkError:
        words = f"line {one.line}: {one.opcode} {', '.join(one.operands)}"
        return refusal.unsafe("AMK609", f"{label}: the machine code {why}", shown(words))

    def code(self, one: Instruction) -> Code:
        return self.kernel.code[self.kernel.by_line[one.line]]

    def loop(self, one: Instruction) -> WaitLoop:
        at = self.kernel.by_line[one.line]
        return WaitLoop(self.kernel, self.values, at, self.stops - {at})

    def definition(self, register: str) -> Code | None:
        """The only instruction that writes a register; None if there are several."""
        places = self.kernel.definitions.get(register, [])
        return self.kernel.code[places[0]] if len(places) == 1 else None

    def same(self, part: Part, one: Instruction, why: str, actual: Form, expected: Form) -> None:
        """AMK609 unless the form found is the one expected, in names."""
        if self.named(actual) != expected:
            words = f"{why}: {_words(self.named(actual))}, not {_words(expected)}"
            raise self.refused(part.label, one, words)

    def named_by(self, part: Part) -> set[str]:
        """The buffers that the part's step names; none of a part that only waits or signals."""
        if not isinstance(part.item, Step) or part.signals:
            return set()
        return {value for _, value in part.item.op if isinstance(value, str) and value in self.buffers}

    def expected(self, part: Part, expr: Expr) -> Form:
        """An expression of the schedule in the loop around the part."""
        total: Form = {}
        for symbol, factor in ({"1": expr} if isinstance(expr, int) else expr).items():
            if symbol == "l" and part.layers == 1:
                continue  # the only layer is number 0
            leaf = {"1": "", "t": "t", "n": "n", "worker": "worker", "l": f"l of {part.layers}"}.get(symbol)
            total = added(total, {f"table {symbol}" if leaf is None else leaf: factor})
        return total

    def named(self, form: Form) -> Form:
        """The form with the names above for what they stand for."""
        total: Form = {}
        for leaf, factor in form.items():
            name = self.name(leaf)
            counted = self._by_passes(leaf) if name == leaf else None
            total = added(total, {name: 1} if counted is None else counted, factor)
        return total

    def _by_passes(self, leaf: str) -> Form | None:
        """A variable that is counted on beside one that has a name, as start + step * that one."""
        found = self.values.recurrence(leaf)
        if found is None:
            return None
        start, step, passes = found
        for other in list(self.values.joined):
            beside = self.values.recurrence(other)
            if beside is None or beside[1:] != (1, passes) or constant(beside[0]) != 0:
                continue
            if (name := self.name(other)) != other:
                return added(self.named(start), {name: step})
        return None

    def name(self, leaf: str) -> str:
        if leaf not in self.names:
            self.names[leaf] = leaf  # while it is looked at
            self.names[leaf] = self._variable(leaf) if leaf in self.values.joined else self._value(leaf)
        return self.names[leaf]

    def _value(self, leaf: str) -> str:
        code = self.values.meaning.get(leaf)
        if code is None:
            return {"%ctaid.x": "worker"}.get(leaf, leaf)
        if code.opcode.startswith("ld.param"):
            return f"argument {self.roots.field(code)}"
        if code.opcode.startswith("ld.const"):
            return self._table(code) or leaf
        operands = [self.values.operand(code, n) for n in (1, 2)] if code.opcode[:3] in ("and", "shr") else []
        if operands == [{"%tid.x": 1}, {"": 31}]:
            return "lane"
        return "warp" if operands == [{"%tid.x": 1}, {"": 5}] and code.opcode == "shr.u32" else leaf

    def _table(self, code: Code) -> str | None:
        """`table x` for a load of the worker's entry of the table, which is a constant array of 4-byte words."""
        form = self.values.address(code)
        for table in self.schedule.tables:
            name = f"t_{identifier(table)}"
            if any(symbol.endswith(f"{len(name)}{name}E") and form == {symbol: 1, "%ctaid.x": 4} for symbol in form):
                return f"table {table}"
        return None

    def _variable(self, leaf: str) -> str:
        forms = self.values.alternatives(leaf)
        others = [form for form in forms if form != {leaf: 1, "": 1}]
        if len(others) < len(forms):
            return self._loop_variable(leaf, others) or self._epoch(leaf) or leaf
        if sorted(constant(form) or 0 for form in forms) == [0, 1] and all(form.keys() <= {""} for form in forms):
            return "l of 2"  # all that is left of a loop of two
        several = [form for form in self.values.origins(leaf) if constant(form) is None]
        only = {self.name(only_leaf(form)) for form in several}  # where lane is 0, the compiler says 0
        return only.pop() if len(only) == 1 and only <= {"lane", "warp"} else leaf

    def _loop_variable(self, leaf: str, starts: list[Form]) -> str | None:
        """The name of a variable that goes from 0 to the end of its loop in steps of one."""
        if len(starts) != 1 or constant(starts[0]) != 0:
            return None
        compared = self._comparisons(leaf)
        counts = {self._passes(leaf, one) for one in compared} & {part.layers for part, _ in self.by_part}
        if len(counts) == 1:
            return f"l of {counts.pop()}"
        ends = [self.named(self.values.operand(one, 2)) for one in compared]
        return "n" if {"argument tokens": 1} in ends else None

    def _passes(self, leaf: str, one: Code) -> int | None:
        """How often a loop runs that the comparison ends: at its end, of the variable as it was in this pass or will be
        in the next, or at its beginning."""
        end = constant(self.values.operand(one, 2))
        if end is None:
            return None
        branches = [b for b in self.kernel.code if b.guard.lstrip("!") == one.results[0] and b.opcode.startswith("bra")]
        at_end = any(self.kernel.successors(branch.at)[0] <= one.at for branch in branches)
        return end + 1 if at_end and self.values.operand(one, 1) == {leaf: 1} else end

    def _epoch(self, leaf: str) -> str | None:
        """ "t" for a variable that is read from the state and grows by one. Warps that do not run the program leave
        something void in it, or the epoch of another program."""
        loads = 0
        seen, stack = {leaf}, [leaf]
        while stack:
            for form in self.values.alternatives(stack.pop()):
                before = only_leaf(added(form, {"": form.get("", 0)}, -1))
                if (load := self._loaded(form)) is not None:
                    if self.named(self.values.address(load)) != {f"argument {member('state')}": 1, "": 8}:
                        return None
                    loads += 1
                elif before in self.values.joined and form.get("", 0) in (0, 1):
                    stack += [before] if before not in seen else []
                    seen.add(before)
                elif constant(form) is None:
                    return None
        return "t" if loads > 0 else None

    def _loaded(self, form: Form) -> Code | None:
        """The load of global memory whose result the form is."""
        load = self.values.meaning.get(only_leaf(form))
        return load if load is not None and load.opcode.startswith("ld.global") else None

    def _comparisons(self, leaf: str) -> list[Code]:
        """Comparisons of the variable, as it is or one further, with something else."""
        forms, registers = ({leaf: 1}, {leaf: 1, "": 1}), {self.values.joined[leaf][0]}
        for kind in ("mov", "add"):  # copies of the register, and what is added to it or to them
            registers |= {
                one.results[0] for one in self.kernel.code if one.opcode[:3] == kind and one.operands[1] in registers
            }
        return [
            one
            for one in self.kernel.code
            if one.opcode.startswith("setp") and one.operands[1] in registers and self.values.operand(one, 1) in forms
        ]


def _words(form: Form) -> str:
    return " + ".join(f"{factor} {leaf}".rstrip() for leaf, factor in sorted(form.items())) or "0"
