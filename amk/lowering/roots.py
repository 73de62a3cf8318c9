"""Which memory an address points into: the parameters and variables that it is computed from.

Property: the names of every object that some definition of the address register starts from. Offsets are left out; what
    is widened from 32 bits, or multiplied, is one. Cost: linear in the definitions, each looked at once an address.
"""

from __future__ import annotations

import re

from amk.lowering.abi import Abi
from amk.lowering.ptx_code import Code, Kernel

_INDEX = re.compile(r"mul\b|cvt\.[su]64\.[su](?:8|16|32)\b|shl\b|shr\b|mov\.u64 %globaltimer")
_NUMBER = re.compile(r"-?\d|0[xXfFdD]")


class Roots:
    """Of one kernel. layout: its argument, whose fields give buffers their names."""

    def __init__(self, kernel: Kernel, layout: Abi) -> None:
        self.kernel, self.layout = kernel, layout
        self.fields = {8 * n: name for n, name in enumerate(layout.dtype.names or ())}

    def of_address(self, code: Code) -> set[str]:
        """Names of the objects behind the instruction's first memory operand: fields of the argument, variables,
        "loaded" for an address that was read from memory."""
        return self.of_register(code.address[0])

    def of_register(self, base: str) -> set[str]:
        """The same of an address in a register."""
        found: set[str] = set()
        seen, stack = {base}, [base]
        while stack:
            name = stack.pop()
            places = self.kernel.definitions.get(name)
            if places is None:
                found |= {name} if not _NUMBER.match(name) else set()
                continue
            for at in places:
                root, more = self._from(self.kernel.code[at])
                found |= root
                stack += [register for register in more if register not in seen]
                seen |= set(more)
        return found

    def _from(self, one: Code) -> tuple[set[str], tuple[str, ...]]:
        """Objects that a definition names, and registers that it goes on from."""
        if one.opcode.startswith("ld.param"):
            return self.fields_of(*one.address), ()
        if one.opcode.startswith(("ld", "atom")):
            return {"loaded"}, ()
        if _INDEX.match(one.opcode):
            return set(), ()
        sources = one.operands[1:3] if one.opcode.startswith("selp") else one.operands[1:]
        if one.opcode.startswith("mad"):
            sources = one.operands[3:]
        return set(), tuple(source for source in sources if not source.startswith(("{", "[")))

    def field(self, one: Code) -> str:
        """The field of the argument that a load of parameters reads; "unknown" if it may read several."""
        found = self.fields_of(*one.address)
        return found.pop() if len(found) == 1 else "unknown"

    def fields_of(self, base: str, offset: int, bases: frozenset[str] = frozenset()) -> set[str]:
        """The fields that an address within the argument may be of, chosen between by earlier branches."""
        places = self.kernel.definitions.get(base)
        if places is None:
            return {self.fields.get(offset, "unknown")}
        if base in bases:
            return {"unknown"}  # an address that a loop moves on
        found: set[str] = set()
        for at in places:
            one = self.kernel.code[at]
            if one.opcode.startswith("mov"):
                found |= self.fields_of(one.operands[1], offset, bases | {base})
            elif one.opcode == "add.s64" and one.operands[2].isdigit():
                found |= self.fields_of(one.operands[1], offset + int(one.operands[2]), bases | {base})
            else:
                found.add("unknown")
        return found
